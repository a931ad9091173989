//! Who did what: a record of every action of an operator and of every removal of dead jobs, each
//! chained to the one before it by a hash.
//!
//! A record holds the hash of its predecessor, so a record that was changed, removed or slipped in
//! later breaks the chain, and [`Audit::verify`] says where. The newest record lies in a document
//! of its own (the head) and moves to the topic when the next one comes: so the head is compared
//! and set, several nodes write one chain, and a crash between the two steps loses nothing (a
//! record that was appended twice is read once). One who may write to the store itself could write
//! a whole new chain: keep the hash that `verify` prints elsewhere, and give it to the next one.

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
/// A node that appends a record a second time is at most this many records behind.
const RECENT_MAX: usize = 100;
/// What stands before the first record.
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
    /// Windlass itself, which removes what is too old.
    pub(crate) fn janitor() -> Self {
        Actor {
            id: "windlass".to_owned(),
            name: "janitor".to_owned(),
        }
    }
}

/// One action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Its place in the chain, from 1.
    pub number: u64,
    /// When it happened.
    pub at: Timestamp,
    /// The public id of the key, or the word of an actor without one: `local`, `windlass`.
    pub key: String,
    /// The name of the key.
    pub name: String,
    /// What was done: `queue.pause`.
    pub action: String,
    /// To what.
    pub target: String,
    /// How.
    pub detail: Value,
    /// The hash of the record before it.
    pub previous: String,
    /// The hash of all the rest.
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
            // With its length, so that no two records have the same text.
            write!(text, "{}:{part};", part.len()).expect("a String takes every write");
        }
        write!(text, "{};", self.number).expect("a String takes every write");
        write_sorted(&self.detail, &mut text);
        let hash = Sha256::digest(text.as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// JSON with the names of each object sorted, since stores may keep them in another order.
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

/// What a check of the chain found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// How many records there are.
    pub records: u64,
    /// The hash of the newest one: keep it elsewhere.
    pub hash: String,
    /// What is wrong, if anything is.
    pub broken: Option<String>,
}

/// Keeps records of what operators do, and of which dead jobs were removed.
#[derive(Debug, Clone)]
pub struct Audit {
    engine: Arc<Engine>,
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl Audit {
    /// In the engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Audit {
            engine,
            writing: Arc::default(),
        }
    }

    /// Makes room for the first record, as long as there is none: a full disk lets a document be
    /// changed, but none be created.
    pub async fn prepare(&self) -> Result<(), StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        if store.document(AUDIT_TOPIC, HEAD, now).await?.is_none() {
            let absent = Expected::Absent;
            let put = store.put_document(AUDIT_TOPIC, HEAD, &Value::Null, absent, None, now);
            put.await?; // another node may have been first
        }
        Ok(())
    }

    /// Records an action. What was done stays done if the record cannot be kept; the log says so.
    pub async fn record(&self, actor: &Actor, action: &str, target: &str, detail: Value) {
        if let Err(error) = self.write(actor, action, target, detail).await {
            warn!(%error, action, target, key = actor.id, "an action could not be recorded");
        }
    }

    /// Records an action, or says why it could not.
    pub(crate) async fn write(
        &self,
        actor: &Actor,
        action: &str,
        target: &str,
        detail: Value,
    ) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let store = self.engine.store();
        let always_second = || StoreError::Unavailable("other nodes were always first".into());
        compare_and_set(always_second, || async {
            let now = self.engine.now();
            let head = store.document(AUDIT_TOPIC, HEAD, now).await?;
            let expected = Expected::found(head.as_ref());
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

    /// The newest record, which is not in the topic yet.
    async fn head(&self) -> Result<Option<AuditRecord>, StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let head = store.document(AUDIT_TOPIC, HEAD, now).await?;
        let head = head.filter(|head| !head.value.is_null());
        head.map(|head| read(&head.value)).transpose()
    }

    /// Checks every record against the one before it, and that the one with the hash `known` is
    /// still there.
    pub async fn verify(&self, known: Option<&str>) -> Result<Verified, StoreError> {
        let (mut number, mut hash) = (0, BEGINNING.to_owned());
        let (mut broken, mut found) = (None, known.is_none());
        self.walk(|record| {
            let fault = if record.number != number + 1 {
                Some("is not the next one: records before it are missing")
            } else if record.previous != hash {
                Some("does not follow the one before it")
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
                "the record with the given hash is gone: the chain was rewritten or cut".to_owned(),
            );
        }
        Ok(Verified {
            records: number,
            hash,
            broken,
        })
    }

    /// All records in their order until `go_on` says no; one that was appended twice comes once.
    async fn walk(&self, mut go_on: impl FnMut(AuditRecord) -> bool) -> Result<(), StoreError> {
        let store = self.engine.store();
        // The head is read first: what moves to the topic meanwhile is then found there.
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
