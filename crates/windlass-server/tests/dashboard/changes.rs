//! Changes that someone takes back, and changes that a person may not make.

use serde_json::{Value, json};
use windlass_server::access::Scope;

use crate::support::{Site, Visitor};

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

/// Cancels jobs that were selected in the list, and returns the list that is shown then.
async fn cancel_selected(visitor: &mut Visitor, ids: &[String]) -> String {
    visitor.get("/jobs").await;
    let mut fields = vec![("action", "cancel"), ("from", "/jobs?queue=mail")];
    fields.extend(ids.iter().map(|id| ("id", id.as_str())));
    let done = visitor.post("/jobs/selected/apply", &fields).await;
    assert_eq!(done.header("location"), Some("/jobs?queue=mail"));
    visitor.get("/jobs?queue=mail").await.text()
}

#[tokio::test]
async fn selected_jobs_that_were_cancelled_wait_again_until_their_old_times() {
    let site = Site::open().await;
    let mut created = Vec::new();
    for delay in ["2h", "3h", "4h"] {
        let job = json!({"kind": "email:send", "queue": "mail", "delay": delay});
        created.push(site.api("POST", "/api/v1/jobs", &job).await.json);
    }
    let id = |job: &Value| job["id"].as_str().expect("an id").to_owned();
    let ids: Vec<String> = created.iter().map(id).collect();
    let path = format!("/api/v1/jobs/{}/cancel", ids[2]);
    site.api("POST", &path, &json!({})).await;
    let mut visitor = site.visitor();
    let shown = cancel_selected(&mut visitor, &ids[..2]).await;
    assert!(shown.contains("Cancelled 2 jobs."), "{shown}");
    let (before, _) = shown.split_once("\" data-undo>").expect("an undo");
    let (_, undo) = before.rsplit_once("action=\"").expect("a form");
    visitor.post(undo, &[("from", "/jobs?queue=mail")]).await;
    let shown = visitor.get("/jobs?queue=mail").await.text();
    assert!(shown.contains("2 jobs wait again."), "{shown}");
    for (index, state) in ["scheduled", "scheduled", "cancelled"].iter().enumerate() {
        let path = format!("/api/v1/jobs/{}", ids[index]);
        let job = site.api("GET", &path, &json!({})).await.json;
        assert_eq!(job["state"], *state, "{job}");
        if *state == "scheduled" {
            assert_eq!(job["run_at"], created[index]["run_at"]);
        }
    }
    let again = visitor.post(undo, &[("from", "/jobs")]).await;
    assert_eq!(again.header("location"), Some("/jobs"));
    let shown = visitor.get("/jobs").await.text();
    assert!(shown.contains("0 of 2 jobs wait again"), "{shown}");
}

#[tokio::test]
async fn selected_jobs_of_which_one_ran_offer_no_undo() {
    let site = Site::open().await;
    site.enqueue("mail", 2).await;
    let claim = json!({"queue": "mail", "limit": 1});
    site.api("POST", "/api/v1/claim", &claim).await;
    let listed = site.api("GET", "/api/v1/jobs", &json!({})).await.json;
    let ids: Vec<String> = (0..2)
        .map(|index| listed["data"][index]["id"].as_str().expect("an id"))
        .map(str::to_owned)
        .collect();
    let shown = cancel_selected(&mut site.visitor(), &ids).await;
    assert!(shown.contains("Cancelled 2 jobs."), "{shown}");
    assert!(!shown.contains("data-undo"), "{shown}");
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
