//! Waiting claims: how often they query the store, in which order they get jobs, and for which
//! keys.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;
use windlass_core::JobId;
use windlass_engine::{Engine, Ids, SystemClock};
use windlass_memory::MemoryStore;
use windlass_store::{Change, Store, StoreError, Wrapper};

use crate::access::{Access, NewKey, Scope, WithoutKeys};
use crate::app::{App, Settings};
use crate::routes::router;

/// A store that counts its calls and can delay the response of a call.
#[derive(Debug)]
struct Counted {
    store: MemoryStore,
    asked: Mutex<BTreeMap<&'static str, usize>>,
    held: Mutex<Option<HeldCall>>,
}

/// A delayed call: it notifies `done` after its work and returns when `answer` is notified.
#[derive(Debug, Clone)]
struct HeldCall {
    verb: &'static str,
    /// How many calls of the verb are not delayed before this one.
    before: usize,
    done: Arc<Notify>,
    answer: Arc<Notify>,
}

impl HeldCall {
    fn is_now(&mut self, verb: &str) -> bool {
        let is_now = self.verb == verb && self.before == 0;
        self.before -= usize::from(self.verb == verb && self.before > 0);
        is_now
    }
}

impl Counted {
    fn asked(&self, verb: &str) -> usize {
        lock(&self.asked).get(verb).copied().unwrap_or_default()
    }

    fn hold(&self, verb: &'static str, before: usize) -> HeldCall {
        let held = HeldCall {
            verb,
            before,
            done: Arc::default(),
            answer: Arc::default(),
        };
        *lock(&self.held) = Some(held.clone());
        held
    }
}

impl Wrapper for Counted {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        *lock(&self.asked).entry(verb).or_default() += 1;
        let answer = step.await;
        let held = lock(&self.held).take_if(|held| held.is_now(verb));
        if let Some(held) = held {
            held.done.notify_one();
            held.answer.notified().await;
        }
        answer
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Server {
    store: Arc<Counted>,
    app: App,
    router: Router,
}

impl Server {
    fn open() -> Self {
        Server::with(Settings::default(), |_| Access::open())
    }

    fn closed(settings: Settings) -> Self {
        Server::with(settings, |engine| {
            Access::by_keys(engine, WithoutKeys::Closed).unthrottled()
        })
    }

    fn with(settings: Settings, access: impl FnOnce(Arc<Engine>) -> Access) -> Self {
        let store = Arc::new(Counted {
            store: MemoryStore::new(),
            asked: Mutex::default(),
            held: Mutex::default(),
        });
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let clock = Arc::new(SystemClock::new());
        let engine = Arc::new(Engine::new(shared, clock, Ids::seeded(7)));
        let access = access(Arc::clone(&engine));
        let app = App::new(windlass::admin::client_of(engine), access).settings(settings);
        Server {
            store,
            router: router(app.clone()),
            app,
        }
    }

    async fn key(&self, scope: Scope) -> (String, String) {
        let keys = self.app.access.keys().expect("made with keys");
        let new = NewKey {
            name: "test".to_owned(),
            scopes: vec![scope],
            expires_at: None,
        };
        let made = keys.create(new, self.app.engine().now()).await;
        let (key, info) = made.expect("a key can be made");
        (info.id, key.reveal())
    }

    async fn revoke(&self, id: &str) {
        let keys = self.app.access.keys().expect("made with keys");
        let revoked = keys.revoke(id, self.app.engine().now()).await;
        revoked.expect("a key can be revoked");
    }

    /// Asks in a task of its own.
    fn ask(&self, path: &str, key: Option<&str>, body: Option<&Value>) -> JoinHandle<Answered> {
        let request = Request::builder().uri(path);
        let request = match key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        };
        let request = match body {
            Some(body) => request
                .method("POST")
                .header("content-type", "application/json")
                .body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        let answering = self.router.clone().oneshot(request.expect("a request"));
        tokio::spawn(async move { Answered::read(answering.await.expect("infallible")).await })
    }

    fn claim(&self, key: Option<&str>, body: &Value) -> JoinHandle<Answered> {
        self.ask("/api/v1/claim", key, Some(body))
    }

    /// Stores a job of a queue.
    async fn job(&self, queue: &str) -> JobId {
        let enqueued = self.app.client.enqueue_json("a", &json!(null));
        enqueued.queue(queue).await.expect("a job is stored").id
    }

    async fn attempt(&self, id: JobId) -> (u32, bool) {
        let job = self.app.client.get(id).await.expect("a store");
        let job = job.expect("the job");
        (job.attempt, job.lease().is_some())
    }

    /// Waits until this number of claims wait in line.
    async fn until_waiting(&self, count: usize) {
        self.until(|| self.app.remote.waiting() == count).await;
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        let until = async {
            while !condition() {
                tokio::task::yield_now().await;
            }
        };
        let patience = Duration::from_secs(30);
        let met = tokio::time::timeout(patience, until).await;
        met.expect("it comes in time");
    }
}

#[derive(Debug)]
struct Answered {
    status: StatusCode,
    json: Value,
}

impl Answered {
    async fn read(response: Response<Body>) -> Self {
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let json = serde_json::from_slice(&bytes.expect("a body")).unwrap_or_default();
        Answered { status, json }
    }

    fn refusal(&self) -> (u16, &str) {
        (
            self.status.as_u16(),
            self.json["code"].as_str().unwrap_or(""),
        )
    }
}

#[tokio::test]
async fn a_claim_whose_key_is_revoked_while_it_waits_takes_nothing() {
    let server = Server::closed(Settings::default());
    server.key(Scope::Admin).await;
    let (id, key) = server.key(Scope::Work).await;
    let waiting = server.claim(Some(&key), &json!({"wait": "60s"}));
    server.until_waiting(1).await;
    server.revoke(&id).await;
    let job = server.job("default").await;
    let refused = waiting.await.unwrap();
    assert_eq!(refused.refusal(), (401, "key_revoked"), "{refused:?}");
    assert_eq!(server.attempt(job).await, (0, false), "it was not claimed");
}

#[tokio::test]
async fn a_claim_whose_key_is_revoked_while_the_store_claims_is_given_back() {
    // A claim with a name first asks what it got before.
    for (claim, before) in [(json!({"wait": "60s"}), 0), (json!({"claim_id": "c"}), 1)] {
        let server = Server::closed(Settings::default());
        server.key(Scope::Admin).await;
        let (id, key) = server.key(Scope::Work).await;
        let job = server.job("default").await;
        let held = server.store.hold("claim", before);
        let asking = server.claim(Some(&key), &claim);
        held.done.notified().await;
        assert_eq!(server.attempt(job).await, (1, true));
        server.revoke(&id).await;
        held.answer.notify_one();
        let refused = asking.await.unwrap();
        assert_eq!(refused.refusal(), (401, "key_revoked"), "{refused:?}");
        assert_eq!(server.attempt(job).await, (1, false), "it waits again");
    }
}

#[tokio::test]
async fn a_key_that_is_revoked_while_it_waits_for_a_job_learns_nothing_of_it() {
    let server = Server::closed(Settings::default());
    server.key(Scope::Admin).await;
    let (id, key) = server.key(Scope::Read).await;
    let job = server.job("default").await;
    let path = format!("/api/v1/jobs/{job}/wait?timeout=30s");
    let waiting = server.ask(&path, Some(&key), None);
    server.until(|| server.store.asked("get") > 0).await;
    server.revoke(&id).await;
    server
        .app
        .engine()
        .change(&[job], &Change::Cancel)
        .await
        .unwrap();
    let refused = waiting.await.unwrap();
    assert_eq!(refused.refusal(), (401, "key_revoked"), "{refused:?}");
}

#[tokio::test]
async fn one_key_cannot_take_all_long_polls() {
    let settings = Settings {
        waiting_max: 4,
        ..Settings::default()
    };
    let server = Server::closed(settings);
    let (_, admin) = server.key(Scope::Admin).await;
    let (_, greedy) = server.key(Scope::Work).await;
    let (_, modest) = server.key(Scope::Work).await;
    let claim = json!({"wait": "60s"});
    let first = server.claim(Some(&greedy), &claim);
    let _second = server.claim(Some(&greedy), &claim);
    server.until_waiting(2).await;
    let third = loop {
        // Until both have their permits, a third may get one for a moment.
        let third = server
            .claim(Some(&greedy), &json!({"wait": "10ms"}))
            .await
            .unwrap();
        if third.status != StatusCode::OK {
            break third;
        }
    };
    assert_eq!(third.refusal(), (429, "too_many_requests"), "{third:?}");
    let others = server.claim(Some(&modest), &json!({"wait": "10ms"})).await;
    assert_eq!(others.unwrap().status, StatusCode::OK);
    let path = format!("/api/v1/jobs/{}/wait?timeout=10ms", server.job("x").await);
    let wait = server.ask(&path, Some(&admin), None).await.unwrap();
    assert_eq!(wait.status, StatusCode::ACCEPTED);
    first.abort();
    server.until_waiting(1).await;
    let again = server.claim(Some(&greedy), &json!({"wait": "10ms"})).await;
    assert_eq!(again.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn waits_for_many_jobs_share_one_look() {
    const WAITING: usize = 200;
    let server = Server::open();
    let mut jobs = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        let job = server.job("q").await;
        let path = format!("/api/v1/jobs/{job}/wait?timeout=60s");
        jobs.push(job);
        waiting.push(server.ask(&path, None, None));
    }
    server.until(|| server.store.asked("get") >= WAITING).await;
    // One ends elsewhere, which no event of this process announces; the others are read with it,
    // many at once.
    let now = server.app.engine().now();
    server
        .store
        .change(&jobs[..1], &Change::Cancel, None, now)
        .await
        .unwrap();
    let ended = waiting.remove(0).await.unwrap();
    assert_eq!(
        (ended.status, &ended.json["state"]),
        (StatusCode::OK, &json!("cancelled"))
    );
    let asked = server.store.asked("get");
    assert!(asked < 2 * WAITING, "{asked} reads");
    // One ends here.
    server
        .app
        .engine()
        .change(&jobs[1..2], &Change::Cancel)
        .await
        .unwrap();
    let ended = waiting.remove(0).await.unwrap();
    assert_eq!(ended.json["id"], jobs[1].to_string(), "{ended:?}");
    waiting.iter().for_each(JoinHandle::abort);
}
