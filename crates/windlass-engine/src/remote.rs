//! Remote workers: workers in other processes that claim, renew and report through this one.
//!
//! ```text
//!  claim ──▶ waiting_line: one probes for all ──▶ store_claims ──▶ store ──▶ jobs under leases
//!  renew, progress, settle ──▶ lease: who holds the attempt? ──▶ store ──▶ events
//!  roster: the workers     signals: from operators     attempt_times: how long attempts have run
//! ```
//!
//! The owner of this process passes in what only it knows: whether a caller may still claim and may
//! wait ([`Admission`]), and when waiting must end.
//!
//! Invariant: a report counts only for an attempt that the worker claimed, and only within the
//! timeout of the job.

mod attempt_times;
mod claim;
mod claim_state;
mod lease;
mod progress;
mod renew;
mod roster;
mod settle;
mod signals;
mod store_claims;
mod waiting_line;
mod workers;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::retry::{Cap, Preset, WorkerRetry};
use windlass_core::{Invalid, Kind, QueueName, WorkerName, format_duration};
use windlass_store::StoreError;

pub use crate::logs::ReportedLines;
pub use claim::{Admission, ClaimError, RemoteClaim, RemoteClaimed};
pub use lease::Lost;
pub use progress::{REMOTE_PROGRESS_BYTES_MAX, RemoteProgress};
pub use renew::{RemoteRenewal, RemoteRenewed};
pub use roster::{Roster, WORKERS_MAX, remote_workers};
pub use settle::{RemoteOutcome, RemoteSettled};
pub(crate) use signals::{SIGNALS, signal_of};
pub use signals::{Signal, Signals};
pub use workers::Signalled;

use crate::engine::Engine;
use attempt_times::AttemptTimes;
use claim_state::ClaimState;
use waiting_line::Lines;

/// The limits of remote workers.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// The lease of a request that does not name one. 30 s.
    pub lease: Duration,
    /// The longest lease. 1 h.
    pub lease_max: Duration,
    /// The retry policy for jobs that have no other, and the cap on requested policies. `standard`,
    /// no cap.
    pub retry: WorkerRetry,
    /// Kinds that only a worker gets that names them, because another part of this process runs
    /// them. Empty by default.
    pub reserved: BTreeSet<Kind>,
}

impl Default for RemoteConfig {
    fn default() -> Self {
        RemoteConfig {
            lease: Duration::from_secs(30),
            lease_max: Duration::from_secs(3600),
            retry: WorkerRetry {
                policy: Some(Arc::new(Preset::default().policy())),
                cap: Cap::Unlimited,
            },
            reserved: BTreeSet::new(),
        }
    }
}

/// The remote workers that work through this process.
pub struct Remote {
    engine: Arc<Engine>,
    config: RemoteConfig,
    claim_state: ClaimState,
    attempt_times: AttemptTimes,
    lines: Lines,
    signals: Signals,
    roster: Roster,
}

impl Remote {
    /// Creates the remote side of an engine.
    pub fn new(engine: &Arc<Engine>, config: RemoteConfig) -> Self {
        Remote {
            claim_state: ClaimState::default(),
            attempt_times: AttemptTimes::new(engine.clock()),
            lines: Lines::default(),
            signals: Signals::new(engine),
            roster: Roster::new(engine),
            engine: Arc::clone(engine),
            config,
        }
    }

    /// The directory of remote workers.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The signals of operators to workers.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// The number of claims that wait for jobs.
    pub fn waiting(&self) -> usize {
        self.lines.waiting()
    }

    /// Drops the cached settings of a queue, because they have changed.
    pub fn forget_settings(&self, queue: &QueueName) {
        self.claim_state.forget_settings(queue);
    }

    /// Returns the lease for a request.
    fn lease(&self, requested: Option<Duration>) -> Result<Duration, RemoteError> {
        let (lease, max) = (
            requested.unwrap_or(self.config.lease),
            self.config.lease_max,
        );
        if lease.is_zero() || lease > max {
            let rule = format!(
                "must be longer than 0 s and at most {}",
                format_duration(max)
            );
            return Err(Invalid::new("lease", rule).into());
        }
        Ok(lease)
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("config", &self.config)
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

/// The worker that claims, renews and reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteWorker {
    /// A worker with a name. It is listed and gets signals.
    Named(WorkerName),
    /// A worker without a name. It holds its leases under this generated name.
    Anonymous(WorkerName),
}

impl RemoteWorker {
    /// The name under which the worker holds its leases.
    pub fn name(&self) -> &WorkerName {
        match self {
            RemoteWorker::Named(name) | RemoteWorker::Anonymous(name) => name,
        }
    }

    /// The name under which the worker is listed, if it is.
    fn listed(&self) -> Option<&WorkerName> {
        match self {
            RemoteWorker::Named(name) => Some(name),
            RemoteWorker::Anonymous(_) => None,
        }
    }
}

/// Why a request of a remote worker failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The request breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The worker does not hold the attempt, or no longer.
    #[error("{0}")]
    LeaseLost(Lost),
    /// An earlier claim with the same id named other queues.
    #[error(
        "`claim_id` repeats a claim of other queues; repeat it with the same queues, or use a new id"
    )]
    ClaimIdReused,
    /// The maximum number of workers is reached.
    #[error(
        "there are already {WORKERS_MAX} remote workers, the maximum; remove some, or wait 10 min until inactive ones are removed"
    )]
    TooManyWorkers,
    /// The progress is too large.
    #[error("`progress` must be at most {REMOTE_PROGRESS_BYTES_MAX} bytes, got {bytes}")]
    ProgressTooLarge {
        /// The size of the report, in bytes of JSON.
        bytes: usize,
    },
    /// The last progress report of the job was less than 100 ms ago.
    #[error("a job can report its progress at most 10 times per second; report less often")]
    ProgressTooOften,
    /// Other writers keep changing the progress of this job.
    #[error("other writers keep changing the progress of this job; retry")]
    ProgressBusy,
}
