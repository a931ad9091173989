//! Cases of documents and records, heartbeats and stored queue limits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_core::fairness::Rate;

use super::build::*;
use crate::{
    EXPIRED_MAX, Expected, Pause, QueueLimits, RecordRange, StoreError, Written, compare_and_set,
};

pub async fn documents_are_compare_and_set(store: &Opened) {
    let put = |value: i32, expected| async move {
        store
            .put_document("keys", "k", &json!(value), expected, None, at(1))
            .await
            .unwrap()
    };
    assert_eq!(put(0, Expected::Version(1)).await, Written::Conflict(None));
    assert_eq!(put(1, Expected::Absent).await, Written::Version(1));
    assert_eq!(put(2, Expected::Absent).await, Written::Conflict(Some(1)));
    assert_eq!(put(3, Expected::Version(1)).await, Written::Version(2));
    assert_eq!(
        put(4, Expected::Version(1)).await,
        Written::Conflict(Some(2))
    );
    assert_eq!(put(5, Expected::Any).await, Written::Version(3));
    let document = store.document("keys", "k", at(1)).await.unwrap().unwrap();
    assert_eq!(
        (document.version, document.value, document.updated_at),
        (3, json!(5), at(1))
    );
    assert_eq!(store.document("other", "k", at(1)).await.unwrap(), None);
}

pub async fn concurrent_changes_are_not_lost(store: &Opened) {
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let store = Arc::clone(store);
        writers.spawn(async move {
            compare_and_set(
                || StoreError::Unavailable("contended".into()),
                || async {
                    let found = store.document("a", "count", at(0)).await?;
                    let count = found.as_ref().and_then(|found| found.value.as_u64());
                    let (more, expected) = (
                        json!(count.unwrap_or(0) + 1),
                        Expected::as_read(found.as_ref()),
                    );
                    let put = store.put_document("a", "count", &more, expected, None, at(0));
                    Ok(put.await?.version())
                },
            )
            .await
        });
    }
    let versions = writers.join_all().await.into_iter().map(Result::unwrap);
    assert_eq!(versions.collect::<BTreeSet<u64>>(), (1..=10).collect());
    let found = store.document("a", "count", at(0)).await.unwrap().unwrap();
    assert_eq!(found.value, json!(10));
}

pub async fn a_change_that_always_loses_is_given_up(_: &Opened) {
    let refused: Result<(), &str> = compare_and_set(|| "contended", || async { Ok(None) }).await;
    assert_eq!(refused, Err("contended"));
}

pub async fn documents_are_listed_by_name(store: &Opened) {
    for (collection, name) in [("a", "z"), ("b", "x"), ("a", "m"), ("aa", "q")] {
        store
            .put_document(collection, name, &json!({}), Expected::Any, None, at(0))
            .await
            .unwrap();
    }
    let names: Vec<String> = store
        .documents("a", at(0))
        .await
        .unwrap()
        .into_iter()
        .map(|d| d.name)
        .collect();
    assert_eq!(names, ["m", "z"]);
    assert_eq!(store.documents("c", at(0)).await.unwrap(), []);
}

pub async fn names_of_documents_come_in_pages(store: &Opened) {
    for (collection, name) in [("a", "z"), ("b", "x"), ("a", "m"), ("aa", "q"), ("a", "n")] {
        store
            .put_document(collection, name, &json!({}), Expected::Any, None, at(0))
            .await
            .unwrap();
    }
    let names = |after: &'static str, limit| store.document_names("a", after, limit, at(0));
    assert_eq!(names("", 2).await.unwrap(), ["m", "n"]);
    assert_eq!(names("n", 2).await.unwrap(), ["z"]);
    assert_eq!(names("z", 2).await.unwrap(), [] as [&str; 0]);
}

pub async fn documents_are_removed_by_version(store: &Opened) {
    store
        .put_document("a", "k", &json!(1), Expected::Absent, None, at(0))
        .await
        .unwrap();
    let remove = |expected| async move { store.remove_document("a", "k", expected).await.unwrap() };
    assert_eq!(
        remove(Expected::Version(9)).await,
        Written::Conflict(Some(1))
    );
    assert_eq!(remove(Expected::Version(1)).await, Written::Version(1));
    assert_eq!(remove(Expected::Any).await, Written::Conflict(None));
    assert_eq!(store.document("a", "k", at(0)).await.unwrap(), None);
}

/// Writes a document that expires.
async fn put_expiring(
    store: &Opened,
    name: &str,
    expected: Expected,
    expires: u64,
    now: u64,
) -> Written {
    let (value, expires_at) = (json!(expires), Some(at(expires)));
    let put = store.put_document("a", name, &value, expected, expires_at, at(now));
    put.await.unwrap()
}

pub async fn an_expired_document_is_absent(store: &Opened) {
    put_expiring(store, "k", Expected::Absent, 10, 0).await;
    put_expiring(store, "later", Expected::Absent, 20, 0).await;
    let found = store.document("a", "k", at(9)).await.unwrap();
    assert_eq!(found.unwrap().expires_at, Some(at(10)));
    assert_eq!(store.documents("a", at(9)).await.unwrap().len(), 2);
    assert_eq!(store.document("a", "k", at(10)).await.unwrap(), None);
    let left = store.documents("a", at(10)).await.unwrap();
    assert_eq!((left.len(), left[0].name.as_str()), (1, "later"));
    let names = store.document_names("a", "", 1, at(10)).await.unwrap();
    assert_eq!(
        names,
        ["later"],
        "an expired document takes no place on a page"
    );
}

pub async fn a_put_over_an_expired_document_creates_it(store: &Opened) {
    put_expiring(store, "k", Expected::Absent, 10, 0).await;
    let again = put_expiring(store, "k", Expected::Any, 10, 1).await;
    assert_eq!(again, Written::Version(2));
    let early = put_expiring(store, "k", Expected::Absent, 30, 9).await;
    assert_eq!(early, Written::Conflict(Some(2)));
    let stale = put_expiring(store, "k", Expected::Version(2), 30, 10).await;
    assert_eq!(stale, Written::Conflict(None));
    let created = put_expiring(store, "k", Expected::Absent, 30, 10).await;
    assert_eq!(created, Written::Version(1));
    let lasting = store
        .put_document("a", "k", &json!(0), Expected::Version(1), None, at(20))
        .await;
    assert_eq!(lasting.unwrap(), Written::Version(2));
    let kept = store.document("a", "k", at(1000)).await.unwrap();
    assert_eq!(kept.unwrap().expires_at, None, "each put sets it");
}

pub async fn expired_documents_are_removed_the_longest_expired_first(store: &Opened) {
    for number in 1..=5 {
        let (name, expires) = (format!("n{number}"), 20 - number);
        put_expiring(store, &name, Expected::Absent, expires, 0).await;
    }
    store
        .put_document("b", "k", &json!(0), Expected::Absent, None, at(0))
        .await
        .unwrap();
    assert_eq!(store.remove_expired(2, at(17)).await.unwrap(), 2);
    // Read with an earlier time, at which none had expired, to see which still exist.
    let left = store.document_names("a", "", 10, at(0)).await.unwrap();
    assert_eq!(left, ["n1", "n2", "n3"]);
    assert_eq!(store.remove_expired(10, at(17)).await.unwrap(), 1);
    assert_eq!(store.remove_expired(10, at(17)).await.unwrap(), 0);
    assert_eq!(store.documents("a", at(0)).await.unwrap().len(), 2);
    assert_eq!(store.documents("b", at(99)).await.unwrap().len(), 1);
    // A document that expired and still exists can be removed explicitly.
    let removed = store.remove_document("a", "n1", Expected::Version(1));
    assert_eq!(removed.await.unwrap(), Written::Version(1));
    assert_eq!(store.remove_expired(10, at(99)).await.unwrap(), 1);
}

pub async fn a_step_removes_a_bounded_number_of_expired_documents(store: &Opened) {
    for number in 0..=EXPIRED_MAX {
        put_expiring(store, &format!("n{number}"), Expected::Absent, 1, 0).await;
    }
    let removed = store.remove_expired(usize::MAX, at(1)).await.unwrap();
    assert_eq!(removed, EXPIRED_MAX);
    assert_eq!(store.remove_expired(usize::MAX, at(1)).await.unwrap(), 1);
}

pub async fn records_are_read_in_order_from_a_cursor(store: &Opened) {
    store
        .append("audit", &[json!(1), json!(2)], at(1))
        .await
        .unwrap();
    store.append("other", &[json!("x")], at(1)).await.unwrap();
    store.append("audit", &[json!(3)], at(2)).await.unwrap();
    let first = store
        .records("audit", RecordRange::OLDEST, 2)
        .await
        .unwrap();
    let values: Vec<_> = first.iter().map(|record| record.value.clone()).collect();
    assert_eq!(values, [json!(1), json!(2)]);
    let rest = store
        .records("audit", RecordRange::After(first[1].cursor), 10)
        .await
        .unwrap();
    assert_eq!(
        (rest.len(), &rest[0].value, rest[0].at),
        (1, &json!(3), at(2))
    );
    assert!(rest[0].cursor > first[1].cursor);
    assert_eq!(
        store
            .records("none", RecordRange::OLDEST, 10)
            .await
            .unwrap(),
        []
    );
}

pub async fn records_are_read_from_the_newest(store: &Opened) {
    let three = [json!(1), json!(2), json!(3)];
    store.append("audit", &three, at(1)).await.unwrap();
    store.append("other", &[json!("x")], at(1)).await.unwrap();
    let newest = store
        .records("audit", RecordRange::NEWEST, 2)
        .await
        .unwrap();
    let values: Vec<_> = newest.iter().map(|record| record.value.clone()).collect();
    assert_eq!(values, [json!(3), json!(2)]);
    let before = RecordRange::Before(newest[1].cursor);
    let older = store.records("audit", before, 10).await.unwrap();
    assert_eq!((older.len(), &older[0].value), (1, &json!(1)));
}

pub async fn records_are_trimmed_from_the_oldest(store: &Opened) {
    for now in 1..=5 {
        store.append("audit", &[json!(now)], at(now)).await.unwrap();
    }
    assert_eq!(store.trim("audit", at(4), 2).await.unwrap(), 2);
    assert_eq!(store.trim("audit", at(4), 10).await.unwrap(), 1);
    assert_eq!(store.trim("audit", at(4), 10).await.unwrap(), 0);
    let left = store
        .records("audit", RecordRange::OLDEST, 10)
        .await
        .unwrap();
    assert_eq!(
        left.iter()
            .map(|record| record.value.clone())
            .collect::<Vec<_>>(),
        [json!(4), json!(5)]
    );
    store.trim("audit", at(100), 10).await.unwrap();
    store.append("audit", &[json!(6)], at(6)).await.unwrap();
    let next = store
        .records("audit", RecordRange::After(left[1].cursor), 10)
        .await
        .unwrap();
    assert_eq!(next.len(), 1, "cursors are never used again");
}

pub async fn heartbeats_are_kept(store: &Opened) {
    store
        .beat("b", &json!({"version": 1}), at(1))
        .await
        .unwrap();
    store.beat("a", &json!({}), at(2)).await.unwrap();
    store
        .beat("b", &json!({"version": 2}), at(3))
        .await
        .unwrap();
    let nodes = store.nodes().await.unwrap();
    let beats: Vec<_> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node.beat_at))
        .collect();
    assert_eq!(beats, [("a", at(2)), ("b", at(3))]);
    assert_eq!(nodes[1].about, json!({"version": 2}));
    store.remove_node("a").await.unwrap();
    assert_eq!(store.nodes().await.unwrap().len(), 1);
}

pub async fn queue_limits_are_kept(store: &Opened) {
    assert!(store.queues().await.unwrap().is_empty());
    let limits = QueueLimits {
        paused: Some(Pause {
            by: "ann".into(),
            at: at(1),
            reason: Some("a \"deploy\"".into()),
        }),
        max_depth: Some(5),
        concurrency: Some(2),
        rate: Some(Rate {
            count: 3,
            period: Duration::from_millis(1500),
        }),
        unreadable: false,
    };
    store
        .put_queue(&queue("mail"), &limits, None)
        .await
        .unwrap();
    store
        .put_queue(&queue("b"), &QueueLimits::default(), None)
        .await
        .unwrap();
    let queues = store.queues().await.unwrap();
    assert_eq!(queues.len(), 2);
    assert_eq!(queues[&queue("mail")], limits);
}

pub async fn queue_limits_are_compare_and_set(store: &Opened) {
    let (name, none) = (queue("mail"), QueueLimits::default());
    let bounded = QueueLimits {
        max_depth: Some(5),
        ..QueueLimits::default()
    };
    let paused = QueueLimits {
        paused: Some(Pause {
            by: "ann".into(),
            at: at(1),
            reason: None,
        }),
        ..bounded.clone()
    };
    let put = async |limits: &QueueLimits, expected: &QueueLimits| {
        store
            .put_queue(&name, limits, Some(expected))
            .await
            .unwrap()
    };
    assert!(
        put(&bounded, &none).await,
        "a queue without limits has the default ones"
    );
    assert!(!put(&paused, &none).await, "the limits have changed since");
    assert!(put(&paused, &bounded).await);
    assert!(!put(&none, &bounded).await);
    assert_eq!(store.queues().await.unwrap()[&name], paused);
}
