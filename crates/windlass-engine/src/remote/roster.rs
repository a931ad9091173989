//! Remote workers: one document each, found by its name.
//!
//! A heartbeat writes one document and reads none. Lists come from a picture of all workers that is
//! at most some seconds old. A worker that was silent for minutes is forgotten: its document
//! expires. Invariant: the number and the size of the documents are bounded for any names that
//! callers make up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tracing::debug;
use windlass_core::{Invalid, Timestamp, WorkerName};
use windlass_store::{Document, Expected, Node, StoreError, Written};

use super::RemoteError;
use crate::engine::Engine;
use crate::worker_description::WorkerAbout;

/// The collection of the documents.
const WORKERS: &str = "rest-workers";
/// What kind of worker it is: those of Rust programs do not say.
const TYPE: &str = "type";
const REST: &str = "rest";
/// Whether a worker registered: then its heartbeats leave what it said about itself.
const REGISTERED: &str = "registered";
/// The most workers at once.
pub const WORKERS_MAX: usize = 10_000;
/// The most that a worker says about itself, as JSON.
const ABOUT_BYTES_MAX: usize = 8 * 1024;
/// A heartbeat is written this often.
pub(super) const HEARD_EVERY: Duration = Duration::from_secs(40);
/// A worker that was silent for this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The picture of all workers is never older.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// All remote workers.
#[derive(Debug)]
pub struct Roster {
    engine: Arc<Engine>,
    state: Mutex<State>,
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The workers that this process heard: their documents as it wrote them.
    heard: BTreeMap<WorkerName, Heard>,
    /// When the workers were read.
    read_at: Option<Timestamp>,
    workers: BTreeMap<String, Node>,
}

#[derive(Debug, Clone)]
struct Heard {
    at: Timestamp,
    /// Of its document, once this process wrote it.
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

    /// Registers a worker by what it says about itself.
    pub(super) async fn register(
        &self,
        name: &WorkerName,
        about: &WorkerAbout,
        now: Timestamp,
    ) -> Result<Node, RemoteError> {
        let mut kept = about.to_json();
        kept.insert(TYPE.to_owned(), REST.into());
        kept.insert(REGISTERED.to_owned(), true.into());
        let about = Value::Object(kept);
        if about.to_string().len() > ABOUT_BYTES_MAX {
            let rule = format!(
                "must be at most {ABOUT_BYTES_MAX} bytes of JSON together with `queues`: leave it out to take every kind"
            );
            return Err(Invalid::new("kinds", rule).into());
        }
        let store = self.engine.store();
        let known = store.document(WORKERS, name.as_str(), now).await?;
        if known.is_none() && self.is_full(now).await? {
            return Err(RemoteError::TooManyWorkers);
        }
        let any = Expected::Anything;
        self.write(name, &about, any, now).await?;
        Ok(Node {
            name: name.to_string(),
            about,
            beat_at: now,
        })
    }

    /// Takes a worker's heartbeat. What it registered with stays; else `about` says what is known
    /// of it. Where there are too many workers, a new one works without being listed: others must
    /// not be able to keep it from its jobs.
    pub(super) async fn hear(
        &self,
        worker: Option<&WorkerName>,
        about: impl FnOnce() -> WorkerAbout,
    ) -> Result<(), StoreError> {
        let now = self.engine.now();
        let Some((worker, heard)) =
            worker.and_then(|worker| Some((worker, self.due(worker, now)?)))
        else {
            return Ok(());
        };
        let about = about();
        let said = Said::new(&about);
        if let Some(version) = heard.version {
            let about = said.kept(&heard.about);
            let expected = Expected::Version(version);
            if self.write(worker, about, expected, now).await? {
                return Ok(());
            }
        }
        // It is new here, or another process wrote it.
        let store = self.engine.store();
        let known = store.document(WORKERS, worker.as_str(), now).await?;
        let (about, expected) = match &known {
            Some(known) => (said.kept(&known.value), Expected::Version(known.version)),
            None if self.is_full(now).await? => {
                debug!(%worker, "too many workers; this one is not listed");
                return Ok(());
            }
            None => (&said.json, Expected::Absent),
        };
        // Another request was faster, and wrote a heartbeat too.
        self.write(worker, about, expected, now).await?;
        Ok(())
    }

    /// What this process knows of a worker, if its heartbeat is to be written again.
    fn due(&self, worker: &WorkerName, now: Timestamp) -> Option<Heard> {
        let mut state = self.state();
        while state.heard.len() >= WORKERS_MAX && !state.heard.contains_key(worker) {
            state.heard.pop_first(); // it is read again when it is heard
        }
        let heard = state.heard.entry(worker.clone()).or_insert(Heard {
            at: Timestamp::MIN,
            version: None,
            about: Arc::default(),
        });
        if now.since(heard.at) < HEARD_EVERY {
            return None;
        }
        heard.at = now;
        Some(heard.clone())
    }

    /// Writes a worker's document; whether it was what the writer believed.
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
        if let Some(heard) = state.heard.get_mut(name) {
            (heard.version, heard.about) = (Some(version), Arc::new(about.clone()));
        }
        Ok(true)
    }

    /// One worker.
    pub(super) async fn get(
        &self,
        name: &WorkerName,
        now: Timestamp,
    ) -> Result<Option<Node>, StoreError> {
        let store = self.engine.store();
        let found = store.document(WORKERS, name.as_str(), now).await?;
        Ok(found.map(node))
    }

    /// Forgets a worker.
    pub(super) async fn remove(&self, name: &WorkerName) -> Result<(), StoreError> {
        let (store, any) = (self.engine.store(), Expected::Anything);
        store.remove_document(WORKERS, name.as_str(), any).await?;
        let mut state = self.state();
        state.workers.remove(name.as_str());
        state.heard.remove(name);
        Ok(())
    }

    /// Up to `limit` workers behind a name, by name.
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

    /// How many workers are so.
    pub async fn count(
        &self,
        is_so: impl Fn(&Node) -> bool,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        self.refresh(now).await?;
        let state = self.state();
        Ok(state.workers.values().filter(|node| is_so(node)).count())
    }

    async fn is_full(&self, now: Timestamp) -> Result<bool, StoreError> {
        self.refresh(now).await?;
        Ok(self.state().workers.len() >= WORKERS_MAX)
    }

    /// Reads all workers, unless that was done some seconds ago.
    async fn refresh(&self, now: Timestamp) -> Result<(), StoreError> {
        let is_fresh = || {
            let read_at = self.state().read_at;
            read_at.is_some_and(|at| now.since(at) < FRESH_FOR)
        };
        if is_fresh() {
            return Ok(());
        }
        // One reads, those that come meanwhile take what it read.
        let _reading = self.reading.lock().await;
        if is_fresh() {
            return Ok(());
        }
        let read = self.engine.store().documents(WORKERS, now).await?;
        let workers = read.into_iter().map(|one| (one.name.clone(), node(one)));
        let workers: BTreeMap<String, Node> = workers.collect();
        let mut state = self.state();
        (state.workers, state.read_at) = (workers, Some(now));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn node(document: Document) -> Node {
    Node {
        name: document.name,
        about: document.value,
        beat_at: document.updated_at,
    }
}

/// What a worker says with a heartbeat.
struct Said {
    /// Whether it says what it takes: one that only renews does not.
    takes: bool,
    json: Value,
}

impl Said {
    /// What it says, within bounds.
    fn new(about: &WorkerAbout) -> Self {
        let json = |about: &WorkerAbout| {
            let mut json = about.to_json();
            json.insert(TYPE.to_owned(), REST.into());
            Value::Object(json)
        };
        let fits = json(about).to_string().len() <= ABOUT_BYTES_MAX;
        Said {
            takes: about.queues.is_some(),
            json: match fits {
                true => json(about),
                false => json(&WorkerAbout::default()),
            },
        }
    }

    /// What stays written of a worker: what it registered with, or what it said before if it says
    /// less now.
    fn kept<'a>(&'a self, known: &'a Value) -> &'a Value {
        match known.get(REGISTERED).is_some() || !self.takes {
            true => known,
            false => &self.json,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windlass_memory::MemoryStore;

    use super::*;
    use crate::{Ids, VirtualClock};

    fn queues(names: &[&str]) -> WorkerAbout {
        let names = names.iter().map(|name| name.parse().unwrap());
        WorkerAbout {
            queues: Some(names.collect()),
            ..WorkerAbout::default()
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

        async fn hear(&self, name: &str) {
            let name: WorkerName = name.parse().unwrap();
            let heard = self.roster.hear(Some(&name), || queues(&["claimed"]));
            heard.await.unwrap();
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
        scene.hear("a").await;
        scene.clock.advance(FORGOTTEN_AFTER / 2);
        scene.hear("b").await;
        assert_eq!(scene.names().await, ["a", "b"]);
        scene.clock.advance(FORGOTTEN_AFTER / 2);
        assert_eq!(scene.names().await, ["b"]);
        assert_eq!(scene.documents().await, 1);
        scene.clock.advance(FORGOTTEN_AFTER);
        scene.hear("a").await;
        assert_eq!(scene.names().await, ["a"]);
    }

    #[tokio::test]
    async fn what_a_worker_registered_with_stays_over_heartbeats_also_of_another_process() {
        let scene = Scene::new();
        let other = Roster::new(&scene.engine);
        let name: WorkerName = "a".parse().unwrap();
        scene.hear("a").await;
        let (about, now) = (queues(&["q"]), scene.engine.now());
        let registered = other.register(&name, &about, now).await.unwrap();
        scene.clock.advance(HEARD_EVERY);
        scene.hear("a").await;
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
        scene.hear("next").await;
        let documents = scene.documents().await;
        assert_eq!(documents, WORKERS_MAX, "it claims without being listed");
        let names: Vec<String> = (0..1000).map(|number| format!("queue-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let large = queues(&names);
        let refused = roster.register(&known, &large, now).await;
        assert!(matches!(refused, Err(RemoteError::Invalid(_))));
        let said = Said::new(&large).json;
        assert_eq!(
            (&said["type"], &said["queues"]),
            (&json!("rest"), &Value::Null)
        );
    }
}
