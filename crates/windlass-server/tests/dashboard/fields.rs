//! Hostile text in every field of every object that a page shows.

use std::collections::BTreeMap;

use axum::http::HeaderName;
use serde_json::{Value, json};
use windlass_dashboard::About;
use windlass_server::DashboardSettings;
use windlass_server::access::{NewKey, Scope, Scopes, TrustedProxies};

use crate::hostile::{corpus, dead_job, injected, short};
use crate::support::Site;

/// Creates an object that must be accepted.
async fn create(site: &Site, path: &str, body: &Value) -> Value {
    let created = site.api("POST", path, body).await;
    assert!(created.status < 300, "{path}: {}", created.text());
    created.json
}

fn id(created: &Value) -> &str {
    created["id"].as_str().expect("an id")
}

/// Stores one object of each sort with `text` in each of its fields. Returns the paths of their
/// pages.
async fn objects(site: &Site, index: usize, text: &str) -> Vec<String> {
    let (reason, tag) = (short(text, 400), short(text, 64));
    let escaped: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let url = format!("https://example.com/{escaped}?q={escaped}");
    let http = json!({"http": {"url": url, "body": text}, "queue": "http", "tags": [tag]});
    let http = create(site, "/api/v1/jobs", &http).await;
    let job = json!({"kind": "a", "queue": "ended", "concurrency_key": tag, "unique_key": tag});
    let ended = create(site, "/api/v1/jobs", &job).await;
    let result = json!({"outcome": "succeeded", "result": {"text": text}, "log": [text]});
    site.settle_all("ended", &result).await;
    let queue = format!("q{index}");
    site.enqueue(&queue, 1).await;
    let pause = format!("/api/v1/queues/{queue}/pause");
    create(site, &pause, &json!({"reason": reason})).await;
    let schedule = json!({"cron": "0 2 * * *", "job": {"kind": "a", "payload": {"text": text, text: 1}, "tags": [tag]}});
    let path = format!("/api/v1/schedules/s{index}");
    let created = site.api("PUT", &path, &schedule).await;
    assert!(created.status < 300, "{}", created.text());
    let filter = json!({"queue": "none", "tag": tag});
    let replay = json!({"filter": filter, "reason": reason, "payload_patch": {"text": text}});
    let replay = create(site, "/api/v1/replays", &replay).await;
    let patch = json!({"payload": {"text": text}, "tags": [tag]});
    let bulk = json!({"action": "patch", "filter": filter, "reason": reason, "patch": patch});
    let bulk = create(site, "/api/v1/bulk-actions", &bulk).await;
    for (list, action) in [("replays", &replay), ("bulk-actions", &bulk)] {
        let abort = format!("/api/v1/{list}/{}/abort", id(action));
        create(site, &abort, &json!({})).await;
    }
    vec![
        format!("/jobs/{}", id(&http)),
        format!("/jobs/{}/clone", id(&http)),
        format!("/jobs/{}", id(&ended)),
        format!("/queues/{queue}"),
        format!("/schedules/s{index}"),
        format!("/schedules/s{index}/edit"),
        format!("/actions/replays/{}", id(&replay)),
        format!("/actions/bulk/{}", id(&bulk)),
    ]
}

#[tokio::test]
async fn every_field_of_every_object_stays_text() {
    let site = Site::open().await;
    // All strings are stored. The pages of single objects are many, so a short run opens a part.
    let every = match std::env::var_os("WINDLASS_TEST_LONG") {
        Some(_) => 1,
        None => 20,
    };
    let mut paths = Vec::new();
    for (index, text) in corpus().iter().enumerate() {
        let dead = dead_job(&site, text).await;
        let pages = objects(&site, index, text).await;
        if index % every == 0 {
            paths.push(format!("/jobs/{dead}"));
            paths.push(format!("/jobs/{dead}/edit"));
            paths.extend(pages);
        }
    }
    let lists = [
        "/",
        "/jobs",
        "/jobs?state=dead",
        "/jobs?queue=http",
        "/queues",
        "/dead",
        "/dead?as=jobs",
        "/schedules",
        "/actions",
        "/workers",
        "/audit",
    ];
    let mut visitor = site.visitor();
    for path in paths.into_iter().chain(lists.map(str::to_owned)) {
        let page = visitor.get(&path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
        assert_eq!(injected(&page.text()), None, "{path}");
    }
}

#[tokio::test]
async fn names_of_keys_and_labels_stay_text() {
    let hostile = "\"><script>alert(1)</script>";
    let about = About {
        environment: Some(hostile.to_owned()),
        ..About::default()
    };
    let settings = DashboardSettings {
        about,
        ..DashboardSettings::default()
    };
    let site = Site::with("", settings).await;
    let (admin, _) = site.key(&[Scope::Admin]).await;
    let keys = site.access.keys().expect("it has keys");
    for text in corpus().iter().step_by(4) {
        let new = NewKey {
            name: short(text, 100),
            scopes: vec![Scope::Read],
            expires_at: None,
        };
        keys.create(new, site.client.now()).await.expect("a key");
    }
    let mut visitor = site.visitor();
    visitor.sign_in(&admin).await;
    for path in ["/", "/keys", "/audit", "/settings"] {
        let page = visitor.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
        assert_eq!(injected(&page.text()), None, "{path}");
    }
}

#[tokio::test]
async fn names_of_people_stay_text() {
    let scopes: Scopes = [Scope::Admin].into_iter().collect();
    let proxies = TrustedProxies {
        addresses: vec!["127.0.0.0/8".parse().unwrap()],
        secret_header: HeaderName::from_static("x-secret"),
        secret: "hush".to_owned(),
        user_header: HeaderName::from_static("x-user"),
        groups_header: HeaderName::from_static("x-groups"),
        people: BTreeMap::from([("group:ops".to_owned(), scopes)]),
    };
    let settings = DashboardSettings {
        proxies: Some(proxies),
        ..DashboardSettings::default()
    };
    let site = Site::with("", settings).await;
    site.enqueue("mail", 1).await;
    let texts = corpus();
    let names = texts
        .iter()
        .filter(|text| text.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
    for name in names.step_by(5) {
        let mut visitor = site.visitor();
        visitor.extra = vec![
            ("X-User", name.clone()),
            ("X-Groups", "ops".to_owned()),
            ("X-Secret", "hush".to_owned()),
        ];
        let page = visitor.get("/queues/mail").await;
        assert_eq!(page.status, 200, "{name}: {}", page.text());
        assert_eq!(injected(&page.text()), None, "{name}");
        let paused = visitor
            .post("/queues/mail/pause", &[("reason", name)])
            .await;
        assert_eq!(paused.status, 303, "{name}: {}", paused.text());
        for path in ["/", "/audit"] {
            let page = visitor.get(path).await;
            assert_eq!(injected(&page.text()), None, "{path} for {name}");
        }
    }
}
