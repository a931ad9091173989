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
}
