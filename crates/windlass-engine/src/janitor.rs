//! Removes what is old, in small steps, and counts what there is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use crate::watchdog::Pulse;

/// Between two steps it rests at least so long.
const REST_MIN: Duration = Duration::from_millis(10);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// In one pass so many documents beside jobs, and so many schedules, are looked at.
const WALKED: usize = 100;

/// How long things are kept.
#[derive(Debug, Clone)]
pub struct JanitorConfig {
    /// Finished jobs and their attempts. 7 days.
    pub retention: Duration,
    /// The same for single queues.
    pub queues: BTreeMap<QueueName, Duration>,
    /// Dead jobs; until a person purges them, unless this is set.
    pub dead_retention: Option<Duration>,
    /// Nodes that no longer send heartbeats. 10 min.
    pub node_retention: Duration,
    /// How often it looks. 10 s.
    pub every: Duration,
    /// At most so many jobs of a queue in one step. 500.
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

/// Tidies up.
#[derive(Debug)]
pub struct Janitor {
    engine: Arc<Engine>,
    audit: Audit,
    config: JanitorConfig,
    /// How far the jobs of a queue were looked at, where there are more than a step looks at.
    looked_until: Mutex<BTreeMap<(QueueName, ListedState), JobId>>,
    /// How far the walks through what has names have come; one that is over begins anew.
    walked_until: Mutex<BTreeMap<&'static str, String>>,
}

impl Janitor {
    /// A janitor.
    pub fn new(engine: Arc<Engine>, config: JanitorConfig) -> Self {
        Janitor {
            audit: Audit::new(Arc::clone(&engine)),
            engine,
            config,
            looked_until: Mutex::default(),
            walked_until: Mutex::default(),
        }
    }

    fn walked_until(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.walked_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn looked_until(&self) -> MutexGuard<'_, BTreeMap<(QueueName, ListedState), JobId>> {
        self.looked_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one small step in every queue; how many jobs were removed.
    pub async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        let store = self.engine.store();
        let counts = store.counts(now).await?;
        if let Some(recorder) = self.engine.recorder() {
            recorder.counts(&counts, now);
            self.engine.record_slots();
        }
        let longest = self.config.queues.values().copied();
        let longest = longest.fold(self.config.retention, Duration::max);
        store.forget(now.saturating_sub(longest)).await?;
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
        store.remove_expired(EXPIRED_MAX, now).await?;
        Ok(removed)
    }

    /// Removes jobs of a queue that ended too long ago, in one small step: a job that ended before an instant was made before
    /// it. Where others lie in between, the next step goes on from where this one stopped looking.
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
        let place = (queue.clone(), state);
        let stopped = self.looked_until().get(&place).copied();
        let page = Page {
            after: Some(stopped.unwrap_or_else(|| JobId::new(before, u64::MAX))),
            limit: self.config.batch.min(PAGE_MAX),
        };
        let listed = store.list(&filter, page, now).await?;
        match listed.next {
            Some(next) => self.looked_until().insert(place, next),
            None => self.looked_until().remove(&place),
        };
        let jobs = listed.jobs;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        if ids.is_empty() {
            return Ok(0);
        }
        if state == ListedState::Dead {
            // Recorded first: after a crash a record may name jobs that are still there, and the
            // next pass records them again. The other order could remove jobs without a record.
            let detail = removal(&jobs, before);
            self.audit
                .write(&Actor::janitor(), "dead.remove", queue.as_str(), detail)
                .await?;
        }
        let purged = store.change(&ids, &Change::Purge, now).await?;
        let gone = purged
            .iter()
            .filter(|changed| **changed == Changed::Removed);
        let gone = gone.count();
        if state == ListedState::Dead {
            info!(%queue, count = gone, "removed old dead jobs");
            if let Some(recorder) = self.engine.recorder() {
                recorder.dead_removed(queue, u64::try_from(gone).unwrap_or(u64::MAX));
            }
        }
        Ok(gone)
    }

    /// A schedule that is over is readable for as long as its jobs are kept, and so is what it skipped.
    async fn forget_schedules(&self, before: Timestamp) -> Result<(), StoreError> {
        const WALK: &str = "schedules";
        let store = self.engine.store();
        let schedules = store.schedules().await?.readable;
        let after = self.walked_until().remove(WALK).unwrap_or_default();
        let name = |schedule: &Schedule| schedule.definition.name.to_string();
        let mut walked = schedules.iter().filter(|one| name(one) > after);
        for schedule in walked.by_ref().take(WALKED) {
            let topic = Fire::skipped_topic(schedule.id);
            store.trim(&topic, before, RECORDS_MAX).await?;
            self.walked_until().insert(WALK, name(schedule));
        }
        if walked.next().is_none() {
            self.walked_until().remove(WALK);
        }
        for schedule in schedules {
            let over = schedule.next_at.is_none() && !schedule.definition.paused;
            let old =
                schedule.last_at.is_none_or(|last| last < before) && schedule.created_at < before;
            if over && old && store.occurrences(schedule.id, None, 1).await?.is_empty() {
                let version = Expected::Version(schedule.version);
                store.remove_schedule(schedule.id, version).await?;
            }
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

    /// Tidies up until it is told to stop.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            let started = clock.now();
            pulse.busy(started);
            let removed = self.pass(started).await.unwrap_or_else(|error| {
                warn!(%error, "tidying up failed, trying again at the next look");
                0
            });
            pulse.rest();
            let now = clock.now();
            // While there is more to remove it goes on, but never takes more than half of the time.
            let rest = match removed < self.config.batch {
                true => self.config.every,
                false => now.since(started).max(REST_MIN),
            };
            let next = now.saturating_add(rest);
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep_until(next) => {}
            }
        }
    }
}

/// What the audit log says about the dead jobs of one step: at most [`PAGE_MAX`] of them.
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
