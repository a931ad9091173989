//! What every body must keep before it is read: whole JSON that means the same to everybody.

use std::fmt;

use windlass_core::{JSON_DEPTH_MAX, JsonRules};

/// A body holds a payload, which may be as deep as JSON may be, within a job within a list.
const BODY_DEPTH_MAX: usize = JSON_DEPTH_MAX + 4;

/// One object has at most so many names: to find a repeated one, they are kept.
const NAMES_MAX: usize = 100_000;

const RULES: JsonRules = JsonRules {
    depth_max: BODY_DEPTH_MAX,
    names_max: Some(NAMES_MAX),
    without_nul: true,
};

/// A body that is not the JSON it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    pub(crate) fn new(error: &serde_json::Error) -> Self {
        Malformed(format!("the body must be valid JSON: {error}"))
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// The text of a body, if it is UTF-8 without a byte order mark.
pub fn body_text(body: &[u8]) -> Result<&str, Malformed> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Malformed(format!("the body must be UTF-8: {error}")))?;
    if text.starts_with('\u{feff}') {
        let rule = "the body must not begin with a byte order mark";
        return Err(Malformed(rule.to_owned()));
    }
    Ok(text)
}

/// The text of a body, if it is one JSON value: UTF-8 without a byte order mark, no name twice in an object, no NUL, no
/// broken escape, no number that cannot be held, not nested too deep.
pub fn check_strict(body: &[u8]) -> Result<&str, Malformed> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Malformed(format!("the body must be UTF-8: {error}")))?;
    if text.starts_with('\u{feff}') {
        let rule = "the body must not begin with a byte order mark";
        return Err(Malformed(rule.to_owned()));
    }
    RULES
        .check(text)
        .map_err(|error| Malformed(format!("the body must be valid JSON: {error}")))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_json_passes_as_it_is() {
        for text in [
            "null",
            " {\"a\": [1, 2.5, true, \"\\u00e9\"]} ",
            "[{\"a\":1},{\"a\":2}]",
        ] {
            assert_eq!(check_strict(text.as_bytes()), Ok(text));
        }
    }

    #[test]
    fn what_could_mean_two_things_or_break_something_is_refused() {
        for (body, told) in [
            (&b"\xff\xfe{}"[..], "UTF-8"),
            (b"\xef\xbb\xbf{}", "byte order mark"),
            (b"{\"a\":1,\"a\":2}", "\"a\" appears twice"),
            (
                b"{\"p\":{\"x\":{\"a\":1,\"b\":2,\"\\u0061\":3}}}",
                "\"a\" appears twice",
            ),
            (b"{\"a\":\"x\\u0000y\"}", "NUL"),
            (b"{\"a\\u0000\":1}", "NUL"),
            (b"{\"a\":\"\\ud800\"}", "valid JSON"),
            (b"{\"\\udc00\":1}", "valid JSON"),
            (b"{\"a\":1e999}", "valid JSON"),
            (b"{\"a\":NaN}", "valid JSON"),
            (b"{\"a\":1} x", "valid JSON"),
            (b"", "valid JSON"),
        ] {
            let refused = check_strict(body).unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }

    #[test]
    fn depth_and_names_are_bounded() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check_strict(nested(BODY_DEPTH_MAX).as_bytes()).is_ok());
        for text in [
            nested(BODY_DEPTH_MAX + 1),
            nested(10_000),
            "{\"a\":".repeat(10_000),
        ] {
            assert!(check_strict(text.as_bytes()).is_err());
        }
        let many: Vec<String> = (0..=NAMES_MAX).map(|n| format!("\"{n}\":1")).collect();
        let many = format!("{{{}}}", many.join(","));
        let refused = check_strict(many.as_bytes());
        assert!(refused.unwrap_err().to_string().contains("more than"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = check_strict(&body);
        }
    }
}
