//! What stays in place while figures change, and what says that figures are old.

use serde_json::json;
use windlass_testkit::browser::Browser;
use windlass_testkit::client::PATIENCE;

use crate::support::{Site, blocking};

/// Counts the updates of a page, and names what they move. A figure that gets longer may move its unit within its own
/// cell. Where the cell moves, the cell itself is the source.
const WATCH: &str = "
    window.updates = 0;
    window.moved = '';
    document.addEventListener('windlass:patched', () => (window.updates += 1));
    new PerformanceObserver((list) => {
        for (const shift of list.getEntries()) {
            for (const { node } of shift.sources) {
                if (!node?.parentElement?.closest('td, .v')) window.moved += `${node?.parentElement?.outerHTML.slice(0, 200)} `;
            }
        }
    }).observe({type: 'layout-shift'});";

#[tokio::test(flavor = "multi_thread")]
async fn live_figures_move_nothing_on_the_page() {
    let site = Site::open().await;
    site.enqueue("mail", 60).await;
    let failed = json!({"outcome": "failed", "error": "template missing", "unrecoverable": true});
    site.settle_all("mail", &failed).await;
    site.enqueue("mail", 70).await;
    // The first statistics, at most 10 s after the start, add a sentence to the page of the queue.
    let mut visitor = site.visitor();
    let complete = async {
        while !visitor
            .get("/queues/mail")
            .await
            .text()
            .contains("start within")
        {}
    };
    tokio::time::timeout(PATIENCE, complete)
        .await
        .expect("the statistics arrive in time");
    let pages = [
        "/",
        "/jobs?state=ready",
        "/queues",
        "/queues/mail",
        "/dead",
        "/workers",
    ];
    let mut browser = blocking(Browser::start).await;
    for path in pages {
        let url = site.url(path);
        browser = blocking(move || {
            browser.open(&url);
            // What the first update brings in is part of the load.
            browser.run(WATCH);
            browser.until("an update", "return window.updates > 0");
            browser.run("window.updates = 0; window.moved = ''");
            browser
        })
        .await;
        site.enqueue("mail", 5).await;
        let moved = blocking(move || {
            browser.until("another update", "return window.updates > 0");
            let moved = browser.run(
                "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(window.moved))))");
            (browser, moved)
        })
        .await;
        browser = moved.0;
        assert_eq!(moved.1, "", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_figures_say_from_when_they_are() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let url = site.url("/");
    blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.until(
            "it is live",
            "return document.querySelector('[data-live-mark]').innerText === 'Live'",
        );
        // The stream stays open, but updates no longer arrive.
        browser.run(
            "
            window.answer = window.fetch;
            window.fetch = () => new Promise(() => {});
            const now = Date.now;
            Date.now = () => now() + 60000",
        );
        browser.until(
            "it is out of date",
            "return document.querySelector('[data-live-mark]').innerText.startsWith('As of ')",
        );
        assert!(
            browser.text("#figures").contains("Ready"),
            "the figures stay"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_walk_through_rows_and_attempts_and_can_be_switched_off() {
    let site = Site::open().await;
    let job = json!({"kind": "email:send", "queue": "mail", "retry": {"max_attempts": 9, "backoff": {"type": "constant", "delay": "1h"}}});
    let created = site.api("POST", "/api/v1/jobs", &job).await.json;
    let id = created["id"].as_str().expect("an id").to_owned();
    for _ in 0..2 {
        let failed = json!({"outcome": "failed", "error": "no"});
        site.settle_all("mail", &failed).await;
        let now = format!("/api/v1/jobs/{id}/run-now");
        site.api("POST", &now, &json!({})).await;
    }
    let failed = json!({"outcome": "failed", "error": "no"});
    site.settle_all("mail", &failed).await;
    let (jobs, page) = (site.url("/jobs"), site.url(&format!("/jobs/{id}")));
    blocking(move || {
        let browser = Browser::start();
        browser.open(&jobs);
        browser.press_until(
            "j",
            "a row",
            "return !!document.querySelector('[data-row].at')",
        );
        browser.press("\u{e007}");
        browser.until("the job", "return location.pathname.startsWith('/jobs/0')");
        browser.press_until(
            "[",
            "an earlier attempt",
            "return location.search === '?attempt=2'",
        );
        browser.press_until(
            "]",
            "a later attempt",
            "return location.search === '?attempt=3'",
        );
        browser.press_until(
            "r",
            "it is due",
            "return document.querySelector('main').innerText.includes('The job is due now')",
        );
        browser.open(&page);
        browser.press_until(
            "?",
            "the list",
            "return document.getElementById('keys').open",
        );
        browser.click("[data-keys-off]");
        browser.press("\u{e00c}");
        browser.until("it closes", "return !document.getElementById('keys').open");
        browser.press("/");
        assert_eq!(
            browser.run("return document.activeElement.matches('[data-find]')"),
            false
        );
    })
    .await;
}
