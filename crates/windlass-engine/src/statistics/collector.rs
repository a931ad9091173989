//! Counts events in memory.
//!
//! An event costs a short lock, a search for its queue and a few additions, and it rarely allocates
//! memory. The three events of a job take about 0.1 µs together with 10 queues and 0.6 µs with
//! 1,000.

use std::sync::Mutex;

use windlass_core::statistics::{QueueStatistics, Statistics, StatisticsRecord};
use windlass_core::{QueueName, Timestamp};

use crate::poison::lock;

/// What happened in this process and is not written yet.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    counted: Mutex<Counted>,
    /// Locked by the loop that writes.
    pub(super) outbox: tokio::sync::Mutex<Outbox>,
}

#[derive(Debug, Default)]
struct Counted {
    /// When the first of these events happened.
    since: Option<Timestamp>,
    statistics: Statistics,
}

/// The record on its way to the store.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The random number of this process, drawn with the first record.
    pub(super) process: Option<u64>,
    /// The number of the last record.
    pub(super) number: u64,
    /// A record that the store has not accepted. Later events wait in the collector, which merges
    /// them, so a store that fails for hours costs no more memory than one that works.
    pub(super) unwritten: Option<Unwritten>,
    /// The minute in which this process last looked for records to roll up.
    pub(super) rolled_up: Option<Timestamp>,
}

/// A record that the store has not confirmed.
#[derive(Debug)]
pub(super) struct Unwritten {
    pub(super) record: StatisticsRecord,
    /// Whether the store may have it: an append got no answer.
    pub(super) sent: bool,
}

impl Collector {
    /// Counts something that happened in a queue.
    pub(crate) fn count(
        &self,
        queue: &QueueName,
        now: Timestamp,
        count: impl FnOnce(&mut QueueStatistics),
    ) {
        let mut counted = lock(&self.counted);
        counted.since.get_or_insert(now);
        counted.statistics.count(queue, count);
    }

    /// Takes what was counted, if the first event happened before `before`. Returns its time too.
    pub(super) fn take(&self, before: Timestamp) -> Option<(Timestamp, Statistics)> {
        let mut counted = lock(&self.counted);
        let since = counted.since.filter(|since| *since < before)?;
        let counted = std::mem::take(&mut *counted);
        Some((since, counted.statistics))
    }
}
