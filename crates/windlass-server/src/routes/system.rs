//! How the server is, what it counts, and what it can do.

use axum::http::Method;
use windlass_api::schema::{Field, Schema};

use super::{Needs, Route};
use crate::access::Scope;
use crate::health::{live, ready};
use crate::metrics::metrics;
use crate::openapi::describe;

const TAG: &str = "system";

pub(super) fn routes() -> Vec<Route> {
    let status = || {
        Schema::object(vec![
            Field::always("status", Schema::word(&["ok", "not_ready"])),
            Field::maybe("problems", Schema::list(Schema::text())),
        ])
    };
    vec![
        Route::new(Method::GET, "/livez", Needs::Nothing, live)
            .says(TAG, "Whether the process answers.")
            .answers(200, "It does.", status()),
        Route::new(Method::GET, "/readyz", Needs::Nothing, ready)
            .says(TAG, "Whether the store answers and the loops run.")
            .answers(200, "All is well.", status())
            .answers(503, "Something is not.", status()),
        Route::new(Method::GET, "/metrics", Scope::Read, metrics)
            .says(
                TAG,
                "Metrics for Prometheus: in the classic text format, or as OpenMetrics where `Accept` prefers `application/openmetrics-text`.",
            )
            .content_type("text/plain")
            .answers(200, "The metrics.", Schema::text()),
        Route::new(Method::GET, "/openapi.json", Needs::Nothing, describe)
            .says(TAG, "This description.")
            .answers(200, "OpenAPI.", Schema::open_object()),
    ]
}
