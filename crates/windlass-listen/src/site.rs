//! What a listener serves: a router, and the responses to requests that never reach it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};

/// Why the listener refuses a request before it reaches the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request head has more bytes or fields than the limits allow.
    #[error("the request head is too large; send fewer or shorter headers")]
    HeadTooLarge,
    /// The request head is not valid HTTP, or a proxy could read it differently.
    #[error("the request head is malformed or ambiguous")]
    Malformed,
    /// The body is larger than any route accepts.
    #[error("the request body is too large; no route accepts more than {most} bytes")]
    BodyTooLarge {
        /// The limit in bytes.
        most: u64,
    },
    /// All connections are in use. The listener answers once on this one and closes it.
    #[error("too many connections; retry after 1 s")]
    Busy,
}

impl Refusal {
    /// Returns the status of the response.
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

/// A router, and the responses to requests that never reach it.
#[derive(Clone)]
pub struct Site {
    pub(crate) router: Router,
    pub(crate) health: &'static [&'static str],
    on_refusal: Arc<OnRefusal>,
}

impl Site {
    /// Creates a site that answers refused requests with a line of text.
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

    /// Answers requests for these paths even when all connections are in use.
    #[must_use]
    pub fn health(self, health: &'static [&'static str]) -> Self {
        Site { health, ..self }
    }

    /// Sets the function that makes the response to a refused request, from the reason and the
    /// headers of the request.
    #[must_use]
    pub fn on_refusal(
        self,
        respond: impl Fn(&Refusal, &HeaderMap) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        Site {
            on_refusal: Arc::new(respond),
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
