//! The clock of one node: the real clock over a wall clock that can be wrong, in a process that
//! can be stopped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use windlass_core::Timestamp;
use windlass_engine::{Clock, SystemClock, Wait};

use super::tap::Gate;
use super::world::World;

pub(crate) struct NodeClock {
    clock: SystemClock,
    /// How far the wall clock is ahead of the true time, in microseconds.
    ahead: Arc<AtomicI64>,
    gate: Arc<Gate>,
}

impl NodeClock {
    pub(crate) fn new(world: &Arc<World>, ahead: Arc<AtomicI64>, gate: Arc<Gate>) -> Self {
        // A weak reference: the world lists the taps, which hold this clock.
        let (world, wall_ahead) = (Arc::downgrade(world), Arc::clone(&ahead));
        let wall = move || {
            let now = world.upgrade().map_or(Timestamp::MIN, |world| world.now());
            let micros = now.as_micros() + wall_ahead.load(Ordering::SeqCst);
            Timestamp::from_micros(micros).unwrap_or(now)
        };
        NodeClock {
            clock: SystemClock::following(Arc::new(wall)),
            ahead,
            gate,
        }
    }

    fn gated(&self, wait: Wait) -> Wait {
        let gate = Arc::clone(&self.gate);
        Box::pin(async move {
            wait.await;
            gate.pass().await;
        })
    }
}

impl fmt::Debug for NodeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeClock({:?})", self.ahead)
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn sleep_until(&self, at: Timestamp) -> Wait {
        self.gated(self.clock.sleep_until(at))
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn sleep(&self, time: Duration) -> Wait {
        self.gated(self.clock.sleep(time))
    }
}
