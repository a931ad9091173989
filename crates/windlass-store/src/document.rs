//! Two general sets of verbs, so that later features need no new driver code: documents and records.

use serde_json::Value;
use windlass_core::Timestamp;

/// The most records one append takes and one page has.
pub const RECORDS_MAX: usize = 1000;

/// The most expired documents one step removes.
pub const EXPIRED_MAX: usize = 1000;

/// Named JSON with a version: settings, keys, bulk actions.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its name within its collection.
    pub name: String,
    /// Counts up with every change, from 1.
    pub version: u64,
    /// What it says.
    pub value: Value,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// From when on it is absent; none keeps it until it is removed.
    pub expires_at: Option<Timestamp>,
}

impl Document {
    /// Whether it has expired and counts as absent.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

/// What a writer believes about a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// That it is not there.
    Absent,
    /// That it has this version.
    Version(u64),
    /// Nothing: whatever is there is replaced.
    Anything,
}

impl Expected {
    /// That it is as it was found.
    pub fn found(document: Option<&Document>) -> Self {
        document.map_or(Expected::Absent, |found| Expected::Version(found.version))
    }

    /// Whether what is there is what the writer believes.
    pub fn allows(self, found: Option<u64>) -> bool {
        match self {
            Expected::Anything => true,
            Expected::Absent => found.is_none(),
            Expected::Version(version) => found == Some(version),
        }
    }
}

/// What became of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It has this version now.
    Version(u64),
    /// It is not what the writer believed: it has this version, or is not there. Nothing changed.
    Conflict(Option<u64>),
}

impl Written {
    /// The version that was written, if it was.
    pub fn version(self) -> Option<u64> {
        match self {
            Written::Version(version) => Some(version),
            Written::Conflict(_) => None,
        }
    }
}

/// A line of an append-only topic: audit, skipped occurrences, statistics, progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its place in the store: later records have greater numbers, in every topic.
    pub cursor: u64,
    /// When it was appended.
    pub at: Timestamp,
    /// What it says.
    pub value: Value,
}

/// Which records of a topic, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordRange {
    /// Those after a cursor, oldest first. Every cursor is greater than 0.
    After(u64),
    /// Those before a cursor, newest first.
    Before(u64),
}

impl RecordRange {
    /// All of them, oldest first.
    pub const OLDEST: RecordRange = RecordRange::After(0);
    /// All of them, newest first.
    pub const NEWEST: RecordRange = RecordRange::Before(u64::MAX);
}
