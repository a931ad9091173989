//! What workers hold, and what became of it.

use serde::Serialize;
use windlass_api::LeaseRef;
use windlass_core::{Job, JobId, Timestamp, WorkerName};

/// What became of one outcome or one lease.
#[derive(Debug, Serialize)]
pub(super) struct Became {
    pub(super) id: JobId,
    pub(super) attempt: u32,
    pub(super) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cancel_requested: Option<bool>,
}

impl Became {
    pub(super) fn new(of: LeaseRef, status: &'static str) -> Self {
        Became {
            id: of.id,
            attempt: of.attempt,
            status,
            state: None,
            run_at: None,
            dead_reason: None,
            failures: None,
            lease_until: None,
            cancel_requested: None,
        }
    }

    pub(super) fn lease_lost(of: LeaseRef) -> Self {
        Became::new(of, "lease_lost")
    }
}

/// Whether a job is the worker's own to tell about; one that does not say who it is, is believed.
pub(super) fn is_of(job: &Job, worker: Option<&WorkerName>) -> bool {
    worker.is_none_or(|worker| job.worker.as_ref() == Some(worker))
}
