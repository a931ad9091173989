//! The failure of an attempt, and what it leads to.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use windlass_core::{AttemptError, FailureClass, Report, Timestamp, Unrecoverable};

/// What should happen after an error: the answer of [`Classify::class`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// Retry the job by its policy.
    #[default]
    Retry,
    /// Retry the job after this time, or after the delay of its policy if that is longer. At most
    /// 24 h.
    RetryAfter(Duration),
    /// Do not retry: the job is dead.
    Unrecoverable,
    /// Do not retry: the job is cancelled, which is not a failure.
    Cancel,
}

/// An error type that knows which of its errors are worth a retry.
///
/// Register it once with [`Worker::classify`](crate::Worker::classify). It applies to every handler
/// of the worker, and also to errors that wrap one of this type. The module
/// [`retry`](crate::retry) has an example.
pub trait Classify: Error + Send + Sync + 'static {
    /// Returns what should happen after this error.
    fn class(&self) -> Class;
}

/// Why an attempt failed, and what should happen next. Handlers return it as their error.
///
/// Every error converts into a failure with `?` or `into()`, also a `&str` or a `String`, and the
/// job is retried by its policy. The constructors ask for something else.
///
/// ```
/// use std::time::Duration;
///
/// use windlass::Failure;
///
/// fn check(status: u16) -> Result<(), Failure> {
///     match status {
///         200 => Ok(()),
///         // Not ready yet: run again in 30 s, without counting a failure.
///         202 => Err(Failure::snooze(Duration::from_secs(30))),
///         // No retry can help: the job is dead at once.
///         404 => Err(Failure::unrecoverable("the order does not exist")),
///         // No longer needed: the job is cancelled.
///         410 => Err(Failure::cancel("the order was withdrawn")),
///         // Wait at least a minute before the next attempt.
///         429 => Err(Failure::retry_after("too many requests", Duration::from_secs(60))),
///         // Retry by the policy of the job.
///         _ => Err(format!("status {status}").into()),
///     }
/// }
/// # assert!(check(200).is_ok() && check(404).is_err());
/// ```
///
/// `Failure` does not implement [`std::error::Error`] itself, as `anyhow::Error` does not: that
/// allows the conversion from every error.
pub struct Failure {
    request: Option<Request>,
    cause: Cause,
}

/// What a handler explicitly asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
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

/// Returns the class of an error if the error has one specific type.
pub(crate) type Classifier = fn(&(dyn Error + 'static)) -> Option<Class>;

impl Failure {
    /// Retries the job by its policy, even if the [`Classify`] of the error says otherwise.
    pub fn retry(error: impl Into<Failure>) -> Self {
        error.into().with_class(Class::Retry)
    }

    /// Retries the job after `wait`, or after the delay of its policy if that is longer; at most 24 h.
    ///
    /// The attempt counts as a failure.
    pub fn retry_after(error: impl Into<Failure>, wait: Duration) -> Self {
        error.into().with_class(Class::RetryAfter(wait))
    }

    /// Makes the job dead at once, because no retry can help.
    ///
    /// The job keeps the error and its history.
    /// [`Client::revive`](crate::Client::revive) runs it again.
    pub fn unrecoverable(error: impl Into<Failure>) -> Self {
        error.into().with_class(Class::Unrecoverable)
    }

    /// Runs the job again after `wait`, without counting a failure.
    ///
    /// Use it to poll something that is not ready yet. A job can be snoozed at most 1000 times, and
    /// an at-most-once job not at all: both are failures.
    pub fn snooze(wait: Duration) -> Self {
        Failure {
            request: Some(Request::Snooze(wait)),
            cause: Cause::Boxed("snoozed".into()),
        }
    }

    /// Cancels the job, which is not a failure. The log of the attempt keeps the reason.
    pub fn cancel(reason: impl Into<Failure>) -> Self {
        reason.into().with_class(Class::Cancel)
    }

    fn with_class(self, class: Class) -> Self {
        Failure {
            request: Some(Request::Class(class)),
            ..self
        }
    }

    /// Converts the failure into the report of the attempt.
    pub(crate) fn into_report(self, classifiers: &[Classifier], now: Timestamp) -> Report {
        let class = match self.request {
            Some(Request::Snooze(wait)) => {
                let until = now.saturating_add(wait);
                return Report::Snoozed { until };
            }
            Some(Request::Class(class)) => class,
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

    /// Returns the class of the error, or of the first error in its chain that has one.
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

    /// Returns the error and its sources, at most 1000: a chain may be endless.
    fn chain(&self) -> impl Iterator<Item = &(dyn Error + 'static)> {
        const SEARCHED_MAX: usize = 1000;
        std::iter::successors(Some(self.error()), |error| (*error).source()).take(SEARCHED_MAX)
    }

    fn error(&self) -> &(dyn Error + 'static) {
        match &self.cause {
            Cause::Boxed(error) => &**error,
            #[cfg(feature = "anyhow")]
            Cause::Anyhow(error) => &**error,
            #[cfg(feature = "eyre")]
            Cause::Eyre(error) => &**error,
        }
    }

    fn text(&self) -> AttemptError {
        AttemptError::of(self.error())
    }
}

impl<E> From<E> for Failure
where
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    fn from(error: E) -> Self {
        // In a box, an error of `anyhow` or `eyre` would hide the type of the error in it.
        #[cfg(any(feature = "anyhow", feature = "eyre"))]
        let error = {
            let mut error = Some(error);
            let any = &mut error as &mut dyn std::any::Any;
            #[cfg(feature = "anyhow")]
            if let Some(error) = any.downcast_mut::<Option<anyhow::Error>>()
                && let Some(error) = error.take()
            {
                return Failure {
                    request: None,
                    cause: Cause::Anyhow(error),
                };
            }
            #[cfg(feature = "eyre")]
            if let Some(error) = any.downcast_mut::<Option<eyre::Report>>()
                && let Some(error) = error.take()
            {
                return Failure {
                    request: None,
                    cause: Cause::Eyre(error),
                };
            }
            error.expect("it is taken only where the function returns")
        };
        Failure {
            request: None,
            cause: Cause::Boxed(error.into()),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({:?}, {})", self.request, self.text())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.text(), f)
    }
}

/// Returns the classifier of an error type.
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
    fn an_error_type_has_its_class_also_when_it_is_wrapped() {
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
    fn a_request_of_the_handler_overrides_the_class_of_its_error() {
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
    fn a_wrapped_unrecoverable_error_is_recognised() {
        let hopeless = Unrecoverable::new("no such user");
        assert_eq!(class_of(&report(hopeless)), FailureClass::Unrecoverable);
        let wrapped = std::io::Error::other(Paying(Bank::NoAccount));
        assert_eq!(class_of(&report(wrapped)), FailureClass::Unrecoverable);
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn errors_in_anyhow_keep_their_class() {
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
    fn errors_in_eyre_keep_their_class() {
        let wrapped = eyre::Report::new(Bank::NoAccount).wrap_err("paying");
        assert_eq!(class_of(&report(wrapped)), FailureClass::Unrecoverable);
        let bare = eyre::Report::new(Bank::NoAccount);
        assert_eq!(class_of(&report(bare)), FailureClass::Unrecoverable);
    }
}
