//! Planted bugs: stores that break the contract in one way each. The checker must catch them all,
//! or no one can trust it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use windlass_core::{
    AttemptError, Consent, Delivery, Failure, FailureClass, Job, JobId, Payload, QueueName, Report,
    State, Timestamp,
};
use windlass_store::{
    ActionStep, AttemptId, AttemptReport, Change, Changed, Claim, Claimed, Enqueue, Enqueued,
    Expected, Fire, Fired, QueueLimits, Renewed, Schedule, ScheduleRef, Settled, Store, StoreError,
    Swept, Written,
};

use crate::simulation::{Wrappers, simulate_with};
use crate::store_layer::store_layer;
use crate::{Run, Shape};

macro_rules! bugs {
    ($($name:ident: $text:literal;)*) => {
        /// A planted bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    RetryBesideOldAttempt: "claim ignores the jobs whose earlier handler still runs";
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
}

/// Runs one seed with a planted bug.
pub fn simulate_bug(bug: Bug, seed: u64, shape: &Shape) -> Result<Run, StoreError> {
    let wrap = move |store| Arc::new(Buggy::new(bug, store)) as Arc<dyn Store>;
    let wrappers = match bug {
        Bug::KeepOneInstant => Wrappers {
            above: Some(&wrap),
            ..Wrappers::default()
        },
        _ => Wrappers {
            below: Some(&wrap),
            ..Wrappers::default()
        },
    };
    simulate_with(seed, shape, &wrappers)
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

    /// A time that stays the same for 10 s.
    fn one_instant(&self, now: Timestamp) -> Timestamp {
        let mut instant = self.instant.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = instant.filter(|kept| now.since(*kept) < Duration::from_secs(10));
        *instant.insert(kept.unwrap_or(now))
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
                Bug::RetryBesideOldAttempt => claim.except.clear(),
                Bug::ClaimTooMany => {
                    claim.plan.limit += 3;
                    claim.plan.fresh_max += 3;
                }
                Bug::ClaimOtherQueue if self.now_and_then() => {
                    claim.queue = QueueName::default();
                }
                _ => {}
            }
            self.store.claim(&claim, now).await
        }

        async fn renew(&self, attempts: &[AttemptId], lease: Duration, now: Timestamp) -> Result<Vec<Renewed>, StoreError> {
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
                _ => {}
            }
            self.store.put_queue(queue, &limits, expected).await
        }

        async fn put_schedule(&self, schedule: &Schedule, expected: Expected) -> Result<Written, StoreError> {
            self.store.put_schedule(schedule, expected).await
        }

        async fn fire(&self, mut fire: Fire, now: Timestamp) -> Result<Fired, StoreError> {
            if self.has(Bug::LoseOccurrence) && self.now_and_then() {
                fire.jobs.pop();
            }
            let again = fire.clone();
            let fired = self.store.fire(fire, now).await?;
            if self.has(Bug::FireTwice) && self.now_and_then() {
                let mut jobs = again.jobs.clone();
                for job in &mut jobs {
                    job.id = JobId::from_u128(job.id.as_u128() ^ 1);
                    job.occurrence = None;
                }
                self.store.enqueue(Enqueue::all(jobs), now).await?;
            }
            if fired == Fired::Stale && self.has(Bug::FireStale) {
                let current = self.store.schedule(&ScheduleRef::Id(again.schedule)).await?;
                if let Some(current) = current {
                    let again = Fire { version: current.version, ..again };
                    return self.store.fire(again, now).await;
                }
            }
            Ok(fired)
        }

        fn changes(&self) -> watch::Receiver<u64> {
            self.store.changes()
        }
    }
}
