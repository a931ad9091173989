//! Retry policies: those that have a name, and what one will do.

use windlass_api::{ExplainParams, ExplainRequest, NamedPolicy, Page, PolicyExplanation};
use windlass_core::retry::Preset;

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::problem::Problem;

const TAG: &str = "policies";

pub(super) fn routes() -> Vec<Route> {
    let presets = "/api/v1/policies/{preset}/explain";
    vec![
        Route::get("/api/v1/policies", Scope::Read, list)
            .summary(TAG, "Lists the retry policies that have a name.")
            .status(200, "The presets."),
        Route::get(presets, Scope::Read, explain_preset)
            .summary(TAG, "What a preset will do.")
            .status(200, "Each attempt, and the herd."),
        Route::post("/api/v1/policies/explain", Scope::Read, explain)
            .summary(TAG, "What a policy will do.")
            .status(200, "Each attempt, and the herd."),
    ]
}

async fn list(_: Call) -> Result<Reply<Page<NamedPolicy>>, Problem> {
    Ok(Reply::ok(Page::single(NamedPolicy::all())))
}

async fn explain_preset(
    call: Call,
    Params(params): Params<ExplainParams>,
) -> Result<Reply<PolicyExplanation>, Problem> {
    let preset: Result<Preset, _> = call.param("preset").parse();
    let preset = preset
        .map_err(|_| Problem::not_found("such preset").hint("GET /api/v1/policies lists them"))?;
    Ok(Reply::ok(params.explain(&preset.policy())?))
}

async fn explain(
    _: Call,
    JsonBody(explanation): JsonBody<ExplainRequest>,
) -> Result<Reply<PolicyExplanation>, Problem> {
    Ok(Reply::ok(explanation))
}
