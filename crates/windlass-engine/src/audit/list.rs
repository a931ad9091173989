//! Lists the newest audit records that match a filter, in pages.

use std::time::Duration;

use windlass_core::Timestamp;
use windlass_store::{Record, RecordRange, StoreError};

use super::{AUDIT_TOPIC, Audit, AuditRecord, RECENT_MAX, read};

/// The number of records that one page examines, approximately.
const SCANNED_MAX: usize = 10_000;
/// The number of records to read at once.
const CHUNK: usize = 500;
/// A page ends early when the details of its records exceed this size.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The maximum difference between the clocks of nodes, and so the maximum disorder of records.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(300);

/// Which records to list. An unset field matches every record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// The id or the name of the acting key.
    pub key: Option<String>,
    /// An action (`job.edit`), or a prefix that ends in a dot (`job.`).
    pub action: Option<String>,
    /// The exact target.
    pub target: Option<String>,
    /// At this instant or later.
    pub from: Option<Timestamp>,
    /// Before this instant.
    pub before: Option<Timestamp>,
}

impl AuditFilter {
    fn matches(&self, record: &AuditRecord) -> bool {
        let key = |key: &String| *key == record.key || *key == record.name;
        let action = |action: &String| {
            if action.ends_with('.') {
                record.action.starts_with(action.as_str())
            } else {
                *action == record.action
            }
        };
        self.key.as_ref().is_none_or(key)
            && self.action.as_ref().is_none_or(action)
            && self.target.as_ref().is_none_or(|one| *one == record.target)
            && self.from.is_none_or(|from| from <= record.at)
            && self.before.is_none_or(|before| record.at < before)
    }

    /// Whether no record older than this one can match.
    fn ends_at(&self, record: &AuditRecord) -> bool {
        let from = self.from;
        from.is_some_and(|from| record.at < from.saturating_sub(CLOCKS_DIFFER_MAX))
    }
}

/// A page of records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuditPage {
    /// The records, newest first.
    pub records: Vec<AuditRecord>,
    /// The cursor of the next page, or `None` at the end. Even an empty page may have a next one.
    pub next: Option<u64>,
    /// The number of examined records.
    pub scanned: usize,
    /// The time of the last examined record.
    pub scanned_until: Option<Timestamp>,
}

impl Audit {
    /// Returns up to `limit` matching records, newest first, starting at `cursor`.
    ///
    /// Examines a bounded number of records, so a page may have fewer than `limit` and still not be
    /// the last one.
    pub async fn list(
        &self,
        filter: &AuditFilter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<AuditPage, StoreError> {
        // Read the head before the topic: if it moves there meanwhile, it is found there.
        let mut head = match cursor {
            None => self.head().await?,
            Some(_) => None,
        };
        let mut listing = Listing::new(filter, limit);
        let mut cursor = cursor;
        loop {
            let store = self.engine.store();
            let rows = store
                .records(
                    AUDIT_TOPIC,
                    RecordRange::Before(cursor.unwrap_or(u64::MAX)),
                    CHUNK,
                )
                .await?;
            let chunk = RecordChunk::new(head.take(), rows)?;
            for (index, (next, record)) in chunk.entries.iter().enumerate().take(chunk.examined) {
                listing.examine(record, chunk.is_repeated(index));
                cursor = Some(*next);
                if filter.ends_at(record) {
                    return Ok(listing.page);
                }
                if listing.is_full() {
                    let last = chunk.is_last && index + 1 == chunk.entries.len();
                    listing.page.next = cursor.filter(|_| !last);
                    return Ok(listing.page);
                }
            }
            if chunk.is_last {
                return Ok(listing.page);
            }
            if listing.page.scanned >= SCANNED_MAX {
                listing.page.next = cursor;
                return Ok(listing.page);
            }
        }
    }
}

/// Some records, newest first, each with the cursor behind it.
struct RecordChunk {
    entries: Vec<(u64, AuditRecord)>,
    /// The number of records to examine. The rest only shows which of these were appended twice.
    examined: usize,
    is_last: bool,
}

impl RecordChunk {
    fn new(head: Option<AuditRecord>, rows: Vec<Record>) -> Result<Self, StoreError> {
        let is_last = rows.len() < CHUNK;
        let behind_head = rows.first().map_or(0, |newest| newest.cursor + 1);
        let mut entries = Vec::with_capacity(rows.len() + 1);
        for row in &rows {
            entries.push((row.cursor, read(&row.value)?));
        }
        let examined = if is_last {
            entries.len()
        } else {
            entries.len() - RECENT_MAX
        };
        let head = head.filter(|head| !entries.iter().any(|(_, record)| record == head));
        let with_head = usize::from(head.is_some());
        entries.splice(0..0, head.map(|head| (behind_head, head)));
        Ok(RecordChunk {
            entries,
            examined: examined + with_head,
            is_last,
        })
    }

    /// Whether an older row is the same record. Only the oldest copy counts.
    fn is_repeated(&self, index: usize) -> bool {
        let mut rest = self.entries.iter().skip(index);
        let Some((_, record)) = rest.next() else {
            return false;
        };
        rest.take(RECENT_MAX).any(|(_, other)| other == record)
    }
}

/// A page that is being filled.
struct Listing<'a> {
    filter: &'a AuditFilter,
    limit: usize,
    bytes: usize,
    page: AuditPage,
}

impl<'a> Listing<'a> {
    fn new(filter: &'a AuditFilter, limit: usize) -> Self {
        Listing {
            filter,
            limit,
            bytes: 0,
            page: AuditPage::default(),
        }
    }

    fn examine(&mut self, record: &AuditRecord, is_repeated: bool) {
        self.page.scanned += 1;
        self.page.scanned_until = Some(record.at);
        if !is_repeated && self.filter.matches(record) {
            self.bytes += record.detail.to_string().len();
            self.page.records.push(record.clone());
        }
    }

    fn is_full(&self) -> bool {
        self.page.records.len() >= self.limit || self.bytes > PAGE_BYTES_MAX
    }
}
