//! Cases of unreadable rows: a newer version wrote one row of each kind, and no verb fails for the
//! other rows.
//!
//! For drivers that keep rows: [`prepare`] a store, make the rows unreadable that [`damaged`] and
//! the constants name, and [`check`] it.

use serde_json::json;
use windlass_core::retry::{Preset, RetryPolicy};
use windlass_core::{Edit, Job, JobId, Report, Revival, State};

use super::build::{
    Opened, at, attempt_of, claim, edit_one, failed, id, job, jobs, put, queue, report, settle_one,
    state_of, take, worker,
};
use crate::{
    Change, Changed, Claim, Enqueue, Enqueued, Expected, Filter, Page, QueueLimits, RecordRange,
    Renewed, Settled, StoreError, WorkerLocation,
};

/// The jobs whose options the driver makes unreadable: one waiting, one running, two finished, one
/// overdue.
pub fn damaged() -> [JobId; 5] {
    [3, 21, 31, 33, 41].map(id)
}

/// The job whose first attempt gets an unknown outcome.
pub const ATTEMPT: u64 = 32;
/// The `max_attempts` in the policy of one claim, which the driver makes unreadable.
pub const CLAIM_POLICY: &str = "77";
/// The queue whose limits the driver makes unreadable. The nodes, documents and records to make
/// unreadable have `bad` in their values.
pub const QUEUE: &str = "limited";

fn in_queue(name: &str, number: u64) -> Job {
    Job {
        queue: queue(name),
        ..job(number)
    }
}

async fn run(store: &Opened, name: &str, limit: u32, second: u64) -> Vec<Job> {
    let request = Claim {
        queue: queue(name),
        worker_location: WorkerLocation::Remote,
        ..claim(limit)
    };
    store.claim(&request, at(second)).await.unwrap().jobs
}

pub async fn prepare(store: &Opened) {
    put(store, jobs(1..11)).await;
    put(store, (21..26).map(|n| in_queue("running", n)).collect()).await;
    assert_eq!(run(store, "running", 4, 0).await.len(), 4);
    let policy = Preset::Standard.policy().to_json();
    let policy = policy.to_string().replace("25", CLAIM_POLICY);
    let policy: RetryPolicy = serde_json::from_str(&policy).unwrap();
    let request = Claim {
        queue: queue("running"),
        worker_location: WorkerLocation::Remote,
        retry: worker(policy),
        ..claim(1)
    };
    assert_eq!(store.claim(&request, at(0)).await.unwrap().jobs.len(), 1);
    put(store, (31..33).map(|n| in_queue("dead", n)).collect()).await;
    for (second, end) in [(0, Report::Snoozed { until: at(1) }), (1, failed())] {
        let running = run(store, "dead", 2, second).await;
        assert_eq!(running.len(), 2);
        for job in &running {
            settle_one(store, job, end.clone(), at(second)).await;
        }
    }
    store
        .change(&[31, 32].map(id), &Change::Cancel, None, at(1))
        .await
        .unwrap();
    put(store, (33..35).map(|n| in_queue("done", n)).collect()).await;
    for job in run(store, "done", 2, 0).await {
        settle_one(store, &job, Report::Succeeded(None), at(0)).await;
    }
    let late = |number| Job {
        deadline: Some(at(5)),
        ..in_queue("late", number)
    };
    put(store, vec![late(41), late(42)]).await;
    for name in [QUEUE, "other"] {
        let limits = QueueLimits {
            concurrency: Some(9),
            ..QueueLimits::default()
        };
        store.put_queue(&queue(name), &limits, None).await.unwrap();
    }
    put(store, vec![in_queue(QUEUE, 51)]).await;
    for name in ["bad", "good"] {
        let value = json!({ "is": name });
        store.beat(name, &value, at(0)).await.unwrap();
        let absent = Expected::Absent;
        store
            .put_document("all", name, &value, absent, None, at(0))
            .await
            .unwrap();
        store.append("all", &[value], at(0)).await.unwrap();
    }
}

pub async fn check(store: &Opened) {
    claims(store).await;
    reads(store).await;
    changes(store).await;
    ends(store).await;
    documents_and_nodes(store).await;
}

async fn claims(store: &Opened) {
    let request = claim(20);
    let taken = store.claim(&request, at(0)).await.unwrap().jobs;
    let ids: Vec<JobId> = taken.iter().map(|job| job.id).collect();
    assert_eq!(ids, [1, 2, 4, 5, 6, 7, 8, 9, 10].map(id));
    let again = store.claim(&request, at(0)).await.unwrap().jobs;
    assert_eq!(again.len(), 9);
    assert!(take(store, 20, at(0)).await.is_empty());
    let named = Claim {
        jobs: Some([id(3)].into()),
        ..claim(1)
    };
    assert!(store.claim(&named, at(0)).await.unwrap().jobs.is_empty());
    let paused = run(store, QUEUE, 5, 0).await;
    assert!(paused.is_empty(), "no job starts beyond an unknown limit");
    for job in &taken {
        let settled = settle_one(store, job, Report::Succeeded(None), at(0)).await;
        assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    }
    let again = store.enqueue(Enqueue::all(vec![job(3)]), at(0));
    let again = again.await.unwrap();
    assert!(matches!(again[..], [Enqueued::Duplicate { .. }]));
}

async fn reads(store: &Opened) {
    for bad in damaged() {
        let alone = store.get(&[bad]).await.unwrap_err();
        assert!(
            matches!(&alone, StoreError::Unreadable { job, .. } if *job == bad),
            "{alone:?}"
        );
        let found = store.get(&[id(2), bad]).await.unwrap();
        assert!(found[0].is_some() && found[1].is_none(), "{found:?}");
    }
    let page = Page::first(100);
    let listed = store.list(&Filter::default(), page, at(0)).await.unwrap();
    let ids: Vec<JobId> = listed.jobs.iter().map(|job| job.id).collect();
    for number in (1..11).chain([22, 32, 34, 42]) {
        let bad = damaged().contains(&id(number));
        assert_eq!(ids.contains(&id(number)), !bad, "{number}");
    }
    let counts = store.counts(at(0)).await.unwrap();
    assert_eq!(counts[&queue("default")].succeeded, 9);
    let history = store.attempts(id(ATTEMPT), 10).await.unwrap();
    let attempts: Vec<u32> = history.iter().map(|row| row.attempt).collect();
    assert_eq!(attempts, [2], "without the unreadable one");
    assert_eq!(store.attempts(id(31), 10).await.unwrap().len(), 2);
}

async fn changes(store: &Opened) {
    let revival = Revival::default();
    let revived = store
        .change(
            &[31, 32].map(id),
            &Change::Revive(revival.clone()),
            None,
            at(1000),
        )
        .await
        .unwrap();
    assert_eq!(revived, [Changed::Unreadable, Changed::Now(State::Waiting)]);
    let run_now = store
        .change(&[31, 32].map(id), &Change::RunNow, None, at(1000))
        .await
        .unwrap();
    assert_eq!(run_now, [Changed::Unreadable, Changed::Now(State::Waiting)]);
    let resolved = store
        .change(&[31].map(id), &Change::Resolve, None, at(1000))
        .await
        .unwrap();
    assert_eq!(resolved, [Changed::Unreadable]);
    let edited = edit_one(store, id(3), &Edit::default(), at(1000)).await;
    assert_eq!(edited, Changed::Unreadable);
    let cancelled = store
        .change(&[3, 32].map(id), &Change::Cancel, None, at(1000))
        .await
        .unwrap();
    assert_eq!(
        cancelled,
        [Changed::Unreadable, Changed::Now(State::Cancelled)]
    );
    let purged = store
        .change(&[33, 34].map(id), &Change::Purge, None, at(1000))
        .await
        .unwrap();
    assert_eq!(purged, [Changed::Unreadable, Changed::Removed]);
}

async fn ends(store: &Opened) {
    let running = [21, 22, 23].map(|number| in_queue("running", number));
    let running = running.map(|job| Job { attempt: 1, ..job });
    let reports = running.iter().map(|job| report(job, failed())).collect();
    let settled = store.settle(reports, at(1)).await.unwrap();
    assert_eq!(settled[0], Settled::LeaseLost);
    for one in &settled[1..] {
        assert!(matches!(one, Settled::Done(_)), "{settled:?}");
    }
    let renewed = [24].map(|number| Job {
        attempt: 1,
        ..job(number)
    });
    let renewed = renewed.map(|job| attempt_of(&job));
    let lease = std::time::Duration::from_secs(30);
    let renewed = store.renew(&renewed, lease, at(1)).await.unwrap();
    assert!(matches!(renewed[..], [Renewed::Until { .. }]));
    // The longest overdue job is unreadable. It does not use up the limit of a sweep.
    for _ in 0..3 {
        store.sweep(1, at(2000), 0).await.unwrap();
    }
    store.sweep(100, at(2000), 0).await.unwrap();
    assert_eq!(state_of(store, id(24)).await, State::Waiting);
    let late = state_of(store, id(42)).await;
    assert!(matches!(late, State::Dead(_)), "{late:?}");
}

async fn documents_and_nodes(store: &Opened) {
    let queues = store.queues().await.unwrap();
    let paused = queues[&queue(QUEUE)].paused.as_ref().unwrap();
    assert!(paused.by.contains("cannot read"), "{paused:?}");
    let unreadable = &queues[&queue(QUEUE)];
    assert!(unreadable.unreadable);
    assert_eq!(queues[&queue("other")].concurrency, Some(9));
    // A writer that has read the unreadable limits can replace them.
    let none = QueueLimits::default();
    let name = queue(QUEUE);
    assert!(!store.put_queue(&name, &none, Some(&none)).await.unwrap());
    let replaced = store.put_queue(&name, &none, Some(unreadable)).await;
    assert!(replaced.unwrap());
    assert_eq!(store.queues().await.unwrap()[&name], none);
    assert_eq!(run(store, QUEUE, 5, 2000).await.len(), 1, "it runs again");
    let good = json!({ "is": "good" });
    let nodes = store.nodes().await.unwrap();
    assert!(matches!(&nodes[..], [node] if node.about == good));
    let documents = store.documents("all", at(0)).await.unwrap();
    assert!(matches!(&documents[..], [document] if document.value == good));
    store.document("all", "bad", at(0)).await.unwrap_err();
    let names = store.document_names("all", "", 10, at(0)).await.unwrap();
    assert_eq!(names, ["bad", "good"]);
    for records in [
        store.records("all", RecordRange::OLDEST, 10).await.unwrap(),
        store.records("all", RecordRange::NEWEST, 10).await.unwrap(),
    ] {
        assert!(matches!(&records[..], [record] if record.value == good));
    }
}
