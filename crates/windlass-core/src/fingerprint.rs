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

use crate::random::fixed_hash;
use crate::{AttemptError, DeadReason, Job, Kind};

/// Changes whenever the rules change, so that fingerprints of two rules are never mixed up.
const VERSION: u64 = 2;

/// The pattern that people see. The fingerprint covers more.
const PATTERN_CHARS_MAX: usize = 200;

/// The name of a cause of failures.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    hash: u64,
    pattern: String,
}

impl Fingerprint {
    /// The fingerprint of an error of a job of this kind, its causes included.
    pub fn new(kind: &Kind, error: &AttemptError) -> Self {
        let mut pattern = String::new();
        let mut innermost = None;
        // Causes come from the outside in, so the last frame is the one nearest to the cause.
        for text in
            std::iter::once(error.message()).chain(error.causes().iter().map(String::as_str))
        {
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
        Fingerprint::of_pattern(kind, &pattern)
    }

    /// The fingerprint of a job: by its error, or by the reason of a death without one.
    pub fn of_job(job: &Job) -> Self {
        match (&job.last_error, job.dead_reason()) {
            (Some(error), _) => Fingerprint::new(&job.kind, error),
            (None, Some(reason)) => Fingerprint::without_error(&job.kind, reason),
            (None, None) => Fingerprint::new(&job.kind, &AttemptError::new("")),
        }
    }

    /// The fingerprint of a death without an error: kind and reason.
    pub fn without_error(kind: &Kind, reason: DeadReason) -> Self {
        Fingerprint::of_pattern(kind, reason.name())
    }

    fn of_pattern(kind: &Kind, pattern: &str) -> Self {
        let hash = fixed_hash(format!("{kind}\0{pattern}").as_bytes());
        let pattern: String = pattern.chars().take(PATTERN_CHARS_MAX).collect();
        Fingerprint {
            hash: (VERSION << 60) | (hash >> 4),
            pattern: pattern.trim_end().to_owned(),
        }
    }

    /// The words of the error, with `#` for ids and numbers and `"…"` for quoted values.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }
}

impl fmt::Display for Fingerprint {
    /// Sixteen hexadecimal digits, the first of which is the version of the rules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.hash)
    }
}

#[cfg(test)]
mod tests;
