//! Jobs: create, look, change.

mod bulk;
mod bulk_answer;
mod change;
mod create;
mod form;
mod list;
mod look;
mod why;

use axum::http::Method;
use windlass_api::schema::{Field, Schema, filter_params};

pub(crate) use bulk_answer::CompactBulk;
pub(super) use change::check_payload;
pub(super) use list::{
    PassRequest, allow, answer as answer_page, filter_of, pass, pass_answer, pass_request,
};

use super::Route;
use crate::access::Scope;

const TAG: &str = "jobs";

pub(super) fn page_params() -> Vec<Field> {
    vec![
        Field::maybe("limit", Schema::integer(1, 1000)),
        Field::maybe(
            "cursor",
            Schema::text().about("`next_cursor` of the page before."),
        ),
    ]
}

/// What a list tells beside its jobs, of how far it got.
pub(super) fn scan_fields() -> Vec<Field> {
    vec![
        Field::maybe(
            "scanned",
            Schema::count().about("How many jobs a search looked at."),
        ),
        Field::maybe("scanned_until", Schema::instant().or_null()),
    ]
}

pub(super) fn routes() -> Vec<Route> {
    let job = || Schema::named("Job");
    let mut list_params = page_params();
    list_params.extend(filter_params());
    vec![
        Route::new(Method::POST, "/api/v1/jobs", Scope::Enqueue, create::create)
            .says(TAG, "Creates a job; or, by the scheduler form, a schedule of HTTP jobs.")
            .takes("NewJobOrForm")
            .answers(
                201,
                "It is stored.",
                Schema::either(vec![Schema::named("CreatedJob"), Schema::named("FormView")]),
            )
            .answers(
                200,
                "Its unique key is taken: the job that was there first; only its id for a key that may not read.",
                Schema::either(vec![Schema::named("CreatedJob"), Schema::named("Receipt")]),
            )
            .idempotent(),
        Route::new(
            Method::POST,
            "/api/v1/jobs/bulk",
            Scope::Enqueue,
            bulk::create,
        )
        .says(
            TAG,
            "Creates up to 10,000 jobs: all or none, or each for itself.",
        )
        .takes("Bulk")
        .many()
        .answers(
            200,
            "What became of each, in order.",
            Schema::named("BulkAnswer"),
        )
        .idempotent(),
        Route::new(Method::GET, "/api/v1/jobs", Scope::Read, list::list)
            .says(TAG, "Lists jobs, newest first.")
            .params(list_params)
            .answers(200, "A page.", Schema::page(job(), scan_fields())),
        Route::new(
            Method::POST,
            "/api/v1/jobs/run-now",
            Scope::Operate,
            list::run_now,
        )
        .says(
            TAG,
            "Makes waiting retries of a filter, or jobs by their ids, due now, one pass of them.",
        )
        .takes("RunNowByFilter")
        .answers(200, "How far the pass got.", Schema::named("PassAnswer")),
        Route::new(Method::GET, "/api/v1/jobs/{id}", Scope::Read, look::get)
            .says(TAG, "One job, or a scheduler form over all its occurrences.")
            .answers(
                200,
                "The job.",
                Schema::either(vec![job(), Schema::named("FormView")]),
            ),
        Route::new(
            Method::GET,
            "/api/v1/jobs/{id}/schedule",
            Scope::Read,
            form::schedule,
        )
        .says(TAG, "When a scheduler form runs.")
        .answers(200, "The schedule.", Schema::named("FormSchedule")),
        Route::new(
            Method::PATCH,
            "/api/v1/jobs/{id}",
            Scope::Operate,
            change::edit,
        )
        .says(
            TAG,
            "Changes a waiting job: payload, priority, time or queue.",
        )
        .takes("Edit")
        .answers(200, "The job.", job()),
        Route::new(
            Method::GET,
            "/api/v1/jobs/{id}/replaced-payloads/{sha256}",
            Scope::ReadPayload,
            change::replaced,
        )
        .says(
            TAG,
            "The payload that an edit or a revival replaced, by the hash that the audit log has; kept for a limited time.",
        )
        .answers(200, "The payload.", Schema::named("ReplacedPayload")),
        Route::new(
            Method::DELETE,
            "/api/v1/jobs/{id}",
            Scope::Operate,
            change::delete,
        )
        .says(TAG, "Removes a job that is over, with its history.")
        .answers_nothing(),
        Route::new(
            Method::GET,
            "/api/v1/jobs/{id}/history",
            Scope::Read,
            look::history,
        )
        .says(
            TAG,
            "The ended attempts of a job, newest first; of a scheduler form, those of all its occurrences.",
        )
        .params([
            Field::maybe("limit", Schema::integer(1, 1000)),
            Field::maybe("status", Schema::word(&["SUCCESS", "FAILED"])),
        ])
        .answers(
            200,
            "The attempts.",
            Schema::page(
                Schema::either(vec![Schema::named("Attempt"), Schema::named("FormAttempt")]),
                vec![],
            ),
        ),
        Route::new(Method::GET, "/api/v1/jobs/{id}/why", Scope::Read, why::why)
            .says(TAG, "Why a job is not running.")
            .answers(
                200,
                "The reasons, the one to look at first in front.",
                Schema::named("Why"),
            ),
        Route::new(
            Method::GET,
            "/api/v1/jobs/{id}/wait",
            Scope::Read,
            look::wait,
        )
        .says(
            TAG,
            "Waits until a job is over, and answers it with its result.",
        )
        .params([
            Field::maybe("timeout", Schema::duration()),
            Field::maybe("timeout_ms", Schema::integer(0, u32::MAX.into())),
        ])
        .answers(200, "It is over.", job())
        .answers(202, "It is not over yet: ask again.", job()),
        Route::new(
            Method::POST,
            "/api/v1/jobs/{id}/cancel",
            Scope::Operate,
            change::cancel,
        )
        .says(
            TAG,
            "Calls a job off: a waiting one ends, a running one is asked to stop.",
        )
        .answers(200, "The job.", job()),
        Route::new(
            Method::POST,
            "/api/v1/jobs/{id}/revive",
            Scope::Operate,
            change::revive,
        )
        .says(TAG, "Runs a dead or cancelled job again.")
        .may_take("Revival")
        .answers(200, "The job.", job()),
        Route::new(
            Method::POST,
            "/api/v1/jobs/{id}/run-now",
            Scope::Operate,
            change::run_now,
        )
        .says(TAG, "Makes a waiting job due now; its failures stay.")
        .answers(200, "The job.", job()),
        Route::new(
            Method::POST,
            "/api/v1/jobs/{id}/resolve",
            Scope::Operate,
            change::resolve,
        )
        .says(TAG, "Says of a lost at-most-once job that it did succeed.")
        .answers(200, "The job.", job()),
    ]
}
