//! The store as one node sees it: with faults on the way, and a record of what was applied.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use windlass_core::fairness::Mix;
use windlass_core::retry::{Backoff, Jitter};
use windlass_core::schedule::Expression;
use windlass_core::{
    Consent, FailureClass, FailureCount, Job, JobId, QueueName, Random, Report, Settlement,
    Timestamp, Verdict,
};
use windlass_engine::Clock;
use windlass_store::{
    ActionStep, Attempt, AttemptId, AttemptReport, Change, Changed, Claim, Claimed, Enqueue,
    Enqueued, Expected, Fire, Fired, Kinds, QueueLimits, Renewed, Schedule, Settled, Store,
    StoreError, Swept, WorkerLocation, Written,
};

use super::world::{World, lock};
use crate::history::{
    ChangeAnswer, ChangeFacts, ClaimFacts, ClaimedJob, EndFacts, EnqueueAnswer, Event, FireFacts,
    JobFacts, LimitFacts, Reported, ScheduleFacts, SettleAnswer,
};
use crate::store_layer::store_layer;

/// The default share of retries, in thousandths. No simulated queue has another one.
const RETRY_SHARE: u32 = 200;

/// The faults between a node and the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// The longest delay of a call.
    pub(crate) latency: Duration,
    /// How many of 1000 calls fail before the store applies them.
    pub(crate) fail_before: u64,
    /// How many of 1000 calls fail after the store applied them.
    pub(crate) fail_after: u64,
    /// Until this time since the beginning, calls are not answered.
    pub(crate) stalled_until: Duration,
    /// How many of 1000 wake-ups are lost.
    pub(crate) lost_wakes: u64,
    /// Whether wake-ups arrive twice.
    pub(crate) doubled_wakes: bool,
}

/// The store as one node sees it.
pub(crate) struct Tap {
    node: u32,
    store: Arc<dyn Store>,
    world: Arc<World>,
    clock: Arc<dyn Clock>,
    state: Mutex<TapState>,
    is_dead: AtomicBool,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct TapState {
    random: Random,
    faults: Faults,
    wakes: Vec<watch::Sender<u64>>,
    /// When claims were sent for the first time that may be repeated.
    open_claims: BTreeMap<u128, Timestamp>,
}

/// Holds a process that is stopped (SIGSTOP), until it continues.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_closed: AtomicBool,
    opened: Notify,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
    }

    pub(crate) async fn pass(&self) {
        while self.is_closed.load(Ordering::SeqCst) {
            self.opened.notified().await;
        }
    }
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tap({})", self.node)
    }
}

impl Tap {
    pub(crate) fn new(
        node: u32,
        store: Arc<dyn Store>,
        world: &Arc<World>,
        clock: Arc<dyn Clock>,
        gate: Arc<Gate>,
        seed: u64,
    ) -> Arc<Tap> {
        Arc::new(Tap {
            node,
            store,
            world: Arc::clone(world),
            clock,
            gate,
            state: Mutex::new(TapState {
                random: Random::new(seed),
                faults: Faults::default(),
                wakes: Vec::new(),
                open_claims: BTreeMap::new(),
            }),
            is_dead: AtomicBool::new(false),
        })
    }

    pub(crate) fn set_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut lock(&self.state).faults);
    }

    /// From now on this process does nothing.
    pub(crate) fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    pub(crate) fn record(&self, event: Event) {
        self.world.record(self.node, event);
    }

    /// Notifies this node, unless the notice gets lost.
    pub(crate) fn wake(&self) {
        let mut state = lock(&self.state);
        let lost = state.faults.lost_wakes;
        if lost > 0 && state.random.bits() % 1000 < lost {
            return;
        }
        let times = if state.faults.doubled_wakes { 2 } else { 1 };
        state.wakes.retain(|sender| sender.receiver_count() > 0);
        for sender in &state.wakes {
            for _ in 0..times {
                sender.send_modify(|number| *number += 1);
            }
        }
    }

    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        _verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let (delay, fate, stalled_until, after) = {
            let mut state = lock(&self.state);
            let faults = state.faults.clone();
            let latency = u64::try_from(faults.latency.as_micros()).unwrap_or(u64::MAX);
            let bits = state.random.bits();
            let delay = if latency == 0 { 0 } else { bits % latency };
            let fate = state.random.bits() % 1000;
            (delay, fate, faults.stalled_until, faults)
        };
        self.wait(delay / 2, stalled_until).await;
        if fate < after.fail_before {
            return Err(StoreError::Unavailable("simulated".into()));
        }
        let answer = call.await;
        self.wait(delay / 2, stalled_until).await;
        if fate >= 1000 - after.fail_after {
            return Err(StoreError::Indeterminate("simulated".into()));
        }
        answer
    }

    async fn wait(&self, micros: u64, stalled_until: Duration) {
        if micros > 0 {
            tokio::time::sleep(Duration::from_micros(micros)).await;
        }
        let stalled = stalled_until.saturating_sub(self.world.elapsed());
        if !stalled.is_zero() {
            tokio::time::sleep(stalled).await;
        }
        self.gate.pass().await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Records a step and notifies all nodes.
    fn applied(&self, event: Event) {
        self.record(event);
        self.world.wake_all();
    }
}

store_layer! {
    impl Store for Tap {
        async fn enqueue(&self, enqueue: Enqueue, now: Timestamp) -> Result<Vec<Enqueued>, StoreError> {
            let facts: Vec<JobFacts> = enqueue.jobs.iter().map(JobFacts::of).collect();
            self.around("enqueue", async move {
                let answers = self.store.enqueue(enqueue, now).await?;
                let jobs = facts.into_iter().zip(answers.iter().map(enqueue_answer));
                self.applied(Event::Enqueued { now, jobs: jobs.collect() });
                Ok(answers)
            })
            .await
        }

        async fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError> {
            let sent_at = self.clock.now();
            let first_sent_at = {
                let sent = &mut lock(&self.state).open_claims;
                *sent.entry(claim.id).or_insert_with(|| self.world.now())
            };
            let claimed = self.around("claim", async {
                let claimed = self.store.claim(claim, now).await?;
                let facts = ClaimFacts { first_sent_at, sent_at, ..claim_facts(claim, &claimed, now) };
                self.record(Event::Claimed(facts));
                Ok(claimed)
            })
            .await?;
            // A claim that got jobs may be repeated: its fetcher could not renew worn leases.
            if claimed.jobs.is_empty() {
                lock(&self.state).open_claims.remove(&claim.id);
            }
            Ok(claimed)
        }

        async fn renew(&self, attempts: &[AttemptId], lease: Duration, now: Timestamp) -> Result<Vec<Renewed>, StoreError> {
            self.around("renew", async {
                let answers = self.store.renew(attempts, lease, now).await?;
                for (attempt, answer) in attempts.iter().zip(&answers) {
                    let until = match answer {
                        Renewed::Until { until, .. } => Some(*until),
                        Renewed::LeaseLost => None,
                    };
                    self.record(Event::Renewed { now, attempt: *attempt, until });
                }
                Ok(answers)
            })
            .await
        }

        async fn settle(&self, reports: Vec<AttemptReport>, now: Timestamp) -> Result<Vec<Settled>, StoreError> {
            let reported: Vec<(AttemptId, Reported)> = reports
                .iter()
                .map(|report| (report.attempt_id, reported(&report.report)))
                .collect();
            let sent = reported.clone();
            let answers = self.around("settle", async move {
                let answers = self.store.settle(reports, now).await?;
                for ((attempt, reported), answer) in sent.into_iter().zip(&answers) {
                    self.record(Event::Settled { now, attempt, reported, answer: settle_answer(answer) });
                }
                self.world.wake_all();
                Ok(answers)
            })
            .await?;
            for ((attempt, _), answer) in reported.iter().zip(&answers) {
                if let Settled::Done(settlement) = answer {
                    let outcome = settlement.outcome;
                    self.record(Event::SettleAcknowledged { attempt: *attempt, outcome });
                }
            }
            Ok(answers)
        }

        async fn sweep(&self, limit: usize, now: Timestamp, random: u64) -> Result<Swept, StoreError> {
            self.around("sweep", async {
                let swept = self.store.sweep(limit, now, random).await?;
                if !swept.lost.is_empty() || !swept.expired.is_empty() {
                    let lost = swept.lost.iter().filter(|(attempt, _)| self.world.is_swept(*attempt));
                    let lost = lost.map(|(attempt, end)| (*attempt, end_facts(end)));
                    let expired = swept.expired.iter().map(|expired| expired.job);
                    self.applied(Event::Swept { now, lost: lost.collect(), expired: expired.collect() });
                }
                Ok(swept)
            })
            .await
        }

        async fn change(&self, jobs: &[JobId], change: &Change, step: Option<&ActionStep>, now: Timestamp) -> Result<Vec<Changed>, StoreError> {
            self.around("change", async {
                let answers = self.store.change(jobs, change, step, now).await?;
                let after = self.store.get(jobs).await?;
                let action = step.map(|step| step.action.as_u128());
                for ((job, answer), after) in jobs.iter().zip(&answers).zip(after) {
                    let answer = match answer {
                        Changed::Now(state) => {
                            ChangeAnswer::Now(*state, after.as_ref().map(JobFacts::of))
                        }
                        Changed::Removed => ChangeAnswer::Removed,
                        _ => ChangeAnswer::Unchanged,
                    };
                    let change = change_facts(change);
                    self.record(Event::Changed { now, job: *job, change, action, answer });
                }
                self.world.wake_all();
                Ok(answers)
            })
            .await
        }

        async fn put_queue(&self, queue: &QueueName, limits: &QueueLimits, expected: Option<&QueueLimits>) -> Result<bool, StoreError> {
            self.around("put_queue", async {
                let is_set = self.store.put_queue(queue, limits, expected).await?;
                if is_set {
                    let (queue, limits) = (queue.clone(), limit_facts(limits));
                    self.applied(Event::LimitsSet { queue, limits });
                }
                Ok(is_set)
            })
            .await
        }

        async fn put_schedule(&self, schedule: &Schedule, expected: Expected) -> Result<Written, StoreError> {
            self.around("put_schedule", async {
                let written = self.store.put_schedule(schedule, expected).await?;
                if let Written::Version(version) = written {
                    self.record(Event::SchedulePut(schedule_facts(schedule, version)));
                }
                Ok(written)
            })
            .await
        }

        async fn fire(&self, fires: Vec<Fire>, now: Timestamp) -> Result<Vec<Fired>, StoreError> {
            let facts: Vec<FireFacts> = fires.iter().map(|fire| fire_facts(fire, now)).collect();
            self.around("fire", async move {
                let answers = self.store.fire(fires, now).await?;
                for (mut facts, fired) in facts.into_iter().zip(&answers) {
                    if let Fired::Done { jobs } = fired {
                        facts.created = Some(jobs.clone());
                    }
                    self.applied(Event::Fired(facts));
                }
                Ok(answers)
            })
            .await
        }

        async fn attempts(&self, job: JobId, limit: usize) -> Result<Vec<Attempt>, StoreError> {
            self.around("attempts", self.store.attempts(job, limit)).await
        }

        fn changes(&self) -> watch::Receiver<u64> {
            let sender = watch::Sender::new(0);
            let receiver = sender.subscribe();
            lock(&self.state).wakes.push(sender);
            receiver
        }
    }
}

fn fire_facts(fire: &Fire, now: Timestamp) -> FireFacts {
    let skipped = fire.skipped.iter();
    FireFacts {
        now,
        schedule: fire.schedule,
        version: fire.version,
        jobs: fire.jobs.iter().map(JobFacts::of).collect(),
        created: None,
        skipped: skipped
            .map(|range| (range.first, range.last, range.count))
            .collect(),
        last_at: fire.last_at,
    }
}

pub(crate) fn enqueue_answer(answer: &Enqueued) -> EnqueueAnswer {
    match answer {
        Enqueued::Created(_) => EnqueueAnswer::Created,
        Enqueued::Duplicate { id, .. } => EnqueueAnswer::Duplicate(*id),
        Enqueued::Replaced(id) => EnqueueAnswer::Replaced(*id),
        Enqueued::QueueFull { .. } => EnqueueAnswer::Full,
    }
}

fn claim_facts(claim: &Claim, claimed: &Claimed, now: Timestamp) -> ClaimFacts {
    // Most claims get nothing, and then no rule looks at these.
    let has_jobs = !claimed.jobs.is_empty();
    let kinds = Some(&claim.kinds).filter(|_| has_jobs);
    ClaimFacts {
        now,
        sent_at: now,
        first_sent_at: now,
        id: claim.id,
        is_remote: claim.worker_location == WorkerLocation::Remote,
        retry_share: matches!(claim.plan.mix, Mix::Shared(_)).then_some(RETRY_SHARE),
        queue: claim.queue.clone(),
        limit: claim.plan.limit,
        except: claim.except.iter().copied().filter(|_| has_jobs).collect(),
        kinds: match kinds {
            Some(Kinds::Only(kinds)) => kinds.iter().cloned().collect(),
            Some(Kinds::AllExcept(_)) | None => Vec::new(),
        },
        lease: claim.lease,
        repeated: claimed.repeated,
        jobs: claimed
            .jobs
            .iter()
            .map(|job| claimed_job(claim, job))
            .collect(),
    }
}

fn claimed_job(claim: &Claim, job: &Job) -> ClaimedJob {
    let lease = job.lease();
    let policy = lease.and_then(|lease| lease.policy.as_deref());
    ClaimedJob {
        facts: JobFacts::of(job),
        attempt: job.attempt,
        failures: job.failures,
        losses_in_a_row: job.losses_in_a_row,
        failures_max_expected: Some(claim.retry.resolve(job).effective_max.get()),
        failures_max: lease.map(|lease| lease.effective_max.get()),
        fixed_delay: policy.and_then(|policy| match (policy.backoff(), policy.jitter()) {
            (Backoff::Constant { delay }, Jitter::None) => Some(*delay),
            _ => None,
        }),
        started_at: job.started_at.unwrap_or(Timestamp::MIN),
        lease_until: lease.map_or(Timestamp::MIN, |lease| lease.until),
        lane: job.lane(),
    }
}

fn reported(report: &Report) -> Reported {
    match report {
        Report::Succeeded(_) => Reported::Succeeded,
        Report::Failed(failure) if failure.class == FailureClass::Unrecoverable => {
            Reported::Unrecoverable
        }
        Report::Failed(_) => Reported::Failed,
        Report::TimedOut { .. } => Reported::TimedOut,
        Report::Lost => Reported::Lost,
        Report::Snoozed { .. } => Reported::Snoozed,
        Report::Released { .. } => Reported::Released,
        Report::Cancelled => Reported::Cancelled,
    }
}

fn end_facts(settlement: &Settlement) -> EndFacts {
    EndFacts {
        outcome: settlement.outcome,
        state: settlement.verdict.state(),
        run_at: match settlement.verdict {
            Verdict::Waiting { run_at } => Some(run_at),
            _ => None,
        },
        failures: settlement.failures,
    }
}

fn settle_answer(answer: &Settled) -> SettleAnswer {
    match answer {
        Settled::Done(settlement) => SettleAnswer::Done(end_facts(settlement)),
        Settled::Repeated => SettleAnswer::Repeated,
        Settled::LeaseLost => SettleAnswer::LeaseLost,
        Settled::Refused { .. } => SettleAnswer::Refused,
    }
}

fn change_facts(change: &Change) -> ChangeFacts {
    match change {
        Change::Cancel => ChangeFacts::Cancel,
        Change::Revive(revival) => ChangeFacts::Revive {
            consent: revival.consent == Consent::MayRunTwice,
            resets: revival.failures == FailureCount::Reset,
        },
        Change::RunNow => ChangeFacts::RunNow,
        Change::Edit(_) => ChangeFacts::Edit,
        Change::Patch(_) => ChangeFacts::Patch,
        Change::Resolve => ChangeFacts::Resolve,
        Change::Purge => ChangeFacts::Purge,
    }
}

fn limit_facts(limits: &QueueLimits) -> LimitFacts {
    LimitFacts {
        paused: limits.paused.is_some(),
        concurrency: limits.concurrency,
        rate: limits.rate.map(|rate| (rate.count, rate.period)),
        max_depth: limits.max_depth,
    }
}

fn schedule_facts(schedule: &Schedule, version: u64) -> ScheduleFacts {
    let definition = &schedule.definition;
    ScheduleFacts {
        id: schedule.id,
        version,
        every: match &definition.expression {
            Expression::Every(period) => Some(*period),
            _ => None,
        },
        created_at: schedule.created_at,
        ends_at: definition.ends_at,
        catch_up_max: definition.catch_up_max,
    }
}
