//! The interface to metrics. `docs/metrics.md` lists the names and meanings of the metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use windlass_core::{QueueName, Timestamp};
use windlass_store::Counts;

use crate::Event;

/// Receives measurements.
///
/// The engine calls every method at the place where something happens, so an implementation must
/// be fast and must not block.
pub trait Recorder: Send + Sync + fmt::Debug {
    /// Something happened to a job or a schedule.
    fn event(&self, event: &Event);

    /// A store call returned after this time.
    fn store_op(&self, op: &'static str, took: Duration);

    /// The number of jobs per queue and state. The janitor counts them in every pass.
    fn counts(&self, counts: &BTreeMap<QueueName, Counts>, now: Timestamp);

    /// The slots of all workers in this process. The janitor counts them in every pass.
    fn slots(&self, _used: u64, _total: u64) {}

    /// A loop (`fetcher`, `sweeper`, …) hung or panicked and was restarted.
    fn loop_restarted(&self, _name: &str) {}

    /// An HTTP job made a request. Target and result are words from a fixed set.
    fn http_job(&self, _target: &'static str, _result: &'static str) {}

    /// The store kept refusing an outcome until the worker dropped it. The attempt will count as
    /// lost.
    fn outcome_refused(&self, _queue: &QueueName) {}

    /// The janitor removed this many dead jobs because of their age.
    fn dead_removed(&self, _queue: &QueueName, _count: u64) {}
}

/// Catches panics of a recorder: a bug in metrics must not break the engine's loops.
#[derive(Debug)]
pub(crate) struct PanicSafeRecorder(pub(crate) Arc<dyn Recorder>);

impl PanicSafeRecorder {
    fn call(&self, record: impl FnOnce(&dyn Recorder)) {
        let called = AssertUnwindSafe(|| record(&*self.0));
        if std::panic::catch_unwind(called).is_err() {
            warn!("the metrics recorder panicked; lost a measurement");
        }
    }
}

impl Recorder for PanicSafeRecorder {
    fn event(&self, event: &Event) {
        self.call(|recorder| recorder.event(event));
    }

    fn store_op(&self, op: &'static str, took: Duration) {
        self.call(|recorder| recorder.store_op(op, took));
    }

    fn counts(&self, counts: &BTreeMap<QueueName, Counts>, now: Timestamp) {
        self.call(|recorder| recorder.counts(counts, now));
    }

    fn slots(&self, used: u64, total: u64) {
        self.call(|recorder| recorder.slots(used, total));
    }

    fn loop_restarted(&self, name: &str) {
        self.call(|recorder| recorder.loop_restarted(name));
    }

    fn http_job(&self, target: &'static str, result: &'static str) {
        self.call(|recorder| recorder.http_job(target, result));
    }

    fn outcome_refused(&self, queue: &QueueName) {
        self.call(|recorder| recorder.outcome_refused(queue));
    }

    fn dead_removed(&self, queue: &QueueName, count: u64) {
        self.call(|recorder| recorder.dead_removed(queue, count));
    }
}
