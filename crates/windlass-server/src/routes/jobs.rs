//! Jobs: create, look, change.

mod bulk;
mod bulk_answer;
mod change;
mod create;
mod form;
mod list;
mod read;
mod why;

pub(crate) use bulk_answer::CompactBulk;
pub(super) use change::check_payload;
pub(super) use create::request_problems;
pub(super) use list::{allow, answer as answer_page, found_by, pass, pass_answer, pass_detail};

use super::Route;
use crate::access::Scope;

const TAG: &str = "jobs";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/jobs", Scope::Enqueue, create::create)
            .summary(
                TAG,
                "Creates a job; or, by the scheduler form, a schedule of HTTP jobs.",
            )
            .status(201, "It is stored.")
            .status(
                200,
                "Its unique key is taken: the job that was there first; only its id for a key that may not read.",
            )
            .idempotent(),
        Route::post("/api/v1/jobs/bulk", Scope::Enqueue, bulk::create)
            .summary(
                TAG,
                "Creates up to 10,000 jobs: all or none, or each for itself.",
            )
            .bulk_body()
            .status(200, "What happened to each, in order.")
            .idempotent(),
        Route::get("/api/v1/jobs", Scope::Read, list::list)
            .summary(TAG, "Lists jobs, newest first.")
            .status(200, "A page."),
        Route::post("/api/v1/jobs/run-now", Scope::Operate, list::run_now)
            .summary(
                TAG,
                "Makes waiting retries of a filter, or jobs by their ids, due now, one pass of them.",
            )
            .status(200, "How far the pass got."),
        Route::get("/api/v1/jobs/{id}", Scope::Read, read::get)
            .summary(TAG, "One job, or a scheduler form over all its occurrences.")
            .status(200, "The job."),
        Route::get("/api/v1/jobs/{id}/schedule", Scope::Read, form::schedule)
            .summary(TAG, "When a scheduler form runs.")
            .status(200, "The schedule."),
        Route::patch("/api/v1/jobs/{id}", Scope::Operate, change::edit)
            .summary(
                TAG,
                "Changes a waiting job: payload, priority, time or queue.",
            )
            .status(200, "The job."),
        Route::get(
            "/api/v1/jobs/{id}/replaced-payloads/{sha256}",
            Scope::ReadPayload,
            change::replaced,
        )
        .summary(
            TAG,
            "The payload that an edit or a revival replaced, by the hash that the audit log has; kept for a limited time.",
        )
        .status(200, "The payload."),
        Route::delete("/api/v1/jobs/{id}", Scope::Operate, change::delete)
            .summary(TAG, "Removes a finished job, with its history."),
        Route::get("/api/v1/jobs/{id}/history", Scope::Read, read::history)
            .summary(
                TAG,
                "The ended attempts of a job, newest first; of a scheduler form, those of all its occurrences.",
            )
            .status(200, "The attempts."),
        Route::get("/api/v1/jobs/{id}/why", Scope::Read, why::why)
            .summary(TAG, "Why a job is not running.")
            .status(200, "The reasons, the one to look at first in front."),
        Route::get("/api/v1/jobs/{id}/wait", Scope::Read, read::wait)
            .summary(TAG, "Waits until a job has finished, and returns it with its result.")
            .status(200, "It has finished.")
            .status(202, "It has not finished yet: ask again."),
        Route::post("/api/v1/jobs/{id}/cancel", Scope::Operate, change::cancel)
            .summary(
                TAG,
                "Cancels a job: a waiting one ends, a running one is asked to stop.",
            )
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/revive", Scope::Operate, change::revive)
            .summary(TAG, "Runs a dead or cancelled job again.")
            .body_optional()
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/run-now", Scope::Operate, change::run_now)
            .summary(TAG, "Makes a waiting job due now; its failures stay.")
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/resolve", Scope::Operate, change::resolve)
            .summary(TAG, "Marks a lost at-most-once job as succeeded.")
            .status(200, "The job."),
    ]
}
