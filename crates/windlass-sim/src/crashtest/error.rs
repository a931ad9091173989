//! Why a crash test could not be run.

use std::fmt::Display;

/// The crash test could not go on. This says nothing about the store.
#[derive(Debug, thiserror::Error)]
#[error("the crash test could not {action}: {cause}")]
pub struct CrashTestError {
    action: String,
    cause: String,
}

impl CrashTestError {
    pub(super) fn new(action: impl Into<String>, cause: impl Display) -> Self {
        CrashTestError {
            action: action.into(),
            cause: cause.to_string(),
        }
    }
}

/// Adds what the crash test was doing to an error.
pub(super) trait During<T> {
    fn during(self, action: &str) -> Result<T, CrashTestError>;
}

impl<T, E: Display> During<T> for Result<T, E> {
    fn during(self, action: &str) -> Result<T, CrashTestError> {
        self.map_err(|cause| CrashTestError::new(action, cause))
    }
}
