//! Every loop has a deadline for its progress: one that hangs is reported, and started again.
//!
//! Nothing that a loop holds lives on its own stack, so that a loop can be cut off anywhere and started again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tracing::error;
use windlass_core::Timestamp;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::loop_backoff::RetryWait;

/// A loop may be busy with one step for so long.
pub const PATIENCE_DEFAULT: Duration = Duration::from_secs(60);

/// The sign of life of one loop.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// Since when it is busy with one step; at rest that is the end of time.
    busy_since: AtomicI64,
    restarts: AtomicU64,
    stalled: AtomicI64,
}

/// How a loop is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Which loop.
    pub name: String,
    /// Since when it is busy with one step, if it is.
    pub busy_since: Option<Timestamp>,
    /// How often it hung or panicked, and was started again.
    pub restarts: u64,
    /// When it last hung.
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

    /// The loop waits for something to do.
    pub(crate) fn rest(&self) {
        self.busy_since.store(i64::MAX, Ordering::Relaxed);
    }

    fn busy_since(&self) -> Option<Timestamp> {
        Timestamp::from_micros(self.busy_since.load(Ordering::Relaxed))
    }

    /// Ends when the loop has been busy with one step for too long.
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

/// Runs a loop until it ends by itself; starts it again when it hangs or panics before.
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
    let mut retry = RetryWait::new();
    loop {
        pulse.rest();
        let started = clock.elapsed();
        let mut task = Cut(tokio::spawn(run(Arc::clone(&pulse))));
        let ended = tokio::select! {
            ended = &mut task.0 => Some(ended),
            () = pulse.stalls(&**clock, patience) => None,
        };
        match ended {
            Some(Ok(())) => return,
            Some(Err(failed)) => error!(name, error = %failed, "a loop broke, starting it again"),
            None => {
                error!(name, ?patience, "a loop hangs, starting it again");
                task.0.abort();
                let _ = (&mut task.0).await; // two of them at once would be worse than none
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

/// A loop that ran so long is started again at once; one that breaks at once is given more and more time.
const RAN_WELL: Duration = Duration::from_secs(10);

/// A task that ends with its owner.
pub(crate) struct Cut(pub(crate) tokio::task::JoinHandle<()>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.abort();
    }
}
