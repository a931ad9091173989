//! A running attempt, as its handler sees it: the job, its time limits, its log and its progress.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::info;
use windlass_core::{AttemptLog, Invalid, Job};
use windlass_store::{AttemptId, StoreError};

use crate::attempt_end::AttemptDetail;
use crate::engine::Engine;
use crate::lingering_handlers::AttemptWork;
use crate::logs;
use crate::poison::lock;
use crate::progress;
use crate::slots::Slot;

/// The largest progress report of an attempt, in bytes of JSON.
pub const PROGRESS_BYTES_MAX: usize = 64 * 1024;

/// How long to wait for the store to remove the progress of an attempt. A report that stays behind
/// expires.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a handler should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Someone cancelled the job.
    Cancelled,
    /// The attempt ran longer than its timeout.
    TimedOut,
    /// The attempt lost its lease. Another worker may run the job, and the outcome of this attempt
    /// no longer counts.
    LeaseLost,
    /// The worker is shutting down and has given the job back.
    Shutdown,
}

/// The signal that asks a handler to stop.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<CancellationState>);

#[derive(Debug, Default)]
struct CancellationState {
    token: CancellationToken,
    reason: OnceLock<StopReason>,
    /// How many handlers are waiting for the signal.
    waiters: AtomicUsize,
}

impl Cancellation {
    /// Returns why the handler should stop, or `None` if it should go on.
    pub fn reason(&self) -> Option<StopReason> {
        self.0.reason.get().copied()
    }

    /// Waits until the handler should stop.
    ///
    /// In virtual time (a drain), a handler that waits here counts as idle, so time passes.
    pub async fn wait(&self) -> StopReason {
        let _waiter = WaiterGuard::new(&self.0.waiters);
        self.wait_while_working().await
    }

    /// Like [`wait`](Self::wait), for a handler that works at the same time, for example on an HTTP
    /// request. In virtual time, no time passes while it works.
    pub async fn wait_while_working(&self) -> StopReason {
        self.0.token.cancelled().await;
        self.reason().unwrap_or(StopReason::Cancelled)
    }

    /// Whether a handler is waiting for a signal that has not come yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.reason().is_none() && self.0.waiters.load(Ordering::SeqCst) > 0
    }

    /// Whether the signal was sent and a waiting handler has not reacted to it yet.
    pub(crate) fn is_waking(&self) -> bool {
        self.reason().is_some() && self.0.waiters.load(Ordering::SeqCst) > 0
    }

    /// Asks the handler to stop. Returns false if it was asked before: the first reason stays.
    pub(crate) fn fire(&self, reason: StopReason) -> bool {
        let first = self.0.reason.set(reason).is_ok();
        self.0.token.cancel();
        first
    }
}

/// Counts one waiting handler for as long as it exists.
struct WaiterGuard<'a>(&'a AtomicUsize);

impl<'a> WaiterGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        WaiterGuard(count)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The result of a progress report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The progress was stored and is visible to everyone.
    Recorded,
    /// The attempt no longer holds its lease. Nothing changed.
    LeaseLost,
}

/// Why a progress report failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgressError {
    /// The report breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One attempt of a job while it runs.
pub struct RunningAttempt {
    job: Job,
    /// The elapsed time of the clock when the handler started.
    started: Duration,
    /// The elapsed time of the clock at which the attempt times out.
    times_out_at: Option<Duration>,
    engine: Arc<Engine>,
    stop: Cancellation,
    notes: Mutex<AttemptNotes>,
    slot: Mutex<Option<Arc<Slot>>>,
    work: Mutex<Option<Arc<AttemptWork>>>,
}

/// A value that a handler stores with its attempt.
enum KeptNote {
    /// A fixed value.
    Value(Value),
    /// A value that is computed when the attempt ends.
    AtTheEnd(Box<dyn Fn() -> Value + Send + Sync>),
}

/// What a handler recorded about its attempt, besides the outcome.
#[derive(Default)]
struct AttemptNotes {
    log: AttemptLog,
    log_document: LogDocument,
    progress: Option<Value>,
    kept: BTreeMap<String, KeptNote>,
    /// The version of the progress document that this attempt wrote last.
    progress_version: Option<u64>,
}

/// How much of the log is in the document that others read while the attempt runs.
#[derive(Default)]
struct LogDocument {
    /// The number of the last line that was written.
    last_number: u64,
    /// The elapsed time of the clock when the document was written last.
    written: Option<Duration>,
    /// The attempt is settled: the document is removed and must not be written again.
    is_settled: bool,
}

/// The shortest interval between two writes of a log. It grows with the size of the log, because each
/// write contains all of it.
const LOG_EVERY: Duration = Duration::from_millis(500);
/// The bytes of log that add [`LOG_EVERY`] to the interval.
const LOG_EVERY_BYTES: usize = 8 * 1024;

impl RunningAttempt {
    pub(crate) fn new(
        job: Job,
        times_out_at: Option<Duration>,
        engine: Arc<Engine>,
        slot: Option<Slot>,
    ) -> Self {
        let work = AttemptWork::new(job.id, Arc::clone(engine.lingering()));
        RunningAttempt {
            work: Mutex::new(Some(Arc::new(work))),
            job,
            started: engine.clock().elapsed(),
            times_out_at,
            engine,
            stop: Cancellation::default(),
            notes: Mutex::default(),
            slot: Mutex::new(slot.map(Arc::new)),
        }
    }

    /// The job, as it was claimed.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The job and the number of this attempt.
    pub fn id(&self) -> AttemptId {
        AttemptId {
            job: self.job.id,
            attempt: self.job.attempt,
        }
    }

    /// The elapsed time of the engine's clock at which the attempt times out.
    pub(crate) fn times_out_at(&self) -> Option<Duration> {
        self.times_out_at
    }

    /// How long the attempt has run.
    pub(crate) fn ran(&self) -> Duration {
        self.engine.clock().elapsed().saturating_sub(self.started)
    }

    /// The time left until the timeout, or `None` if the job has no timeout.
    pub fn time_left(&self) -> Option<Duration> {
        Some(
            self.times_out_at?
                .saturating_sub(self.engine.clock().elapsed()),
        )
    }

    /// The engine that runs this attempt.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The signal that asks the handler to stop.
    pub fn stop(&self) -> &Cancellation {
        &self.stop
    }

    /// Adds a text to the log of the attempt, within the limits of [`AttemptLog`].
    ///
    /// Others see the lines within a few seconds. The history keeps them when the attempt ends.
    pub fn log(&self, text: &str) {
        let at = self.engine.now();
        self.notes().log.push(at, text);
    }

    /// Whether the log has new lines and was last written long enough ago.
    pub(crate) fn log_is_due(&self) -> bool {
        let notes = self.notes();
        if notes.log.last_number() == notes.log_document.last_number {
            return false;
        }
        let steps = u32::try_from(notes.log.bytes() / LOG_EVERY_BYTES).unwrap_or(u32::MAX);
        let every = LOG_EVERY.saturating_mul(steps.saturating_add(1));
        let elapsed = self.engine.clock().elapsed();
        let written = notes.log_document.written;
        written.is_none_or(|written| elapsed.saturating_sub(written) >= every)
    }

    /// Writes the log to its document.
    pub(crate) async fn write_log(&self) -> Result<(), StoreError> {
        let Some(log) = self.log_to_write() else {
            return Ok(());
        };
        logs::write(&self.engine, self.id(), &log).await?;
        if self.log_written(log.last_number()) {
            logs::remove(&self.engine, self.id()).await?;
        }
        Ok(())
    }

    /// Returns the log, unless the attempt is settled. Remembers before the write that there is a
    /// document, so that a settle meanwhile knows it.
    fn log_to_write(&self) -> Option<AttemptLog> {
        let mut notes = self.notes();
        if notes.log_document.is_settled {
            return None;
        }
        notes.log_document.written = Some(self.engine.clock().elapsed());
        Some(notes.log.clone())
    }

    /// Remembers which lines the document has. Returns whether the attempt was settled meanwhile.
    fn log_written(&self, last_number: u64) -> bool {
        let document = &mut self.notes().log_document;
        document.last_number = last_number;
        document.is_settled
    }

    /// Ends the writing of the log, because the attempt is settled. Returns whether there is a
    /// document to remove.
    pub(crate) fn settle_log(&self) -> bool {
        let document = &mut self.notes().log_document;
        document.is_settled = true;
        document.written.is_some()
    }

    /// Reports the progress of the attempt. The report is visible at once and stays in the history.
    ///
    /// An attempt that lost its lease stores nothing, so it never overwrites the progress of a
    /// later attempt.
    pub async fn progress(&self, value: Value) -> Result<Progress, ProgressError> {
        let bytes = value.to_string().len();
        if bytes > PROGRESS_BYTES_MAX {
            let rule = format!("must be at most {PROGRESS_BYTES_MAX} bytes of JSON, got {bytes}");
            return Err(Invalid::new("progress", rule).into());
        }
        // `Err(None)` means that the lease is lost.
        let check = |job: Option<&Job>| -> Result<(), Option<StoreError>> {
            if job.is_some_and(|job| self.is_running(job)) {
                Ok(())
            } else {
                Err(None)
            }
        };
        let busy = || {
            let why = "other writers keep changing the progress of this job; retry";
            Some(StoreError::Unavailable(why.into()))
        };
        match progress::write(&self.engine, self.id(), &value, check, busy).await {
            Ok(version) => {
                let mut notes = self.notes();
                notes.progress = Some(value);
                notes.progress_version = Some(version);
                Ok(Progress::Recorded)
            }
            Err(None) => Ok(Progress::LeaseLost),
            Err(Some(error)) => Err(error.into()),
        }
    }

    /// Whether this is still the running attempt of its job, as far as this process knows.
    pub(crate) fn is_running(&self, job: &Job) -> bool {
        let lost = self.stop.reason() == Some(StopReason::LeaseLost);
        !lost && job.lease().is_some() && job.attempt == self.job.attempt
    }

    /// Removes the progress report of this attempt, unless another attempt has written a new one.
    pub(crate) async fn forget_progress(&self) {
        let Some(version) = self.notes().progress_version else {
            return;
        };
        let job = self.job.id;
        let removed = progress::remove(&self.engine, job, version);
        let removed = tokio::time::timeout(REMOVE_TIMEOUT, removed).await;
        let error = match removed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        info!(job.id = %job, error, "removing the progress of a job failed; it expires");
    }

    /// Stores a value with the attempt under `name`. A later value replaces an earlier one.
    pub fn keep(&self, name: &str, value: Value) {
        let kept = KeptNote::Value(value);
        self.notes().kept.insert(name.to_owned(), kept);
    }

    /// Stores a value under `name` that is computed when the attempt ends, even if it times out.
    pub fn keep_at_the_end(&self, name: &str, value: impl Fn() -> Value + Send + Sync + 'static) {
        let kept = KeptNote::AtTheEnd(Box::new(value));
        self.notes().kept.insert(name.to_owned(), kept);
    }

    /// Keeps the slot of the attempt taken until the returned guard is dropped. For work that
    /// continues after the handler has returned.
    pub fn hold_slot(&self) -> impl Send + 'static {
        let slot = lock(&self.slot);
        let work = lock(&self.work);
        (slot.clone(), work.clone())
    }

    /// The attempt has ended, but its handler still runs. Until it returns, this process does not
    /// claim the job again.
    pub(crate) fn mark_lingering(&self) {
        let work = lock(&self.work);
        work.iter().for_each(|work| work.mark_ended());
    }

    /// The handler has returned. Work that it left behind (see [`hold_slot`](Self::hold_slot))
    /// counts as lingering.
    pub(crate) fn handler_returned(&self) {
        let mut work = lock(&self.work);
        if let Some(work) = work.take()
            && Arc::strong_count(&work) > 1
        {
            work.mark_ended();
        }
    }

    pub(crate) fn take_slot(&self) -> Option<Arc<Slot>> {
        let mut slot = lock(&self.slot);
        slot.take()
    }

    /// The part of the history entry that the handler wrote.
    pub(crate) fn detail(&self) -> AttemptDetail {
        let notes = self.notes();
        let read = |(name, kept): (&String, &KeptNote)| match kept {
            KeptNote::Value(value) => (name.clone(), value.clone()),
            KeptNote::AtTheEnd(value) => (name.clone(), value()),
        };
        AttemptDetail {
            log: notes.log.clone(),
            progress: notes.progress.clone(),
            kept: notes.kept.iter().map(read).collect(),
        }
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, AttemptNotes> {
        lock(&self.notes)
    }
}

impl fmt::Debug for RunningAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningAttempt({} {:?})", self.job.kind, self.id())
    }
}
