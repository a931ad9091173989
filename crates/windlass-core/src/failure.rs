//! Errors and failures of attempts: what went wrong, and whether a retry can help.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const MESSAGE_CHARS_MAX: usize = 4096;
const CAUSES_MAX: usize = 16;

/// The error of an attempt as text that a store can keep: the message, then its causes from the
/// outermost to the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "UncheckedError")]
pub struct AttemptError {
    message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<String>,
}

/// An error as a client sends it: texts of any length, with any characters.
#[derive(Deserialize)]
struct UncheckedError {
    message: String,
    #[serde(default)]
    causes: Vec<String>,
}

impl From<UncheckedError> for AttemptError {
    fn from(error: UncheckedError) -> Self {
        AttemptError::with_causes(error.message, &error.causes)
    }
}

impl AttemptError {
    /// Makes an error without causes. Cuts a message of more than 4096 characters and replaces NUL
    /// characters, which PostgreSQL does not store.
    pub fn new(message: impl AsRef<str>) -> Self {
        AttemptError {
            message: cut(message.as_ref()),
            causes: Vec::new(),
        }
    }

    /// Makes an error with its causes, from the outermost to the root. Keeps at most 16 causes,
    /// each cut like a message.
    pub fn with_causes(message: impl AsRef<str>, causes: &[String]) -> Self {
        let causes = causes.iter().take(CAUSES_MAX);
        AttemptError {
            causes: causes.map(|cause| cut(cause)).collect(),
            ..AttemptError::new(message)
        }
    }

    /// Makes the text of an error and its causes.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let causes = chain(error).skip(1).take(CAUSES_MAX);
        AttemptError {
            message: cut(&error.to_string()),
            causes: causes.map(|cause| cut(&cause.to_string())).collect(),
        }
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The causes, from the outermost to the root.
    pub fn causes(&self) -> &[String] {
        &self.causes
    }
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.causes
            .iter()
            .try_for_each(|cause| write!(f, ": {cause}"))
    }
}

/// Whether a retry can help after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailureClass {
    /// A retry may succeed.
    #[default]
    Retryable,
    /// No retry can succeed.
    Unrecoverable,
    /// The work may have been done, for example because the connection broke after the request was
    /// sent. Retried like `Retryable`, but not for an at-most-once job.
    Unknown,
}

/// A failed attempt: its error, its class, and how long to wait before a retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub error: AttemptError,
    /// Whether a retry can help.
    pub class: FailureClass,
    /// The shortest wait before the next attempt, as the handler or the HTTP target asks for it.
    pub retry_after: Option<Duration>,
    /// A delay that the worker's code chose; it replaces the delay of the policy.
    pub delay: Option<Duration>,
}

impl Failure {
    /// Makes a failure after which a retry may succeed.
    pub fn retryable(error: AttemptError) -> Self {
        Failure {
            error,
            class: FailureClass::Retryable,
            retry_after: None,
            delay: None,
        }
    }

    /// Makes a failure that no retry can help.
    pub fn unrecoverable(error: AttemptError) -> Self {
        Failure {
            class: FailureClass::Unrecoverable,
            ..Failure::retryable(error)
        }
    }

    /// Makes the failure for an error: unrecoverable if the error is or wraps an [`Unrecoverable`].
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let unrecoverable = chain(error).any(|cause| cause.is::<Unrecoverable>());
        let text = AttemptError::of(error);
        if unrecoverable {
            Failure::unrecoverable(text)
        } else {
            Failure::retryable(text)
        }
    }
}

/// Marks an error as one that no retry can help. The mark counts however deeply other errors wrap
/// it.
#[derive(Debug)]
pub struct Unrecoverable(Box<dyn Error + Send + Sync>);

impl Unrecoverable {
    /// Marks `error`.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Unrecoverable(error.into())
    }
}

impl fmt::Display for Unrecoverable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Unrecoverable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// The error and its causes. The number is limited, because a chain of causes may contain a loop.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    const SEARCHED_MAX: usize = 1000;
    std::iter::successors(Some(error), |error| (*error).source()).take(SEARCHED_MAX)
}

/// Cuts text to 4096 characters and replaces NUL characters, which PostgreSQL does not store.
fn cut(text: &str) -> String {
    let clean = |text: &str| text.replace('\0', "\u{fffd}");
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        None => clean(text),
        Some((end, _)) => {
            let short: String = text.chars().take(MESSAGE_CHARS_MAX).collect();
            format!("{}… ({} bytes more)", clean(&short), text.len() - end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("sending failed")]
    struct Wrapped(#[source] Box<dyn Error + Send + Sync>);

    fn wrapped(inner: impl Into<Box<dyn Error + Send + Sync>>) -> Wrapped {
        Wrapped(inner.into())
    }

    #[test]
    fn an_error_is_kept_with_its_causes() {
        let error = AttemptError::of(&wrapped(wrapped("connection refused")));
        assert_eq!(error.message, "sending failed");
        assert_eq!(error.causes, ["sending failed", "connection refused"]);
        assert_eq!(
            error.to_string(),
            "sending failed: sending failed: connection refused"
        );
        let json = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<AttemptError>(&json).unwrap(), error);
        let plain = serde_json::to_string(&AttemptError::new("x")).unwrap();
        assert_eq!(plain, "{\"message\":\"x\"}");
    }

    #[test]
    fn unrecoverable_is_found_when_wrapped() {
        let hopeless = Unrecoverable::new("no such address");
        assert_eq!(hopeless.to_string(), "no such address");
        let twice = wrapped(wrapped(hopeless));
        let failure = Failure::of(&twice);
        assert_eq!(failure.class, FailureClass::Unrecoverable);
        assert_eq!(failure.error.causes.last().unwrap(), "no such address");
        assert_eq!(Failure::of(&wrapped("x")).class, FailureClass::Retryable);
        let direct = Unrecoverable::new(wrapped("x"));
        assert_eq!(Failure::of(&direct).class, FailureClass::Unrecoverable);
        assert_eq!(AttemptError::of(&direct).causes, ["x"]);
    }

    #[test]
    fn texts_and_chains_are_bounded() {
        let long = AttemptError::new("é".repeat(5000));
        assert_eq!(long.message.chars().filter(|c| *c == 'é').count(), 4096);
        assert!(long.message.ends_with("(1808 bytes more)"));
        assert_eq!(
            AttemptError::new("é".repeat(4096)).message.chars().count(),
            4096
        );
        let mut deep = wrapped("bottom");
        for _ in 0..100 {
            deep = wrapped(deep);
        }
        assert_eq!(AttemptError::of(&deep).causes.len(), CAUSES_MAX);
        let mut hopeless = wrapped(Unrecoverable::new("x"));
        for _ in 0..100 {
            hopeless = wrapped(hopeless);
        }
        assert_eq!(Failure::of(&hopeless).class, FailureClass::Unrecoverable);
    }

    #[test]
    fn errors_from_clients_are_bounded_too() {
        assert_eq!(AttemptError::new("a\0b").message(), "a\u{fffd}b");
        let sent =
            serde_json::json!({"message": "m\0".repeat(10_000), "causes": vec!["c\0"; 1000]});
        let read: AttemptError = serde_json::from_value(sent).unwrap();
        assert!(read.message().chars().count() < 5000 && !read.message().contains('\0'));
        assert_eq!(read.causes(), vec!["c\u{fffd}"; CAUSES_MAX]);
    }
}
