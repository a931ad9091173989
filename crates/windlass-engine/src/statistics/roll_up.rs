//! Adds the records of all processes to roll-ups of minutes and hours, each exactly once.
//!
//! The store lists records in the order of their cursors, and no record ever appears before one
//! that a reader has seen. A document holds the cursor up to which all records are rolled up. A
//! roll-up is a document too, and holds the cursor of the last record in it. A pass
//!
//! 1. reads the next records after the cursor of the progress,
//! 2. adds them to the roll-ups of their minutes and hours, with compare-and-set; a roll-up ignores
//!    records up to its own cursor,
//! 3. moves the progress, with compare-and-set.
//!
//! After a crash between two steps, or if two nodes do the same, the roll-ups ignore the records
//! that they have. The progress never passes a record that is missing in a roll-up. So nothing is
//! lost and nothing is counted twice; a record that arrives late still gets into its minute.
//!
//! Hours are made of records too, not of minutes: then no roll-up depends on another one that may
//! have expired. Records are only removed after they are rolled up, so a store that was closed for
//! a week loses nothing. Roll-ups expire by themselves.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tracing::debug;
use windlass_core::Timestamp;
use windlass_core::statistics::{Period, RollUp, StatisticsRecord};
use windlass_store::{
    Document, Expected, RECORDS_MAX, Record, RecordRange, Store, StoreError, compare_and_set,
};

use super::{PAGE, STATISTICS_TOPIC};

/// The collection of the progress and the lease.
const COLLECTION: &str = "statistics";
const PROGRESS: &str = "progress";
const LEASE: &str = "lease";

/// The periods that are rolled up.
const ROLLED_UP: [Period; 2] = [Period::Minute, Period::Hour];

/// The number of pages that one pass rolls up. If more are left, the next pass continues.
const PAGES_PER_PASS: usize = 50;
/// The number of steps in which one pass removes old records.
const TRIMS_PER_PASS: usize = 10;

/// Rolls up the records that were written before the minute that starts at `minute`, unless
/// another process does. Removes old records.
pub(super) async fn roll_up(
    store: &dyn Store,
    minute: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    if !take_lease(store, minute, now).await? {
        return Ok(());
    }
    for _ in 0..PAGES_PER_PASS {
        let progress = store.document(COLLECTION, PROGRESS, now).await?;
        let after = RecordRange::After(cursor_of(progress.as_ref()));
        let page = store.records(STATISTICS_TOPIC, after, PAGE).await?;
        let complete = page.iter().take_while(|record| record.at < minute).count();
        let is_last = complete < PAGE;
        let (complete, _) = page.split_at(complete);
        if let Some(last) = complete.last() {
            add_all(store, complete, now).await?;
            let (value, expected) = (json!(last.cursor), Expected::as_read(progress.as_ref()));
            let moved = store.put_document(COLLECTION, PROGRESS, &value, expected, None, now);
            if moved.await?.version().is_none() {
                return Ok(()); // another process was faster
            }
        }
        if is_last {
            return remove_old(store, now).await;
        }
    }
    Ok(())
}

/// Returns true for one process per minute. The lease only saves work: it makes all others skip
/// the roll-up.
async fn take_lease(
    store: &dyn Store,
    minute: Timestamp,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let (value, ends) = (json!({}), minute.saturating_add(Period::Minute.length()));
    let absent = Expected::Absent;
    let taken = store.put_document(COLLECTION, LEASE, &value, absent, Some(ends), now);
    Ok(taken.await?.version().is_some())
}

fn cursor_of(progress: Option<&Document>) -> u64 {
    let cursor = progress.and_then(|progress| progress.value.as_u64());
    cursor.unwrap_or(0)
}

/// The cursor up to which all records are in roll-ups.
pub(super) async fn rolled_up_to(store: &dyn Store, now: Timestamp) -> Result<u64, StoreError> {
    let progress = store.document(COLLECTION, PROGRESS, now).await?;
    Ok(cursor_of(progress.as_ref()))
}

/// Adds records to their minutes and hours.
async fn add_all(store: &dyn Store, records: &[Record], now: Timestamp) -> Result<(), StoreError> {
    let mut groups: BTreeMap<(Period, Timestamp), Vec<(u64, StatisticsRecord)>> = BTreeMap::new();
    for record in records {
        let Some(read) = read_record(record) else {
            continue;
        };
        for period in ROLLED_UP {
            let group = groups.entry((period, period.start(read.start)));
            group.or_default().push((record.cursor, read.clone()));
        }
    }
    for ((period, start), records) in groups {
        if period.kept_until(start) > now {
            add(store, period, start, &records, now).await?;
        }
    }
    Ok(())
}

async fn add(
    store: &dyn Store,
    period: Period,
    start: Timestamp,
    records: &[(u64, StatisticsRecord)],
    now: Timestamp,
) -> Result<(), StoreError> {
    let (collection, name) = (collection_of(period, start), start.to_string());
    let contended = || StoreError::Unavailable("a roll-up keeps changing; try again".into());
    compare_and_set(contended, || async {
        let found = store.document(&collection, &name, now).await?;
        let mut roll_up = match &found {
            None => RollUp::default(),
            Some(found) => match read_roll_up(found) {
                Some((_, roll_up)) => roll_up,
                None => return Ok(Some(())), // a newer version wrote it: keep it
            },
        };
        let mut changed = false;
        for (cursor, record) in records {
            changed |= roll_up.add(*cursor, &record.statistics);
        }
        if !changed {
            return Ok(Some(()));
        }
        roll_up.statistics.limit_queues();
        let value = serde_json::to_value(&roll_up);
        let value = value.expect("a roll-up has only names and numbers");
        let (expected, expires) = (
            Expected::as_read(found.as_ref()),
            Some(period.kept_until(start)),
        );
        let put = store.put_document(&collection, &name, &value, expected, expires, now);
        Ok(put.await?.version().map(|_| ()))
    })
    .await
}

async fn remove_old(store: &dyn Store, now: Timestamp) -> Result<(), StoreError> {
    let period = Period::TenSeconds;
    let before = now.saturating_sub(period.kept() + period.length());
    for _ in 0..TRIMS_PER_PASS {
        if store.trim(STATISTICS_TOPIC, before, RECORDS_MAX).await? < RECORDS_MAX {
            break;
        }
    }
    Ok(())
}

/// The collection of a roll-up: minutes are stored by hour and hours by day, so that a read gets
/// what it needs, in few calls.
pub(super) fn collection_of(period: Period, start: Timestamp) -> String {
    let length = match period {
        Period::TenSeconds => "10s",
        Period::Minute => "1m",
        Period::Hour => "1h",
    };
    format!("{COLLECTION}/{length}/{}", period.group_start(start))
}

/// Reads a record. One that a newer version wrote in another form is skipped.
pub(super) fn read_record(record: &Record) -> Option<StatisticsRecord> {
    read_as("record", &record.value)
}

/// Reads a roll-up and the start of its period.
pub(super) fn read_roll_up(document: &Document) -> Option<(Timestamp, RollUp)> {
    let start = document.name.parse().ok()?;
    Some((start, read_as("roll-up", &document.value)?))
}

fn read_as<T: serde::de::DeserializeOwned>(what: &str, value: &Value) -> Option<T> {
    match T::deserialize(value) {
        Ok(read) => Some(read),
        Err(error) => {
            debug!(%error, what, "statistics are unreadable; skipped them");
            None
        }
    }
}
