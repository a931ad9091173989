//! What a listener serves, and how it answers the requests that never reach the router.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};

/// Why a request is answered without the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The head is longer, or has more fields, than the limits allow.
    #[error("the head of the request is too large")]
    HeadTooLarge,
    /// The head is no HTTP, or a proxy could read it differently.
    #[error("the head of the request is malformed, or could be read in two ways")]
    Malformed,
    /// The body is larger than the limits allow on any route.
    #[error("the body is larger than any route takes, which is {most} bytes")]
    BodyTooLarge {
        /// The limit.
        most: u64,
    },
    /// All connections are taken; this one is answered once and closed.
    #[error("too many connections; retry after 1 s")]
    Busy,
}

impl Refusal {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Refusal::Malformed => StatusCode::BAD_REQUEST,
            Refusal::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

type OnRefusal = dyn Fn(&Refusal, &HeaderMap) -> Response<Body> + Send + Sync;

/// A router, and the answers to requests that never reach it.
#[derive(Clone)]
pub struct Site {
    pub(crate) router: Router,
    pub(crate) health: &'static [&'static str],
    on_refusal: Arc<OnRefusal>,
}

impl Site {
    /// Refused requests are answered with a line of text.
    pub fn new(router: Router) -> Self {
        Site {
            router,
            health: &[],
            on_refusal: Arc::new(|refusal, _| {
                let mut response = Response::new(Body::from(refusal.to_string()));
                *response.status_mut() = refusal.status();
                response
            }),
        }
    }

    /// Answers these paths even while all connections are taken.
    #[must_use]
    pub fn health(self, health: &'static [&'static str]) -> Self {
        Site { health, ..self }
    }

    /// Makes the answers to refused requests, from the reason and the headers of the request.
    #[must_use]
    pub fn on_refusal(
        self,
        answer: impl Fn(&Refusal, &HeaderMap) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Site {
            on_refusal: Arc::new(answer),
            ..self
        }
    }

    pub(crate) fn refuse(&self, refusal: &Refusal, headers: &HeaderMap) -> Response<Body> {
        (self.on_refusal)(refusal, headers)
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}
