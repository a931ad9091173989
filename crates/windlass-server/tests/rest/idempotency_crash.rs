//! `Idempotency-Key` over a crash: a process ends at any step of a request, and the request is sent again to the next one.

use std::future::Future;
use std::sync::{Arc, Mutex};

use serde_json::json;
use windlass_memory::MemoryStore;
use windlass_store::{Expected, Store, StoreError, Wrapper};

use crate::idempotency::{idempotent_routes, made_by, prepare, send_to, things};
use crate::support::Server;

/// Whether the step that a process dies in was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    Before,
    After,
}

/// The store as a process sees it that dies at a step: nothing it does from then on arrives.
#[derive(Debug)]
struct Dying {
    store: Arc<dyn Store>,
    dies: Dies,
    /// How many steps are left, and which were taken.
    steps: Mutex<(usize, Vec<&'static str>)>,
}

impl Dying {
    fn new(store: &Arc<dyn Store>, dies: Dies, steps: usize) -> Arc<Dying> {
        Arc::new(Dying {
            store: Arc::clone(store),
            dies,
            steps: Mutex::new((steps, Vec::new())),
        })
    }

    fn is_dead(&self) -> bool {
        self.steps.lock().unwrap().0 == 0
    }

    fn taken(&self) -> Vec<&'static str> {
        self.steps.lock().unwrap().1.clone()
    }
}

impl Wrapper for Dying {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let left = {
            let mut steps = self.steps.lock().unwrap();
            steps.1.push(verb);
            let left = steps.0;
            steps.0 = left.saturating_sub(1);
            left
        };
        match (left, self.dies) {
            (0, _) | (1, Dies::Before) => Err(StoreError::Unavailable("dead".into())),
            (1, Dies::After) => {
                step.await?;
                Err(StoreError::Indeterminate("died after it".into()))
            }
            _ => step.await,
        }
    }
}

#[tokio::test]
async fn after_a_crash_at_any_step_a_retry_creates_the_jobs_once() {
    for route in idempotent_routes() {
        let mut crashes = 0;
        for (steps, dies) in (1..30).flat_map(|n| [(n, Dies::Before), (n, Dies::After)]) {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let next = Server::on(Arc::clone(&store)).await;
            prepare(&next).await;
            let before = things(&next).await;
            let dying = Dying::new(&store, dies, steps);
            let first = Server::on(Arc::clone(&dying) as _).await;
            let told = send_to(&first, &route, "k").await;
            crashes += usize::from(dying.is_dead());
            let at = format!(
                "{route:?} died {dies:?} step {steps} of {:?}",
                dying.taken()
            );
            let resent = send_to(&next, &route, "k").await;
            assert!(resent.status < 300, "{at}: {resent:?}");
            if told.status < 300 {
                assert_eq!(told.json, resent.json, "{at}");
            }
            let again = send_to(&next, &route, "k").await;
            assert_eq!(again.json, resent.json, "{at}");
            assert_eq!(things(&next).await - before, made_by(&route), "{at}");
        }
        assert!(crashes > 4, "{route:?} takes several steps");
    }
}

#[tokio::test]
async fn a_request_with_a_key_reads_no_other_note() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let seen = Dying::new(&store, Dies::Before, usize::MAX);
    let server = Server::on(Arc::clone(&seen) as _).await;
    prepare(&server).await;
    for route in idempotent_routes() {
        let taken = seen.taken().len();
        assert!(send_to(&server, &route, "k").await.status < 300);
        assert!(send_to(&server, &route, "k").await.status < 300);
        // The few actions that have not ended are read to limit their number.
        let is_action = route.path.ends_with("replays") || route.path.ends_with("bulk-actions");
        for verb in &seen.taken()[taken..] {
            let walks = ["documents", "document_names", "remove_expired", "nodes"];
            let is_walk = walks.contains(verb) && !(is_action && *verb == "documents");
            assert!(!is_walk, "{route:?}: {verb}");
        }
    }
}

/// A store whose schedules are changed by others before every firing.
#[derive(Debug)]
struct Contended {
    store: Arc<dyn Store>,
}

impl Wrapper for Contended {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if verb == "fire" {
            for schedule in self.store.schedules().await?.readable {
                let any = Expected::Any;
                self.store.put_schedule(&schedule, any).await?;
            }
        }
        step.await
    }
}

#[tokio::test]
async fn contention_is_reported_as_such_and_keeps_the_key() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let quiet = Server::on(Arc::clone(&store)).await;
    prepare(&quiet).await;
    let other = json!({"name": "t", "every": "1h", "job": {"kind": "a"}});
    quiet.post("/api/v1/schedules", &other).await;
    let busy = Server::on(Arc::new(Contended { store })).await;
    let key = [("Idempotency-Key", "k")];
    let ask = async |server: &Server, path: &str| server.send("POST", path, &key, None).await;
    let refused = ask(&busy, "/api/v1/schedules/s/run-now").await;
    assert_eq!(
        (refused.status, refused.code()),
        (409, "schedule_busy".into())
    );
    assert!(refused.header("retry-after").is_some());
    let taken = ask(&quiet, "/api/v1/schedules/t/run-now").await;
    assert_eq!(taken.code(), "idempotency_key_reused");
    let done = ask(&quiet, "/api/v1/schedules/s/run-now").await;
    assert_eq!(done.status, 201, "{done:?}");
}

#[tokio::test]
async fn a_refusal_after_a_crash_keeps_the_key_of_a_request_that_made_something() {
    let mut crashes = 0;
    for steps in 1..30 {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let next = Server::on(Arc::clone(&store)).await;
        prepare(&next).await;
        let other = json!({"name": "other", "every": "1h", "job": {"kind": "a"}});
        next.post("/api/v1/schedules", &other).await;
        let before = things(&next).await;
        let first = Server::on(Dying::new(&store, Dies::After, steps) as _).await;
        let send = async |server: &Server, path: &str| {
            let headers = [("Idempotency-Key", "k")];
            server.send("POST", path, &headers, Some(b"{}")).await
        };
        let told = send(&first, "/api/v1/schedules/s/run-now").await;
        if told.status < 300 || things(&next).await == before {
            continue;
        }
        next.delete("/api/v1/schedules/s").await;
        let resent = send(&next, "/api/v1/schedules/s/run-now").await;
        if resent.header("idempotent-replayed").is_some() {
            continue; // it died after the answer was kept
        }
        crashes += 1;
        assert_eq!(resent.status, 404, "step {steps}: {resent:?}");
        let other = send(&next, "/api/v1/schedules/other/run-now").await;
        assert_eq!(
            other.code(),
            "idempotency_key_reused",
            "step {steps}: {other:?}"
        );
        assert_eq!(
            things(&next).await,
            before,
            "one job more, one schedule less"
        );
    }
    assert!(
        crashes > 0,
        "it dies between the change and the kept answer"
    );
}
