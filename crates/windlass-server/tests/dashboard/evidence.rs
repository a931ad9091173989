//! The pages that explain failures and repair them: job, dead letters, replays, schedules, lab.

use serde_json::{Value, json};
use windlass_server::access::Scope;
use windlass_testkit::browser::Browser;

use crate::hostile;
use crate::support::{Site, Visitor, blocking};

const POLICY: &str = r#"{"backoff": {"type": "exponential", "base": "1h", "multiplier": 2, "max": "8h"}, "jitter": {"type": "proportional", "ratio": 0.2}, "max_attempts": 4}"#;

/// A job that failed once and waits for its retry.
async fn retrying_job(site: &Site) -> String {
    let retry: Value = serde_json::from_str(POLICY).expect("JSON");
    let job = json!({"kind": "email:send", "queue": "mail", "payload": {"to": "ann", "n": 1.5}, "retry": retry});
    let created = site.api("POST", "/api/v1/jobs", &job).await;
    let error = json!({"message": "cannot send", "causes": ["connection refused"]});
    let failed = json!({"outcome": "failed", "error": error, "log": ["dialling"]});
    site.settle_all("mail", &failed).await;
    created.json["id"].as_str().expect("an id").to_owned()
}

/// Dead jobs of one cause in the queue `mail`.
async fn dead_jobs(site: &Site, count: usize) -> String {
    site.enqueue("mail", count).await;
    let failed = json!({"outcome": "failed", "error": "template missing", "unrecoverable": true});
    site.settle_all("mail", &failed).await;
    let groups = site.api("GET", "/api/v1/failures", &json!({})).await.json;
    let fingerprint = groups["data"][0]["fingerprint"].as_str();
    fingerprint.expect("a cause").to_owned()
}

async fn page(visitor: &mut Visitor, path: &str) -> String {
    let page = visitor.get(path).await;
    assert_eq!(page.status, 200, "{path}: {}", page.text());
    assert!(page.text().trim_end().ends_with("</html>"), "{path}");
    for inline in [" style=", "<style", " onclick=", "<script>"] {
        assert!(!page.text().contains(inline), "{path} has {inline}");
    }
    page.text()
}

#[tokio::test]
async fn a_job_shows_what_happened_what_follows_and_why_it_waits() {
    let site = Site::open().await;
    let id = retrying_job(&site).await;
    let mut visitor = site.visitor();
    let text = page(&mut visitor, &format!("/jobs/{id}")).await;
    for expected in [
        "waiting to retry",
        "data-countdown",
        "cannot send",
        "connection refused",
        "dialling",
        "2 more follow attempt 2; if all fail",
        "Rest of the plan",
        "class=\"jit\"",
        "&#34;n&#34;: 1.5",
        "windlass jobs show",
    ] {
        assert!(text.contains(expected), "{expected} is missing: {text}");
    }
    for scale in ["log", "all"] {
        page(&mut visitor, &format!("/jobs/{id}?scale={scale}&attempt=1")).await;
    }
    let unknown = visitor
        .get("/jobs/019b0000-0000-7000-8000-000000000001")
        .await;
    assert_eq!(unknown.status, 404);
    assert_eq!(visitor.get("/jobs/x..%2F..").await.status, 404);
}

#[tokio::test]
async fn a_cause_says_how_often_it_failed_lately() {
    let site = Site::open().await;
    dead_jobs(&site, 3).await;
    let text = page(&mut site.visitor(), "/dead").await;
    // The test may run across the end of an hour.
    let this_hour = text.contains("<span>3 failures this hour</span>");
    let last_hour = text.contains("<span>3 failures in the last 24 h, none this hour</span>");
    assert!(this_hour || last_hour, "{text}");
}

#[tokio::test]
async fn forms_of_a_job_run_edit_copy_cancel_and_revive_it() {
    let site = Site::open().await;
    let id = retrying_job(&site).await;
    let mut visitor = site.visitor();
    page(&mut visitor, &format!("/jobs/{id}/edit")).await;
    let bad = visitor
        .post(&format!("/jobs/{id}/edit"), &[("payload", "{oops")])
        .await;
    assert_eq!(bad.status, 422);
    assert!(bad.text().contains("{oops"), "what was typed is kept");
    let fields = [
        ("payload", r#"{"to":"bob"}"#),
        ("priority", "7"),
        ("queue", "mail"),
    ];
    assert_eq!(
        visitor
            .post(&format!("/jobs/{id}/edit"), &fields)
            .await
            .status,
        303
    );
    assert_eq!(
        visitor
            .post(&format!("/jobs/{id}/run-now"), &[])
            .await
            .status,
        303
    );
    let job = site
        .api("GET", &format!("/api/v1/jobs/{id}"), &json!({}))
        .await
        .json;
    assert_eq!(
        (&job["priority"], &job["payload"]["to"]),
        (&json!(7), &json!("bob"))
    );
    assert_eq!(job["state"], "ready");
    let copied = visitor
        .post(&format!("/jobs/{id}/clone"), &[("queue", "other")])
        .await;
    assert_eq!(copied.status, 303);
    assert!(!copied.header("location").unwrap().contains(&id));
    assert_eq!(
        visitor
            .post(&format!("/jobs/{id}/cancel"), &[])
            .await
            .status,
        303
    );
    let text = page(&mut visitor, &format!("/jobs/{id}")).await;
    assert!(text.contains("Revive…") && text.contains("cancelled"));
    assert_eq!(
        visitor
            .post(&format!("/jobs/{id}/revive"), &[("failures", "keep")])
            .await
            .status,
        303
    );
    let job = site
        .api("GET", &format!("/api/v1/jobs/{id}"), &json!({}))
        .await
        .json;
    assert_eq!(
        (&job["state"], &job["failures"]),
        (&json!("ready"), &json!(1))
    );
}

#[tokio::test]
async fn dead_letters_show_causes_and_what_their_jobs_have_in_common() {
    let site = Site::open().await;
    let fingerprint = dead_jobs(&site, 5).await;
    let mut visitor = site.visitor();
    let text = page(&mut visitor, "/dead").await;
    assert!(
        text.contains("template missing") && text.contains("Replay…"),
        "{text}"
    );
    let open = format!("/dead?open={fingerprint}%2Fmail%2Femail%3Asend");
    let text = page(&mut visitor, &open).await;
    assert!(
        text.contains("In common") && text.contains("/to = &#34;ann&#34;"),
        "{text}"
    );
    let text = page(&mut visitor, "/dead?as=jobs&queue=mail").await;
    assert_eq!(text.matches("data-row=").count(), 5);
    let export = visitor.get("/dead/export?queue=mail").await;
    assert_eq!(export.text().lines().count(), 5);
    let name = export.header("content-disposition").unwrap();
    assert!(name.contains("dead-letters.ndjson"));
}

#[tokio::test]
async fn causes_are_named_by_what_their_errors_have_in_common() {
    let site = Site::open().await;
    for order in [17, 18] {
        site.enqueue("mail", 1).await;
        let error = format!("order {order}: timed out after 5 s");
        let failed = json!({"outcome": "failed", "error": error, "unrecoverable": true});
        site.settle_all("mail", &failed).await;
    }
    let mut visitor = site.visitor();
    let words =
        r#"order <span class="ph">‹n›</span>: timed out after <span class="ph">‹n›</span> s"#;
    for path in ["/", "/dead"] {
        assert!(page(&mut visitor, path).await.contains(words), "{path}");
    }
}

#[tokio::test]
async fn a_purge_needs_the_name_of_the_queue_and_a_reason() {
    let site = Site::open().await;
    dead_jobs(&site, 3).await;
    let mut visitor = site.visitor();
    let text = page(&mut visitor, "/dead/purge?queue=mail").await;
    assert!(text.contains("Purge 3 dead jobs?"), "{text}");
    let path = "/dead/purge?queue=mail";
    for fields in [
        [("confirm", "mial"), ("reason", "r")],
        [("confirm", "mail"), ("reason", "")],
    ] {
        assert_eq!(visitor.post(path, &fields).await.status, 422, "{fields:?}");
    }
    let started = visitor
        .post(path, &[("confirm", "mail"), ("reason", "old")])
        .await;
    assert_eq!(started.status, 303, "{}", started.text());
    let action = started.header("location").unwrap().to_owned();
    assert!(page(&mut visitor, &action).await.contains("“old”"));
}

#[tokio::test]
async fn the_wizard_carries_its_plan_from_step_to_step_and_starts_it() {
    let site = Site::open().await;
    let fingerprint = dead_jobs(&site, 4).await;
    let mut visitor = site.visitor();
    let base = format!("/dead/replay?queue=mail&fingerprint={fingerprint}");
    assert!(
        page(&mut visitor, &base)
            .await
            .contains("The cause is still there")
    );
    let patched = format!("{base}&patch=%7B%22to%22%3A%22bob%22%7D&step=payload");
    assert!(page(&mut visitor, &patched).await.contains("bob"));
    let broken = visitor.get(&format!("{base}&patch=%7B&step=review")).await;
    assert_eq!(broken.status, 422, "a broken patch leads back to its step");
    let pace = page(&mut visitor, &format!("{base}&step=pace&rate=7")).await;
    assert!(pace.contains("value=\"7\""));
    page(&mut visitor, &format!("{base}&step=review&rate=7&canary=2")).await;
    let plan = [
        ("queue", "mail"),
        ("fingerprint", fingerprint.as_str()),
        ("rate", "7"),
        ("canary", "2"),
        ("failed_percent", "10"),
    ];
    let no_reason = visitor.post("/dead/replay", &plan).await;
    assert_eq!(no_reason.status, 422);
    let plan: Vec<_> = plan.into_iter().chain([("why", "it is back")]).collect();
    let started = visitor.post("/dead/replay", &plan).await;
    assert_eq!(started.status, 303, "{}", started.text());
    let replay = started.header("location").unwrap().to_owned();
    assert!(page(&mut visitor, &replay).await.contains("it is back"));
    let replays = site.api("GET", "/api/v1/replays", &json!({})).await.json;
    let replay_json = &replays["data"][0];
    assert_eq!(
        (&replay_json["rate"], &replay_json["canary"]["jobs"]),
        (&json!(7), &json!(2))
    );
    assert_eq!(replay_json["stop"]["failed_share"], 0.1);
    let paused = visitor.post(&format!("{replay}/pause"), &[]).await;
    assert_eq!(paused.status, 303);
    assert!(page(&mut visitor, "/actions").await.contains("paused"));
    assert_eq!(
        visitor.post(&format!("{replay}/abort"), &[]).await.status,
        303
    );
    assert_eq!(
        visitor.post(&format!("{replay}/explode"), &[]).await.status,
        404
    );
}

#[tokio::test]
async fn a_schedule_is_previewed_created_edited_paused_and_deleted() {
    let site = Site::open().await;
    let mut visitor = site.visitor();
    assert!(
        page(&mut visitor, "/schedules")
            .await
            .contains("No schedule yet")
    );
    let fields = [
        ("name", "nightly"),
        ("rule", "30 2 * * MON-FRI"),
        ("timezone", "Europe/Berlin"),
        ("kind", "report"),
        ("queue", "low"),
        ("do", "preview"),
    ];
    page(&mut visitor, "/new/schedule").await;
    let preview = visitor.post("/new/schedule", &fields).await.text();
    assert!(
        preview.contains("At 02:30 on weekdays, Europe/Berlin"),
        "{preview}"
    );
    let broken = page(&mut visitor, "/new/schedule?rule=61+*+*+*+*").await;
    assert!(broken.contains("must be a number from 0 to 59"), "{broken}");
    let created = visitor.post("/new/schedule", &fields[..5]).await;
    assert_eq!(created.status, 303, "{}", created.text());
    let text = page(&mut visitor, "/schedules/nightly").await;
    assert!(text.contains("At 02:30 on weekdays") && text.contains("Next runs"));
    let edit = [
        ("rule", "@every 90s"),
        ("kind", "report"),
        ("queue", "low"),
        ("splay", "10s"),
    ];
    page(&mut visitor, "/schedules/nightly/edit").await;
    assert_eq!(
        visitor.post("/schedules/nightly/edit", &edit).await.status,
        303
    );
    let text = page(&mut visitor, "/schedules").await;
    assert!(text.contains("Every 90 seconds, spread over 10s"), "{text}");
    assert_eq!(
        visitor.post("/schedules/nightly/pause", &[]).await.status,
        303
    );
    let ran = visitor.post("/schedules/nightly/run-now", &[]).await;
    assert!(ran.header("location").unwrap().contains("/jobs/"));
    let kept = visitor
        .post(
            "/schedules/nightly/delete",
            &[("confirm", "night"), ("from", "/schedules")],
        )
        .await;
    assert_eq!(kept.status, 303, "it leads back and says why");
    let gone = visitor
        .post("/schedules/nightly/delete", &[("confirm", "nightly")])
        .await;
    assert_eq!(gone.status, 303);
    let schedules = site.api("GET", "/api/v1/schedules", &json!({})).await.json;
    assert_eq!(schedules["data"], json!([]));
}

#[tokio::test]
async fn the_lab_compares_two_policies_and_names_what_is_wrong() {
    let site = Site::open().await;
    let mut visitor = site.visitor();
    let text = page(&mut visitor, "/lab?a=webhook&b=full-jitter&jobs=1000").await;
    assert!(
        text.contains("retries a second") && text.contains("Preset::FullJitter.policy()"),
        "{text}"
    );
    let text = page(
        &mut visitor,
        "/lab?a_type=exponential&a_base=soon&a_growth=2",
    )
    .await;
    assert!(text.contains("banner-bad"));
    let many = page(&mut visitor, "/lab?a=standard&jobs=900000").await;
    assert!(many.contains("the simulation is limited"), "{many}");
}

#[tokio::test]
async fn a_viewer_sees_no_payload_and_the_server_refuses_their_actions() {
    let site = Site::open().await;
    let id = retrying_job(&site).await;
    site.key(&[Scope::Admin]).await;
    let (key, _) = site.key(&[Scope::Read]).await;
    let mut visitor = site.visitor();
    visitor.sign_in(&key).await;
    let text = page(&mut visitor, &format!("/jobs/{id}")).await;
    assert!(
        text.contains("read-payload") && !text.contains("connection refused"),
        "{text}"
    );
    let refused = visitor.post(&format!("/jobs/{id}/cancel"), &[]).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert_eq!(visitor.get("/dead/replay?queue=mail").await.status, 403);
    let mut other = site.visitor();
    other.sign_in(&key).await;
    let forged = other
        .post_fields(&format!("/jobs/{id}/cancel"), &[("csrf", "x")])
        .await;
    assert_eq!(forged.status, 403);
}

/// Returns the first tag that none of our templates contains: a handler, a script or a style.
fn injected(page: &str) -> Option<String> {
    let mut rest = page;
    while let Some((_, tag)) = rest.split_once('<') {
        let mut quoted = None;
        let end = tag.char_indices().find(|(_, letter)| match quoted {
            Some(quote) if *letter == quote => {
                quoted = None;
                false
            }
            Some(_) => false,
            None if matches!(letter, '"' | '\'') => {
                quoted = Some(*letter);
                false
            }
            None => *letter == '>',
        });
        let (whole, after) = tag.split_at(end.map_or(tag.len(), |(end, _)| end));
        let outside: String = whole.split('"').step_by(2).collect();
        let lower = outside.to_lowercase();
        let is_handler = lower
            .split_ascii_whitespace()
            .any(|name| name.starts_with("on"));
        let names = ["script>", "style", "img", "iframe", "math", "b>*"];
        if is_handler
            || names
                .iter()
                .any(|name| format!("{lower}>").starts_with(name))
        {
            return Some(whole.to_owned());
        }
        if whole.contains("=\"javascript:") || whole.contains("=\"data:") {
            return Some(whole.to_owned());
        }
        rest = after;
    }
    None
}

#[test]
fn the_check_for_injected_tags_can_fail() {
    assert!(injected("<p><img src=x onerror=alert(1)></p>").is_some());
    assert!(injected(r#"<a href="javascript:alert(1)">x</a>"#).is_some());
    assert!(injected("<script>alert(1)</script>").is_some());
    assert!(injected(r#"<p title="x" onclick="y">"#).is_some());
    assert_eq!(
        injected(r#"<p title="&#60;img onerror=alert(1)">&#60;script&#62;</p>"#),
        None
    );
}

#[tokio::test]
async fn hostile_text_stays_text_on_every_page() {
    let site = Site::open().await;
    for hostile in hostile::corpus().iter().step_by(7) {
        let job = json!({"kind": "email:send", "queue": "mail", "payload": {"text": hostile, (hostile): 1}, "meta": {(hostile): hostile}, "unique_key": "u", "max_attempts": 1});
        let created = site.api("POST", "/api/v1/jobs", &job).await;
        let Some(id) = created.json["id"].as_str() else {
            continue;
        };
        let failed = json!({"outcome": "failed", "error": {"message": hostile, "causes": [hostile]}, "log": [hostile], "unrecoverable": true});
        site.settle_all("mail", &failed).await;
        let mut visitor = site.visitor();
        for path in [
            format!("/jobs/{id}"),
            format!("/jobs/{id}/edit"),
            "/dead".to_owned(),
            "/dead?as=jobs".to_owned(),
        ] {
            let text = page(&mut visitor, &path).await;
            assert_eq!(injected(&text), None, "{path} with {hostile}");
        }
        let escaped: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for path in [
            "/dead?error=",
            "/dead?as=jobs&queue=",
            "/lab?a=",
            "/new/schedule?rule=",
            "/dead/replay?queue=mail&why=",
        ] {
            let text = visitor.get(&format!("{path}{escaped}")).await.text();
            assert_eq!(injected(&text), None, "{path} with {hostile}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_countdown_ticks_and_the_next_attempt_appears() {
    let site = Site::open().await;
    let id = retrying_job(&site).await;
    let url = site.url(&format!("/jobs/{id}"));
    let browser = blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        let countdown = "document.querySelector('time[data-countdown]').textContent";
        browser.run(&format!(
            "window.sameDocument = true; window.first = {countdown}"
        ));
        browser.until(
            "another second",
            &format!("return {countdown} !== window.first"),
        );
        browser
    })
    .await;
    site.api("POST", &format!("/api/v1/jobs/{id}/run-now"), &json!({}))
        .await;
    let failed = json!({"outcome": "failed", "error": "still down"});
    site.settle_all("mail", &failed).await;
    blocking(move || {
        browser.until("the second attempt", "return document.querySelectorAll('a.tl-row').length === 2 && window.sameDocument === true");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_fit_a_phone_and_the_preview_of_a_schedule_follows_the_typing() {
    let site = Site::open().await;
    let id = retrying_job(&site).await;
    let fingerprint = {
        let groups = site.api("GET", "/api/v1/failures", &json!({})).await.json;
        groups["data"][0]["fingerprint"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let schedule = json!({"cron": "*/5 6-21 * * MON-FRI", "timezone": "America/Argentina/Buenos_Aires", "job": {"kind": "a:rather:long:kind:of:job"}});
    site.api(
        "PUT",
        "/api/v1/schedules/a-rather-long-name-of-a-schedule",
        &schedule,
    )
    .await;
    let base = site.url("");
    blocking(move || {
        let browser = Browser::start();
        browser.resize(390, 844);
        for path in [
            format!("/jobs/{id}"),
            format!("/jobs/{id}/edit"),
            "/dead".to_owned(),
            format!("/dead?fingerprint={fingerprint}"),
            "/dead?as=jobs".to_owned(),
            "/dead/replay?queue=mail&step=pace".to_owned(),
            "/dead/purge?queue=mail".to_owned(),
            "/actions".to_owned(),
            "/schedules".to_owned(),
            "/new/schedule?rule=0+2+*+*+*".to_owned(),
            "/lab".to_owned(),
        ] {
            browser.open(&format!("{base}{path}"));
            let wide = browser.run("return document.documentElement.scrollWidth");
            assert!(
                wide.as_u64().is_some_and(|wide| wide <= 390),
                "{path} is {wide} wide"
            );
            assert_eq!(
                browser.run("return document.querySelectorAll('h1').length"),
                1,
                "{path}"
            );
        }
        browser.open(&format!("{base}/new/schedule"));
        browser.type_into("#rule", "30 2 * * MON-FRI");
        browser.until(
            "the words",
            "return document.getElementById('preview').textContent.includes('02:30 on weekdays')",
        );
    })
    .await;
}
