//! Cases of finding queues with due jobs.

use windlass_core::{Concurrency, Job, QueueName, QueuePattern, Report};

use super::build::*;
use crate::{Change, DueQueues, ENQUEUE_MAX, PAGE_MAX, Pause, QueueLimits};

fn look() -> DueQueues {
    DueQueues {
        kinds: [kind("k")].into(),
        pattern: QueuePattern::all(),
        after: None,
        limit: 100,
    }
}

/// Stores a job of the kind `k` in each of the queues, due at once.
async fn fill(store: &Opened, queues: &[&str]) {
    let numbered = queues.iter().zip(1..);
    let jobs = numbered.map(|(name, number)| of_kind(number, "k", name));
    put(store, jobs.collect()).await;
}

fn of_kind(number: u64, text: &str, name: &str) -> Job {
    Job {
        kind: kind(text),
        queue: queue(name),
        ..job(number)
    }
}

async fn found(store: &Opened, look: &DueQueues, seconds: u64) -> Vec<String> {
    let queues = store.due_queues(look, at(seconds)).await.unwrap();
    queues.iter().map(ToString::to_string).collect()
}

pub async fn names_queues_with_due_jobs_of_the_kinds(store: &Opened) {
    assert!(found(store, &look(), 1).await.is_empty());
    fill(store, &["b", "a"]).await;
    let later = Job {
        run_at: at(10),
        ..of_kind(11, "k", "later")
    };
    let others = vec![of_kind(12, "m", "m"), of_kind(13, "n", "n"), later];
    put(store, others).await;
    put(store, vec![of_kind(14, "k", "a"), of_kind(15, "m", "a")]).await;
    assert_eq!(found(store, &look(), 1).await, ["a", "b"]);
    let kinds = [kind("k"), kind("m"), kind("none")].into();
    let two = DueQueues { kinds, ..look() };
    assert_eq!(found(store, &two, 1).await, ["a", "b", "m"]);
    // The job became due by time alone; no claim has looked at it since.
    assert_eq!(found(store, &look(), 10).await, ["a", "b", "later"]);
    let none = DueQueues {
        kinds: [].into(),
        ..look()
    };
    assert!(found(store, &none, 10).await.is_empty());
}

pub async fn comes_in_pages_by_name(store: &Opened) {
    // Sorted by bytes. A name that starts with another name is not skipped.
    fill(store, &["a", "a-", "a-1", "a.", "aa", "B", "_", "b"]).await;
    let ordered = ["B", "_", "a", "a-", "a-1", "a.", "aa", "b"];
    assert_eq!(found(store, &look(), 1).await, ordered);
    for limit in [0, 1, 3, 8] {
        for start in 0..ordered.len() {
            let page = DueQueues {
                after: Some(queue(ordered[start])),
                limit,
                ..look()
            };
            let rest = &ordered[start + 1..];
            let expected = &rest[..limit.min(rest.len())];
            assert_eq!(found(store, &page, 1).await, expected, "{limit} {start}");
        }
    }
}

pub async fn follows_the_pattern(store: &Opened) {
    fill(
        store,
        &["tenant", "tenant-1", "tenant-2", "tenant_3", "my-tenant-4"],
    )
    .await;
    for (pattern, expected) in [
        ("tenant-*", &["tenant-1", "tenant-2"][..]),
        ("tenant*", &["tenant", "tenant-1", "tenant-2", "tenant_3"]),
        ("tenant", &["tenant"]),
        ("tenant_*", &["tenant_3"]),
        ("*-2", &["tenant-2"]),
        ("t*n*-1", &["tenant-1"]),
    ] {
        let pattern = QueuePattern::new(pattern).unwrap();
        let matching = DueQueues { pattern, ..look() };
        assert_eq!(found(store, &matching, 1).await, expected);
        let (after, limit) = (Some(queue("tenant-1")), 1);
        let page = DueQueues {
            after,
            limit,
            ..matching
        };
        let after_page = expected.iter().find(|name| **name > "tenant-1");
        assert_eq!(
            found(store, &page, 1).await,
            Vec::from_iter(after_page.copied())
        );
    }
}

pub async fn leaves_out_paused_queues(store: &Opened) {
    fill(store, &["a", "b", "c"]).await;
    let (by, now) = ("ann".to_owned(), at(0));
    let paused = QueueLimits {
        paused: Some(Pause {
            by,
            at: now,
            reason: None,
        }),
        ..QueueLimits::default()
    };
    for name in ["a", "b"] {
        store.put_queue(&queue(name), &paused, None).await.unwrap();
    }
    let first = DueQueues { limit: 1, ..look() };
    assert_eq!(found(store, &first, 1).await, ["c"]);
    let resumed = QueueLimits::default();
    store.put_queue(&queue("b"), &resumed, None).await.unwrap();
    assert_eq!(found(store, &look(), 1).await, ["b", "c"]);
}

pub async fn leaves_out_running_and_finished_jobs(store: &Opened) {
    fill(store, &["default"]).await;
    let taken = take_one(store, at(1)).await;
    assert!(found(store, &look(), 1).await.is_empty());
    settle_one(store, &taken, failed(), at(2)).await;
    assert!(found(store, &look(), 2).await.is_empty());
    assert_eq!(found(store, &look(), 1000).await, ["default"], "a retry");
    let again = take_one(store, at(1000)).await;
    settle_one(store, &again, Report::Succeeded(None), at(1001)).await;
    assert!(found(store, &look(), 1001).await.is_empty());
    put(store, vec![of_kind(2, "k", "default")]).await;
    let cancelled = store
        .change(&[id(2)], &Change::Cancel, None, at(1002))
        .await;
    cancelled.unwrap();
    assert!(found(store, &look(), 1002).await.is_empty());
}

pub async fn includes_queues_that_a_limit_holds_back(store: &Opened) {
    let keyed = |number| Job {
        concurrency: Some(Concurrency {
            key: key("c"),
            limit: 1,
        }),
        ..of_kind(number, "k", "default")
    };
    put(store, vec![keyed(1), keyed(2)]).await;
    let first = take_one(store, at(1)).await;
    assert!(take(store, 1, at(1)).await.is_empty());
    assert_eq!(found(store, &look(), 1).await, ["default"]);
    settle_one(store, &first, Report::Succeeded(None), at(2)).await;
    take_one(store, at(2)).await;
    assert!(found(store, &look(), 2).await.is_empty());
    let overdue = Job {
        deadline: Some(at(5)),
        ..of_kind(3, "k", "late")
    };
    put(store, vec![overdue]).await;
    assert_eq!(found(store, &look(), 6).await, ["late"]);
    store.sweep(10, at(6), 0).await.unwrap();
    assert!(found(store, &look(), 6).await.is_empty());
}

pub async fn finds_some_of_ten_thousand(store: &Opened) {
    let name = |number: u64| format!("q{number:05}");
    let all: Vec<Job> = (0..10_000)
        .map(|number| {
            let kind = if number % 100 == 7 { "k" } else { "other" };
            of_kind(number, kind, &name(number))
        })
        .collect();
    for part in all.chunks(ENQUEUE_MAX) {
        put(store, part.to_vec()).await;
    }
    let expected: Vec<String> = (0..100).map(|number| name(number * 100 + 7)).collect();
    assert_eq!(found(store, &look(), 1).await, expected);
    let kinds = [kind("other"), kind("k")].into();
    let mut page = DueQueues {
        kinds,
        limit: PAGE_MAX + 1,
        ..look()
    };
    let mut all: Vec<QueueName> = Vec::new();
    while all.len() <= 10_000 {
        let queues = store.due_queues(&page, at(1)).await.unwrap();
        assert!(queues.len() <= PAGE_MAX);
        let Some(last) = queues.last() else { break };
        page.after = Some(last.clone());
        all.extend(queues);
    }
    assert_eq!(all.len(), 10_000);
    assert!(all.is_sorted());
}
