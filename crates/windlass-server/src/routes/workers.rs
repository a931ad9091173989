//! Workers in any language: they claim, renew and settle, and get signals.

mod attempts;
mod claim;
mod registry;

use windlass_api::WorkerSignal;
use windlass_core::WorkerName;
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
                "Claims ready jobs, each under a lease; waits for some if it is asked to.",
            )
            .body_optional()
            .cancel_on_disconnect()
            .status(200, "The jobs, with their payloads."),
        Route::post("/api/v1/settle", Scope::Work, attempts::settle)
            .summary(TAG, "Reports how attempts ended.")
            .bulk_body()
            .status(200, "What happened to each, in order."),
        Route::post("/api/v1/renew", Scope::Work, attempts::renew)
            .summary(TAG, "Prolongs leases, and is a heartbeat.")
            .bulk_body()
            .status(200, "What happened to each, in order."),
        Route::post("/api/v1/progress", Scope::Work, attempts::progress)
            .summary(TAG, "Reports how far a running attempt is."),
        Route::post("/api/v1/workers", Scope::Work, registry::register)
            .summary(
                TAG,
                "Registers a worker; a signal to one of that name is forgotten.",
            )
            .status(201, "The worker."),
        Route::get("/api/v1/workers", Scope::Read, registry::list)
            .summary(
                TAG,
                "Lists workers and nodes with the age of their heartbeat, and configuration differences between servers.",
            )
            .status(200, "A page of them, by name."),
        Route::delete("/api/v1/workers/{name}", Scope::Work, registry::remove)
            .summary(TAG, "Forgets a worker that has ended."),
        Route::post("/api/v1/workers/{name}/pause-claims", Scope::Operate, registry::pause_claims)
            .summary(TAG, "Asks a worker to claim no jobs until it is resumed.")
            .status(200, "The worker."),
        Route::post("/api/v1/workers/{name}/stop", Scope::Operate, registry::stop)
            .summary(TAG, "Asks a worker to finish what it has and end.")
            .status(200, "The worker."),
        Route::post("/api/v1/workers/{name}/resume", Scope::Operate, registry::resume)
            .summary(TAG, "Takes a signal back.")
            .status(200, "The worker."),
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

fn signal_word(signal: Signal) -> WorkerSignal {
    match signal {
        Signal::PauseClaims => WorkerSignal::PauseClaims,
        Signal::Stop => WorkerSignal::Stop,
    }
}
