//! Jobs: create, look, change.

mod bulk;
mod bulk_answer;
mod change;
mod create;
mod form;
mod list;
mod look;
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
            .says(
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
            .says(
                TAG,
                "Creates up to 10,000 jobs: all or none, or each for itself.",
            )
            .many()
            .status(200, "What happened to each, in order.")
            .idempotent(),
        Route::get("/api/v1/jobs", Scope::Read, list::list)
            .says(TAG, "Lists jobs, newest first.")
            .status(200, "A page."),
        Route::post("/api/v1/jobs/run-now", Scope::Operate, list::run_now)
            .says(
                TAG,
                "Makes waiting retries of a filter, or jobs by their ids, due now, one pass of them.",
            )
            .status(200, "How far the pass got."),
        Route::get("/api/v1/jobs/{id}", Scope::Read, look::get)
            .says(TAG, "One job, or a scheduler form over all its occurrences.")
            .status(200, "The job."),
        Route::get("/api/v1/jobs/{id}/schedule", Scope::Read, form::schedule)
            .says(TAG, "When a scheduler form runs.")
            .status(200, "The schedule."),
        Route::patch("/api/v1/jobs/{id}", Scope::Operate, change::edit)
            .says(
                TAG,
                "Changes a waiting job: payload, priority, time or queue.",
            )
            .status(200, "The job."),
        Route::get(
            "/api/v1/jobs/{id}/replaced-payloads/{sha256}",
            Scope::ReadPayload,
            change::replaced,
        )
        .says(
            TAG,
            "The payload that an edit or a revival replaced, by the hash that the audit log has; kept for a limited time.",
        )
        .status(200, "The payload."),
        Route::delete("/api/v1/jobs/{id}", Scope::Operate, change::delete)
            .says(TAG, "Removes a finished job, with its history."),
        Route::get("/api/v1/jobs/{id}/history", Scope::Read, look::history)
            .says(
                TAG,
                "The ended attempts of a job, newest first; of a scheduler form, those of all its occurrences.",
            )
            .status(200, "The attempts."),
        Route::get("/api/v1/jobs/{id}/why", Scope::Read, why::why)
            .says(TAG, "Why a job is not running.")
            .status(200, "The reasons, the one to look at first in front."),
        Route::get("/api/v1/jobs/{id}/wait", Scope::Read, look::wait)
            .says(TAG, "Waits until a job has finished, and returns it with its result.")
            .status(200, "It has finished.")
            .status(202, "It has not finished yet: ask again."),
        Route::post("/api/v1/jobs/{id}/cancel", Scope::Operate, change::cancel)
            .says(
                TAG,
                "Cancels a job: a waiting one ends, a running one is asked to stop.",
            )
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/revive", Scope::Operate, change::revive)
            .says(TAG, "Runs a dead or cancelled job again.")
            .body_optional()
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/run-now", Scope::Operate, change::run_now)
            .says(TAG, "Makes a waiting job due now; its failures stay.")
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/resolve", Scope::Operate, change::resolve)
            .says(TAG, "Marks a lost at-most-once job as succeeded.")
            .status(200, "The job."),
    ]
}
