//! Successful responses.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::problem::Problem;
use crate::routes::CompactBulk;

/// A successful response before it is sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: AnswerBody,
    /// What is stored with an `Idempotency-Key` instead of a large body.
    pub(crate) compact: Option<CompactBulk>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// Serialized JSON.
    Json(Vec<u8>),
    /// Another body, with its content type.
    Other(&'static str, Body),
    /// No body.
    Empty,
}

impl Answer {
    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(|error| Problem::internal(&error))?;
        Ok(Answer::written(status, body))
    }

    /// A response with JSON that is already serialized.
    pub(crate) fn written(status: StatusCode, body: Vec<u8>) -> Self {
        Answer {
            status,
            body: AnswerBody::Json(body),
            compact: None,
            headers: Vec::new(),
        }
    }

    pub(crate) fn ok(value: &impl Serialize) -> Result<Self, Problem> {
        Answer::json(StatusCode::OK, value)
    }

    pub(crate) fn empty() -> Self {
        Answer {
            status: StatusCode::NO_CONTENT,
            body: AnswerBody::Empty,
            compact: None,
            headers: Vec::new(),
        }
    }

    pub(crate) fn other(content_type: &'static str, body: impl Into<Body>) -> Self {
        Answer {
            status: StatusCode::OK,
            body: AnswerBody::Other(content_type, body.into()),
            compact: None,
            headers: Vec::new(),
        }
    }

    /// Stores a compact form with an `Idempotency-Key` instead of the body.
    pub(crate) fn compact(self, compact: CompactBulk) -> Self {
        Answer {
            compact: Some(compact),
            ..self
        }
    }

    pub(crate) fn status(self, status: StatusCode) -> Self {
        Answer { status, ..self }
    }

    pub(crate) fn header(mut self, name: HeaderName, value: &str) -> Self {
        // Header values consist of checked names. A value that is not valid is left out.
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }

    /// Returns the headers to store with an `Idempotency-Key`.
    pub(crate) fn kept_headers(&self) -> Vec<(String, String)> {
        let kept = self.headers.iter().filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        });
        kept.collect()
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let (content_type, body) = match self.body {
            AnswerBody::Json(json) => (Some("application/json"), Body::from(json)),
            AnswerBody::Other(content_type, body) => (Some(content_type), body),
            AnswerBody::Empty => (None, Body::empty()),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        headers.extend(self.headers);
        response
    }
}
