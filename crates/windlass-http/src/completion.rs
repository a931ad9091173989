//! Requests that a target takes for later (202), and how it tells their end: once, with the token that was sent along.
//!
//! The token is kept, as a hash, before the request is sent. On 202 the attempt ends as snoozed until the time that the
//! target has; its telling is written down first and then makes the job due, so that an attempt settles the job by what was
//! told. Whatever crashes in between, the job waits no longer than the target had time. Nothing of it lives in memory only.

mod document;
mod token;

use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::fields::{Fields, one_of};
use windlass_core::{
    AttemptError, Failure, FailureClass, Invalid, JobId, PAYLOAD_BYTES_MAX, Payload, Report, State,
    Timestamp,
};
use windlass_engine::{Engine, RunningAttempt};
use windlass_store::{Change, Expected, StoreError, Written};

use crate::answer::not_completed;
use document::Kept;
use token::Token;

/// How a target tells that a request ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Completion {
    /// It is done; with a result, if it has one.
    Succeeded(Option<Value>),
    /// It is not.
    Failed {
        /// Why.
        error: String,
        /// Whether trying again can help.
        retryable: bool,
    },
}

impl Completion {
    /// Reads `{"outcome": "succeeded", "result": …}` or `{"outcome": "failed", "error": "…", "retryable": false}`.
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
                error: error.unwrap_or("the target said that it failed").to_owned(),
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

/// The documents of requests that are completed later, by the id of the job.
const COMPLETIONS: &str = "completions";

/// What became of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completed {
    /// It is written down; the job is settled by it.
    Taken(JobId),
    /// The same was told before: nothing changed.
    Repeated(JobId),
    /// The token was used before to tell something else, or its time is over. Nothing changed.
    TooLate(JobId),
    /// No request was sent with that token.
    Unknown,
}

/// Takes a target's word that a request ended. Only the token says who may tell it.
pub async fn complete(
    engine: &Engine,
    token: &str,
    completion: &Completion,
) -> Result<Completed, StoreError> {
    let Some(token) = Token::parse(token) else {
        return Ok(Completed::Unknown);
    };
    let store = engine.store();
    let name = token.job.to_string();
    loop {
        let now = engine.now();
        let Some(found) = store.document(COMPLETIONS, &name, now).await? else {
            return Ok(Completed::Unknown);
        };
        let Some(mut kept) = Kept::read(&found.value).filter(|kept| kept.is_of(&token)) else {
            return Ok(Completed::Unknown);
        };
        if let Some(told) = &kept.told {
            if told != completion {
                return Ok(Completed::TooLate(token.job));
            }
            let job = store.get(&[token.job]).await?.into_iter().flatten().next();
            if job.is_some_and(|job| job.attempt == token.attempt) {
                // No attempt has heard of it yet: who told it first may not have lived to make the job due.
                wake(engine, token.job, token.attempt).await?;
            }
            return Ok(Completed::Repeated(token.job));
        }
        let job = store.get(&[token.job]).await?.into_iter().flatten().next();
        let state = job.as_ref().map(|job| job.state());
        let now = engine.now();
        let over = kept.until.is_some_and(|until| until <= now);
        if over || !matches!(state, Some(State::Waiting | State::Running)) {
            return Ok(Completed::TooLate(token.job));
        }
        kept.told = Some(completion.clone());
        let expected = Expected::Version(found.version);
        let value = kept.to_json();
        let kept_until = kept.kept_until(now);
        let written = store.put_document(COMPLETIONS, &name, &value, expected, kept_until, now);
        if let Written::Version(_) = written.await? {
            wake(engine, token.job, token.attempt).await?;
            return Ok(Completed::Taken(token.job));
        }
    }
}

/// Makes the job due. The attempt that sent the request may be about to end: it is waited for, a little.
async fn wake(engine: &Engine, job: JobId, attempt: u32) -> Result<(), StoreError> {
    const LOOKS: u32 = 200;
    const BETWEEN: Duration = Duration::from_millis(10);
    let store = engine.store();
    let mut changes = store.changes();
    for _ in 0..LOOKS {
        let found = store.get(&[job]).await?.into_iter().flatten().next();
        match found.map(|job| (job.state(), job.attempt)) {
            Some((State::Running, running)) if running == attempt => tokio::select! {
                _ = changes.changed() => {}
                () = engine.clock().sleep(BETWEEN) => {}
            },
            Some((State::Waiting, _)) => {
                store.change(&[job], &Change::RunNow, engine.now()).await?;
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
    Ok(()) // it finds what was told when the target's time is over
}

/// What an attempt of such a request is to do.
pub(crate) enum Pending {
    /// An earlier one sent it, and this is how that ended.
    Ended(Report),
    /// Send it, with this ticket.
    Send(Ticket),
}

/// Looks whether an earlier attempt sent the request, and makes out a new token if not.
pub(crate) async fn before_sending(
    attempt: &RunningAttempt,
    within: Duration,
) -> Result<Pending, Failure> {
    let store = attempt.engine().store();
    let job = attempt.job();
    let name = job.id.to_string();
    let found = store
        .document(COMPLETIONS, &name, attempt.engine().now())
        .await
        .map_err(store_failed)?;
    if let Some(kept) = found.and_then(|found| Kept::read(&found.value)) {
        let history = store.attempts(job.id, HISTORY_LOOKED_AT).await;
        let history = history.map_err(store_failed)?;
        if kept.is_for_the_attempt_after(&history) {
            if let Some(told) = kept.told {
                attempt.keep("completion", told.to_json());
                return Ok(Pending::Ended(told.into_report()));
            }
            if kept
                .until
                .is_some_and(|until| until <= attempt.engine().now())
            {
                return Ok(Pending::Ended(Report::Failed(not_completed(within))));
            }
        }
    }
    let token = Token::new(job.id, job.attempt).map_err(|error| retryable(&error))?;
    let kept = Kept::of(&token);
    let now = attempt.engine().now();
    let written = store
        .put_document(
            COMPLETIONS,
            &name,
            &kept.to_json(),
            Expected::Anything,
            kept.kept_until(now),
            now,
        )
        .await
        .map_err(store_failed)?;
    match written {
        Written::Version(version) => Ok(Pending::Send(Ticket {
            text: token.to_string(),
            kept,
            version,
        })),
        Written::Conflict(_) => Err(retryable("another attempt of this job is about to send")),
    }
}

/// Further back than this, no attempt matters to a completion: it would have had to be lost so often in a row.
const HISTORY_LOOKED_AT: usize = 64;

/// A token that goes with a request.
pub(crate) struct Ticket {
    text: String,
    kept: Kept,
    version: u64,
}

impl Ticket {
    pub(crate) fn token(&self) -> &str {
        &self.text
    }

    /// The target took the request for later: the job waits, unless its end was told already.
    pub(crate) async fn wait(
        self,
        attempt: &RunningAttempt,
        until: Timestamp,
    ) -> Result<Report, Failure> {
        let store = attempt.engine().store();
        let name = attempt.job().id.to_string();
        let mut kept = self.kept;
        kept.until = Some(until);
        let expected = Expected::Version(self.version);
        let now = attempt.engine().now();
        let written = store
            .put_document(
                COMPLETIONS,
                &name,
                &kept.to_json(),
                expected,
                kept.kept_until(now),
                now,
            )
            .await
            .map_err(store_failed)?;
        if let Written::Version(_) = written {
            return Ok(Report::Snoozed { until });
        }
        let found = store
            .document(COMPLETIONS, &name, now)
            .await
            .map_err(store_failed)?;
        let told = found.and_then(|found| Kept::read(&found.value)?.told);
        let told = told.ok_or_else(|| retryable("what was kept of the request is gone"))?;
        attempt.keep("completion", told.to_json());
        Ok(told.into_report())
    }
}

fn store_failed(error: StoreError) -> Failure {
    retryable(&format!("the completion could not be kept: {error}"))
}

fn retryable(text: &str) -> Failure {
    Failure::retryable(AttemptError::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_read_strictly() {
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
        for told in [
            Completion::Succeeded(None),
            Completion::Failed {
                error: "e".to_owned(),
                retryable: true,
            },
        ] {
            assert_eq!(read(&told.to_json()), Ok(told));
        }
    }
}
