//! Where targets report how a request ended that they took for later.

use windlass_api::{CompletedJob, Completion as Reported, CompletionOutcome};
use windlass_http::{Completed, Completion, complete};

use super::{Needs, Route};
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::problem::Problem;

const TAG: &str = "http jobs";

pub(super) fn routes() -> Vec<Route> {
    // The token is the key: it was sent with the request, is good for one report, and is kept as a
    // hash.
    vec![
        Route::post("/api/v1/completions/{token}", Needs::Nothing, report)
            .summary(
                TAG,
                "Reports how an HTTP job ended that its target took for later, by the token that came with it.",
            )
            .status(200, "It is stored."),
    ]
}

async fn report(
    call: Call,
    JsonBody((outcome, reported)): JsonBody<Reported>,
) -> Result<Reply<CompletedJob>, Problem> {
    let completion = match outcome {
        CompletionOutcome::Succeeded => {
            let result = reported.result.map(|result| result.0.decode());
            let result = result
                .transpose()
                .map_err(|error| Problem::internal(&error))?;
            Completion::Succeeded(result.flatten())
        }
        CompletionOutcome::Failed => Completion::Failed {
            error: reported
                .error
                .unwrap_or_else(|| "the target said that it failed".to_owned()),
            retryable: reported.retryable.unwrap_or(true),
        },
    };
    match complete(&call.app.client, call.param("token"), &completion).await? {
        Completed::Taken(id) | Completed::Repeated(id) => Ok(Reply::ok(CompletedJob { id })),
        Completed::TooLate(_) => {
            let detail = "another result was reported with this token before, or its time is over";
            Err(Problem::conflict("completion_too_late", detail))
        }
        Completed::Unknown => Err(Problem::not_found("request with this token")),
    }
}
