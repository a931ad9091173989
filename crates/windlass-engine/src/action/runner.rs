//! The loop that carries actions on. Every worker and server process has one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{
    ActionId, ActionState, ActionTally, ReplayStep, StopReason, Timestamp, WaitingFor, allowance,
    paced_until,
};

use super::document::{self, Action};
use super::{ActionError, Work, count, step};
use crate::audit::{Actor, Audit};
use crate::engine::Engine;
use crate::event::ActionEvent;
use crate::failure_lines::FailureLines;
use crate::poison::lock;
use crate::saturate::to_u64;
use crate::watchdog::Pulse;

/// The most jobs of one change, and the fewest.
const BATCH_MAX: usize = 1000;
const BATCH_MIN: usize = 10;

/// One of this many changes is small, to measure the time that even a small change takes: round
/// trips, and the sync of the disk.
const SMALL_EVERY: usize = 16;

/// The longest rest between two changes. A slow store must not make an action crawl.
const REST_MAX: Duration = Duration::from_millis(100);

/// The configuration of a runner.
#[derive(Debug, Clone)]
pub struct ActionRunnerConfig {
    /// How long a runner holds an action. If its process dies, another one goes on after this
    /// time. 10 s.
    pub lease: Duration,
    /// The interval between two steps of an action that waits. 100 ms.
    pub every: Duration,
    /// The interval between two looks for actions while none runs. 1 s.
    pub idle: Duration,
    /// How much longer one change of jobs should take than a change of a few jobs, at most. Larger
    /// batches would delay claims and settles. 1 ms, or as long as a change of a few jobs.
    pub batch_time: Duration,
    /// How long to leave the store to other work after a change, as a multiple of the time that
    /// the change took. 1, so that actions take at most half of a busy store. A process that alone
    /// uses the store needs no rest: 0.
    pub rest: u32,
    /// How long an action is left alone after a failed step. 5 s.
    pub retry: Duration,
    /// The time after which progress is written. 200 ms.
    pub save_every: Duration,
}

impl Default for ActionRunnerConfig {
    fn default() -> Self {
        ActionRunnerConfig {
            lease: Duration::from_secs(10),
            every: Duration::from_millis(100),
            idle: Duration::from_secs(1),
            batch_time: Duration::from_millis(1),
            rest: 1,
            retry: Duration::from_secs(5),
            save_every: Duration::from_millis(200),
        }
    }
}

/// When a runner should look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// No action runs here.
    Idle,
    /// An action waits for time, outcomes or a queue.
    Waiting,
    /// An action has more to do.
    Busy,
}

/// Carries bulk actions and replays on.
#[derive(Debug)]
pub struct ActionRunner {
    engine: Arc<Engine>,
    audit: Audit,
    holder: String,
    config: ActionRunnerConfig,
    /// Actions whose last step failed here, and until when to leave them alone.
    failed: Mutex<BTreeMap<ActionId, Timestamp>>,
    /// How many jobs to change at once.
    batch: AtomicUsize,
    /// Counts the changes.
    changes: AtomicUsize,
    /// How long a change of a few jobs takes, in microseconds; 0 if unknown.
    small_micros: AtomicU64,
}

impl ActionRunner {
    /// Creates a runner. `name` distinguishes it from other runners of the same engine.
    pub fn new(engine: Arc<Engine>, name: &str, config: ActionRunnerConfig) -> Self {
        let holder = format!("{} {name}", engine.instance());
        ActionRunner {
            audit: Audit::new(Arc::clone(&engine)),
            engine,
            holder,
            config,
            failed: Mutex::default(),
            batch: AtomicUsize::new(BATCH_MIN * 5),
            changes: AtomicUsize::new(0),
            small_micros: AtomicU64::new(0),
        }
    }

    /// Takes one step of every action that no other runner holds.
    pub async fn pass(&self) -> Result<Activity, ActionError> {
        let now = self.engine.now();
        let mut activity = Activity::Idle;
        for action in document::live(&self.engine).await? {
            let id = action.id;
            if lock(&self.failed)
                .get(&id)
                .is_some_and(|until| now < *until)
            {
                continue;
            }
            let done = match action.state {
                ActionState::Running => self.carry_on(id).await,
                // A runner that died after the last step left the rest to others.
                _ if action.is_held_by_other(&self.holder, now) => Ok(Activity::Idle),
                _ => self.end(&action).await.map(|()| Activity::Idle),
            };
            match done {
                Ok(done) => {
                    lock(&self.failed).remove(&id);
                    activity = activity.max(done);
                }
                Err(error) => self.give_up(id, &error).await,
            }
        }
        Ok(activity)
    }

    /// Leaves an action alone for some seconds, so that it stops no other action, and another node
    /// can try it.
    async fn give_up(&self, id: ActionId, error: &ActionError) {
        warn!(action.id = %id, %error, "a step of a bulk action failed; trying again later");
        let until = self.engine.now().saturating_add(self.config.retry);
        lock(&self.failed).insert(id, until);
        if let Err(error) = document::release(&self.engine, id, &self.holder).await {
            warn!(action.id = %id, %error, "giving up a bulk action failed; its lease will expire");
        }
    }

    async fn carry_on(&self, id: ActionId) -> Result<Activity, ActionError> {
        let lease = self.config.lease;
        let taken = document::lease(&self.engine, id, &self.holder, lease).await?;
        let Some(mut action) = taken else {
            return Ok(Activity::Idle);
        };
        let before = action.clone();
        let done = self.steps(&mut action).await;
        if action == before {
            return done;
        }
        // Jobs were changed even if a later step failed.
        let saved = document::save(&self.engine, &action).await?;
        if saved.state != ActionState::Running {
            self.end(&saved).await?;
        }
        done
    }

    /// Reports that an action ended or stopped itself, and puts an ended one away.
    async fn end(&self, action: &Action) -> Result<(), ActionError> {
        if action.state != ActionState::Paused && !action.is_reported {
            self.report_end(action).await?;
            document::mark_reported(&self.engine, action.id).await?;
        }
        if action.state.is_final() {
            document::archive(&self.engine, action.id).await?;
        }
        Ok(())
    }

    /// Takes steps until it is time to write the progress.
    async fn steps(&self, action: &mut Action) -> Result<Activity, ActionError> {
        let clock = self.engine.clock();
        let started = clock.elapsed();
        if !action.is_counted() {
            action.waiting_for = Some(WaitingFor::Counting);
            count::next_part(&self.engine, action).await?;
            return Ok(Activity::Busy);
        }
        let mut seen = 0;
        loop {
            let limit = BATCH_MAX.min(self.batch.load(Ordering::Relaxed));
            let (activity, looked_at) = match action.work {
                Work::Bulk { .. } => self.bulk_step(action, limit).await?,
                Work::Replay { .. } => self.replay_step(action, limit).await?,
            };
            seen += looked_at;
            let is_late = clock.elapsed().saturating_sub(started) >= self.config.save_every;
            if activity != Activity::Busy || is_late || seen >= BATCH_MAX {
                return Ok(activity);
            }
        }
    }

    async fn bulk_step(
        &self,
        action: &mut Action,
        limit: usize,
    ) -> Result<(Activity, usize), ActionError> {
        let now = self.engine.now();
        if action.is_walked() {
            let tally = self.engine.store().action_tally(action.id).await?;
            action.finish(tally.changed(), now);
            return Ok((Activity::Waiting, 0));
        }
        let rate = match action.work {
            Work::Bulk { rate, .. } => rate,
            Work::Replay { .. } => None,
        };
        let allowed = rate.map_or(u64::MAX, |rate| allowance(rate, action.paced_at, now));
        let limit = limit.min(usize::try_from(allowed).unwrap_or(usize::MAX));
        if limit == 0 {
            return Ok((Activity::Waiting, 0));
        }
        let result = self.change(action, limit).await?;
        if let Some(rate) = rate {
            action.paced_at = paced_until(rate, action.paced_at, to_u64(result.seen), now);
        }
        Ok((self.activity(action), result.seen))
    }

    async fn replay_step(
        &self,
        action: &mut Action,
        limit: usize,
    ) -> Result<(Activity, usize), ActionError> {
        let now = self.engine.now();
        let tally = self.engine.store().action_tally(action.id).await?;
        let is_walked = action.is_walked();
        let paced_at = action.paced_at;
        let Work::Replay {
            rules, progress, ..
        } = &mut action.work
        else {
            return Ok((Activity::Idle, 0));
        };
        let rate = rules.rate;
        let allowed = allowance(rate, paced_at, now);
        match progress.next(rules, &tally, is_walked, allowed, now) {
            ReplayStep::Revive(0) => Ok((Activity::Waiting, 0)),
            ReplayStep::Revive(most) => {
                let limit = limit.min(usize::try_from(most).unwrap_or(usize::MAX));
                let result = self.change(action, limit).await?;
                action.paced_at = paced_until(rate, paced_at, result.changed, now);
                if let Work::Replay { progress, .. } = &mut action.work
                    && result.changed > 0
                {
                    progress.note_revived(now);
                }
                Ok((self.activity(action), result.seen))
            }
            ReplayStep::Wait(waiting_for) => {
                action.waiting_for = Some(waiting_for);
                action.waiting_queue = None;
                Ok((Activity::Waiting, 0))
            }
            ReplayStep::Stop(reason) => {
                action.stop(reason, now);
                Ok((Activity::Waiting, 0))
            }
            ReplayStep::Finish => {
                action.finish(tally.changed(), now);
                Ok((Activity::Waiting, 0))
            }
        }
    }

    fn activity(&self, action: &Action) -> Activity {
        if action.held.is_empty() {
            Activity::Busy
        } else {
            Activity::Waiting
        }
    }

    /// Changes the next jobs, adapts the size of the next batch to the time that it took, and rests.
    async fn change(
        &self,
        action: &mut Action,
        limit: usize,
    ) -> Result<step::StepResult, ActionError> {
        let change = self.changes.fetch_add(1, Ordering::Relaxed);
        let is_small = change.is_multiple_of(SMALL_EVERY);
        let limit = if is_small {
            limit.min(BATCH_MIN)
        } else {
            limit
        };
        let before = action.clone();
        let result = step::take(&self.engine, action, limit).await;
        let result = result.inspect_err(|_| *action = before)?; // the jobs are still to do
        if is_small && result.changed > 0 {
            self.note_small(result.change_time);
        } else if !is_small {
            self.adapt_batch(&result);
        }
        let rest = (result.change_time * self.config.rest).min(REST_MAX);
        if !rest.is_zero() {
            self.engine.clock().sleep(rest).await;
        }
        Ok(result)
    }

    /// Notes how long a small change took. A single slow one raises the time only a little.
    fn note_small(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let before = self.small_micros.load(Ordering::Relaxed);
        let micros = match before {
            0 => micros,
            _ => micros.min(before.saturating_add(before / 4)),
        };
        self.small_micros.store(micros, Ordering::Relaxed);
    }

    fn adapt_batch(&self, result: &step::StepResult) {
        let small_time = Duration::from_micros(self.small_micros.load(Ordering::Relaxed));
        let most = self.config.batch_time.max(small_time);
        let took = result.change_time.saturating_sub(small_time);
        let batch = self.batch.load(Ordering::Relaxed);
        let next = if took > most {
            (batch / 2).max(BATCH_MIN)
        } else if took < most / 2 && result.seen >= batch {
            (batch * 2).min(BATCH_MAX)
        } else {
            batch
        };
        self.batch.store(next, Ordering::Relaxed);
    }

    /// Emits, logs and audits that an action ended or stopped itself.
    async fn report_end(&self, action: &Action) -> Result<(), ActionError> {
        let now = self.engine.now();
        let tally = self.engine.store().action_tally(action.id).await?;
        let (what, word) = match (action.state, action.stop_reason) {
            (ActionState::Stopped, Some(reason)) => (ActionEvent::Stopped { reason }, "stop"),
            (ActionState::Finished, _) => (ActionEvent::Finished, "finish"),
            _ => return Ok(()),
        };
        self.engine.emit_action(action, what, now);
        log_end(action, &tally, action.stop_reason);
        let detail = json!({
            "matched": action.matched,
            "done": tally.changed(),
            "skipped": action.skipped_total(),
            "failed_again": tally.failed_again,
            "stop_reason": action.stop_reason,
        });
        let (actor, target) = (Actor::runner(), action.id.to_string());
        let name = format!("{}.{word}", action.work.noun());
        self.audit.record(&actor, &name, &target, detail).await;
        Ok(())
    }

    /// Carries actions on until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut failures = FailureLines::default();
        loop {
            let changed = self.engine.actions_changed().notified();
            pulse.busy(clock.now());
            let activity = self.pass().await.unwrap_or_else(|error| {
                if let Some(suppressed) = failures.admit(clock.elapsed()) {
                    warn!(%error, suppressed, "carrying bulk actions on failed; retrying at the next pass");
                }
                Activity::Idle
            });
            pulse.rest();
            let wait = match activity {
                Activity::Idle => self.config.idle,
                Activity::Waiting => self.config.every,
                Activity::Busy => Duration::from_millis(1),
            };
            let next = clock.now().saturating_add(wait);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = changed => {}
                () = clock.sleep_until(next) => {}
            }
        }
    }
}

fn log_end(action: &Action, tally: &ActionTally, stop_reason: Option<StopReason>) {
    let (id, noun) = (action.id, action.work.bulk_change());
    match stop_reason {
        Some(reason) => warn!(
            replay.id = %id, reason = reason.name(), revived = tally.changed(),
            failed_again = tally.failed_again, "replay stopped itself"
        ),
        None => info!(
            action.id = %id, action = noun.name(), replay = action.work.is_replay(),
            done = tally.changed(), skipped = action.skipped_total(), "action finished"
        ),
    }
}
