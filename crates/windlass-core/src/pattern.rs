//! Patterns that select queues by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::invalid::shown;
use crate::{Invalid, QueueName};

const BYTES_MAX: usize = 64;

/// A pattern for queue names: the characters of queue names, and `*` for any number of characters.
///
/// `*` selects all queues, `tenant-*` those whose name starts with `tenant-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePattern(Arc<str>);

impl QueuePattern {
    /// Checks the text: 1 to 64 of the characters `A-Z a-z 0-9 _ . -` and `*`.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-*".contains(c);
        if text.is_empty() || text.len() > BYTES_MAX || !text.chars().all(allowed) {
            let rule = "must be 1 to 64 characters from A-Z a-z 0-9 _ . - and *";
            return Err(Invalid::new("", format!("{rule}, got {}", shown(text))));
        }
        Ok(QueuePattern(text.into()))
    }

    /// The pattern that selects all queues.
    pub fn all() -> Self {
        QueuePattern("*".into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text with which every matching name starts.
    pub fn prefix(&self) -> &str {
        let end = self.0.find('*').unwrap_or(self.0.len());
        self.0.get(..end).unwrap_or_default()
    }

    /// Whether the pattern selects this queue.
    pub fn matches(&self, queue: &QueueName) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = queue
            .as_str()
            .strip_prefix(parts.next().unwrap_or_default())
        else {
            return false;
        };
        let mut parts: Vec<&str> = parts.collect();
        let Some(last) = parts.pop() else {
            return rest.is_empty(); // the pattern has no `*`
        };
        // The earliest match of each part leaves the longest rest for the parts after it.
        for part in parts {
            match rest.split_once(part) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for QueuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for QueuePattern {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        QueuePattern::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, queue: &str) -> bool {
        let pattern = QueuePattern::new(pattern).unwrap();
        pattern.matches(&QueueName::new(queue).unwrap())
    }

    #[test]
    fn a_star_stands_for_any_number_of_characters() {
        for (pattern, queue, expected) in [
            ("*", "anything", true),
            ("tenant-*", "tenant-7", true),
            ("tenant-*", "tenant-", true),
            ("tenant-*", "my-tenant-7", false),
            ("tenant", "tenant", true),
            ("tenant", "tenant-7", false),
            ("*-mail", "eu-mail", true),
            ("*-mail", "eu-mail-2", false),
            ("a*b*a", "aba", true),
            ("a*b*a", "aa", false),
            ("a*a", "a", false),
            ("**", "x", true),
            ("*.eu.*", "mail.eu.eu.1", true),
        ] {
            assert_eq!(matches(pattern, queue), expected, "{pattern} {queue}");
        }
        assert_eq!(QueuePattern::new("tenant-*-x").unwrap().prefix(), "tenant-");
        assert_eq!(QueuePattern::new("tenant").unwrap().prefix(), "tenant");
        assert_eq!(QueuePattern::all().prefix(), "");
    }

    #[test]
    fn a_pattern_has_only_the_characters_of_names_and_stars() {
        for text in ["", "a b", "%", "a?", "ä*", &"*".repeat(65)] {
            let refused = QueuePattern::new(text).unwrap_err();
            assert!(refused.to_string().contains("and *"), "{refused}");
        }
    }

    /// The definition of a match, without optimization.
    fn by_definition(pattern: &[u8], queue: &[u8]) -> bool {
        match (pattern.split_first(), queue.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), None) => by_definition(rest, queue),
            (Some((b'*', rest)), Some((_, behind))) => {
                by_definition(rest, queue) || by_definition(pattern, behind)
            }
            (Some((one, rest)), Some((other, behind))) => {
                one == other && by_definition(rest, behind)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_defined(pattern in "[ab*]{1,6}", queue in "[ab]{1,8}") {
            let expected = by_definition(pattern.as_bytes(), queue.as_bytes());
            prop_assert_eq!(matches(&pattern, &queue), expected);
            let prefix = QueuePattern::new(&pattern).unwrap().prefix().to_owned();
            prop_assert!(!expected || queue.starts_with(&prefix));
        }
    }
}
