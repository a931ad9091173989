//! Stores the log lines of attempts that run in this process, a few times per second at most.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_core::JobId;
use windlass_store::StoreError;

use crate::attempt::RunningAttempt;
use crate::engine::Engine;
use crate::failure_lines::FailureLines;
use crate::logs;
use crate::registry::Registry;
use crate::watchdog::Pulse;

/// How often the writer looks for new lines.
const EVERY: Duration = Duration::from_millis(500);
/// The number of jobs to read at once. Each may be large.
const BATCH: usize = 100;

/// Writes the logs of the running attempts of one worker.
#[derive(Debug)]
pub(crate) struct LogWriter {
    engine: Arc<Engine>,
    registry: Arc<Registry>,
}

impl LogWriter {
    pub(crate) fn new(engine: Arc<Engine>, registry: Arc<Registry>) -> Self {
        LogWriter { engine, registry }
    }

    /// Writes the logs that have new lines, and removes those of settled attempts.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        let mut due = self.registry.unreported();
        due.retain(|attempt| attempt.log_is_due());
        for batch in due.chunks(BATCH) {
            self.write(batch).await?;
        }
        self.engine.remove_settled_logs().await
    }

    async fn write(&self, batch: &[Arc<RunningAttempt>]) -> Result<(), StoreError> {
        let ids: Vec<JobId> = batch.iter().map(|attempt| attempt.job().id).collect();
        let jobs = self.engine.store().get(&ids).await?;
        for (attempt, job) in batch.iter().zip(jobs) {
            if job.is_some_and(|job| attempt.is_running(&job)) {
                attempt.write_log().await?;
            }
        }
        Ok(())
    }

    /// Writes logs until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut failures = FailureLines::default();
        loop {
            pulse.rest();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = clock.sleep(EVERY) => {}
            }
            pulse.busy(clock.now());
            if let Err(error) = self.pass().await
                && let Some(suppressed) = failures.admit(clock.elapsed())
            {
                warn!(%error, suppressed, "writing the logs of running jobs failed; retrying");
            }
        }
        if let Err(error) = self.engine.remove_settled_logs().await {
            warn!(%error, "removing the logs of settled attempts failed; they stay until their jobs are removed");
        }
    }
}

/// The most settled attempts whose documents wait for their removal. The janitor removes further
/// ones with their jobs.
const SETTLED_MAX: usize = 10_000;

impl Engine {
    /// The lines of a settled attempt are in its history entry: its document is no longer needed.
    pub(crate) fn log_settled(&self, attempt: &RunningAttempt) {
        if attempt.settle_log() {
            let mut settled = self.settled_logs();
            if settled.len() < SETTLED_MAX {
                settled.push(attempt.id());
            }
        }
    }

    async fn remove_settled_logs(&self) -> Result<(), StoreError> {
        loop {
            let next = self.settled_logs().last().copied();
            let Some(attempt_id) = next else {
                return Ok(());
            };
            logs::remove(self, attempt_id).await?;
            self.settled_logs().retain(|settled| *settled != attempt_id);
        }
    }
}
