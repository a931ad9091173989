//! The chain: its order, what breaks it, and several writers.

use windlass_memory::MemoryStore;
use windlass_store::RecordRange;

use super::*;
use crate::{Ids, SystemClock};

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

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
async fn records_are_chained_and_verified() {
    let audit = with_records(&engine(), 5).await;
    let mut listed = all(&audit).await;
    listed.reverse();
    let verified = audit.verify(Some(&listed[2].hash)).await.unwrap();
    let hash = listed[4].hash.clone();
    assert_eq!(
        verified,
        ChainCheck {
            records: 5,
            hash,
            broken: None
        }
    );
    let other = audit.verify(Some("another")).await.unwrap();
    assert!(other.broken.unwrap().contains("is missing"));
    let empty = Audit::new(engine()).verify(None).await.unwrap();
    assert_eq!((empty.records, empty.broken), (0, None));
}

#[tokio::test]
async fn the_first_record_needs_no_new_document_once_there_is_room_for_it() {
    let engine = engine();
    let audit = Audit::new(Arc::clone(&engine));
    let version = || async {
        let head = engine.store().document(AUDIT_TOPIC, HEAD, engine.now());
        head.await.unwrap().map(|head| head.version)
    };
    for _ in 0..2 {
        audit.prepare().await.unwrap();
        assert_eq!(version().await, Some(1));
    }
    assert!(all(&audit).await.is_empty());
    let verified = audit.verify(None).await.unwrap();
    assert_eq!((verified.records, verified.broken), (0, None));
    with_records(&engine, 1).await;
    assert_eq!(version().await, Some(2), "the document was changed");
    audit.prepare().await.unwrap();
    with_records(&engine, 1).await;
    let verified = audit.verify(None).await.unwrap();
    assert_eq!((verified.records, verified.broken), (2, None));
}

async fn all(audit: &Audit) -> Vec<AuditRecord> {
    let page = audit.list(&AuditFilter::default(), None, 1000).await;
    page.unwrap().records
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
    for record in from
        .store()
        .records(AUDIT_TOPIC, RecordRange::OLDEST, 100)
        .await
        .unwrap()
    {
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
    let anything = Expected::Any;
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
    assert!(removed.starts_with("record 3 is out of order"), "{removed}");
    let cut = tampered(|values| values.truncate(2)).await;
    assert!(cut.starts_with("record 5 is out of order"), "{cut}");
    let rehashed = tampered(|values| {
        let mut record: AuditRecord = serde_json::from_value(values[1].clone()).unwrap();
        record.action = "other".to_owned();
        record.hash = record.computed_hash();
        values[1] = json!(record);
    });
    assert_eq!(rehashed.await, "record 3 does not follow its predecessor");
}

fn numbers(page: &AuditPage) -> Vec<u64> {
    page.records.iter().map(|record| record.number).collect()
}

#[tokio::test]
async fn the_newest_records_come_first_in_pages_that_a_new_record_does_not_shift() {
    let engine = engine();
    let audit = with_records(&engine, 5).await;
    let everything = AuditFilter::default();
    let first = audit.list(&everything, None, 1).await.unwrap();
    assert_eq!(numbers(&first), [5], "the head alone");
    with_records(&engine, 1).await; // which moves the head to the topic
    let second = audit.list(&everything, first.next, 2).await.unwrap();
    let third = audit.list(&everything, second.next, 2).await.unwrap();
    assert_eq!(
        (numbers(&second), numbers(&third)),
        (vec![4, 3], vec![2, 1])
    );
    assert_eq!((third.next, third.scanned), (None, 2));
    let whole = audit.list(&everything, None, 6).await.unwrap();
    assert_eq!(
        (numbers(&whole), whole.next),
        (vec![6, 5, 4, 3, 2, 1], None)
    );
    let empty = Audit::new(self::engine()).list(&everything, None, 6).await;
    assert_eq!(empty.unwrap(), AuditPage::default());
}

#[tokio::test]
async fn a_record_that_was_appended_twice_is_listed_once_and_in_its_order() {
    let engine = engine();
    let audit = with_records(&engine, 6).await;
    let store = engine.store();
    let topic = store
        .records(AUDIT_TOPIC, RecordRange::OLDEST, 10)
        .await
        .unwrap();
    let third = [topic[2].value.clone()];
    store
        .append(AUDIT_TOPIC, &third, engine.now())
        .await
        .unwrap();
    let head = store.document(AUDIT_TOPIC, HEAD, engine.now()).await;
    let head = [head.unwrap().unwrap().value];
    store
        .append(AUDIT_TOPIC, &head, engine.now())
        .await
        .unwrap();
    for limit in 1..=7 {
        let (mut listed, mut next) = (Vec::new(), None);
        for _ in 0..10 {
            let page = audit.list(&AuditFilter::default(), next, limit).await;
            let page = page.unwrap();
            listed.extend(numbers(&page));
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(listed, [6, 5, 4, 3, 2, 1], "pages of {limit}");
    }
}

#[tokio::test]
async fn records_are_found_by_who_what_and_when() {
    let engine = engine();
    let audit = Audit::new(Arc::clone(&engine));
    let ann = Actor {
        id: "k1".to_owned(),
        name: "ann".to_owned(),
    };
    audit.record(&ann, "job.edit", "a", Value::Null).await;
    audit.record(&local(), "job.cancel", "b", Value::Null).await;
    audit
        .record(&local(), "jobs.run_now", "a", Value::Null)
        .await;
    let text = |text: &str| Some(text.to_owned());
    let any = AuditFilter::default;
    let (before, after) = (
        Some(Timestamp::UNIX_EPOCH),
        Some(engine.now().saturating_add(DAY)),
    );
    for (filter, expected) in [
        (
            AuditFilter {
                key: text("ann"),
                ..any()
            },
            vec![1],
        ),
        (
            AuditFilter {
                key: text("k1"),
                ..any()
            },
            vec![1],
        ),
        (
            AuditFilter {
                key: text("an"),
                ..any()
            },
            vec![],
        ),
        (
            AuditFilter {
                action: text("job."),
                ..any()
            },
            vec![2, 1],
        ),
        (
            AuditFilter {
                action: text("job.cancel"),
                ..any()
            },
            vec![2],
        ),
        (
            AuditFilter {
                action: text("job"),
                ..any()
            },
            vec![],
        ),
        (
            AuditFilter {
                target: text("a"),
                ..any()
            },
            vec![3, 1],
        ),
        (
            AuditFilter {
                from: before,
                ..any()
            },
            vec![3, 2, 1],
        ),
        (
            AuditFilter {
                from: after,
                ..any()
            },
            vec![],
        ),
        (
            AuditFilter {
                before: after,
                ..any()
            },
            vec![3, 2, 1],
        ),
        (AuditFilter { before, ..any() }, vec![]),
        (
            AuditFilter {
                key: text("local"),
                target: text("a"),
                ..any()
            },
            vec![3],
        ),
    ] {
        let page = audit.list(&filter, None, 10).await.unwrap();
        assert_eq!(numbers(&page), expected, "{filter:?}");
        assert_eq!(page.next, None);
    }
    let late = AuditFilter {
        from: after,
        ..any()
    };
    let page = audit.list(&late, None, 10).await.unwrap();
    assert_eq!(page.scanned, 1, "older records cannot match");
}

#[tokio::test]
async fn a_page_looks_at_a_bounded_number_of_records_and_the_next_one_goes_on() {
    let engine = engine();
    with_records(&engine, 1).await;
    let store = engine.store();
    let head = store.document(AUDIT_TOPIC, HEAD, engine.now()).await;
    let template: AuditRecord = serde_json::from_value(head.unwrap().unwrap().value).unwrap();
    let values: Vec<Value> = (1..=12_000)
        .map(|number| {
            let target = if number == 7 { "seven" } else { "other" };
            json!(AuditRecord {
                number,
                target: target.to_owned(),
                ..template.clone()
            })
        })
        .collect();
    for part in values.chunks(RECORDS_MAX) {
        store.append(AUDIT_TOPIC, part, engine.now()).await.unwrap();
    }
    let audit = Audit::new(Arc::clone(&engine));
    let filter = AuditFilter {
        target: Some("seven".to_owned()),
        ..AuditFilter::default()
    };
    let first = audit.list(&filter, None, 10).await.unwrap();
    assert!(
        first.records.is_empty() && first.scanned < 11_000,
        "{first:?}"
    );
    let second = audit.list(&filter, first.next, 10).await.unwrap();
    assert_eq!((numbers(&second), second.next), (vec![7], None));
    assert_eq!(
        first.scanned + second.scanned,
        12_001,
        "each once, and the head"
    );
}

#[tokio::test]
async fn a_page_of_large_records_ends_early() {
    let engine = engine();
    let audit = Audit::new(Arc::clone(&engine));
    for _ in 0..4 {
        let detail = json!("x".repeat(3 * 1024 * 1024));
        audit.record(&local(), "queue.pause", "mail", detail).await;
    }
    let page = audit.list(&AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!(numbers(&page), [4, 3]);
    let rest = audit.list(&AuditFilter::default(), page.next, 10).await;
    assert_eq!(numbers(&rest.unwrap()), [2, 1]);
}
