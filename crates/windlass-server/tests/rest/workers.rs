//! Workers: claim, settle, renew, progress, signals.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_server::Settings;

use crate::support::{Events, Server};

fn settle(job: &Value, outcome: Value) -> Value {
    let mut outcome = outcome;
    outcome["id"] = job["id"].clone();
    outcome["attempt"] = job["attempt"].clone();
    json!({"worker": job["worker"], "outcomes": [outcome]})
}

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
async fn a_client_that_asks_again_by_its_claim_id_keeps_the_jobs_it_gets() {
    let server = Server::open().await;
    for round in 0..50 {
        let queue = format!("q{round}");
        let id = server
            .job(&json!({"kind": "a", "queue": queue, "delivery": "at_most_once"}))
            .await;
        let body = json!({"queue": queue, "worker": "w", "claim_id": "c"});
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
    let listening = Events::listen(&server, "/api/v1/events", &[]).await;
    for busy in [
        server.post("/api/v1/claim", &json!({"wait": "30s"})).await,
        server.get("/api/v1/events").await,
    ] {
        assert_eq!((busy.status, busy.code().as_str()), (503, "busy"));
        assert_eq!(busy.header("retry-after"), Some("1"));
    }
    assert!(
        server.claim(&json!({})).await.is_empty(),
        "one that does not wait is answered"
    );
    drop(listening);
    let mut freed = 503;
    for _ in 0..1000 {
        freed = server
            .post("/api/v1/claim", &json!({"wait_ms": 1}))
            .await
            .status;
        if freed == 200 {
            break;
        }
    }
    assert_eq!(freed, 200, "a place is free again");
}

#[tokio::test]
async fn every_outcome_leads_where_it_should() {
    let server = Server::open().await;
    for (outcome, state, more) in [
        (
            json!({"outcome": "succeeded", "result": 5}),
            "succeeded",
            ("failures", json!(0)),
        ),
        (
            json!({"outcome": "failed", "error": "x", "retry_after": "1h"}),
            "scheduled",
            ("failures", json!(1)),
        ),
        (
            json!({"outcome": "failed", "error": "x", "unrecoverable": true}),
            "dead",
            ("dead_reason", json!("unrecoverable")),
        ),
        (
            json!({"outcome": "timed_out"}),
            "scheduled",
            ("failures", json!(1)),
        ),
        (
            json!({"outcome": "snoozed", "delay": "1h"}),
            "scheduled",
            ("failures", json!(0)),
        ),
        (
            json!({"outcome": "cancelled"}),
            "cancelled",
            ("failures", json!(0)),
        ),
        (
            json!({"outcome": "released"}),
            "ready",
            ("failures", json!(0)),
        ),
    ] {
        let queue = json!({"kind": "a", "queue": outcome["outcome"], "retry": "patient"});
        server.job(&queue).await;
        let jobs = server.claim(&json!({"queue": outcome["outcome"]})).await;
        let settled = server
            .post("/api/v1/settle", &settle(&jobs[0], outcome.clone()))
            .await;
        let told = &settled.json["data"][0];
        assert_eq!(
            (&told["status"], &told["state"]),
            (&json!("done"), &json!(state)),
            "{outcome}"
        );
        assert_eq!(told[more.0], more.1, "{outcome}");
        let again = server
            .post("/api/v1/settle", &settle(&jobs[0], outcome.clone()))
            .await;
        assert_eq!(again.json["data"][0]["status"], "repeated", "{outcome}");
        let other = server
            .post(
                "/api/v1/settle",
                &settle(&jobs[0], json!({"outcome": "failed", "error": "late"})),
            )
            .await;
        let expected = if outcome["outcome"] == "failed" {
            "repeated"
        } else {
            "lease_lost"
        };
        assert_eq!(other.json["data"][0]["status"], expected, "{outcome}");
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    let server = Server::open().await;
    for _ in 0..2 {
        server.job(&json!({"kind": "a"})).await;
    }
    let jobs = server.claim(&json!({"limit": 2})).await;
    let body = json!({"outcomes": [
        {"id": jobs[0]["id"], "attempt": 1, "outcome": "succeeded"},
        {"id": "01890a5d-ac96-774b-bcce-b302099a8057", "attempt": 1, "outcome": "succeeded"},
        {"job_id": jobs[1]["id"], "attempt": 1, "outcome": "failed", "error": "x"},
    ]});
    let settled = server.post("/api/v1/settle", &body).await;
    let status = |place: usize| settled.json["data"][place]["status"].clone();
    assert_eq!(
        [status(0), status(1), status(2)],
        [json!("done"), json!("lease_lost"), json!("done")]
    );
    for (body, pointer) in [
        (json!({"outcomes": []}), "/outcomes"),
        (
            json!({"outcomes": [{"id": jobs[0]["id"], "attempt": 1, "outcome": "won"}]}),
            "/outcomes/0/outcome",
        ),
        (
            json!({"outcomes": [{"attempt": 1, "outcome": "succeeded"}]}),
            "/outcomes/0/id",
        ),
    ] {
        assert_eq!(
            server.post("/api/v1/settle", &body).await.pointer(),
            pointer
        );
    }
}

#[tokio::test]
async fn ap12_a_worker_that_lies_changes_nothing() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    let jobs = server.claim(&json!({"worker": "honest"})).await;
    for (worker, attempt, reason) in [
        (json!("liar"), 1, "other_worker"),
        (Value::Null, 1, "other_worker"),
        (json!("honest"), 2, "unknown"),
        (Value::Null, 7, "unknown"),
    ] {
        let of = json!({"id": id, "attempt": attempt, "outcome": "succeeded"});
        let settle = json!({"worker": worker, "outcomes": [of]});
        let renew = json!({"worker": worker, "leases": [{"id": id, "attempt": attempt}]});
        for answer in [
            server.post("/api/v1/settle", &settle).await,
            server.post("/api/v1/renew", &renew).await,
        ] {
            let told = &answer.json["data"][0];
            assert_eq!(told["status"], "lease_lost", "{settle}");
            assert_eq!(told["reason"], reason, "{settle}");
        }
        let progress = json!({"worker": worker, "id": id, "attempt": attempt, "progress": 1});
        let refused = server.post("/api/v1/progress", &progress).await;
        assert_eq!(refused.code(), "lease_lost", "{progress}");
    }
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(
        (&job.json["state"], &job.json["lease_until"]),
        (&json!("running"), &jobs[0]["lease_until"])
    );
    let large = json!("x".repeat(70_000));
    let body =
        json!({"outcomes": [{"id": id, "attempt": 1, "outcome": "succeeded", "result": large}]});
    let refused = server.post("/api/v1/settle", &body).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (413, "result_too_large")
    );
    let many =
        json!({"outcomes": vec![json!({"id": id, "attempt": 1, "outcome": "succeeded"}); 1001]});
    assert_eq!(
        server.post("/api/v1/settle", &many).await.pointer(),
        "/outcomes"
    );
    let many = json!({"leases": vec![json!({"id": id, "attempt": 1}); 1001]});
    assert_eq!(
        server.post("/api/v1/renew", &many).await.pointer(),
        "/leases"
    );
    let forever = json!({"lease": "3650d", "leases": [{"id": id, "attempt": 1}]});
    assert_eq!(
        server.post("/api/v1/renew", &forever).await.pointer(),
        "/lease"
    );
}

#[tokio::test]
async fn what_was_told_before_is_known_while_another_worker_has_the_job() {
    let server = Server::open().await;
    let id = server
        .job(&json!({"kind": "a", "retry": "immediate"}))
        .await;
    let first = server.claim(&json!({"worker": "w1"})).await;
    let failed = settle(&first[0], json!({"outcome": "failed", "error": "x"}));
    server.post("/api/v1/settle", &failed).await;
    assert_eq!(server.claim(&json!({"worker": "w2"})).await.len(), 1);
    let again = server.post("/api/v1/settle", &failed).await;
    assert_eq!(again.json["data"][0]["status"], "repeated");
    let other = settle(&first[0], json!({"outcome": "succeeded"}));
    let late = server.post("/api/v1/settle", &other).await;
    assert_eq!(late.json["data"][0]["status"], "lease_lost");
    assert_eq!(late.json["data"][0]["reason"], "over");
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(job.text_at("/state"), "running");
}

#[tokio::test]
async fn what_is_told_twice_in_one_request_is_answered_as_it_stands_then() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    server.claim(&json!({})).await;
    let outcome = json!({"id": id, "attempt": 1, "outcome": "succeeded"});
    let body = json!({"outcomes": [outcome, outcome]});
    let settled = server.post("/api/v1/settle", &body).await;
    let told = |place: usize| {
        let told = &settled.json["data"][place];
        (told["status"].clone(), told["state"].clone())
    };
    assert_eq!(told(0), (json!("done"), json!("succeeded")));
    assert_eq!(told(1), (json!("repeated"), json!("succeeded")));
}

#[tokio::test]
async fn a_lease_is_prolonged_and_tells_of_a_cancel() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    let jobs = server.claim(&json!({"worker": "w", "lease": "10s"})).await;
    let body = json!({"worker": "w", "lease": "10m", "leases": [{"id": id, "attempt": 1}]});
    let renewed = server.post("/api/v1/renew", &body).await;
    let told = &renewed.json["data"][0];
    assert_eq!(
        (&told["status"], &told["cancel_requested"]),
        (&json!("renewed"), &json!(false))
    );
    assert!(told["lease_until"].as_str() > jobs[0]["lease_until"].as_str());
    let cancelled = server.act(&format!("/api/v1/jobs/{id}/cancel")).await;
    assert_eq!(
        (
            &cancelled.json["state"],
            &cancelled.json["cancel_requested"]
        ),
        (&json!("running"), &json!(true))
    );
    let renewed = server.post("/api/v1/renew", &body).await;
    assert_eq!(renewed.json["data"][0]["cancel_requested"], true);
}

#[tokio::test]
async fn ap12_an_attempt_is_not_prolonged_beyond_its_timeout() {
    let server = Server::open().await;
    let id = server
        .job(&json!({"kind": "a", "timeout_ms": 1, "retry": "patient"}))
        .await;
    server.claim(&json!({"worker": "w"})).await;
    let body = json!({"worker": "w", "leases": [{"id": id, "attempt": 1}]});
    let mut status = Value::Null;
    for _ in 0..1000 {
        status = server.post("/api/v1/renew", &body).await.json["data"][0]["status"].clone();
        if status != "renewed" {
            break;
        }
    }
    assert_eq!(status, "timed_out");
    let history = server.get(&format!("/api/v1/jobs/{id}/history")).await;
    assert_eq!(history.json["data"][0]["outcome"], "timed_out");
    let renewed = server.post("/api/v1/renew", &body).await;
    assert_eq!(renewed.json["data"][0]["status"], "lease_lost");
}

#[tokio::test]
async fn progress_is_seen_while_it_runs_and_kept_with_the_attempt() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    let jobs = server.claim(&json!({"worker": "w"})).await;
    let body = json!({"worker": "w", "id": id, "attempt": 1, "progress": {"percent": 50}});
    assert_eq!(server.post("/api/v1/progress", &body).await.status, 204);
    let flood = server.post("/api/v1/progress", &body).await;
    assert_eq!(
        (flood.status, flood.header("retry-after")),
        (429, Some("1"))
    );
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(job.json["progress"], json!({"percent": 50}));
    let large = json!({"worker": "w", "id": id, "attempt": 1, "progress": "x".repeat(20_000)});
    assert_eq!(server.post("/api/v1/progress", &large).await.status, 413);
    for body in [
        json!({"worker": "w", "id": id, "attempt": 2, "progress": 1}),
        json!({"id": id, "attempt": 1, "worker": "other", "progress": 1}),
    ] {
        let lost = server.post("/api/v1/progress", &body).await;
        assert_eq!((lost.status, lost.code().as_str()), (409, "lease_lost"));
    }
    server
        .post(
            "/api/v1/settle",
            &settle(&jobs[0], json!({"outcome": "succeeded"})),
        )
        .await;
    let history = server.get(&format!("/api/v1/jobs/{id}/history")).await;
    assert_eq!(history.json["data"][0]["progress"], json!({"percent": 50}));
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert!(job.json.get("progress").is_none());
}

#[tokio::test]
async fn workers_register_are_listed_and_are_told_to_stop() {
    let server = Server::open().await;
    let new = json!({"name": "w/1", "queues": ["q"], "kinds": ["a"], "slots": 4, "version": "1.2"});
    let registered = server.post("/api/v1/workers", &new).await;
    assert_eq!(registered.status, 201, "{registered:?}");
    assert_eq!(registered.json["about"]["slots"], 4);
    let list = server.get("/api/v1/workers").await;
    assert_eq!(list.json["data"][0]["name"], "w/1");
    assert!(list.json["data"][0]["heartbeat_age_ms"].is_u64());
    server.job(&json!({"kind": "a", "queue": "q"})).await;
    let quiet = server.act("/api/v1/workers/w%2F1/quiet").await;
    assert_eq!(quiet.json["signal"], "quiet");
    let claimed = server
        .post(
            "/api/v1/claim",
            &json!({"worker": "w/1", "queue": "q", "wait": "30s"}),
        )
        .await;
    assert_eq!(
        (&claimed.json["data"], &claimed.json["signal"]),
        (&json!([]), &json!("quiet"))
    );
    server.act("/api/v1/workers/w%2F1/stop").await;
    let renewed = server
        .post("/api/v1/renew", &json!({"worker": "w/1"}))
        .await;
    assert_eq!(renewed.json["signal"], "stop");
    server.act("/api/v1/workers/w%2F1/resume").await;
    let renewed = server
        .post("/api/v1/renew", &json!({"worker": "w/1"}))
        .await;
    assert_eq!(renewed.json["signal"], Value::Null);
    server.act("/api/v1/workers/w%2F1/stop").await;
    server.post("/api/v1/workers", &new).await;
    assert_eq!(
        server
            .claim(&json!({"worker": "w/1", "queue": "q"}))
            .await
            .len(),
        1,
        "a new worker of that name"
    );
    assert_eq!(server.delete("/api/v1/workers/w%2F1").await.status, 204);
    for path in [
        "/api/v1/workers/w%2F1/stop",
        "/api/v1/workers/w%2F1/quiet",
        "/api/v1/workers/w%2F1/resume",
    ] {
        assert_eq!(server.act(path).await.status, 404);
    }
    let refused = server
        .post("/api/v1/workers", &json!({"name": "w", "queues": ["a b"]}))
        .await;
    assert_eq!(refused.pointer(), "/queues/0");
}

#[tokio::test]
async fn a_worker_that_claims_is_heard_without_registering() {
    let server = Server::open().await;
    server
        .claim(&json!({"worker": "quick", "queues": ["a", "b"]}))
        .await;
    let list = server.get("/api/v1/workers").await;
    assert_eq!(list.json["data"][0]["name"], "quick");
    assert_eq!(list.json["data"][0]["about"]["queues"], json!(["a", "b"]));
}

#[tokio::test]
async fn jobs_claimed_over_rest_may_ask_for_more_attempts_than_the_default() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "max_attempts": 30, "retry": {"backoff": {"type": "constant", "delay": "0s"}}})).await;
    for attempt in 1..=30 {
        let jobs = server.claim(&json!({})).await;
        assert_eq!(jobs.len(), 1, "attempt {attempt}");
        let settled = server
            .post(
                "/api/v1/settle",
                &settle(&jobs[0], json!({"outcome": "failed", "error": "x"})),
            )
            .await;
        let state = if attempt == 30 { "dead" } else { "ready" };
        assert_eq!(settled.json["data"][0]["state"], state, "attempt {attempt}");
    }
}

#[tokio::test]
async fn a_cap_that_is_set_holds_for_jobs_claimed_over_rest() {
    let mut settings = Settings::default();
    settings.retry.cap = windlass_core::retry::Cap::At(
        windlass_core::retry::AttemptLimit::from_max_attempts(1)
            .unwrap()
            .unwrap(),
    );
    settings.lease = Duration::from_secs(7);
    let server = Server::with_settings(settings).await;
    server.job(&json!({"kind": "a", "max_attempts": 30})).await;
    let jobs = server.claim(&json!({})).await;
    let settled = server
        .post(
            "/api/v1/settle",
            &settle(&jobs[0], json!({"outcome": "failed", "error": "x"})),
        )
        .await;
    assert_eq!(settled.json["data"][0]["state"], "dead");
    let lease = |name: &str| {
        jobs[0][name]
            .as_str()
            .unwrap()
            .parse::<windlass::Timestamp>()
            .unwrap()
    };
    let length = lease("lease_until").since(lease("started_at"));
    assert_eq!(
        length,
        Duration::from_secs(7),
        "the lease of a claim that names none"
    );
}
