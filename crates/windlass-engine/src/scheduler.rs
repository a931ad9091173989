//! Fires schedules: turns due occurrences into jobs.
//!
//! `core` decides which occurrences fire. The store guarantees that each of them becomes at most
//! one job. So every node can run a scheduler, and two that run at the same time do no harm.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use windlass_core::schedule::{Overlap, SkipReason, SkippedRange, splay_of};
use windlass_core::{Concurrency, Job, JobId, Key, Occurrence, Timestamp};
use windlass_store::{Change, Fire, Fired, RecordRange, Schedule, StoreError, read_skipped};

use crate::engine::Engine;
use crate::event::{Event, ScheduleEvent};
use crate::watchdog::Pulse;

/// The number of schedules that fire concurrently. Stores that commit in groups, or that have many
/// connections, need this for throughput.
const CONCURRENT_FIRINGS: usize = 64;

/// The number of earlier occurrences to read at once when looking for unfinished ones. While one is
/// unfinished, few or none follow it.
const OCCURRENCES_PER_PAGE: usize = 100;

/// The maximum number of such pages. More than one is needed only after many manual runs.
const PAGES_MAX: usize = 10;

/// The key in a job's `meta` that marks a manual run. The value is [`ManualRun::name`].
const EXTRA_META: &str = "windlass.extra";

/// A run of a schedule that a person asked for. `overlap` ignores it: it blocks no occurrence, and
/// no occurrence blocks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManualRun {
    /// One run now, in addition to the occurrences of the rule.
    RunNow,
    /// Occurrences of the past that did not run.
    Backfill,
}

impl ManualRun {
    const fn name(self) -> &'static str {
        match self {
            ManualRun::RunNow => "run_now",
            ManualRun::Backfill => "backfill",
        }
    }
}

/// The configuration of a scheduler.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// The longest interval between two passes. 1 s.
    pub every: Duration,
    /// The maximum number of schedules of one pass. 1000.
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
    /// Creates a scheduler.
    pub fn new(engine: Arc<Engine>, config: SchedulerConfig) -> Self {
        Scheduler { engine, config }
    }

    /// Fires all due schedules. Returns the number of created jobs.
    ///
    /// Each schedule uses the time at which it fires, not the start of the pass: at the end of a
    /// long pass an occurrence may already count as missed.
    pub async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        let due = self.engine.store().due(self.config.batch, now).await?;
        let mut firing = futures_util::stream::iter(due)
            .map(async |schedule| self.fire(&schedule, now.max(self.engine.now())).await)
            .buffer_unordered(CONCURRENT_FIRINGS);
        let (mut made, mut failed) = (0, None);
        while let Some(fired) = firing.next().await {
            match fired {
                Ok(jobs) => made += jobs,
                Err(error) => failed = Some(error), // continue with the others
            }
        }
        failed.map_or(Ok(made), Err)
    }

    async fn fire(&self, schedule: &Schedule, now: Timestamp) -> Result<usize, StoreError> {
        let plan = self.plan(schedule, now).await?;
        let jobs = plan.fire.jobs.clone();
        let Fired::Done { jobs: made } = self.engine.store().fire(plan.fire, now).await? else {
            return Ok(0); // another node fired it, or it was just changed
        };
        // Only after firing: a plan that came too late must not cancel what another node fired.
        if !plan.cancel.is_empty() {
            self.engine.change(&plan.cancel, &Change::Cancel).await?;
        }
        self.emit_firing(schedule, &jobs, &made, plan.newly_skipped, now);
        Ok(made.len())
    }

    /// Plans what a schedule does now.
    async fn plan(&self, schedule: &Schedule, now: Timestamp) -> Result<FiringPlan, StoreError> {
        let definition = &schedule.definition;
        let recurrence = definition.recurrence(schedule.created_at);
        let last = schedule.last_at.unwrap_or(schedule.created_at);
        let (missed_after, max) = (definition.missed_after, definition.catch_up_max);
        let due = definition
            .missed()
            .due(&recurrence, last, now, missed_after, max);
        let unfinished = self.unfinished(schedule).await?;
        let overlap = definition.overlap;
        let fired = overlap.fire_count(due.fire.len(), definition.missed(), unfinished.len());
        let (skipped_by_overlap, fired) = due.fire.split_at(due.fire.len() - fired);
        let jobs = fired.iter().map(|at| {
            let mut job = occurrence_job(&self.engine, schedule, *at, now);
            if overlap.runs_sequentially(fired.len()) {
                run_in_turn(&mut job, format!("schedule:{}", schedule.id));
            }
            job
        });
        let mut fire = Fire {
            jobs: jobs.collect(),
            skipped: due.skipped.into_iter().collect(),
            ..Fire::nothing(schedule)
        };
        let mut newly_skipped = fire.skipped.clone();
        if let (Some(first), Some(last)) = (skipped_by_overlap.first(), skipped_by_overlap.last()) {
            let range = SkippedRange {
                first: *first,
                last: *last,
                reason: SkipReason::Overlap,
                count: Some(skipped_by_overlap.len()),
            };
            newly_skipped.push(range);
            self.record_overlap(schedule, range, &mut fire).await?;
        }
        let skipped = due.skipped.map(|range| range.last);
        let last_handled = due.fire.last().copied().max(skipped);
        fire.last_at = last_handled.max(schedule.last_at);
        fire.next_at = definition.next_at(schedule.created_at, fire.last_at);
        let cancel = match overlap {
            Overlap::CancelRunning if !fire.jobs.is_empty() => unfinished,
            _ => Vec::new(),
        };
        Ok(FiringPlan {
            fire,
            newly_skipped,
            cancel,
        })
    }

    /// Records that occurrences are skipped because an earlier one is unfinished. Extends the
    /// newest record if it has the same reason and ends right before them.
    async fn record_overlap(
        &self,
        schedule: &Schedule,
        mut range: SkippedRange,
        fire: &mut Fire,
    ) -> Result<(), StoreError> {
        let topic = Fire::skipped_topic(schedule.id);
        let newest = self
            .engine
            .store()
            .records(&topic, RecordRange::NEWEST, 1)
            .await?;
        let newest = newest.first().filter(|_| fire.skipped.is_empty());
        if let Some((cursor, before)) =
            newest.and_then(|record| Some((record.cursor, read_skipped(&record.value)?)))
            && before.reason == SkipReason::Overlap
            && Some(before.last) == schedule.last_at
        {
            range.first = before.first;
            range.count = range
                .count
                .zip(before.count)
                .map(|(added, earlier)| added + earlier);
            fire.lengthened = Some(cursor);
        }
        fire.skipped.push(range);
        Ok(())
    }

    /// Returns the unfinished occurrences, if `overlap` depends on them. Manual runs do not count,
    /// and the search continues past them.
    async fn unfinished(&self, schedule: &Schedule) -> Result<Vec<JobId>, StoreError> {
        if schedule.definition.overlap == Overlap::Allow {
            return Ok(Vec::new());
        }
        let store = self.engine.store();
        let (mut before, mut looked_at, mut unfinished) = (None, 0, Vec::new());
        for _ in 0..PAGES_MAX {
            let fired = store
                .occurrences(schedule.id, before, OCCURRENCES_PER_PAGE)
                .await?;
            let jobs: Vec<JobId> = fired.iter().filter_map(|fired| fired.job).collect();
            let found = store.get(&jobs).await?;
            for job in found.iter().flatten().filter(|job| !is_extra(job)) {
                looked_at += 1;
                if !job.state().is_final() {
                    unfinished.push(job.id);
                }
            }
            before = fired.last().map(|fired| fired.scheduled_for);
            if looked_at >= OCCURRENCES_PER_PAGE || fired.len() < OCCURRENCES_PER_PAGE {
                break;
            }
        }
        Ok(unfinished)
    }

    /// Emits the events of a firing. `made` are the jobs that were really created.
    fn emit_firing(
        &self,
        schedule: &Schedule,
        jobs: &[Job],
        made: &[JobId],
        mut skipped: Vec<SkippedRange>,
        now: Timestamp,
    ) {
        let name = &schedule.definition.name;
        let emit = |what: ScheduleEvent| {
            self.engine.emit(|| Event::Schedule {
                at: now,
                id: schedule.id,
                name: name.clone(),
                what,
            });
        };
        for job in jobs {
            let scheduled_for = job
                .occurrence
                .map_or(now, |occurrence| occurrence.scheduled_for);
            if !made.contains(&job.id) {
                skipped.push(SkippedRange::one(scheduled_for, SkipReason::Duplicate));
                continue;
            }
            self.engine
                .job_log()
                .fired(name, scheduled_for, job.id, now);
            emit(ScheduleEvent::Fired {
                scheduled_for,
                job: job.id,
                lag: now.since(scheduled_for),
            });
            self.engine.enqueued(std::iter::once(job), now);
        }
        for range in skipped {
            self.engine.job_log().skipped(name, &range, now);
            emit(ScheduleEvent::Skipped(range));
        }
    }

    /// Logs the schedules that cannot fire because their definition cannot be read.
    async fn log_unreadable(&self) {
        match self.engine.store().schedules().await {
            Ok(schedules) => {
                for one in schedules.unreadable {
                    error!(schedule = %one.name, reason = %one.reason, "cannot read a schedule, so it does not fire; put it again or delete it");
                }
            }
            Err(error) => warn!(%error, "listing unreadable schedules failed"),
        }
    }

    /// When the next schedule is due.
    pub async fn next_at(&self) -> Result<Option<Timestamp>, StoreError> {
        let first = self.engine.store().due(1, Timestamp::MAX).await?;
        Ok(first.first().and_then(|schedule| schedule.next_at))
    }

    /// Fires schedules until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        pulse.busy(clock.now());
        self.log_unreadable().await;
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
                    warn!(%error, "firing schedules failed; retrying at the next pass");
                    poll
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock.sleep_until(at) => {}
            }
        }
    }
}

/// The job of the occurrence at the nominal time `at`.
fn occurrence_job(engine: &Engine, schedule: &Schedule, at: Timestamp, now: Timestamp) -> Job {
    let definition = &schedule.definition;
    let new_job = definition.job.clone();
    let mut job = new_job.into_stored_job(engine.ids().job(now), at);
    let splay = splay_of(schedule.id, at, definition.splay);
    job.run_at = job.run_at.saturating_add(splay);
    job.created_at = now;
    job.occurrence = Some(Occurrence {
        schedule_id: schedule.id,
        scheduled_for: at,
    });
    job
}

/// The job of a manual run.
///
/// Under `overlap: queue`, backfilled jobs run one after the other. They have a concurrency key of
/// their own, so they do not delay future occurrences.
pub fn manual_run_job(
    engine: &Engine,
    schedule: &Schedule,
    extra: ManualRun,
    at: Timestamp,
    now: Timestamp,
) -> Job {
    let mut job = occurrence_job(engine, schedule, at, now);
    let from_now = schedule.definition.job.clone().into_stored_job(job.id, now);
    job.run_at = now;
    job.deadline = from_now.deadline;
    job.meta.insert(EXTRA_META.to_owned(), extra.name().into());
    if extra == ManualRun::Backfill && schedule.definition.overlap.runs_sequentially(1) {
        run_in_turn(&mut job, format!("schedule:{}:backfill", schedule.id));
    }
    job
}

fn is_extra(job: &Job) -> bool {
    job.meta.contains_key(EXTRA_META)
}

/// Makes jobs with the same key run one after the other. A job that has a concurrency key keeps it.
fn run_in_turn(job: &mut Job, key: String) {
    if job.concurrency.is_none() {
        let key = Key::new(&key).ok();
        job.concurrency = key.map(|key| Concurrency { key, limit: 1 });
    }
}

/// What a schedule does in one pass.
struct FiringPlan {
    fire: Fire,
    /// What this pass skips. `fire.skipped` may extend a range of an earlier pass.
    newly_skipped: Vec<SkippedRange>,
    cancel: Vec<JobId>,
}
