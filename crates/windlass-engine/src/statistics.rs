//! Statistics of all processes of a store.
//!
//! ```text
//!  events ──▶ collector ──▶ a record per process and 10 s ──▶ roll-ups: 1 minute, 1 hour ──▶ read
//!             in memory     kept 2 h                         kept 24 h, 30 d
//! ```
//!
//! Every process counts what it does itself and appends one record for each 10 s in which something
//! happened. One process per minute adds the new records to the roll-ups. Reading adds up the
//! records of all processes.
//!
//! Statistics never delay or fail a job: counting happens in memory, and while the store does not
//! accept a record, the next one grows instead. A killed process loses what it counted in the
//! last 10 s.

mod collector;
mod read;
mod roll_up;

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_core::Timestamp;
use windlass_core::statistics::{Period, StatisticsRecord};
use windlass_store::{RecordRange, StoreError};

pub(crate) use collector::Collector;
use collector::{Outbox, Unwritten};
pub use read::StatisticsSeries;

use crate::clock::Clock;
use crate::engine::Engine;
use crate::watchdog::{PATIENCE_DEFAULT, Pulse};

/// The topic of the records.
pub(crate) const STATISTICS_TOPIC: &str = "statistics";

/// The number of records to read in one step. A record can have 1,000 queues.
const PAGE: usize = 100;

/// How long the store may take to accept the last record at shutdown.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// How much the clocks of two processes may differ.
const SKEW_MAX: Duration = Duration::from_secs(60);

/// Writes the statistics of this process, and adds the records of all processes to roll-ups.
#[derive(Debug)]
pub struct StatisticsWriter {
    engine: Arc<Engine>,
}

impl StatisticsWriter {
    /// Creates a writer. All writers of an engine share what they have to write.
    pub fn new(engine: Arc<Engine>) -> Self {
        StatisticsWriter { engine }
    }

    /// Writes a record if its 10 s are over, and rolls up once a minute.
    pub async fn pass(&self, now: Timestamp) -> Result<(), StoreError> {
        let Ok(mut outbox) = self.engine.collector().outbox.try_lock() else {
            return Ok(()); // another loop of this process is writing
        };
        self.write(&mut outbox, Period::TenSeconds.start(now), now)
            .await?;
        let minute = Period::Minute.start(now);
        if outbox.rolled_up != Some(minute) {
            roll_up::roll_up(self.engine.store(), minute, now).await?;
            outbox.rolled_up = Some(minute);
        }
        Ok(())
    }

    /// Writes everything that was counted, without waiting for the end of its 10 s.
    pub async fn flush(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut outbox = self.engine.collector().outbox.lock().await;
        self.write(&mut outbox, Timestamp::MAX, now).await
    }

    /// Writes the last statistics at shutdown. Gives up after a second.
    pub(crate) async fn finish(&self) {
        tokio::select! {
            biased;
            flushed = self.flush(self.engine.now()) => {
                if let Err(error) = flushed {
                    warn!(%error, "writing the last statistics failed; they may be lost");
                }
            }
            () = self.engine.clock().sleep(FINISH_TIMEOUT) => {
                warn!("writing the last statistics timed out; they may be lost");
            }
        }
    }

    /// Writes what could not be written before, and then what was counted since, if the counting
    /// began before `before`.
    async fn write(
        &self,
        outbox: &mut Outbox,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.send(outbox, now).await?;
        let Some((since, statistics)) = self.engine.collector().take(before) else {
            return Ok(());
        };
        outbox.number += 1;
        let process = *outbox
            .process
            .get_or_insert_with(|| self.engine.ids().bits());
        let record = StatisticsRecord {
            process,
            number: outbox.number,
            start: Period::TenSeconds.start(since),
            statistics,
        };
        outbox.unwritten = Some(Unwritten {
            record,
            sent: false,
        });
        self.send(outbox, now).await
    }

    /// Appends the unwritten record. It stays in the outbox until the store has it: this may be
    /// aborted at any `await`.
    async fn send(&self, outbox: &mut Outbox, now: Timestamp) -> Result<(), StoreError> {
        let Some(unwritten) = &mut outbox.unwritten else {
            return Ok(());
        };
        if unwritten.sent && self.is_stored(&unwritten.record).await? {
            outbox.unwritten = None;
            return Ok(());
        }
        let record = serde_json::to_value(&unwritten.record);
        let record = record.expect("a record has only names and numbers");
        unwritten.sent = true;
        let store = self.engine.store();
        let appended = store.append(STATISTICS_TOPIC, &[record], now).await;
        match &appended {
            Ok(()) => outbox.unwritten = None,
            Err(error) => unwritten.sent = matches!(error, StoreError::Indeterminate(_)),
        }
        appended
    }

    /// Whether the store has a record whose append got no answer. Appending it twice would count it
    /// twice.
    async fn is_stored(&self, record: &StatisticsRecord) -> Result<bool, StoreError> {
        let oldest = record.start.saturating_sub(SKEW_MAX);
        let mut range = RecordRange::NEWEST;
        loop {
            let store = self.engine.store();
            let page = store.records(STATISTICS_TOPIC, range, PAGE).await?;
            let is_same = |value: &Value| {
                value.get("process") == Some(&record.process.into())
                    && value.get("number") == Some(&record.number.into())
            };
            if page.iter().any(|found| is_same(&found.value)) {
                return Ok(true);
            }
            match page.last() {
                Some(last) if last.at >= oldest => range = RecordRange::Before(last.cursor),
                _ => return Ok(false),
            }
        }
    }

    /// One pass at the current time. An error is logged: the next pass tries again.
    async fn pass_or_warn(&self) {
        if let Err(error) = self.pass(self.engine.now()).await {
            warn!(%error, "writing statistics failed; retrying at the next pass");
        }
    }

    /// Writes until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock.sleep_until(next_pass(&*clock)) => {}
            }
            pulse.busy(clock.now());
            self.pass_or_warn().await;
            pulse.rest();
        }
    }
}

/// When the current 10 s are over.
fn next_pass(clock: &dyn Clock) -> Timestamp {
    let current = Period::TenSeconds.start(clock.now());
    current.saturating_add(Period::TenSeconds.length())
}

/// Writes statistics until the engine is dropped: for processes without a worker, which only
/// enqueue jobs.
pub async fn keep_writing_statistics(engine: Weak<Engine>) {
    loop {
        let Some(clock) = engine.upgrade().map(|engine| Arc::clone(engine.clock())) else {
            return;
        };
        clock.sleep_until(next_pass(&*clock)).await;
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let writer = StatisticsWriter::new(engine);
        tokio::select! {
            biased;
            () = writer.pass_or_warn() => {}
            // This loop has no watchdog.
            () = clock.sleep(PATIENCE_DEFAULT) => warn!("writing statistics hangs; retrying"),
        }
    }
}
