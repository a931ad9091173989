//! Every loop has a deadline for its progress: one that hangs is reported, and started again.
//!
//! Nothing that a loop holds lives on its own stack, so that a loop can be cut off anywhere and started again.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::error;
use windlass_core::Timestamp;

use crate::engine::Engine;

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

    pub(crate) fn health(&self, name: &str) -> Health {
        Health {
            name: name.to_owned(),
            busy_since: self.busy_since(),
            restarts: self.restarts.load(Ordering::Relaxed),
            stalled_at: Timestamp::from_micros(self.stalled.load(Ordering::Relaxed)),
        }
    }
}

/// Runs a loop until it ends by itself after `stop`; starts it again when it hangs or panics before.
pub(crate) async fn keep_running<L, F>(
    engine: Arc<Engine>,
    name: String,
    patience: Duration,
    stop: CancellationToken,
    run: L,
) where
    L: Fn(Arc<Pulse>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let pulse = Arc::new(Pulse::new());
    let _listed = engine.list_loop(&name, &pulse);
    let clock = Arc::clone(engine.clock());
    loop {
        pulse.rest();
        let mut task = Cut(tokio::spawn(run(Arc::clone(&pulse))));
        let ended = loop {
            let look_at = clock.now().saturating_add(patience / 4);
            tokio::select! {
                ended = &mut task.0 => break Some(ended),
                () = clock.sleep_until(look_at) => {}
            }
            let now = clock.now();
            if pulse
                .busy_since()
                .is_some_and(|since| now.since(since) >= patience)
            {
                pulse.stalled.store(now.as_micros(), Ordering::Relaxed);
                break None;
            }
        };
        match ended {
            Some(Ok(())) => break,
            Some(Err(failed)) => error!(name, error = %failed, "a loop broke, starting it again"),
            None => error!(name, ?patience, "a loop hangs, starting it again"),
        }
        drop(task);
        pulse.restarts.fetch_add(1, Ordering::Relaxed);
        if stop.is_cancelled() {
            break;
        }
    }
}

/// A task that ends with its owner.
pub(crate) struct Cut(pub(crate) tokio::task::JoinHandle<()>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.abort();
    }
}
