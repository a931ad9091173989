//! Schedules: their whole life.

use serde_json::{Value, json};

use windlass_core::ScheduleId;
use windlass_core::schedule::{SkipReason, SkippedRange};
use windlass_store::{Expected, Fire, ScheduleRef};

use crate::support::Server;

fn nightly() -> Value {
    json!({"name": "nightly", "cron": "0 2 * * *", "job": {"kind": "report", "payload": {"a": 1}}})
}

#[tokio::test]
async fn a_schedule_is_created_read_listed_and_deleted() {
    let server = Server::open().await;
    let created = server.post("/api/v1/schedules", &nightly()).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!(
        created.header("location"),
        Some("/api/v1/schedules/nightly")
    );
    insta::assert_snapshot!(created.redacted());
    assert!(created.header("etag").is_some());
    let id = created.text_at("/id");
    for name in ["nightly", id.as_str()] {
        let read = server.get(&format!("/api/v1/schedules/{name}")).await;
        assert_eq!((read.status, read.text_at("/id")), (200, id.clone()));
    }
    let again = server.post("/api/v1/schedules", &nightly()).await;
    assert_eq!(
        (again.status, again.code().as_str()),
        (409, "schedule_exists")
    );
    let mut other = nightly();
    other["name"] = json!("a/b:c");
    server.post("/api/v1/schedules", &other).await;
    let first = server.get("/api/v1/schedules?limit=1").await;
    assert_eq!(first.json["data"][0]["name"], "a/b:c");
    let cursor = first.text_at("/next_cursor");
    let second = server
        .get(&format!("/api/v1/schedules?limit=1&cursor={cursor}"))
        .await;
    assert_eq!(second.json["data"][0]["name"], "nightly");
    assert_eq!(second.json["next_cursor"], Value::Null);
    assert_eq!(server.get("/api/v1/schedules/a%2Fb%3Ac").await.status, 200);
    assert_eq!(server.delete("/api/v1/schedules/nightly").await.status, 204);
    assert_eq!(server.delete("/api/v1/schedules/nightly").await.status, 404);
    assert_eq!(server.get("/api/v1/schedules/nightly").await.status, 404);
}

#[tokio::test]
async fn a_bad_schedule_is_refused_by_field() {
    let server = Server::open().await;
    let mut refusals = String::new();
    for (field, value) in [
        ("cron", json!("61 * * * *")),
        ("cron", json!("0 0 30 2 *")),
        ("timezone", json!("Nowhere/City")),
        ("overlap", json!("maybe")),
        ("colour", json!(1)),
        ("job", json!({"kind": ""})),
        ("job", Value::Null),
        ("name", json!("no spaces")),
    ] {
        let mut body = nightly();
        refusals += &format!("{field}: {value}\n");
        body[field] = value;
        let refused = server.post("/api/v1/schedules", &body).await;
        refusals += &format!("{}\n", refused.redacted());
    }
    insta::assert_snapshot!(refusals);
}

#[tokio::test]
async fn put_creates_then_replaces() {
    let server = Server::open().await;
    let body = json!({"every": "90s", "job": {"kind": "tick"}});
    let created = server.put("/api/v1/schedules/pulse", &body).await;
    assert_eq!(created.status, 201, "{created:?}");
    let body = json!({"every": "60s", "job": {"kind": "tick"}, "name": "pulse"});
    let replaced = server.put("/api/v1/schedules/pulse", &body).await;
    assert_eq!(
        (replaced.status, replaced.text_at("/every")),
        (200, "1m".to_owned())
    );
    assert_eq!(replaced.text_at("/id"), created.text_at("/id"));
    let body = json!({"every": "60s", "job": {"kind": "tick"}, "name": "other"});
    let refused = server.put("/api/v1/schedules/pulse", &body).await;
    assert_eq!(refused.pointer(), "/name");
}

#[tokio::test]
async fn an_edit_is_refused_after_someone_else_changed_the_schedule() {
    let server = Server::open().await;
    let created = server.post("/api/v1/schedules", &nightly()).await;
    let etag = created.header("etag").unwrap().to_owned();
    let path = "/api/v1/schedules/nightly";
    let edit = |tag: String, body: Value| {
        let server = &server;
        async move {
            let body = body.to_string();
            server
                .send("PATCH", path, &[("If-Match", &tag)], Some(body.as_bytes()))
                .await
        }
    };
    let edited = edit(etag.clone(), json!({"overlap": "allow"})).await;
    assert_eq!(
        (edited.status, edited.text_at("/overlap")),
        (200, "allow".to_owned())
    );
    assert_eq!(
        edited.text_at("/cron"),
        "0 2 * * *",
        "what was not given stays"
    );
    let stale = edit(etag.clone(), json!({"overlap": "skip"})).await;
    assert_eq!(
        (stale.status, stale.code().as_str()),
        (412, "precondition_failed")
    );
    let fresh = edit(
        edited.header("etag").unwrap().to_owned(),
        json!({"overlap": "skip"}),
    )
    .await;
    assert_eq!(fresh.status, 200);
    let gone = server
        .send("DELETE", path, &[("If-Match", &etag)], None)
        .await;
    assert_eq!(gone.status, 204, "the same definition has the same tag");
    let missing = server
        .send(
            "PUT",
            path,
            &[("If-Match", "*")],
            Some(br#"{"every":"1s","job":{"kind":"a"}}"#),
        )
        .await;
    assert_eq!(missing.status, 412, "`*` is for what is there");
    let refused = server.patch("/api/v1/schedules/nightly", &json!({})).await;
    assert_eq!(refused.status, 404);
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_and_run_now() {
    let server = Server::open().await;
    server.post("/api/v1/schedules", &nightly()).await;
    let paused = server.act("/api/v1/schedules/nightly/pause").await;
    assert_eq!(
        (&paused.json["paused"], &paused.json["next_at"]),
        (&json!(true), &Value::Null)
    );
    let run = server.act("/api/v1/schedules/nightly/run-now").await;
    assert_eq!(run.status, 201, "{run:?}");
    let job = server
        .get(&format!("/api/v1/jobs/{}", run.text_at("/job_id")))
        .await;
    assert_eq!(
        (&job.json["kind"], &job.json["schedule_id"]),
        (&json!("report"), &paused.json["id"])
    );
    let listed = server
        .get(&format!("/api/v1/jobs?schedule={}", paused.text_at("/id")))
        .await;
    assert_eq!(listed.json["data"].as_array().unwrap().len(), 1);
    let resumed = server.act("/api/v1/schedules/nightly/resume").await;
    assert_eq!(resumed.json["paused"], false);
    assert!(resumed.json["next_at"].is_string());
    for action in ["pause", "resume", "run-now"] {
        let missing = server
            .act(&format!("/api/v1/schedules/nothing/{action}"))
            .await;
        assert_eq!(missing.status, 404, "{action}");
    }
}

#[tokio::test]
async fn a_range_in_the_past_is_backfilled_once() {
    let server = Server::open().await;
    server.post("/api/v1/schedules", &nightly()).await;
    let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T12:00:00Z"});
    let made = server
        .post("/api/v1/schedules/nightly/backfill", &range)
        .await;
    assert_eq!(made.json["created"], 3, "{made:?}");
    let again = server
        .post("/api/v1/schedules/nightly/backfill", &range)
        .await;
    assert_eq!(again.json["created"], 0);
    let occurrences = server
        .get("/api/v1/schedules/nightly/occurrences?limit=2")
        .await;
    let rows = occurrences.json["data"].as_array().unwrap();
    assert_eq!(rows[0]["scheduled_for"], "2026-01-03T02:00:00Z");
    assert_eq!(
        (&rows[0]["fired"], &rows[0]["state"]),
        (&json!(true), &json!("ready"))
    );
    assert_eq!(rows[0]["failures"], 0, "{occurrences:?}");
    assert_eq!(rows[0].get("started_at"), None, "no attempt has started");
    let cursor = occurrences.text_at("/next_cursor");
    let rest = server
        .get(&format!(
            "/api/v1/schedules/nightly/occurrences?limit=2&cursor={cursor}"
        ))
        .await;
    assert_eq!(
        rest.json["data"][0]["scheduled_for"],
        "2026-01-01T02:00:00Z"
    );
    for (body, pointer) in [
        (json!({"from": "2026-01-01T00:00:00Z"}), "/to"),
        (
            json!({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}),
            "/to",
        ),
        (
            json!({"from": "2026-01-02T00:00:00Z", "to": "2999-01-01T00:00:00Z"}),
            "/to",
        ),
    ] {
        let refused = server
            .post("/api/v1/schedules/nightly/backfill", &body)
            .await;
        assert_eq!(refused.pointer(), pointer);
    }
}

#[tokio::test]
async fn a_rule_is_previewed_before_and_after_it_is_stored() {
    let server = Server::open().await;
    let rule = json!({
        "cron": "30 2 * * *", "timezone": "America/New_York", "after": "2026-03-07T12:00:00Z", "count": 2,
    });
    let preview = server.post("/api/v1/schedules/preview", &rule).await;
    let rows = preview.json["data"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{preview:?}");
    assert_eq!(rows[0]["at"], "2026-03-08T07:00:00Z");
    assert!(rows[0]["note"].as_str().unwrap().contains("does not exist"));
    for (body, pointer) in [
        (json!({"cron": "nonsense"}), "/cron"),
        (json!({"cron": "* * * * *", "paused": true}), "/paused"),
        (json!({"cron": "* * * * *", "count": 100_000}), "/count"),
        (json!({}), "/cron"),
    ] {
        let refused = server.post("/api/v1/schedules/preview", &body).await;
        assert_eq!(refused.pointer(), pointer);
    }
    server.post("/api/v1/schedules", &nightly()).await;
    let next = server
        .get("/api/v1/schedules/nightly/preview?count=3")
        .await;
    assert_eq!(next.json["data"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn schedules_are_listed_by_name_pause_queue_and_kind() {
    let server = Server::open().await;
    for (name, queue, kind, paused) in [
        ("mail.a", "mail", "send", false),
        ("mail.b", "mail", "clean", true),
        ("report", "slow", "send", false),
    ] {
        let job = json!({"kind": kind, "queue": queue});
        let body = json!({"name": name, "every": "1h", "job": job, "paused": paused});
        assert_eq!(server.post("/api/v1/schedules", &body).await.status, 201);
    }
    spoiled(&server, "mail.spoiled").await;
    for (query, expected) in [
        ("", &["mail.a", "mail.b", "mail.spoiled", "report"][..]),
        ("?name_prefix=mail.", &["mail.a", "mail.b", "mail.spoiled"]),
        ("?paused=true", &["mail.b"]),
        ("?paused=false", &["mail.a", "report"]),
        ("?queue=mail", &["mail.a", "mail.b"]),
        ("?kind=send", &["mail.a", "report"]),
        ("?kind=send&name_prefix=r", &["report"]),
    ] {
        let listed = server.get(&format!("/api/v1/schedules{query}")).await;
        let rows = listed.json["data"].as_array().unwrap().iter();
        let names: Vec<&str> = rows.map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{query}");
    }
    let first = server.get("/api/v1/schedules?queue=mail&limit=1").await;
    let link = first.header("link").unwrap();
    assert!(link.contains("queue=mail"), "{link}");
}

#[tokio::test]
async fn each_schedule_of_a_bulk_request_has_its_own_result() {
    let server = Server::open().await;
    let new = |name: &str| json!({"name": name, "every": "1h", "job": {"kind": "a"}});
    server.post("/api/v1/schedules", &new("known")).await;
    let bulk = json!({"schedules": [
        new("one"), new("known"), {"name": "x y", "cron": "soon", "job": {}}, new("two"), 7,
        {"name": "bulk", "every": "1h", "job": {"kind": "a"}},
        {"name": "http", "every": "1h", "job": {"http": {"url": "ftp://a"}}},
    ]});
    let answer = server.post("/api/v1/schedules/bulk", &bulk).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let counts = (&answer.json["created"], &answer.json["refused"]);
    assert_eq!(counts, (&json!(2), &json!(5)));
    let data = answer.json["data"].as_array().unwrap();
    assert_eq!(
        (&data[0]["name"], &data[3]["name"]),
        (&json!("one"), &json!("two"))
    );
    assert!(data[0]["next_at"].is_string());
    assert_eq!(data[1]["problem"]["code"], "schedule_exists");
    let pointers = |index: usize| {
        let problems = data[index]["problem"]["errors"].as_array().unwrap().iter();
        let mut pointers: Vec<_> = problems.map(|one| one["pointer"].clone()).collect();
        pointers.sort_by_key(ToString::to_string);
        pointers
    };
    let all = [
        "/schedules/2/cron",
        "/schedules/2/job/kind",
        "/schedules/2/name",
    ];
    assert_eq!(pointers(2), all);
    assert_eq!(pointers(4), ["/schedules/4"]);
    assert_eq!(pointers(5), ["/schedules/5/name"]);
    assert_eq!(pointers(6), ["/schedules/6/job/http/url"]);
    let none = server
        .post("/api/v1/schedules/bulk", &json!({"schedules": []}))
        .await;
    assert_eq!(
        (none.status, none.pointer()),
        (422, "/schedules".to_owned())
    );
    let audit = server.get("/api/v1/audit?action=schedule.create").await;
    assert_eq!(audit.json["data"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_preview_starts_at_from() {
    let server = Server::open().await;
    let rule = json!({"cron": "0 2 * * *", "from": "2026-03-08T02:00:00Z", "count": 1});
    let preview = server.post("/api/v1/schedules/preview", &rule).await;
    assert_eq!(preview.json["data"][0]["at"], "2026-03-08T02:00:00Z");
}

/// Stores a schedule that cannot be read back, as one is whose time zone is gone.
async fn spoiled(server: &Server, name: &str) {
    server
        .put(
            &format!("/api/v1/schedules/{name}"),
            &json!({"every": "1h", "job": {"kind": "a", "payload": 7}}),
        )
        .await;
    let store = windlass::admin::engine_of(&server.client).store();
    let which = ScheduleRef::Name(name.parse().unwrap());
    let mut found = store.schedule(&which).await.unwrap().unwrap();
    found.definition.job.meta.insert("\0".to_owned(), json!(1));
    let version = Expected::Version(found.version);
    store.put_schedule(&found, version).await.unwrap();
    assert_eq!(store.schedule(&which).await.unwrap(), None);
}

#[tokio::test]
async fn an_unreadable_schedule_is_shown_with_the_reason_and_can_be_replaced() {
    let server = Server::open().await;
    server.post("/api/v1/schedules", &nightly()).await;
    spoiled(&server, "lost").await;
    let listed = server.get("/api/v1/schedules").await;
    let names: Vec<_> = listed.json["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["lost", "nightly"], "{listed:?}");
    let read = server.get("/api/v1/schedules/lost").await;
    assert_eq!((read.status, &read.json["next_at"]), (200, &Value::Null));
    assert!(read.text_at("/error").contains("meta"), "{read:?}");
    assert_eq!(read.json["every"], "1h", "the rest is as it was written");
    for (method, path) in [("PATCH", ""), ("POST", "/pause"), ("POST", "/run-now")] {
        let path = format!("/api/v1/schedules/lost{path}");
        let body: Option<&[u8]> = (method == "PATCH").then_some(b"{}");
        let refused = server.send(method, &path, &[], body).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (409, "schedule_unreadable")
        );
    }
    let again = json!({"name": "lost", "every": "1h", "job": {"kind": "a"}});
    let taken = server.post("/api/v1/schedules", &again).await;
    assert_eq!(taken.code(), "schedule_exists");
    let anew = server.put("/api/v1/schedules/lost", &again).await;
    assert_eq!(
        (anew.status, anew.text_at("/id")),
        (200, read.text_at("/id"))
    );
    assert!(anew.json["next_at"].is_string() && anew.json.get("error").is_none());
    spoiled(&server, "lost").await;
    assert_eq!(server.delete("/api/v1/schedules/lost").await.status, 204);
    assert_eq!(server.get("/api/v1/schedules/lost").await.status, 404);
}

#[tokio::test]
async fn a_list_goes_on_behind_a_name_whatever_went_before_it() {
    let server = Server::open().await;
    for name in ["a", "b", "c", "d"] {
        let body = json!({"every": "1h", "job": {"kind": "k"}});
        server
            .put(&format!("/api/v1/schedules/{name}"), &body)
            .await;
    }
    let first = server.get("/api/v1/schedules?limit=2").await;
    server.delete("/api/v1/schedules/a").await;
    let next = format!(
        "/api/v1/schedules?limit=2&cursor={}",
        first.text_at("/next_cursor")
    );
    let second = server.get(&next).await;
    let names: Vec<_> = second.json["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["c", "d"], "an offset would have left one out");
    assert_eq!(second.json["next_cursor"], Value::Null);
    let other = server.get("/api/v1/schedules?cursor=q61").await;
    assert_eq!((other.status, other.pointer().as_str()), (422, "/cursor"));
}

#[tokio::test]
async fn skipped_occurrences_are_listed_in_pages_for_one_schedule() {
    let server = Server::open().await;
    server.post("/api/v1/schedules", &nightly()).await;
    let store = windlass::admin::engine_of(&server.client).store();
    let which = ScheduleRef::Name("nightly".parse().unwrap());
    let day = |day: usize| format!("2026-01-{day:02}T02:00:00Z").parse().unwrap();
    let other = Fire::skipped_topic(ScheduleId::from_u128(1));
    for _ in 0..11 {
        store
            .append(&other, &vec![json!({}); 1000], server.client.now())
            .await
            .unwrap();
    }
    for number in [1, 3, 5] {
        let found = store.schedule(&which).await.unwrap().unwrap();
        let fire = Fire {
            skipped: vec![SkippedRange::one(day(number), SkipReason::Missed)],
            ..Fire::nothing(&found)
        };
        store.fire(vec![fire], server.client.now()).await.unwrap();
    }
    let range = json!({"from": "2026-01-02T00:00:00Z", "to": "2026-01-04T12:00:00Z"});
    server
        .post("/api/v1/schedules/nightly/backfill", &range)
        .await;
    let (mut path, mut rows) = (
        "/api/v1/schedules/nightly/occurrences?limit=2".to_owned(),
        Vec::new(),
    );
    loop {
        let page = server.get(&path).await;
        let found = page.json["data"].as_array().unwrap().clone();
        assert!(found.len() <= 3, "what has the same instant stays together");
        rows.extend(found);
        let Some(cursor) = page.json["next_cursor"].as_str() else {
            break;
        };
        path = format!("/api/v1/schedules/nightly/occurrences?limit=2&cursor={cursor}");
    }
    let told: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["scheduled_for"].as_str().unwrap()[8..10].to_owned(),
                row["fired"] == true,
            )
        })
        .collect();
    let expected = [
        ("05", false),
        ("04", true),
        ("03", true),
        ("03", false),
        ("02", true),
        ("01", false),
    ];
    let mut sorted = told.clone();
    sorted.sort_by_key(|(day, fired)| std::cmp::Reverse((day.clone(), *fired)));
    assert_eq!(sorted, expected.map(|(day, fired)| (day.to_owned(), fired)));
}

#[tokio::test]
async fn a_repeated_run_with_the_same_key_runs_once() {
    let server = Server::open().await;
    server.post("/api/v1/schedules", &nightly()).await;
    let run = async || {
        let key = [("Idempotency-Key", "once")];
        server
            .send("POST", "/api/v1/schedules/nightly/run-now", &key, None)
            .await
    };
    let (first, second) = (run().await, run().await);
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.text_at("/job_id"), second.text_at("/job_id"));
    let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T12:00:00Z"}).to_string();
    for _ in 0..2 {
        let key = [("Idempotency-Key", "range")];
        let made = server
            .send(
                "POST",
                "/api/v1/schedules/nightly/backfill",
                &key,
                Some(range.as_bytes()),
            )
            .await;
        assert_eq!(made.json["created"], 3, "the same answer again");
    }
}

#[tokio::test]
async fn every_change_heeds_if_match() {
    let server = Server::open().await;
    let created = server.post("/api/v1/schedules", &nightly()).await;
    let etag = created.header("etag").unwrap().to_owned();
    let path = "/api/v1/schedules/nightly";
    for stale in ["\"other\"", "\u{fc}"] {
        for (method, action) in [
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("DELETE", ""),
            ("PATCH", ""),
        ] {
            let address = format!("{path}{action}");
            let body: Option<&[u8]> = (method == "PATCH").then_some(b"{}");
            let refused = server
                .send(method, &address, &[("If-Match", stale)], body)
                .await;
            assert_eq!(refused.status, 412, "{method} {address} {stale}");
        }
    }
    let paused = server
        .send(
            "POST",
            &format!("{path}/pause"),
            &[("If-Match", &etag)],
            None,
        )
        .await;
    assert_eq!((paused.status, &paused.json["paused"]), (200, &json!(true)));
}

#[tokio::test]
async fn a_name_that_looks_like_an_id_is_refused() {
    let server = Server::open().await;
    let path = "/api/v1/schedules/018f0000-0000-7000-8000-000000000000";
    let refused = server
        .put(path, &json!({"every": "1h", "job": {"kind": "a"}}))
        .await;
    assert_eq!((refused.status, refused.pointer().as_str()), (422, "/name"));
}
