//! Where targets tell how a request ended that they took for later.

use axum::http::Method;
use windlass_api::schema::Schema;
use windlass_http::{Completed, Completion, complete};

use super::{Needs, Route};
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const TAG: &str = "http jobs";

pub(super) fn routes() -> Vec<Route> {
    vec![
        // The token is the key: it was sent with the request, is good for one telling, and is kept as a hash.
        Route::new(
            Method::POST,
            "/api/v1/completions/{token}",
            Needs::Nothing,
            tell,
        )
        .says(
            TAG,
            "Tells how an HTTP job ended that its target took for later, by the token that came with it.",
        )
        .takes("Completion")
        .answers(200, "It is written down.", Schema::named("CompletionTaken")),
    ]
}

async fn tell(call: Call) -> Result<Answer, Problem> {
    let completion = call.read(|parts| Completion::from_json(&parts.values()?.into()))?;
    let unknown = || Problem::not_found("request with this token");
    match complete(call.app.engine(), call.param("token"), &completion).await? {
        Completed::Taken(id) | Completed::Repeated(id) => {
            Answer::ok(&serde_json::json!({"id": id}))
        }
        Completed::TooLate(_) => {
            let detail = "something else was told with this token before, or its time is over";
            Err(Problem::conflict("completion_too_late", detail))
        }
        Completed::Unknown => Err(unknown()),
    }
}
