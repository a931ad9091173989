//! The error of every check of user input: the field, and the rule that it breaks.

use std::fmt;

/// The error for a user's value that breaks a rule.
///
/// `field` is the path as the user wrote it (`retry.backoff.max`). `rule` completes a sentence that
/// starts with the field: "must be at least 1". It says what to send instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    field: String,
    rule: String,
}

impl Invalid {
    /// Makes the error for a `field` that breaks `rule`.
    pub fn new(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Invalid {
            field: cleaned(field.into(), FIELD_CHARS_MAX),
            rule: cleaned(rule.into(), RULE_CHARS_MAX),
        }
    }

    /// The path of the field; empty if the error is about the whole value.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The rule that the field breaks.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns the same error with `outer` in front of the path: `max` becomes `backoff.max`.
    pub fn within(self, outer: &str) -> Self {
        let outer = cleaned(outer.to_owned(), FIELD_CHARS_MAX);
        let field = match (outer.as_str(), self.field.as_str()) {
            ("", inner) => inner.to_owned(),
            (outer, "") => outer.to_owned(),
            (outer, inner) => format!("{outer}.{inner}"),
        };
        Invalid { field, ..self }
    }

    /// Returns the same error for a user who wrote `spelled` where the path says `name`.
    pub fn rename_field(self, name: &str, spelled: &str) -> Self {
        match self.field.strip_prefix(name) {
            Some(rest) if rest.is_empty() || rest.starts_with(['.', '[']) => Invalid {
                field: format!("{spelled}{rest}"),
                rule: self.rule,
            },
            _ => self,
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "the value {}", self.rule)
        } else {
            write!(f, "`{}` {}", self.field, self.rule)
        }
    }
}

const FIELD_CHARS_MAX: usize = 120;
/// A rule may repeat what the user wrote.
const RULE_CHARS_MAX: usize = 1000;

/// Shortens a text that users choose, such as the name of a field, and escapes control characters:
/// a terminal or a log would act on them.
fn cleaned(text: String, chars_max: usize) -> String {
    if text.len() <= chars_max && !text.contains(char::is_control) {
        return text;
    }
    let escaped = text.chars().take(chars_max).flat_map(|letter| {
        let (escaped, plain) = match letter.is_control() {
            true => (Some(letter.escape_debug()), None),
            false => (None, Some(letter)),
        };
        escaped.into_iter().flatten().chain(plain)
    });
    escaped.collect()
}

/// Quotes a user's text for a message, cut after 40 characters.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 40;
    let mut short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_whole_path_and_the_rule() {
        let inner = Invalid::new("max", "must be at least `base`");
        let outer = inner.within("backoff").within("").within("retry");
        assert_eq!(
            outer.to_string(),
            "`retry.backoff.max` must be at least `base`"
        );
        assert_eq!(outer.field(), "retry.backoff.max");
        assert_eq!(outer.rule(), "must be at least `base`");
    }

    #[test]
    fn a_field_is_named_as_the_user_spelled_it() {
        let field = |field: &str| {
            let problem = Invalid::new(field, "is bad");
            problem.rename_field("payload", "http").field().to_owned()
        };
        assert_eq!(field("payload"), "http");
        assert_eq!(field("payload.url"), "http.url");
        assert_eq!(field("payload[1]"), "http[1]");
        assert_eq!(field("payloads"), "payloads");
        assert_eq!(field("meta.payload"), "meta.payload");
    }

    #[test]
    fn a_problem_of_the_whole_value_takes_the_outer_name() {
        let whole = Invalid::new("", "must be an object");
        assert_eq!(whole.to_string(), "the value must be an object");
        assert_eq!(
            whole.within("retry").to_string(),
            "`retry` must be an object"
        );
    }

    #[test]
    fn a_field_that_the_user_named_is_shown_harmlessly() {
        let refusal = Invalid::new("\u{1b}[31mred\n", "is not a known field");
        assert_eq!(
            refusal.to_string(),
            "`\\u{1b}[31mred\\n` is not a known field"
        );
        assert_eq!(
            Invalid::new("é".repeat(1000), "x").field().chars().count(),
            120
        );
        let outer = Invalid::new("", "is no name").within("a\r\nb");
        assert_eq!(outer.field(), "a\\r\\nb");
        let rule = format!("must be short, got {:?}", "x".repeat(5000));
        assert_eq!(Invalid::new("a", rule).rule().len(), 1000);
    }

    #[test]
    fn long_input_is_cut_before_it_is_shown() {
        assert_eq!(shown("short"), "\"short\"");
        assert_eq!(shown(&"x".repeat(40)).chars().count(), 42);
        assert_eq!(shown(&"é".repeat(10_000)).chars().count(), 43);
    }
}
