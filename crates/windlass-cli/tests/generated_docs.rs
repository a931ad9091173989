//! Generated pages are the ones that this build generates.

use std::process::Command;

#[test]
fn retry_policies_have_not_drifted() {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let generated = Command::new(windlass)
        .args(["reference", "retry-policies"])
        .output()
        .unwrap();
    assert!(generated.status.success());
    let committed = include_str!("../../../docs/retry-policies.md");
    let fresh = String::from_utf8(generated.stdout).unwrap();
    assert!(
        fresh == committed,
        "docs/retry-policies.md has drifted: cargo run -- reference retry-policies > docs/retry-policies.md"
    );
}

#[test]
fn the_configuration_has_not_drifted() {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let generated = Command::new(windlass)
        .args(["reference", "configuration"])
        .output()
        .unwrap();
    assert!(generated.status.success());
    let committed = include_str!("../../../docs/configuration.md");
    let fresh = String::from_utf8(generated.stdout).unwrap();
    assert!(
        fresh == committed,
        "docs/configuration.md has drifted: cargo run -- reference configuration > docs/configuration.md"
    );
}
