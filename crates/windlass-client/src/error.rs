//! What can go wrong between a program and a server.

use std::time::Duration;

use windlass_api::Problem;

/// The cause of an error; which type it has is not promised.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL of the server, the key or a certificate cannot be used.
    #[error("{what} {rule}")]
    Invalid {
        /// What is wrong.
        what: String,
        /// What it must be.
        rule: String,
    },
    /// No connection to the server came about, so the request was not sent.
    #[error("no server answers at {url}")]
    Connect {
        /// The server.
        url: String,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// The connection broke. The server may have carried the request out.
    #[error("the connection to {url} broke")]
    Broken {
        /// The server.
        url: String,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// The server did not answer in time. It may have carried the request out.
    #[error("{url} did not answer within {after:?}")]
    TimedOut {
        /// The server.
        url: String,
        /// How long the client waited.
        after: Duration,
    },
    /// The answer has more bytes than the client accepts.
    #[error("the answer has more than {max} bytes")]
    TooLarge {
        /// The limit of the client.
        max: usize,
    },
    /// The server refused the request.
    #[error("the server refused ({}): {}", .0.status, .0.detail)]
    Refused(Box<Problem>),
    /// The answer is not what this client expects: the server may be of another version.
    #[error("the answer of {url} cannot be read")]
    Unreadable {
        /// The server.
        url: String,
        /// Why.
        #[source]
        cause: Cause,
    },
}

impl Error {
    /// What the server said, if it refused the request.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// The stable code of the problem, such as `not_found`, if the server refused the request.
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str())
    }

    /// Whether the same request may succeed later: the server is away or busy.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::Broken { .. } | Error::TimedOut { .. } => true,
            Error::Refused(problem) => matches!(problem.status, 429 | 502..=504),
            Error::Invalid { .. } | Error::TooLarge { .. } | Error::Unreadable { .. } => false,
        }
    }
}
