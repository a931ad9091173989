//! Names with rules. A constructor checks the text once, and all other code trusts the type.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Invalid;
use crate::invalid::shown;

/// What a name may consist of.
struct Rule {
    bytes_max: usize,
    allowed: fn(char) -> bool,
    rule: &'static str,
    /// Whether the name is part of URL paths. HTTP clients remove the segments `.` and `..` from a
    /// path before they send it.
    in_paths: bool,
}

impl Rule {
    fn check(&self, text: &str) -> Result<(), Invalid> {
        let fits = !text.is_empty() && text.len() <= self.bytes_max;
        if !fits || !text.chars().all(self.allowed) {
            let rule = format!("{}, got {}", self.rule, shown(text));
            return Err(Invalid::new("", rule));
        }
        if self.in_paths {
            check_path_segment(text)
        } else {
            Ok(())
        }
    }
}

/// Refuses `.` and `..`, which cannot be part of a URL path.
pub fn check_path_segment(text: &str) -> Result<(), Invalid> {
    match text {
        "." | ".." => {
            let rule =
                format!("must not be `.` or `..` (URL paths cannot contain them), got {text:?}");
            Err(Invalid::new("", rule))
        }
        _ => Ok(()),
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $rule:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text against the rule of this type.
            pub fn new(text: &str) -> Result<Self, Invalid> {
                const RULE: Rule = $rule;
                RULE.check(text)?;
                Ok($name(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                $name::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $name::new(&text).map_err(de::Error::custom)
            }
        }
    )*};
}

names! {
    /// The name of a job's type, which picks the handler: `[A-Za-z0-9_.:/-]{1,128}`.
    Kind = Rule {
        bytes_max: 128,
        allowed: |c| c.is_ascii_alphanumeric() || "_.:/-".contains(c),
        rule: "must be 1 to 128 characters from A-Z a-z 0-9 _ . : / -",
        in_paths: false,
    };

    /// The name of a queue, where jobs wait: `[A-Za-z0-9_.-]{1,64}`, but not `.` or `..`.
    QueueName = Rule {
        bytes_max: 64,
        allowed: |c| c.is_ascii_alphanumeric() || "_.-".contains(c),
        rule: "must be 1 to 64 characters from A-Z a-z 0-9 _ . -",
        in_paths: true,
    };

    /// The name of a hook, by which it is created and replaced: `[A-Za-z0-9_.-]{1,48}`, but not `.`
    /// or `..`.
    HookName = Rule {
        bytes_max: 48,
        allowed: |c| c.is_ascii_alphanumeric() || "_.-".contains(c),
        rule: "must be 1 to 48 characters from A-Z a-z 0-9 _ . -",
        in_paths: true,
    };

    /// The name of a schedule, by which it is created and replaced: `[A-Za-z0-9_.:/-]{1,128}`, but
    /// not `.` or `..`.
    ScheduleName = Rule {
        bytes_max: 128,
        allowed: |c| c.is_ascii_alphanumeric() || "_.:/-".contains(c),
        rule: "must be 1 to 128 characters from A-Z a-z 0-9 _ . : / -",
        in_paths: true,
    };

    /// A `unique_key` or `concurrency_key`: 1 to 256 bytes of text without control characters.
    Key = Rule {
        bytes_max: 256,
        allowed: |c| !c.is_control(),
        rule: "must be 1 to 256 bytes of text without control characters",
        in_paths: false,
    };

    /// A label for people and search: 1 to 64 bytes of text without control characters.
    Tag = Rule {
        bytes_max: 64,
        allowed: |c| !c.is_control(),
        rule: "must be 1 to 64 bytes of text without control characters",
        in_paths: false,
    };

    /// The name that a worker chooses for itself: 1 to 128 bytes of text without control
    /// characters, but not `.` or `..`.
    WorkerName = Rule {
        bytes_max: 128,
        allowed: |c| !c.is_control(),
        rule: "must be 1 to 128 bytes of text without control characters",
        in_paths: true,
    };
}

impl Default for QueueName {
    fn default() -> Self {
        QueueName("default".into())
    }
}

/// Windlass puts its own jobs into queues whose names begin like this.
const RESERVED_PREFIX: &str = "windlass.";

impl QueueName {
    /// Whether only Windlass itself puts jobs into this queue.
    pub fn is_reserved(&self) -> bool {
        self.as_str().starts_with(RESERVED_PREFIX)
    }

    /// Refuses a reserved queue as the place of a job.
    pub fn check_unreserved(&self) -> Result<(), Invalid> {
        if self.is_reserved() {
            let rule = format!(
                "must not begin with `{RESERVED_PREFIX}`, because Windlass reserves these queues for its own jobs; choose another name"
            );
            return Err(Invalid::new("queue", rule));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_usual_form_are_taken() {
        for text in [
            "email:send",
            "a",
            "billing/invoice.v2-beta_1",
            &"k".repeat(128),
        ] {
            assert_eq!(Kind::new(text).unwrap().as_str(), text);
        }
        assert_eq!(QueueName::default().to_string(), "default");
        assert_eq!(
            QueueName::new("mail.eu-1_x").unwrap().as_str(),
            "mail.eu-1_x"
        );
        assert!(Key::new("kunde 7 – Größe 🎉").is_ok());
    }

    #[test]
    fn hostile_names_are_refused_with_the_rule() {
        for text in [
            "",
            " ",
            "../x y",
            "a\r\nb",
            "a\0b",
            "é",
            "🎉",
            "\u{202e}x",
            "a'b",
            "{{a}}",
            "a%b",
            "a\\b",
            &"k".repeat(129),
            &"k".repeat(10_000),
        ] {
            let refusal = Kind::new(text).unwrap_err();
            assert!(refusal.rule().contains("1 to 128 characters"));
            assert!(refusal.rule().len() < 400);
        }
        for text in ["a:b", "a/b", &"q".repeat(65)] {
            assert!(QueueName::new(text).is_err(), "{text}");
        }
        for text in [
            "",
            "a\0b",
            "a\nb",
            "\u{7f}",
            &"k".repeat(257),
            &"é".repeat(129),
        ] {
            assert!(Key::new(text).is_err(), "{text:?}");
        }
        assert!(Key::new(&"é".repeat(128)).is_ok());
        assert!(Tag::new(&"t".repeat(64)).is_ok());
        assert!(Tag::new(&"t".repeat(65)).is_err());
        assert!(WorkerName::new(&"w".repeat(128)).is_ok());
        assert!(WorkerName::new(&"w".repeat(129)).is_err());
        assert!(ScheduleName::new("nightly report").is_err());
    }

    #[test]
    fn names_that_a_url_path_cannot_carry_are_refused() {
        for text in [".", ".."] {
            let refusals = [
                QueueName::new(text).unwrap_err(),
                ScheduleName::new(text).unwrap_err(),
                WorkerName::new(text).unwrap_err(),
            ];
            for refusal in refusals {
                assert!(
                    refusal.rule().contains("must not be `.` or `..`"),
                    "{refusal}"
                );
            }
            assert!(Kind::new(text).is_ok(), "a kind is not part of a path");
        }
        for text in ["...", ".a", "a.", "..a"] {
            assert!(QueueName::new(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn json_is_checked_like_text() {
        assert_eq!(
            serde_json::from_str::<QueueName>("\"mail\"").unwrap(),
            QueueName::new("mail").unwrap()
        );
        assert!(serde_json::from_str::<QueueName>("\"a b\"").is_err());
        assert_eq!(
            serde_json::to_string(&Tag::new("a\"b").unwrap()).unwrap(),
            "\"a\\\"b\""
        );
        assert_eq!("mail".parse(), QueueName::new("mail"));
    }

    proptest! {
        #[test]
        fn a_kind_is_what_its_pattern_says(text in "[A-Za-z0-9_.:/-]{1,128}") {
            prop_assert!(Kind::new(&text).is_ok());
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = (Kind::new(&text), QueueName::new(&text), Key::new(&text), Tag::new(&text));
        }
    }
}
