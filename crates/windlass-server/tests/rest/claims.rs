//! Workers: which jobs a claim gets, and when.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use windlass_memory::MemoryStore;
use windlass_server::Settings;
use windlass_store::{Store, StoreError, Wrapper};

use crate::support::Server;

#[tokio::test]
async fn a_claim_leases_jobs_with_their_payloads() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "payload": {"n": 1}})).await;
    let jobs = server.claim(&json!({"worker": "w1", "lease": "1m"})).await;
    assert_eq!(jobs.len(), 1);
    let job = &jobs[0];
    assert_eq!(
        (&job["state"], &job["attempt"]),
        (&json!("running"), &json!(1))
    );
    assert_eq!(
        (&job["payload"], &job["worker"]),
        (&json!({"n": 1}), &json!("w1"))
    );
    assert!(job["lease_until"].is_string());
    assert!(server.claim(&json!({})).await.is_empty());
    for (body, pointer) in [
        (json!({"limit": 1_000_000}), "/limit"),
        (json!({"lease": "2h"}), "/lease"),
        (json!({"lease_ms": 0}), "/lease"),
        (json!({"wait": "10m"}), "/wait"),
        (json!({"queues": ["a", 5]}), "/queues/1"),
        (json!({"colour": 1}), "/colour"),
    ] {
        assert_eq!(server.post("/api/v1/claim", &body).await.pointer(), pointer);
    }
}

#[tokio::test]
async fn a_claim_takes_only_the_queues_kinds_and_ids_it_names() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "queue": "x"})).await;
    let wanted = server.job(&json!({"kind": "b", "queue": "y"})).await;
    server.job(&json!({"kind": "b", "queue": "y"})).await;
    assert!(
        server
            .claim(&json!({"queues": ["z"], "limit": 9}))
            .await
            .is_empty()
    );
    assert!(
        server
            .claim(&json!({"queues": ["x"], "kinds": ["b"], "limit": 9}))
            .await
            .is_empty()
    );
    let by_id = server
        .claim(&json!({"queues": ["x", "y"], "ids": [wanted], "limit": 9}))
        .await;
    assert_eq!(by_id.len(), 1);
    assert_eq!(by_id[0]["id"], wanted.as_str());
    assert_eq!(
        server
            .claim(&json!({"queues": ["x", "y"], "limit": 9}))
            .await
            .len(),
        2
    );
}

#[tokio::test]
async fn an_http_job_goes_only_to_a_worker_that_names_its_kind() {
    let server = Server::open().await;
    let request = json!({"http": {"url": "https://example.com/secret"}, "priority": 9});
    let http = server.job(&request).await;
    let plain = server.job(&json!({"kind": "a"})).await;
    let jobs = server.claim(&json!({"limit": 9})).await;
    assert_eq!((jobs.len(), &jobs[0]["id"]), (1, &json!(plain)));
    let by_id = json!({"limit": 9, "ids": [http]});
    assert!(server.claim(&by_id).await.is_empty());
    let jobs = server.claim(&json!({"limit": 9, "kinds": ["http"]})).await;
    assert_eq!((jobs.len(), &jobs[0]["id"]), (1, &json!(http)));
}

#[tokio::test]
async fn queues_are_taken_by_weight_or_in_order() {
    let server = Server::open().await;
    for queue in ["a", "b"] {
        let jobs = vec![json!({"kind": "k", "queue": queue}); 30];
        server
            .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}))
            .await;
    }
    let mut from_a = 0;
    let queues = json!([{"name": "a", "weight": 3}, {"name": "b", "weight": 1}]);
    for _ in 0..8 {
        let jobs = server.claim(&json!({"queues": queues, "limit": 1})).await;
        from_a += i32::from(jobs[0]["queue"] == "a");
    }
    assert_eq!(from_a, 6);
    let strict = server
        .claim(&json!({"queues": ["b", "a"], "order": "strict", "limit": 40}))
        .await;
    let from_b = strict.iter().filter(|job| job["queue"] == "b").count();
    assert_eq!(
        (strict.len(), from_b),
        (40, 28),
        "all that is left of b, then a"
    );
}

#[tokio::test]
async fn the_same_claim_id_gets_the_same_jobs_for_the_same_worker_only() {
    let server = Server::open().await;
    for queue in ["a", "b", "a", "b", "a"] {
        server.job(&json!({"kind": "k", "queue": queue})).await;
    }
    let ids = |jobs: &[Value]| {
        let mut ids: Vec<String> = jobs.iter().map(|job| job["id"].to_string()).collect();
        ids.sort();
        ids
    };
    let one = json!({"queue": "a", "limit": 1, "claim_id": "c1", "worker": "w"});
    let first = server.claim(&one).await;
    assert_eq!(ids(&server.claim(&one).await), ids(&first));
    let many = json!({"queues": ["a", "b"], "limit": 2, "claim_id": "c2", "worker": "w"});
    let second = server.claim(&many).await;
    assert_eq!(second.len(), 2);
    assert_eq!(ids(&server.claim(&many).await), ids(&second));
    let other = json!({"queues": ["a", "b"], "limit": 2, "claim_id": "c2", "worker": "w2"});
    let theirs = server.claim(&other).await;
    assert!(theirs.iter().all(|job| !second.contains(job)));
    assert_eq!(
        theirs.len(),
        2,
        "another worker's claim of that name is another claim"
    );
}

#[tokio::test]
async fn a_claim_id_that_comes_again_with_another_queue_is_refused() {
    let server = Server::open().await;
    for queue in ["a", "b"] {
        server.job(&json!({"kind": "k", "queue": queue})).await;
    }
    let claim = |queue: &str| json!({"queue": queue, "claim_id": "c1", "worker": "w"});
    assert_eq!(server.claim(&claim("a")).await.len(), 1);
    let refused = server.post("/api/v1/claim", &claim("b")).await;
    assert_eq!(
        (refused.status, refused.code()),
        (409, "claim_id_reused".into())
    );
    assert_eq!(
        server.claim(&claim("a")).await.len(),
        1,
        "the first claim is as it was"
    );
}

#[tokio::test]
async fn a_client_that_asks_again_by_its_claim_id_keeps_the_jobs_it_gets() {
    let server = Server::open().await;
    for round in 0..50 {
        let queue = format!("q{round}");
        let id = server
            .job(&json!({"kind": "a", "queue": queue, "delivery": "at_most_once"}))
            .await;
        let body = json!({"queue": queue, "worker": "w", "claim_id": format!("c{round}")});
        server.post_and_reset("/api/v1/claim", &body).await;
        assert_eq!(server.claim(&body).await.len(), 1, "round {round}");
        let another = json!({"queue": queue, "worker": "another"});
        assert!(server.claim(&another).await.is_empty(), "round {round}");
        let body =
            json!({"worker": "w", "outcomes": [{"id": id, "attempt": 1, "outcome": "succeeded"}]});
        let settled = server.post("/api/v1/settle", &body).await;
        assert_eq!(settled.text_at("/data/0/status"), "done", "round {round}");
    }
}

#[tokio::test]
async fn a_claim_that_waits_gets_the_job_that_comes() {
    let server = Server::open().await;
    let body = json!({"wait": "30s"});
    let job = json!({"kind": "a"});
    let (claimed, id) = tokio::join!(server.claim(&body), server.job(&job));
    assert_eq!(claimed[0]["id"], id.as_str());
    let body = json!({"wait": "30s", "queue": "later"});
    let job = json!({"kind": "a", "queue": "later", "delay_ms": 50});
    let (claimed, id) = tokio::join!(server.claim(&body), server.job(&job));
    assert_eq!(claimed[0]["id"], id.as_str());
    assert!(server.claim(&json!({"wait_ms": 1})).await.is_empty());
}

#[tokio::test]
async fn as_many_requests_wait_as_may_and_no_more() {
    let settings = Settings {
        waiting_max: 1,
        ..Settings::default()
    };
    let server = Server::with_settings(settings).await;
    let long = json!({"wait": "60s", "queue": "other"});
    let short = json!({"wait": "200ms"}); // longer than a claim takes, so that it does wait
    let others = async {
        for _ in 0..1000 {
            let busy = server.post("/api/v1/claim", &short).await;
            if busy.status == 503 {
                assert_eq!(busy.code(), "busy");
                assert_eq!(busy.header("retry-after"), Some("1"));
                let none = server.claim(&json!({})).await;
                assert!(none.is_empty(), "one that does not wait is answered");
                return;
            }
        }
        panic!("the first one never waits");
    };
    let first = async {
        loop {
            let first = server.post("/api/v1/claim", &long).await;
            assert_eq!(first.status, 503, "the place was the other's for a moment");
        }
    };
    tokio::select! {
        () = first => {}
        () = others => {}
    }
    let mut freed = 503;
    for _ in 0..1000 {
        freed = server.post("/api/v1/claim", &short).await.status;
        if freed == 200 {
            break;
        }
    }
    assert_eq!(freed, 200, "a place is free again");
}

#[tokio::test]
async fn a_signal_reaches_a_claim_that_waits() {
    let server = Server::open().await;
    let body = json!({"worker": "w", "wait": "60s"});
    let signals = async {
        server.until_heard("w").await;
        server.act("/api/v1/workers/w/pause-claims").await;
        server.job(&json!({"kind": "a"})).await;
        server.act("/api/v1/workers/w/stop").await;
    };
    let (claimed, ()) = tokio::join!(server.post("/api/v1/claim", &body), signals);
    assert_eq!(
        (&claimed.json["data"], &claimed.json["signal"]),
        (&json!([]), &json!("stop")),
        "the job waits for a worker that is not stopped"
    );
}

#[tokio::test]
async fn a_worker_with_paused_claims_waits_until_it_is_resumed() {
    let server = Server::open().await;
    let body = json!({"worker": "w", "wait": "60s"});
    server.claim(&json!({"worker": "w", "queue": "none"})).await;
    server.act("/api/v1/workers/w/pause-claims").await;
    let resumed = async {
        server.job(&json!({"kind": "a"})).await;
        server.act("/api/v1/workers/w/resume").await;
    };
    let (claimed, ()) = tokio::join!(server.post("/api/v1/claim", &body), resumed);
    assert_eq!(claimed.json["data"].as_array().unwrap().len(), 1);
    assert_eq!(claimed.json["signal"], Value::Null);
}

/// A store that fails at every second claim.
#[derive(Debug)]
struct Faltering {
    store: MemoryStore,
    claims: AtomicUsize,
}

impl Wrapper for Faltering {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        if verb == "claim" && self.claims.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return Err(StoreError::Unavailable("it falters".into()));
        }
        step.await
    }
}

#[tokio::test]
async fn a_claim_that_fails_half_way_returns_the_jobs_it_got() {
    let store = Faltering {
        store: MemoryStore::new(),
        claims: AtomicUsize::new(0),
    };
    let server = Server::on(Arc::new(store)).await;
    for queue in ["a", "b"] {
        server.job(&json!({"kind": "k", "queue": queue})).await;
    }
    let body = json!({"queues": ["a", "b"], "order": "strict", "limit": 2});
    let jobs = server.claim(&body).await;
    assert_eq!((jobs.len(), &jobs[0]["queue"]), (1, &json!("a")));
    let failed = server.post("/api/v1/claim", &body).await;
    assert_eq!(failed.status, 503, "with nothing to answer: {failed:?}");
}

#[tokio::test]
async fn ids_alone_are_looked_for_in_the_queues_of_their_jobs() {
    let server = Server::open().await;
    let first = server.job(&json!({"kind": "a", "queue": "x"})).await;
    let second = server.job(&json!({"kind": "a", "queue": "y"})).await;
    server.job(&json!({"kind": "a", "queue": "y"})).await;
    let jobs = server
        .claim(&json!({"ids": [first, second], "limit": 9}))
        .await;
    let mut ids: Vec<&str> = jobs.iter().filter_map(|job| job["id"].as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [first, second]);
}

#[tokio::test]
async fn a_claim_of_large_jobs_is_bounded_and_loses_none() {
    const JOBS: usize = 70;
    let server = Server::open().await;
    let payload = "x".repeat(300_000);
    for _ in 0..JOBS {
        server.job(&json!({"kind": "a", "payload": payload})).await;
    }
    let claim = json!({"limit": 1000, "claim_id": "c"});
    let first = server.claim(&claim).await;
    assert!(first.len() * payload.len() < 2 * 16 * 1024 * 1024);
    assert_eq!(server.claim(&claim).await.len(), first.len(), "asked again");
    let rest = server.claim(&json!({"limit": 1000})).await;
    assert_eq!(first.len() + rest.len(), JOBS);
    assert!(!rest.is_empty(), "{}", first.len());
}

#[tokio::test]
async fn a_claim_of_many_jobs_goes_on_until_it_has_them() {
    let server = Server::open().await;
    let jobs = vec![json!({"kind": "a"}); 300];
    let jobs = json!({"jobs": jobs});
    server.post("/api/v1/jobs/bulk", &jobs).await;
    let claim = json!({"limit": 250, "claim_id": "c"});
    let first = server.claim(&claim).await;
    assert_eq!(first.len(), 250);
    assert_eq!(server.claim(&claim).await, first, "each step is known");
    assert_eq!(server.claim(&json!({"limit": 1000})).await.len(), 50);
}
