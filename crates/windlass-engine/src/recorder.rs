//! Where figures go. The names of the metrics, and what they mean, are in `docs/metrics.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

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
