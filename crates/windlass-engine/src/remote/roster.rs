//! The directory of remote workers: one document per worker, with the worker's name as its key.
//!
//! A heartbeat writes one document and usually reads none. Lists come from a cache of all workers
//! that is at most 5 s old. The document of a worker without heartbeats expires after 10 minutes.
//!
//! Invariant: the number and size of the documents are bounded, no matter what names callers use.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tracing::debug;
use windlass_core::{Invalid, Timestamp, WorkerName};
use windlass_store::{Document, Expected, Node, Store, StoreError, Written};

use super::RemoteError;
use crate::engine::Engine;
use crate::poison::lock;
use crate::worker_description::WorkerDescription;

/// The collection of the documents.
const WORKERS: &str = "rest-workers";
/// The field for the type of a worker. Workers in Rust programs do not set it.
const TYPE: &str = "type";
const REST: &str = "rest";
/// The field that marks a registered worker. Heartbeats do not change its description.
const REGISTERED: &str = "registered";
/// The maximum number of remote workers.
pub const WORKERS_MAX: usize = 10_000;
/// The maximum size of a worker's description, in bytes of JSON.
const ABOUT_BYTES_MAX: usize = 8 * 1024;
/// The minimum interval between two written heartbeats of a worker.
pub(super) const HEARTBEAT_EVERY: Duration = Duration::from_secs(40);
/// A worker without a heartbeat for this long is removed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The maximum age of the cached list of workers.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// Whether a description is that of a remote worker.
pub(super) fn is_remote(about: &Value) -> bool {
    about.get(TYPE).is_some_and(|found| found == REST)
}

/// The directory of all remote workers.
#[derive(Debug)]
pub struct Roster {
    engine: Arc<Engine>,
    state: Mutex<RosterState>,
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct RosterState {
    /// The last heartbeat of each worker that this process has written.
    heartbeats: BTreeMap<WorkerName, LastHeartbeat>,
    /// When `workers` was read.
    read_at: Option<Timestamp>,
    workers: BTreeMap<String, Node>,
}

/// The last heartbeat of a worker that this process has written.
#[derive(Debug, Clone)]
struct LastHeartbeat {
    at: Timestamp,
    /// The version of the worker's document, once this process has written it.
    version: Option<u64>,
    about: Arc<Value>,
}

impl Roster {
    pub(super) fn new(engine: &Arc<Engine>) -> Self {
        Roster {
            engine: Arc::clone(engine),
            state: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Registers a worker with its description.
    pub(super) async fn register(
        &self,
        name: &WorkerName,
        about: &WorkerDescription,
        now: Timestamp,
    ) -> Result<Node, RemoteError> {
        let mut kept = about.to_json();
        kept.insert(TYPE.to_owned(), REST.into());
        kept.insert(REGISTERED.to_owned(), true.into());
        let about = Value::Object(kept);
        if about.to_string().len() > ABOUT_BYTES_MAX {
            let rule = format!(
                "must be at most {ABOUT_BYTES_MAX} bytes of JSON together with `queues`; leave it out to take every kind"
            );
            return Err(Invalid::new("kinds", rule).into());
        }
        let store = self.engine.store();
        let known = store.document(WORKERS, name.as_str(), now).await?;
        if known.is_none() && self.is_full(now).await? {
            return Err(RemoteError::TooManyWorkers);
        }
        let any = Expected::Any;
        self.write(name, &about, any, now).await?;
        Ok(Node {
            name: name.to_string(),
            about,
            beat_at: now,
        })
    }

    /// Records a heartbeat of a worker. A registered worker keeps its description; for others,
    /// `about` describes what is known.
    ///
    /// If there are too many workers, a new one can work without being listed. Otherwise other
    /// clients could keep it from its jobs by registering many names.
    pub(super) async fn record_heartbeat(
        &self,
        worker: Option<&WorkerName>,
        about: impl FnOnce() -> WorkerDescription,
    ) -> Result<(), StoreError> {
        let now = self.engine.now();
        let Some((worker, last)) =
            worker.and_then(|worker| Some((worker, self.due_heartbeat(worker, now)?)))
        else {
            return Ok(());
        };
        let about = about();
        let heartbeat = Heartbeat::new(&about);
        if let Some(version) = last.version {
            let about = heartbeat.merged_with(&last.about);
            let expected = Expected::Version(version);
            if self.write(worker, about, expected, now).await? {
                return Ok(());
            }
        }
        // The worker is new to this process, or another process has written its document.
        let store = self.engine.store();
        let known = store.document(WORKERS, worker.as_str(), now).await?;
        let (about, expected) = match &known {
            Some(known) => (
                heartbeat.merged_with(&known.value),
                Expected::Version(known.version),
            ),
            None if self.is_full(now).await? => {
                debug!(%worker, "too many workers; this one is not listed");
                return Ok(());
            }
            None => (&heartbeat.json, Expected::Absent),
        };
        // If this fails, a concurrent request has just written a heartbeat too.
        self.write(worker, about, expected, now).await?;
        Ok(())
    }

    /// Returns the last heartbeat of a worker, if a new one must be written.
    fn due_heartbeat(&self, worker: &WorkerName, now: Timestamp) -> Option<LastHeartbeat> {
        let mut state = self.state();
        while state.heartbeats.len() >= WORKERS_MAX && !state.heartbeats.contains_key(worker) {
            state.heartbeats.pop_first(); // its next heartbeat reads the document again
        }
        let last = state
            .heartbeats
            .entry(worker.clone())
            .or_insert(LastHeartbeat {
                at: Timestamp::MIN,
                version: None,
                about: Arc::default(),
            });
        if now.since(last.at) < HEARTBEAT_EVERY {
            return None;
        }
        last.at = now;
        Some(last.clone())
    }

    /// Writes a worker's document. Returns false if `expected` did not match.
    async fn write(
        &self,
        name: &WorkerName,
        about: &Value,
        expected: Expected,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let store = self.engine.store();
        let expires_at = Some(now.saturating_add(FORGOTTEN_AFTER));
        let written = store.put_document(WORKERS, name.as_str(), about, expected, expires_at, now);
        let Written::Version(version) = written.await? else {
            return Ok(false);
        };
        let mut state = self.state();
        let node = Node {
            name: name.to_string(),
            about: about.clone(),
            beat_at: now,
        };
        state.workers.insert(name.to_string(), node);
        if let Some(last) = state.heartbeats.get_mut(name) {
            (last.version, last.about) = (Some(version), Arc::new(about.clone()));
        }
        Ok(true)
    }

    /// Returns one worker.
    pub(super) async fn get(
        &self,
        name: &WorkerName,
        now: Timestamp,
    ) -> Result<Option<Node>, StoreError> {
        let store = self.engine.store();
        let found = store.document(WORKERS, name.as_str(), now).await?;
        Ok(found.map(node))
    }

    /// Removes a worker.
    pub(super) async fn remove(&self, name: &WorkerName) -> Result<(), StoreError> {
        let (store, any) = (self.engine.store(), Expected::Any);
        store.remove_document(WORKERS, name.as_str(), any).await?;
        let mut state = self.state();
        state.workers.remove(name.as_str());
        state.heartbeats.remove(name);
        Ok(())
    }

    /// Returns up to `limit` workers with names after `after`, sorted by name.
    pub(super) async fn page(
        &self,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Node>, StoreError> {
        self.refresh(now).await?;
        let state = self.state();
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let found = state.workers.range::<str, _>(behind).take(limit);
        Ok(found.map(|(_, node)| node.clone()).collect())
    }

    /// Counts the workers that match.
    pub async fn count(
        &self,
        matches: impl Fn(&Node) -> bool,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        self.refresh(now).await?;
        let state = self.state();
        Ok(state.workers.values().filter(|node| matches(node)).count())
    }

    async fn is_full(&self, now: Timestamp) -> Result<bool, StoreError> {
        self.refresh(now).await?;
        Ok(self.state().workers.len() >= WORKERS_MAX)
    }

    /// Reads all workers, unless the cache is recent.
    async fn refresh(&self, now: Timestamp) -> Result<(), StoreError> {
        let is_fresh = || {
            let read_at = self.state().read_at;
            read_at.is_some_and(|at| now.since(at) < FRESH_FOR)
        };
        if is_fresh() {
            return Ok(());
        }
        // One caller reads; those that wait meanwhile use its result.
        let _reading = self.reading.lock().await;
        if is_fresh() {
            return Ok(());
        }
        let read = remote_workers(self.engine.store(), now).await?;
        let workers = read.into_iter().map(|node| (node.name.clone(), node));
        let workers: BTreeMap<String, Node> = workers.collect();
        let mut state = self.state();
        (state.workers, state.read_at) = (workers, Some(now));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, RosterState> {
        lock(&self.state)
    }
}

/// All remote workers of a store, by name.
pub async fn remote_workers(store: &dyn Store, now: Timestamp) -> Result<Vec<Node>, StoreError> {
    let documents = store.documents(WORKERS, now).await?;
    Ok(documents.into_iter().map(node).collect())
}

fn node(document: Document) -> Node {
    Node {
        name: document.name,
        about: document.value,
        beat_at: document.updated_at,
    }
}

/// The description that a heartbeat implies.
struct Heartbeat {
    /// Whether it names queues. A renewal does not.
    names_queues: bool,
    json: Value,
}

impl Heartbeat {
    /// The description of a worker, reduced if it is too large.
    fn new(about: &WorkerDescription) -> Self {
        let json = |about: &WorkerDescription| {
            let mut json = about.to_json();
            json.insert(TYPE.to_owned(), REST.into());
            Value::Object(json)
        };
        let fits = json(about).to_string().len() <= ABOUT_BYTES_MAX;
        Heartbeat {
            names_queues: about.queues.is_some(),
            json: if fits {
                json(about)
            } else {
                json(&WorkerDescription::default())
            },
        }
    }

    /// The description to write: the stored one if the worker registered or if this heartbeat says
    /// less, otherwise this one.
    fn merged_with<'a>(&'a self, known: &'a Value) -> &'a Value {
        if known.get(REGISTERED).is_some() || !self.names_queues {
            known
        } else {
            &self.json
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windlass_memory::MemoryStore;

    use super::*;
    use crate::{Ids, VirtualClock};

    fn queues(names: &[&str]) -> WorkerDescription {
        let names = names.iter().map(|name| name.parse().unwrap());
        WorkerDescription {
            queues: Some(names.collect()),
            ..WorkerDescription::default()
        }
    }

    struct Scene {
        engine: Arc<Engine>,
        roster: Roster,
        clock: VirtualClock,
    }

    impl Scene {
        fn new() -> Self {
            let clock = VirtualClock::new(Timestamp::UNIX_EPOCH);
            let store = Arc::new(MemoryStore::new());
            let engine = Arc::new(Engine::new(store, Arc::new(clock.clone()), Ids::seeded(7)));
            Scene {
                roster: Roster::new(&engine),
                engine,
                clock,
            }
        }

        async fn heartbeat(&self, name: &str) {
            let name: WorkerName = name.parse().unwrap();
            let last = self
                .roster
                .record_heartbeat(Some(&name), || queues(&["claimed"]));
            last.await.unwrap();
        }

        async fn names(&self) -> Vec<String> {
            let page = self.roster.page("", 100, self.engine.now()).await;
            page.unwrap().into_iter().map(|node| node.name).collect()
        }

        async fn documents(&self) -> usize {
            let now = self.engine.now();
            let documents = self.engine.store().documents(WORKERS, now).await;
            documents.unwrap().len()
        }
    }

    #[tokio::test]
    async fn a_worker_that_is_silent_for_minutes_is_forgotten() {
        let scene = Scene::new();
        scene.heartbeat("a").await;
        scene.clock.advance(FORGOTTEN_AFTER / 2);
        scene.heartbeat("b").await;
        assert_eq!(scene.names().await, ["a", "b"]);
        scene.clock.advance(FORGOTTEN_AFTER / 2);
        assert_eq!(scene.names().await, ["b"]);
        assert_eq!(scene.documents().await, 1);
        scene.clock.advance(FORGOTTEN_AFTER);
        scene.heartbeat("a").await;
        assert_eq!(scene.names().await, ["a"]);
    }

    #[tokio::test]
    async fn what_a_worker_registered_with_stays_over_heartbeats_also_of_another_process() {
        let scene = Scene::new();
        let other = Roster::new(&scene.engine);
        let name: WorkerName = "a".parse().unwrap();
        scene.heartbeat("a").await;
        let (about, now) = (queues(&["q"]), scene.engine.now());
        let registered = other.register(&name, &about, now).await.unwrap();
        scene.clock.advance(HEARTBEAT_EVERY);
        scene.heartbeat("a").await;
        let now = scene.engine.now();
        let found = scene.roster.get(&name, now).await.unwrap().unwrap();
        assert_eq!((found.about, found.beat_at), (registered.about, now));
    }

    #[tokio::test]
    async fn the_number_and_the_size_of_workers_are_bounded() {
        let scene = Scene::new();
        let (roster, now) = (&scene.roster, scene.engine.now());
        let about = queues(&["q"]);
        for number in 0..WORKERS_MAX {
            let name: WorkerName = format!("w{number}").parse().unwrap();
            roster.register(&name, &about, now).await.unwrap();
        }
        let next: WorkerName = "next".parse().unwrap();
        let refused = roster.register(&next, &about, now).await;
        assert!(matches!(refused, Err(RemoteError::TooManyWorkers)));
        let known: WorkerName = "w0".parse().unwrap();
        roster.register(&known, &about, now).await.unwrap();
        scene.heartbeat("next").await;
        let documents = scene.documents().await;
        assert_eq!(documents, WORKERS_MAX, "an unlisted worker can still claim");
        let names: Vec<String> = (0..1000).map(|number| format!("queue-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let large = queues(&names);
        let refused = roster.register(&known, &large, now).await;
        assert!(matches!(refused, Err(RemoteError::Invalid(_))));
        let heartbeat = Heartbeat::new(&large).json;
        assert_eq!(
            (&heartbeat["type"], &heartbeat["queues"]),
            (&json!("rest"), &Value::Null)
        );
    }
}
