//! Time as the server sees it: timeouts of remote attempts follow elapsed time, so that a wall clock
//! that jumps ends none; an `Idempotency-Key` is kept for 24 hours.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::Client;
use windlass_core::Timestamp;
use windlass_engine::{Clock, Engine, Ids, SystemClock, Wait};
use windlass_memory::MemoryStore;

use crate::support::Server;

const HOUR: Duration = Duration::from_secs(3600);

/// The clock of this machine, moved as a test says.
#[derive(Debug, Clone)]
struct MovedClock {
    clock: SystemClock,
    moved: Arc<Mutex<Moved>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    wall: Duration,
    elapsed: Duration,
}

impl MovedClock {
    /// Somebody sets the wall clock.
    fn jump(&self, by: Duration) {
        self.moved.lock().unwrap().wall += by;
    }

    /// Time passes.
    fn pass(&self, time: Duration) {
        let mut moved = self.moved.lock().unwrap();
        moved.wall += time;
        moved.elapsed += time;
    }

    fn moved(&self) -> Moved {
        *self.moved.lock().unwrap()
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        self.clock.now().saturating_add(self.moved().wall)
    }

    fn sleep_until(&self, at: Timestamp) -> Wait {
        let left = at.since(self.now());
        self.clock.sleep(left)
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed() + self.moved().elapsed
    }

    fn sleep(&self, time: Duration) -> Wait {
        self.clock.sleep(time)
    }
}

fn client() -> (Client, MovedClock) {
    let clock = MovedClock {
        clock: SystemClock::new(),
        moved: Arc::default(),
    };
    let (store, shared) = (Arc::new(MemoryStore::new()), Arc::new(clock.clone()));
    let engine = Engine::new(store, shared, Ids::unpredictable());
    (windlass::admin::client_of(Arc::new(engine)), clock)
}

/// A job with a timeout of 30 s, claimed.
async fn claimed(server: &Server) -> Value {
    server.job(&json!({"kind": "a", "timeout": "30s"})).await;
    server.claim(&json!({"worker": "w", "lease": "20s"})).await[0].clone()
}

async fn settle(server: &Server, job: &Value) -> Value {
    let outcome = json!({"id": job["id"], "attempt": job["attempt"], "outcome": "succeeded"});
    let body = json!({"worker": "w", "outcomes": [outcome]});
    let answer = server.post("/api/v1/settle", &body).await;
    answer.json["data"][0].clone()
}

async fn renew(server: &Server, job: &Value) -> Value {
    let lease = json!({"id": job["id"], "attempt": job["attempt"]});
    let body = json!({"worker": "w", "leases": [lease], "lease": "20s"});
    let answer = server.post("/api/v1/renew", &body).await;
    answer.json["data"][0].clone()
}

#[tokio::test]
async fn a_wall_clock_that_jumps_turns_no_success_into_a_timeout() {
    let (client, clock) = client();
    let server = Server::on_client(&client).await;
    let job = claimed(&server).await;
    clock.jump(HOUR);
    let renewed = renew(&server, &job).await;
    assert_eq!(renewed["status"], "renewed", "{renewed}");
    let until: Timestamp = renewed["lease_until"].as_str().unwrap().parse().unwrap();
    assert!(
        until.since(client.now()) > Duration::from_secs(10),
        "{until}"
    );
    let settled = settle(&server, &job).await;
    assert_eq!(settled["status"], "done", "{settled}");
    assert_eq!(settled["state"], "succeeded", "{settled}");
}

#[tokio::test]
async fn a_server_that_was_started_after_the_claim_measures_from_its_own_start() {
    let (client, clock) = client();
    let job = claimed(&Server::on_client(&client).await).await;
    clock.pass(Duration::from_secs(10));
    let restarted = Server::on_client(&client).await;
    clock.jump(HOUR);
    assert_eq!(renew(&restarted, &job).await["status"], "renewed");
    assert_eq!(settle(&restarted, &job).await["state"], "succeeded");
    let job = claimed(&restarted).await;
    clock.pass(Duration::from_secs(25));
    let restarted = Server::on_client(&client).await;
    clock.pass(Duration::from_secs(7));
    assert_eq!(settle(&restarted, &job).await["status"], "timed_out");
}

#[tokio::test]
async fn time_that_really_passes_ends_an_attempt() {
    let (client, clock) = client();
    let server = Server::on_client(&client).await;
    let job = claimed(&server).await;
    clock.pass(Duration::from_secs(32));
    assert_eq!(settle(&server, &job).await["status"], "timed_out");
    let job = claimed(&server).await;
    clock.pass(Duration::from_secs(31));
    assert_eq!(renew(&server, &job).await["status"], "timed_out");
}

#[tokio::test]
async fn an_idempotency_key_is_forgotten_after_24_hours() {
    let (client, clock) = client();
    let server = Server::on_client(&client).await;
    let enqueue = async || {
        let headers = [("Idempotency-Key", "k")];
        let body = Some(br#"{"kind": "a"}"#.as_slice());
        let answer = server.send("POST", "/api/v1/jobs", &headers, body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.text_at("/id")
    };
    let first = enqueue().await;
    clock.pass(24 * HOUR - Duration::from_secs(60));
    assert_eq!(enqueue().await, first);
    clock.pass(Duration::from_secs(61));
    assert_ne!(enqueue().await, first);
}
