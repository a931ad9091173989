//! Reads statistics: adds up the records and roll-ups of a range.

use std::collections::BTreeMap;

use windlass_core::statistics::{
    Period, QueueStatistics, STATISTICS_QUEUES_MAX, Statistics, StatisticsRange,
};
use windlass_core::{QueueName, Timestamp};
use windlass_store::{RecordRange, Store, StoreError};

use super::roll_up::{collection_of, read_record, read_roll_up, rolled_up_to};
use super::{PAGE, SKEW_MAX, STATISTICS_TOPIC};
use crate::engine::Engine;

/// Statistics of a range of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatisticsSeries {
    /// The range, extended to whole steps.
    pub range: StatisticsRange,
    /// What happened in each step, by its start. Steps in which nothing happened are missing.
    pub points: BTreeMap<Timestamp, QueueStatistics>,
    /// What happened in each queue over the whole range. If one queue was asked for, only that one.
    pub queues: Statistics,
    queue: Option<QueueName>,
}

impl StatisticsSeries {
    /// What happened in the whole range.
    pub fn total(&self) -> QueueStatistics {
        self.queues.total()
    }

    /// Adds what happened in the period that starts at `start`.
    fn add(&mut self, start: Timestamp, statistics: &Statistics) {
        let Some(step) = self.range.step_of(start) else {
            return;
        };
        let Some(queue) = &self.queue else {
            let point = self.points.entry(step).or_default();
            point.merge(&statistics.total());
            self.queues.merge(statistics);
            // Bounds the memory for a store in which queues come and go.
            if self.queues.queues.len() > 4 * STATISTICS_QUEUES_MAX {
                self.queues.limit_queues();
            }
            return;
        };
        if let Some(numbers) = statistics.queues.get(queue) {
            self.points.entry(step).or_default().merge(numbers);
            self.queues.count(queue, |total| total.merge(numbers));
        }
    }
}

impl Engine {
    /// Reads the statistics of all processes for a range: of one queue, or of all.
    ///
    /// Processes write every 10 s, so the last 10 s are incomplete.
    pub async fn statistics(
        &self,
        range: StatisticsRange,
        queue: Option<&QueueName>,
    ) -> Result<StatisticsSeries, StoreError> {
        let mut series = StatisticsSeries {
            range,
            points: BTreeMap::new(),
            queues: Statistics::default(),
            queue: queue.cloned(),
        };
        match range.period() {
            Period::TenSeconds => add_records(self.store(), &mut series).await?,
            Period::Minute | Period::Hour => {
                add_roll_ups(self.store(), &mut series, self.now()).await?;
            }
        }
        series.queues.limit_queues();
        Ok(series)
    }
}

/// Adds the records of the range, newest first.
async fn add_records(store: &dyn Store, series: &mut StatisticsSeries) -> Result<(), StoreError> {
    // A record is written after its period.
    let oldest = series.range.from().saturating_sub(SKEW_MAX);
    let mut range = RecordRange::NEWEST;
    loop {
        let page = store.records(STATISTICS_TOPIC, range, PAGE).await?;
        for record in page.iter().filter_map(read_record) {
            series.add(record.start, &record.statistics);
        }
        match page.last() {
            Some(last) if last.at >= oldest => range = RecordRange::Before(last.cursor),
            _ => return Ok(()),
        }
    }
}

/// Adds the roll-ups of the range, and the records that are not in them yet.
///
/// The progress is read first: all records up to it are in the roll-ups that are read next. A later
/// record is added if it is not in the roll-up that was read. So a roll-up that happens meanwhile
/// neither hides a record nor counts it twice.
async fn add_roll_ups(
    store: &dyn Store,
    series: &mut StatisticsSeries,
    now: Timestamp,
) -> Result<(), StoreError> {
    let period = series.range.period();
    let mut cursor = rolled_up_to(store, now).await?;
    let mut included: BTreeMap<Timestamp, u64> = BTreeMap::new();
    let mut group = period.group_start(series.range.from());
    while group < series.range.to() {
        let documents = store.documents(&collection_of(period, group), now).await?;
        for (start, roll_up) in documents.iter().filter_map(read_roll_up) {
            series.add(start, &roll_up.statistics);
            included.insert(start, roll_up.cursor);
        }
        group = group.saturating_add(period.group_length());
    }
    loop {
        let after = RecordRange::After(cursor);
        let page = store.records(STATISTICS_TOPIC, after, PAGE).await?;
        for record in &page {
            let Some(read) = read_record(record) else {
                continue;
            };
            let known = included.get(&period.start(read.start)).copied();
            if record.cursor > known.unwrap_or(0) {
                series.add(read.start, &read.statistics);
            }
        }
        match page.last() {
            Some(last) => cursor = last.cursor,
            None => return Ok(()),
        }
    }
}
