use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Groups begin with `== name`, their texts are separated by `--`.
const CORPUS: &str = include_str!("corpus.txt");

fn kind() -> Kind {
    Kind::new("email:send").unwrap()
}

fn fingerprint(error: &str) -> Fingerprint {
    Fingerprint::new(&kind(), &AttemptError::new(error))
}

/// The texts of the corpus, each with the name of its group.
fn corpus() -> Vec<(&'static str, String)> {
    let mut texts = Vec::new();
    for group in CORPUS.split("\n== ").skip(1) {
        let (name, errors) = group.split_once('\n').unwrap();
        let errors = format!("\n{errors}\n");
        let errors = errors
            .split("\n--\n")
            .map(|text| text.trim_matches('\n').to_owned());
        texts.extend(errors.map(|text| (name, text)));
    }
    texts
}

#[test]
fn the_corpus_falls_into_its_groups() {
    let texts = corpus();
    let mut patterns: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut names: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, text) in &texts {
        let fingerprint = fingerprint(text);
        let pattern = pattern(&AttemptError::new(text.as_str()));
        let seen = patterns.entry(name).or_default();
        if !seen.contains(&pattern) {
            seen.push(pattern);
        }
        let seen = names.entry(fingerprint.to_string()).or_default();
        if !seen.contains(name) {
            seen.push(name);
        }
    }
    let split: Vec<_> = patterns.iter().filter(|(_, seen)| seen.len() > 1).collect();
    let joined: Vec<_> = names.values().filter(|seen| seen.len() > 1).collect();
    assert!(split.is_empty(), "one cause, several groups: {split:#?}");
    assert!(joined.is_empty(), "several causes, one group: {joined:#?}");
    assert!(texts.len() >= 100, "{} texts", texts.len());
    assert!(patterns.len() >= 50, "{} groups", patterns.len());
}

#[test]
fn the_kind_counts() {
    let other = Kind::new("sms:send").unwrap();
    let error = AttemptError::new("status 503");
    assert_ne!(
        Fingerprint::new(&kind(), &error).to_string(),
        Fingerprint::new(&other, &error).to_string()
    );
}

#[test]
fn causes_count_and_the_innermost_frame_of_all_is_used() {
    let wrapped = |cause: &str| {
        let causes = [cause.to_owned()];
        Fingerprint::new(&kind(), &AttemptError::with_causes("send failed", &causes))
    };
    assert_ne!(wrapped("refused"), wrapped("timed out"));
    let causes = ["TypeError: x\n    at send (/app/mail.js:17:2)".to_owned()];
    assert_eq!(
        pattern(&AttemptError::with_causes("send failed", &causes)),
        "send failed: TypeError: x at send mail.js:17"
    );
}

#[test]
fn a_death_without_an_error_is_grouped_by_its_reason() {
    let of = |reason| Fingerprint::without_error(&kind(), reason);
    assert_ne!(of(DeadReason::Lost), of(DeadReason::Expired));
    assert_ne!(of(DeadReason::Lost), fingerprint("lost cause"));
}

#[test]
fn a_fingerprint_is_sixteen_digits_and_names_the_version() {
    let name = fingerprint("x").to_string();
    assert_eq!(name.len(), 16);
    assert!(name.starts_with('2'));
    assert_eq!(name.to_uppercase().parse(), Ok(fingerprint("x")));
    assert_eq!("other".parse(), Ok(Fingerprint::OTHER));
    for wrong in ["", "x", "others", "+234567890123456", "123456789012345"] {
        let refused = wrong.parse::<Fingerprint>().unwrap_err();
        assert!(refused.to_string().contains("16 hexadecimal digits"));
    }
}

#[test]
fn long_errors_are_bounded() {
    let long = pattern(&AttemptError::new("word ".repeat(100_000)));
    assert!(long.chars().count() < 10_000, "{}", long.len());
}

proptest! {
    #[test]
    fn no_error_panics(error in any::<String>()) {
        let name = fingerprint(&error).to_string();
        prop_assert_eq!(name.parse(), Ok(fingerprint(&error)));
    }

    #[test]
    fn numbers_do_not_split_a_group(a in any::<u64>(), b in any::<u64>()) {
        prop_assert_eq!(
            fingerprint(&format!("row {a} is locked")),
            fingerprint(&format!("row {b} is locked"))
        );
    }
}

#[test]
fn a_cause_is_named_without_the_details_of_one_job() {
    for (error, words) in [
        (
            "connect to ledger.acme.io: timed out after 5 s",
            "connect to ledger.acme.io: timed out after ‹n› s",
        ),
        (
            "ledger.acme.io answered 503 Service Unavailable",
            "ledger.acme.io answered 503 Service Unavailable",
        ),
        (
            r#"no customer "Ann Lee" in order #17"#,
            "no customer ‹…› in order #‹n›",
        ),
        ("", ""),
    ] {
        assert_eq!(cause_in_words(error), words);
    }
}
