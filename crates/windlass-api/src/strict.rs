//! Checks of a request body before it is parsed.

use std::fmt;

/// A body that is not UTF-8 text with valid JSON.
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

/// Returns the text of a body, if it is UTF-8 without a byte order mark.
pub fn body_text(body: &[u8]) -> Result<&str, Malformed> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Malformed(format!("the body must be UTF-8: {error}")))?;
    if text.starts_with('\u{feff}') {
        let rule = "the body must not begin with a byte order mark";
        return Err(Malformed(rule.to_owned()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_could_mean_two_things_is_refused() {
        assert_eq!(body_text("{\"é\":1}".as_bytes()), Ok("{\"é\":1}"));
        for (body, reason) in [
            (&b"\xff\xfe{}"[..], "UTF-8"),
            (b"\xef\xbb\xbf{}", "byte order mark"),
        ] {
            let refused = body_text(body).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
