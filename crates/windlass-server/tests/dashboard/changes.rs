//! Changes that someone takes back, and changes that a person may not make.

use serde_json::json;
use windlass_server::access::Scope;

use crate::support::Site;

#[tokio::test]
async fn a_cancelled_job_waits_again_until_its_old_time() {
    let site = Site::open().await;
    let job = json!({"kind": "email:send", "queue": "mail", "delay": "2h"});
    let created = site.api("POST", "/api/v1/jobs", &job).await.json;
    let id = created["id"].as_str().expect("an id").to_owned();
    let page = format!("/jobs/{id}");
    let mut visitor = site.visitor();
    visitor.get(&page).await;
    visitor.post(&format!("{page}/cancel"), &[]).await;
    let shown = visitor.get(&page).await.text();
    let (_, undo) = shown
        .split_once(&format!("action=\"{page}/"))
        .expect("a form");
    assert!(shown.contains("data-undo"), "{shown}");
    let undo = undo.split('"').next().expect("a path");
    assert!(undo.ends_with("/uncancel"), "{undo}");
    visitor.post(&format!("{page}/{undo}"), &[]).await;
    let path = format!("/api/v1{page}");
    let job = site.api("GET", &path, &json!({})).await.json;
    assert_eq!(
        (&job["state"], &job["run_at"]),
        (&json!("scheduled"), &created["run_at"]),
        "{job}"
    );
}

#[tokio::test]
async fn an_attempt_that_was_asked_to_stop_offers_no_undo() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let claim = json!({"queue": "mail", "limit": 1});
    let claimed = site.api("POST", "/api/v1/claim", &claim).await.json;
    let id = claimed["data"][0]["id"].as_str().expect("a job").to_owned();
    let mut visitor = site.visitor();
    visitor.get(&format!("/jobs/{id}")).await;
    visitor.post(&format!("/jobs/{id}/cancel"), &[]).await;
    let shown = visitor.get(&format!("/jobs/{id}")).await.text();
    assert!(
        shown.contains("asked to stop") && !shown.contains("data-undo"),
        "{shown}"
    );
}

#[tokio::test]
async fn a_person_who_may_only_read_sees_why_nothing_can_be_pressed() {
    let site = Site::open().await;
    let job = json!({"kind": "email:send", "queue": "mail", "delay": "2h"});
    let created = site.api("POST", "/api/v1/jobs", &job).await.json;
    site.key(&[Scope::Admin]).await;
    let (key, _) = site.key(&[Scope::Read]).await;
    let mut visitor = site.visitor();
    visitor.sign_in(&key).await;
    let id = created["id"].as_str().expect("an id");
    let page = visitor.get(&format!("/jobs/{id}")).await.text();
    assert!(page.contains("Actions need <code>operate</code>"), "{page}");
    let disabled = page.matches(" disabled").count();
    assert!(disabled > 0, "{page}");
    let reasons = page.matches("disabled title=\"needs the scope operate\"");
    assert_eq!(reasons.count(), disabled, "each one says why: {page}");
}
