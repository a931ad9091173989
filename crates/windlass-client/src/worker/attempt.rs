//! One attempt of a job as its handler sees it, and how it ends.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use windlass_api::{BoundedInt, Job, Json, Progress};
use windlass_core::{Payload, WorkerName};

use super::log::{LogBatch, LogBuffer};
use crate::client::Client;
use crate::error::Error;

/// How long a request with log lines may take after the handler has returned.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(5);

/// One attempt of a job: the argument of the handler.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The job, with its payload.
    pub job: Job,
    /// Cancelled when the attempt should stop: the job was cancelled, the attempt timed out, or the
    /// worker lost its lease. A handler that ignores it keeps its slot until it returns.
    pub stop: CancellationToken,
    pub(super) client: Client,
    pub(super) worker: WorkerName,
    pub(super) log: LogBuffer,
}

impl Attempt {
    /// Parses the payload of the job.
    ///
    /// # Errors
    ///
    /// An unrecoverable [`Failure`] if the payload does not match `T`: a retry could not succeed.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let payload = self.job.payload.as_ref().map(|payload| payload.0.as_str());
        let read = serde_json::from_str(payload.unwrap_or("null"));
        read.map_err(|error| Failure::from(error).unrecoverable())
    }

    /// Adds a text to the log of the attempt. Each line of the text is a line of the log, cut to
    /// 1000 characters.
    ///
    /// The worker sends new lines once per second, and the last ones with the outcome. The server
    /// keeps the last 1000 lines, at most 64 KiB.
    pub fn log(&self, text: impl AsRef<str>) {
        self.log.push(text.as_ref());
    }

    /// Sends new lines until `done`. A request that is open then has 5 s to end.
    async fn send_log(&self, done: CancellationToken) {
        while done.run_until_cancelled(self.log.collect()).await.is_some() {
            let batch = self.log.batch();
            let given_up = async {
                done.cancelled().await;
                tokio::time::sleep(LAST_LINES_TIMEOUT).await;
            };
            let sent = tokio::select! {
                sent = self.send_lines(&batch) => sent,
                () = given_up => return,
            };
            match sent {
                Ok(()) => self.log.sent(&batch),
                Err(error) if error.is_temporary() => {
                    debug!(%error, job.id = %self.job.id, "sending log lines failed; retrying");
                }
                // The attempt has ended or is not ours: no later line can be sent either.
                Err(error) => {
                    return debug!(%error, job.id = %self.job.id, "the server refused log lines");
                }
            }
        }
    }

    async fn send_lines(&self, batch: &LogBatch) -> Result<(), Error> {
        let first = i64::try_from(batch.first).unwrap_or(i64::MAX);
        let progress = Progress {
            id: Some(self.job.id),
            attempt: BoundedInt::new(self.job.attempt.into()),
            worker: Some(self.worker.clone()),
            lines: batch.to_list(),
            first_line: BoundedInt::new(first),
            ..Progress::default()
        };
        self.client.progress(&progress).await
    }

    /// Reports the progress of the attempt, up to 16 KiB of JSON. Operators see it with the job.
    ///
    /// # Errors
    ///
    /// Refused with `lease_lost` if the attempt no longer belongs to this worker. Stop the work
    /// then.
    pub async fn progress(&self, progress: &(impl Serialize + Sync)) -> Result<(), Error> {
        let progress = Progress {
            id: Some(self.job.id),
            attempt: BoundedInt::new(self.job.attempt.into()),
            worker: Some(self.worker.clone()),
            progress: Some(to_json(progress)?),
            ..Progress::default()
        };
        self.client.progress(&progress).await
    }
}

/// Runs a handler and sends what it logs meanwhile.
pub(super) async fn with_log(attempt: Attempt, handling: impl Future<Output = Handled>) -> Handled {
    let done = CancellationToken::new();
    let handling = async {
        let handled = handling.await;
        done.cancel();
        handled
    };
    let (handled, ()) = tokio::join!(handling, attempt.send_log(done.clone()));
    handled
}

/// What a handler returns: the result of the job, or why the attempt failed.
pub type Handled = Result<Value, Failure>;

/// Why an attempt failed. `?` converts every error into a failure that the server retries by the
/// job's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(super) message: String,
    pub(super) causes: Vec<String>,
    pub(super) unrecoverable: bool,
    pub(super) retry_after: Option<Duration>,
}

impl Failure {
    /// Creates a failure with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            causes: Vec::new(),
            unrecoverable: false,
            retry_after: None,
        }
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Makes the failure final: the server does not retry the job, and the job is dead.
    #[must_use]
    pub fn unrecoverable(mut self) -> Self {
        self.unrecoverable = true;
        self
    }

    /// Sets the shortest wait before the next attempt, at most 24 h. The policy may wait longer.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let causes = std::iter::successors(error.source(), |cause| cause.source());
        Failure {
            causes: causes.map(ToString::to_string).collect(),
            ..Failure::new(error.to_string())
        }
    }
}

pub(super) fn to_json(value: &impl Serialize) -> Result<Json, Error> {
    let text = serde_json::to_string(value).map_err(|error| Error::Invalid {
        what: "the value".to_owned(),
        rule: format!("must be JSON: {error}"),
    })?;
    Ok(Json(Payload::from_stored(&text)))
}
