//! The audit log: its list, and what its records say.

use serde_json::{Value, json};

use std::time::Duration;

use windlass_server::Settings;
use windlass_server::access::Scope;

use crate::support::{Answer, Server};

async fn dead(server: &Server, payload: Value) -> String {
    let job = json!({"kind": "a", "max_attempts": 1, "payload": payload});
    let id = server.job(&job).await;
    server
        .run(&json!({"outcome": "failed", "error": "boom"}))
        .await;
    id
}

/// The detail of the newest record.
async fn newest(server: &Server) -> Value {
    let page = server.get("/api/v1/audit?limit=1").await;
    page.json["data"][0]["detail"].clone()
}

fn hash_of<'a>(change: &'a Value, which: &str) -> &'a str {
    change["payload"][which]["sha256"].as_str().unwrap()
}

/// `action target` of each record of a page.
fn acts(page: &Answer) -> Vec<String> {
    let rows = page.json["data"].as_array().unwrap();
    let act = |row: &Value| {
        let (action, target) = (row["action"].as_str(), row["target"].as_str());
        format!("{} {}", action.unwrap(), target.unwrap())
    };
    rows.iter().map(act).collect()
}

#[tokio::test]
async fn the_audit_log_lists_newest_first_with_filters_and_in_pages() {
    let server = Server::open().await;
    for queue in ["a", "b", "c"] {
        let path = format!("/api/v1/queues/{queue}/pause?create=true");
        server.act(&path).await;
    }
    server.act("/api/v1/queues/a/resume").await;
    let list = async |query: &str| server.get(&format!("/api/v1/audit?{query}")).await;
    let first = list("limit=3&action=queue.").await;
    let newest = ["queue.resume a", "queue.pause c", "queue.pause b"];
    assert_eq!(acts(&first), newest);
    let cursor = first.text_at("/next_cursor");
    let link = first.header("link").unwrap().to_owned();
    assert!(
        link.contains(&cursor) && link.contains("action=queue."),
        "{link}"
    );
    let rest = list(&format!("limit=3&action=queue.&cursor={cursor}")).await;
    assert_eq!(acts(&rest), ["queue.pause a"]);
    assert_eq!(rest.json["next_cursor"], json!(null));
    assert_eq!(
        (&rest.json["scanned"], rest.header("link")),
        (&json!(1), None)
    );
    assert_eq!(rest.json["scanned_until"], rest.json["data"][0]["at"]);

    assert_eq!(
        acts(&list("target=a").await),
        ["queue.resume a", "queue.pause a"]
    );
    assert_eq!(acts(&list("action=queue.resume").await), ["queue.resume a"]);
    assert_eq!(acts(&list("key=local&target=b").await), ["queue.pause b"]);
    assert!(acts(&list("key=somebody").await).is_empty());
    let at = rest.text_at("/data/0/at");
    assert_eq!(acts(&list(&format!("from={at}")).await).len(), 4);
    assert!(acts(&list(&format!("before={at}")).await).is_empty());
    for (query, pointer) in [
        ("from=soon", "/from"),
        ("before=soon", "/before"),
        ("cursor=x", "/cursor"),
        ("limit=1001", "/limit"),
        ("since=1", "/since"),
    ] {
        assert_eq!(list(query).await.pointer(), pointer, "{query}");
    }
}

#[tokio::test]
async fn an_edit_says_what_changed_and_the_replaced_payload_can_be_read() {
    let server = Server::open().await;
    let id = server
        .job(&json!({"kind": "a", "delay": "1h", "payload": {"card": 4111}}))
        .await;
    let path = format!("/api/v1/jobs/{id}");
    let edit = json!({"payload": {"card": 42}, "priority": 7, "queue": "other"});
    assert_eq!(server.patch(&path, &edit).await.status, 200);
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(changes["priority"], json!({"old": 0, "new": 7}));
    assert_eq!(changes["queue"], json!({"old": "default", "new": "other"}));
    assert_eq!(changes["run_at"], Value::Null, "what stays is left out");
    let (old, new) = (&changes["payload"]["old"], &changes["payload"]["new"]);
    assert_eq!((&old["bytes"], &new["bytes"]), (&json!(13), &json!(11)));
    // printf %s '{"card":4111}' | sha256sum
    let hash = "aab10758cd3262ba2e4b9351621d0dc01a4c99d21b28f32022facff5ee0266ac";
    assert_eq!(old["sha256"], hash);
    assert_ne!(hash_of(&changes, "new"), hash);

    let kept = server
        .get(&format!("{path}/replaced-payloads/{hash}"))
        .await;
    assert_eq!(kept.json["payload"], json!({"card": 4111}), "{kept:?}");
    assert_eq!(kept.json["kept_until"], old["kept_until"]);
    let log = server.get("/api/v1/audit").await.text();
    assert!(!log.contains("4111"), "{log}");
    for wrong in [
        "0".repeat(64),
        "x".to_owned(),
        "%00".to_owned(),
        hash.to_uppercase(),
    ] {
        let missing = server
            .get(&format!("{path}/replaced-payloads/{wrong}"))
            .await;
        assert_eq!(missing.status, 404, "{wrong}");
    }
}

#[tokio::test]
async fn only_a_key_that_reads_payloads_gets_a_replaced_one() {
    let mut server = Server::closed().await;
    server.key = Some(server.new_key(&[Scope::Admin]).await);
    let id = server
        .job(&json!({"kind": "a", "delay": "1h", "payload": 1}))
        .await;
    let path = format!("/api/v1/jobs/{id}");
    server.patch(&path, &json!({"payload": 2})).await;
    let changes = newest(&server).await["changes"].clone();
    let path = format!("{path}/replaced-payloads/{}", hash_of(&changes, "old"));
    for (scopes, status) in [
        (
            &[Scope::Read, Scope::Operate, Scope::Enqueue, Scope::Work][..],
            403,
        ),
        (&[Scope::ReadPayload], 200),
    ] {
        server.key = Some(server.new_key(scopes).await);
        assert_eq!(server.get(&path).await.status, status, "{scopes:?}");
    }
}

#[tokio::test]
async fn revivals_say_what_changed() {
    let server = Server::open().await;
    let id = dead(&server, json!({"n": 1})).await;
    let path = format!("/api/v1/jobs/{id}");
    let body = json!({"payload": {"n": 22}}).to_string();
    let revive = format!("{path}/revive");
    let revived = server
        .send("POST", &revive, &[], Some(body.as_bytes()))
        .await;
    assert_eq!(revived.status, 200, "{revived:?}");
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(changes["state"], json!({"old": "dead", "new": "ready"}));
    assert_eq!(changes["reason"], json!({"old": "exhausted", "new": null}));
    assert_eq!(changes["failures"], json!({"old": 1, "new": 0}));
    assert_eq!(changes["run_at"]["new"], revived.json["run_at"]);
    let hash = hash_of(&changes, "old");
    let kept = server
        .get(&format!("{path}/replaced-payloads/{hash}"))
        .await;
    assert_eq!(kept.json["payload"], json!({"n": 1}));
}

#[tokio::test]
async fn every_other_change_of_a_job_says_what_changed() {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a", "delay": "1h"})).await;
    let path = format!("/api/v1/jobs/{id}");
    let due = server.act(&format!("{path}/run-now")).await;
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(
        changes["state"],
        json!({"old": "scheduled", "new": "ready"})
    );
    assert!(changes["run_at"]["old"].as_str() > due.json["run_at"].as_str());
    server.act(&format!("{path}/cancel")).await;
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(
        changes,
        json!({"state": {"old": "ready", "new": "cancelled"}})
    );
    server.delete(&path).await;
    let detail = newest(&server).await;
    assert_eq!(
        (&detail["kind"], &detail["queue"]),
        (&json!("a"), &json!("default"))
    );
    assert_eq!(detail["state"], "cancelled");

    let id = server.job(&json!({"kind": "a", "delay": "1h"})).await;
    let body = json!({"ids": [id]});
    server.post("/api/v1/jobs/run-now", &body).await;
    let detail = newest(&server).await;
    assert_eq!(detail["jobs"][0]["job"], id.as_str());
    let changes = &detail["jobs"][0]["changes"];
    assert_eq!(
        changes["state"],
        json!({"old": "scheduled", "new": "ready"})
    );
    assert_eq!(server.claim(&json!({})).await.len(), 1);
    server.act(&format!("/api/v1/jobs/{id}/cancel")).await;
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(
        changes,
        json!({"cancel_requested": {"old": false, "new": true}})
    );
}

#[tokio::test]
async fn the_retention_and_the_size_decide_whether_a_replaced_payload_is_kept() {
    let large = json!("x".repeat(1024 * 1024));
    for (days, payload, reason) in [
        (2, json!(1), None),
        (0, json!(1), Some("`retention.replaced_payloads` is 0")),
        (2, large, Some("larger than 1048576 bytes")),
    ] {
        let retention = Duration::from_secs(days * 86_400);
        let server = Server::with_settings(Settings {
            payload_bytes_max: 4 * 1024 * 1024,
            replaced_payload_retention: retention,
            ..Settings::default()
        })
        .await;
        let id = server
            .job(&json!({"kind": "a", "delay": "1h", "payload": payload}))
            .await;
        let path = format!("/api/v1/jobs/{id}");
        assert_eq!(
            server.patch(&path, &json!({"payload": 2})).await.status,
            200
        );
        let changes = newest(&server).await["changes"].clone();
        let old = &changes["payload"]["old"];
        assert_eq!(old["not_kept"].as_str(), reason);
        let hash = hash_of(&changes, "old");
        let kept = server
            .get(&format!("{path}/replaced-payloads/{hash}"))
            .await;
        if reason.is_some() {
            assert_eq!((kept.status, &old["kept_until"]), (404, &Value::Null));
            continue;
        }
        let at = |name: &str| -> windlass_core::Timestamp { kept.text_at(name).parse().unwrap() };
        let (from, until) = (at("/replaced_at"), at("/kept_until"));
        assert_eq!(until, from.saturating_add(retention));
        let store = windlass::admin::engine_of(&server.client).store();
        let name = format!("{id}/{hash}");
        let expired = store.document("replaced_payloads", &name, until).await;
        assert!(expired.unwrap().is_none(), "it goes by itself");
    }
}

#[tokio::test]
async fn a_schedule_that_is_written_says_what_changed() {
    let server = Server::open().await;
    let path = "/api/v1/schedules/nightly";
    let body = |hour: u32, card: u32| {
        let job = json!({"kind": "report", "payload": {"card": card}});
        json!({"cron": format!("0 {hour} * * *"), "job": job})
    };
    assert_eq!(server.put(path, &body(2, 4111)).await.status, 201);
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(changes["cron"], json!({"old": null, "new": "0 2 * * *"}));
    assert_eq!(changes["job.kind"], json!({"old": null, "new": "report"}));
    assert_eq!(server.put(path, &body(3, 42)).await.status, 200);
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(
        changes["cron"],
        json!({"old": "0 2 * * *", "new": "0 3 * * *"})
    );
    assert_eq!(changes["job.kind"], Value::Null, "what stays is left out");
    let old = &changes["job.payload"]["old"];
    let hash = old["sha256"].as_str().unwrap();
    let kept = server
        .get(&format!("{path}/replaced-payloads/{hash}"))
        .await;
    assert_eq!(kept.json["payload"], json!({"card": 4111}), "{kept:?}");
    assert_eq!(kept.json["kept_until"], old["kept_until"]);

    let patch = json!({"splay": "10s"});
    assert_eq!(server.patch(path, &patch).await.status, 200);
    let changes = newest(&server).await["changes"].clone();
    assert_eq!(changes.as_object().unwrap().len(), 1, "{changes}");
    let log = server.get("/api/v1/audit").await.text();
    assert!(!log.contains("4111"), "{log}");
}
