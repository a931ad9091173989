//! Jobs: create, read and change them.

mod bulk;
mod bulk_answer;
mod change;
mod create;
mod export;
mod form;
mod list;
mod log;
mod read;
mod run_now;
mod why;

pub(crate) use bulk_answer::CompactBulk;
pub(super) use create::request_problems;
pub(super) use list::{allow, answer as answer_page};

use super::Route;
use crate::access::Scope;

const TAG: &str = "jobs";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/jobs", Scope::Enqueue, create::create)
            .summary(
                TAG,
                "Creates a job. A scheduler form creates a schedule of HTTP jobs instead.",
            )
            .status(201, "The job or schedule was created.")
            .status(
                200,
                "The unique key is taken. Returns the existing job, or only its id if the key lacks the scope `read`.",
            )
            .idempotent(),
        Route::post("/api/v1/jobs/bulk", Scope::Enqueue, bulk::create)
            .summary(
                TAG,
                "Creates up to 10,000 jobs: either all or none, or each independently.",
            )
            .bulk_body()
            .status(200, "The result of each job, in the order of the request.")
            .idempotent(),
        Route::get("/api/v1/jobs", Scope::Read, list::list)
            .summary(
                TAG,
                "Lists jobs, the newest first, or the one that finished last first.",
            )
            .status(200, "A page of jobs."),
        Route::get("/api/v1/jobs/export", Scope::Read, export::export)
            .summary(
                TAG,
                "Streams all jobs that match a filter, newest first, as NDJSON or CSV. The last line of NDJSON says that the export is complete. If it is not, the server breaks the connection.",
            )
            .content_type("application/x-ndjson")
            .or_text("text/csv")
            .status(200, "The jobs."),
        Route::post("/api/v1/jobs/run-now", Scope::Operate, run_now::run_now)
            .summary(TAG, "Makes up to 1000 waiting jobs due now, by id.")
            .status(200, "The result of the batch."),
        Route::get("/api/v1/jobs/{id}", Scope::Read, read::get)
            .summary(TAG, "Returns a job or a scheduler form.")
            .status(200, "The job or scheduler form."),
        Route::get("/api/v1/jobs/{id}/schedule", Scope::Read, form::schedule)
            .summary(TAG, "Returns when a scheduler form runs.")
            .status(200, "The schedule."),
        Route::patch("/api/v1/jobs/{id}", Scope::Operate, change::edit)
            .summary(
                TAG,
                "Changes the payload, priority, time or queue of a waiting job.",
            )
            .status(200, "The job."),
        Route::get(
            "/api/v1/jobs/{id}/replaced-payloads/{sha256}",
            Scope::ReadPayload,
            change::replaced,
        )
        .summary(
            TAG,
            "Returns a payload that a change of a job replaced, by its hash in the audit log. The server keeps it for a limited time.",
        )
        .status(200, "The payload."),
        Route::delete("/api/v1/jobs/{id}", Scope::Operate, change::delete)
            .summary(TAG, "Removes a finished job and its history, or a scheduler form and its waiting jobs."),
        Route::get("/api/v1/jobs/{id}/history", Scope::Read, read::history)
            .summary(
                TAG,
                "Lists the attempts of a job that have ended, newest first. For a scheduler form, lists those of all occurrences.",
            )
            .status(200, "The attempts."),
        Route::get("/api/v1/jobs/{id}/logs", Scope::ReadPayload, log::log)
            .summary(
                TAG,
                "Returns lines that an attempt of a job logged, also while it runs. With `wait`, waits for new lines.",
            )
            .status(200, "The lines."),
        Route::get("/api/v1/jobs/{id}/why", Scope::Read, why::why)
            .summary(TAG, "Explains why a job is not running.")
            .status(200, "The reasons, the most important first."),
        Route::get("/api/v1/jobs/{id}/wait", Scope::Read, read::wait)
            .summary(TAG, "Waits until a job has finished, and returns it with its result.")
            .status(200, "The job has finished.")
            .status(202, "The job has not finished yet. Repeat the request."),
        Route::post("/api/v1/jobs/{id}/cancel", Scope::Operate, change::cancel)
            .summary(
                TAG,
                "Cancels a job. A waiting job ends at once; the worker of a running job is asked to stop it.",
            )
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/revive", Scope::Operate, change::revive)
            .summary(TAG, "Revives a dead or cancelled job, so that it runs again.")
            .body_optional()
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/run-now", Scope::Operate, change::run_now)
            .summary(TAG, "Makes a waiting job due now. Its failure count does not change.")
            .status(200, "The job."),
        Route::post("/api/v1/jobs/{id}/resolve", Scope::Operate, change::resolve)
            .summary(TAG, "Marks a lost at-most-once job as succeeded.")
            .status(200, "The job."),
    ]
}
