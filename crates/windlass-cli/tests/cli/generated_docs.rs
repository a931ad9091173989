//! The generated pages in `docs/` match this build.

use std::process::Command;

/// Compares the output of `windlass reference` with the page in the repository.
fn check(page: &str, committed: &str) {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let generated = Command::new(windlass).args(["reference", page]).output();
    let generated = generated.expect("it starts");
    assert!(generated.status.success());
    let fresh = String::from_utf8(generated.stdout).expect("text");
    assert!(
        fresh == committed,
        "docs/{page}.md is out of date; run: cargo run -- reference {page} > docs/{page}.md"
    );
}

#[test]
fn retry_policies_page_is_up_to_date() {
    let page = include_str!("../../../../docs/retry-policies.md");
    check("retry-policies", page);
}

#[test]
fn cli_page_is_up_to_date() {
    let page = include_str!("../../../../docs/cli.md");
    check("cli", page);
}

#[test]
fn configuration_page_is_up_to_date() {
    let page = include_str!("../../../../docs/configuration.md");
    check("configuration", page);
}

#[test]
fn metrics_page_is_up_to_date() {
    let page = include_str!("../../../../docs/metrics.md");
    check("metrics", page);
}
