//! A running attempt, as its handler sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::info;
use windlass_core::{Invalid, Job, LOG_LINE_CHARS_MAX, LOG_LINES_MAX, Timestamp};
use windlass_store::{AttemptId, StoreError};

use crate::attempt_end::AttemptDetail;
use crate::engine::Engine;
use crate::lingering_handlers::Alive;
use crate::progress;
use crate::slots::Slot;

/// What an attempt tells of its progress may have so many bytes, as JSON.
pub const PROGRESS_BYTES_MAX: usize = 64 * 1024;

/// The store has this long to remove the progress of an attempt; otherwise it expires.
const FORGET_WITHIN: Duration = Duration::from_secs(5);

/// Why a handler should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody called the job off.
    Cancelled,
    /// The attempt takes longer than its timeout.
    TimedOut,
    /// Another worker may have the job: whatever this one does is not counted any more.
    LeaseLost,
    /// The worker shuts down and has given the job back.
    Shutdown,
}

/// Tells a handler to stop.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    token: CancellationToken,
    reason: OnceLock<StopReason>,
    /// How many wait for it.
    awaited: AtomicUsize,
}

impl Cancellation {
    /// Why the handler should stop, if it should.
    pub fn reason(&self) -> Option<StopReason> {
        self.0.reason.get().copied()
    }

    /// Ends when the handler should stop. In a drain, a handler that waits for it has nothing else to do, and time passes.
    pub async fn wait(&self) -> StopReason {
        let _awaited = Awaited::new(&self.0.awaited);
        self.wait_beside_work().await
    }

    /// The same for a handler that is at work meanwhile, as with a request to somebody else: in a drain no time passes for it.
    pub async fn wait_beside_work(&self) -> StopReason {
        self.0.token.cancelled().await;
        self.reason().unwrap_or(StopReason::Cancelled)
    }

    /// Whether somebody waits for it, who was not told yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.reason().is_none() && self.0.awaited.load(Ordering::SeqCst) > 0
    }

    /// Whether somebody who waits for it was told, and has not gone on yet.
    pub(crate) fn is_waking(&self) -> bool {
        self.reason().is_some() && self.0.awaited.load(Ordering::SeqCst) > 0
    }

    /// Fires it; whether that is news. The first reason stays.
    pub(crate) fn fire(&self, reason: StopReason) -> bool {
        let first = self.0.reason.set(reason).is_ok();
        self.0.token.cancel();
        first
    }
}

/// Counts one who waits.
struct Awaited<'a>(&'a AtomicUsize);

impl<'a> Awaited<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Awaited(count)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What became of a report of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Everybody sees it.
    Told,
    /// The attempt is over, and its lease lost. Nothing changed.
    LeaseLost,
}

/// Why progress could not be told.
#[derive(Debug, thiserror::Error)]
pub enum ProgressError {
    /// It breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One attempt of a job while it runs.
pub struct RunningAttempt {
    job: Job,
    /// When its handler started, by the time that has passed.
    begun: Duration,
    /// When its timeout is over, by the time that has passed.
    ends_at: Option<Duration>,
    engine: Arc<Engine>,
    stop: Cancellation,
    notes: Mutex<Notes>,
    slot: Mutex<Option<Arc<Slot>>>,
    alive: Mutex<Option<Arc<Alive>>>,
}

/// Something that a handler keeps with its attempt.
enum KeptNote {
    /// As it is.
    Value(Value),
    /// As it stands when the attempt ends.
    AtTheEnd(Box<dyn Fn() -> Value + Send + Sync>),
}

/// What a handler left beside its outcome.
#[derive(Default)]
struct Notes {
    lines: Vec<(Timestamp, String)>,
    dropped: usize,
    progress: Option<Value>,
    kept: BTreeMap<String, KeptNote>,
    /// The version of the document that says so.
    progress_version: Option<u64>,
}

impl RunningAttempt {
    pub(crate) fn new(
        job: Job,
        ends_at: Option<Duration>,
        engine: Arc<Engine>,
        slot: Option<Slot>,
    ) -> Self {
        let alive = Alive::new(job.id, Arc::clone(engine.lingering()));
        RunningAttempt {
            alive: Mutex::new(Some(Arc::new(alive))),
            job,
            begun: engine.clock().elapsed(),
            ends_at,
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

    /// Which attempt of which job.
    pub fn id(&self) -> AttemptId {
        AttemptId {
            job: self.job.id,
            attempt: self.job.attempt,
        }
    }

    /// When its timeout is over, by the time that has passed on the engine's clock.
    pub(crate) fn ends_at(&self) -> Option<Duration> {
        self.ends_at
    }

    /// How long it has run.
    pub(crate) fn ran(&self) -> Duration {
        self.engine.clock().elapsed().saturating_sub(self.begun)
    }

    /// How long it may still take; none without a timeout.
    pub fn time_left(&self) -> Option<Duration> {
        Some(self.ends_at?.saturating_sub(self.engine.clock().elapsed()))
    }

    /// What everything in this process shares.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Tells the handler to stop.
    pub fn stop(&self) -> &Cancellation {
        &self.stop
    }

    /// Keeps a line with the attempt: a bounded number of them, each of bounded length.
    pub fn log(&self, line: &str) {
        let at = self.engine.now();
        let mut notes = self.notes();
        if notes.lines.len() >= LOG_LINES_MAX {
            notes.dropped += 1;
            return;
        }
        let line = line.chars().take(LOG_LINE_CHARS_MAX).collect();
        notes.lines.push((at, line));
    }

    /// Tells how far the attempt is: visible at once, and kept with the attempt.
    ///
    /// An attempt that lost its lease tells nothing any more, and never overwrites what a later one told.
    pub async fn progress(&self, value: Value) -> Result<Progress, ProgressError> {
        let bytes = value.to_string().len();
        if bytes > PROGRESS_BYTES_MAX {
            let rule = format!("must be at most {PROGRESS_BYTES_MAX} bytes of JSON, got {bytes}");
            return Err(Invalid::new("progress", rule).into());
        }
        // No error means that the lease is lost.
        let may = |job: Option<&Job>| -> Result<(), Option<StoreError>> {
            match job.is_some_and(|job| self.is_running(job)) {
                true => Ok(()),
                false => Err(None),
            }
        };
        let busy = || {
            let why = "others write the progress of this job at the same time";
            Some(StoreError::Unavailable(why.into()))
        };
        match progress::write(&self.engine, self.id(), &value, may, busy).await {
            Ok(version) => {
                let mut notes = self.notes();
                notes.progress = Some(value);
                notes.progress_version = Some(version);
                Ok(Progress::Told)
            }
            Err(None) => Ok(Progress::LeaseLost),
            Err(Some(error)) => Err(error.into()),
        }
    }

    /// Whether this is the running attempt of its job, as far as this process knows.
    fn is_running(&self, job: &Job) -> bool {
        let lost = self.stop.reason() == Some(StopReason::LeaseLost);
        !lost && job.lease().is_some() && job.attempt == self.job.attempt
    }

    /// Removes what this attempt told of its progress, unless another has told something since.
    pub(crate) async fn forget_progress(&self) {
        let Some(version) = self.notes().progress_version else {
            return;
        };
        let job = self.job.id;
        let removed = progress::remove(&self.engine, job, version);
        let removed = tokio::time::timeout(FORGET_WITHIN, removed).await;
        let error = match removed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        info!(job.id = %job, error, "the progress of a job stays until it expires");
    }

    /// Keeps something with the attempt under a name of its own; the last one counts.
    pub fn keep(&self, name: &str, value: Value) {
        let kept = KeptNote::Value(value);
        self.notes().kept.insert(name.to_owned(), kept);
    }

    /// Keeps something under a name as it stands when the attempt ends, also when that is for its timeout.
    pub fn keep_at_the_end(&self, name: &str, value: impl Fn() -> Value + Send + Sync + 'static) {
        let kept = KeptNote::AtTheEnd(Box::new(value));
        self.notes().kept.insert(name.to_owned(), kept);
    }

    /// Keeps the slot of the attempt taken as long as this is held: work that outlives the handler is work all the same.
    pub fn hold_slot(&self) -> impl Send + 'static {
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        (slot.clone(), alive.clone())
    }

    /// The attempt has ended while its handler still runs: until that is gone, this process does not claim the job.
    pub(crate) fn linger(&self) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.iter().for_each(|alive| alive.end());
    }

    /// The handler is gone; work that it left behind lingers.
    pub(crate) fn leave(&self) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(alive) = alive.take()
            && Arc::strong_count(&alive) > 1
        {
            alive.end();
        }
    }

    pub(crate) fn take_slot(&self) -> Option<Arc<Slot>> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }

    /// What goes into the row of history next to the outcome.
    pub(crate) fn detail(&self) -> AttemptDetail {
        let notes = self.notes();
        let read = |(name, kept): (&String, &KeptNote)| match kept {
            KeptNote::Value(value) => (name.clone(), value.clone()),
            KeptNote::AtTheEnd(value) => (name.clone(), value()),
        };
        AttemptDetail {
            lines: notes.lines.clone(),
            lines_dropped: notes.dropped,
            progress: notes.progress.clone(),
            kept: notes.kept.iter().map(read).collect(),
        }
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RunningAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunningAttempt({} {:?})", self.job.kind, self.id())
    }
}
