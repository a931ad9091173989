//! Planted bugs: stores that break the contract in one way each. The checker must catch them all,
//! or no one can trust it.
//!
//! They exist only here: a simulation puts a store with the bug around the real one.

use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use windlass_core::fairness::{Mix, Rate};
use windlass_core::{
    AttemptError, Consent, Delivery, Failure, FailureClass, Job, JobId, Payload, QueueName, Report,
    State, Timestamp,
};
use windlass_store::{
    ActionStep, Attempt, AttemptId, AttemptReport, Change, Changed, Claim, Claimed, Enqueue,
    Enqueued, Expected, Fire, Fired, QueueLimits, Renewed, Schedule, ScheduleRef, Settled, Store,
    StoreError, Swept, Written, fire_one,
};

use crate::Driver;
use crate::store_layer::store_layer;

macro_rules! bugs {
    ($($name:ident: $text:literal;)*) => {
        /// A planted bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bug {
            $(#[doc = $text] $name,)*
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$name),*];

            /// What is broken.
            pub fn text(self) -> &'static str {
                match self { $(Bug::$name => $text,)* }
            }

            /// The name on the command line, as in `drop-attempt-check`.
            pub fn name(self) -> String {
                let name = match self { $(Bug::$name => stringify!($name),)* };
                let letters = name.char_indices().flat_map(|(index, letter)| {
                    let dash = (index > 0 && letter.is_ascii_uppercase()).then_some('-');
                    dash.into_iter().chain([letter.to_ascii_lowercase()])
                });
                letters.collect()
            }
        }
    };
}

bugs! {
    DropAttemptCheck: "settle does not compare the attempt";
    LateSettleWins: "settle confirms the report of a lost lease";
    RenewLostLease: "renew confirms a lost lease";
    SweepWithoutCompare: "the sweep ends leases that were renewed";
    SettleBeforeCommit: "settle answers before the write, which is lost";
    AcknowledgeBeforeSync: "enqueue answers before the write, which is lost";
    StoreHalfABatch: "enqueue stores the first half of a batch";
    ClaimBeforeDue: "claim compares with a time that is a second ahead";
    ClaimTooMany: "claim ignores its limit";
    ClaimOtherQueue: "claim takes jobs of another queue";
    LeaseTooLong: "claim grants a lease that is too long";
    RetryNextToOldAttempt: "claim ignores the jobs whose earlier handler still runs";
    KeepOneInstant: "the fetcher keeps one instant for all claims of 10 s";
    IgnorePause: "a paused queue is claimed from";
    IgnoreConcurrency: "the concurrency limit of a queue is ignored";
    IgnoreRate: "the rate of a queue is ignored";
    IgnoreKeyLimit: "the limit of a concurrency key is ignored";
    FreeHeldKey: "a held unique key counts as free";
    ForgetFailure: "a failure does not count";
    DropBackoff: "a retry does not wait for its backoff";
    RetryUnrecoverable: "an unrecoverable failure is retried";
    FailedAsSucceeded: "a failed attempt is stored as succeeded";
    SucceededAsFailed: "a succeeded attempt is stored as failed";
    RetryAtMostOnce: "an at-most-once job is stored as at-least-once";
    ReviveWithoutConsent: "a lost at-most-once job is revived without consent";
    ReverseOrder: "the least urgent job starts first";
    LosePayload: "the payload is lost";
    ForgetDeadline: "the deadline is ignored";
    FireTwice: "an occurrence is stored as two jobs";
    FireStale: "an old version of a schedule fires";
    LoseOccurrence: "one of the fired occurrences is lost";
    CancelFinished: "a finished job is cancelled";
    CancelRemoves: "a cancelled job is removed";
    CountRelease: "a release counts as a failure";
    ForgetCredit: "the fetcher forgets how many slots retries had";
    FireTwiceAfterJump: "an occurrence fires again after the clock jumped";
    CatchUpTooMuch: "a schedule catches up more than its limit";
    ReplayTwice: "a replay forgets which jobs it has revived";
    IgnoreStop: "a worker claims jobs after it was asked to stop";
    LimitOffByOne: "the limits of a queue compare with `<=` instead of `<`";
    KeyLimitOffByOne: "the limit of a concurrency key compares with `<=` instead of `<`";
    AttemptsOffByOne: "the limit of attempts compares with `<=` instead of `<`";
    BackoffOffByOne: "a retry comes a millisecond before its backoff has passed";
    RetryNever: "a retry is due in a year";
    ForgetAtRestart: "a finished job is gone after a restart of the store";
    LoseAttempt: "the first attempt of a job is missing in its history";
    Panic: "a task of the engine panics";
    ReverseRuns: "a claim returns its jobs in the wrong order";
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Bug::ALL.iter().find(|bug| bug.name() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<String> = Bug::ALL.iter().map(|bug| bug.name()).collect();
            format!("must be one of {}", names.join(", "))
        })
    }
}

impl Bug {
    /// Whether the bug is in a node, above the faults between it and the store.
    fn is_in_node(self) -> bool {
        matches!(
            self,
            Bug::KeepOneInstant | Bug::ForgetCredit | Bug::FireTwiceAfterJump
        )
    }

    /// The store that shows the bug.
    pub fn driver(self) -> Driver {
        match self {
            Bug::ForgetAtRestart => Driver::Sqlite,
            _ => Driver::Memory,
        }
    }

    /// Puts the bug around the store that all nodes share.
    pub(crate) fn around_store(bug: Option<Bug>, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match bug.filter(|bug| !bug.is_in_node()) {
            Some(bug) => Arc::new(Buggy::new(bug, store)),
            None => store,
        }
    }

    /// Puts the bug between a node and its view of the store.
    pub(crate) fn around_view(bug: Option<Bug>, view: Arc<dyn Store>) -> Arc<dyn Store> {
        match bug.filter(|bug| bug.is_in_node()) {
            Some(bug) => Arc::new(Buggy::new(bug, view)),
            None => view,
        }
    }
}

/// A store with a bug.
#[derive(Debug)]
struct Buggy {
    bug: Bug,
    store: Arc<dyn Store>,
    calls: AtomicU64,
    instant: Mutex<Option<Timestamp>>,
}

impl Buggy {
    fn new(bug: Bug, store: Arc<dyn Store>) -> Self {
        Buggy {
            bug,
            store,
            calls: AtomicU64::new(0),
            instant: Mutex::default(),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// True for every tenth call.
    fn now_and_then(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst) % 10 == 9
    }

    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        _verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        call.await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.store.get(&[id]).await?.into_iter().next().flatten())
    }

    fn change_job(&self, job: &mut Job) {
        match self.bug {
            Bug::IgnoreKeyLimit => job.concurrency = None,
            Bug::KeyLimitOffByOne => {
                if let Some(concurrency) = &mut job.concurrency {
                    concurrency.limit += 1;
                }
            }
            Bug::FreeHeldKey => job.unique = None,
            Bug::RetryAtMostOnce => job.delivery = Delivery::AtLeastOnce,
            Bug::ReverseOrder => job.priority = job.priority.saturating_neg(),
            Bug::LosePayload => job.payload = Payload::default(),
            Bug::ForgetDeadline => job.deadline = None,
            _ => {}
        }
    }

    fn change_report(&self, report: Report, now: Timestamp) -> Report {
        let error = || AttemptError::new("planted");
        match (self.bug, report) {
            (Bug::SucceededAsFailed, Report::Succeeded(_)) => {
                Report::Failed(Failure::retryable(error()))
            }
            (Bug::CountRelease, Report::Released { .. }) => {
                Report::Failed(Failure::retryable(error()))
            }
            (Bug::BackoffOffByOne, Report::Failed(failure)) => Report::Failed(Failure {
                delay: Some(Duration::from_millis(499)),
                ..failure
            }),
            (Bug::RetryNever, Report::Failed(failure)) => Report::Failed(Failure {
                delay: Some(Duration::from_secs(365 * 24 * 3600)),
                ..failure
            }),
            (Bug::ForgetFailure, Report::Failed(_)) => Report::Snoozed { until: now },
            (Bug::FailedAsSucceeded, Report::Failed(_)) => Report::Succeeded(None),
            (Bug::DropBackoff, Report::Failed(failure)) => Report::Failed(Failure {
                delay: Some(Duration::ZERO),
                ..failure
            }),
            (Bug::RetryUnrecoverable, Report::Failed(failure))
                if failure.class == FailureClass::Unrecoverable =>
            {
                Report::Failed(Failure::retryable(error()))
            }
            (_, report) => report,
        }
    }

    /// What the end of an attempt would lead to, without writing it.
    async fn pretend(&self, report: AttemptReport, now: Timestamp) -> Result<Settled, StoreError> {
        let job = self.job(report.attempt_id.job).await?;
        let running = job.filter(|job| job.attempt == report.attempt_id.attempt);
        let settlement = running.and_then(|job| job.decide(report.report, now, report.random));
        Ok(settlement.map_or(Settled::LeaseLost, Settled::Done))
    }

    /// Settles a report for the attempt that runs now, whichever it is.
    async fn settle_any(
        &self,
        report: AttemptReport,
        now: Timestamp,
    ) -> Result<Settled, StoreError> {
        let Some(job) = self.job(report.attempt_id.job).await? else {
            return Ok(Settled::LeaseLost);
        };
        let attempt_id = AttemptId {
            job: job.id,
            attempt: job.attempt,
        };
        let report = AttemptReport {
            attempt_id,
            ..report
        };
        let answers = self.store.settle(vec![report], now).await?;
        Ok(answers.into_iter().next().unwrap_or(Settled::LeaseLost))
    }

    async fn fire_wrongly(&self, mut fire: Fire, now: Timestamp) -> Result<Fired, StoreError> {
        if self.has(Bug::LoseOccurrence) && self.now_and_then() {
            fire.jobs.pop();
        }
        let again = fire.clone();
        let fired = fire_one(&*self.store, fire, now).await?;
        if self.has(Bug::FireTwice) && self.now_and_then() {
            let mut jobs = with_other_ids(again.clone()).jobs;
            for job in &mut jobs {
                job.occurrence = None;
            }
            self.store.enqueue(Enqueue::all(jobs), now).await?;
        }
        if self.has(Bug::FireTwiceAfterJump) && self.has_jumped(now) {
            let twice = Fire {
                version: again.version + 1,
                ..again.clone()
            };
            fire_one(&*self.store, with_other_ids(twice), now).await?;
        }
        if fired == Fired::Stale && self.has(Bug::FireStale) {
            let which = ScheduleRef::Id(again.schedule);
            if let Some(current) = self.store.schedule(&which).await? {
                let again = Fire {
                    version: current.version,
                    ..again
                };
                return fire_one(&*self.store, again, now).await;
            }
        }
        Ok(fired)
    }

    /// Whether this time is further from the last one than the interval between two passes.
    fn has_jumped(&self, now: Timestamp) -> bool {
        let mut instant = self.instant.lock().unwrap_or_else(PoisonError::into_inner);
        let last = instant.replace(now).unwrap_or(now);
        now < last || now.since(last) > Duration::from_secs(3)
    }

    /// A time that stays the same for 10 s.
    fn one_instant(&self, now: Timestamp) -> Timestamp {
        let mut instant = self.instant.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = instant.filter(|kept| now.since(*kept) < Duration::from_secs(10));
        *instant.insert(kept.unwrap_or(now))
    }
}

fn with_other_ids(mut fire: Fire) -> Fire {
    for job in &mut fire.jobs {
        job.id = JobId::from_u128(job.id.as_u128() ^ 1);
    }
    fire
}

fn one_attempt_more(claim: &mut Claim) {
    if let Some(policy) = &claim.retry.worker.policy {
        let more = policy.max_attempts().map_or(1, |max| max.get() + 1);
        let policy = (**policy).clone().with_max_attempts(more);
        claim.retry.worker.policy = policy.ok().map(Arc::new);
    }
}

/// Every claim begins without a credit, so the share of a small claim is rounded up to a slot.
fn forget_credit(claim: &mut Claim) {
    if let Mix::Shared(share) = &mut claim.plan.mix {
        *share = share.without_credit();
    }
}

store_layer! {
    impl Store for Buggy {
        async fn enqueue(&self, mut enqueue: Enqueue, now: Timestamp) -> Result<Vec<Enqueued>, StoreError> {
            for job in &mut enqueue.jobs {
                self.change_job(job);
            }
            let created = |job: &Job| Enqueued::Created(job.id);
            if self.has(Bug::AcknowledgeBeforeSync) && self.now_and_then() {
                return Ok(enqueue.jobs.iter().map(created).collect());
            }
            if self.has(Bug::StoreHalfABatch) && enqueue.jobs.len() > 1 {
                let rest = enqueue.jobs.split_off(enqueue.jobs.len() / 2);
                let mut answers = self.store.enqueue(enqueue, now).await?;
                answers.extend(rest.iter().map(created));
                return Ok(answers);
            }
            self.store.enqueue(enqueue, now).await
        }

        async fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError> {
            let (mut claim, mut now) = (claim.clone(), now);
            match self.bug {
                Bug::ClaimBeforeDue => now = now.saturating_add(Duration::from_secs(1)),
                Bug::KeepOneInstant => now = self.one_instant(now),
                Bug::LeaseTooLong => claim.lease *= 3,
                Bug::AttemptsOffByOne => one_attempt_more(&mut claim),
                Bug::ForgetCredit => forget_credit(&mut claim),
                Bug::RetryNextToOldAttempt => claim.except.clear(),
                Bug::ClaimTooMany => {
                    claim.plan.limit += 3;
                    claim.plan.fresh_max += 3;
                }
                Bug::ClaimOtherQueue if self.now_and_then() => {
                    claim.queue = QueueName::default();
                }
                _ => {}
            }
            let mut claimed = self.store.claim(&claim, now).await?;
            if self.has(Bug::ReverseRuns) {
                claimed.jobs.reverse();
            }
            Ok(claimed)
        }

        async fn renew(&self, attempts: &[AttemptId], lease: Duration, now: Timestamp) -> Result<Vec<Renewed>, StoreError> {
            assert!(!self.has(Bug::Panic), "planted");
            let mut answers = self.store.renew(attempts, lease, now).await?;
            if self.has(Bug::RenewLostLease) {
                let until = now.saturating_add(lease);
                answers.fill(Renewed::Until { until, cancel_requested: false });
            }
            Ok(answers)
        }

        async fn settle(&self, reports: Vec<AttemptReport>, now: Timestamp) -> Result<Vec<Settled>, StoreError> {
            let mut answers = Vec::new();
            for mut report in reports {
                report.report = self.change_report(report.report, now);
                if self.has(Bug::SettleBeforeCommit) && self.now_and_then() {
                    answers.push(self.pretend(report, now).await?);
                    continue;
                }
                let again = report.clone();
                let answer = self.store.settle(vec![report], now).await?;
                let mut answer = answer.into_iter().next().unwrap_or(Settled::LeaseLost);
                if answer == Settled::LeaseLost && self.has(Bug::DropAttemptCheck) {
                    answer = self.settle_any(again, now).await?;
                } else if answer == Settled::LeaseLost && self.has(Bug::LateSettleWins) {
                    let job = self.job(again.attempt_id.job).await?;
                    let settlement = job.and_then(|job| job.decide(again.report, now, again.random));
                    answer = settlement.map_or(answer, Settled::Done);
                }
                answers.push(answer);
            }
            Ok(answers)
        }

        async fn sweep(&self, limit: usize, now: Timestamp, random: u64) -> Result<Swept, StoreError> {
            let ahead = if self.has(Bug::SweepWithoutCompare) { 3 } else { 0 };
            let now = now.saturating_add(Duration::from_secs(ahead));
            self.store.sweep(limit, now, random).await
        }

        async fn change(&self, jobs: &[JobId], change: &Change, step: Option<&ActionStep>, now: Timestamp) -> Result<Vec<Changed>, StoreError> {
            let mut change = change.clone();
            if let Change::Revive(revival) = &mut change
                && self.has(Bug::ReviveWithoutConsent)
            {
                revival.consent = Consent::MayRunTwice;
            }
            let step = step.filter(|_| !self.has(Bug::ReplayTwice));
            let mut answers = self.store.change(jobs, &change, step, now).await?;
            if matches!(change, Change::Cancel) && self.has(Bug::CancelFinished) {
                for answer in &mut answers {
                    if let Changed::Conflict(_) = answer {
                        *answer = Changed::Now(State::Cancelled);
                    }
                }
            }
            if matches!(change, Change::Cancel) && self.has(Bug::CancelRemoves) {
                self.store.change(jobs, &Change::Purge, None, now).await?;
            }
            Ok(answers)
        }

        async fn put_queue(&self, queue: &QueueName, limits: &QueueLimits, expected: Option<&QueueLimits>) -> Result<bool, StoreError> {
            let mut limits = limits.clone();
            match self.bug {
                Bug::IgnorePause => limits.paused = None,
                Bug::IgnoreConcurrency => limits.concurrency = None,
                Bug::IgnoreRate => limits.rate = None,
                Bug::LimitOffByOne => {
                    limits.concurrency = limits.concurrency.map(|max| max + 1);
                    limits.rate = limits.rate.map(|rate| Rate { count: rate.count + 1, ..rate });
                }
                _ => {}
            }
            self.store.put_queue(queue, &limits, expected).await
        }

        async fn put_schedule(&self, schedule: &Schedule, expected: Expected) -> Result<Written, StoreError> {
            let mut schedule = schedule.clone();
            if self.has(Bug::CatchUpTooMuch) {
                schedule.definition.catch_up_max = 100;
            }
            self.store.put_schedule(&schedule, expected).await
        }

        async fn fire(&self, fires: Vec<Fire>, now: Timestamp) -> Result<Vec<Fired>, StoreError> {
            let mut answers = Vec::with_capacity(fires.len());
            for fire in fires {
                answers.push(self.fire_wrongly(fire, now).await?);
            }
            Ok(answers)
        }

        async fn attempts(&self, job: JobId, limit: usize) -> Result<Vec<Attempt>, StoreError> {
            let mut attempts = self.store.attempts(job, limit).await?;
            if self.has(Bug::LoseAttempt) {
                attempts.pop();
            }
            Ok(attempts)
        }

        fn changes(&self) -> watch::Receiver<u64> {
            self.store.changes()
        }
    }
}
