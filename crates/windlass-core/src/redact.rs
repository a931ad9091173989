//! Error texts for the log: words stay, values are hidden.
//!
//! Handlers put anything into their errors: customer data, URLs with passwords, tokens. People who
//! read the log may not be allowed to read payloads, so the log gets the words of an error without
//! its values.

use crate::AttemptError;
use crate::error_text::{Token, Tokens, is_hexadecimal_id};

const LINE_CHARS_MAX: usize = 200;
/// A longer word is a token.
const WORD_CHARS_MAX: usize = 32;

/// The text after one of these words is always hidden.
const SECRET_NAMES: [&str; 12] = [
    "password",
    "passwd",
    "pwd",
    "secret",
    "token",
    "key",
    "apikey",
    "api_key",
    "authorization",
    "bearer",
    "basic",
    "cookie",
];

/// Returns the text of an error and its causes with `#` in place of ids, addresses, URLs, tokens
/// and numbers of more than three digits, and `"…"` in place of quoted parts. The result is one
/// line of at most 200 characters without control characters.
pub fn redacted(error: &AttemptError) -> String {
    let mut after_secret = false;
    let mut line = String::new();
    for token in Tokens::new(&error.to_string()) {
        match token {
            Token::Quoted(_) => line.push_str("\"…\""),
            Token::Run(run) => {
                let hide = after_secret || is_value(run);
                line.push_str(if hide { "#" } else { run });
                // `Authorization: Bearer x`: both `Bearer` and `x` are hidden.
                after_secret = is_secret_name(run);
            }
            Token::Space if line.is_empty() => {}
            Token::Space => line.push(' '),
            Token::Other(c) => line.push(c),
        }
    }
    let line = line.chars().filter(|c| !c.is_control());
    let line: String = line.take(LINE_CHARS_MAX).collect();
    line.trim_end().to_owned()
}

fn is_value(run: &str) -> bool {
    let short_number = run.len() <= 3 && run.bytes().all(|byte| byte.is_ascii_digit());
    let has_digit = run.contains(|c: char| c.is_ascii_digit());
    !short_number
        && (has_digit
            || run.contains('@')
            || run.contains("://")
            || run.chars().count() > WORD_CHARS_MAX
            || is_hexadecimal_id(run))
}

fn is_secret_name(run: &str) -> bool {
    let last = run.rsplit([':', '.', '/', '-']).next().unwrap_or(run);
    SECRET_NAMES
        .iter()
        .any(|name| last.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(error: &str) -> String {
        redacted(&AttemptError::new(error))
    }

    #[test]
    fn words_and_short_numbers_stay() {
        for error in [
            "connection refused",
            "the target answered 503 Service Unavailable",
            "timeout after 30 s",
        ] {
            assert_eq!(text(error), error);
        }
    }

    #[test]
    fn values_are_hidden() {
        for (error, expected) in [
            ("card 4111111111111111 declined", "card # declined"),
            ("mail to ann@example.org bounced", "mail to # bounced"),
            ("user 'ann' not found", "user \"…\" not found"),
            ("postgres://ann:hush@db/x is down", "# is down"),
            ("GET https://example.org/hush failed", "GET # failed"),
            ("password=hush refused", "password=# refused"),
            ("Authorization: Bearer hush", "Authorization: # #"),
            ("x-api-key: hush", "x-api-key: #"),
            ("bad token sk_live_aBcD", "bad token #"),
            ("key abcdefabcdefabcdefabcdefabcdefabcdef", "key #"),
            ("job abcdefab-cdef-abcd-efab-cdefabcdefab", "job #"),
            ("line\none \u{1b}[31mred", "line one [#"),
        ] {
            assert_eq!(text(error), expected, "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_error_panics_and_the_line_is_bounded(error in any::<String>()) {
            let line = text(&error);
            prop_assert!(!line.contains(char::is_control));
            prop_assert!(line.chars().count() <= 200);
        }
    }
}
