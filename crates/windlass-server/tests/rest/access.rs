//! Who may do what: the table of routes, walked with keys that should not open them.

use std::time::Duration;

use serde_json::json;
use windlass_server::access::{NewKey, Scope, Scopes};
use windlass_server::{RouteInfo, routes};

use crate::support::{Answer, Server};

/// A path of a route with something in place of its parameters.
fn path_of(route: &RouteInfo, id: &str) -> String {
    route
        .path
        .replace("{id}", id)
        .replace("{queue}", "default")
        .replace("{name}", "nightly")
        .replace("{preset}", "standard")
        .replace("{file}", "index.html")
}

async fn ask(server: &Server, route: &RouteInfo, id: &str, key: Option<&str>) -> Answer {
    let authorization = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = authorization
        .iter()
        .map(|value| ("Authorization", value.as_str()))
        .collect();
    let body = (route.method != "GET" && route.method != "DELETE").then_some(&b"{}"[..]);
    server
        .send(route.method.as_str(), &path_of(route, id), &headers, body)
        .await
}

#[tokio::test]
async fn no_route_opens_without_the_right_key() {
    let mut server = Server::closed().await;
    let admin = server.new_key(&[Scope::Admin]).await;
    server.key = Some(admin.clone());
    let job = server.job(&json!({"kind": "a", "payload": "secret"})).await;
    let schedule = json!({"name": "nightly", "every": "1h", "job": {"kind": "a"}});
    assert_eq!(
        server.post("/api/v1/schedules", &schedule).await.status,
        201
    );
    server.key = None;
    let keys = server.access.keys().unwrap();
    let now = server.client.now();
    let make = |name: &str, expires_at| NewKey {
        name: name.to_owned(),
        scopes: Scope::ALL.to_vec(),
        expires_at,
    };
    let soon = now.saturating_add(Duration::from_millis(1));
    let (expired, _) = keys.create(make("expired", Some(soon)), now).await.unwrap();
    let (revoked, info) = keys.create(make("revoked", None), now).await.unwrap();
    keys.revoke(&info.id, now).await.unwrap();
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    let others: Vec<(Scope, String)> = {
        let mut keys = Vec::new();
        for scope in Scope::ALL {
            keys.push((scope, server.new_key(&[scope]).await));
        }
        keys
    };
    let before = picture(&server, &admin).await;
    let mut walked = 0;
    for route in routes() {
        let Some(needed) = route.scope else {
            continue;
        };
        walked += 1;
        let missing = ask(&server, &route, &job, None).await;
        assert_eq!(
            (missing.status, missing.code().as_str()),
            (401, "key_missing"),
            "{route:?}"
        );
        assert_eq!(
            missing.header("www-authenticate"),
            Some("Bearer"),
            "{route:?}"
        );
        let unknown = ask(&server, &route, nobody, None).await;
        assert_eq!(
            told(&unknown),
            told(&missing),
            "{route:?}: what is there is not told"
        );
        let revoked = ask(&server, &route, &job, Some(&revoked.reveal())).await;
        let expired = ask(&server, &route, &job, Some(&expired.reveal())).await;
        for (answer, code) in [(&revoked, "key_revoked"), (&expired, "key_expired")] {
            let told = (answer.status, answer.code());
            assert_eq!(told, (401, code.to_owned()), "{route:?}");
        }
        for (scope, key) in &others {
            if Scopes::from_iter([*scope]).include(needed) {
                continue;
            }
            let wrong = ask(&server, &route, &job, Some(key)).await;
            assert_eq!(
                (wrong.status, wrong.code().as_str()),
                (403, "scope_missing"),
                "{route:?} {scope}"
            );
            let unknown = ask(&server, &route, nobody, Some(key)).await;
            assert_eq!(
                told(&unknown),
                told(&wrong),
                "{route:?} {scope}: what is there is not told"
            );
        }
    }
    assert!(walked > 40, "{walked} routes need a key");
    assert_eq!(
        picture(&server, &admin).await,
        before,
        "nothing was changed"
    );
}

#[tokio::test]
async fn a_malformed_key_opens_nothing() {
    let server = Server::closed().await;
    server.new_key(&[Scope::Admin]).await;
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    let mut walked = 0;
    for route in routes().into_iter().filter(|route| route.scope.is_some()) {
        for key in ["", "nonsense", "wl_", "wl_a_b", "Bearer", "é"] {
            let answer = ask(&server, &route, nobody, Some(key)).await;
            let told = (answer.status, answer.code());
            assert_eq!(told, (401, "key_malformed".to_owned()), "{route:?} {key:?}");
        }
        let no_header = ask(&server, &route, nobody, Some("wl_\u{1}")).await;
        assert_eq!(no_header.status, 400, "{route:?}");
        walked += 1;
    }
    assert!(walked > 40);
}

fn told(answer: &Answer) -> (u16, String, String) {
    (answer.status, answer.code(), answer.text_at("/detail"))
}

/// What an operator would see.
async fn picture(server: &Server, key: &str) -> Vec<serde_json::Value> {
    let header = format!("Bearer {key}");
    let mut seen = Vec::new();
    for path in [
        "/api/v1/jobs",
        "/api/v1/schedules",
        "/api/v1/queues/default/settings",
        "/api/v1/workers",
    ] {
        let answer = server
            .send("GET", path, &[("Authorization", &header)], None)
            .await;
        assert_eq!(answer.status, 200, "{answer:?}");
        seen.push(answer.json);
    }
    seen
}

#[tokio::test]
async fn payloads_need_a_scope_of_their_own() {
    let mut server = Server::closed().await;
    let admin = server.new_key(&[Scope::Admin]).await;
    let reader = server.new_key(&[Scope::Read]).await;
    let operator = server.new_key(&[Scope::Read, Scope::Operate]).await;
    server.key = Some(admin.clone());
    let id = server
        .job(&json!({"kind": "a", "payload": {"password": "hunter2"}}))
        .await;
    let schedule = json!({"name": "s", "every": "1h", "job": {"kind": "a", "payload": "hunter2"}});
    server.post("/api/v1/schedules", &schedule).await;
    server.key = Some(reader);
    for path in [
        format!("/api/v1/jobs/{id}"),
        "/api/v1/jobs".to_owned(),
        format!("/api/v1/jobs/{id}/wait?timeout_ms=1"),
        "/api/v1/schedules/s".to_owned(),
        "/api/v1/schedules".to_owned(),
    ] {
        let answer = server.get(&path).await;
        assert!(answer.status < 300, "{answer:?}");
        assert!(!answer.text().contains("hunter2"), "{path}");
        assert!(
            answer.text().contains("\"payload_withheld\":true"),
            "{path}: it says so"
        );
    }
    let probe = server
        .get("/api/v1/jobs?payload_path=/password&payload_value=hunter2")
        .await;
    assert_eq!(
        (probe.status, probe.code().as_str()),
        (403, "scope_missing"),
        "it cannot be guessed either"
    );
    server.key = Some(operator);
    let edited = server
        .patch(&format!("/api/v1/jobs/{id}"), &json!({"priority": 3}))
        .await;
    assert_eq!(
        (edited.status, edited.text().contains("hunter2")),
        (200, false)
    );
    let filter = json!({"payload_path": "/password", "payload_value": "hunter2"});
    let body = json!({"filter": filter, "reason": "guess", "dry_run": true});
    let probe = server.post("/api/v1/replays", &body).await;
    assert_eq!(probe.status, 403);
    server.key = Some(admin);
    let seen = server.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(seen.json["payload"]["password"], "hunter2");
}

#[tokio::test]
async fn actions_of_operators_are_recorded_with_their_key() {
    let mut server = Server::closed().await;
    server.key = Some(server.new_key(&[Scope::Admin]).await);
    let id = server.job(&json!({"kind": "a"})).await;
    let schedule = json!({"name": "s", "every": "1h", "job": {"kind": "a"}});
    server.post("/api/v1/schedules", &schedule).await;
    for path in [
        "/api/v1/queues/default/pause",
        "/api/v1/queues/default/resume",
        "/api/v1/schedules/s/pause",
    ] {
        assert_eq!(server.act(path).await.status, 200);
    }
    server.act(&format!("/api/v1/jobs/{id}/cancel")).await;
    server.act(&format!("/api/v1/jobs/{id}/revive")).await;
    let audit = windlass_engine::Audit::new(windlass::admin::engine_of(&server.client).clone());
    let page = audit
        .list(&windlass_engine::AuditFilter::default(), None, 100)
        .await;
    let records = page.unwrap().records;
    let actions: Vec<&str> = records
        .iter()
        .map(|record| record.action.as_str())
        .collect();
    for action in [
        "schedule.create",
        "queue.pause",
        "queue.resume",
        "schedule.pause",
        "job.cancel",
        "job.revive",
    ] {
        assert!(actions.contains(&action), "{action} in {actions:?}");
    }
    assert!(records.iter().all(|record| record.name == "test"));
}

#[tokio::test]
async fn who_may_only_enqueue_learns_nothing_of_the_job_that_was_first() {
    let mut server = Server::closed().await;
    let first = json!({"kind": "a", "unique_key": "u", "meta": {"card": "4111"}, "tags": ["vip"]});
    server.key = Some(server.new_key(&[Scope::Admin]).await);
    let id = server.job(&first).await;
    let mine = json!({"kind": "a", "unique_key": "u"});
    let all = server.post("/api/v1/jobs", &mine).await;
    assert_eq!(all.json["tags"], json!(["vip"]), "{all:?}");
    server.key = Some(server.new_key(&[Scope::Enqueue]).await);
    let told = server.post("/api/v1/jobs", &mine).await;
    let receipt = json!({"id": id, "duplicate": true, "payload_differs": null, "replaced": false});
    assert_eq!((told.status, &told.json), (200, &receipt));
}

#[tokio::test]
async fn a_key_is_not_created_with_an_idempotency_key() {
    let server = Server::open().await;
    let body = serde_json::json!({"name": "a", "scopes": ["read"]}).to_string();
    let headers = [
        ("Idempotency-Key", "k"),
        ("Content-Type", "application/json"),
    ];
    let path = "/api/v1/keys";
    let refused = server
        .send("POST", path, &headers, Some(body.as_bytes()))
        .await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.json.to_string().contains("cannot show a key twice"));
}
