//! Workers over REST: one document each, found by its name.
//!
//! A heartbeat writes one document and reads none. Lists come from a picture of all workers that is at most some seconds old.
//! A worker that was silent for minutes is forgotten: its document expires.
//! Invariant: the number and the size of the documents are bounded, whatever names callers make up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tracing::debug;
use windlass_core::{Invalid, Timestamp, WorkerName};
use windlass_store::{Document, Expected, Node, StoreError, Written};

use crate::app::App;
use crate::problem::Problem;

/// The collection of the documents.
const WORKERS: &str = "rest-workers";
/// The most workers at once.
const WORKERS_MAX: usize = 10_000;
/// The most that a worker says about itself, as JSON.
const ABOUT_BYTES_MAX: usize = 8 * 1024;
/// A heartbeat is written this often.
pub(super) const HEARD_EVERY: Duration = Duration::from_secs(40);
/// A worker that was silent for this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The picture of all workers is never older.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// All workers over REST.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    state: Mutex<State>,
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The workers that this server heard: their documents as it wrote them.
    heard: BTreeMap<WorkerName, Heard>,
    /// When the workers were read.
    read_at: Option<Timestamp>,
    workers: BTreeMap<String, Node>,
}

#[derive(Debug, Clone)]
struct Heard {
    at: Timestamp,
    /// Of its document, once this server wrote it.
    version: Option<u64>,
    about: Arc<Value>,
}

impl Roster {
    /// Registers a worker by what it says about itself.
    pub(super) async fn register(
        &self,
        app: &App,
        name: &WorkerName,
        about: &Value,
        now: Timestamp,
    ) -> Result<(), Problem> {
        if about.to_string().len() > ABOUT_BYTES_MAX {
            let rule = format!(
                "must be at most {ABOUT_BYTES_MAX} bytes of JSON together with `queues`: leave it out to take every kind"
            );
            return Err(Invalid::new("kinds", rule).into());
        }
        let known = app.store().document(WORKERS, name.as_str(), now).await?;
        if known.is_none() && self.is_full(app, now).await? {
            let detail = format!(
                "there are {WORKERS_MAX} workers, the most there may be: remove some, or wait until silent ones are forgotten after 10 min"
            );
            let status = StatusCode::TOO_MANY_REQUESTS;
            let problem = Problem::new(status, "too_many_requests", detail);
            return Err(problem.retry_after(Duration::from_secs(60)));
        }
        self.write(app, name, about, Expected::Anything, now)
            .await?;
        Ok(())
    }

    /// Takes a worker's heartbeat. What it registered with stays; else `about` says what is known of it. Where there are too
    /// many workers, a new one works without being listed: others must not be able to keep it from its jobs.
    pub(super) async fn hear(
        &self,
        app: &App,
        worker: Option<&WorkerName>,
        about: impl FnOnce() -> Value,
    ) -> Result<(), Problem> {
        let now = app.engine().now();
        let Some((worker, heard)) =
            worker.and_then(|worker| Some((worker, self.due(worker, now)?)))
        else {
            return Ok(());
        };
        let said = fit(about());
        if let Some(version) = heard.version {
            let about = kept(&heard.about, &said);
            let expected = Expected::Version(version);
            if self.write(app, worker, about, expected, now).await? {
                return Ok(());
            }
        }
        // It is new here, or another server wrote it.
        let known = app.store().document(WORKERS, worker.as_str(), now).await?;
        let (about, expected) = match &known {
            Some(known) => (kept(&known.value, &said), Expected::Version(known.version)),
            None if self.is_full(app, now).await? => {
                debug!(%worker, "too many workers; this one is not listed");
                return Ok(());
            }
            None => (&said, Expected::Absent),
        };
        // Whoever was faster wrote a heartbeat too.
        self.write(app, worker, about, expected, now).await?;
        Ok(())
    }

    /// What this server knows of a worker, if its heartbeat is to be written again.
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
        app: &App,
        name: &WorkerName,
        about: &Value,
        expected: Expected,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let store = app.store();
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
        app: &App,
        name: &WorkerName,
        now: Timestamp,
    ) -> Result<Option<Node>, StoreError> {
        let found = app.store().document(WORKERS, name.as_str(), now).await?;
        Ok(found.map(node))
    }

    /// Forgets a worker.
    pub(super) async fn remove(&self, app: &App, name: &WorkerName) -> Result<(), StoreError> {
        let any = Expected::Anything;
        app.store()
            .remove_document(WORKERS, name.as_str(), any)
            .await?;
        let mut state = self.state();
        state.workers.remove(name.as_str());
        state.heard.remove(name);
        Ok(())
    }

    /// Up to `limit` workers behind a name, by name.
    pub(super) async fn page(
        &self,
        app: &App,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Node>, StoreError> {
        self.refresh(app, now).await?;
        let state = self.state();
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let found = state.workers.range::<str, _>(behind).take(limit);
        Ok(found.map(|(_, node)| node.clone()).collect())
    }

    /// How many workers are so.
    pub(crate) async fn count(
        &self,
        app: &App,
        is_so: impl Fn(&Node) -> bool,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        self.refresh(app, now).await?;
        let state = self.state();
        Ok(state.workers.values().filter(|node| is_so(node)).count())
    }

    async fn is_full(&self, app: &App, now: Timestamp) -> Result<bool, StoreError> {
        self.refresh(app, now).await?;
        Ok(self.state().workers.len() >= WORKERS_MAX)
    }

    /// Reads all workers, unless that was done some seconds ago.
    async fn refresh(&self, app: &App, now: Timestamp) -> Result<(), StoreError> {
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
        let read = app.store().documents(WORKERS, now).await?;
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

/// What stays written of a worker: what it registered with, or what it said before if it says less now.
fn kept<'a>(known: &'a Value, said: &'a Value) -> &'a Value {
    // One that only renews says nothing about what it takes.
    match known.get("registered").is_some() || said.get("queues").is_none() {
        true => known,
        false => said,
    }
}

/// What is known of a worker that did not register, within bounds.
fn fit(said: Value) -> Value {
    match said.to_string().len() > ABOUT_BYTES_MAX {
        true => json!({"type": "rest"}),
        false => said,
    }
}

#[cfg(test)]
mod tests {
    use windlass::Client;
    use windlass_engine::{Engine, Ids, VirtualClock};
    use windlass_memory::MemoryStore;

    use super::*;
    use crate::access::Access;

    struct Server {
        app: App,
        clock: Arc<VirtualClock>,
    }

    impl Server {
        fn new() -> Self {
            let clock = Arc::new(VirtualClock::new(Timestamp::UNIX_EPOCH));
            let store = Arc::new(MemoryStore::new());
            let engine = Engine::new(store, Arc::clone(&clock) as _, Ids::seeded(7));
            let app = App::new(Client::new(Arc::new(engine)), Access::open());
            Server { app, clock }
        }

        async fn hear(&self, name: &str, about: Value) {
            let name: WorkerName = name.parse().unwrap();
            let roster = &self.app.roster;
            let heard = roster.hear(&self.app, Some(&name), || about).await;
            heard.unwrap();
        }

        async fn names(&self) -> Vec<String> {
            let now = self.app.engine().now();
            let page = self.app.roster.page(&self.app, "", 100, now).await;
            page.unwrap().into_iter().map(|node| node.name).collect()
        }

        async fn documents(&self) -> usize {
            let now = self.app.engine().now();
            let documents = self.app.store().documents(WORKERS, now).await;
            documents.unwrap().len()
        }
    }

    #[tokio::test]
    async fn a_worker_that_is_silent_for_minutes_is_forgotten() {
        let server = Server::new();
        server.hear("a", json!({"type": "rest"})).await;
        server.clock.advance(FORGOTTEN_AFTER / 2);
        server.hear("b", json!({"type": "rest"})).await;
        assert_eq!(server.names().await, ["a", "b"]);
        server.clock.advance(FORGOTTEN_AFTER / 2);
        assert_eq!(server.names().await, ["b"]);
        assert_eq!(server.documents().await, 1);
        server.clock.advance(FORGOTTEN_AFTER);
        server.hear("a", json!({"type": "rest"})).await;
        assert_eq!(server.names().await, ["a"]);
    }

    #[tokio::test]
    async fn what_a_worker_registered_with_stays_over_heartbeats_also_of_another_server() {
        let server = Server::new();
        let other = App::new(server.app.client.clone(), Access::open());
        let name: WorkerName = "a".parse().unwrap();
        server.hear("a", json!({"queues": ["claimed"]})).await;
        let about = json!({"registered": true, "queues": ["q"]});
        let now = server.app.engine().now();
        other
            .roster
            .register(&other, &name, &about, now)
            .await
            .unwrap();
        server.clock.advance(HEARD_EVERY);
        server.hear("a", json!({"queues": ["claimed"]})).await;
        let now = server.app.engine().now();
        let found = server.app.roster.get(&server.app, &name, now).await;
        let found = found.unwrap().unwrap();
        assert_eq!((found.about, found.beat_at), (about, now));
    }

    #[tokio::test]
    async fn the_number_and_the_size_of_workers_are_bounded() {
        let server = Server::new();
        let now = server.app.engine().now();
        for number in 0..WORKERS_MAX {
            let name: WorkerName = format!("w{number}").parse().unwrap();
            let roster = &server.app.roster;
            roster
                .register(&server.app, &name, &json!({}), now)
                .await
                .unwrap();
        }
        let next: WorkerName = "next".parse().unwrap();
        let roster = &server.app.roster;
        let refused = roster.register(&server.app, &next, &json!({}), now).await;
        assert_eq!(refused.unwrap_err().status(), 429);
        let known: WorkerName = "w0".parse().unwrap();
        roster
            .register(&server.app, &known, &json!({}), now)
            .await
            .unwrap();
        server.hear("next", json!({"queues": ["q"]})).await;
        assert_eq!(
            server.documents().await,
            WORKERS_MAX,
            "it claims without being listed"
        );
        let large = json!({"kinds": "x".repeat(ABOUT_BYTES_MAX)});
        let refused = roster.register(&server.app, &known, &large, now).await;
        assert_eq!(refused.unwrap_err().status(), 422);
        assert_eq!(fit(large), json!({"type": "rest"}));
    }
}
