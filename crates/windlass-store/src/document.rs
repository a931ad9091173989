//! Documents and records: general storage, so that new features need no new driver code.

use serde_json::Value;
use windlass_core::Timestamp;

/// The most records in one append and in one page.
pub const RECORDS_MAX: usize = 1000;

/// The most expired documents that one step removes.
pub const EXPIRED_MAX: usize = 1000;

/// Named JSON with a version, for settings, keys and bulk actions.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The name within its collection.
    pub name: String,
    /// Starts at 1 and goes up by one with every change.
    pub version: u64,
    /// The content.
    pub value: Value,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// From when on the document is absent; `None` keeps it until it is removed.
    pub expires_at: Option<Timestamp>,
}

impl Document {
    /// Whether the document has expired and counts as absent.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

/// What a writer expects to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Nothing exists.
    Absent,
    /// It has this version.
    Version(u64),
    /// Anything: replace whatever exists.
    Any,
}

impl Expected {
    /// Expects what a read returned.
    pub fn as_read(document: Option<&Document>) -> Self {
        document.map_or(Expected::Absent, |document| {
            Expected::Version(document.version)
        })
    }

    /// Whether the existing version, `None` if nothing exists, is the expected one.
    pub fn allows(self, existing: Option<u64>) -> bool {
        match self {
            Expected::Any => true,
            Expected::Absent => existing.is_none(),
            Expected::Version(version) => existing == Some(version),
        }
    }
}

/// The result of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Written; this is the version. After a removal, the version that was removed.
    Version(u64),
    /// Another version exists than the expected one, or none. Nothing changed.
    Conflict(Option<u64>),
}

impl Written {
    /// The version, if the write took effect.
    pub fn version(self) -> Option<u64> {
        match self {
            Written::Version(version) => Some(version),
            Written::Conflict(_) => None,
        }
    }
}

/// An entry of an append-only topic: audit, skipped occurrences, statistics, progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The position in the store. Later records have larger numbers, across all topics.
    pub cursor: u64,
    /// When it was appended.
    pub at: Timestamp,
    /// The content.
    pub value: Value,
}

/// A range of records of a topic, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordRange {
    /// Records after a cursor, oldest first. Every cursor is greater than 0.
    After(u64),
    /// Records before a cursor, newest first.
    Before(u64),
}

impl RecordRange {
    /// All records, oldest first.
    pub const OLDEST: RecordRange = RecordRange::After(0);
    /// All records, newest first.
    pub const NEWEST: RecordRange = RecordRange::Before(u64::MAX);
}
