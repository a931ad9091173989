//! Which failures have one cause.
//!
//! An operator who finds 40,000 dead jobs wants to see six causes. A fingerprint is the name of a
//! cause: failures of the same cause share it, failures of different causes do not. It is taken
//! from the kind of the job, the words of the error with its details removed ([`message`]), and the
//! place in the code where the error was raised ([`stack`]).
//!
//! What counts: error classes and codes, HTTP statuses, target hosts and ports, short quoted names
//! such as `'email'`, the innermost stack frame. What does not: ids, numbers, timestamps, durations,
//! long quoted values.

mod message;
mod stack;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::invalid::shown;
use crate::random::fixed_hash;
use crate::{AttemptError, DeadReason, Invalid, Kind};

/// Changes whenever the rules change, so that fingerprints of two rules are never mixed up.
const VERSION: u64 = 2;

/// The name of a cause of failures: 16 hexadecimal digits, the first of which is the version of the
/// rules. [`Fingerprint::OTHER`] is written `other`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The cause of jobs that no longer got a group of their own, because their queue and kind has
    /// too many groups already.
    pub const OTHER: Fingerprint = Fingerprint(0);

    /// The fingerprint of an error of a job of this kind, its causes included.
    pub fn new(kind: &Kind, error: &AttemptError) -> Self {
        Fingerprint::of_pattern(kind, &pattern(error))
    }

    /// The fingerprint of a death without an error: kind and reason.
    pub fn without_error(kind: &Kind, reason: DeadReason) -> Self {
        Fingerprint::of_pattern(kind, reason.name())
    }

    fn of_pattern(kind: &Kind, pattern: &str) -> Self {
        let hash = fixed_hash(format!("{kind}\0{pattern}").as_bytes());
        Fingerprint((VERSION << 60) | (hash >> 4))
    }

    /// Makes the fingerprint from its 64 bits, as a store keeps them.
    pub const fn from_bits(bits: u64) -> Self {
        Fingerprint(bits)
    }

    /// The 64 bits of the fingerprint.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// The words of an error that count, with `#` for ids and numbers and `"…"` for quoted values.
fn pattern(error: &AttemptError) -> String {
    let mut pattern = String::new();
    let mut innermost = None;
    // Causes come from the outside in, so the last frame is the one nearest to the cause.
    for text in std::iter::once(error.message()).chain(error.causes().iter().map(String::as_str)) {
        let read = stack::read(text);
        innermost = read.innermost.or(innermost);
        if !pattern.is_empty() {
            pattern.push_str(": ");
        }
        pattern.push_str(&message::pattern(&read.message));
    }
    if let Some(frame) = innermost {
        pattern.push_str(" at ");
        pattern.push_str(&frame);
    }
    pattern
}

/// The words of an error that name its cause, for people: `‹n›` stands for ids and numbers, `‹…›`
/// for quoted values. Two errors of one cause have the same words.
pub fn cause_in_words(message: &str) -> String {
    let pattern = message::pattern(&stack::read(message).message);
    let words = pattern.replace("\"…\"", "‹…›").replace('#', "‹n›");
    // A sign in front of a number stays: `order #17`.
    words.replace("‹n›‹n›", "#‹n›")
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Fingerprint::OTHER {
            return f.write_str("other");
        }
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text == "other" {
            return Ok(Fingerprint::OTHER);
        }
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        bits.map(Fingerprint).ok_or_else(|| {
            let rule = "must be 16 hexadecimal digits or `other`";
            Invalid::new("", format!("{rule}, got {}", shown(text)))
        })
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
