//! What went wrong, as an answer: `application/problem+json` with a code that never changes.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use tracing::error;
use windlass::{Error, StoreError};
use windlass_api::{BodyRefused, FieldProblem, Malformed, Problem as ProblemJson, pointer_of};
use windlass_core::{DeadReason, Invalid, State};
use windlass_engine::remote::RemoteError;
use windlass_http::form::FormError;

use crate::access::Refused;

/// A refusal or failure on its way out.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    json: Box<ProblemJson>,
    retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        let json = ProblemJson {
            type_uri: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: detail.into(),
            hint: None,
            errors: Vec::new(),
            request_id: None,
        };
        Problem {
            json: Box::new(json),
            retry_after: None,
        }
    }

    pub(crate) fn not_found(what: impl std::fmt::Display) -> Self {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no {what}"),
        )
    }

    pub(crate) fn conflict(code: &str, detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    /// Something of ours is broken: the log has the cause, the answer has not.
    pub(crate) fn internal(cause: &dyn std::fmt::Display) -> Self {
        error!(%cause, "a request failed");
        let detail = "the server failed at this request";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            .hint("the log of the server has the cause under this request id")
    }

    pub(crate) fn busy(what: &str) -> Self {
        let detail = format!("too many {what}; retry after 1 s");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
            .retry_after(Duration::from_secs(1))
    }

    pub(crate) fn too_large(code: &str, detail: String) -> Self {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, code, detail)
    }

    /// Several fields that break rules.
    pub(crate) fn invalid(problems: &[Invalid]) -> Self {
        let detail = problems.first().map(Invalid::to_string).unwrap_or_default();
        let mut problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail);
        problem.json.errors = problems.iter().map(FieldProblem::from).collect();
        problem
    }

    /// The same problem of a part of what was sent.
    pub(crate) fn within(mut self, part: &str) -> Self {
        let place = pointer_of(part);
        for problem in &mut self.json.errors {
            problem.pointer = format!("{place}{}", problem.pointer);
        }
        self.json.detail = format!("{part}: {}", self.json.detail);
        self
    }

    /// The same problem under another code.
    pub(crate) fn code(mut self, code: &str) -> Self {
        self.json.code = code.to_owned();
        self
    }

    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.json.hint = Some(hint.to_owned());
        self
    }

    /// One more thing to do about it.
    pub(crate) fn and_hint(self, hint: &str) -> Self {
        let both = match &self.json.hint {
            Some(first) => format!("{first}; {hint}"),
            None => hint.to_owned(),
        };
        self.hint(&both)
    }

    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    pub(crate) fn request_id(mut self, id: &str) -> Self {
        self.json.request_id = Some(id.to_owned());
        self
    }

    pub(crate) fn status(&self) -> u16 {
        self.json.status
    }

    /// Whether the same request can never do anything else: it was refused and made nothing. A request that is to be tried
    /// again, and one that failed halfway, is not refused.
    pub(crate) fn is_refusal(&self) -> bool {
        let try_again = matches!(self.json.status, 408 | 425 | 429);
        self.json.status < 500 && self.retry_after.is_none() && !try_again
    }

    /// The problem of one of many, told within an answer.
    pub(crate) fn into_json(self) -> ProblemJson {
        *self.json
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.json.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.json).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, json);
        if let Some(wait) = self.retry_after {
            // Whole seconds, and never none.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, seconds.max(1).into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Problem::invalid(&[invalid])
    }
}

impl From<FormError> for Problem {
    fn from(refused: FormError) -> Self {
        Problem::invalid(std::slice::from_ref(&refused.invalid)).code(refused.code)
    }
}

impl From<Malformed> for Problem {
    fn from(malformed: Malformed) -> Self {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed_json",
            malformed.to_string(),
        )
    }
}

impl From<BodyRefused> for Problem {
    fn from(refused: BodyRefused) -> Self {
        match refused {
            BodyRefused::Malformed(malformed) => malformed.into(),
            BodyRefused::Invalid(problems) => Problem::invalid(&problems),
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let problem = Problem::new(refused.status(), refused.code(), refused.to_string());
        match refused.retry_after() {
            Some(wait) => problem.retry_after(wait),
            None => problem,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(invalid) => invalid.into(),
            Error::Store(error) => error.into(),
            Error::NotFound(id) => Problem::not_found(format!("job {id}")),
            Error::Conflict {
                state: State::Dead(DeadReason::Lost),
                ..
            } => Problem::conflict("wrong_state", error.to_string())
                .hint("it may have run: `force` revives it all the same, `resolve` says that it did succeed"),
            Error::Conflict { .. } => Problem::conflict("wrong_state", error.to_string())
                .hint("look at the job: its `state` decides what can be done"),
            Error::KeyTaken(_) => Problem::conflict("unique_key_taken", error.to_string()),
            Error::QueueFull { .. } => queue_full(error.to_string())
                .hint("nothing changed: try again when the queue has drained"),
            Error::ScheduleNotFound(_) => Problem::not_found("such schedule"),
            Error::QueueNotFound { ref nearest, .. } => {
                let hint = match nearest {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => "GET /api/v1/queues lists the queues".to_owned(),
                };
                let status = StatusCode::NOT_FOUND;
                Problem::new(status, "not_found", error.to_string()).hint(&hint)
            }
            Error::QueueContended(_) => Problem::conflict("queue_busy", error.to_string())
                .retry_after(Duration::from_secs(1)),
            Error::ScheduleChanged { .. } => Problem::conflict("schedule_busy", error.to_string())
                .retry_after(Duration::from_secs(1)),
            Error::ScheduleKeyTaken(_) => Problem::conflict("unique_key_taken", error.to_string()),
            other => Problem::internal(&other),
        }
    }
}

impl From<RemoteError> for Problem {
    fn from(error: RemoteError) -> Self {
        let told = error.to_string();
        let too_many = |wait| {
            let status = StatusCode::TOO_MANY_REQUESTS;
            Problem::new(status, "too_many_requests", told.clone()).retry_after(wait)
        };
        match error {
            RemoteError::Invalid(invalid) => invalid.into(),
            RemoteError::Store(error) => error.into(),
            RemoteError::LeaseLost(_) => Problem::conflict("lease_lost", told)
                .hint("stop the attempt: its results no longer count"),
            RemoteError::TooManyWorkers => too_many(Duration::from_secs(60)),
            RemoteError::ProgressTooLarge { .. } => Problem::too_large("progress_too_large", told),
            RemoteError::ProgressTooOften => too_many(Duration::from_secs(1)),
            RemoteError::ProgressBusy => {
                Problem::conflict("progress_busy", told).retry_after(Duration::from_secs(1))
            }
        }
    }
}

fn queue_full(told: String) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", told)
        .retry_after(Duration::from_secs(1))
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let second = Duration::from_secs(1);
        let away = |code: &str| {
            let told = error.to_string();
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, told).retry_after(second)
        };
        match &error {
            StoreError::QueueFull { .. } => queue_full(error.to_string())
                .hint("nothing was stored: try again when the queue has drained"),
            StoreError::TooMany { what, .. } => {
                let rule = error.to_string();
                Invalid::new(*what, rule).into()
            }
            StoreError::StorageFull(_) => away("storage_full"),
            StoreError::Unavailable(_) => away("store_unavailable"),
            StoreError::Indeterminate(_) => {
                away("indeterminate").hint("send it again with the same `Idempotency-Key`")
            }
            StoreError::Stopped(_) => away("store_stopped"),
            StoreError::Unreadable { .. } => Problem::conflict("job_unreadable", error.to_string()),
            StoreError::Damaged { .. }
            | StoreError::Refused { .. }
            | StoreError::NotAStore { .. }
            | StoreError::Exists { .. }
            | StoreError::WrongSchema { .. }
            | StoreError::CannotOpen { .. }
            | StoreError::InUse { .. } => Problem::internal(&error),
        }
    }
}
