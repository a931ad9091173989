//! Retry policies: those that have a name, and what one will do.

use axum::http::Method;
use windlass_api::schema::{Field, Schema};
use windlass_api::{ExplainRequest, ListPage, PresetView};
use windlass_core::retry::Preset;

use super::Route;
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const TAG: &str = "policies";

pub(super) fn routes() -> Vec<Route> {
    let explanation = || Schema::named("Explanation");
    vec![
        Route::new(Method::GET, "/api/v1/policies", Scope::Read, list)
            .says(TAG, "Lists the retry policies that have a name.")
            .answers(
                200,
                "The presets.",
                Schema::page(Schema::named("Preset"), vec![]),
            ),
        Route::new(
            Method::GET,
            "/api/v1/policies/{preset}/explain",
            Scope::Read,
            explain_preset,
        )
        .says(TAG, "What a preset will do.")
        .params([
            Field::maybe("max_attempts", Schema::integer(1, 1000)),
            Field::maybe("jobs", Schema::integer(1, u32::MAX.into())),
        ])
        .answers(200, "Each attempt, and the herd.", explanation()),
        Route::new(
            Method::POST,
            "/api/v1/policies/explain",
            Scope::Read,
            explain,
        )
        .says(TAG, "What a policy will do.")
        .takes("ExplainRequest")
        .answers(200, "Each attempt, and the herd.", explanation()),
    ]
}

async fn list(_: Call) -> Result<Answer, Problem> {
    Answer::ok(&ListPage::whole(PresetView::all()))
}

async fn explain_preset(call: Call) -> Result<Answer, Problem> {
    let name = call.param("preset");
    if name.parse::<Preset>().is_err() {
        return Err(Problem::not_found("such preset").hint("GET /api/v1/policies lists them"));
    }
    let request = ExplainRequest::from_query(name, &mut call.query())?;
    Answer::ok(&request.explain()?)
}

async fn explain(call: Call) -> Result<Answer, Problem> {
    let request = call.read(|parts| ExplainRequest::from_fields(&parts.values()?))?;
    Answer::ok(&request.explain()?)
}
