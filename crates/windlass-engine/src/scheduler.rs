//! Fires schedules: turns due occurrences into jobs.
//!
//! `core` decides which occurrences fire. The store guarantees that each of them becomes at most
//! one job. So every node can run a scheduler, and two that run at the same time do no harm.
//!
//! A pass fires due schedules in batches. A schedule that the database refuses does not hold up the
//! others: the store writes the rest of its batch, and the next passes fire it in a batch of its own
//! (`refused.rs`).

mod refused;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use windlass_core::schedule::{Overlap, SkipReason, SkippedRange, splay_of};
use windlass_core::{Concurrency, Job, JobId, Key, Occurrence, ScheduleId, Timestamp};
use windlass_store::{
    Change, FIRE_MAX, Fire, Fired, RecordRange, Schedule, StoreError, read_skipped,
};

use crate::engine::Engine;
use crate::event::{Event, ScheduleEvent};
use crate::failure_lines::FailureLines;
use crate::watchdog::Pulse;
use refused::RefusedSchedules;

/// The number of schedules of one batch.
const SCHEDULES_PER_BATCH: usize = 250;

/// The number of batches that fire concurrently. A store with many connections needs this for
/// throughput.
const CONCURRENT_BATCHES: usize = 4;

/// The number of schedules of a batch that are planned concurrently.
const CONCURRENT_PLANS: usize = 16;

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
    refused: RefusedSchedules,
}

impl Scheduler {
    /// Creates a scheduler.
    pub fn new(engine: Arc<Engine>, config: SchedulerConfig) -> Self {
        Scheduler {
            engine,
            config,
            refused: RefusedSchedules::default(),
        }
    }

    /// Fires all due schedules. Returns the number of created jobs.
    ///
    /// Each batch uses the time at which it fires, not the start of the pass: at the end of a long
    /// pass an occurrence may already count as missed.
    pub async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        let limit = self.config.batch + self.refused.len();
        let mut due = self.engine.store().due(limit, now).await?;
        due.retain(|schedule| {
            self.refused
                .retry_at(schedule.id)
                .is_none_or(|at| at <= now)
        });
        due.truncate(self.config.batch);
        let (again, due): (Vec<Schedule>, Vec<Schedule>) = due
            .into_iter()
            .partition(|schedule| self.refused.retry_at(schedule.id).is_some());
        let batches = due.chunks(SCHEDULES_PER_BATCH).chain(again.chunks(1));
        let batches: Vec<Vec<Schedule>> = batches.map(<[Schedule]>::to_vec).collect();
        let mut firing = futures_util::stream::iter(batches)
            .map(async |batch| self.fire_batch(batch, now.max(self.engine.now())).await)
            .buffer_unordered(CONCURRENT_BATCHES);
        let mut fired = FiredBatch::default();
        while let Some(batch) = firing.next().await {
            fired.add(batch); // continue with the others after an error
        }
        fired.error.map_or(Ok(fired.jobs), Err)
    }

    /// Fires some schedules.
    async fn fire_batch(&self, schedules: Vec<Schedule>, now: Timestamp) -> FiredBatch {
        let mut fired = FiredBatch::default();
        let unfinished = match self.unfinished(&schedules).await {
            Ok(unfinished) => unfinished,
            Err(error) => return FiredBatch::failed(error),
        };
        let mut planning = futures_util::stream::iter(schedules.into_iter().zip(unfinished))
            .map(async |(schedule, unfinished)| self.plan(schedule, unfinished, now).await)
            .buffered(CONCURRENT_PLANS);
        let (mut plans, mut size) = (Vec::new(), 0);
        while let Some(plan) = planning.next().await {
            let plan = match plan {
                Ok(plan) => plan,
                Err(error) => {
                    fired.add(FiredBatch::failed(error));
                    continue;
                }
            };
            if size + plan.fire.size() > FIRE_MAX {
                fired.add(self.fire_plans(std::mem::take(&mut plans), now).await);
                size = 0;
            }
            size += plan.fire.size();
            plans.push(plan);
        }
        fired.add(self.fire_plans(plans, now).await);
        fired
    }

    async fn fire_plans(&self, plans: Vec<FiringPlan>, now: Timestamp) -> FiredBatch {
        if plans.is_empty() {
            return FiredBatch::default();
        }
        let fires = plans.iter().map(|plan| plan.fire.clone()).collect();
        let answers = match self.engine.store().fire(fires, now).await {
            Ok(answers) => answers,
            Err(error) => return FiredBatch::failed(error),
        };
        let mut fired = FiredBatch::default();
        for (plan, answer) in plans.into_iter().zip(answers) {
            match answer {
                Fired::Done { jobs } => {
                    self.refused.remove(plan.schedule.id);
                    fired.jobs += jobs.len();
                    if let Err(error) = self.finish(plan, &jobs, now).await {
                        fired.add(FiredBatch::failed(error));
                    }
                }
                Fired::Stale => {} // another node fired it, or it was just changed
                Fired::Refused { reason } => self.refused.note(&plan.schedule, &reason, now),
            }
        }
        fired
    }

    /// Does what follows a step that the store has written.
    async fn finish(
        &self,
        plan: FiringPlan,
        made: &[JobId],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        // Only after firing: a plan that came too late must not cancel what another node fired.
        let cancelled = match plan.cancel.as_slice() {
            [] => Ok(()),
            jobs => self.engine.change(jobs, &Change::Cancel).await.map(drop),
        };
        self.emit_firing(
            &plan.schedule,
            &plan.fire.jobs,
            made,
            plan.newly_skipped,
            now,
        );
        cancelled
    }

    /// Plans what a schedule does now.
    async fn plan(
        &self,
        schedule: Schedule,
        unfinished: Vec<JobId>,
        now: Timestamp,
    ) -> Result<FiringPlan, StoreError> {
        let definition = &schedule.definition;
        let recurrence = definition.recurrence(schedule.created_at);
        let last = schedule.last_at.unwrap_or(schedule.created_at);
        let (missed_after, max) = (definition.missed_after, definition.catch_up_max);
        let due = definition
            .missed()
            .due(&recurrence, last, now, missed_after, max);
        let overlap = definition.overlap;
        let fired = overlap.fire_count(due.fire.len(), definition.missed(), unfinished.len());
        let (skipped_by_overlap, fired) = due.fire.split_at(due.fire.len() - fired);
        let jobs = fired.iter().map(|at| {
            let mut job = occurrence_job(&self.engine, &schedule, *at, now);
            if overlap.runs_sequentially(fired.len()) {
                run_in_turn(&mut job, format!("schedule:{}", schedule.id));
            }
            job
        });
        let mut fire = Fire {
            jobs: jobs.collect(),
            skipped: due.skipped.into_iter().collect(),
            ..Fire::nothing(&schedule)
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
            self.record_overlap(&schedule, range, &mut fire).await?;
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
            schedule,
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

    /// Returns the unfinished occurrences of each schedule whose `overlap` depends on them. Manual
    /// runs do not count.
    async fn unfinished(&self, schedules: &[Schedule]) -> Result<Vec<Vec<JobId>>, StoreError> {
        let depends = |schedule: &&Schedule| schedule.definition.overlap != Overlap::Allow;
        let ids: Vec<ScheduleId> = schedules.iter().filter(depends).map(|it| it.id).collect();
        let found = match ids.as_slice() {
            [] => Vec::new(),
            ids => self.engine.store().unfinished_occurrences(ids).await?,
        };
        let mut found = found.into_iter();
        let unfinished = schedules.iter().map(|schedule| {
            let jobs = Some(schedule).filter(depends).and_then(|_| found.next());
            let jobs = jobs.unwrap_or_default().into_iter();
            jobs.filter(|job| !is_extra(job))
                .map(|job| job.id)
                .collect()
        });
        Ok(unfinished.collect())
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

    /// When the next schedule is due, or a refused one is tried again.
    pub async fn next_at(&self) -> Result<Option<Timestamp>, StoreError> {
        let limit = 1 + self.refused.len();
        let first = self.engine.store().due(limit, Timestamp::MAX).await?;
        let at = |schedule: &Schedule| {
            let retry_at = self.refused.retry_at(schedule.id);
            schedule
                .next_at
                .map(|at| retry_at.map_or(at, |retry_at| retry_at.max(at)))
        };
        Ok(first.iter().filter_map(at).min())
    }

    /// Fires schedules until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        pulse.busy(clock.now());
        self.log_unreadable().await;
        let mut failures = FailureLines::default();
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
                    if let Some(suppressed) = failures.admit(clock.elapsed()) {
                        warn!(%error, suppressed, "firing schedules failed; retrying at the next pass");
                    }
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
    schedule: Schedule,
    fire: Fire,
    /// What this pass skips. `fire.skipped` may extend a range of an earlier pass.
    newly_skipped: Vec<SkippedRange>,
    cancel: Vec<JobId>,
}

/// What came of some schedules: the number of created jobs, and the last error.
#[derive(Debug, Default)]
struct FiredBatch {
    jobs: usize,
    error: Option<StoreError>,
}

impl FiredBatch {
    fn failed(error: StoreError) -> Self {
        FiredBatch {
            jobs: 0,
            error: Some(error),
        }
    }

    fn add(&mut self, other: FiredBatch) {
        self.jobs += other.jobs;
        self.error = other.error.or(self.error.take());
    }
}
