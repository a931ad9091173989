//! A store with one of everything, and the paths of all pages that show it.

use serde_json::{Value, json};

use crate::pages::PAGES;
use crate::support::Site;

/// Fills a store and returns the path of every page. `text` stands in every field that accepts any
/// text; `hostile` tests pass markup.
pub(crate) async fn every_page(site: &Site, text: &str) -> Vec<String> {
    let line: String = text.chars().filter(|letter| !letter.is_control()).collect();
    let retrying = failed_job(site, text, false).await;
    let dead = failed_job(site, text, true).await;
    site.enqueue("mail", 2).await;
    site.enqueue("paused", 1).await;
    post(
        site,
        "/api/v1/queues/paused/pause",
        &json!({"reason": line}),
    )
    .await;
    let schedule = json!({"cron": "0 2 * * *", "timezone": "Europe/Berlin", "job": {"kind": "report:daily", "queue": "reports", "payload": {"text": text}}});
    let created = site
        .api("PUT", "/api/v1/schedules/nightly", &schedule)
        .await;
    assert!(created.status < 300, "{created:?}");
    let worker = json!({"name": "node-a", "queues": ["mail"], "slots": 4, "version": line});
    post(site, "/api/v1/workers", &worker).await;
    let replay = json!({"filter": {"queue": "mail"}, "reason": line});
    let replay = post(site, "/api/v1/replays", &replay).await;
    let bulk = json!({"action": "cancel", "filter": {"queue": "none"}, "reason": line});
    let bulk = post(site, "/api/v1/bulk-actions", &bulk).await;
    let groups = site.api("GET", "/api/v1/failures", &json!({})).await.json;
    let fingerprint = groups["data"][0]["fingerprint"].as_str().expect("a cause");
    let mut paths: Vec<String> = PAGES.iter().map(|path| (*path).to_owned()).collect();
    paths.extend(
        [
            "/settings",
            "/login",
            "/jobs?state=dead",
            "/jobs?queue=none",
            "/jobs/all?queue=mail",
            "/queues/paused",
            "/dead",
            "/dead?as=jobs",
            "/dead/purge?queue=mail",
            "/actions",
            "/schedules",
            "/schedules/nightly",
            "/schedules/nightly/edit",
            "/new/schedule?rule=0+2+*+*+*",
            "/lab",
            "/no-such-page",
        ]
        .map(str::to_owned),
    );
    paths.extend([
        format!("/jobs/{retrying}"),
        format!("/jobs/{dead}"),
        format!("/jobs/{dead}/edit"),
        format!("/jobs/{dead}/clone"),
        format!("/dead?fingerprint={fingerprint}"),
        format!("/actions/replays/{}", id_of(&replay)),
        format!("/actions/bulk/{}", id_of(&bulk)),
    ]);
    for step in ["jobs", "payload", "pace", "review"] {
        paths.push(format!(
            "/dead/replay?queue=mail&fingerprint={fingerprint}&step={step}"
        ));
    }
    paths
}

/// A job with `text` in its fields whose first attempt failed with `text`.
async fn failed_job(site: &Site, text: &str, dies: bool) -> String {
    let line: String = text.chars().filter(|letter| !letter.is_control()).collect();
    let job = json!({
        "kind": "email:send", "queue": "mail", "payload": {"text": text}, "meta": {"text": text},
        "tags": [line], "unique_key": format!("{line}{dies}"),
    });
    let created = post(site, "/api/v1/jobs", &job).await;
    let error = json!({"message": text, "causes": [text]});
    let mut failed = json!({"outcome": "failed", "error": error, "log": [text]});
    if dies {
        failed["unrecoverable"] = json!(true);
    }
    site.settle_all("mail", &failed).await;
    id_of(&created)
}

async fn post(site: &Site, path: &str, body: &Value) -> Value {
    let answer = site.api("POST", path, body).await;
    assert!(answer.status < 300, "{path}: {answer:?}");
    answer.json
}

fn id_of(created: &Value) -> String {
    created["id"].as_str().expect("an id").to_owned()
}
