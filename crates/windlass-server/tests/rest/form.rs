//! The scheduler form, and what HTTP jobs bring with them.

use serde_json::{Value, json};
use windlass_server::Settings;

use crate::support::Server;

const DEPTH: &str = "windlass.depth";

fn form() -> Value {
    json!({"schedule": "0 0 1 1 *", "api": "https://a.example/"})
}

/// The job of an occurrence of a form, or of a schedule, that a person asks for.
async fn run_now(server: &Server, schedule: &str) -> String {
    let run = server
        .act(&format!("/api/v1/schedules/{schedule}/run-now"))
        .await;
    run.text_at("/job_id")
}

#[tokio::test]
async fn nothing_of_a_deleted_form_runs_again() {
    let server = Server::open().await;
    let made = server.post("/api/v1/jobs", &form()).await;
    let id = made.text_at("/id");
    let waits = run_now(&server, &id).await;
    let failed = json!({"outcome": "failed", "error": "no"});
    server
        .run_claimed(&json!({"kinds": ["http"]}), &failed)
        .await;
    let path = format!("/api/v1/jobs/{waits}");
    let retry = server.get(&path).await;
    assert_eq!(
        (&retry.json["state"], &retry.json["failures"]),
        (&json!("scheduled"), &json!(1))
    );
    let deleted = server.delete(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(deleted.status, 204);
    assert_eq!(server.get(&path).await.json["state"], "cancelled");
    let gone = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(gone.status, 404);
}

#[tokio::test]
async fn the_next_execution_of_a_form_is_its_retry_while_one_waits() {
    let server = Server::open().await;
    let id = server.post("/api/v1/jobs", &form()).await.text_at("/id");
    let path = format!("/api/v1/jobs/{id}");
    let next = async || {
        let seen = server.get(&path).await;
        assert_eq!(
            seen.json["next_execution_time"], seen.json["next_run_at"],
            "{seen:?}"
        );
        seen.text_at("/next_execution_time")
    };
    let occurrence = next().await;
    let job = run_now(&server, &id).await;
    let failed = json!({"outcome": "failed", "error": "no"});
    server
        .run_claimed(&json!({"kinds": ["http"]}), &failed)
        .await;
    let retry = server.get(&format!("/api/v1/jobs/{job}")).await;
    assert_eq!(retry.json["failures"], 1, "{retry:?}");
    assert_eq!(next().await, retry.text_at("/run_at"));
    server.act(&format!("/api/v1/jobs/{job}/cancel")).await;
    assert_eq!(next().await, occurrence);
}

#[tokio::test]
async fn the_history_of_a_form_is_filtered_before_it_is_cut() {
    let server = Server::open().await;
    let made = server.post("/api/v1/jobs", &form()).await;
    let id = made.text_at("/id");
    let job = run_now(&server, &id).await;
    let soon = json!({"outcome": "snoozed", "delay": "1h"});
    for outcome in [
        json!({"outcome": "failed", "error": "no"}),
        soon,
        json!({"outcome": "succeeded"}),
    ] {
        server.act(&format!("/api/v1/jobs/{job}/run-now")).await;
        server
            .run_claimed(&json!({"kinds": ["http"]}), &outcome)
            .await;
    }
    let history = async |query: &str| {
        let path = format!("/api/v1/jobs/{id}/history?{query}");
        let rows = server.get(&path).await.json["data"].clone();
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["status"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(history("limit=1&status=FAILED").await, ["FAILED"]);
    assert_eq!(history("limit=1").await, ["SUCCESS"]);
    assert_eq!(history("limit=9").await, ["SUCCESS", "SNOOZED", "FAILED"]);
    assert_eq!(history("limit=9&status=FAILED").await, ["FAILED"]);
}

#[tokio::test]
async fn the_address_of_a_form_is_where_the_router_is_mounted() {
    let server = Server::mounted("/queue").await;
    let made = server.post("/queue/api/v1/jobs", &form()).await;
    let id = made.text_at("/id");
    let expected = format!("/queue/api/v1/jobs/{id}");
    assert_eq!(made.header("location"), Some(expected.as_str()));
}

#[tokio::test]
async fn the_limit_of_payloads_holds_for_schedules_and_forms_too() {
    let large = Server::with_settings(Settings {
        payload_bytes_max: 3 << 20,
        ..Settings::default()
    })
    .await;
    let small = Server::with_settings(Settings {
        payload_bytes_max: 1000,
        ..Settings::default()
    })
    .await;
    for (server, bytes, fits) in [(&large, 2 << 20, true), (&small, 2000, false)] {
        let text = "x".repeat(bytes);
        let schedule = json!({"name": "s", "every": "1h", "job": {"kind": "a", "payload": text}});
        let made = server.post("/api/v1/schedules", &schedule).await;
        assert_eq!(made.status == 201, fits, "{}", made.status);
        let mut form = form();
        form["body"] = json!(text);
        let made = server.post("/api/v1/jobs", &form).await;
        assert_eq!(made.status == 201, fits, "{}", made.status);
    }
}

// A chain of HTTP jobs comes to an end whichever way they ask for each other.
#[tokio::test]
async fn every_route_keeps_the_depth_of_a_chain_and_no_client_can_set_it() {
    let server = Server::open().await;
    let http = json!({"url": "https://a.example/"});
    let deep = [("Windlass-Depth", "3")];
    let create = async |path: &str, body: Value| {
        let body = body.to_string();
        let made = server.send("POST", path, &deep, Some(body.as_bytes()));
        made.await
    };
    let one = create("/api/v1/jobs", json!({"http": http})).await;
    let many = create("/api/v1/jobs/bulk", json!({"jobs": [{"http": http}]})).await;
    create(
        "/api/v1/schedules",
        json!({"name": "s", "every": "1h", "job": {"http": http}}),
    )
    .await;
    let form = create("/api/v1/jobs", form()).await;
    for id in [
        one.text_at("/id"),
        many.text_at("/data/0/id"),
        run_now(&server, "s").await,
        run_now(&server, &form.text_at("/id")).await,
    ] {
        let job = server.get(&format!("/api/v1/jobs/{id}")).await;
        assert_eq!(job.json["meta"][DEPTH], 3, "{job:?}");
    }
    let own = json!({"http": http, "meta": {DEPTH: 9}});
    let refused = server.post("/api/v1/jobs", &own).await;
    assert_eq!(refused.status, 422);
    assert!(refused.pointer().starts_with("/meta"), "{refused:?}");
    let free = json!({"http": http, "meta": {"depth": 9}});
    assert_eq!(server.post("/api/v1/jobs", &free).await.status, 201);
}

#[tokio::test]
async fn a_backfilled_job_has_its_whole_deadline() {
    let server = Server::open().await;
    let job = json!({"kind": "a", "expires_in": "1h"});
    let schedule = json!({"name": "s", "cron": "0 2 * * *", "job": job});
    server.post("/api/v1/schedules", &schedule).await;
    let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T12:00:00Z"});
    let made = server.post("/api/v1/schedules/s/backfill", &range).await;
    assert_eq!(made.json["created"], 1);
    run_now(&server, "s").await;
    let claimed = server.claim(&json!({"limit": 9})).await;
    assert_eq!(claimed.len(), 2, "neither is over before it starts");
}

#[tokio::test]
async fn a_job_that_a_request_asked_for_has_its_deadline() {
    let server = Server::open().await;
    let deadline = "2099-01-01T00:00:00Z";
    let ask = async |body: Value, sent: &str| {
        let headers = [("windlass-deadline", sent)];
        let body = body.to_string();
        let path = match body.contains("jobs") {
            true => "/api/v1/jobs/bulk",
            false => "/api/v1/jobs",
        };
        server
            .send("POST", path, &headers, Some(body.as_bytes()))
            .await
    };
    let child = ask(json!({"kind": "a"}), deadline).await;
    assert_eq!(child.json["deadline"], deadline, "{}", child.json);
    let own = "2098-01-01T00:00:00Z";
    let hasty = ask(json!({"kind": "a", "deadline": own}), deadline).await;
    assert_eq!(hasty.json["deadline"], own);
    let many = ask(json!({"jobs": [{"kind": "a"}]}), deadline).await;
    let id = many.text_at("/data/0/id");
    let one = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(one.json["deadline"], deadline);
    let refused = ask(json!({"kind": "a"}), "soon").await;
    assert_eq!(refused.pointer(), "/windlass-deadline");
}

#[tokio::test]
async fn a_form_whose_job_is_replaced_stays_readable_by_its_id() {
    let server = Server::open().await;
    let made = server.post("/api/v1/jobs", &form()).await;
    let id = made.json["id"].as_str().unwrap();
    let job = json!({"kind": "report", "max_attempts": 3});
    let patched = server
        .patch(&format!("/api/v1/schedules/{id}"), &json!({"job": job}))
        .await;
    assert_eq!(patched.status, 200, "{patched:?}");
    let read = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!((read.status, &read.json["kind"]), (200, &json!("report")));
    assert_eq!(read.json["maxRetryCount"], 2, "{read:?}");
    assert_eq!(
        server
            .get(&format!("/api/v1/jobs/{id}/schedule"))
            .await
            .status,
        200
    );
}
