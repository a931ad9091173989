//! One job: created, looked at, changed.

use serde_json::{Value, json};

use crate::support::Server;

#[tokio::test]
async fn a_job_is_created_and_read_back_with_every_field() {
    let server = Server::open().await;
    let body = json!({
        "kind": "email:send", "payload": {"to": "ann"}, "queue": "mail", "priority": 7, "delay": "1h",
        "delivery": "at_most_once", "max_attempts": 3, "retry": "webhook", "timeout": "5s",
        "expires_in": "2h", "unique_key": "u1", "unique_for": "1d", "concurrency_key": "eu", "limit": 2,
        "tags": ["a"], "meta": {"traceparent": "00-ab"},
    });
    let created = server.post("/api/v1/jobs", &body).await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.text_at("/id");
    assert_eq!(
        created.header("location"),
        Some(format!("/api/v1/jobs/{id}").as_str())
    );
    let read = server.get(&format!("/api/v1/jobs/{id}")).await;
    insta::assert_snapshot!(created.redacted() + &read.redacted());
}

#[tokio::test]
async fn other_spellings_are_taken() {
    let server = Server::open().await;
    let body = json!({"type": "report", "maxRetryCount": 2, "retry_at": "2099-01-01T00:00:00Z"});
    let id = server.job(&body).await;
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(job.json["kind"], "report");
    assert_eq!(job.json["max_attempts"], 3);
    assert_eq!(job.json["run_at"], "2099-01-01T00:00:00Z");
    let id = server
        .job(&json!({"kind": "a", "type": "AT_MOST_ONCE"}))
        .await;
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(job.json["delivery"], "at_most_once");
}

#[tokio::test]
async fn a_bad_job_is_refused_by_field_and_rule() {
    let server = Server::open().await;
    let mut refusals = String::new();
    for body in [
        json!({}),
        json!({"kind": ""}),
        json!({"kind": "a", "colour": 1}),
        json!({"kind": "a", "prioritty": 1}),
        json!({"kind": "a", "max_attempts": 3, "max_retries": 5}),
        json!({"kind": "a", "retry": {"backoff": {"type": "exponential", "base": "5s", "max": "1s"}}}),
        json!({"kind": "a", "tags": ["x", 5]}),
        json!({"kind": "a", "delay": 5}),
    ] {
        let refused = server.post("/api/v1/jobs", &body).await;
        refusals += &format!("{body}\n{}\n", refused.redacted());
    }
    insta::assert_snapshot!(refusals);
    let jobs = server.get("/api/v1/jobs").await;
    assert_eq!(jobs.json["data"], json!([]), "nothing was stored");
}

#[tokio::test]
async fn a_taken_unique_key_answers_the_first_job() {
    let server = Server::open().await;
    let body = json!({"kind": "a", "payload": 1, "unique_key": "k"});
    let id = server.job(&body).await;
    let again = server.post("/api/v1/jobs", &body).await;
    assert_eq!((again.status, again.text_at("/id")), (200, id.clone()));
    assert_eq!(again.json["duplicate"], true);
    assert_eq!(again.json["payload_differs"], false);
    let other = server
        .post(
            "/api/v1/jobs",
            &json!({"kind": "a", "payload": 2, "unique_key": "k"}),
        )
        .await;
    assert_eq!(other.json["payload_differs"], true);
    let replace = json!({"kind": "a", "payload": 3, "unique_key": "k", "on_duplicate": "replace"});
    let replaced = server.post("/api/v1/jobs", &replace).await;
    assert_eq!(replaced.json["replaced"], true);
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(job.json["payload"], 3);
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let server = Server::open().await;
    server
        .put(
            "/api/v1/queues/small/settings?create=true",
            &json!({"max_depth": 1}),
        )
        .await;
    server.job(&json!({"kind": "a", "queue": "small"})).await;
    let full = server
        .post("/api/v1/jobs", &json!({"kind": "a", "queue": "small"}))
        .await;
    assert_eq!((full.status, full.code().as_str()), (429, "queue_full"));
    assert_eq!(full.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_full_queue_takes_no_moved_and_no_revived_job() {
    let server = Server::open().await;
    let ended = server.job(&json!({"kind": "a", "queue": "small"})).await;
    server.act(&format!("/api/v1/jobs/{ended}/cancel")).await;
    server
        .put("/api/v1/queues/small/settings", &json!({"max_depth": 1}))
        .await;
    server.job(&json!({"kind": "a", "queue": "small"})).await;
    let other = server.job(&json!({"kind": "a"})).await;
    let path = format!("/api/v1/jobs/{other}");
    let moved = server.patch(&path, &json!({"queue": "small"})).await;
    let revived = server
        .post(&format!("/api/v1/jobs/{ended}/revive"), &json!({}))
        .await;
    for refused in [moved, revived] {
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (429, "queue_full")
        );
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    let job = server.get(&path).await;
    assert_eq!(job.json["queue"], "default");
}

#[tokio::test]
async fn a_missing_resource_is_404() {
    let server = Server::open().await;
    let nobody = "/api/v1/jobs/01890a5d-ac96-774b-bcce-b302099a8057";
    for path in [nobody, "/api/v1/jobs/nonsense"] {
        for (method, tail) in [
            ("GET", ""),
            ("GET", "/history"),
            ("GET", "/why"),
            ("GET", "/wait"),
            ("POST", "/cancel"),
            ("POST", "/revive"),
            ("POST", "/run-now"),
            ("POST", "/resolve"),
            ("DELETE", ""),
        ] {
            let answer = server
                .send(method, &format!("{path}{tail}"), &[], None)
                .await;
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (404, "not_found"),
                "{method} {tail}"
            );
        }
        let answer = server.patch(path, &json!({"priority": 1})).await;
        assert_eq!(answer.status, 404);
    }
    let answer = server.get("/api/v2/jobs").await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"));
    let answer = server.send("PUT", "/api/v1/jobs", &[], None).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (405, "method_not_allowed")
    );
}

#[tokio::test]
async fn a_waiting_job_is_edited_run_now_and_cancelled() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a", "delay": "1h"})).await;
    let path = format!("/api/v1/jobs/{id}");
    let edit = json!({"priority": 9, "queue": "other", "payload": {"b": 1}, "run_at": "2099-01-01T00:00:00Z"});
    let edited = server.patch(&path, &edit).await;
    assert_eq!(edited.status, 200, "{edited:?}");
    assert_eq!(
        (&edited.json["priority"], &edited.json["queue"]),
        (&json!(9), &json!("other"))
    );
    assert_eq!(edited.json["payload"], json!({"b": 1}));
    assert_eq!(edited.json["run_at"], "2099-01-01T00:00:00Z");
    let due = server.act(&format!("{path}/run-now")).await;
    assert_eq!(due.json["state"], "ready");
    let cancelled = server.act(&format!("{path}/cancel")).await;
    assert_eq!(cancelled.json["state"], "cancelled");
    let again = server.act(&format!("{path}/cancel")).await;
    assert_eq!((again.status, again.code().as_str()), (409, "wrong_state"));
    let edited = server.patch(&path, &json!({"priority": 1})).await;
    assert_eq!(edited.status, 409);
    assert_eq!(server.delete(&path).await.status, 204);
    assert_eq!(server.get(&path).await.status, 404);
}

#[tokio::test]
async fn a_job_that_waits_is_not_deleted() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    let kept = server.delete(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!((kept.status, kept.code().as_str()), (409, "wrong_state"));
}

#[tokio::test]
async fn a_dead_job_is_revived_as_it_is_asked() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a", "max_attempts": 1})).await;
    server
        .run(&json!({"outcome": "failed", "error": "boom"}))
        .await;
    let path = format!("/api/v1/jobs/{id}");
    let dead = server.get(&path).await;
    assert_eq!(
        (&dead.json["state"], &dead.json["dead_reason"]),
        (&json!("dead"), &json!("exhausted"))
    );
    assert_eq!(dead.json["last_error"], "boom");
    let body = json!({"failures": "keep", "delay": "1h", "payload": {"fixed": true}});
    let revived = server.post(&format!("{path}/revive"), &body).await;
    assert_eq!(revived.json["state"], "scheduled", "{revived:?}");
    assert_eq!(
        (&revived.json["failures"], &revived.json["payload"]),
        (&json!(1), &json!({"fixed": true}))
    );
    server.act(&format!("{path}/cancel")).await;
    let revived = server.act(&format!("{path}/revive")).await;
    assert_eq!(
        (&revived.json["state"], &revived.json["failures"]),
        (&json!("ready"), &json!(0))
    );
    let refused = server
        .post(&format!("{path}/revive"), &json!({"forced": true}))
        .await;
    assert_eq!(refused.pointer(), "/forced");
}

#[tokio::test]
async fn a_lost_job_is_resolved_or_revived_by_force() {
    let server = Server::open().await;
    let body = json!({"kind": "a", "delivery": "at_most_once"});
    let (first, second) = (server.job(&body).await, server.job(&body).await);
    for _ in 0..2 {
        server
            .run(&json!({"outcome": "released", "started": true}))
            .await;
    }
    let plain = server.act(&format!("/api/v1/jobs/{first}/revive")).await;
    assert_eq!(plain.status, 409);
    assert!(
        plain.text_at("/detail").contains("is dead (lost)"),
        "{plain:?}"
    );
    assert!(plain.text_at("/hint").contains("force"), "{plain:?}");
    let forced = server
        .post(
            &format!("/api/v1/jobs/{first}/revive"),
            &json!({"force": true}),
        )
        .await;
    assert_eq!(forced.json["state"], "ready", "{forced:?}");
    let resolved = server.act(&format!("/api/v1/jobs/{second}/resolve")).await;
    assert_eq!(resolved.json["state"], "succeeded");
    let again = server.act(&format!("/api/v1/jobs/{second}/resolve")).await;
    assert_eq!(again.status, 409);
}

#[tokio::test]
async fn history_tells_of_every_attempt_newest_first() {
    let server = Server::open().await;
    let id = server
        .job(&json!({"kind": "a", "retry": "immediate"}))
        .await;
    let error = json!({"message": "outer", "causes": ["inner"]});
    server
        .run(&json!({"outcome": "failed", "error": error, "log": ["line"]}))
        .await;
    server
        .run(&json!({"outcome": "succeeded", "result": {"n": 1}}))
        .await;
    let history = server.get(&format!("/api/v1/jobs/{id}/history")).await;
    let rows = history.json["data"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0]["attempt"], &rows[0]["retry_count"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(
        (&rows[0]["outcome"], &rows[0]["error"]),
        (&json!("succeeded"), &Value::Null)
    );
    assert_eq!(
        (&rows[1]["outcome"], &rows[1]["error"]),
        (&json!("failed"), &error)
    );
    assert_eq!(rows[1]["log"][0]["line"], "line");
    for row in rows {
        for field in ["started_at", "finished_at", "worker"] {
            assert!(row[field].is_string(), "{field}");
        }
        assert!(row["http"].is_null());
    }
    let one = server
        .get(&format!("/api/v1/jobs/{id}/history?limit=1"))
        .await;
    assert_eq!(one.json["data"].as_array().unwrap().len(), 1);
    let refused = server
        .get(&format!("/api/v1/jobs/{id}/history?limit=0"))
        .await;
    assert_eq!(refused.pointer(), "/limit");
}

#[tokio::test]
async fn waiting_ends_with_the_job_and_tells_its_result() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a"})).await;
    let path = format!("/api/v1/jobs/{id}/wait");
    let not_yet = server.get(&format!("{path}?timeout_ms=1")).await;
    assert_eq!(
        (not_yet.status, &not_yet.json["state"]),
        (202, &json!("ready"))
    );
    let path = format!("{path}?timeout=30s");
    let outcome = json!({"outcome": "succeeded", "result": [1, 2]});
    let (waited, _) = tokio::join!(server.get(&path), server.run(&outcome));
    assert_eq!(
        (waited.status, &waited.json["result"]),
        (200, &json!([1, 2]))
    );
    let long = server
        .get(&format!("/api/v1/jobs/{id}/wait?timeout=1h"))
        .await;
    assert_eq!(long.pointer(), "/timeout");
}

#[tokio::test]
async fn why_explains_what_delays_a_job() {
    let server = Server::open().await;
    let codes = |answer: &crate::support::Answer| -> Vec<String> {
        let reasons = answer.json["reasons"].as_array().unwrap();
        reasons
            .iter()
            .map(|one| one["code"].as_str().unwrap().to_owned())
            .collect()
    };
    let id = server
        .job(&json!({"kind": "a", "queue": "q", "concurrency_key": "k"}))
        .await;
    // A node of the server keeps the store up, and runs nothing of this.
    let (store, now) = (
        windlass::admin::engine_of(&server.client).store(),
        server.client.now(),
    );
    let about = json!({"role": "server", "version": "1"});
    store.beat("server-1", &about, now).await.unwrap();
    let why = server.get(&format!("/api/v1/jobs/{id}/why")).await;
    assert_eq!(codes(&why), ["no_worker"], "{why:?}");
    server
        .post(
            "/api/v1/workers",
            &json!({"name": "w", "queues": ["q"], "kinds": ["a"]}),
        )
        .await;
    let why = server.get(&format!("/api/v1/jobs/{id}/why")).await;
    assert_eq!(codes(&why), ["next"]);
    server.act("/api/v1/queues/q/pause").await;
    let why = server.get(&format!("/api/v1/jobs/{id}/why")).await;
    assert_eq!(codes(&why), ["queue_paused"]);
    server.act("/api/v1/queues/q/resume").await;
    server.claim(&json!({"queue": "q", "worker": "w"})).await;
    let second = server
        .job(&json!({"kind": "a", "queue": "q", "concurrency_key": "k"}))
        .await;
    let why = server.get(&format!("/api/v1/jobs/{second}/why")).await;
    assert_eq!(codes(&why), ["limit_held"]);
    assert!(why.text_at("/reasons/0/text").contains(&id));
    let third = server.job(&json!({"kind": "a", "queue": "q"})).await;
    let why = server.get(&format!("/api/v1/jobs/{third}/why")).await;
    assert_eq!(codes(&why), ["behind"]);
    let later = server
        .job(&json!({"kind": "a", "queue": "q", "delay": "1h"}))
        .await;
    let why = server.get(&format!("/api/v1/jobs/{later}/why")).await;
    assert_eq!(codes(&why), ["not_due"]);
    let rate = json!({"rate": {"count": 1, "period": "1h"}});
    let path = "/api/v1/queues/limited/settings?create=true";
    server.put(path, &rate).await;
    let limited = json!({"kind": "a", "queue": "limited"});
    let (_, held) = (server.job(&limited).await, server.job(&limited).await);
    server
        .claim(&json!({"queue": "limited", "worker": "other"}))
        .await;
    let why = server.get(&format!("/api/v1/jobs/{held}/why")).await;
    assert_eq!(codes(&why), ["rate_held"], "{why:?}");
    let running = server.get(&format!("/api/v1/jobs/{id}/why")).await;
    assert_eq!(
        (codes(&running), running.text_at("/state")),
        (vec!["not_waiting".to_owned()], "running".to_owned())
    );
}

#[tokio::test]
async fn why_explains_a_death_and_what_reviving_would_do() {
    let server = Server::open().await;
    let why = |id: &str| {
        let (server, path) = (&server, format!("/api/v1/jobs/{id}/why"));
        async move { server.get(&path).await }
    };
    let failed = json!({"outcome": "failed", "error": "no such card"});
    let new = json!({"kind": "a", "queue": "q", "max_attempts": 1, "unique_key": "u"});
    let dead = server.job(&new).await;
    let claim = json!({"queue": "q"});
    server.run_claimed(&claim, &failed).await;
    let told = why(&dead).await;
    assert_eq!(told.text_at("/reasons/0/code"), "dead");
    let (death, revive) = (&told.json["death"], &told.json["revive"]);
    assert_eq!(death["reason"], "exhausted");
    assert_eq!(death["text"], "1 of 1 attempts failed");
    assert_eq!(death["last_error"], "no such card");
    assert!(death["at"].is_string(), "{death}");
    assert_eq!(
        death["policy"],
        json!({"source": "default", "retry": "standard"})
    );
    assert_eq!(
        (&revive["allowed"], &revive["attempts_left"]),
        (&json!(true), &json!(1))
    );
    // Its queue gets a policy of its own and is full, and another job takes the unique key.
    let settings = json!({"retry": "webhook", "max_depth": 1});
    let put = server.put("/api/v1/queues/q/settings", &settings).await;
    assert_eq!(put.status, 200, "{put:?}");
    let other = server.job(&new).await;
    let told = why(&dead).await;
    assert_eq!(told.json["death"]["policy"]["source"], "queue");
    let refusals = &told.json["revive"]["refusals"];
    assert_eq!(told.json["revive"]["allowed"], false);
    assert_eq!(refusals[0]["code"], "queue_full", "{refusals}");
    assert_eq!(refusals[1]["code"], "unique_key_taken", "{refusals}");
    let text = refusals[1]["text"].as_str().unwrap();
    assert!(text.contains(&other), "{text}");
    let revived = server.act(&format!("/api/v1/jobs/{dead}/revive")).await;
    assert!(revived.status >= 400, "as was said: {revived:?}");
    // A cancelled job is not dead, and can be revived too.
    server.act(&format!("/api/v1/jobs/{other}/cancel")).await;
    let told = why(&other).await;
    assert_eq!(told.json.get("death"), None, "{told:?}");
    assert_eq!(told.json["revive"]["allowed"], true, "{told:?}");
}

#[tokio::test]
async fn why_names_the_policy_of_http_jobs() {
    let server = Server::open().await;
    let new = json!({"kind": "http", "payload": {"url": "https://example.com"}});
    let dead = server.job(&new).await;
    let failed = json!({"outcome": "failed", "error": "gone", "unrecoverable": true});
    server
        .run_claimed(&json!({"kinds": ["http"]}), &failed)
        .await;
    let why = server.get(&format!("/api/v1/jobs/{dead}/why")).await;
    let webhook = json!({"source": "kind", "retry": "webhook"});
    assert_eq!(why.json["death"]["policy"], webhook, "{why:?}");
    assert_eq!(why.json["revive"]["policy"], webhook);
}

#[tokio::test]
async fn a_revival_changes_the_limit_the_policy_the_queue_and_the_priority() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a", "max_attempts": 1})).await;
    server
        .run(&json!({"outcome": "failed", "error": "x"}))
        .await;
    let path = format!("/api/v1/jobs/{id}/revive");
    for (body, pointer) in [
        (json!({"max_attempts": 0}), "/max_attempts"),
        (json!({"retry": "often"}), "/retry"),
        (json!({"queue": "windlass.hooks"}), "/queue"),
        (json!({"priority": 40_000}), "/priority"),
    ] {
        let refused = server.post(&path, &body).await;
        assert_eq!(
            (refused.status, refused.pointer()),
            (422, pointer.to_owned())
        );
    }
    let changes = json!({"max_attempts": 5, "retry": "patient", "queue": "slow", "priority": 7});
    let revived = server.post(&path, &changes).await;
    assert_eq!(revived.status, 200, "{revived:?}");
    assert_eq!(
        (&revived.json["queue"], &revived.json["priority"]),
        (&json!("slow"), &json!(7))
    );
    assert_eq!(revived.json["max_attempts"], 5);
    assert_eq!(revived.json["state"], "ready");
    let audit = server.get("/api/v1/audit?action=job.revive").await;
    let changes = &audit.json["data"][0]["detail"]["changes"];
    assert_eq!(changes["queue"], json!({"old": "default", "new": "slow"}));
    assert_eq!(changes["max_attempts"], json!({"old": 1, "new": 5}));
    assert!(changes["retry"]["new"].is_object(), "{changes}");
}

#[tokio::test]
async fn why_plans_the_attempts_that_a_waiting_job_still_has() {
    let server = Server::open().await;
    let backoff = json!({"type": "constant", "delay": "1h"});
    let jitter = json!({"type": "proportional", "ratio": 0.5});
    let retry = json!({"backoff": backoff, "jitter": jitter, "max_attempts": 3});
    let id = server
        .job(&json!({"kind": "a", "retry": retry, "run_at": "2100-01-01T00:00:00Z"}))
        .await;
    let why = server.get(&format!("/api/v1/jobs/{id}/why")).await;
    let plan = &why.json["plan"];
    assert_eq!(plan["max_attempts"], 3, "{why:?}");
    assert_eq!(plan["policy"]["source"], "job");
    let expected = json!([
        {"attempt": 1, "earliest_at": "2100-01-01T00:00:00Z", "nominal_at": "2100-01-01T00:00:00Z",
         "latest_at": "2100-01-01T00:00:00Z"},
        {"attempt": 2, "earliest_at": "2100-01-01T00:30:00Z", "nominal_at": "2100-01-01T01:00:00Z",
         "latest_at": "2100-01-01T01:30:00Z"},
        {"attempt": 3, "earliest_at": "2100-01-01T01:00:00Z", "nominal_at": "2100-01-01T02:00:00Z",
         "latest_at": "2100-01-01T03:00:00Z"},
    ]);
    assert_eq!(plan["attempts"], expected, "{why:?}");
    server.act(&format!("/api/v1/jobs/{id}/cancel")).await;
    let why = server.get(&format!("/api/v1/jobs/{id}/why")).await;
    assert_eq!(why.json.get("plan"), None, "{why:?}");
}
