//! What is known about an attempt that failed.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const MESSAGE_CHARS_MAX: usize = 4096;
const CAUSES_MAX: usize = 16;

/// The error of an attempt, as text that can be stored: the message, then its causes from the outside in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Told")]
pub struct AttemptError {
    message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<String>,
}

/// An error as somebody tells it: of any length, and with any characters.
#[derive(Deserialize)]
struct Told {
    message: String,
    #[serde(default)]
    causes: Vec<String>,
}

impl From<Told> for AttemptError {
    fn from(told: Told) -> Self {
        AttemptError::with_causes(told.message, &told.causes)
    }
}

impl AttemptError {
    /// An error without causes. A very long message is cut; what no database takes is replaced.
    pub fn new(message: impl AsRef<str>) -> Self {
        AttemptError {
            message: cut(message.as_ref()),
            causes: Vec::new(),
        }
    }

    /// An error and its causes, from the outside in; cut like a message.
    pub fn with_causes(message: impl AsRef<str>, causes: &[String]) -> Self {
        let causes = causes.iter().take(CAUSES_MAX);
        AttemptError {
            causes: causes.map(|cause| cut(cause)).collect(),
            ..AttemptError::new(message)
        }
    }

    /// The text of an error and of its causes.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let causes = chain(error).skip(1).take(CAUSES_MAX);
        AttemptError {
            message: cut(&error.to_string()),
            causes: causes.map(|cause| cut(&cause.to_string())).collect(),
        }
    }

    /// What failed.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Why, from the outside in.
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

/// What a failure says about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailureClass {
    /// It may go better next time.
    #[default]
    Retryable,
    /// It never will.
    Unrecoverable,
    /// It may even have worked: the connection was lost after the request was sent. Retryable, if that is allowed.
    Unknown,
}

/// A failed attempt: the error, its class, and how long to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub error: AttemptError,
    /// Whether a retry can help.
    pub class: FailureClass,
    /// The shortest wait before the next attempt that the handler or the target asks for.
    pub retry_after: Option<Duration>,
    /// The delay in place of the policy's, where the worker's own code decides it.
    pub delay: Option<Duration>,
}

impl Failure {
    /// A failure that may go better next time.
    pub fn retryable(error: AttemptError) -> Self {
        Failure {
            error,
            class: FailureClass::Retryable,
            retry_after: None,
            delay: None,
        }
    }

    /// A failure that no retry can help.
    pub fn unrecoverable(error: AttemptError) -> Self {
        Failure {
            class: FailureClass::Unrecoverable,
            ..Failure::retryable(error)
        }
    }

    /// The failure that an error stands for: unrecoverable if it is, or wraps, an [`Unrecoverable`].
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let hopeless = chain(error).any(|cause| cause.is::<Unrecoverable>());
        let text = AttemptError::of(error);
        if hopeless {
            Failure::unrecoverable(text)
        } else {
            Failure::retryable(text)
        }
    }
}

/// Marks an error as one that no retry can help, however deep it is wrapped.
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

/// The error and its causes, a bounded number of them: a chain may be made to loop.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    const SEARCHED_MAX: usize = 1000;
    std::iter::successors(Some(error), |error| (*error).source()).take(SEARCHED_MAX)
}

/// Text of bounded length, without NUL, which PostgreSQL does not store.
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
    fn what_somebody_tells_is_bounded_too() {
        assert_eq!(AttemptError::new("a\0b").message(), "a\u{fffd}b");
        let told =
            serde_json::json!({"message": "m\0".repeat(10_000), "causes": vec!["c\0"; 1000]});
        let read: AttemptError = serde_json::from_value(told).unwrap();
        assert!(read.message().chars().count() < 5000 && !read.message().contains('\0'));
        assert_eq!(read.causes(), vec!["c\u{fffd}"; CAUSES_MAX]);
    }
}
