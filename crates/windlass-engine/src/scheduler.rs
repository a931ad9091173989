//! Turns occurrences that are due into jobs.
//!
//! Which of them fire, `core` decides; that each becomes one job whoever fires it, the store sees to. So every node runs one,
//! and two that overlap do no harm.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::schedule::{Overlap, OverlapDecision, SkipReason, SkippedRange, splay_of};
use windlass_core::{Concurrency, Job, JobId, Key, Occurrence, Timestamp};
use windlass_store::{FIRE_MAX, Fire, Fired, Schedule, StoreError};

use crate::engine::Engine;
use crate::event::{Event, ScheduleEvent};
use crate::watchdog::Pulse;

/// So many schedules are fired at once: a store that commits in groups, or on many connections, is kept busy.
const AT_ONCE: usize = 64;

/// So many earlier occurrences are looked at for one that is not over. While one is not, none or few come after it.
const LOOKED_BACK: usize = 100;

/// How it looks for occurrences.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// After so long it looks even if nothing is known to be due. 1 s.
    pub every: Duration,
    /// At most so many schedules in one pass. 1000.
    pub batch: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        SchedulerConfig {
            every: Duration::from_secs(1),
            batch: 1000,
        }
    }
}

/// Fires schedules.
#[derive(Debug)]
pub struct Scheduler {
    engine: Arc<Engine>,
    config: SchedulerConfig,
}

impl Scheduler {
    /// A scheduler.
    pub fn new(engine: Arc<Engine>, config: SchedulerConfig) -> Self {
        Scheduler { engine, config }
    }

    /// Fires what is due; how many jobs that made.
    pub async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        let due = self.engine.store().due(self.config.batch, now).await?;
        let mut firing = futures_util::stream::iter(due)
            .map(async |schedule| self.fire(&schedule, now).await)
            .buffer_unordered(AT_ONCE);
        let (mut made, mut failed) = (0, None);
        while let Some(fired) = firing.next().await {
            match fired {
                Ok(jobs) => made += jobs,
                Err(error) => failed = Some(error), // the others are fired all the same
            }
        }
        failed.map_or(Ok(made), Err)
    }

    async fn fire(&self, schedule: &Schedule, now: Timestamp) -> Result<usize, StoreError> {
        let step = self.step(schedule, now).await?;
        let (jobs, skipped) = (step.fire.jobs.clone(), step.fire.skipped.clone());
        let Fired::Done { jobs: made } = self.engine.store().fire(step.fire, now).await? else {
            return Ok(0); // another node was first, or it was just changed
        };
        // Only now, and only by whoever fired: a step that came too late must not call off what another one fired.
        if !step.cancel.is_empty() {
            self.engine.cancel(&step.cancel).await?;
        }
        self.tell(schedule, &jobs, &made, &skipped, now);
        Ok(made.len())
    }

    /// Works out what a schedule does now.
    async fn step(&self, schedule: &Schedule, now: Timestamp) -> Result<Step, StoreError> {
        let definition = &schedule.definition;
        let recurrence = definition.recurrence(schedule.created_at);
        let last = schedule.last_at.unwrap_or(schedule.created_at);
        let due = definition
            .missed()
            .due(&recurrence, last, now, definition.missed_after);
        let unfinished = self.unfinished(schedule).await?;
        let mut step = Step {
            fire: Fire {
                schedule: schedule.id,
                version: schedule.version,
                jobs: Vec::new(),
                skipped: due.skipped.into_iter().collect(),
                last_at: schedule.last_at,
                next_at: None,
            },
            cancel: Vec::new(),
        };
        if let Some(range) = due.skipped {
            step.fire.last_at = Some(range.last);
        }
        for at in due.fire.into_iter().take(FIRE_MAX) {
            let meets = unfinished.len() + step.fire.jobs.len();
            match definition.overlap.decide(meets) {
                OverlapDecision::Fire | OverlapDecision::FireBehind => {
                    step.fire
                        .jobs
                        .push(occurrence_job(&self.engine, schedule, at, now));
                }
                OverlapDecision::CancelAndFire => {
                    step.cancel.clone_from(&unfinished);
                    step.replace_all();
                    step.fire
                        .jobs
                        .push(occurrence_job(&self.engine, schedule, at, now));
                }
                OverlapDecision::Skip => step.skip(at),
            }
            step.fire.last_at = step.fire.last_at.max(Some(at));
        }
        let from = step.fire.last_at.unwrap_or(last);
        step.fire.next_at = recurrence.next(from).map(|firing| firing.at);
        Ok(step)
    }

    /// The jobs of earlier occurrences that are not over, if anything depends on it.
    async fn unfinished(&self, schedule: &Schedule) -> Result<Vec<JobId>, StoreError> {
        if schedule.definition.overlap == Overlap::Allow {
            return Ok(Vec::new());
        }
        let store = self.engine.store();
        let fired = store.occurrences(schedule.id, None, LOOKED_BACK).await?;
        let jobs: Vec<JobId> = fired.iter().filter_map(|fired| fired.job).collect();
        let found = store.get(&jobs).await?;
        let open = found.iter().flatten().filter(|job| !job.state().is_final());
        Ok(open.map(|job| job.id).collect())
    }

    /// Tells what a step did: of the jobs that it was to make, `made` are there.
    fn tell(
        &self,
        schedule: &Schedule,
        jobs: &[Job],
        made: &[JobId],
        skipped: &[SkippedRange],
        now: Timestamp,
    ) {
        let name = &schedule.definition.name;
        let tell = |what: ScheduleEvent| {
            self.engine.emit(|| Event::Schedule {
                at: now,
                id: schedule.id,
                name: name.clone(),
                what,
            });
        };
        let mut skipped = skipped.to_vec();
        for job in jobs {
            let scheduled_for = job.occurrence.map_or(now, |of| of.scheduled_for);
            if !made.contains(&job.id) {
                skipped.push(SkippedRange::one(scheduled_for, SkipReason::Duplicate));
                continue;
            }
            info!(schedule = %name, %scheduled_for, job.id = %job.id, "fired");
            tell(ScheduleEvent::Fired {
                scheduled_for,
                job: job.id,
                lag: now.since(scheduled_for),
            });
            self.engine.enqueued(std::iter::once(job), now);
        }
        for range in skipped {
            warn!(schedule = %name, first = %range.first, last = %range.last, reason = range.reason.name(), "skipped");
            tell(ScheduleEvent::Skipped(range));
        }
    }

    /// When the next schedule is due, as far as it is known.
    pub async fn next_at(&self) -> Result<Option<Timestamp>, StoreError> {
        let first = self.engine.store().due(1, Timestamp::MAX).await?;
        Ok(first.first().and_then(|schedule| schedule.next_at))
    }

    /// Fires until it is told to stop.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            let now = clock.now();
            pulse.busy(now);
            let passed = self.pass(now).await;
            let next = self.next_at().await.unwrap_or(None);
            pulse.rest();
            let now = clock.now();
            let poll = now.saturating_add(self.config.every);
            let at = match passed {
                Ok(_) => next.map_or(poll, |next| next.clamp(now, poll)),
                Err(error) => {
                    warn!(%error, "firing schedules failed, trying again at the next look");
                    poll
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep_until(at) => {}
            }
        }
    }
}

/// The job of an occurrence, which is unique by its nominal instant `at`.
pub fn occurrence_job(engine: &Engine, schedule: &Schedule, at: Timestamp, now: Timestamp) -> Job {
    let definition = &schedule.definition;
    let wanted = definition.job.clone();
    let mut job = wanted.into_stored_job(engine.ids().job(now), at);
    let splay = splay_of(schedule.id, at, definition.splay);
    job.run_at = job.run_at.saturating_add(splay);
    job.created_at = now;
    job.occurrence = Some(Occurrence {
        schedule_id: schedule.id,
        scheduled_for: at,
    });
    if definition.overlap == Overlap::Queue && job.concurrency.is_none() {
        // Those that come behind it wait for it.
        let key = Key::new(&format!("schedule:{}", schedule.id)).ok();
        job.concurrency = key.map(|key| Concurrency { key, limit: 1 });
    }
    job
}

/// What a schedule does in one step.
struct Step {
    fire: Fire,
    cancel: Vec<JobId>,
}

impl Step {
    /// Leaves an occurrence out, because an earlier one is not over.
    fn skip(&mut self, at: Timestamp) {
        match self.fire.skipped.last_mut() {
            Some(range) if range.reason == SkipReason::Overlap => {
                range.last = at;
                range.count = range.count.map(|count| count + 1);
            }
            _ => {
                let alone = SkippedRange::one(at, SkipReason::Overlap);
                self.fire.skipped.push(alone);
            }
        }
    }

    /// Leaves out what this step was about to fire: a later occurrence takes its place.
    fn replace_all(&mut self) {
        let replaced = std::mem::take(&mut self.fire.jobs);
        let instants = replaced.iter().filter_map(|job| job.occurrence);
        for of in instants {
            self.skip(of.scheduled_for);
        }
    }
}
