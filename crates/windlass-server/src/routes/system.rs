//! Health, metrics and the API description.

use windlass_api::{Page, ServerSetting};

use super::{Needs, Route};
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::Reply;
use crate::health::{live, ready};
use crate::metrics::metrics;
use crate::openapi::describe;
use crate::problem::Problem;

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
        Route::get("/api/v1/settings", Scope::Admin, settings)
            .summary(
                TAG,
                "Returns the configuration in effect: every setting with its value and its source. A program that \
                 mounts the router has none.",
            )
            .status(200, "The settings, in the order of the configuration file."),
        Route::get("/openapi.json", Needs::Nothing, describe)
            .summary(TAG, "Returns this API description.")
            .status(200, "The OpenAPI document."),
    ]
}

async fn settings(call: Call) -> Result<Reply<Page<ServerSetting>>, Problem> {
    Ok(Reply::ok(Page::single(call.app.configuration.to_vec())))
}
