//! Workers: settle, renew, progress, signals.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::Timestamp;
use windlass_server::Settings;

use crate::support::Server;

fn settle(job: &Value, outcome: Value) -> Value {
    let mut outcome = outcome;
    outcome["id"] = job["id"].clone();
    outcome["attempt"] = job["attempt"].clone();
    json!({"worker": job["worker"], "outcomes": [outcome]})
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
async fn a_worker_that_lies_changes_nothing() {
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
    // What is told of an error is cut, not refused: the failure itself must be heard.
    let other = server.job(&json!({"kind": "a", "queue": "errors"})).await;
    let jobs = server.claim(&json!({"queue": "errors"})).await;
    let text = "x".repeat(500_000);
    let error = json!({"message": text, "causes": [text]});
    let failed = settle(&jobs[0], json!({"outcome": "failed", "error": error}));
    let told = server.post("/api/v1/settle", &failed).await;
    assert_eq!(told.text_at("/data/0/status"), "done");
    let failed = server.get(&format!("/api/v1/jobs/{other}")).await;
    assert!(failed.json["last_error"].to_string().len() < 10_000);
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
async fn an_earlier_report_is_recognized_while_another_worker_has_the_job() {
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
async fn a_report_that_is_repeated_in_one_request_gets_the_same_answer() {
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
async fn an_attempt_is_not_prolonged_beyond_its_timeout() {
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
async fn a_lease_ends_with_the_timeout_of_its_attempt() {
    let server = Server::open().await;
    let id = server
        .job(&json!({"kind": "a", "timeout": "5s", "retry": "patient"}))
        .await;
    let jobs = server.claim(&json!({"worker": "w", "lease": "1h"})).await;
    let time = |job: &Value, name: &str| job[name].as_str().unwrap().parse::<Timestamp>().unwrap();
    let started_at = time(&jobs[0], "started_at");
    let end = started_at.saturating_add(Duration::from_secs(6));
    assert_eq!(time(&jobs[0], "lease_until"), end, "with a second to tell");
    let body = json!({"worker": "w", "lease": "1h", "leases": [{"id": id, "attempt": 1}]});
    let renewed = server.post("/api/v1/renew", &body).await;
    assert_eq!(time(&renewed.json["data"][0], "lease_until"), end);
    let store = windlass::admin::engine_of(&server.client).store();
    let soon = started_at.saturating_add(Duration::from_secs(5));
    assert!(store.sweep(9, soon, 0).await.unwrap().lost.is_empty());
    assert_eq!(store.sweep(9, end, 0).await.unwrap().lost.len(), 1);
    let history = server.get(&format!("/api/v1/jobs/{id}/history")).await;
    assert_eq!(history.json["data"][0]["outcome"], "timed_out");
    let unlimited = json!({"kind": "a", "queue": "q", "timeout": "none"});
    server.job(&unlimited).await;
    let jobs = server.claim(&json!({"queue": "q", "lease": "1h"})).await;
    let length = time(&jobs[0], "lease_until").since(time(&jobs[0], "started_at"));
    assert_eq!(length, Duration::from_secs(3600));
}

#[tokio::test]
async fn a_success_that_comes_after_the_timeout_is_none() {
    let server = Server::open().await;
    for (outcome, becomes) in [
        (json!({"outcome": "succeeded"}), ("timed_out", "timed_out")),
        (json!({"outcome": "released"}), ("timed_out", "timed_out")),
        (json!({"outcome": "timed_out"}), ("done", "timed_out")),
        (
            json!({"outcome": "failed", "error": "x"}),
            ("done", "failed"),
        ),
    ] {
        let new = json!({"kind": "a", "timeout_ms": 1, "retry": "patient"});
        let id = server.job(&new).await;
        let jobs = server.claim(&json!({"ids": [id]})).await;
        let until: Timestamp = jobs[0]["lease_until"].as_str().unwrap().parse().unwrap();
        while server.client.now() < until {
            server.get("/api/v1/workers").await;
        }
        let settled = server
            .post("/api/v1/settle", &settle(&jobs[0], outcome))
            .await;
        let history = server.get(&format!("/api/v1/jobs/{id}/history")).await;
        assert_eq!(settled.text_at("/data/0/status"), becomes.0);
        assert_eq!(history.text_at("/data/0/outcome"), becomes.1);
    }
}

#[tokio::test]
async fn a_success_that_was_reported_in_time_is_recognized_after_the_timeout() {
    let server = Server::open().await;
    server.job(&json!({"kind": "a", "timeout": "1s"})).await;
    let jobs = server.claim(&json!({})).await;
    let body = settle(&jobs[0], json!({"outcome": "succeeded"}));
    let first = server.post("/api/v1/settle", &body).await;
    assert_eq!(first.text_at("/data/0/status"), "done");
    let until: Timestamp = jobs[0]["lease_until"].as_str().unwrap().parse().unwrap();
    while server.client.now() < until {
        server.get("/api/v1/workers").await;
    }
    let again = server.post("/api/v1/settle", &body).await;
    assert_eq!(again.text_at("/data/0/status"), "repeated");
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
async fn workers_register_are_listed_and_are_asked_to_stop() {
    let server = Server::open().await;
    let new = json!({"name": "w/1", "queues": ["q"], "kinds": ["a"], "slots": 4, "version": "1.2"});
    let registered = server.post("/api/v1/workers", &new).await;
    assert_eq!(registered.status, 201, "{registered:?}");
    assert_eq!(registered.json["about"]["slots"], 4);
    let list = server.get("/api/v1/workers").await;
    assert_eq!(list.json["data"][0]["name"], "w/1");
    assert!(list.json["data"][0]["heartbeat_age_ms"].is_u64());
    assert_eq!(list.json["data"][0]["alive"], true);
    server.job(&json!({"kind": "a", "queue": "q"})).await;
    let paused = server.act("/api/v1/workers/w%2F1/pause-claims").await;
    assert_eq!(paused.json["signal"], "pause_claims");
    let claimed = server
        .post(
            "/api/v1/claim",
            &json!({"worker": "w/1", "queue": "q", "wait_ms": 1}),
        )
        .await;
    assert_eq!(
        (&claimed.json["data"], &claimed.json["signal"]),
        (&json!([]), &json!("pause_claims"))
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
        "/api/v1/workers/w%2F1/pause-claims",
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
    settings.retry.cap = windlass_core::retry::Cap::AtMost(
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

#[tokio::test]
async fn workers_and_queues_are_listed_in_pages() {
    let server = Server::open().await;
    let now = server.client.now();
    let store = windlass::admin::engine_of(&server.client).store();
    store
        .beat("w2", &json!({"role": "server"}), now)
        .await
        .unwrap();
    for name in ["w3", "w1", "w4"] {
        let queue = format!("q-{name}");
        server.claim(&json!({"worker": name, "queue": queue})).await;
        server.job(&json!({"kind": "a", "queue": queue})).await;
    }
    server.job(&json!({"kind": "a", "queue": "q-w2"})).await;
    for (path, prefix) in [("/api/v1/workers", "w"), ("/api/v1/queues", "q-w")] {
        let mut names = Vec::new();
        let mut next = format!("{path}?limit=3");
        loop {
            let page = server.get(&next).await;
            assert_eq!(page.status, 200, "{page:?}");
            let rows = page.json["data"].as_array().unwrap();
            assert!(rows.len() <= 3);
            names.extend(
                rows.iter()
                    .map(|row| row["name"].as_str().unwrap().to_owned()),
            );
            match page.json["next_cursor"].as_str() {
                Some(cursor) => next = format!("{path}?limit=3&cursor={cursor}"),
                None => break,
            }
        }
        let wanted: Vec<String> = (1..=4).map(|number| format!("{prefix}{number}")).collect();
        assert_eq!(names, wanted, "{path}");
        let refused = server.get(&format!("{path}?cursor=nonsense")).await;
        assert_eq!(refused.pointer(), "/cursor");
    }
}
