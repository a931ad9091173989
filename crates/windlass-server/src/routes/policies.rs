//! Presets of retry policies, and explanations of policies.

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
            .summary(TAG, "Lists the presets: retry policies with a name.")
            .status(200, "The presets."),
        Route::get(presets, Scope::Read, explain_preset)
            .summary(TAG, "Explains a preset: when each attempt starts.")
            .status(
                200,
                "The start of each attempt, and the load if many jobs fail at once.",
            ),
        Route::post("/api/v1/policies/explain", Scope::Read, explain)
            .summary(TAG, "Explains a retry policy: when each attempt starts.")
            .status(
                200,
                "The start of each attempt, and the load if many jobs fail at once.",
            ),
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
    let preset = preset.map_err(|_| {
        Problem::not_found("such preset").hint("list the presets with GET /api/v1/policies")
    })?;
    Ok(Reply::ok(params.explain(&preset.policy())?))
}

async fn explain(
    _: Call,
    JsonBody(explanation): JsonBody<ExplainRequest>,
) -> Result<Reply<PolicyExplanation>, Problem> {
    Ok(Reply::ok(explanation))
}
