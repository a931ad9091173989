//! Workers in other processes, which claim, renew and report through this one.
//!
//! ```text
//!  claim ──▶ line: one waits for all that want the same ──▶ steps ──▶ store ──▶ jobs under leases
//!  renew, progress, settle ──▶ lease: whose attempt is it? ──▶ store ──▶ events
//!  roster: who they are      signals: what operators want of them      times: how long attempts have run
//! ```
//!
//! What the owner of this process alone knows is passed in: whether a caller may still claim and may wait ([`Admission`]), and
//! when waiting is to end. Invariant: what a worker reports counts only for an attempt that it claimed, and never later than
//! the timeout of the job allows.

mod claim;
mod claim_state;
mod lease;
mod waiting_line;
mod progress;
mod renew;
mod roster;
mod settle;
mod signals;
mod store_claims;
mod attempt_times;
mod workers;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::retry::{Cap, Preset, WorkerRetry};
use windlass_core::{Invalid, Kind, QueueName, WorkerName, format_duration};
use windlass_store::StoreError;

pub use claim::{Admission, ClaimError, RemoteClaim, RemoteClaimed};
pub use lease::Lost;
pub use progress::REMOTE_PROGRESS_BYTES_MAX;
pub use renew::{RemoteRenewal, RemoteRenewed};
pub use roster::{Roster, WORKERS_MAX};
pub use settle::{RemoteOutcome, RemoteSettled};
pub use signals::{Signal, Signals};

use crate::engine::Engine;
use claim_state::Claims;
use waiting_line::Lines;
use attempt_times::AttemptTimes;

/// What remote workers are held to.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// The lease of a claim or a renewal that names none. 30 s.
    pub lease: Duration,
    /// The longest lease. 1 h.
    pub lease_max: Duration,
    /// The policy of jobs that have no other, and the cap on what they ask for. `standard`, no cap.
    pub retry: WorkerRetry,
    /// Kinds that only a worker gets that names them: another part of this process runs them. None.
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

/// The workers in other processes that work through this one.
pub struct Remote {
    engine: Arc<Engine>,
    config: RemoteConfig,
    claims: Claims,
    attempts: AttemptTimes,
    lines: Lines,
    signals: Signals,
    roster: Roster,
}

impl Remote {
    /// Remote workers of an engine.
    pub fn new(engine: &Arc<Engine>, config: RemoteConfig) -> Self {
        Remote {
            claims: Claims::default(),
            attempts: AttemptTimes::new(engine.clock()),
            lines: Lines::default(),
            signals: Signals::new(engine),
            roster: Roster::new(engine),
            engine: Arc::clone(engine),
            config,
        }
    }

    /// Who the workers are.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// What operators want of workers.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// How many claims wait for jobs.
    pub fn waiting(&self) -> usize {
        self.lines.waiting()
    }

    /// Reads what is set about a queue again before the next claim: it has changed.
    pub fn forget_settings(&self, queue: &QueueName) {
        self.claims.forget_settings(queue);
    }

    /// The lease that a worker gets who asks for this one.
    fn lease(&self, asked: Option<Duration>) -> Result<Duration, RemoteError> {
        let (lease, most) = (asked.unwrap_or(self.config.lease), self.config.lease_max);
        if lease.is_zero() || lease > most {
            let rule = format!(
                "must be longer than nothing and at most {}",
                format_duration(most)
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

/// Who claims, renews and reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteWorker {
    /// One that gave its name: it is listed, and gets signals.
    Named(WorkerName),
    /// One that gave none. This is the name under which it holds its leases.
    Anonymous(WorkerName),
}

impl RemoteWorker {
    /// The name under which it holds its leases.
    pub fn name(&self) -> &WorkerName {
        match self {
            RemoteWorker::Named(name) | RemoteWorker::Anonymous(name) => name,
        }
    }

    /// The name under which it is listed.
    fn listed(&self) -> Option<&WorkerName> {
        match self {
            RemoteWorker::Named(name) => Some(name),
            RemoteWorker::Anonymous(_) => None,
        }
    }
}

/// Why a remote worker did not get what it asked for.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// What it asked for breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The attempt is not the worker's, or not any longer.
    #[error("{0}")]
    LeaseLost(Lost),
    /// There are as many workers as there may be.
    #[error(
        "there are {WORKERS_MAX} workers, the most there may be: remove some, or wait until silent ones are forgotten after 10 min"
    )]
    TooManyWorkers,
    /// The progress is too large.
    #[error("`progress` must be at most {REMOTE_PROGRESS_BYTES_MAX} bytes, got {bytes}")]
    ProgressTooLarge {
        /// How large it is, as JSON.
        bytes: usize,
    },
    /// The job reported its progress a moment ago.
    #[error("a job reports its progress at most ten times a second")]
    ProgressTooOften,
    /// Others report the progress of this job at the same time.
    #[error("others report the progress of this job at the same time")]
    ProgressBusy,
}
