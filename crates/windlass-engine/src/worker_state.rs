//! What a worker of this process does after a signal of an operator.
//!
//! Signals are documents in the store, so they reach workers on every node. A follower reads the
//! signal to its worker every 5 s, and at once if this process sent it. The heartbeat reports the
//! new state, so that operators see whether the worker obeyed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{Timestamp, WorkerName};
use windlass_store::{Document, Expected, StoreError};

use crate::engine::Engine;
use crate::failure_lines::FailureLines;
use crate::poison::lock;
use crate::remote::{SIGNALS, Signal, signal_of};
use crate::sweeper::Sweeper;
use crate::watchdog::Pulse;

/// How often a worker reads the signal to it. Shorter than the interval between two heartbeats.
const READ_EVERY: Duration = Duration::from_secs(5);

/// The heartbeat field for the state of a worker.
const STATE: &str = "state";

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// It claims and runs jobs.
    Running,
    /// It claims no jobs until an operator resumes it. Its running jobs continue.
    ClaimsPaused,
    /// It claims no jobs, finishes its running jobs and ends.
    Stopping,
}

impl WorkerState {
    /// The name of the state.
    pub fn name(self) -> &'static str {
        match self {
            WorkerState::Running => "running",
            WorkerState::ClaimsPaused => "claims_paused",
            WorkerState::Stopping => "stopping",
        }
    }

    /// The state that a signal leads to. `None` means that there is no signal, or no longer one. A
    /// worker that is stopping never runs again.
    #[must_use]
    pub fn after(self, signal: Option<Signal>) -> Self {
        match (self, signal) {
            (WorkerState::Stopping, _) | (_, Some(Signal::Stop)) => WorkerState::Stopping,
            (_, Some(Signal::PauseClaims)) => WorkerState::ClaimsPaused,
            (_, None) => WorkerState::Running,
        }
    }

    /// The state that a heartbeat reports. `None` for a node that obeys no signals: a server, or a
    /// worker of an older version.
    pub(crate) fn reported(about: &Value) -> Option<Self> {
        let all = [
            WorkerState::Running,
            WorkerState::ClaimsPaused,
            WorkerState::Stopping,
        ];
        let reported = about.get(STATE)?;
        all.into_iter().find(|state| reported == state.name())
    }

    /// Adds the state to a heartbeat.
    pub(crate) fn report(self, about: &mut serde_json::Map<String, Value>) {
        about.insert(STATE.to_owned(), self.name().into());
    }
}

/// Lets one worker obey the signals to it.
#[derive(Debug)]
pub(crate) struct SignalFollower {
    engine: Arc<Engine>,
    worker: WorkerName,
    state: Arc<watch::Sender<WorkerState>>,
    sweeper: Arc<Sweeper>,
    created_at: Timestamp,
    seen: Mutex<SeenSignal>,
}

/// What the follower knows about the signal document of its worker.
#[derive(Debug, Default)]
struct SeenSignal {
    /// Whether a signal to an earlier worker of the same name was removed, or did not exist.
    is_own: bool,
    version: Option<u64>,
}

impl SignalFollower {
    pub(crate) fn new(
        engine: Arc<Engine>,
        worker: WorkerName,
        state: Arc<watch::Sender<WorkerState>>,
        sweeper: Arc<Sweeper>,
    ) -> Self {
        SignalFollower {
            created_at: engine.now(),
            engine,
            worker,
            state,
            sweeper,
            seen: Mutex::default(),
        }
    }

    /// Reads the signal once and obeys it.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let mut found = store.document(SIGNALS, self.worker.as_str(), now).await?;
        let is_own = lock(&self.seen).is_own;
        if let Some(signal) = found.take_if(|signal| !is_own && signal.updated_at < self.created_at)
        {
            self.remove(signal.version).await?;
        }
        *lock(&self.seen) = SeenSignal {
            is_own: true,
            version: found.as_ref().map(|signal| signal.version),
        };
        self.obey(found.as_ref()).await
    }

    async fn obey(&self, found: Option<&Document>) -> Result<(), StoreError> {
        let signal = found.and_then(signal_of);
        let changed = self.state.send_if_modified(|state| {
            let next = state.after(signal);
            std::mem::replace(state, next) != next
        });
        if !changed {
            return Ok(());
        }
        let state = *self.state.borrow();
        info!(worker = %self.worker, state = state.name(), "obeyed a signal of an operator");
        self.sweeper.send_heartbeat(self.engine.now()).await
    }

    /// Removes the signal that the worker obeyed, because the worker ends.
    pub(crate) async fn finish(&self) -> Result<(), StoreError> {
        let version = lock(&self.seen).version;
        match version {
            Some(version) => self.remove(version).await,
            None => Ok(()),
        }
    }

    /// Removes the signal, unless an operator has replaced it.
    async fn remove(&self, version: u64) -> Result<(), StoreError> {
        let (store, name) = (self.engine.store(), self.worker.as_str());
        let expected = Expected::Version(version);
        store.remove_document(SIGNALS, name, expected).await?;
        Ok(())
    }

    /// Follows the signals until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut failures = FailureLines::default();
        while !stop.is_cancelled() {
            let changed = self.engine.signals_changed().notified();
            pulse.busy(clock.now());
            if let Err(error) = self.pass().await
                && let Some(suppressed) = failures.admit(clock.elapsed())
            {
                warn!(%error, suppressed, "reading the signal to this worker failed; retrying");
            }
            pulse.rest();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = changed => {}
                () = clock.sleep(READ_EVERY) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [WorkerState; 3] = [
        WorkerState::Running,
        WorkerState::ClaimsPaused,
        WorkerState::Stopping,
    ];

    #[test]
    fn a_signal_leads_to_its_state_and_without_one_the_worker_runs() {
        for state in [WorkerState::Running, WorkerState::ClaimsPaused] {
            let paused = state.after(Some(Signal::PauseClaims));
            assert_eq!(paused, WorkerState::ClaimsPaused);
            assert_eq!(state.after(Some(Signal::Stop)), WorkerState::Stopping);
            assert_eq!(state.after(None), WorkerState::Running);
        }
    }

    #[test]
    fn a_stopping_worker_never_runs_again() {
        for signal in [None, Some(Signal::PauseClaims), Some(Signal::Stop)] {
            assert_eq!(WorkerState::Stopping.after(signal), WorkerState::Stopping);
        }
    }

    #[test]
    fn a_heartbeat_reports_the_state_and_an_older_one_reports_none() {
        for state in STATES {
            let mut about = serde_json::Map::new();
            assert_eq!(WorkerState::reported(&about.clone().into()), None);
            state.report(&mut about);
            assert_eq!(WorkerState::reported(&about.into()), Some(state));
        }
    }
}
