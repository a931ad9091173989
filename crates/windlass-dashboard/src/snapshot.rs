//! The counts that all pages share: read once every 2 s at most, for all tabs of this node.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use windlass_api::{Page, Queue, QueueCounts, Scope, Worker, WorkerPage};

use crate::backend::{Backend, Call, Identity, SignedIn};
use crate::failure::Failure;

/// The shortest time between two reads of the counts.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// How long schedules, workers and actions are kept: they change rarely.
const SLOW_FRESH_FOR: Duration = Duration::from_secs(10);
/// How long the navigation shows that the number of dead jobs grew.
const GREW_FOR: Duration = Duration::from_secs(3600);
/// The most queues, workers, schedules and actions that are read.
const LIST_MAX: usize = 1000;

/// What all pages share. It contains nothing that needs more than the scope `read`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) queues: Vec<Queue>,
    pub(crate) workers: Vec<Worker>,
    /// Configuration differences between servers.
    pub(crate) differences: Vec<String>,
    pub(crate) schedules: u64,
    pub(crate) active_actions: u64,
    /// Whether the number of dead jobs grew in the last hour, as far as this node saw.
    pub(crate) dead_grew: bool,
    /// A number that changes whenever something in the snapshot does.
    pub(crate) version: u64,
}

impl Snapshot {
    /// Adds up one count of all queues.
    pub(crate) fn total(&self, count: impl Fn(&QueueCounts) -> u64) -> u64 {
        self.queues.iter().map(|queue| count(&queue.counts)).sum()
    }

    /// Whether no job was ever enqueued, as far as the store still knows.
    pub(crate) fn is_empty(&self) -> bool {
        let all = |counts: &QueueCounts| {
            counts.scheduled
                + counts.ready
                + counts.running
                + counts.succeeded
                + counts.dead
                + counts.cancelled
        };
        self.total(all) == 0
    }
}

/// Reads and keeps the snapshot.
#[derive(Default)]
pub(crate) struct Snapshots {
    reading: tokio::sync::Mutex<()>,
    last: Mutex<Kept>,
}

#[derive(Default, Clone)]
struct Kept {
    snapshot: Option<(Instant, Arc<Snapshot>)>,
    slow_read_at: Option<Instant>,
    dead: Option<u64>,
    dead_grew_at: Option<Instant>,
    hash: u64,
}

impl Snapshots {
    fn kept(&self) -> Kept {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn fresh(&self) -> Option<Arc<Snapshot>> {
        let (at, snapshot) = self.kept().snapshot?;
        (at.elapsed() < FRESH_FOR).then_some(snapshot)
    }

    /// Forgets the kept counts, after a change by an operator.
    pub(crate) fn forget(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.slow_read_at = None;
        if let Some((at, _)) = &mut last.snapshot {
            *at = at.checked_sub(FRESH_FOR).unwrap_or(*at);
        }
    }

    /// Returns the counts, at most 2 s old. Concurrent callers share one read.
    pub(crate) async fn get(&self, backend: &dyn Backend) -> Result<Arc<Snapshot>, Failure> {
        if let Some(snapshot) = self.fresh() {
            return Ok(snapshot);
        }
        let _reading = self.reading.lock().await;
        if let Some(snapshot) = self.fresh() {
            return Ok(snapshot);
        }
        let mut kept = self.kept();
        let previous = kept
            .snapshot
            .as_ref()
            .map(|(_, snapshot)| Arc::clone(snapshot));
        let mut next = previous.as_deref().cloned().unwrap_or_default();
        let queues: Page<Queue> =
            read(backend, &format!("/api/v1/queues?limit={LIST_MAX}")).await?;
        next.queues = queues.data;
        if kept
            .slow_read_at
            .is_none_or(|at| at.elapsed() >= SLOW_FRESH_FOR)
        {
            read_slow(backend, &mut next).await?;
            kept.slow_read_at = Some(Instant::now());
        }
        let dead = next.total(|counts| counts.dead);
        if kept.dead.is_some_and(|before| dead > before) {
            kept.dead_grew_at = Some(Instant::now());
        }
        kept.dead = Some(dead);
        next.dead_grew = kept.dead_grew_at.is_some_and(|at| at.elapsed() < GREW_FOR);
        let hash = hash_of(&next);
        if hash != kept.hash {
            next.version += 1;
            kept.hash = hash;
        }
        let next = Arc::new(next);
        kept.snapshot = Some((Instant::now(), Arc::clone(&next)));
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        Ok(next)
    }
}

/// Reads what changes rarely.
async fn read_slow(backend: &dyn Backend, next: &mut Snapshot) -> Result<(), Failure> {
    let workers: WorkerPage = read(backend, &format!("/api/v1/workers?limit={LIST_MAX}")).await?;
    next.workers = workers.data;
    next.differences = workers.differences;
    let schedules: Page<Value> =
        read(backend, &format!("/api/v1/schedules?limit={LIST_MAX}")).await?;
    next.schedules = schedules.data.len() as u64;
    let mut active = 0;
    for list in ["replays", "bulk-actions"] {
        let actions: Page<Value> = read(backend, &format!("/api/v1/{list}?limit=100")).await?;
        let ended = |action: &&Value| action.get("ended_at").is_none_or(Value::is_null);
        active += actions.data.iter().filter(ended).count();
    }
    next.active_actions = active as u64;
    Ok(())
}

/// Reads a route as the dashboard itself, which may only read.
pub(crate) async fn read<T: DeserializeOwned>(
    backend: &dyn Backend,
    path: &str,
) -> Result<T, Failure> {
    let identity = Identity {
        id: "dashboard".to_owned(),
        name: "dashboard".to_owned(),
        scopes: vec![Scope::Read],
        signed_in: SignedIn::Locally,
    };
    let call = Call {
        method: Method::GET,
        path: path.to_owned(),
        body: Bytes::new(),
        idempotency_key: None,
    };
    let answer = backend.call(&identity, call).await;
    if !answer.status.is_success() {
        return Err(Failure::of(&answer));
    }
    serde_json::from_slice(&answer.body).map_err(|error| Failure::unreadable(&error))
}

/// A hash of what pages show, without ages, which change all the time.
fn hash_of(snapshot: &Snapshot) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    for queue in &snapshot.queues {
        let counts = serde_json::to_string(&(&queue.name, &queue.counts, &queue.paused));
        counts.unwrap_or_default().hash(&mut hasher);
    }
    for worker in &snapshot.workers {
        (&worker.name, worker.alive).hash(&mut hasher);
    }
    (snapshot.schedules, snapshot.active_actions).hash(&mut hasher);
    hasher.finish()
}
