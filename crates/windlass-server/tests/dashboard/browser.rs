//! The dashboard in a real browser: live figures, the back button, the keyboard, no scripts.

use serde_json::json;
use windlass_testkit::browser::Browser;

use crate::hostile;
use crate::pages::PAGES;
use crate::support::{Site, blocking};

/// The number in the first figure of the overview.
const READY: &str = "document.querySelector('#figures .fig .v')?.textContent.trim()";

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_moves_without_a_reload_and_again_after_a_restart_of_the_server() {
    let mut site = Site::open().await;
    site.enqueue("mail", 3).await;
    let url = site.url("/");
    let browser = blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.run("window.sameDocument = true");
        browser.until("three jobs", &format!("return {READY} === '3'"));
        browser
    })
    .await;
    site.enqueue("mail", 4).await;
    let browser = blocking(move || {
        browser.until(
            "seven jobs",
            &format!("return {READY} === '7' && window.sameDocument === true"),
        );
        browser
    })
    .await;
    site.stop().await;
    let browser = blocking(move || {
        browser.until(
            "not connected",
            "return !document.getElementById('not-connected').hidden",
        );
        browser
    })
    .await;
    site.restart().await;
    site.enqueue("mail", 2).await;
    blocking(move || {
        browser.until(
            "nine jobs",
            &format!("return {READY} === '9' && window.sameDocument === true"),
        );
        browser.until(
            "connected",
            "return document.getElementById('not-connected').hidden",
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_empty_page_goes_away_with_the_first_job() {
    let site = Site::open().await;
    let url = site.url("/");
    let browser = blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.until(
            "the page teaches",
            "return !!document.getElementById('empty')",
        );
        browser
    })
    .await;
    site.enqueue("mail", 1).await;
    blocking(move || browser.until("the figures", &format!("return {READY} === '1'"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_is_in_the_url_and_survives_reload_and_back() {
    let site = Site::open().await;
    site.enqueue("mail", 2).await;
    site.enqueue("other", 5).await;
    let url = site.url("/jobs");
    blocking(move || {
        let browser = Browser::start();
        let rows = |count: u32| {
            format!("return document.querySelectorAll('[data-row]').length === {count}")
        };
        browser.open(&url);
        browser.until("all jobs", &rows(7));
        browser.type_into(".find input[name=q]", "queue:mail\u{e007}");
        browser.until("the jobs of the queue", &rows(2));
        assert!(
            browser.url().ends_with("/jobs?queue=mail"),
            "{}",
            browser.url()
        );
        browser.reload();
        browser.until("the same jobs", &rows(2));
        browser.back();
        browser.until("all jobs again", &rows(7));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_rows_wait_behind_a_pill_and_rows_that_left_stay() {
    let site = Site::open().await;
    site.enqueue("mail", 2).await;
    let url = site.url("/jobs?state=ready");
    let browser = blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.until(
            "two rows",
            "return document.querySelectorAll('[data-row]').length === 2",
        );
        browser
    })
    .await;
    site.settle_all("mail", &json!({"outcome": "succeeded"}))
        .await;
    site.enqueue("mail", 3).await;
    blocking(move || {
        browser.until("the pill", "return document.querySelector('[data-new-rows]').textContent === '3 new' && !document.querySelector('[data-new-rows]').hidden");
        browser.until("rows that left", "return document.querySelectorAll('[data-row].gone').length === 2");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_alone_is_enough() {
    let site = Site::open().await;
    site.enqueue("mail", 3).await;
    let url = site.url("/");
    blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.press_until("gj", "the jobs", "return location.pathname === '/jobs'");
        browser.press("jx");
        browser.until(
            "one selected",
            "return document.querySelectorAll('[data-row][aria-selected=true]').length === 1",
        );
        browser.until(
            "the bar",
            "return !document.querySelector('[data-bulk]').hidden",
        );
        browser.press("\u{e00c}");
        browser.until(
            "none selected",
            "return document.querySelectorAll('[data-row][aria-selected=true]').length === 0",
        );
        browser.press("/");
        browser.until(
            "the search field",
            "return document.activeElement.matches('[data-find]')",
        );
        browser.type_into("[data-find]", "mail\u{e007}");
        browser.until("the queue", "return location.pathname === '/queues/mail'");
        browser.press("?");
        browser.until(
            "the list of keys",
            "return document.getElementById('keys').open",
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bar_counts_all_that_match_once_a_row_is_selected() {
    let site = Site::open().await;
    site.enqueue("mail", 60).await;
    let url = site.url("/jobs?kind=email:send");
    blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        browser.press("jx");
        browser.until(
            "the number of all jobs",
            "return document.querySelector('[data-count-all]')?.textContent === 'Select all 60 that match…'",
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_scripts_pages_can_be_read_and_forms_work() {
    let site = Site::open().await;
    site.enqueue("mail", 3).await;
    let (overview, queue) = (site.url("/"), site.url("/queues/mail"));
    blocking(move || {
        let browser = Browser::without_scripts();
        browser.open(&overview);
        assert_eq!(browser.text("#figures .fig .v"), "3");
        browser.open(&queue);
        browser.click("details.menu > summary");
        browser.type_into("#reason", "no scripts");
        browser.click(".pop button");
        assert!(browser.text(".flash").contains("Paused mail"));
        assert!(browser.text("#lead").contains("no scripts"));
    })
    .await;
    let queue = site
        .api("GET", "/api/v1/queues/mail", &json!({}))
        .await
        .json;
    assert_eq!(queue["paused"]["reason"], "no scripts");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_scrolls_sideways_from_phones_to_laptops() {
    let site = Site::open().await;
    site.enqueue("mail", 30).await;
    site.settle_all(
        "mail",
        &json!({"outcome": "failed", "error": "x".repeat(300), "unrecoverable": true}),
    )
    .await;
    site.enqueue("a-rather-long-name-of-a-queue-that-does-not-fit", 3)
        .await;
    let base = site.url("");
    blocking(move || {
        let browser = Browser::start();
        let mut too_wide = Vec::new();
        for path in PAGES {
            browser.open(&format!("{base}{path}"));
            for width in [390, 768, 1024, 1280] {
                browser.resize(width, 844);
                let wide = browser.run("return document.documentElement.scrollWidth");
                if wide.as_u64().is_none_or(|wide| wide > u64::from(width)) {
                    too_wide.push(format!("{path} is {wide} wide at {width}"));
                }
            }
            let headings = browser.run("return document.querySelectorAll('h1').length");
            assert_eq!(headings, 1, "{path}");
        }
        assert!(too_wide.is_empty(), "{}", too_wide.join("\n"));
    })
    .await;
}

/// Scripts of the page that are not ours, and attributes that would run one.
const FOREIGN: &str = "
    const scripts = [...document.scripts].filter((script) => !script.src.includes('/assets/'));
    const handlers = [...document.querySelectorAll('*')].filter((element) => [...element.attributes].some(({name, value}) =>
        name.startsWith('on') || /^(href|src|action|formaction|xlink:href)$/.test(name) && /^\\s*(javascript|data):/i.test(value)));
    return scripts.length + handlers.length";

#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_runs_no_script() {
    let site = Site::open().await;
    let mut paths: Vec<String> = [
        "/",
        "/jobs?state=dead",
        "/dead",
        "/dead?as=jobs",
        "/queues/hostile",
        "/workers",
        "/audit",
        "/jobs?tag=x",
    ]
    .map(str::to_owned)
    .to_vec();
    for hostile in hostile::corpus() {
        let id = hostile::dead_job(&site, &hostile).await;
        if paths.len() < 27 {
            paths.push(format!("/jobs/{id}"));
        }
    }
    let base = site.url("");
    blocking(move || {
        let browser = Browser::start();
        for path in &paths {
            // A script that ran would have opened a dialog, and the driver would refuse to go on.
            browser.open(&format!("{base}{path}"));
            assert_eq!(browser.run(FOREIGN), 0, "{path}");
        }
        // The strings come back in the URL: in its path, in its query, and in fields.
        for hostile in hostile::corpus().iter().step_by(9) {
            let escaped: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
            for path in ["/", "/jobs?q=", "/dead?error=", "/find?q="] {
                browser.open(&format!("{base}{path}{escaped}"));
                assert_eq!(browser.run(FOREIGN), 0, "{path}{escaped}");
            }
        }
    })
    .await;
}
