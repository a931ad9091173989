//! Pages and actions over HTTP, as a browser without scripts uses them.

use serde_json::json;
use windlass_dashboard::About;
use windlass_server::DashboardSettings;
use windlass_server::access::Scope;
use windlass_testkit::client::PATIENCE;

use crate::everything::every_page;
use crate::support::Site;

/// Every page that needs no object.
pub(crate) const PAGES: [&str; 14] = [
    "/",
    "/?range=15m",
    "/jobs",
    "/jobs?state=dead&queue=mail",
    "/queues",
    "/all-queues/pause",
    "/all-queues/resume",
    "/queues/mail",
    "/queues/mail/settings",
    "/queues/mail/purge",
    "/workers",
    "/audit",
    "/keys",
    "/reference",
];

#[tokio::test]
async fn every_page_is_complete_html_with_strict_headers() {
    let site = Site::open().await;
    site.enqueue("mail", 3).await;
    let mut visitor = site.visitor();
    for path in PAGES
        .into_iter()
        .chain(["/settings", "/jobs/all?state=dead"])
    {
        let page = visitor.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
        assert!(page.text().starts_with("<!doctype html>"), "{path}");
        assert!(page.text().trim_end().ends_with("</html>"), "{path}");
        let policy = page
            .header("content-security-policy")
            .expect(path)
            .to_owned();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(
            page.header("x-content-type-options"),
            Some("nosniff"),
            "{path}"
        );
        assert_eq!(
            page.header("referrer-policy"),
            Some("no-referrer"),
            "{path}"
        );
        assert_eq!(page.header("cache-control"), Some("no-store"), "{path}");
        for inline in [" style=", "<style", " onclick=", "javascript:", "<script>"] {
            assert!(!page.text().contains(inline), "{path} has {inline}");
        }
    }
}

#[tokio::test]
async fn assets_are_named_by_their_content_and_kept_forever() {
    let site = Site::open().await;
    let mut visitor = site.visitor();
    let page = visitor.get("/").await.text();
    let links = page.split('"').filter(|part| part.starts_with("/assets/"));
    let links: std::collections::BTreeSet<&str> =
        links.map(|link| link.split('#').next().unwrap()).collect();
    assert!(links.len() >= 3, "{links:?}");
    let mut assets = 0;
    for link in links {
        let asset = visitor.get(link).await;
        assert_eq!(asset.status, 200, "{link}");
        assert!(
            asset.header("cache-control").unwrap().contains("immutable"),
            "{link}"
        );
        assets += asset.body.len();
    }
    // The reference of the API is a document, not a page that someone opens in a hurry.
    site.enqueue("mail", 100).await;
    for path in every_page(&site, "text").await {
        let bytes = assets + visitor.get(&path).await.body.len();
        assert!(
            bytes < 150_000 || path == "/reference",
            "{path}: the first load is {bytes} bytes"
        );
    }
    assert_eq!(
        visitor.get("/assets/app-0000000000000000.css").await.status,
        404
    );
}

#[tokio::test]
async fn the_first_page_teaches_until_there_is_a_job() {
    let site = Site::open().await;
    let mut visitor = site.visitor();
    let empty = visitor.get("/").await.text();
    assert!(empty.contains("There is no job yet"), "{empty}");
    assert!(empty.contains("windlass enqueue email:send"), "{empty}");
    site.enqueue("mail", 2).await;
    // The counts that pages share are up to 2 s old.
    let learned = async {
        loop {
            let page = visitor.get("/").await.text();
            if !page.contains("There is no job yet") {
                return page;
            }
        }
    };
    let page = tokio::time::timeout(PATIENCE, learned).await;
    let page = page.expect("the page follows in time");
    assert!(page.contains("Attempts finished"));
}

#[tokio::test]
async fn a_queue_is_paused_with_a_reason_and_resumed() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let mut visitor = site.visitor();
    visitor.get("/queues/mail").await;
    let paused = visitor
        .post("/queues/mail/pause", &[("reason", "the <disk> is full")])
        .await;
    assert_eq!(
        (paused.status, paused.header("location")),
        (303, Some("/queues/mail"))
    );
    let page = visitor.get("/queues/mail").await.text();
    assert!(page.contains("Paused mail"), "the message is shown once");
    assert!(
        page.contains("the &#60;disk&#62; is full") || page.contains("the &lt;disk&gt; is full"),
        "{page}"
    );
    assert!(
        !visitor
            .get("/queues/mail")
            .await
            .text()
            .contains("Paused mail.")
    );
    let queue = site
        .api("GET", "/api/v1/queues/mail", &json!({}))
        .await
        .json;
    assert_eq!(queue["paused"]["reason"], "the <disk> is full");
    visitor.post("/queues/mail/resume", &[]).await;
    let queue = site
        .api("GET", "/api/v1/queues/mail", &json!({}))
        .await
        .json;
    assert!(queue["paused"].is_null(), "{queue}");
    let audit = visitor.get("/audit").await.text();
    assert!(
        audit.contains("queue pause") && audit.contains("queue resume"),
        "{audit}"
    );
}

#[tokio::test]
async fn settings_of_a_queue_are_saved_and_a_wrong_value_is_explained() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let mut visitor = site.visitor();
    visitor.get("/queues/mail/settings").await;
    let from = ("from", "/queues/mail/settings");
    let saved = visitor
        .post(
            "/queues/mail/settings",
            &[("concurrency", "7"), ("rate", "100/1m"), from],
        )
        .await;
    assert_eq!(saved.header("location"), Some("/queues/mail"));
    let settings = site
        .api("GET", "/api/v1/queues/mail/settings", &json!({}))
        .await
        .json;
    assert_eq!(
        (&settings["concurrency"], &settings["rate"]["count"]),
        (&json!(7), &json!(100))
    );
    let refused = visitor
        .post("/queues/mail/settings", &[("concurrency", "0"), from])
        .await;
    assert_eq!(refused.header("location"), Some("/queues/mail/settings"));
    let page = visitor.get("/queues/mail/settings").await.text();
    assert!(
        page.contains("concurrency") && page.contains("flash-bad"),
        "{page}"
    );
}

#[tokio::test]
async fn jobs_are_purged_only_with_the_name_typed() {
    let site = Site::open().await;
    site.enqueue("mail", 2).await;
    site.settle_all("mail", &json!({"outcome": "succeeded"}))
        .await;
    let mut visitor = site.visitor();
    visitor.get("/queues/mail/purge").await;
    let fields = [
        ("state", "succeeded"),
        ("reason", "old"),
        ("from", "/queues/mail/purge"),
    ];
    let wrong = visitor
        .post(
            "/queues/mail/purge",
            &[fields[0], fields[1], fields[2], ("name", "mial")],
        )
        .await;
    assert_eq!(wrong.header("location"), Some("/queues/mail/purge"));
    let actions = site
        .api("GET", "/api/v1/bulk-actions", &json!({}))
        .await
        .json;
    assert_eq!(actions["data"], json!([]));
    let done = visitor
        .post(
            "/queues/mail/purge",
            &[fields[0], fields[1], fields[2], ("name", "mail")],
        )
        .await;
    assert!(
        done.header("location")
            .unwrap()
            .starts_with("/actions/bulk/"),
        "{done:?}"
    );
}

#[tokio::test]
async fn filters_are_in_the_url_and_selected_jobs_are_changed_after_a_question() {
    let site = Site::open().await;
    site.enqueue("mail", 3).await;
    site.enqueue("other", 1).await;
    let mut visitor = site.visitor();
    let found = visitor.get("/jobs?q=queue:mail").await;
    assert_eq!(found.header("location"), Some("/jobs?queue=mail"));
    let page = visitor.get("/jobs?queue=mail").await.text();
    assert_eq!(page.matches("data-row=").count(), 3, "{page}");
    let ids: Vec<&str> = page
        .split("data-row=\"")
        .skip(1)
        .map(|rest| &rest[..36])
        .collect();
    let chosen = [
        ("action", "cancel"),
        ("id", ids[0]),
        ("id", ids[1]),
        ("from", "/jobs?queue=mail"),
    ];
    let question = visitor.post("/jobs/selected", &chosen).await;
    assert!(
        question.text().contains("Cancel 2 jobs?"),
        "{}",
        question.text()
    );
    let done = visitor.post("/jobs/selected/apply", &chosen).await;
    assert_eq!(done.header("location"), Some("/jobs?queue=mail"));
    let cancelled = site
        .api("GET", "/api/v1/jobs?state=cancelled", &json!({}))
        .await
        .json;
    assert_eq!(cancelled["data"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_action_on_all_matching_jobs_shows_what_it_would_do_first() {
    let site = Site::open().await;
    site.enqueue("mail", 4).await;
    let mut visitor = site.visitor();
    visitor.get("/jobs/all?queue=mail").await;
    let fields = [
        ("action", "cancel"),
        ("filter.queue", "mail"),
        ("reason", "not needed"),
    ];
    let preview = visitor.post("/jobs/all", &fields).await.text();
    assert!(preview.contains("Cancel 4 jobs?"), "{preview}");
    let actions = site
        .api("GET", "/api/v1/bulk-actions", &json!({}))
        .await
        .json;
    assert_eq!(actions["data"], json!([]), "a look changes nothing");
    let created = visitor.post("/jobs/all/apply", &fields).await;
    assert!(
        created
            .header("location")
            .unwrap()
            .starts_with("/actions/bulk/"),
        "{created:?}"
    );
}

#[tokio::test]
async fn a_page_says_how_many_jobs_match_before_anything_is_done_to_all_of_them() {
    let site = Site::open().await;
    site.enqueue("mail", 60).await;
    let mut visitor = site.visitor();
    let counted = visitor.get("/jobs?state=ready&queue=mail").await.text();
    assert!(counted.contains("Select all 60 that match…"), "{counted}");
    // No counter knows the jobs of a kind.
    let bounded = visitor.get("/jobs?kind=email:send").await.text();
    let expected = "Select all that match, at least 50…";
    assert!(bounded.contains(expected), "{bounded}");
    let all = visitor.get("/jobs/all?kind=email:send").await.text();
    assert!(all.contains("<b>60 jobs</b> match now"), "{all}");
    let dead = visitor.get("/jobs/all?state=dead").await.text();
    let usual = r#"value="revive" checked"#;
    assert!(dead.contains(usual) && !all.contains(usual), "{dead}");
    let unfiltered = visitor.get("/jobs").await.text();
    assert!(unfiltered.contains("Add a filter to change all jobs"));
    assert!(!unfiltered.contains("/jobs/all"), "{unfiltered}");
    let refused = visitor.get("/jobs/all").await.text();
    assert!(refused.contains("needs at least one condition"));
}

#[tokio::test]
async fn payloads_of_all_matching_jobs_are_patched_after_a_look_at_the_difference() {
    let site = Site::open().await;
    site.enqueue("mail", 3).await;
    let mut visitor = site.visitor();
    visitor.get("/jobs/all?queue=mail").await;
    let fields = |patch| {
        [
            ("action", "patch"),
            ("filter.queue", "mail"),
            ("reason", "another address"),
            ("patch", patch),
        ]
    };
    let broken = visitor.post("/jobs/all", &fields("{")).await.text();
    assert!(broken.contains("the patch is not JSON"), "{broken}");
    let looked = visitor.post("/jobs/all", &fields(r#"{"to":"bob"}"#)).await;
    let looked = looked.text();
    assert!(looked.contains("Patch the payload of 3 jobs?"), "{looked}");
    assert!(
        looked.contains("bob") && looked.contains("--payload-patch"),
        "{looked}"
    );
    let created = visitor
        .post("/jobs/all/apply", &fields(r#"{"to":"bob"}"#))
        .await;
    assert!(
        created
            .header("location")
            .unwrap()
            .starts_with("/actions/bulk/")
    );
}

#[tokio::test]
async fn a_job_is_created_with_a_form_and_jobs_are_exported() {
    let site = Site::open().await;
    let mut visitor = site.visitor();
    visitor.get("/new/job").await;
    let broken = [("kind", "email:send"), ("payload", "{oops")];
    let refused = visitor.post("/new/job", &broken).await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("{oops"), "what was typed is kept");
    let fields = [
        ("kind", "email:send"),
        ("queue", "mail"),
        ("payload", r#"{"n":1.50}"#),
    ];
    let created = visitor.post("/new/job", &fields).await;
    assert_eq!(created.status, 303, "{}", created.text());
    let page = visitor
        .get(created.header("location").unwrap())
        .await
        .text();
    assert!(
        page.contains("1.50") && page.contains("windlass enqueue email:send"),
        "{page}"
    );
    let export = visitor.get("/jobs/export?queue=mail").await;
    assert_eq!(export.text().lines().count(), 1);
    assert!(
        export
            .header("content-disposition")
            .unwrap()
            .contains("jobs.ndjson")
    );
}

#[tokio::test]
async fn a_policy_of_the_lab_becomes_a_draft_in_the_settings_of_a_queue() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let mut visitor = site.visitor();
    let used = visitor.get("/lab/use?queue=mail&policy=patient").await;
    assert_eq!(
        used.header("location"),
        Some("/queues/mail/settings?retry=patient")
    );
    let form = visitor
        .get("/queues/mail/settings?retry=patient")
        .await
        .text();
    assert!(
        form.contains(r#"value="patient""#) && form.contains("draft"),
        "{form}"
    );
    let queue = site
        .api("GET", "/api/v1/queues/mail", &json!({}))
        .await
        .json;
    assert!(
        queue["settings"]["retry"].is_null(),
        "nothing changes before it is saved"
    );
    visitor
        .post("/queues/mail/settings", &[("retry", "patient")])
        .await;
    let page = visitor.get("/queues/mail").await.text();
    assert!(page.contains("/lab?a=patient"), "{page}");
}

#[tokio::test]
async fn below_a_path_every_link_stays_below_it() {
    let site = Site::with("/ops", DashboardSettings::default()).await;
    let mut visitor = site.visitor();
    let page = visitor.get("/ops/queues").await;
    assert_eq!(page.status, 200);
    let text = page.text();
    let links = text
        .split(r#"href=""#)
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap());
    for link in links.filter(|link| link.starts_with('/')) {
        assert!(link.starts_with("/ops/"), "{link}");
    }
    let missing = visitor.get("/ops/nothing").await;
    assert_eq!(missing.status, 404);
    assert!(
        missing.text().contains("There is no page at this address"),
        "{}",
        missing.text()
    );
}

#[tokio::test]
async fn a_program_gets_json_and_a_browser_gets_pages() {
    let site = Site::open().await;
    let unknown = site.api("GET", "/nothing", &json!({})).await;
    assert_eq!(
        (unknown.status, unknown.code().as_str()),
        (404, "not_found")
    );
    let page = site.visitor().get("/nothing").await;
    assert_eq!(page.status, 404);
    assert!(
        page.text().contains("<h1>Not found</h1>"),
        "{}",
        page.text()
    );
}

#[tokio::test]
async fn a_read_only_dashboard_changes_nothing_and_says_so() {
    let about = About {
        read_only: true,
        environment: Some("production".into()),
        ..About::default()
    };
    let site = Site::with(
        "",
        DashboardSettings {
            about,
            ..DashboardSettings::default()
        },
    )
    .await;
    site.enqueue("mail", 1).await;
    let mut visitor = site.visitor();
    let page = visitor.get("/queues/mail").await.text();
    assert!(
        page.contains("Read only") && page.contains("production"),
        "{page}"
    );
    assert!(
        !page.contains("/queues/mail/pause"),
        "no button leads to a change"
    );
    let refused = visitor.post("/queues/mail/pause", &[]).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let queue = site
        .api("GET", "/api/v1/queues/mail", &json!({}))
        .await
        .json;
    assert!(queue["paused"].is_null());
}

#[tokio::test]
async fn payloads_and_errors_are_hidden_without_the_scope() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let failure = json!({"outcome": "failed", "error": "secret-error-text", "unrecoverable": true});
    site.settle_all("mail", &failure).await;
    site.key(&[Scope::Admin]).await;
    let (key, _) = site.key(&[Scope::Read]).await;
    let mut visitor = site.visitor();
    visitor.sign_in(&key).await;
    for path in ["/", "/jobs", "/jobs?state=dead"] {
        let page = visitor.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.text().contains("secret-error-text"), "{path}");
    }
    assert_eq!(visitor.get("/jobs?error=secret").await.status, 403);
}
