//! Generated pages are the ones that this build generates.

use std::process::Command;

/// Compares what `windlass reference` prints with the page of the repository.
fn check(page: &str, committed: &str) {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let generated = Command::new(windlass).args(["reference", page]).output();
    let generated = generated.expect("it starts");
    assert!(generated.status.success());
    let fresh = String::from_utf8(generated.stdout).expect("text");
    assert!(
        fresh == committed,
        "docs/{page}.md has drifted: cargo run -- reference {page} > docs/{page}.md"
    );
}

#[test]
fn retry_policies_have_not_drifted() {
    let page = include_str!("../../../../docs/retry-policies.md");
    check("retry-policies", page);
}

#[test]
fn the_configuration_has_not_drifted() {
    let page = include_str!("../../../../docs/configuration.md");
    check("configuration", page);
}

#[test]
fn the_metrics_have_not_drifted() {
    let page = include_str!("../../../../docs/metrics.md");
    check("metrics", page);
}
