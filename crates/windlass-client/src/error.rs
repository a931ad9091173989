//! The error of a request.

use std::time::Duration;

use windlass_api::Problem;

/// The cause of an error. Its concrete type can change in any version.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a request failed.
///
/// Use [`code`](Error::code) to distinguish refusals, and [`is_temporary`](Error::is_temporary) to
/// decide whether to try again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL of the server, the key, a certificate or the request itself is invalid. Nothing was sent.
    #[error("{what} {rule}")]
    Invalid {
        /// The invalid value.
        what: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// The client could not connect to the server, so it did not send the request.
    #[error("cannot connect to {url}; check the URL and whether the server runs")]
    Connect {
        /// The URL of the server.
        url: String,
        /// The underlying error.
        #[source]
        cause: Cause,
    },
    /// The connection broke. The server may have processed the request.
    #[error("the connection to {url} broke")]
    Broken {
        /// The URL of the server.
        url: String,
        /// The underlying error.
        #[source]
        cause: Cause,
    },
    /// The response did not arrive in time. The server may have processed the request.
    #[error("{url} did not respond within {after:?}")]
    TimedOut {
        /// The URL of the server.
        url: String,
        /// How long the client waited.
        after: Duration,
    },
    /// The response is larger than [`Builder::answer_bytes_max`](crate::Builder::answer_bytes_max).
    #[error("the response is larger than {max} bytes; raise `answer_bytes_max` or request less")]
    TooLarge {
        /// The limit in bytes.
        max: usize,
    },
    /// The server refused the request. The [`Problem`] has a stable code, a text, and every field that
    /// breaks a rule.
    #[error("the server refused the request ({}): {}", .0.status, .0.detail)]
    Refused(Box<Problem>),
    /// The response is not the JSON that this client expects. The server may have another version.
    #[error("cannot parse the response of {url}; the server may have another version")]
    Unreadable {
        /// The URL of the server.
        url: String,
        /// The underlying error.
        #[source]
        cause: Cause,
    },
}

impl Error {
    /// Returns the problem if the server refused the request.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Returns the stable code of the problem, such as `not_found`, if the server refused the request.
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }

    /// Returns whether the same request may succeed later, because the server is unreachable or busy.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::Broken { .. } | Error::TimedOut { .. } => true,
            Error::Refused(problem) => matches!(problem.status, 429 | 502..=504),
            Error::Invalid { .. } | Error::TooLarge { .. } | Error::Unreadable { .. } => false,
        }
    }
}
