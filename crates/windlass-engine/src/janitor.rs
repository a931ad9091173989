//! Removes old data in small steps, and counts jobs for metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{Job, JobId, QueueName, State, Timestamp};
use windlass_store::{
    Change, Changed, EXPIRED_MAX, Expected, Filter, Fire, ListedState, PAGE_MAX, Page, RECORDS_MAX,
    Schedule, StoreError,
};

use crate::audit::{Actor, Audit};
use crate::engine::Engine;
use crate::logs;
use crate::poison::lock;
use crate::saturate::to_u64;
use crate::watchdog::Pulse;

/// The shortest pause between two steps.
const PAUSE_MIN: Duration = Duration::from_millis(10);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long failure groups without jobs are kept.
const EMPTY_GROUPS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long tallies of actions are kept, which is longer than the actions themselves.
const ACTION_TALLIES_KEPT: Duration = Duration::from_secs(180 * 24 * 3600);

/// The number of schedules whose skip records one pass trims.
const SCHEDULES_PER_PASS: usize = 100;

/// The number of log documents that one pass examines. It reads the job of each.
const LOGS_PER_PASS: usize = 100;

/// How long data is kept.
#[derive(Debug, Clone)]
pub struct JanitorConfig {
    /// How long succeeded and cancelled jobs are kept, with their attempts. 7 days.
    pub retention: Duration,
    /// The same for single queues.
    pub queues: BTreeMap<QueueName, Duration>,
    /// How long dead jobs are kept. By default they stay until a person purges them.
    pub dead_retention: Option<Duration>,
    /// How long nodes without heartbeats are kept. 10 min.
    pub node_retention: Duration,
    /// The interval between passes. 10 s.
    pub every: Duration,
    /// The maximum number of jobs of a queue that one pass removes. 500.
    pub batch: usize,
}

impl Default for JanitorConfig {
    fn default() -> Self {
        JanitorConfig {
            retention: 7 * DAY,
            queues: BTreeMap::new(),
            dead_retention: None,
            node_retention: Duration::from_secs(600),
            every: Duration::from_secs(10),
            batch: 500,
        }
    }
}

/// Removes old data.
#[derive(Debug)]
pub struct Janitor {
    engine: Arc<Engine>,
    audit: Audit,
    config: JanitorConfig,
    /// Where the next purge of a queue continues, if the last one did not reach the end.
    purge_cursors: Mutex<BTreeMap<(QueueName, ListedState), JobId>>,
    /// Where each walk through names continues; empty when it starts over.
    walk_cursors: Mutex<BTreeMap<&'static str, String>>,
}

impl Janitor {
    /// Creates a janitor.
    pub fn new(engine: Arc<Engine>, config: JanitorConfig) -> Self {
        Janitor {
            audit: Audit::new(Arc::clone(&engine)),
            engine,
            config,
            purge_cursors: Mutex::default(),
            walk_cursors: Mutex::default(),
        }
    }

    fn walk_cursors(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        lock(&self.walk_cursors)
    }

    fn purge_cursors(&self) -> MutexGuard<'_, BTreeMap<(QueueName, ListedState), JobId>> {
        lock(&self.purge_cursors)
    }

    /// Takes one small step in every queue. Returns the number of removed jobs.
    pub async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        let store = self.engine.store();
        let counts = store.counts(now).await?;
        if let Some(recorder) = self.engine.recorder() {
            recorder.counts(&counts, now);
            self.engine.record_slots();
        }
        let longest = self.config.queues.values().copied();
        let longest = longest.fold(self.config.retention, Duration::max);
        store.drop_history(now.saturating_sub(longest)).await?;
        let mut removed = 0;
        for (queue, counts) in &counts {
            let kept = self.config.queues.get(queue);
            let kept = *kept.unwrap_or(&self.config.retention);
            if counts.succeeded > 0 {
                removed += self.purge(queue, ListedState::Succeeded, kept, now).await?;
            }
            if counts.cancelled > 0 {
                removed += self.purge(queue, ListedState::Cancelled, kept, now).await?;
            }
            if let Some(kept) = self.config.dead_retention.filter(|_| counts.dead > 0) {
                removed += self.purge(queue, ListedState::Dead, kept, now).await?;
            }
        }
        let before = now.saturating_sub(self.config.retention);
        self.forget_schedules(before).await?;
        self.forget_nodes(now).await?;
        self.forget_logs().await?;
        store.remove_expired(EXPIRED_MAX, now).await?;
        let groups_before = now.saturating_sub(EMPTY_GROUPS_KEPT);
        let actions_before = now.saturating_sub(ACTION_TALLIES_KEPT);
        store.trim_tallies(groups_before, actions_before).await?;
        Ok(removed)
    }

    /// Removes old jobs of a queue in one small step.
    ///
    /// Lists from newest to oldest, starting at jobs created at the cutoff: a job that finished
    /// before the cutoff was created before it. If the step does not reach the oldest job, the next
    /// one continues where it stopped.
    async fn purge(
        &self,
        queue: &QueueName,
        state: ListedState,
        kept: Duration,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let store = self.engine.store();
        let before = now.saturating_sub(kept);
        let filter = Filter {
            queue: Some(queue.clone()),
            finished_before: Some(before),
            ..Filter::state(state)
        };
        let cursor_key = (queue.clone(), state);
        let stopped = self.purge_cursors().get(&cursor_key).copied();
        let after = stopped.unwrap_or_else(|| JobId::new(before, u64::MAX));
        let page = Page::after(Some(after), self.config.batch.min(PAGE_MAX));
        let listed = store.list(&filter, page, now).await?;
        match listed.next {
            Some(next) => self.purge_cursors().insert(cursor_key, next.id),
            None => self.purge_cursors().remove(&cursor_key),
        };
        let jobs = listed.jobs;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        if ids.is_empty() {
            return Ok(0);
        }
        if state == ListedState::Dead {
            // Write the record first: after a crash it may name jobs that still exist, and the next
            // pass records them again. In the other order jobs could vanish without a record.
            let detail = removal(&jobs, before);
            self.audit
                .write(&Actor::janitor(), "dead.remove", queue.as_str(), detail)
                .await?;
        }
        let purged = store.change(&ids, &Change::Purge, None, now).await?;
        let removed = purged
            .iter()
            .filter(|changed| **changed == Changed::Removed);
        let removed = removed.count();
        if state == ListedState::Dead {
            info!(%queue, count = removed, "removed old dead jobs");
            if let Some(recorder) = self.engine.recorder() {
                recorder.dead_removed(queue, to_u64(removed));
            }
        }
        Ok(removed)
    }

    /// Removes ended schedules whose jobs are all gone, and old records of skipped occurrences.
    async fn forget_schedules(&self, before: Timestamp) -> Result<(), StoreError> {
        const WALK: &str = "schedules";
        let store = self.engine.store();
        let schedules = store.schedules().await?.readable;
        let after = self.walk_cursors().remove(WALK).unwrap_or_default();
        let name = |schedule: &Schedule| schedule.definition.name.to_string();
        let mut walked = schedules.iter().filter(|one| name(one) > after);
        for schedule in walked.by_ref().take(SCHEDULES_PER_PASS) {
            let topic = Fire::skipped_topic(schedule.id);
            store.trim(&topic, before, RECORDS_MAX).await?;
            self.walk_cursors().insert(WALK, name(schedule));
        }
        if walked.next().is_none() {
            self.walk_cursors().remove(WALK);
        }
        for schedule in schedules {
            let has_ended = schedule.next_at.is_none() && !schedule.definition.paused;
            let old =
                schedule.last_at.is_none_or(|last| last < before) && schedule.created_at < before;
            if has_ended && old && store.occurrences(schedule.id, None, 1).await?.is_empty() {
                let version = Expected::Version(schedule.version);
                store.remove_schedule(schedule.id, version).await?;
            }
        }
        Ok(())
    }

    /// Removes logs whose job was removed: those of lost attempts, and those that were reported
    /// through another node than the outcome.
    async fn forget_logs(&self) -> Result<(), StoreError> {
        const WALK: &str = "logs";
        let after = self.walk_cursors().remove(WALK).unwrap_or_default();
        let next = logs::remove_orphans(&self.engine, &after, LOGS_PER_PASS).await?;
        if let Some(next) = next {
            self.walk_cursors().insert(WALK, next);
        }
        Ok(())
    }

    async fn forget_nodes(&self, now: Timestamp) -> Result<(), StoreError> {
        let store = self.engine.store();
        let old = now.saturating_sub(self.config.node_retention);
        for node in store.nodes().await? {
            if node.beat_at < old {
                store.remove_node(&node.name).await?;
            }
        }
        Ok(())
    }

    /// Removes old data until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            let started = clock.now();
            pulse.busy(started);
            let removed = self.pass(started).await.unwrap_or_else(|error| {
                warn!(%error, "cleanup failed; retrying at the next pass");
                0
            });
            pulse.rest();
            let now = clock.now();
            // While there is more to remove, continue sooner, but use at most half of the time.
            let rest = if removed < self.config.batch {
                self.config.every
            } else {
                now.since(started).max(PAUSE_MIN)
            };
            let next = now.saturating_add(rest);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock.sleep_until(next) => {}
            }
        }
    }
}

/// The audit detail for the dead jobs of one step, at most [`PAGE_MAX`].
fn removal(jobs: &[Job], finished_before: Timestamp) -> Value {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for job in jobs {
        if let State::Dead(reason) = job.state() {
            *reasons.entry(reason.name()).or_default() += 1;
        }
    }
    let finished = || jobs.iter().filter_map(Job::finished_at);
    json!({
        "count": jobs.len(), "reasons": reasons, "finished_before": finished_before,
        "oldest_finished_at": finished().min(), "newest_finished_at": finished().max(),
        "jobs": jobs.iter().map(|job| job.id).collect::<Vec<_>>(),
    })
}
