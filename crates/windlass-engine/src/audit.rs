//! The audit log: a record of every action of an operator and of every removal of dead jobs,
//! chained by hashes.
//!
//! Each record contains the hash of its predecessor. A record that was changed, removed or inserted
//! later breaks the chain, and [`Audit::verify`] says where.
//!
//! The newest record is a document of its own, the head. It moves to the topic when the next record
//! is written. Writers compare and set the head, so several nodes can write one chain, and a crash
//! between the two steps loses nothing: a record that was appended twice is read once.
//!
//! Someone with write access to the store could write a whole new chain. To detect that, keep the
//! hash that `verify` prints in another place and pass it to the next check.

mod list;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tracing::warn;
use windlass_core::Timestamp;
use windlass_store::{Expected, RECORDS_MAX, RecordRange, StoreError, compare_and_set};

use crate::engine::Engine;

pub use list::{AuditFilter, AuditPage};

/// The topic of the records.
pub const AUDIT_TOPIC: &str = "audit";
const HEAD: &str = "head";
/// The maximum number of records between two copies of a record that was appended twice.
const RECENT_MAX: usize = 100;
/// The `previous` hash of the first record.
const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The public id of a key, or a fixed word for an actor without one: `local`, `windlass`.
    pub id: String,
    /// The name of the key.
    pub name: String,
}

impl Actor {
    /// The runner of bulk actions and replays.
    pub(crate) fn runner() -> Self {
        Actor {
            id: "windlass".to_owned(),
            name: "actions".to_owned(),
        }
    }

    /// The janitor, which removes old data.
    pub(crate) fn janitor() -> Self {
        Actor {
            id: "windlass".to_owned(),
            name: "janitor".to_owned(),
        }
    }
}

/// One recorded action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// The position in the chain, starting at 1.
    pub number: u64,
    /// When it happened.
    pub at: Timestamp,
    /// The public id of the key, or a fixed word for an actor without one: `local`, `windlass`.
    pub key: String,
    /// The name of the key.
    pub name: String,
    /// The action, for example `queue.pause`.
    pub action: String,
    /// What the action changed.
    pub target: String,
    /// Details of the action.
    pub detail: Value,
    /// The hash of the previous record.
    pub previous: String,
    /// The hash of all other fields.
    pub hash: String,
}

impl AuditRecord {
    fn computed_hash(&self) -> String {
        let mut text = String::new();
        let at = self.at.to_string();
        for part in [
            &self.previous,
            &at,
            &self.key,
            &self.name,
            &self.action,
            &self.target,
        ] {
            // The length makes the text of each record unique.
            write!(text, "{}:{part};", part.len()).expect("a String takes every write");
        }
        write!(text, "{};", self.number).expect("a String takes every write");
        write_sorted(&self.detail, &mut text);
        let hash = Sha256::digest(text.as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Writes JSON with sorted object keys, because stores may return them in another order.
fn write_sorted(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            text.push('{');
            for name in names {
                write!(text, "{}:", Value::from(name.as_str()))
                    .expect("a String takes every write");
                write_sorted(fields.get(name).unwrap_or(&Value::Null), text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_sorted(item, text);
                text.push(',');
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

/// The result of a check of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainCheck {
    /// How many records there are.
    pub records: u64,
    /// The hash of the newest record. Keep it in another place.
    pub hash: String,
    /// What is wrong, if the chain is broken.
    pub broken: Option<String>,
}

/// Writes and reads the audit log.
#[derive(Debug, Clone)]
pub struct Audit {
    engine: Arc<Engine>,
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl Audit {
    /// Opens the audit log in the engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Audit {
            engine,
            writing: Arc::default(),
        }
    }

    /// Creates an empty head, if there is none. On a full disk, documents can be changed but not
    /// created, so this must happen before.
    pub async fn prepare(&self) -> Result<(), StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        if store.document(AUDIT_TOPIC, HEAD, now).await?.is_none() {
            let absent = Expected::Absent;
            let put = store.put_document(AUDIT_TOPIC, HEAD, &Value::Null, absent, None, now);
            put.await?; // another node may have created it
        }
        Ok(())
    }

    /// Records an action. If that fails, the action stays done, and the log reports the error.
    pub async fn record(&self, actor: &Actor, action: &str, target: &str, detail: Value) {
        if let Err(error) = self.write(actor, action, target, detail).await {
            warn!(%error, action, target, key = actor.id, "writing the audit record failed");
        }
    }

    /// Records an action, and returns the error if that fails.
    pub(crate) async fn write(
        &self,
        actor: &Actor,
        action: &str,
        target: &str,
        detail: Value,
    ) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let store = self.engine.store();
        let busy =
            || StoreError::Unavailable("other nodes keep writing the audit log; retry".into());
        compare_and_set(busy, || async {
            let now = self.engine.now();
            let head = store.document(AUDIT_TOPIC, HEAD, now).await?;
            let expected = Expected::as_read(head.as_ref());
            let head = head.filter(|head| !head.value.is_null());
            let last = head.as_ref().map(|head| read(&head.value)).transpose()?;
            if let (Some(last), Some(head)) = (&last, &head) {
                store
                    .append(AUDIT_TOPIC, std::slice::from_ref(&head.value), last.at)
                    .await?;
            }
            let mut record = AuditRecord {
                number: last.as_ref().map_or(0, |last| last.number) + 1,
                at: now,
                key: actor.id.clone(),
                name: actor.name.clone(),
                action: action.to_owned(),
                target: target.to_owned(),
                detail: detail.clone(),
                previous: last.map_or_else(|| BEGINNING.to_owned(), |last| last.hash),
                hash: String::new(),
            };
            record.hash = record.computed_hash();
            let value = json!(record);
            let written = store
                .put_document(AUDIT_TOPIC, HEAD, &value, expected, None, now)
                .await?;
            Ok(written.version().map(|_| ()))
        })
        .await
    }

    /// Returns the newest record, which is not in the topic yet.
    async fn head(&self) -> Result<Option<AuditRecord>, StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let head = store.document(AUDIT_TOPIC, HEAD, now).await?;
        let head = head.filter(|head| !head.value.is_null());
        head.map(|head| read(&head.value)).transpose()
    }

    /// Checks every record against its predecessor, and that the record with the hash `known` still
    /// exists.
    pub async fn verify(&self, known: Option<&str>) -> Result<ChainCheck, StoreError> {
        let (mut number, mut hash) = (0, BEGINNING.to_owned());
        let (mut broken, mut found) = (None, known.is_none());
        self.walk(|record| {
            let fault = if record.number != number + 1 {
                Some("is out of order: records before it are missing")
            } else if record.previous != hash {
                Some("does not follow its predecessor")
            } else if record.computed_hash() != record.hash {
                Some("was changed")
            } else {
                None
            };
            broken = fault.map(|fault| format!("record {} {fault}", record.number));
            found |= known == Some(record.hash.as_str());
            (number, hash) = (record.number, record.hash);
            broken.is_none()
        })
        .await?;
        if broken.is_none() && !found {
            broken = Some(
                "the record with the given hash is missing: the chain was rewritten or cut"
                    .to_owned(),
            );
        }
        Ok(ChainCheck {
            records: number,
            hash,
            broken,
        })
    }

    /// Visits all records in order until `go_on` returns false. A record that was appended twice is
    /// visited once.
    async fn walk(&self, mut go_on: impl FnMut(AuditRecord) -> bool) -> Result<(), StoreError> {
        let store = self.engine.store();
        // Read the head first: if it moves to the topic meanwhile, it is found there.
        let head = self.head().await?;
        let (mut cursor, mut last) = (0, 0);
        let mut recent: VecDeque<AuditRecord> = VecDeque::new();
        loop {
            let page = store
                .records(AUDIT_TOPIC, RecordRange::After(cursor), RECORDS_MAX)
                .await?;
            let full = page.len() == RECORDS_MAX;
            for record in page {
                cursor = record.cursor;
                let record = read(&record.value)?;
                if recent.contains(&record) {
                    continue;
                }
                last = record.number;
                recent.push_front(record.clone());
                recent.truncate(RECENT_MAX);
                if !go_on(record) {
                    return Ok(());
                }
            }
            if !full {
                break;
            }
        }
        if let Some(head) = head.filter(|head| last < head.number) {
            go_on(head);
        }
        Ok(())
    }
}

fn read(value: &Value) -> Result<AuditRecord, StoreError> {
    AuditRecord::deserialize(value).map_err(|error| StoreError::Damaged {
        what: "a record of the audit log".to_owned(),
        cause: Some(error.into()),
    })
}

#[cfg(test)]
mod tests;
