//! What operators do, from beginning to end, in a real browser with a server that runs its loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass_dashboard::About;
use windlass_engine::{MaintenanceConfig, run_maintenance};
use windlass_server::DashboardSettings;
use windlass_testkit::browser::Browser;
use windlass_testkit::client;

use crate::support::{Site, blocking};

/// The key Tab and the key Enter in the protocol of the driver.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

/// The loops of a server and a worker of the queue `mail`. They stop with the test.
struct Running {
    is_repaired: Arc<AtomicBool>,
    stop: CancellationToken,
    worker: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        self.worker.abort();
    }
}

/// Starts the loops, and a worker whose jobs die until it is repaired.
fn run(site: &Site) -> Running {
    let (stop, is_repaired) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let engine = Arc::clone(windlass::admin::engine_of(&site.client));
    let config = MaintenanceConfig::new("server-test".to_owned());
    tokio::spawn(run_maintenance(engine, config, stop.clone()));
    let (address, repaired) = (site.address, Arc::clone(&is_repaired));
    let send = async move |path: &str, body: &Value| {
        let body = body.to_string();
        let request = client::request(address, "POST", path, &[], Some(body.as_bytes()));
        client::exchange(address, &request).await.json
    };
    let worker = tokio::spawn(async move {
        loop {
            let claim = json!({"queue": "mail", "limit": 20, "wait": "5s"});
            let claimed = send("/api/v1/claim", &claim).await;
            let outcomes: Vec<Value> = claimed["data"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|job| {
                    let mut outcome =
                        json!({"id": job["id"], "attempt": job["attempt"], "outcome": "succeeded"});
                    if !repaired.load(Ordering::SeqCst) {
                        outcome["outcome"] = json!("failed");
                        outcome["error"] = json!("template missing");
                        outcome["unrecoverable"] = json!(true);
                    }
                    outcome
                })
                .collect();
            if !outcomes.is_empty() {
                send("/api/v1/settle", &json!({"outcomes": outcomes})).await;
            }
        }
    });
    Running {
        is_repaired,
        stop,
        worker,
    }
}

/// Goes through the wizard of the only cause and starts the replay.
fn replay(browser: &Browser, base: &str, reason: &str) {
    browser.open(&format!("{base}/dead"));
    browser.follow(".group .act .btn");
    browser.follow(".dialog-foot .btn-main");
    browser.follow(".dialog-foot .btn-main");
    for (field, value) in [("canary", "2"), ("rate", "50")] {
        browser.run(&format!("document.getElementById('{field}').value = ''"));
        browser.type_into(&format!("#{field}"), value);
    }
    browser.follow(".dialog-foot .btn-main");
    browser.type_into("#why", reason);
    browser.follow(".dialog-foot .btn-main");
    browser.until(
        "the page of the replay",
        "return location.pathname.startsWith('/actions/replays/')",
    );
    browser.run("window.sameDocument = true");
}

/// The page shows this state of the replay, and was not loaded again.
fn shows(browser: &Browser, state: &str) {
    let script = format!(
        "return document.querySelector('.top')?.textContent.includes('{state}') && window.sameDocument === true"
    );
    browser.until(state, &script);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_stops_itself_and_another_one_finishes() {
    let site = Site::open().await;
    let running = run(&site);
    site.enqueue("mail", 8).await;
    let base = site.url("");
    let dead = "return document.querySelector('.group .cnt a')?.textContent.trim() === '8'";
    let browser = blocking(move || {
        let browser = Browser::start();
        browser.open(&format!("{base}/dead"));
        browser.until("eight dead jobs", dead);
        replay(&browser, &base, "try it");
        shows(&browser, "stopped itself");
        assert!(browser.text("main").contains("never touched"));
        (browser, base)
    })
    .await;
    running.is_repaired.store(true, Ordering::SeqCst);
    blocking(move || {
        let (browser, base) = browser;
        replay(&browser, &base, "the template is back");
        shows(&browser, "finished");
        browser.until(
            "all jobs recovered",
            "return document.querySelector('.hero .count').textContent.startsWith('8')",
        );
        browser.open(&format!("{base}/dead"));
        assert!(browser.text("main").contains("Nothing is dead"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_starts_without_scripts() {
    let site = Site::open().await;
    site.enqueue("mail", 2).await;
    let failed = json!({"outcome": "failed", "error": "template missing", "unrecoverable": true});
    site.settle_all("mail", &failed).await;
    let url = site.url("/dead");
    blocking(move || {
        let browser = Browser::without_scripts();
        browser.open(&url);
        browser.follow(".group .act .btn");
        for _ in ["jobs", "payload", "pace"] {
            browser.follow(".dialog-foot .btn-main");
        }
        browser.type_into("#why", "it is back");
        browser.follow(".dialog-foot .btn-main");
        assert!(browser.text("main").contains("it is back"));
        assert!(browser.url().contains("/actions/replays/"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_paused_and_resumed_with_the_keyboard_alone() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let url = site.url("/queues/mail");
    blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.press(TAB);
        let first = browser.run("return document.activeElement.outerHTML");
        assert!(
            first.as_str().is_some_and(|html| html.contains("skip")),
            "the first stop skips the navigation, not {first}"
        );
        browser.press(ENTER);
        tab_to(&browser, "main details.menu > summary");
        let ring = "return getComputedStyle(document.activeElement).outlineStyle";
        assert_eq!(browser.run(ring), "solid", "the focus is visible");
        browser.press(ENTER);
        tab_to(&browser, "#reason");
        browser.press("by hand");
        browser.press(ENTER);
        browser.until(
            "it is paused",
            "return document.querySelector('#lead')?.textContent.includes('by hand') === true",
        );
        tab_to(&browser, "form[action$=\"/resume\"] button");
        browser.press(ENTER);
        browser.until(
            "it runs again",
            "return document.querySelector('#queue-state').textContent.includes('claiming')",
        );
    })
    .await;
}

/// Presses Tab until an element has the focus.
fn tab_to(browser: &Browser, selector: &str) {
    let script = format!("return document.activeElement.matches('{selector}')");
    let mut left = 60;
    while browser.run(&script) != true {
        assert!(left > 0, "Tab never reaches {selector}");
        left -= 1;
        browser.press(TAB);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_dashboard_offers_no_action_and_refuses_those_that_are_sent() {
    let about = About {
        read_only: true,
        ..About::default()
    };
    let settings = DashboardSettings {
        about,
        ..DashboardSettings::default()
    };
    let site = Site::with("", settings).await;
    let paths = crate::everything::every_page(&site, "text").await;
    let base = site.url("");
    blocking(move || {
        let browser = Browser::start();
        for path in paths.iter().filter(|path| !path.starts_with("/login")) {
            browser.open(&format!("{base}{path}"));
            // As sent, before any script has disabled a button. A preview changes nothing. Trusted types
            // forbid a parser of text here, but not a request that returns a document.
            let enabled = browser.run("
                return new Promise((done) => {
                    const request = new XMLHttpRequest();
                    request.responseType = 'document';
                    request.addEventListener('load', () => {
                        const enabled = request.response.querySelectorAll('main form[method=post] button:not([disabled])');
                        done([...enabled].map((button) => button.textContent).filter((name) => name !== 'Preview'));
                    });
                    request.open('GET', location.href);
                    request.setRequestHeader('accept', 'text/html');
                    request.send();
                });");
            assert_eq!(enabled, json!([]), "{path}");
        }
        browser.open(&format!("{base}/queues/mail"));
        assert!(browser.text(".banner-info").contains("Read only"));
        let sent = browser.run("
            const csrf = document.querySelector('[name=csrf]').value;
            const body = new URLSearchParams({csrf});
            return fetch('/queues/mail/pause', {method: 'POST', headers: {accept: 'text/html'}, body}).then(({status}) => status)");
        assert_eq!(sent, 403);
    })
    .await;
    let queue = site.api("GET", "/api/v1/queues/mail", &json!({})).await;
    assert!(queue.json["paused"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_with_an_inverse_can_be_undone() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    let url = site.url("/queues/mail");
    blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.click("details.menu > summary");
        browser.click(".pop button");
        browser.until(
            "a toast that counts down",
            "return /Undo \\(\\d+\\ss\\)/.test(document.querySelector('.toast [data-undo] button')?.textContent)",
        );
        browser.click(".toast [data-undo] button");
        browser.until(
            "it runs again",
            "return document.querySelector('#queue-state').textContent.includes('claiming')",
        );
    })
    .await;
    let queue = site.api("GET", "/api/v1/queues/mail", &json!({})).await;
    assert!(queue.json["paused"].is_null());
}
