//! Async requests: the target responds with 202 and reports the outcome later, once, with the token
//! that was sent with the request.
//!
//! Before the attempt sends the request, it stores a record with the hash of the token. After a 202
//! the attempt ends as snoozed until the target's deadline. [`complete`] first writes the reported
//! outcome to the record and then makes the job due. The next attempt finds the outcome and settles
//! the job without sending anything. All of this is in the store: after a crash at any point, the job
//! continues at the target's deadline at the latest.

mod record;
mod token;

use std::time::Duration;

use serde_json::{Value, json};
use windlass::Client;
use windlass::admin::engine_of;
use windlass_core::fields::{Fields, one_of};
use windlass_core::{
    AttemptError, Failure, FailureClass, Invalid, JobId, PAYLOAD_BYTES_MAX, Payload, Report, State,
    Timestamp,
};
use windlass_engine::{Engine, RunningAttempt};
use windlass_store::{Change, Expected, StoreError, Written, compare_and_set};

use crate::request::HttpRequest;
use crate::response::not_completed;
use record::CompletionRecord;
use token::CompletionToken;

/// The outcome of an async request, as its target reports it.
#[derive(Debug, Clone, PartialEq)]
pub enum Completion {
    /// The request succeeded, with this result if the target sent one.
    Succeeded(Option<Value>),
    /// The request failed.
    Failed {
        /// What went wrong.
        error: String,
        /// Whether to retry the request.
        retryable: bool,
    },
}

impl Completion {
    /// Reads `{"outcome": "succeeded", "result": …}` or
    /// `{"outcome": "failed", "error": "…", "retryable": false}`.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the field and the rule that it breaks.
    pub fn from_json(value: &Value) -> Result<Self, Invalid> {
        let mut fields = Fields::new(value)?;
        let words = [("succeeded", true), ("failed", false)];
        let succeeded = fields
            .parsed("outcome", |text| one_of(text, &words))?
            .ok_or_else(|| Invalid::new("outcome", "is required"))?;
        let completion = if succeeded {
            let result = fields.value("result").cloned();
            let size = result.as_ref().map_or(0, |result| result.to_string().len());
            if size > PAYLOAD_BYTES_MAX {
                return Err(Invalid::new("result", "must be at most 1 MiB"));
            }
            Completion::Succeeded(result)
        } else {
            let error = fields.text("error")?;
            Completion::Failed {
                error: error
                    .unwrap_or("the target reported a failure without an `error`")
                    .to_owned(),
                retryable: fields.flag("retryable")?.unwrap_or(true),
            }
        };
        fields.finish()?;
        Ok(completion)
    }

    fn to_json(&self) -> Value {
        match self {
            Completion::Succeeded(result) => json!({"outcome": "succeeded", "result": result}),
            Completion::Failed { error, retryable } => {
                json!({"outcome": "failed", "error": error, "retryable": retryable})
            }
        }
    }

    fn into_report(self) -> Report {
        match self {
            Completion::Succeeded(result) => {
                let payload = result.map(|result| Payload::from_stored(&result.to_string()));
                Report::Succeeded(payload)
            }
            Completion::Failed { error, retryable } => {
                let class = if retryable {
                    FailureClass::Retryable
                } else {
                    FailureClass::Unrecoverable
                };
                Report::Failed(Failure {
                    class,
                    ..Failure::retryable(AttemptError::new(error))
                })
            }
        }
    }
}

/// The collection of completion records in the store, by the id of the job.
const COMPLETIONS: &str = "completions";

/// How [`complete`] handled a reported outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completed {
    /// The outcome is stored, and the next attempt settles the job with it.
    Taken(JobId),
    /// The target reported the same outcome before. Nothing changed.
    Repeated(JobId),
    /// The target reported a different outcome before, the deadline passed, or the job is finished.
    /// Nothing changed.
    TooLate(JobId),
    /// The token belongs to no request.
    Unknown,
}

/// Stores the outcome that a target reports and makes the job due.
///
/// The token authorizes the caller: anyone who has it may report the outcome.
///
/// # Errors
///
/// [`StoreError`] if the store failed. The target may then report the same outcome again.
pub async fn complete(
    client: &Client,
    token: &str,
    completion: &Completion,
) -> Result<Completed, StoreError> {
    let Some(token) = CompletionToken::parse(token) else {
        return Ok(Completed::Unknown);
    };
    let engine = engine_of(client);
    let contended =
        || StoreError::Unavailable("other requests keep reporting outcomes of this job".into());
    compare_and_set(contended, || store_completion(engine, &token, completion)).await
}

/// Stores an outcome unless another one was reported or the target's deadline has passed. Returns
/// `None` if another writer changed the record first.
async fn store_completion(
    engine: &Engine,
    token: &CompletionToken,
    completion: &Completion,
) -> Result<Option<Completed>, StoreError> {
    let (store, id) = (engine.store(), token.job);
    let name = id.to_string();
    let document = store.document(COMPLETIONS, &name, engine.now()).await?;
    let Some((mut record, version)) = document
        .and_then(|document| Some((CompletionRecord::read(&document.value)?, document.version)))
        .filter(|(record, _)| record.matches(token))
    else {
        return Ok(Some(Completed::Unknown));
    };
    let job = store.get(&[id]).await?.into_iter().flatten().next();
    if let Some(reported) = &record.completion {
        if reported != completion {
            return Ok(Some(Completed::TooLate(id)));
        }
        if job.is_some_and(|job| job.attempt == token.attempt) {
            // No attempt has used the outcome yet. The first call may have crashed before it
            // made the job due.
            make_due(engine, id, token.attempt).await?;
        }
        return Ok(Some(Completed::Repeated(id)));
    }
    let now = engine.now();
    let deadline_passed = record.until.is_some_and(|until| until <= now);
    if deadline_passed || job.is_none_or(|job| job.state().is_final()) {
        return Ok(Some(Completed::TooLate(id)));
    }
    record.completion = Some(completion.clone());
    let (value, expires_at) = (record.to_json(), record.expires_at(now));
    let expected = Expected::Version(version);
    let written = store.put_document(COMPLETIONS, &name, &value, expected, expires_at, now);
    let Written::Version(_) = written.await? else {
        return Ok(None);
    };
    make_due(engine, id, token.attempt).await?;
    Ok(Some(Completed::Taken(id)))
}

/// Makes the job due. If the attempt that sent the request still runs, waits up to 2 s for its end.
async fn make_due(engine: &Engine, job: JobId, attempt: u32) -> Result<(), StoreError> {
    const POLLS_MAX: u32 = 200;
    const POLL_EVERY: Duration = Duration::from_millis(10);
    let store = engine.store();
    let mut changes = store.changes();
    for _ in 0..POLLS_MAX {
        let current = store.get(&[job]).await?.into_iter().flatten().next();
        match current.map(|job| (job.state(), job.attempt)) {
            Some((State::Running, running)) if running == attempt => tokio::select! {
                _ = changes.changed() => {}
                () = engine.clock().sleep(POLL_EVERY) => {}
            },
            Some((State::Waiting, _)) => {
                store
                    .change(&[job], &Change::RunNow, None, engine.now())
                    .await?;
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
    Ok(()) // the next attempt finds the outcome at the target's deadline
}

/// Whether an attempt of an async job sends the request.
pub(crate) enum SendDecision {
    /// An earlier attempt sent it, and this is its outcome.
    AlreadyEnded(Report),
    /// Send it with the token of this ticket.
    Send(CompletionTicket),
}

/// Returns the outcome of the request if an earlier attempt sent it, or else a new token to send it
/// with.
pub(crate) async fn before_sending(
    attempt: &RunningAttempt,
    request: &HttpRequest,
    within: Duration,
) -> Result<SendDecision, Failure> {
    let store = attempt.engine().store();
    let job = attempt.job();
    let name = job.id.to_string();
    let document = store
        .document(COMPLETIONS, &name, attempt.engine().now())
        .await
        .map_err(store_failed)?;
    if let Some(record) = document.and_then(|found| CompletionRecord::read(&found.value)) {
        let history = store.attempts(job.id, HISTORY_MAX).await;
        let history = history.map_err(store_failed)?;
        if record.is_current(&history) {
            if let Some(completion) = record.completion {
                attempt.keep("completion", completion.to_json());
                return Ok(SendDecision::AlreadyEnded(completion.into_report()));
            }
            if record
                .until
                .is_some_and(|until| until <= attempt.engine().now())
            {
                let report = Report::Failed(not_completed(request, within));
                return Ok(SendDecision::AlreadyEnded(report));
            }
        }
    }
    let token = CompletionToken::new(job.id, job.attempt).map_err(|error| retryable(&error))?;
    let record = CompletionRecord::new(&token);
    let now = attempt.engine().now();
    let written = store
        .put_document(
            COMPLETIONS,
            &name,
            &record.to_json(),
            Expected::Any,
            record.expires_at(now),
            now,
        )
        .await
        .map_err(store_failed)?;
    match written {
        Written::Version(version) => Ok(SendDecision::Send(CompletionTicket {
            token: token.to_string(),
            record,
            version,
        })),
        Written::Conflict(_) => Err(retryable(
            "another attempt of this job is about to send the request",
        )),
    }
}

/// The most attempts that are read to decide about a record. More would matter only if that many
/// attempts in a row were lost.
const HISTORY_MAX: usize = 64;

/// A token that is sent with a request, and its stored record.
pub(crate) struct CompletionTicket {
    token: String,
    record: CompletionRecord,
    version: u64,
}

impl CompletionTicket {
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Called after a 202. Returns the outcome if the target reported it already, or else snoozes the
    /// job until the target's deadline.
    pub(crate) async fn wait(
        self,
        attempt: &RunningAttempt,
        until: Timestamp,
    ) -> Result<Report, Failure> {
        let store = attempt.engine().store();
        let name = attempt.job().id.to_string();
        let mut record = self.record;
        record.until = Some(until);
        let expected = Expected::Version(self.version);
        let now = attempt.engine().now();
        let written = store
            .put_document(
                COMPLETIONS,
                &name,
                &record.to_json(),
                expected,
                record.expires_at(now),
                now,
            )
            .await
            .map_err(store_failed)?;
        if let Written::Version(_) = written {
            return Ok(Report::Snoozed { until });
        }
        let document = store
            .document(COMPLETIONS, &name, now)
            .await
            .map_err(store_failed)?;
        let completion =
            document.and_then(|found| CompletionRecord::read(&found.value)?.completion);
        let completion = completion.ok_or_else(|| {
            retryable("the completion record of the request disappeared while it was sent")
        })?;
        attempt.keep("completion", completion.to_json());
        Ok(completion.into_report())
    }
}

fn store_failed(error: StoreError) -> Failure {
    retryable(&format!(
        "could not read or write the completion record: {error}"
    ))
}

fn retryable(text: &str) -> Failure {
    Failure::retryable(AttemptError::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_parsed_strictly() {
        let read = Completion::from_json;
        assert_eq!(
            read(&json!({"outcome": "succeeded", "result": {"a": 1}})),
            Ok(Completion::Succeeded(Some(json!({"a": 1}))))
        );
        assert_eq!(
            read(&json!({"outcome": "failed", "error": "no", "retryable": false})),
            Ok(Completion::Failed {
                error: "no".to_owned(),
                retryable: false
            })
        );
        for (field, value) in [
            ("", json!([])),
            ("outcome", json!({})),
            ("outcome", json!({"outcome": "done"})),
            ("error", json!({"outcome": "succeeded", "error": "x"})),
            ("result", json!({"outcome": "failed", "result": 1})),
            (
                "result",
                json!({"outcome": "succeeded", "result": "x".repeat(PAYLOAD_BYTES_MAX)}),
            ),
        ] {
            assert_eq!(read(&value).unwrap_err().field(), field, "{value}");
        }
        for completion in [
            Completion::Succeeded(None),
            Completion::Failed {
                error: "e".to_owned(),
                retryable: true,
            },
        ] {
            assert_eq!(read(&completion.to_json()), Ok(completion));
        }
    }
}
