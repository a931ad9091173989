//! Workers in any language: claim, renew, settle, and be told to stop.

mod attempts;
mod claim;
mod registry;

use axum::http::Method;
use windlass_api::schema::{Field, Schema};
use windlass_core::WorkerName;
use windlass_engine::remote::{RemoteWorker, Signal};

use super::Route;
use super::jobs::page_params;
use crate::access::Scope;
use crate::call::Call;
use crate::problem::Problem;

const TAG: &str = "workers";

pub(super) fn routes() -> Vec<Route> {
    let worker = || Schema::named("Worker");
    let differences = || {
        let sentences = Schema::list(Schema::text());
        Field::always("differences", sentences.about("One sentence each."))
    };
    vec![
        Route::new(Method::POST, "/api/v1/claim", Scope::Work, claim::claim)
            .says(
                TAG,
                "Claims ready jobs, each under a lease; waits for some if it is asked to.",
            )
            .may_take("Claim")
            .ends_with_client()
            .answers(
                200,
                "The jobs, with their payloads.",
                Schema::named("ClaimAnswer"),
            ),
        Route::new(Method::POST, "/api/v1/settle", Scope::Work, attempts::settle)
            .says(TAG, "Tells how attempts ended.")
            .takes("Outcomes")
            .many()
            .answers(
                200,
                "What became of each, in order.",
                Schema::named("SettleAnswer"),
            ),
        Route::new(Method::POST, "/api/v1/renew", Scope::Work, attempts::renew)
            .says(TAG, "Prolongs leases, and is a sign of life.")
            .takes("Renewal")
            .many()
            .answers(
                200,
                "What became of each, in order.",
                Schema::named("RenewAnswer"),
            ),
        Route::new(
            Method::POST,
            "/api/v1/progress",
            Scope::Work,
            attempts::progress,
        )
        .says(TAG, "Tells how far a running attempt is.")
        .takes("Progress")
        .answers_nothing(),
        Route::new(
            Method::POST,
            "/api/v1/workers",
            Scope::Work,
            registry::register,
        )
        .says(
            TAG,
            "Registers a worker; a signal to one of that name is forgotten.",
        )
        .takes("NewWorker")
        .answers(201, "The worker.", worker()),
        Route::new(Method::GET, "/api/v1/workers", Scope::Read, registry::list)
            .says(
                TAG,
                "Lists workers and nodes with the age of their heartbeat, and configuration differences between servers.",
            )
            .params(page_params())
            .answers(
                200,
                "A page of them, by name.",
                Schema::page(worker(), vec![differences()]),
            ),
        Route::new(
            Method::DELETE,
            "/api/v1/workers/{name}",
            Scope::Work,
            registry::remove,
        )
        .says(TAG, "Forgets a worker that has ended.")
        .answers_nothing(),
        Route::new(
            Method::POST,
            "/api/v1/workers/{name}/quiet",
            Scope::Operate,
            registry::quiet,
        )
        .says(TAG, "Tells a worker to claim nothing more.")
        .answers(200, "The worker.", worker()),
        Route::new(
            Method::POST,
            "/api/v1/workers/{name}/stop",
            Scope::Operate,
            registry::stop,
        )
        .says(TAG, "Tells a worker to finish what it has and end.")
        .answers(200, "The worker.", worker()),
        Route::new(
            Method::POST,
            "/api/v1/workers/{name}/resume",
            Scope::Operate,
            registry::resume,
        )
        .says(TAG, "Takes a signal back.")
        .answers(200, "The worker.", worker()),
    ]
}

/// The worker that a request names, or the one that its key stands for.
fn worker_of(call: &Call, named: Option<WorkerName>) -> Result<RemoteWorker, Problem> {
    match named {
        Some(name) => Ok(RemoteWorker::Named(name)),
        None => {
            let name = WorkerName::new(&format!("key {}", call.caller.id))?;
            Ok(RemoteWorker::Anonymous(name))
        }
    }
}

fn signal_name(signal: Option<Signal>) -> Option<&'static str> {
    signal.map(Signal::name)
}
