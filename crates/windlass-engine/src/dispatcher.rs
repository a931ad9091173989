//! Runs handlers: starts them, renews their leases in batches, and tells them to stop.
//!
//! Invariant: how an attempt ended is told once. What a handler returns after its timeout, its release or the loss of its
//! lease is not told, and its slot stays taken until it really is gone.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, info_span, warn};
use windlass_core::{AttemptError, CANCEL_GRACE, Failure, Job, JobId, Report, Timeout, Timestamp};
use windlass_store::{AttemptId, Renewed, SETTLE_MAX, StoreError};

use crate::attempt::{RunningAttempt, StopReason};
use crate::committer::{Committer, is_refusal};
use crate::engine::Engine;
use crate::event::JobRef;
use crate::handler::{Handlers, Hooks, Running};
use crate::registry::{Alarm, Registry};
use crate::slots::Slot;
use crate::watchdog::Pulse;

/// How handlers are run.
#[derive(Debug, Clone)]
pub(crate) struct DispatcherConfig {
    /// How long a lease lasts; it is renewed every third of it. 30 s.
    pub(crate) lease: Duration,
    /// A handler that was told to stop has so long to return before it is cut off at its next `await`. 5 s.
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

/// A renewal that failed is tried again after a thirtieth of a lease, and so long at most.
const RENEW_AGAIN_MAX: Duration = Duration::from_secs(1);
/// While there is no alarm, it is looked for one so often.
const ALARMS_EVERY: Duration = Duration::from_secs(3600);

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

    /// Starts the handler of a job that was claimed.
    pub(crate) fn start(self: &Arc<Self>, job: Job, slot: Slot, now: Timestamp) {
        let ends_at = match job.timeout {
            Timeout::After(timeout) => Some(self.in_time(timeout)),
            Timeout::None => None,
        };
        let named = JobRef::of(&job);
        let handler = self.handlers.get(&job.kind).cloned();
        let engine = Arc::clone(&self.engine);
        let attempt = Arc::new(RunningAttempt::new(job, ends_at, engine, Some(slot)));
        let of = attempt.id();
        if !self.registry.add(&attempt) {
            warn!(job.id = %named.id, attempt = named.attempt, "claimed an attempt that runs already");
            return;
        }
        let Some(handler) = handler else {
            // Only kinds that have one are asked for.
            warn!(kind = %named.kind, "claimed a job without a handler, giving it back");
            self.report(of, Report::Released { started: false });
            return self.returned(&attempt);
        };
        self.engine.announce_start(&named, now);
        let span = info_span!("attempt", job.id = %named.id, job.kind = %named.kind,
            job.queue = %named.queue, job.attempt = named.attempt);
        let dispatcher = Arc::clone(self);
        let task = tokio::spawn(
            async move {
                // When the task is cut off, this is what still happens.
                let returned = Returned(&dispatcher, Arc::clone(&attempt));
                let hooks = dispatcher.hooks.as_ref();
                let running = watch(&attempt, || {
                    CatchPanic::start(|| {
                        hooks.inspect(|hooks| hooks.before(&attempt));
                        handler.run(Arc::clone(&attempt))
                    })
                });
                let report = Watched(running, &attempt).await;
                dispatcher.report(of, report);
                attempt.forget_progress().await;
                drop(returned);
            }
            .instrument(span),
        );
        self.registry.set_task(of, task.abort_handle());
    }

    /// Hands over how an attempt ended, unless that was told before.
    fn report(&self, of: AttemptId, report: Report) {
        let Some(attempt) = self.registry.report(of) else {
            debug!(job.id = %of.job, attempt = of.attempt, "a late end is not told");
            return;
        };
        self.tell(&attempt, report);
    }

    fn tell(&self, attempt: &Arc<RunningAttempt>, report: Report) {
        self.call_after(attempt, &report);
        self.committer.push(Arc::clone(attempt), report);
    }

    /// A hook that panics must not keep the end of an attempt from being told.
    fn call_after(&self, attempt: &RunningAttempt, report: &Report) {
        let Some(hooks) = &self.hooks else { return };
        let called = AssertUnwindSafe(|| hooks.after(attempt, report));
        if std::panic::catch_unwind(called).is_err() {
            warn!(job.id = %attempt.job().id, "the hook after an attempt panicked");
        }
    }

    fn returned(&self, attempt: &Arc<RunningAttempt>) {
        // Nothing, unless the handler was cut off before anybody knew how it ended: then it is given back.
        if let Some(attempt) = self.registry.report(attempt.id()) {
            self.tell(&attempt, Report::Released { started: true });
        }
        let slot = attempt.take_slot();
        attempt.leave();
        self.registry.returned(attempt.id());
        // While outcomes pile up, as the store does not take them, no further jobs are claimed.
        self.committer.park_slot(slot);
    }

    /// Does what is due: timeouts, handlers that do not stop, renewals.
    pub(crate) async fn pass(&self) -> Result<(), StoreError> {
        self.ring();
        let now = self.engine.now();
        if self.renews_at(now) <= now {
            self.renew().await?;
        }
        Ok(())
    }

    /// Ends attempts whose timeout is over, and cuts off handlers that do not stop.
    fn ring(&self) {
        for alarm in self.registry.ring(self.engine.clock().elapsed()) {
            match alarm {
                Alarm::CutOff(attempt, task) => self.cut(&attempt, &task),
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

    /// Drops a handler that did not stop in time, at its next `await`. Of a cancelled job that is the end of the attempt.
    fn cut(&self, attempt: &RunningAttempt, task: &AbortHandle) {
        let (of, reason) = (attempt.id(), attempt.stop().reason());
        warn!(job.id = %of.job, attempt = of.attempt, ?reason, "a handler did not stop in time; dropping it at its next await");
        if reason == Some(StopReason::Cancelled) {
            attempt.linger();
            self.report(of, Report::Cancelled);
        }
        task.abort();
    }

    /// Renews every lease that this worker has, each batch from its own instant. One that the store refuses costs the others
    /// nothing; one that gets no answer ends the pass, so that it is repeated in time.
    pub(crate) async fn renew(&self) -> Result<(), StoreError> {
        let begun = self.engine.now();
        let mut refused = None;
        for batch in self.registry.leased().chunks(SETTLE_MAX) {
            match self.renew_batch(batch).await {
                Err(error) if is_refusal(&error) => refused = Some(error),
                renewed => renewed?,
            }
        }
        *self.renewed_at() = Some(begun);
        refused.map_or(Ok(()), Err)
    }

    async fn renew_batch(&self, batch: &[AttemptId]) -> Result<(), StoreError> {
        let (lease, now) = (self.config.lease, self.engine.now());
        let renewed = tokio::select! {
            renewed = self.engine.store().renew(batch, lease, now) => renewed?,
            // One that hangs must not cost the leases: there is time to ask again.
            () = self.engine.clock().sleep(lease / 6) => return Err(StoreError::Unavailable("no answer".into())),
        };
        for (of, answer) in batch.iter().zip(renewed) {
            self.heed(*of, answer);
        }
        Ok(())
    }

    fn heed(&self, of: AttemptId, answer: Renewed) {
        match answer {
            Renewed::Until {
                cancel_requested: false,
                ..
            } => {}
            Renewed::Until {
                cancel_requested: true,
                ..
            } => {
                if let Some(attempt) = self.registry.get(of) {
                    self.stop(&attempt, StopReason::Cancelled);
                }
            }
            Renewed::LeaseLost => self.lose(of),
        }
    }

    /// Another worker may have the job: the handler is told to stop, and what it does is not told any more.
    fn lose(&self, of: AttemptId) {
        let Some(attempt) = self.registry.lose(of) else {
            return; // it had ended, and the store has just heard of it
        };
        let now = self.engine.now();
        self.engine.narrator().lease_lost(attempt.job(), now);
        self.call_after(&attempt, &Report::Lost);
        self.stop(&attempt, StopReason::LeaseLost);
    }

    /// Tells a handler to stop, and cuts it off after its grace. One that was told before keeps its time.
    fn stop(&self, attempt: &RunningAttempt, reason: StopReason) {
        if reason != StopReason::Cancelled {
            attempt.linger();
        }
        if attempt.stop().fire(reason) {
            let at = self.in_time(self.config.cancel_grace);
            self.registry.abort_at(attempt.id(), at);
        }
    }

    /// When so much more time has passed.
    fn in_time(&self, time: Duration) -> Duration {
        self.engine.clock().elapsed().saturating_add(time)
    }

    /// Tells the handlers of these jobs that they were called off.
    pub(crate) fn call_off(&self, jobs: &[JobId]) {
        for attempt in self.registry.running(jobs) {
            self.stop(&attempt, StopReason::Cancelled);
        }
    }

    /// Gives back every job whose handler has not returned; how many.
    pub(crate) fn release_all(&self) -> usize {
        let open = self.registry.unreported();
        for attempt in &open {
            self.report(attempt.id(), Report::Released { started: true });
            self.stop(attempt, StopReason::Shutdown);
        }
        open.len()
    }

    /// Tells every handler to stop, and cuts it off at its next `await`.
    pub(crate) fn cut_off(&self) {
        for attempt in self.registry.all() {
            attempt.stop().fire(StopReason::Shutdown);
        }
        self.registry.abort_all();
    }

    /// Gives back a job that was claimed and will not be started.
    pub(crate) fn give_back(self: &Arc<Self>, job: Job) {
        let engine = Arc::clone(&self.engine);
        let attempt = Arc::new(RunningAttempt::new(job, None, engine, None));
        if !self.registry.add(&attempt) {
            return; // it runs already, and is ended like all that run
        }
        self.report(attempt.id(), Report::Released { started: false });
        self.registry.returned(attempt.id());
    }

    /// Ends attempts in time until it is told to stop. Apart from the renewals, so that a store that hangs stops no alarm.
    pub(crate) async fn run_alarms(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            pulse.rest();
            let alarm = self.registry.next_alarm();
            let left = alarm.map(|at| at.saturating_sub(clock.elapsed()));
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.registry.sooner().notified() => continue,
                () = clock.sleep(left.unwrap_or(ALARMS_EVERY)) => {}
            }
            pulse.busy(clock.now());
            self.ring();
        }
    }

    /// Renews leases until it is told to stop.
    pub(crate) async fn run_renewals(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        let mut again_at = None;
        loop {
            pulse.rest();
            let at = again_at.unwrap_or_else(|| self.renews_at(clock.now()));
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep_until(at) => {}
            }
            pulse.busy(clock.now());
            again_at = self.renew().await.err().map(|error| {
                warn!(%error, "renewing leases failed, trying again soon");
                let soon = (self.config.lease / 30).min(RENEW_AGAIN_MAX);
                clock.now().saturating_add(soon)
            });
        }
    }

    /// When leases are to be renewed next.
    fn renews_at(&self, now: Timestamp) -> Timestamp {
        let third = self.config.lease / 3;
        self.renewed_at().get_or_insert(now).saturating_add(third)
    }

    fn renewed_at(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        self.renewed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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

/// Frees the slot of an attempt when its handler is gone, in whatever way.
struct Returned<'a>(&'a Dispatcher, Arc<RunningAttempt>);

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        self.0.returned(&self.1);
    }
}

/// A handler whose panic is a failure of its attempt.
struct CatchPanic(Running);

impl CatchPanic {
    /// The handler may panic before it even waits for anything.
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

/// A turn of a handler that takes this long keeps everything else on its thread waiting.
const BLOCKED: Duration = Duration::from_secs(1);

/// Gives a handler its turn on the runtime; one that blocks is logged.
fn watch<T>(attempt: &RunningAttempt, turn: impl FnOnce() -> T) -> T {
    let clock = attempt.engine().clock();
    let begun = clock.elapsed();
    let done = turn();
    let took = clock.elapsed().saturating_sub(begun);
    if took >= BLOCKED {
        let (job, seconds) = (attempt.job(), took.as_secs());
        warn!(job.id = %job.id, kind = %job.kind, "the runtime did not run for {seconds} s; use `ctx.blocking`");
    }
    done
}

/// A handler whose turns are watched.
struct Watched<'a>(CatchPanic, &'a RunningAttempt);

impl Future for Watched<'_> {
    type Output = Report;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Report> {
        let attempt = self.1;
        watch(attempt, || Pin::new(&mut self.0).poll(context))
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Report {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("the handler panicked: {}", text.unwrap_or("no message"));
    Report::Failed(Failure::retryable(AttemptError::new(message)))
}
