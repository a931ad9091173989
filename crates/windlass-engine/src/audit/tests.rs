//! The chain: its order, what breaks it, and several writers.

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
