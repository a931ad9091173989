//! The newest records that match a filter, a bounded number at a time.

use std::time::Duration;

use windlass_core::Timestamp;
use windlass_store::{Record, RecordRange, StoreError};

use super::{AUDIT_TOPIC, Audit, AuditRecord, RECENT_MAX, read};

/// One page looks at about this many records at most.
const SCANNED_MAX: usize = 10_000;
/// Records that are read at once.
const STEP: usize = 500;
/// A page ends early once the details of its records are longer than this.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The clocks of nodes differ by less than this, so records are that far out of order at most.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(300);

/// Which records to list; a field without a value matches every record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Who acted: the id or the name of a key.
    pub key: Option<String>,
    /// An action (`job.edit`), or everything that begins with a prefix that ends in a dot (`job.`).
    pub action: Option<String>,
    /// The target, exactly.
    pub target: Option<String>,
    /// At this instant or later.
    pub from: Option<Timestamp>,
    /// Before this instant.
    pub before: Option<Timestamp>,
}

impl AuditFilter {
    fn matches(&self, record: &AuditRecord) -> bool {
        let key = |key: &String| *key == record.key || *key == record.name;
        let action = |action: &String| match action.ends_with('.') {
            true => record.action.starts_with(action.as_str()),
            false => *action == record.action,
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
    /// Newest first.
    pub records: Vec<AuditRecord>,
    /// Where the next page begins; none at the end. A page that found nothing may have a next one.
    pub next: Option<u64>,
    /// How many records it looked at.
    pub scanned: usize,
    /// The time of the last record that it looked at.
    pub scanned_until: Option<Timestamp>,
}

impl Audit {
    /// Up to `limit` records that match, newest first, from where the page before ended.
    ///
    /// Looks at a bounded number of records, so a page may have fewer than `limit` and still not be
    /// the last one.
    pub async fn list(
        &self,
        filter: &AuditFilter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<AuditPage, StoreError> {
        // The head is read before the topic: if it moves there meanwhile, it is found there.
        let mut head = match cursor {
            None => self.head().await?,
            Some(_) => None,
        };
        let mut page = Listing::new(filter, limit);
        let mut cursor = cursor;
        loop {
            let store = self.engine.store();
            let rows = store
                .records(
                    AUDIT_TOPIC,
                    RecordRange::Before(cursor.unwrap_or(u64::MAX)),
                    STEP,
                )
                .await?;
            let step = Step::new(head.take(), rows)?;
            for (place, (next, record)) in step.entries.iter().enumerate().take(step.looked_at) {
                page.look_at(record, step.is_repeated(place));
                cursor = Some(*next);
                if filter.ends_at(record) {
                    return Ok(page.found);
                }
                if page.is_full() {
                    let last = step.is_last && place + 1 == step.entries.len();
                    page.found.next = cursor.filter(|_| !last);
                    return Ok(page.found);
                }
            }
            if step.is_last {
                return Ok(page.found);
            }
            if page.found.scanned >= SCANNED_MAX {
                page.found.next = cursor;
                return Ok(page.found);
            }
        }
    }
}

/// Some records, newest first, each with the cursor of what is behind it.
struct Step {
    entries: Vec<(u64, AuditRecord)>,
    /// The rest only shows which of these were appended twice.
    looked_at: usize,
    is_last: bool,
}

impl Step {
    fn new(head: Option<AuditRecord>, rows: Vec<Record>) -> Result<Self, StoreError> {
        let is_last = rows.len() < STEP;
        let behind_head = rows.first().map_or(0, |newest| newest.cursor + 1);
        let mut entries = Vec::with_capacity(rows.len() + 1);
        for row in &rows {
            entries.push((row.cursor, read(&row.value)?));
        }
        let looked_at = match is_last {
            true => entries.len(),
            false => entries.len() - RECENT_MAX,
        };
        let head = head.filter(|head| !entries.iter().any(|(_, record)| record == head));
        let with_head = usize::from(head.is_some());
        entries.splice(0..0, head.map(|head| (behind_head, head)));
        Ok(Step {
            entries,
            looked_at: looked_at + with_head,
            is_last,
        })
    }

    /// Whether an older row is the same record: the oldest one counts.
    fn is_repeated(&self, place: usize) -> bool {
        let mut rest = self.entries.iter().skip(place);
        let Some((_, record)) = rest.next() else {
            return false;
        };
        rest.take(RECENT_MAX).any(|(_, other)| other == record)
    }
}

/// A page as it fills.
struct Listing<'a> {
    filter: &'a AuditFilter,
    limit: usize,
    bytes: usize,
    found: AuditPage,
}

impl<'a> Listing<'a> {
    fn new(filter: &'a AuditFilter, limit: usize) -> Self {
        Listing {
            filter,
            limit,
            bytes: 0,
            found: AuditPage::default(),
        }
    }

    fn look_at(&mut self, record: &AuditRecord, is_repeated: bool) {
        self.found.scanned += 1;
        self.found.scanned_until = Some(record.at);
        if !is_repeated && self.filter.matches(record) {
            self.bytes += record.detail.to_string().len();
            self.found.records.push(record.clone());
        }
    }

    fn is_full(&self) -> bool {
        self.found.records.len() >= self.limit || self.bytes > PAGE_BYTES_MAX
    }
}
