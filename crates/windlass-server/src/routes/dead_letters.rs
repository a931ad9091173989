//! Dead letters: dead jobs that wait for an operator.

use windlass_api::{DeadFilter, JobPage, JobPosition, ListParams, PageParams};

use super::Route;
use super::jobs::answer_page;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/dead-letters", Scope::Read, list)
            .summary("dead letters", "Lists dead jobs, newest first.")
            .status(200, "A page of jobs."),
    ]
}

async fn list(
    call: Call,
    Params(page): Params<PageParams<JobPosition>>,
    Params(filter): Params<DeadFilter>,
    Params(list): Params<ListParams>,
) -> Result<Reply<JobPage>, Problem> {
    answer_page(&call, page, &filter, list).await
}
