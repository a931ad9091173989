//! Restarts loops that hang or panic.
//!
//! Each loop reports to its [`Pulse`] when a step begins and when it waits for work. A step that
//! takes longer than the patience counts as hung: the watchdog aborts the task at its current
//! `await` and starts the loop again. This is safe because no loop keeps data on its stack: open
//! claims, outcomes and running attempts belong to structs that the next run continues with.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tracing::error;
use windlass_core::Timestamp;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::loop_backoff::LoopBackoff;

/// The default time that one step of a loop may take.
pub const PATIENCE_DEFAULT: Duration = Duration::from_secs(60);

/// Shows whether one loop is busy, and since when.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// When the current step began, in microseconds; `i64::MAX` while the loop waits for work.
    busy_since: AtomicI64,
    restarts: AtomicU64,
    stalled: AtomicI64,
}

/// The health of a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The name of the loop.
    pub name: String,
    /// When the current step began, or `None` while the loop waits for work.
    pub busy_since: Option<Timestamp>,
    /// How often the loop hung or panicked and was restarted.
    pub restarts: u64,
    /// When the loop last hung.
    pub stalled_at: Option<Timestamp>,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Pulse {
            busy_since: AtomicI64::new(i64::MAX),
            restarts: AtomicU64::new(0),
            stalled: AtomicI64::new(i64::MAX),
        }
    }

    /// The loop begins a step.
    pub(crate) fn busy(&self, now: Timestamp) {
        self.busy_since.store(now.as_micros(), Ordering::Relaxed);
    }

    /// The loop waits for work.
    pub(crate) fn rest(&self) {
        self.busy_since.store(i64::MAX, Ordering::Relaxed);
    }

    fn busy_since(&self) -> Option<Timestamp> {
        Timestamp::from_micros(self.busy_since.load(Ordering::Relaxed))
    }

    /// Completes when one step has taken longer than `patience`.
    async fn stalls(&self, clock: &dyn Clock, patience: Duration) {
        loop {
            clock.sleep(patience / 4).await;
            let now = clock.now();
            if self
                .busy_since()
                .is_some_and(|since| now.since(since) >= patience)
            {
                self.stalled.store(now.as_micros(), Ordering::Relaxed);
                return;
            }
        }
    }

    pub(crate) fn health(&self, name: &str) -> Health {
        Health {
            name: name.to_owned(),
            busy_since: self.busy_since(),
            restarts: self.restarts.load(Ordering::Relaxed),
            stalled_at: Timestamp::from_micros(self.stalled.load(Ordering::Relaxed)),
        }
    }
}

/// Runs a loop until it returns. Restarts it when it hangs or panics.
pub(crate) async fn keep_running<L, F>(
    engine: Arc<Engine>,
    name: String,
    patience: Duration,
    run: L,
) where
    L: Fn(Arc<Pulse>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let pulse = Arc::new(Pulse::new());
    let _listed = engine.list_loop(&name, &pulse);
    let clock = engine.clock();
    let mut retry = LoopBackoff::new();
    loop {
        pulse.rest();
        let started = clock.elapsed();
        let mut task = AbortOnDrop(tokio::spawn(run(Arc::clone(&pulse))));
        let ended = tokio::select! {
            biased;
            ended = &mut task.0 => Some(ended),
            () = pulse.stalls(&**clock, patience) => None,
        };
        match ended {
            Some(Ok(())) => return,
            Some(Err(failed)) => error!(name, error = %failed, "a loop panicked; restarting it"),
            None => {
                error!(name, ?patience, "a loop hangs; restarting it");
                task.0.abort();
                let _ = (&mut task.0).await; // never run two of them at once
            }
        }
        pulse.restarts.fetch_add(1, Ordering::Relaxed);
        if let Some(recorder) = engine.recorder() {
            recorder.loop_restarted(name.rsplit(' ').next().unwrap_or(&name));
        }
        if clock.elapsed().saturating_sub(started) > RAN_WELL {
            retry.reset();
        }
        clock.sleep(retry.next()).await;
    }
}

/// A loop that ran at least this long is restarted without much delay. A loop that fails earlier
/// waits longer with each restart.
const RAN_WELL: Duration = Duration::from_secs(10);

/// Aborts a task when it is dropped.
pub(crate) struct AbortOnDrop(pub(crate) tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
