//! Targets report the result of HTTP jobs that they answered with 202.

use windlass_api::{CompletedJob, Completion as Reported, CompletionOutcome};
use windlass_http::{Completed, Completion, complete};

use super::{Needs, Route};
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::problem::Problem;

const TAG: &str = "http jobs";

pub(super) fn routes() -> Vec<Route> {
    // The token replaces a key: the request carried it, it is valid for one report, and the server
    // stores only its hash.
    vec![
        Route::post("/api/v1/completions/{token}", Needs::Nothing, report)
            .summary(
                TAG,
                "Reports the result of an HTTP job whose target answered 202. The token in the path replaces a key.",
            )
            .status(200, "The server stored the result."),
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
                .unwrap_or_else(|| "the target reported a failure".to_owned()),
            retryable: reported.retryable.unwrap_or(true),
        },
    };
    match complete(&call.app.client, call.param("token"), &completion).await? {
        Completed::Taken(id) | Completed::Repeated(id) => Ok(Reply::ok(CompletedJob { id })),
        Completed::TooLate(_) => {
            let detail =
                "another result was already reported with this token, or the token has expired";
            Err(Problem::conflict("completion_too_late", detail))
        }
        Completed::Unknown => Err(Problem::not_found("HTTP job with this token")),
    }
}
