//! Signing in and out, forged requests, and people whom a proxy names.

use std::collections::BTreeMap;

use axum::http::HeaderName;
use serde_json::json;
use windlass_server::DashboardSettings;
use windlass_server::access::{Scope, Scopes, TrustedProxies};

use crate::support::Site;

#[tokio::test]
async fn a_key_starts_a_session_under_a_new_id() {
    let site = Site::open().await;
    let (key, _) = site.key(&[Scope::Admin]).await;
    let mut visitor = site.visitor();
    let first = visitor.get("/jobs?state=dead").await;
    assert_eq!(
        first.header("location"),
        Some("/login?next=%2Fjobs%3Fstate%3Ddead")
    );
    visitor.get("/login").await;
    let before = visitor.cookies.clone();
    let wrong = visitor.post("/login", &[("key", "wl_nonsense")]).await;
    assert_eq!(wrong.status, 401, "{wrong:?}");
    let done = visitor
        .post("/login", &[("key", &key), ("next", "/jobs?state=dead")])
        .await;
    assert_eq!(
        (done.status, done.header("location")),
        (303, Some("/jobs?state=dead"))
    );
    let cookie = done.header("set-cookie").unwrap().to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "plain loopback: {cookie}");
    assert_ne!(visitor.cookies, before, "the id is new");
    assert_eq!(visitor.get("/queues").await.status, 200);
    let mut old = site.visitor();
    old.cookies = before;
    assert_eq!(
        old.get("/queues").await.status,
        303,
        "the id from before is worth nothing"
    );
}

#[tokio::test]
async fn a_session_ends_with_the_sign_out_and_with_its_key() {
    let site = Site::open().await;
    let (key, id) = site.key(&[Scope::Admin]).await;
    let mut first = site.visitor();
    first.sign_in(&key).await;
    let stolen = first.cookies.clone();
    first.get("/queues").await;
    let out = first.post("/logout", &[]).await;
    assert_eq!(out.header("location"), Some("/login"));
    let mut thief = site.visitor();
    thief.cookies = stolen;
    assert_eq!(
        thief.get("/queues").await.status,
        303,
        "the server forgot the session"
    );
    let mut second = site.visitor();
    second.sign_in(&key).await;
    assert_eq!(second.get("/queues").await.status, 200);
    let keys = site.access.keys().unwrap();
    keys.revoke(&id, site.client.now()).await.unwrap();
    assert_eq!(
        second.get("/queues").await.status,
        303,
        "the key was revoked"
    );
}

#[tokio::test]
async fn a_link_signs_in_once_and_only_after_a_confirmation() {
    let site = Site::open().await;
    site.key(&[Scope::Admin]).await;
    let (key, _) = site.key(&[Scope::Read]).await;
    let request = windlass_testkit::client::request(
        site.address,
        "POST",
        "/api/v1/login-links",
        &[("Authorization", &format!("Bearer {key}"))],
        None,
    );
    let created = windlass_testkit::client::exchange(site.address, &request).await;
    let path = created.text_at("/path");
    let link = path.split_once("link=").expect("the path has a link").1;
    let mut visitor = site.visitor();
    for _ in 0..2 {
        let page = visitor.get(&path).await.text();
        assert!(page.contains("This link works once"), "{page}");
    }
    assert_eq!(visitor.post("/login", &[("link", link)]).await.status, 303);
    assert_eq!(visitor.get("/queues").await.status, 200);
    let mut other = site.visitor();
    other.get(&path).await;
    assert_eq!(other.post("/login", &[("link", link)]).await.status, 401);
}

#[tokio::test]
async fn signing_in_leads_to_no_other_site() {
    let site = Site::open().await;
    let (key, _) = site.key(&[Scope::Admin]).await;
    for next in ["//evil.example", "https://evil.example/", "/\\evil.example"] {
        let mut visitor = site.visitor();
        visitor.get("/login").await;
        let done = visitor
            .post("/login", &[("key", &key), ("next", next)])
            .await;
        assert_eq!(done.header("location"), Some("/"), "{next}");
    }
}

#[tokio::test]
async fn wrong_keys_are_throttled() {
    let site = Site::open().await;
    let (key, _) = site.key(&[Scope::Admin]).await;
    let wrong = format!("{key}x");
    let mut visitor = site.visitor();
    visitor.get("/login").await;
    let mut statuses = Vec::new();
    for _ in 0..25 {
        statuses.push(visitor.post("/login", &[("key", &wrong)]).await.status);
    }
    assert_eq!(statuses.first(), Some(&401));
    assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
}

#[tokio::test]
async fn forged_requests_change_nothing() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let mut visitor = site.visitor();
    visitor.get("/queues/mail").await;
    let token = visitor.csrf.clone();
    let mut stranger = site.visitor();
    stranger.get("/queues/mail").await;
    let others = stranger.csrf.clone();
    for csrf in ["", "x", &others] {
        let refused = visitor
            .post_fields("/queues/mail/pause", &[("csrf", csrf)])
            .await;
        assert_eq!(refused.status, 403, "token {csrf:?}");
    }
    for (name, value) in [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Sec-Fetch-Site", "none"),
        ("Origin", "http://evil.example"),
    ] {
        visitor.extra = vec![(name, value.to_owned())];
        let refused = visitor
            .post_fields("/queues/mail/pause", &[("csrf", &token)])
            .await;
        assert_eq!(refused.status, 403, "{name}: {value}");
    }
    visitor.extra = Vec::new();
    assert_eq!(
        visitor.get("/queues/mail/pause").await.status,
        405,
        "no change by GET"
    );
    let queue = site
        .api("GET", "/api/v1/queues/mail", &json!({}))
        .await
        .json;
    assert!(queue["paused"].is_null(), "{queue}");
    visitor.extra = vec![("Sec-Fetch-Site", "same-origin".to_owned())];
    let done = visitor
        .post_fields("/queues/mail/pause", &[("csrf", &token)])
        .await;
    assert_eq!(done.status, 303);
}

#[tokio::test]
async fn a_viewer_is_refused_by_the_server_and_not_only_by_missing_buttons() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    site.key(&[Scope::Admin]).await;
    let (key, _) = site.key(&[Scope::Read]).await;
    let mut visitor = site.visitor();
    visitor.sign_in(&key).await;
    let page = visitor.get("/queues/mail").await.text();
    assert!(!page.contains("/queues/mail/pause"));
    let refused = visitor.post("/queues/mail/pause", &[]).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    for path in ["/audit", "/keys", "/settings"] {
        assert_eq!(visitor.get(path).await.status, 403, "{path}");
    }
    let (worker, _) = site.key(&[Scope::Work]).await;
    let mut other = site.visitor();
    assert_eq!(
        other.sign_in(&worker).await.status,
        403,
        "a key without `read` sees nothing"
    );
}

#[tokio::test]
async fn a_link_from_another_site_loads_the_page_again_before_it_asks_for_a_key() {
    let site = Site::open().await;
    site.key(&[Scope::Admin]).await;
    let mut visitor = site.visitor();
    visitor.extra = vec![("Sec-Fetch-Site", "cross-site".to_owned())];
    let page = visitor.get("/jobs?state=dead").await;
    assert_eq!(page.status, 200);
    assert!(
        page.text().contains(r#"content="0; url=/jobs?state=dead""#),
        "{}",
        page.text()
    );
}

#[tokio::test]
async fn an_unknown_host_name_is_refused_while_there_is_no_key() {
    let site = Site::open().await;
    let head =
        "GET / HTTP/1.1\r\nHost: evil.example\r\nAccept: text/html\r\nConnection: close\r\n\r\n";
    let refused = windlass_testkit::client::exchange(site.address, head.as_bytes()).await;
    assert_eq!(refused.status, 403, "{refused:?}");
}

#[tokio::test]
async fn a_proxy_names_people_and_the_audit_log_names_both() {
    let scopes = |scopes: &[Scope]| scopes.iter().copied().collect::<Scopes>();
    let proxies = TrustedProxies {
        addresses: vec!["127.0.0.0/8".parse().unwrap()],
        secret_header: HeaderName::from_static("x-secret"),
        secret: "hush".to_owned(),
        user_header: HeaderName::from_static("x-user"),
        groups_header: HeaderName::from_static("x-groups"),
        people: BTreeMap::from([(
            "group:ops".to_owned(),
            scopes(&[Scope::Read, Scope::Operate]),
        )]),
    };
    let settings = DashboardSettings {
        proxies: Some(proxies),
        secure: true,
        ..DashboardSettings::default()
    };
    let site = Site::with("", settings).await;
    site.enqueue("mail", 1).await;
    let (admin, _) = site.key(&[Scope::Admin]).await;
    let mut mara = site.visitor();
    let person = |user: &str, group: &str, secret: &str| {
        vec![
            ("X-User", user.to_owned()),
            ("X-Groups", group.to_owned()),
            ("X-Secret", secret.to_owned()),
        ]
    };
    mara.extra = person("mara", "ops", "hush");
    let page = mara.get("/queues/mail").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("mara · operator"), "{}", page.text());
    let cookie = page.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with("__Host-") && cookie.contains("Secure"),
        "{cookie}"
    );
    assert_eq!(
        mara.post_fields("/queues/mail/pause", &[]).await.status,
        403,
        "the token is needed too"
    );
    assert_eq!(mara.post("/queues/mail/pause", &[]).await.status, 303);
    let request = windlass_testkit::client::request(
        site.address,
        "GET",
        "/api/v1/audit?action=queue.pause",
        &[("Authorization", &format!("Bearer {admin}"))],
        None,
    );
    let audit = windlass_testkit::client::exchange(site.address, &request)
        .await
        .json;
    let record = &audit["data"][0];
    assert_eq!(
        (&record["name"], &record["key"]),
        (&json!("mara"), &json!("proxy 127.0.0.1"))
    );
    for wrong in [
        person("mara", "ops", "guess"),
        person("eve", "sales", "hush"),
    ] {
        let mut visitor = site.visitor();
        visitor.extra = wrong;
        assert_eq!(visitor.get("/queues").await.status, 403);
    }
}
