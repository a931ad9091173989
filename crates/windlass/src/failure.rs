//! How a handler says that its attempt did not succeed.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use windlass_core::{AttemptError, FailureClass, Report, Timestamp, Unrecoverable};

/// What a failed attempt leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// Another attempt, by the job's policy.
    #[default]
    Retry,
    /// Another attempt, after so long at the earliest; the policy's delay if that is longer, and at most 24 h.
    RetryAfter(Duration),
    /// The job is dead: no retry can help.
    Unrecoverable,
    /// The job is cancelled.
    Cancel,
}

/// An error type that knows what its errors lead to. A worker is told of it once, with
/// [`Worker::classify`](crate::Worker::classify); errors that wrap one are classed by it too.
pub trait Classify: Error + Send + Sync + 'static {
    /// What this error leads to.
    fn class(&self) -> Class;
}

/// Why an attempt did not succeed.
///
/// Every error becomes one with `?` and is retried by the job's policy; the constructors say something else.
/// It is no `Error` itself, so that every error can become one.
pub struct Failure {
    asks: Option<Asks>,
    cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Class(Class),
    Snooze(Duration),
}

enum Cause {
    Boxed(Box<dyn Error + Send + Sync>),
    #[cfg(feature = "anyhow")]
    Anyhow(anyhow::Error),
    #[cfg(feature = "eyre")]
    Eyre(eyre::Report),
}

/// Looks for the class of an error of one type.
pub(crate) type Classifier = fn(&(dyn Error + 'static)) -> Option<Class>;

impl Failure {
    /// Runs it again, by the job's policy, whatever a [`Classify`] says of the error.
    pub fn retry(error: impl Into<Failure>) -> Self {
        error.into().asking(Class::Retry)
    }

    /// Runs it again after so long, or after the policy's delay if that is longer; at most 24 h.
    pub fn retry_after(error: impl Into<Failure>, wait: Duration) -> Self {
        error.into().asking(Class::RetryAfter(wait))
    }

    /// Buries it: no retry can help.
    pub fn unrecoverable(error: impl Into<Failure>) -> Self {
        error.into().asking(Class::Unrecoverable)
    }

    /// Runs it again after so long; that is no failure, and counts as none.
    pub fn snooze(wait: Duration) -> Self {
        Failure {
            asks: Some(Asks::Snooze(wait)),
            cause: Cause::Boxed("snoozed".into()),
        }
    }

    /// Calls it off: it is cancelled, and did not fail. The reason is kept in the attempt's log.
    pub fn cancel(reason: impl Into<Failure>) -> Self {
        reason.into().asking(Class::Cancel)
    }

    fn asking(self, class: Class) -> Self {
        Failure {
            asks: Some(Asks::Class(class)),
            ..self
        }
    }

    /// What the attempt reports.
    pub(crate) fn into_report(self, classifiers: &[Classifier], now: Timestamp) -> Report {
        let class = match self.asks {
            Some(Asks::Snooze(wait)) => {
                let until = now.saturating_add(wait);
                return Report::Snoozed { until };
            }
            Some(Asks::Class(class)) => class,
            None => self.class(classifiers),
        };
        let mut failure = windlass_core::Failure::retryable(self.text());
        match class {
            Class::Retry => {}
            Class::RetryAfter(wait) => failure.retry_after = Some(wait),
            Class::Unrecoverable => failure.class = FailureClass::Unrecoverable,
            Class::Cancel => return Report::Cancelled,
        }
        Report::Failed(failure)
    }

    /// The class that the error, or one that it wraps, says it has.
    fn class(&self, classifiers: &[Classifier]) -> Class {
        for error in self.chain() {
            if error.is::<Unrecoverable>() {
                return Class::Unrecoverable;
            }
            if let Some(class) = classifiers.iter().find_map(|classify| classify(error)) {
                return class;
            }
        }
        Class::Retry
    }

    /// The error and what it wraps, a bounded number of them.
    fn chain(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        const SEARCHED_MAX: usize = 1000;
        std::iter::successors(Some(self.first()), |error| (*error).source()).take(SEARCHED_MAX)
    }

    fn first(&self) -> &(dyn Error + 'static) {
        match &self.cause {
            Cause::Boxed(error) => &**error,
            #[cfg(feature = "anyhow")]
            Cause::Anyhow(error) => &**error,
            #[cfg(feature = "eyre")]
            Cause::Eyre(error) => &**error,
        }
    }

    fn text(&self) -> AttemptError {
        AttemptError::of(self.first())
    }
}

impl<E> From<E> for Failure
where
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    fn from(error: E) -> Self {
        // An error of `anyhow` or `eyre` would hide its own type in the box.
        #[cfg(any(feature = "anyhow", feature = "eyre"))]
        let error = {
            let mut error = Some(error);
            let known = &mut error as &mut dyn std::any::Any;
            #[cfg(feature = "anyhow")]
            if let Some(error) = known.downcast_mut::<Option<anyhow::Error>>()
                && let Some(error) = error.take()
            {
                return Failure {
                    asks: None,
                    cause: Cause::Anyhow(error),
                };
            }
            #[cfg(feature = "eyre")]
            if let Some(error) = known.downcast_mut::<Option<eyre::Report>>()
                && let Some(error) = error.take()
            {
                return Failure {
                    asks: None,
                    cause: Cause::Eyre(error),
                };
            }
            error.expect("it is taken only where this returns")
        };
        Failure {
            asks: None,
            cause: Cause::Boxed(error.into()),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({:?}, {})", self.asks, self.text())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.text(), f)
    }
}

/// The classifier of a type.
pub(crate) fn classifier<E: Classify>() -> Classifier {
    |error| Some(error.downcast_ref::<E>()?.class())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Bank {
        #[error("the bank is closed")]
        Closed,
        #[error("no such account")]
        NoAccount,
        #[error("slow down")]
        Busy,
        #[error("the transfer was recalled")]
        Recalled,
    }

    impl Classify for Bank {
        fn class(&self) -> Class {
            match self {
                Bank::Closed => Class::Retry,
                Bank::NoAccount => Class::Unrecoverable,
                Bank::Busy => Class::RetryAfter(Duration::from_secs(9)),
                Bank::Recalled => Class::Cancel,
            }
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("paying failed")]
    struct Paying(#[source] Bank);

    fn report(failure: impl Into<Failure>) -> Report {
        let now = Timestamp::UNIX_EPOCH;
        failure.into().into_report(&[classifier::<Bank>()], now)
    }

    fn class_of(report: &Report) -> FailureClass {
        match report {
            Report::Failed(failure) => failure.class,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn any_error_is_retried_and_keeps_its_text() {
        let broken = std::io::Error::other("the pipe broke");
        let Report::Failed(failure) = report(broken) else {
            panic!("it failed");
        };
        assert_eq!(failure.error.message(), "the pipe broke");
        assert_eq!(failure.class, FailureClass::Retryable);
        assert_eq!(class_of(&report("just text")), FailureClass::Retryable);
    }

    #[test]
    fn an_error_type_says_its_class_once_also_when_it_is_wrapped() {
        assert_eq!(class_of(&report(Bank::Closed)), FailureClass::Retryable);
        assert_eq!(
            class_of(&report(Bank::NoAccount)),
            FailureClass::Unrecoverable
        );
        assert_eq!(
            class_of(&report(Paying(Bank::NoAccount))),
            FailureClass::Unrecoverable
        );
        assert_eq!(report(Bank::Recalled), Report::Cancelled);
        let Report::Failed(busy) = report(Paying(Bank::Busy)) else {
            panic!("it failed");
        };
        assert_eq!(busy.retry_after, Some(Duration::from_secs(9)));
        assert_eq!(busy.error.causes(), ["slow down"]);
    }

    #[test]
    fn what_a_handler_asks_for_counts_more_than_the_class_of_its_error() {
        let asked = Failure::retry(Bank::NoAccount);
        assert_eq!(class_of(&report(asked)), FailureClass::Retryable);
        let hopeless = Failure::unrecoverable(Bank::Closed);
        assert_eq!(class_of(&report(hopeless)), FailureClass::Unrecoverable);
        let Report::Failed(later) = report(Failure::retry_after("busy", Duration::from_secs(3)))
        else {
            panic!("it failed");
        };
        assert_eq!(later.retry_after, Some(Duration::from_secs(3)));
        let until = Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(5));
        let snoozed = report(Failure::snooze(Duration::from_secs(5)));
        assert_eq!(snoozed, Report::Snoozed { until });
        assert_eq!(report(Failure::cancel("called back")), Report::Cancelled);
    }

    #[test]
    fn unrecoverable_is_found_when_it_is_wrapped() {
        let hopeless = Unrecoverable::new("no such user");
        assert_eq!(class_of(&report(hopeless)), FailureClass::Unrecoverable);
        let wrapped = std::io::Error::other(Paying(Bank::NoAccount));
        assert_eq!(class_of(&report(wrapped)), FailureClass::Unrecoverable);
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn anyhow_is_looked_through() {
        use anyhow::Context as _;
        let bare = anyhow::Error::new(Bank::NoAccount);
        assert_eq!(class_of(&report(bare)), FailureClass::Unrecoverable);
        let wrapped = Err::<(), _>(Bank::NoAccount).context("paying");
        let report = report(wrapped.expect_err("it failed"));
        assert_eq!(class_of(&report), FailureClass::Unrecoverable);
        let Report::Failed(failure) = report else {
            panic!("it failed");
        };
        assert_eq!(failure.error.to_string(), "paying: no such account");
    }

    #[cfg(feature = "eyre")]
    #[test]
    fn eyre_is_looked_through() {
        let wrapped = eyre::Report::new(Bank::NoAccount).wrap_err("paying");
        assert_eq!(class_of(&report(wrapped)), FailureClass::Unrecoverable);
        let bare = eyre::Report::new(Bank::NoAccount);
        assert_eq!(class_of(&report(bare)), FailureClass::Unrecoverable);
    }
}
