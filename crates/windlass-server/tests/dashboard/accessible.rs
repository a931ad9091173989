//! People who use a screen reader, a keyboard or high contrast: axe-core examines every page.
//!
//! `./test` installs axe-core into `target/`. It is no part of the product.

use std::path::Path;

use serde_json::Value;
use windlass_testkit::browser::Browser;

use crate::everything::every_page;
use crate::support::{Site, blocking};

/// The rules of WCAG 2.2, levels A and AA, and what axe-core calls best practice.
const EXAMINE: &str = "
    const options = {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']};
    return axe.run(document, options).then(({violations}) => violations
        .filter(({impact}) => impact === 'serious' || impact === 'critical')
        .map(({id, nodes}) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ''}`).join(' | ')}`))";

fn axe() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/axe/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(path)
        .expect("axe-core is in target/axe: ./test installs it, or npm install --prefix target/axe axe-core@4")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_has_a_serious_barrier() {
    let site = Site::open().await;
    let paths = every_page(&site, "connection refused by 10.0.0.7").await;
    let base = site.url("");
    // Both themes share their markup, so the dark one only adds its contrasts.
    let is_long = windlass_testkit::seeds::is_long();
    let schemes: &[&str] = if is_long {
        &["light", "dark"]
    } else {
        &["light"]
    };
    let barriers = blocking(move || {
        let (browser, axe) = (Browser::start(), axe());
        let mut barriers = Vec::new();
        for scheme in schemes {
            browser.prefer_scheme(scheme);
            for path in &paths {
                browser.open(&format!("{base}{path}"));
                browser.run(
                    "for (const closed of document.querySelectorAll('details')) closed.open = true",
                );
                browser.run(&axe);
                let found = browser.run(EXAMINE);
                let found = found
                    .as_array()
                    .cloned()
                    .unwrap_or_else(|| panic!("{path}: {found}"));
                let named = found.iter().filter_map(Value::as_str);
                barriers.extend(named.map(|one| format!("{scheme} {path}: {one}")));
            }
        }
        barriers
    })
    .await;
    assert!(barriers.is_empty(), "{}", barriers.join("\n"));
}
