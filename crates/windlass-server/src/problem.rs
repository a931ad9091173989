//! Error responses: `application/problem+json` with a stable code.

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

/// An error response before it is sent.
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

    /// An internal error. The cause goes to the log and not into the response.
    pub(crate) fn internal(cause: &dyn std::fmt::Display) -> Self {
        error!(%cause, "request failed");
        let detail = "the server failed to handle this request";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            .hint("search the log of the server for the `request_id` to find the cause")
    }

    pub(crate) fn busy(what: &str) -> Self {
        let detail = format!("too many {what}; retry after 1 s");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
            .retry_after(Duration::from_secs(1))
    }

    pub(crate) fn too_large(code: &str, detail: String) -> Self {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, code, detail)
    }

    /// Invalid fields.
    pub(crate) fn invalid(problems: &[Invalid]) -> Self {
        let detail = problems.first().map(Invalid::to_string).unwrap_or_default();
        let mut problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail);
        problem.json.errors = problems.iter().map(FieldProblem::from).collect();
        problem
    }

    /// Moves the problem into a part of the request.
    pub(crate) fn within(mut self, part: &str) -> Self {
        let prefix = pointer_of(part);
        for problem in &mut self.json.errors {
            problem.pointer = format!("{prefix}{}", problem.pointer);
        }
        self.json.detail = format!("{part}: {}", self.json.detail);
        self
    }

    /// Replaces the code.
    pub(crate) fn code(mut self, code: &str) -> Self {
        self.json.code = code.to_owned();
        self
    }

    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.json.hint = Some(hint.to_owned());
        self
    }

    /// Adds another hint.
    pub(crate) fn and_hint(self, hint: &str) -> Self {
        let hints = match &self.json.hint {
            Some(first) => format!("{first}; {hint}"),
            None => hint.to_owned(),
        };
        self.hint(&hints)
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

    /// Whether the request was refused for good: it changed nothing, and repeating it cannot
    /// succeed. A request that failed halfway or may be retried is not a refusal.
    pub(crate) fn is_refusal(&self) -> bool {
        let is_retryable = matches!(self.json.status, 408 | 425 | 429);
        self.json.status < 500 && self.retry_after.is_none() && !is_retryable
    }

    /// The JSON of the problem, to include in another response.
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
            // Whole seconds, rounded up, and at least 1.
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
                .hint("the job may have run: revive it with `force`, or mark it as succeeded with `resolve`"),
            Error::Conflict { .. } => Problem::conflict("wrong_state", error.to_string())
                .hint("read the job: its `state` decides which changes are possible"),
            Error::Action(error) => error.into(),
            Error::PatchFailed { .. } => Problem::conflict("patch_failed", error.to_string()),
            Error::KeyTaken(_) => Problem::conflict("unique_key_taken", error.to_string()),
            Error::QueueFull { .. } => queue_full(error.to_string())
                .hint("nothing changed; retry when fewer jobs wait in the queue"),
            Error::ScheduleNotFound(_) => Problem::not_found("such schedule"),
            Error::QueueNotFound { ref nearest, .. } => {
                let hint = match nearest {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => "list the queues with GET /api/v1/queues".to_owned(),
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
        let detail = error.to_string();
        let too_many = |wait| {
            let status = StatusCode::TOO_MANY_REQUESTS;
            Problem::new(status, "too_many_requests", detail.clone()).retry_after(wait)
        };
        match error {
            RemoteError::Invalid(invalid) => invalid.into(),
            RemoteError::Store(error) => error.into(),
            RemoteError::LeaseLost(_) => Problem::conflict("lease_lost", detail)
                .hint("stop the attempt: the server ignores its result"),
            RemoteError::ClaimIdReused => Problem::conflict("claim_id_reused", detail),
            RemoteError::TooManyWorkers => too_many(Duration::from_secs(60)),
            RemoteError::ProgressTooLarge { .. } => {
                Problem::too_large("progress_too_large", detail)
            }
            RemoteError::ProgressTooOften => too_many(Duration::from_secs(1)),
            RemoteError::ProgressBusy => {
                Problem::conflict("progress_busy", detail).retry_after(Duration::from_secs(1))
            }
        }
    }
}

fn queue_full(detail: String) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", detail)
        .retry_after(Duration::from_secs(1))
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let second = Duration::from_secs(1);
        let unavailable = |code: &str| {
            let detail = error.to_string();
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).retry_after(second)
        };
        match &error {
            StoreError::QueueFull { .. } => queue_full(error.to_string())
                .hint("no job was created; retry when fewer jobs wait in the queue"),
            StoreError::TooMany { what, .. } => {
                let rule = error.to_string();
                Invalid::new(*what, rule).into()
            }
            StoreError::StorageFull(_) => unavailable("storage_full"),
            StoreError::Unavailable(_) => unavailable("store_unavailable"),
            StoreError::Indeterminate(_) => unavailable("indeterminate")
                .hint("repeat the request with the same `Idempotency-Key`"),
            StoreError::Stopped(_) => unavailable("store_stopped"),
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
