//! Health, metrics and the API description.

use super::{Needs, Route};
use crate::access::Scope;
use crate::health::{live, ready};
use crate::metrics::metrics;
use crate::openapi::describe;

const TAG: &str = "system";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/livez", Needs::Nothing, live)
            .summary(TAG, "Checks that the process is alive.")
            .status(200, "The process is alive."),
        Route::get("/readyz", Needs::Nothing, ready)
            .summary(
                TAG,
                "Checks that the server is ready: the store responds and the background loops run.",
            )
            .status(200, "The server is ready.")
            .status(503, "The server is not ready."),
        Route::get("/metrics", Scope::Read, metrics)
            .summary(
                TAG,
                "Returns metrics for Prometheus: in the classic text format, or as OpenMetrics if \
                 `Accept` prefers `application/openmetrics-text`.",
            )
            .content_type("text/plain")
            .status(200, "The metrics."),
        Route::get("/openapi.json", Needs::Nothing, describe)
            .summary(TAG, "Returns this API description.")
            .status(200, "The OpenAPI document."),
    ]
}
