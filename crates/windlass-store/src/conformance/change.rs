//! Cases of changes that people and programs make to jobs.

use std::time::Duration;

use windlass_core::retry::{AttemptLimit, Preset};
use windlass_core::{
    Consent, DeadReason, Delivery, Edit, FailureCount, Job, OnDuplicate, Report, Revival,
    RevivalChanges, State, Unique, Verdict,
};

use super::build::*;
use crate::{Change, Changed, Claim, Enqueued, GroupFilter, QueueLimits, Settled};

const DEAD: State = State::Dead(DeadReason::Exhausted);

async fn die(store: &Opened, number: u64) {
    let job = Job {
        max_attempts: Some(AttemptLimit::ONE),
        unique: unique("k"),
        ..job(number)
    };
    put(store, vec![job]).await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, failed(), at(0)).await;
}

pub async fn cancel_ends_a_waiting_job(store: &Opened) {
    put(store, vec![job(1)]).await;
    let changed = store
        .change(&[id(1), id(9)], &Change::Cancel, None, at(1))
        .await
        .unwrap();
    assert_eq!(changed, [Changed::Now(State::Cancelled), Changed::NotFound]);
    assert!(take(store, 1, at(2)).await.is_empty());
    assert_eq!(find(store, id(1)).await.finished_at(), Some(at(1)));
}

pub async fn cancel_asks_a_running_job(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    assert_eq!(
        store
            .change(&[id(1)], &Change::Cancel, None, at(1))
            .await
            .unwrap(),
        [Changed::Now(State::Running)]
    );
    assert!(find(store, id(1)).await.lease().unwrap().cancel_requested);
    let settled = settle_one(store, &running, failed(), at(2)).await;
    assert_eq!(settled.verdict(), Some(Verdict::Cancelled));
    assert_eq!(state_of(store, id(1)).await, State::Cancelled);
}

pub async fn cancel_or_success_one_wins(store: &Opened) {
    put(store, jobs(1..3)).await;
    let running = take(store, 2, at(0)).await;
    store
        .change(&[id(1)], &Change::Cancel, None, at(1))
        .await
        .unwrap();
    let settled = settle_one(store, &running[0], Report::Succeeded(None), at(2)).await;
    assert_eq!(
        settled.verdict(),
        Some(Verdict::Succeeded),
        "it succeeded before it stopped"
    );
    settle_one(store, &running[1], Report::Succeeded(None), at(1)).await;
    assert_eq!(
        store
            .change(&[id(2)], &Change::Cancel, None, at(2))
            .await
            .unwrap(),
        [Changed::Conflict(State::Succeeded)]
    );
    put(store, vec![job(3)]).await;
    let third = take_one(store, at(2)).await;
    store.sweep(10, at(60), 0).await.unwrap();
    assert_eq!(
        store
            .change(&[id(3)], &Change::RunNow, None, at(60))
            .await
            .unwrap(),
        [Changed::Now(State::Waiting)]
    );
    assert_eq!(
        store
            .change(&[id(3)], &Change::Cancel, None, at(60))
            .await
            .unwrap(),
        [Changed::Now(State::Cancelled)]
    );
    assert_eq!(
        settle_one(store, &third, Report::Succeeded(None), at(61)).await,
        Settled::LeaseLost
    );
    assert_eq!(
        store
            .change(&[id(3)], &Change::RunNow, None, at(61))
            .await
            .unwrap(),
        [Changed::Conflict(State::Cancelled)]
    );
}

pub async fn cancelling_a_finished_job_is_a_conflict(store: &Opened) {
    die(store, 1).await;
    let before = find(store, id(1)).await;
    assert_eq!(
        store
            .change(&[id(1)], &Change::Cancel, None, at(1))
            .await
            .unwrap(),
        [Changed::Conflict(DEAD)]
    );
    assert_eq!(find(store, id(1)).await, before);
}

pub async fn revive_runs_a_dead_job_again(store: &Opened) {
    die(store, 1).await;
    let revival = Revival {
        run_at: Some(at(100)),
        payload: Some(payload("7")),
        ..Revival::default()
    };
    let revived = store
        .change(
            &[id(1), id(9)],
            &Change::Revive(revival.clone()),
            None,
            at(1),
        )
        .await
        .unwrap();
    assert_eq!(revived, [Changed::Now(State::Waiting), Changed::NotFound]);
    assert!(take(store, 1, at(99)).await.is_empty());
    let running = take_one(store, at(100)).await;
    assert_eq!(
        (running.attempt, running.failures, running.payload.as_str()),
        (2, 0, "7")
    );
    assert_eq!(
        store.attempts(id(1), 10).await.unwrap().len(),
        1,
        "its history stays"
    );
    let refused = store
        .change(&[id(1)], &Change::Revive(Revival::default()), None, at(101))
        .await
        .unwrap();
    assert_eq!(refused, [Changed::Conflict(State::Running)]);
}

/// A revival that only changes fields.
fn revive_with(changes: RevivalChanges) -> Change {
    Change::Revive(Revival {
        failures: FailureCount::Keep,
        changes,
        ..Revival::default()
    })
}

pub async fn revive_changes_the_fields_that_it_names(store: &Opened) {
    die(store, 1).await;
    let before = find(store, id(1)).await;
    let changes = RevivalChanges {
        max_attempts: AttemptLimit::from_max_attempts(9).unwrap(),
        retry: Some(Preset::Patient.policy()),
        queue: Some(queue("slow")),
        priority: Some(-5),
    };
    let revived = store
        .change(&[id(1)], &revive_with(changes.clone()), None, at(1))
        .await
        .unwrap();
    assert_eq!(revived, [Changed::Now(State::Waiting)]);
    let job = find(store, id(1)).await;
    assert_eq!(job.max_attempts, changes.max_attempts);
    assert_eq!(job.retry.as_deref(), changes.retry.as_ref());
    assert_eq!((job.queue.as_str(), job.priority), ("slow", -5));
    assert_eq!(job.failures, before.failures);
    assert!(take(store, 1, at(2)).await.is_empty(), "it left its queue");
    let counts = store.counts(at(2)).await.unwrap();
    assert_eq!(counts[&queue("slow")].ready, 1);
    assert_eq!(counts.get(&before.queue).map_or(0, |left| left.dead), 0);
    let (key, _) = job.group().unwrap();
    let groups = GroupFilter::default();
    let groups = store.failure_groups(&groups, None, 10, at(2)).await;
    let retrying: Vec<_> = groups
        .unwrap()
        .into_iter()
        .filter(|one| one.retrying > 0)
        .collect();
    assert_eq!(retrying.len(), 1);
    assert_eq!(retrying[0].key, key, "it moved to the group of its queue");
}

pub async fn revive_moves_a_job_with_its_key(store: &Opened) {
    let keyed = |number, name: &str| Job {
        unique: Some(Unique {
            key: key("k"),
            unique_for: Some(Duration::from_secs(1000)),
            on_duplicate: OnDuplicate::Keep,
        }),
        queue: queue(name),
        ..job(number)
    };
    put(store, vec![keyed(1, "a"), keyed(2, "b")]).await;
    let cancelled = store.change(&[id(1)], &Change::Cancel, None, at(1)).await;
    assert_eq!(cancelled.unwrap(), [Changed::Now(State::Cancelled)]);
    let to = |name: &str| {
        revive_with(RevivalChanges {
            queue: Some(queue(name)),
            ..RevivalChanges::default()
        })
    };
    let taken = store.change(&[id(1)], &to("b"), None, at(2)).await;
    assert_eq!(taken.unwrap(), [Changed::KeyTaken(State::Cancelled)]);
    let moved = store.change(&[id(1)], &to("c"), None, at(3)).await;
    assert_eq!(moved.unwrap(), [Changed::Now(State::Waiting)]);
    let answer = enqueue_one(store, keyed(3, "a"), at(4)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Created(id(3)),
        "its old queue has the key free"
    );
    let answer = enqueue_one(store, keyed(4, "c"), at(4)).await.unwrap();
    assert!(matches!(answer, Enqueued::Duplicate { id: holder, .. } if holder == id(1)));
}

pub async fn revive_into_a_full_queue_is_refused(store: &Opened) {
    die(store, 1).await;
    let limits = QueueLimits {
        max_depth: Some(1),
        ..QueueLimits::default()
    };
    store
        .put_queue(&queue("full"), &limits, None)
        .await
        .unwrap();
    let waiting = Job {
        queue: queue("full"),
        ..job(2)
    };
    put(store, vec![waiting]).await;
    let change = revive_with(RevivalChanges {
        queue: Some(queue("full")),
        ..RevivalChanges::default()
    });
    let refused = store.change(&[id(1)], &change, None, at(1)).await.unwrap();
    assert_eq!(refused, [Changed::QueueFull { max_depth: 1 }]);
    assert_eq!(find(store, id(1)).await.state(), DEAD);
}

pub async fn revive_into_a_taken_key_is_a_conflict_for_that_job_only(store: &Opened) {
    die(store, 1).await;
    put(
        store,
        vec![
            Job {
                unique: unique("k"),
                ..job(2)
            },
            job(3),
        ],
    )
    .await;
    store
        .change(&[id(3)], &Change::Cancel, None, at(1))
        .await
        .unwrap();
    let keep = Revival {
        failures: FailureCount::Keep,
        ..Revival::default()
    };
    let revived = store
        .change(&[id(1), id(3)], &Change::Revive(keep.clone()), None, at(1))
        .await
        .unwrap();
    assert_eq!(
        revived,
        [Changed::KeyTaken(DEAD), Changed::Now(State::Waiting)]
    );
    store
        .change(&[id(2)], &Change::Cancel, None, at(2))
        .await
        .unwrap();
    assert_eq!(
        store
            .change(&[id(1)], &Change::Revive(keep.clone()), None, at(2))
            .await
            .unwrap(),
        [Changed::Now(State::Waiting)]
    );
    let again = Job {
        unique: unique("k"),
        ..job(4)
    };
    let answer = enqueue_one(store, again, at(3)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: true
        },
        "it holds its key again"
    );
}

async fn lose(store: &Opened, number: u64) {
    put(
        store,
        vec![Job {
            delivery: Delivery::AtMostOnce,
            ..job(number)
        }],
    )
    .await;
    take_one(store, at(0)).await;
    store.sweep(10, at(30), 0).await.unwrap();
}

const LOST: State = State::Dead(DeadReason::Lost);

pub async fn revive_of_a_lost_job_needs_force(store: &Opened) {
    lose(store, 1).await;
    let plain = store
        .change(&[id(1)], &Change::Revive(Revival::default()), None, at(31))
        .await
        .unwrap();
    assert_eq!(plain, [Changed::Conflict(LOST)]);
    let force = Revival {
        consent: Consent::MayRunTwice,
        ..Revival::default()
    };
    assert_eq!(
        store
            .change(&[id(1)], &Change::Revive(force.clone()), None, at(31))
            .await
            .unwrap(),
        [Changed::Now(State::Waiting)]
    );
}

pub async fn run_now_brings_a_retry_forward(store: &Opened) {
    put(
        store,
        vec![
            job(1),
            Job {
                run_at: at(1000),
                ..job(2)
            },
        ],
    )
    .await;
    fail_once(store, 1..2).await;
    let changed = store
        .change(&[id(1), id(2), id(9)], &Change::RunNow, None, at(0))
        .await
        .unwrap();
    assert_eq!(
        changed,
        [
            Changed::Now(State::Waiting),
            Changed::Now(State::Waiting),
            Changed::NotFound
        ]
    );
    let running = take(store, 5, at(0)).await;
    assert_eq!(running.len(), 2);
    assert!(
        running.iter().any(|job| job.failures == 1),
        "its failures stay"
    );
}

pub async fn edit_changes_a_waiting_job(store: &Opened) {
    put(store, jobs(1..3)).await;
    let edit = Edit {
        payload: Some(payload("5")),
        priority: Some(3),
        run_at: Some(at(7)),
        queue: None,
    };
    assert_eq!(
        edit_one(store, id(2), &edit, at(1)).await,
        Changed::Now(State::Waiting)
    );
    assert_eq!(
        edit_one(store, id(9), &edit, at(1)).await,
        Changed::NotFound
    );
    let edited = find(store, id(2)).await;
    assert_eq!(
        (edited.payload.as_str(), edited.priority, edited.run_at),
        ("5", 3, at(7))
    );
    assert_eq!(take_one(store, at(6)).await.id, id(1));
    assert_eq!(take_one(store, at(7)).await.id, id(2));
}

pub async fn edit_moves_a_job_and_its_key(store: &Opened) {
    put(
        store,
        vec![Job {
            unique: unique("k"),
            ..job(1)
        }],
    )
    .await;
    let there = Job {
        unique: unique("k"),
        queue: queue("taken"),
        ..job(2)
    };
    put(store, vec![there]).await;
    let to = |name| Edit {
        queue: Some(queue(name)),
        ..Edit::default()
    };
    let refused = edit_one(store, id(1), &to("taken"), at(1)).await;
    assert_eq!(refused, Changed::KeyTaken(State::Waiting));
    assert_eq!(
        edit_one(store, id(1), &to("free"), at(1)).await,
        Changed::Now(State::Waiting)
    );
    let same_key_in_old_queue = Job {
        unique: unique("k"),
        ..job(3)
    };
    assert_eq!(
        enqueue_one(store, same_key_in_old_queue, at(2))
            .await
            .unwrap(),
        Enqueued::Created(id(3))
    );
    let same_key_in_new_queue = Job {
        unique: unique("k"),
        queue: queue("free"),
        ..job(4)
    };
    let answer = enqueue_one(store, same_key_in_new_queue, at(2))
        .await
        .unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: true
        }
    );
    let request = Claim {
        queue: queue("free"),
        ..claim(5)
    };
    assert_eq!(
        store.claim(&request, at(2)).await.unwrap().jobs[0].id,
        id(1)
    );
}

pub async fn a_full_queue_takes_no_moved_and_no_revived_job(store: &Opened) {
    let limits = QueueLimits {
        max_depth: Some(2),
        ..QueueLimits::default()
    };
    let full = queue("full");
    put(store, jobs(1..3)).await;
    let there = (3..6).map(|number| Job {
        queue: full.clone(),
        ..job(number)
    });
    put(store, there.collect()).await;
    store
        .change(&[3, 4].map(id), &Change::Cancel, None, at(1))
        .await
        .unwrap();
    store.put_queue(&full, &limits, None).await.unwrap();
    let refused = Changed::QueueFull { max_depth: 2 };
    let to = Edit {
        queue: Some(full.clone()),
        ..Edit::default()
    };
    let waiting = Changed::Now(State::Waiting);
    assert_eq!(edit_one(store, id(1), &to, at(1)).await, waiting);
    assert_eq!(edit_one(store, id(2), &to, at(1)).await, refused);
    let same = edit_one(store, id(5), &to, at(1)).await;
    assert_eq!(same, waiting, "it waits there already");
    let revival = Revival::default();
    let revive = async |now| {
        store
            .change(&[3, 4].map(id), &Change::Revive(revival.clone()), None, now)
            .await
            .unwrap()
    };
    assert_eq!(revive(at(2)).await, [refused.clone(), refused.clone()]);
    store
        .change(&[id(5)], &Change::Cancel, None, at(3))
        .await
        .unwrap();
    assert_eq!(revive(at(4)).await, [waiting, refused], "one by one");
    assert_eq!(store.counts(at(4)).await.unwrap()[&full].ready, 2);
}

pub async fn edit_of_a_running_job_is_a_conflict(store: &Opened) {
    put(store, vec![job(1)]).await;
    let running = take_one(store, at(0)).await;
    let edit = Edit {
        priority: Some(3),
        ..Edit::default()
    };
    assert_eq!(
        edit_one(store, id(1), &edit, at(1)).await,
        Changed::Conflict(State::Running)
    );
    assert_eq!(find(store, id(1)).await, running);
}

pub async fn resolve_ends_a_lost_job(store: &Opened) {
    lose(store, 1).await;
    put(store, vec![job(2)]).await;
    let resolved = store
        .change(&[id(1), id(2), id(9)], &Change::Resolve, None, at(40))
        .await
        .unwrap();
    let expected = [
        Changed::Now(State::Succeeded),
        Changed::Conflict(State::Waiting),
        Changed::NotFound,
    ];
    assert_eq!(resolved, expected);
    assert_eq!(find(store, id(1)).await.finished_at(), Some(at(40)));
}

pub async fn purge_removes_finished_jobs(store: &Opened) {
    die(store, 1).await;
    put(store, jobs(2..4)).await;
    take_one(store, at(0)).await;
    let purged = store
        .change(&[id(1), id(2), id(3), id(9)], &Change::Purge, None, at(0))
        .await
        .unwrap();
    assert_eq!(
        purged,
        [
            Changed::Removed,
            Changed::Conflict(State::Running),
            Changed::Conflict(State::Waiting),
            Changed::NotFound
        ]
    );
    assert_eq!(store.get(&[id(1)]).await.unwrap(), [None]);
    assert_eq!(store.attempts(id(1), 10).await.unwrap(), []);
    assert_eq!(
        store
            .change(&[id(1)], &Change::Purge, None, at(0))
            .await
            .unwrap(),
        [Changed::NotFound]
    );
}
