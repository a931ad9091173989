//! Turns occurrences that are due into jobs.
//!
//! Which of them fire, `core` decides; that each becomes one job whoever fires it, the store sees to. So every node runs one,
//! and two that overlap do no harm.

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

/// So many schedules are fired at once: a store that commits in groups, or on many connections, is kept busy.
const AT_ONCE: usize = 64;

/// How many earlier occurrences the scheduler checks for an unfinished one. While one is unfinished, few or none follow it.
const LOOKED_BACK: usize = 100;

/// How many pages of earlier runs the scheduler reads at most, where people asked for many runs.
const STEPS_BACK: usize = 10;

/// Marks, in the `meta` of a job, that a person asked for this run of a schedule. The value is [`Extra::name`].
const EXTRA_META: &str = "windlass.extra";

/// A run of a schedule that a person asks for. `overlap` ignores it: it holds no nominal occurrence back, and none holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// One run, now, that is no occurrence of the rule.
    RunNow,
    /// Occurrences of the past that did not run.
    Backfill,
}

impl Extra {
    const fn name(self) -> &'static str {
        match self {
            Extra::RunNow => "run_now",
            Extra::Backfill => "backfill",
        }
    }
}

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

    /// Fires what is due; how many jobs that made. Each schedule fires at its own instant: those at the end of a long pass
    /// may be late, which decides what counts as missed.
    pub async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        let due = self.engine.store().due(self.config.batch, now).await?;
        let mut firing = futures_util::stream::iter(due)
            .map(async |schedule| self.fire(&schedule, now.max(self.engine.now())).await)
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
            self.engine.change(&step.cancel, &Change::Cancel).await?;
        }
        self.tell(schedule, &jobs, &made, &skipped, now);
        Ok(made.len())
    }

    /// Works out what a schedule does now.
    async fn step(&self, schedule: &Schedule, now: Timestamp) -> Result<Step, StoreError> {
        let definition = &schedule.definition;
        let recurrence = definition.recurrence(schedule.created_at);
        let last = schedule.last_at.unwrap_or(schedule.created_at);
        let (late, most) = (definition.missed_after, definition.catch_up_max);
        let due = definition.missed().due(&recurrence, last, now, late, most);
        let unfinished = self.unfinished(schedule).await?;
        let overlap = definition.overlap;
        let fired = overlap.lets_fire(due.fire.len(), definition.missed(), unfinished.len());
        let (left_out, fired) = due.fire.split_at(due.fire.len() - fired);
        let jobs = fired.iter().map(|at| {
            let mut job = occurrence_job(&self.engine, schedule, *at, now);
            if overlap.in_turn(fired.len()) {
                run_in_turn(&mut job, format!("schedule:{}", schedule.id));
            }
            job
        });
        let mut fire = Fire {
            jobs: jobs.collect(),
            skipped: due.skipped.into_iter().collect(),
            ..Fire::nothing(schedule)
        };
        if let (Some(first), Some(last)) = (left_out.first(), left_out.last()) {
            let range = SkippedRange {
                first: *first,
                last: *last,
                reason: SkipReason::Overlap,
                count: Some(left_out.len()),
            };
            self.leave_out(schedule, range, &mut fire).await?;
        }
        let skipped = due.skipped.map(|range| range.last);
        let dealt_with = due.fire.last().copied().max(skipped);
        fire.last_at = dealt_with.max(schedule.last_at);
        fire.next_at = definition.next_at(schedule.created_at, fire.last_at);
        let cancel = match overlap {
            Overlap::CancelRunning if !fire.jobs.is_empty() => unfinished,
            _ => Vec::new(),
        };
        Ok(Step { fire, cancel })
    }

    /// Records that occurrences are left out because an earlier one is not over. Where those before them were left out for
    /// the same reason, their record is lengthened.
    async fn leave_out(
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
            range.count = range.count.zip(before.count).map(|(more, few)| more + few);
            fire.lengthened = Some(cursor);
        }
        fire.skipped.push(range);
        Ok(())
    }

    /// The nominal occurrences that are unfinished, if `overlap` depends on them. Runs that a person asked for do not count, and
    /// the scheduler looks past them.
    async fn unfinished(&self, schedule: &Schedule) -> Result<Vec<JobId>, StoreError> {
        if schedule.definition.overlap == Overlap::Allow {
            return Ok(Vec::new());
        }
        let store = self.engine.store();
        let (mut before, mut looked_at, mut unfinished) = (None, 0, Vec::new());
        for _ in 0..STEPS_BACK {
            let fired = store.occurrences(schedule.id, before, LOOKED_BACK).await?;
            let jobs: Vec<JobId> = fired.iter().filter_map(|fired| fired.job).collect();
            let found = store.get(&jobs).await?;
            for job in found.iter().flatten().filter(|job| !is_extra(job)) {
                looked_at += 1;
                if !job.state().is_final() {
                    unfinished.push(job.id);
                }
            }
            before = fired.last().map(|fired| fired.scheduled_for);
            if looked_at >= LOOKED_BACK || fired.len() < LOOKED_BACK {
                break;
            }
        }
        Ok(unfinished)
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
            self.engine
                .narrator()
                .fired(name, scheduled_for, job.id, now);
            tell(ScheduleEvent::Fired {
                scheduled_for,
                job: job.id,
                lag: now.since(scheduled_for),
            });
            self.engine.enqueued(std::iter::once(job), now);
        }
        for range in skipped {
            self.engine.narrator().skipped(name, &range, now);
            tell(ScheduleEvent::Skipped(range));
        }
    }

    /// Tells which schedules cannot fire, for their definition cannot be read.
    async fn tell_unreadable(&self) {
        match self.engine.store().schedules().await {
            Ok(schedules) => {
                for one in schedules.unreadable {
                    error!(schedule = %one.name, reason = %one.reason, "a schedule cannot be read and does not fire: put it anew or delete it");
                }
            }
            Err(error) => warn!(%error, "schedules that cannot be read are not known"),
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
        pulse.busy(clock.now());
        self.tell_unreadable().await;
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
fn occurrence_job(engine: &Engine, schedule: &Schedule, at: Timestamp, now: Timestamp) -> Job {
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
    job
}

/// The job of a run that a person asks for.
///
/// Under `overlap: queue` backfilled jobs run one after the other, with a concurrency key of their own, so that they do not
/// delay the occurrences to come.
pub fn extra_job(
    engine: &Engine,
    schedule: &Schedule,
    extra: Extra,
    at: Timestamp,
    now: Timestamp,
) -> Job {
    let mut job = occurrence_job(engine, schedule, at, now);
    let from_now = schedule.definition.job.clone().into_stored_job(job.id, now);
    job.run_at = now;
    job.deadline = from_now.deadline;
    job.meta.insert(EXTRA_META.to_owned(), extra.name().into());
    if extra == Extra::Backfill && schedule.definition.overlap.in_turn(1) {
        run_in_turn(&mut job, format!("schedule:{}:backfill", schedule.id));
    }
    job
}

fn is_extra(job: &Job) -> bool {
    job.meta.contains_key(EXTRA_META)
}

/// Jobs with this key run one after the other. A job that has a concurrency key keeps it.
fn run_in_turn(job: &mut Job, key: String) {
    if job.concurrency.is_none() {
        let key = Key::new(&key).ok();
        job.concurrency = key.map(|key| Concurrency { key, limit: 1 });
    }
}

/// What a schedule does in one step.
struct Step {
    fire: Fire,
    cancel: Vec<JobId>,
}
