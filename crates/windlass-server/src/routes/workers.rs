//! Remote workers (claim, renew, settle, register), and signals of operators to all workers.

mod attempts;
mod claim;
mod registry;

use windlass_api::{WorkerSignal, WorkerState as StateWord};
use windlass_core::WorkerName;
use windlass_engine::WorkerState;
use windlass_engine::remote::{RemoteWorker, Signal};

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::problem::Problem;

const TAG: &str = "workers";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/claim", Scope::Work, claim::claim)
            .summary(
                TAG,
                "Claims ready jobs, each under a lease. With `wait`, waits until jobs are ready.",
            )
            .body_optional()
            .cancel_on_disconnect()
            .status(200, "The claimed jobs with their payloads."),
        Route::post("/api/v1/settle", Scope::Work, attempts::settle)
            .summary(TAG, "Settles attempts: reports how they ended.")
            .bulk_body()
            .status(200, "The result of each, in the order of the request."),
        Route::post("/api/v1/renew", Scope::Work, attempts::renew)
            .summary(TAG, "Renews leases, and sends the heartbeat of the worker.")
            .bulk_body()
            .status(200, "The result of each, in the order of the request."),
        Route::post("/api/v1/progress", Scope::Work, attempts::progress)
            .summary(TAG, "Reports the progress of a running attempt, and new lines of its log."),
        Route::post("/api/v1/workers", Scope::Work, registry::register)
            .summary(
                TAG,
                "Registers a worker, and takes back earlier signals to this name.",
            )
            .status(201, "The worker."),
        Route::get("/api/v1/workers", Scope::Read, registry::list)
            .summary(
                TAG,
                "Lists workers and nodes with the age of their last heartbeat, ordered by name, and configuration differences between servers.",
            )
            .status(200, "A page of workers."),
        Route::delete("/api/v1/workers/{name}", Scope::Work, registry::remove)
            .summary(TAG, "Removes a worker that has exited."),
        Route::post("/api/v1/workers/{name}/pause-claims", Scope::Operate, registry::pause_claims)
            .summary(TAG, "Asks a worker to claim no jobs until it is resumed.")
            .status(200, "The worker."),
        Route::post("/api/v1/workers/{name}/stop", Scope::Operate, registry::stop)
            .summary(TAG, "Asks a worker to finish its running jobs and exit.")
            .status(200, "The worker."),
        Route::post("/api/v1/workers/{name}/resume", Scope::Operate, registry::resume)
            .summary(TAG, "Takes back the signal to a worker.")
            .status(200, "The worker."),
    ]
}

/// Returns the worker that a request names, or an anonymous worker named after the key.
fn worker_of(call: &Call, named: Option<WorkerName>) -> Result<RemoteWorker, Problem> {
    match named {
        Some(name) => Ok(RemoteWorker::Named(name)),
        None => {
            let name = WorkerName::new(&format!("key {}", call.caller.id))?;
            Ok(RemoteWorker::Anonymous(name))
        }
    }
}

fn state_word(state: WorkerState) -> StateWord {
    match state {
        WorkerState::Running => StateWord::Running,
        WorkerState::ClaimsPaused => StateWord::ClaimsPaused,
        WorkerState::Stopping => StateWord::Stopping,
    }
}

fn signal_word(signal: Signal) -> WorkerSignal {
    match signal {
        Signal::PauseClaims => WorkerSignal::PauseClaims,
        Signal::Stop => WorkerSignal::Stop,
    }
}
