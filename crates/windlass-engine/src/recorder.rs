//! Where figures go. The names of the metrics, and what they mean, are in `docs/metrics.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use windlass_core::{QueueName, Timestamp};
use windlass_store::Counts;

use crate::Event;

/// Takes figures. Every method is called where the thing happens, so it must be quick and must not block.
pub trait Recorder: Send + Sync + fmt::Debug {
    /// Something happened to a job or a schedule.
    fn event(&self, event: &Event);

    /// The store was asked for something, and answered after so long.
    fn store_op(&self, op: &'static str, took: Duration);

    /// How many jobs there are, as the janitor counts them now and then.
    fn counts(&self, counts: &BTreeMap<QueueName, Counts>, now: Timestamp);

    /// The slots of all workers in this process, as the janitor counts them now and then.
    fn slots(&self, _used: u64, _total: u64) {}

    /// A loop hung or panicked and was restarted: `fetcher`, `sweeper` and so on.
    fn loop_restarted(&self, _name: &str) {}

    /// An HTTP job made a request: what its target is, and what the request came to. Both are words of a fixed set.
    fn http_job(&self, _target: &'static str, _result: &'static str) {}

    /// The store refused an outcome for so long that the worker dropped it: the attempt will count as lost.
    fn outcome_refused(&self, _queue: &QueueName) {}

    /// The janitor removed this many dead jobs because of their age.
    fn dead_removed(&self, _queue: &QueueName, _count: u64) {}
}

/// A recorder whose panics stay its own: the loops that call it must not break for a figure.
#[derive(Debug)]
pub(crate) struct Guarded(pub(crate) Arc<dyn Recorder>);

impl Guarded {
    fn call(&self, record: impl FnOnce(&dyn Recorder)) {
        let called = AssertUnwindSafe(|| record(&*self.0));
        if std::panic::catch_unwind(called).is_err() {
            warn!("the recorder panicked, a figure is lost");
        }
    }
}

impl Recorder for Guarded {
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
