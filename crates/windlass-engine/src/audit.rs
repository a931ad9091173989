//! Who did what: a record of every action of an operator and of every removal of dead jobs, each
//! chained to the one before it by a hash.
//!
//! A record holds the hash of its predecessor, so a record that was changed, removed or slipped in later breaks the chain, and
//! [`Audit::verify`] says where. The newest record lies in a document of its own (the head) and moves to the topic when the next
//! one comes: so the head is compared and set, several nodes write one chain, and a crash between the two steps loses nothing
//! (a record that was appended twice is read once). One who may write to the store itself could write a whole new chain:
//! keep the hash that `verify` prints elsewhere, and give it to the next one.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tracing::warn;
use windlass_core::Timestamp;
use windlass_store::{Expected, RECORDS_MAX, StoreError, Written};

use crate::engine::Engine;

/// The topic of the records.
pub const AUDIT_TOPIC: &str = "audit";
const HEAD: &str = "head";
/// So often another node may be first before a record is given up.
const TRIES_MAX: usize = 100;
/// A node that was slow to append a record again is at most so many records behind.
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

/// JSON with the names of each object in order, whatever order a store keeps them in.
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
        for _ in 0..TRIES_MAX {
            let now = self.engine.now();
            let head = store.document(AUDIT_TOPIC, HEAD, now).await?;
            let (last, expected) = match &head {
                None => (None, Expected::Absent),
                Some(head) => (Some(read(&head.value)?), Expected::Version(head.version)),
            };
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
            if let Written::Version(_) = written {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable(
            "other nodes were always first".into(),
        ))
    }

    /// Up to `limit` records behind the one with this number, oldest first.
    pub async fn list(&self, after: u64, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let mut listed = Vec::new();
        self.walk(|record| {
            if record.number > after && listed.len() < limit {
                listed.push(record);
            }
            listed.len() < limit
        })
        .await?;
        Ok(listed)
    }

    /// Checks every record against the one before it, and that the one with the hash `known` is still there.
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
                "the record with the given hash is gone: the chain was written anew or cut"
                    .to_owned(),
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
        let now = self.engine.now();
        let head = store.document(AUDIT_TOPIC, HEAD, now).await?;
        let head = head.map(|head| read(&head.value)).transpose()?;
        let (mut cursor, mut last) = (0, 0);
        let mut recent: VecDeque<AuditRecord> = VecDeque::new();
        loop {
            let page = store.records(AUDIT_TOPIC, cursor, RECORDS_MAX).await?;
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
mod tests {
    use windlass_memory::MemoryStore;

    use super::*;
    use crate::{Ids, SystemClock};

    fn local() -> Actor {
        Actor {
            id: "local".to_owned(),
            name: "local".to_owned(),
        }
    }

    fn engine() -> Arc<Engine> {
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(SystemClock::new()));
        Arc::new(Engine::new(store, clock, Ids::seeded(1)))
    }

    async fn with_records(engine: &Arc<Engine>, count: u64) -> Audit {
        let audit = Audit::new(Arc::clone(engine));
        for number in 0..count {
            let detail = json!({"b": number, "a": [1, {"z": null}]});
            audit.record(&local(), "queue.pause", "mail", detail).await;
        }
        audit
    }

    #[tokio::test]
    async fn records_are_chained_listed_in_order_and_verified() {
        let audit = with_records(&engine(), 5).await;
        let listed = audit.list(0, 10).await.unwrap();
        let numbers: Vec<_> = listed.iter().map(|record| record.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        assert_eq!(audit.list(2, 2).await.unwrap(), &listed[2..4]);
        let verified = audit.verify(Some(&listed[2].hash)).await.unwrap();
        let hash = listed[4].hash.clone();
        assert_eq!(
            verified,
            Verified {
                records: 5,
                hash,
                broken: None
            }
        );
        let other = audit.verify(Some("another")).await.unwrap();
        assert!(other.broken.unwrap().contains("is gone"));
        let empty = Audit::new(engine()).verify(None).await.unwrap();
        assert_eq!((empty.records, empty.broken), (0, None));
    }

    #[tokio::test]
    async fn several_nodes_write_one_chain() {
        let engine = engine();
        let nodes = [
            with_records(&engine, 1).await,
            with_records(&engine, 1).await,
        ];
        let mut writers = tokio::task::JoinSet::new();
        for number in 0..40 {
            let node = nodes[number % 2].clone();
            writers.spawn(async move {
                node.record(&local(), "job.cancel", "x", Value::Null).await;
            });
        }
        writers.join_all().await;
        let verified = nodes[0].verify(None).await.unwrap();
        assert_eq!((verified.records, verified.broken), (42, None));
    }

    /// Appends to a fresh store what `change` makes of a good chain; the head stays the good one.
    async fn tampered(change: impl Fn(&mut Vec<Value>)) -> String {
        let from = engine();
        with_records(&from, 5).await;
        let mut values: Vec<Value> = Vec::new();
        for record in from.store().records(AUDIT_TOPIC, 0, 100).await.unwrap() {
            values.push(record.value);
        }
        let head = from
            .store()
            .document(AUDIT_TOPIC, HEAD, from.now())
            .await
            .unwrap()
            .unwrap();
        change(&mut values);
        let to = engine();
        let (store, now) = (to.store(), to.now());
        store.append(AUDIT_TOPIC, &values, now).await.unwrap();
        let anything = Expected::Anything;
        store
            .put_document(AUDIT_TOPIC, HEAD, &head.value, anything, None, now)
            .await
            .unwrap();
        let verified = Audit::new(to).verify(None).await.unwrap();
        verified.broken.unwrap_or_default()
    }

    #[tokio::test]
    async fn what_was_changed_removed_or_slipped_in_is_found() {
        assert_eq!(tampered(|_| {}).await, "");
        for place in [1, 2, 3] {
            let twice = |values: &mut Vec<Value>| values.insert(place, values[1].clone());
            assert_eq!(
                tampered(twice).await,
                "",
                "appended twice, by a crash or a slow node"
            );
        }
        for field in ["action", "target", "key", "name", "detail", "at"] {
            let change = |values: &mut Vec<Value>| {
                values[1][field] = match field {
                    "at" => json!("2020-01-01T00:00:00Z"),
                    _ => json!("other"),
                };
            };
            assert_eq!(tampered(change).await, "record 2 was changed", "{field}");
        }
        let removed = tampered(|values| drop(values.remove(1))).await;
        assert!(
            removed.starts_with("record 3 is not the next one"),
            "{removed}"
        );
        let cut = tampered(|values| values.truncate(2)).await;
        assert!(cut.starts_with("record 5 is not the next one"), "{cut}");
        let rehashed = tampered(|values| {
            let mut record: AuditRecord = serde_json::from_value(values[1].clone()).unwrap();
            record.action = "other".to_owned();
            record.hash = record.computed_hash();
            values[1] = json!(record);
        });
        assert_eq!(rehashed.await, "record 3 does not follow the one before it");
    }
}
