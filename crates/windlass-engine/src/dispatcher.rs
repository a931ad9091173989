//! Runs handlers: starts them, renews their leases in batches, and stops them.
//!
//! Each handler is a task of its own, but has no timer of its own. Timeouts and aborts of all
//! handlers are one sorted set of alarms in the registry, driven by one loop. Renewals have a
//! second loop, so a store that hangs delays no alarm.
//!
//! A handler that should stop gets a signal and `cancel_grace` to return. After that its task is
//! aborted, which drops the handler at its next `await`. A handler that blocks its thread cannot be
//! aborted: it keeps its slot until it returns, but its attempt ends in time.
//!
//! Invariant: an attempt has one outcome, and the first one counts. The result of a handler that
//! returns after its timeout, its release or the loss of its lease is ignored. Its slot stays taken
//! until it has really returned.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, info, info_span, warn};
use windlass_core::{AttemptError, CANCEL_GRACE, Failure, Job, JobId, Report, Timeout, Timestamp};
use windlass_store::{AttemptId, Renewed, SETTLE_MAX, StoreError};

use crate::attempt::{RunningAttempt, StopReason};
use crate::committer::{Committer, is_refusal};
use crate::engine::Engine;
use crate::event::JobRef;
use crate::failure_lines::FailureLines;
use crate::handler::{Handlers, Hooks, Running};
use crate::poison::lock;
use crate::registry::{Alarm, Registry};
use crate::slots::Slot;
use crate::watchdog::Pulse;

/// The time limits of handlers.
#[derive(Debug, Clone)]
pub(crate) struct DispatcherConfig {
    /// The length of a lease. The worker renews it after each third. 30 s.
    pub(crate) lease: Duration,
    /// How long a handler that was asked to stop may take to return. After that, its task is
    /// aborted at its next `await`. 5 s.
    pub(crate) cancel_grace: Duration,
}

impl Default for DispatcherConfig {
    fn default() -> Self {
        DispatcherConfig {
            lease: Duration::from_secs(30),
            cancel_grace: CANCEL_GRACE,
        }
    }
}

/// A failed renewal is retried after a thirtieth of the lease, and after at most this time.
const RENEW_RETRY_MAX: Duration = Duration::from_secs(1);
/// How often the alarm loop runs while no alarm is set.
const IDLE_ALARM_CHECK: Duration = Duration::from_secs(3600);

/// Runs the handlers of one worker.
pub(crate) struct Dispatcher {
    engine: Arc<Engine>,
    config: DispatcherConfig,
    handlers: Handlers,
    hooks: Option<Arc<dyn Hooks>>,
    registry: Arc<Registry>,
    committer: Arc<Committer>,
    renewed_at: Mutex<Option<Timestamp>>,
}

impl Dispatcher {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: DispatcherConfig,
        handlers: Handlers,
        hooks: Option<Arc<dyn Hooks>>,
        registry: Arc<Registry>,
        committer: Arc<Committer>,
    ) -> Self {
        Dispatcher {
            engine,
            config,
            handlers,
            hooks,
            registry,
            committer,
            renewed_at: Mutex::new(None),
        }
    }

    /// Starts the handler of a claimed job.
    pub(crate) fn start(self: &Arc<Self>, job: Job, slot: Slot, now: Timestamp) {
        let times_out_at = match job.timeout {
            Timeout::After(timeout) => Some(self.deadline_in(timeout)),
            Timeout::None => None,
        };
        let named = JobRef::of(&job);
        let handler = self.handlers.get(&job.kind).cloned();
        let engine = Arc::clone(&self.engine);
        let attempt = Arc::new(RunningAttempt::new(job, times_out_at, engine, Some(slot)));
        let attempt_id = attempt.id();
        if !self.registry.add(&attempt) {
            warn!(job.id = %named.id, attempt = named.attempt, "claimed an attempt that already runs in this process; ignored the second claim");
            return;
        }
        let earlier = self.registry.earlier(attempt_id);
        if !earlier.is_empty() {
            // The lease of the earlier attempt is lost, and no renewal has reported it yet.
            info!(job.id = %named.id, attempt = named.attempt, "an earlier handler of the job still runs here; giving the job back");
            earlier.into_iter().for_each(|earlier| self.lose(earlier));
            self.report(attempt_id, Report::Released { started: false });
            return self.returned(&attempt);
        }
        let Some(handler) = handler else {
            // Cannot happen: the fetcher only claims kinds that have a handler.
            warn!(kind = %named.kind, "claimed a job without a handler; giving it back");
            self.report(attempt_id, Report::Released { started: false });
            return self.returned(&attempt);
        };
        self.engine.emit_started(attempt.job(), now);
        let span = info_span!("attempt", job.id = %named.id, job.kind = %named.kind,
            job.queue = %named.queue, job.attempt = named.attempt);
        let dispatcher = Arc::clone(self);
        let task = tokio::spawn(
            async move {
                // Runs even if the task is aborted.
                let returned = ReturnGuard(&dispatcher, Arc::clone(&attempt));
                let hooks = dispatcher.hooks.as_ref();
                let running = warn_if_blocking(&attempt, || {
                    CatchPanic::start(|| {
                        hooks.inspect(|hooks| hooks.before(&attempt));
                        handler.run(Arc::clone(&attempt))
                    })
                });
                let report = WatchedHandler(running, &attempt).await;
                dispatcher.report(attempt_id, report);
                attempt.forget_progress().await;
                drop(returned);
            }
            .instrument(span),
        );
        self.registry.set_task(attempt_id, task.abort_handle());
    }

    /// Commits the outcome of an attempt, unless it already has one.
    fn report(&self, attempt_id: AttemptId, report: Report) {
        let Some(attempt) = self.registry.report(attempt_id) else {
            debug!(job.id = %attempt_id.job, attempt = attempt_id.attempt, "ignored a late result");
            return;
        };
        self.commit(&attempt, report);
    }

    fn commit(&self, attempt: &Arc<RunningAttempt>, report: Report) {
        self.call_after(attempt, &report);
        self.committer.push(Arc::clone(attempt), report);
    }

    /// Calls the `after` hook. If the hook panics, the outcome is committed all the same.
    fn call_after(&self, attempt: &RunningAttempt, report: &Report) {
        let Some(hooks) = &self.hooks else { return };
        let called = AssertUnwindSafe(|| hooks.after(attempt, report));
        if std::panic::catch_unwind(called).is_err() {
            warn!(job.id = %attempt.job().id, "the `after` hook panicked");
        }
    }

    fn returned(&self, attempt: &Arc<RunningAttempt>) {
        // An attempt without an outcome here was aborted: give its job back.
        if let Some(attempt) = self.registry.report(attempt.id()) {
            self.commit(&attempt, Report::Released { started: true });
        }
        let slot = attempt.take_slot();
        attempt.handler_returned();
        self.registry.returned(attempt.id());
        // While the store does not accept outcomes, slots stay taken, so no more jobs are claimed.
        self.committer.park_slot(slot);
    }

    /// Runs the alarms and renewals that are due.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        self.run_due_alarms();
        let now = self.engine.now();
        if self.renews_at(now) <= now {
            self.renew().await?;
        }
        Ok(())
    }

    /// Ends attempts that have timed out, and aborts handlers that did not stop in time.
    fn run_due_alarms(&self) {
        for alarm in self.registry.take_due_alarms(self.engine.clock().elapsed()) {
            match alarm {
                Alarm::Abort(attempt, task) => self.abort_handler(&attempt, &task),
                Alarm::TimedOut(attempt) => {
                    if let Timeout::After(timeout) = attempt.job().timeout {
                        let grace = self.config.cancel_grace;
                        self.report(attempt.id(), Report::TimedOut { timeout, grace });
                    }
                    self.stop(&attempt, StopReason::TimedOut);
                }
            }
        }
    }

    /// Aborts a handler that did not stop in time. If the job was cancelled, this ends the attempt.
    fn abort_handler(&self, attempt: &RunningAttempt, task: &AbortHandle) {
        let (attempt_id, reason) = (attempt.id(), attempt.stop().reason());
        warn!(job.id = %attempt_id.job, attempt = attempt_id.attempt, ?reason, "the handler did not stop in time; aborting it at its next await");
        if reason == Some(StopReason::Cancelled) {
            attempt.mark_lingering();
            self.report(attempt_id, Report::Cancelled);
        }
        task.abort();
    }

    /// Renews all leases of this worker, in batches that each read the clock again.
    ///
    /// A batch that the store refuses does not affect the others. A batch without an answer ends
    /// the pass, so that there is time to retry before the leases expire.
    pub(crate) async fn renew(&self) -> Result<(), StoreError> {
        let started = self.engine.now();
        let mut refused = None;
        for batch in self.registry.leased().chunks(SETTLE_MAX) {
            match self.renew_batch(batch).await {
                Err(error) if is_refusal(&error) => refused = Some(error),
                renewed => renewed?,
            }
        }
        *self.renewed_at() = Some(started);
        refused.map_or(Ok(()), Err)
    }

    async fn renew_batch(&self, batch: &[AttemptId]) -> Result<(), StoreError> {
        let (lease, now) = (self.config.lease, self.engine.now());
        let renewed = tokio::select! {
            biased;
            renewed = self.engine.store().renew(batch, lease, now) => renewed?,
            // Give up early enough to retry before the leases expire.
            () = self.engine.clock().sleep(lease / 6) => {
                let slow = "no answer within a sixth of the lease";
                return Err(StoreError::Unavailable(slow.into()));
            }
        };
        for (attempt_id, answer) in batch.iter().zip(renewed) {
            self.apply_renewal(*attempt_id, answer);
        }
        Ok(())
    }

    fn apply_renewal(&self, attempt_id: AttemptId, answer: Renewed) {
        match answer {
            Renewed::Until {
                cancel_requested: false,
                ..
            } => {}
            Renewed::Until {
                cancel_requested: true,
                ..
            } => {
                if let Some(attempt) = self.registry.get(attempt_id) {
                    self.stop(&attempt, StopReason::Cancelled);
                }
            }
            Renewed::LeaseLost => self.lose(attempt_id),
        }
    }

    /// Ends an attempt that lost its lease. Another worker may have the job, so the handler should
    /// stop, and its result no longer counts.
    fn lose(&self, attempt_id: AttemptId) {
        let Some(attempt) = self.registry.lose(attempt_id) else {
            return; // the attempt had ended, and its outcome has just been settled
        };
        let now = self.engine.now();
        self.engine.job_log().lease_lost(attempt.job(), now);
        self.call_after(&attempt, &Report::Lost);
        self.stop(&attempt, StopReason::LeaseLost);
    }

    /// Asks a handler to stop, and aborts it after the grace period. A handler that was asked
    /// before keeps its earlier deadline.
    fn stop(&self, attempt: &RunningAttempt, reason: StopReason) {
        if reason != StopReason::Cancelled {
            attempt.mark_lingering();
        }
        if attempt.stop().fire(reason) {
            let at = self.deadline_in(self.config.cancel_grace);
            self.registry.abort_at(attempt.id(), at);
        }
    }

    /// The elapsed time of the clock after this much more time.
    fn deadline_in(&self, time: Duration) -> Duration {
        self.engine.clock().elapsed().saturating_add(time)
    }

    /// Asks the handlers of cancelled jobs to stop.
    pub(crate) fn cancel(&self, jobs: &[JobId]) {
        for attempt in self.registry.running(jobs) {
            self.stop(&attempt, StopReason::Cancelled);
        }
    }

    /// Gives back every job that has no outcome yet, and returns how many.
    pub(crate) fn release_all(&self) -> usize {
        let unfinished = self.registry.unreported();
        for attempt in &unfinished {
            self.report(attempt.id(), Report::Released { started: true });
            self.stop(attempt, StopReason::Shutdown);
        }
        unfinished.len()
    }

    /// Asks every handler to stop, and aborts it at its next `await`.
    pub(crate) fn abort_all(&self) {
        for attempt in self.registry.all() {
            attempt.stop().fire(StopReason::Shutdown);
        }
        self.registry.abort_all();
    }

    /// Gives back a claimed job without starting it.
    pub(crate) fn give_back(self: &Arc<Self>, job: Job) {
        let engine = Arc::clone(&self.engine);
        let attempt = Arc::new(RunningAttempt::new(job, None, engine, None));
        if !self.registry.add(&attempt) {
            return; // it is already running, and will end like any other attempt
        }
        self.report(attempt.id(), Report::Released { started: false });
        self.registry.returned(attempt.id());
    }

    /// Runs alarms until `stop`. Separate from the renewals, so that a store that hangs delays no
    /// alarm.
    pub(crate) async fn run_alarms(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            pulse.rest();
            let alarm = self.registry.next_alarm();
            let left = alarm.map(|at| at.saturating_sub(clock.elapsed()));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.registry.alarm_moved_earlier().notified() => continue,
                () = clock.sleep(left.unwrap_or(IDLE_ALARM_CHECK)) => {}
            }
            pulse.busy(clock.now());
            self.run_due_alarms();
        }
    }

    /// Renews leases until `stop`.
    pub(crate) async fn run_renewals(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut retry_at = None;
        let mut failures = FailureLines::default();
        loop {
            pulse.rest();
            let at = retry_at.unwrap_or_else(|| self.renews_at(clock.now()));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock.sleep_until(at) => {}
            }
            pulse.busy(clock.now());
            retry_at = self.renew().await.err().map(|error| {
                if let Some(suppressed) = failures.admit(clock.elapsed()) {
                    warn!(%error, suppressed, "renewing leases failed; retrying");
                }
                let soon = (self.config.lease / 30).min(RENEW_RETRY_MAX);
                clock.now().saturating_add(soon)
            });
        }
    }

    /// When the next renewal is due.
    fn renews_at(&self, now: Timestamp) -> Timestamp {
        let third = self.config.lease / 3;
        self.renewed_at().get_or_insert(now).saturating_add(third)
    }

    fn renewed_at(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        lock(&self.renewed_at)
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("config", &self.config)
            .field("handlers", &self.handlers)
            .finish_non_exhaustive()
    }
}

/// Frees the slot of an attempt when its handler returns, panics or is aborted.
struct ReturnGuard<'a>(&'a Dispatcher, Arc<RunningAttempt>);

impl Drop for ReturnGuard<'_> {
    fn drop(&mut self) {
        self.0.returned(&self.1);
    }
}

/// Turns a panic of a handler into a failure of its attempt.
struct CatchPanic(Running);

impl CatchPanic {
    /// Calls the handler, which may panic before it returns a future.
    fn start(handler: impl FnOnce() -> Running) -> Self {
        let started = std::panic::catch_unwind(AssertUnwindSafe(handler));
        CatchPanic(started.unwrap_or_else(|panic| {
            let report = panicked(&*panic);
            Box::pin(std::future::ready(report))
        }))
    }
}

impl Future for CatchPanic {
    type Output = Report;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Report> {
        let poll = AssertUnwindSafe(|| self.0.as_mut().poll(context));
        std::panic::catch_unwind(poll).unwrap_or_else(|panic| Poll::Ready(panicked(&*panic)))
    }
}

/// A poll of a handler that takes this long blocks everything else on its thread.
const BLOCKING_AFTER: Duration = Duration::from_secs(1);

/// Polls a handler, and logs a warning if it blocks its thread.
fn warn_if_blocking<T>(attempt: &RunningAttempt, turn: impl FnOnce() -> T) -> T {
    let clock = attempt.engine().clock();
    let started = clock.elapsed();
    let done = turn();
    let took = clock.elapsed().saturating_sub(started);
    if took >= BLOCKING_AFTER {
        let (job, seconds) = (attempt.job(), took.as_secs());
        warn!(job.id = %job.id, kind = %job.kind, "the handler blocked its thread for {seconds} s; use `ctx.blocking`");
    }
    done
}

/// A handler whose polls are timed.
struct WatchedHandler<'a>(CatchPanic, &'a RunningAttempt);

impl Future for WatchedHandler<'_> {
    type Output = Report;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Report> {
        let attempt = self.1;
        warn_if_blocking(attempt, || Pin::new(&mut self.0).poll(context))
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Report {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("the handler panicked: {}", text.unwrap_or("no message"));
    Report::Failed(Failure::retryable(AttemptError::new(message)))
}
