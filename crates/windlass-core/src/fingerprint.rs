//! Groups errors that differ only in details such as ids and numbers.

use std::fmt;

use crate::random::fixed_hash;
use crate::{AttemptError, Kind};

const PATTERN_CHARS_MAX: usize = 200;
const SCANNED_BYTES_MAX: usize = 4096;

/// The group of an error: the kind of the job, and the error text without its details.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    hash: u64,
    pattern: String,
}

impl Fingerprint {
    /// Makes the fingerprint of an error, causes included, of a job of this kind.
    pub fn new(kind: &Kind, error: &AttemptError) -> Self {
        let pattern = pattern_of(&error.to_string(), push_run);
        let hash = fixed_hash(format!("{kind}\0{pattern}").as_bytes());
        Fingerprint { hash, pattern }
    }

    /// The error text with `#` in place of numbers, ids and addresses and `"…"` in place of quoted
    /// parts.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }
}

impl fmt::Display for Fingerprint {
    /// Sixteen hexadecimal digits that name the group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.hash)
    }
}

/// Returns the text with `"…"` in place of quoted parts; `push_run` writes each run of word
/// characters.
pub(crate) fn pattern_of(error: &str, mut push_run: impl FnMut(&mut String, &str)) -> String {
    let mut pattern = String::new();
    let mut rest = start_of(error, SCANNED_BYTES_MAX);
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let opens = quoted_len(rest, first).filter(|_| !previous.is_alphanumeric());
        let length = match opens {
            Some(length) => {
                pattern.push_str("\"…\"");
                length
            }
            None if is_word(first) => {
                let run = run_of(rest);
                push_run(&mut pattern, run);
                run.len()
            }
            None if first.is_whitespace() => {
                if !pattern.ends_with(' ') && !pattern.is_empty() {
                    pattern.push(' ');
                }
                first.len_utf8()
            }
            None => {
                pattern.push(first);
                first.len_utf8()
            }
        };
        let (seen, after) = rest.split_at(length);
        previous = seen.chars().next_back().unwrap_or(' ');
        rest = after;
    }
    pattern
        .chars()
        .take(PATTERN_CHARS_MAX)
        .collect::<String>()
        .trim_end()
        .to_owned()
}

/// The first `bytes` bytes of a text, or fewer so that no character is split.
fn start_of(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or("")
}

/// The length of the quoted part at the start of the text, quotes included.
fn quoted_len(text: &str, quote: char) -> Option<usize> {
    let close = match quote {
        '"' | '\'' | '`' => quote,
        '“' => '”',
        '‘' => '’',
        _ => return None,
    };
    let inner = text.get(quote.len_utf8()..)?;
    let end = inner.find(close)?;
    Some(quote.len_utf8() + end + close.len_utf8())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The characters up to the next space or bracket: words and the points, colons, slashes, dashes
/// and at-signs between them. So `10.0.0.7:5432` and `2026-11-15T09:00` are one run each.
fn run_of(text: &str) -> &str {
    let inside = |c: char| is_word(c) || ".:-/@+%".contains(c);
    let end = text.find(|c: char| !inside(c)).unwrap_or(text.len());
    let run = text.get(..end).unwrap_or(text);
    run.trim_end_matches(|c: char| !is_word(c))
}

/// Writes a run, or `#` if it is a number, an id or an address.
fn push_run(pattern: &mut String, run: &str) {
    let has_digit = |text: &str| text.contains(|c: char| c.is_ascii_digit());
    if has_digit(run) || run.contains('@') || is_hexadecimal_id(run) {
        pattern.push('#');
    } else {
        pattern.push_str(run);
    }
}

/// Whether the run is an id or address without any digit: `abcdefab-cdef-abcd-efab-cdefabcdefab`,
/// `dead::beef`.
pub(crate) fn is_hexadecimal_id(run: &str) -> bool {
    let hexadecimal = run
        .chars()
        .all(|c| c.is_ascii_hexdigit() || c == '-' || c == ':');
    hexadecimal && (run.contains("::") || (run.len() == 36 && run.matches('-').count() == 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(error: &str) -> String {
        let kind = Kind::new("email:send").unwrap();
        Fingerprint::new(&kind, &AttemptError::new(error))
            .pattern()
            .to_owned()
    }

    #[test]
    fn details_are_removed() {
        for (error, expected) in [
            ("connection refused", "connection refused"),
            ("connect to 10.0.0.7:5432 failed", "connect to # failed"),
            ("connect to [fe80::1]:80 failed", "connect to [#]:# failed"),
            ("user 'ann' not found", "user \"…\" not found"),
            ("no field `to` in \"x \\ y\"", "no field \"…\" in \"…\""),
            (
                "job 0197a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b lost",
                "job # lost",
            ),
            (
                "status 503 after 1.25s, retry 3/4",
                "status # after #, retry #",
            ),
            ("at 2026-11-15T09:00:00Z: gone", "at #: gone"),
            ("mail to ann@example.org bounced", "mail to # bounced"),
            ("timeout:  read\n\tfailed ", "timeout: read failed"),
            (
                "can't open it, can't read it",
                "can't open it, can't read it",
            ),
            ("unclosed ' quote", "unclosed ' quote"),
            ("“größe” fehlt", "\"…\" fehlt"),
            ("0xdeadbeef", "#"),
            ("job abcdefab-cdef-abcd-efab-cdefabcdefab", "job #"),
            ("host dead::beef is down", "host # is down"),
            ("‘a’ and `b`", "\"…\" and \"…\""),
            ("path/to/file missing", "path/to/file missing"),
            ("", ""),
        ] {
            assert_eq!(pattern(error), expected, "{error}");
        }
    }

    #[test]
    fn a_fingerprint_is_kind_and_pattern() {
        let mail = Kind::new("email:send").unwrap();
        let other = Kind::new("sms:send").unwrap();
        let one = Fingerprint::new(&mail, &AttemptError::new("status 503"));
        assert_eq!(
            one,
            Fingerprint::new(&mail, &AttemptError::new("status 504"))
        );
        assert_ne!(
            one,
            Fingerprint::new(&mail, &AttemptError::new("status unknown"))
        );
        assert_ne!(
            one.to_string(),
            Fingerprint::new(&other, &AttemptError::new("status 503")).to_string()
        );
        assert_eq!(one.to_string().len(), 16);
    }

    #[test]
    fn long_errors_are_bounded() {
        assert_eq!(pattern(&"word ".repeat(100_000)).chars().count(), 199);
        assert_eq!(pattern(&"é".repeat(100_000)).chars().count(), 200);
        assert_eq!(pattern(&"a/".repeat(2048)).chars().count(), 200);
    }

    proptest! {
        #[test]
        fn no_error_panics_and_digits_never_stay(error in any::<String>()) {
            let pattern = pattern(&error);
            prop_assert!(!pattern.contains(|c: char| c.is_ascii_digit()));
            prop_assert!(pattern.chars().count() <= PATTERN_CHARS_MAX);
        }

        #[test]
        fn numbers_do_not_split_a_group(a in any::<u64>(), b in any::<u64>()) {
            prop_assert_eq!(pattern(&format!("row {a} is locked")), pattern(&format!("row {b} is locked")));
        }
    }
}
