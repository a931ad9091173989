//! Mutated inputs for everything that reads text from outside: no panic, no hang, and what was read
//! can be written and read again. `windlass_testkit::fuzz` explains the corpora next to this file.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what a test may, its helpers may"
)]

mod bodies;
mod cursors;
mod requests;
mod resume;
mod rules;
mod targets;

use windlass_core::Invalid;
use windlass_testkit::Fuzz;

fn fuzz(name: &str) -> Fuzz {
    Fuzz::new(env!("CARGO_MANIFEST_DIR"), name)
}

/// Checks that an error is one short line that says what to do, and returns its kind.
fn named(invalid: &Invalid) -> String {
    let (field, rule) = (invalid.field(), invalid.rule());
    assert!(!rule.is_empty(), "an error without a rule: {invalid:?}");
    for text in [field, rule] {
        assert!(!text.chars().any(char::is_control), "{invalid:?}");
        let length = text.chars().count();
        assert!(length <= 1000, "{length} characters: {invalid:?}");
    }
    kind_of(&format!("{field} {rule}"))
}

/// The beginning of a text without its values, so that texts of one kind are equal.
fn kind_of(text: &str) -> String {
    let words = text.split_whitespace().take(6);
    let plain = words.filter(|word| word.chars().all(|letter| letter.is_ascii_lowercase()));
    plain.collect::<Vec<_>>().join(" ")
}
