//! Phones: what a finger presses is large enough, on every page.

use serde_json::json;
use windlass_testkit::browser::Browser;

use crate::everything::every_page;
use crate::support::{Site, blocking};

/// Controls that are less than 44 px high, buttons that are less than 44 px wide, and text that its
/// button clips. Links inside sentences and the boxes inside labels do not count: the line and the
/// label are larger.
const TOO_SMALL: &str = "
    const pressed = 'button, summary, select, textarea, label.radio, label.tick, .btn, .chip a, .nav a, .brand, .seg a, .tabs a, .crumb a, .pager a, .bulk a, .section-head a.aside, td a, .pat, input:not([type=checkbox], [type=radio], [type=hidden])';
    const wide = 'button, .btn, .chip a, .nav a, .seg a, .tabs a';
    return [...document.querySelectorAll(pressed)].filter((one) => one.checkVisibility() && !one.closest('.vh')).map((one) => {
        const { width, height } = one.getBoundingClientRect();
        const small = height < 43.5 || one.matches(wide) && (width < 43.5 || one.scrollWidth > one.clientWidth);
        return small && `${Math.round(width)} x ${Math.round(height)} px: ${one.outerHTML.slice(0, 120)}`;
    }).filter(Boolean)";

#[tokio::test(flavor = "multi_thread")]
async fn on_a_phone_every_control_is_at_least_44_px_high() {
    let site = Site::open().await;
    let mut paths = every_page(&site, "connection refused by 10.0.0.7").await;
    paths.retain(|path| !path.starts_with("/login"));
    let base = site.url("");
    let small = blocking(move || {
        let browser = Browser::start();
        browser.resize(390, 844);
        let mut small = Vec::new();
        for path in &paths {
            browser.open(&format!("{base}{path}"));
            let found = browser.run(TOO_SMALL);
            let found = found.as_array().cloned().unwrap_or_default();
            small.extend(found.iter().map(|one| format!("{path}: {one}")));
            let wide = browser.run("return document.documentElement.scrollWidth");
            if wide != json!(390) {
                small.push(format!("{path} is {wide} wide"));
            }
        }
        small
    })
    .await;
    assert!(small.is_empty(), "{}", small.join("\n"));
}
