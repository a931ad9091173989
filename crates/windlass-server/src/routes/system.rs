//! How the server is, what it counts, and what it can do.

use super::{Needs, Route};
use crate::access::Scope;
use crate::health::{live, ready};
use crate::metrics::metrics;
use crate::openapi::describe;

const TAG: &str = "system";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/livez", Needs::Nothing, live)
            .summary(TAG, "Whether the process answers.")
            .status(200, "It does."),
        Route::get("/readyz", Needs::Nothing, ready)
            .summary(TAG, "Whether the store answers and the loops run.")
            .status(200, "All is well.")
            .status(503, "Something is not."),
        Route::get("/metrics", Scope::Read, metrics)
            .summary(
                TAG,
                "Metrics for Prometheus: in the classic text format, or as OpenMetrics where \
                 `Accept` prefers `application/openmetrics-text`.",
            )
            .content_type("text/plain")
            .status(200, "The metrics."),
        Route::get("/openapi.json", Needs::Nothing, describe)
            .summary(TAG, "This description.")
            .status(200, "OpenAPI."),
    ]
}
