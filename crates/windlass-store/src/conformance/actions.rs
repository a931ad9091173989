use std::collections::BTreeMap;

use serde_json::json;
use windlass_core::fairness::{Credit, Pool, Slots};
use windlass_core::retry::Preset;
use windlass_core::{
    ActionId, ActionTally, AttemptError, Edit, Failure, FailureCount, FirstOutcome, Job, Lane,
    Patch, PayloadPatch, Report, Revival, State, Tag, Timestamp,
};

use super::build::*;
use crate::{ActionStep, Change, Changed, ListOrder, ListedState, Page};

fn action(number: u128) -> ActionId {
    ActionId::from_u128(number)
}

fn step(number: u128, frozen_at: Timestamp) -> ActionStep {
    ActionStep {
        action: action(number),
        frozen_at,
        is_replay: false,
        seen: BTreeMap::new(),
    }
}

fn replay(number: u128, frozen_at: Timestamp) -> ActionStep {
    ActionStep {
        is_replay: true,
        ..step(number, frozen_at)
    }
}

fn failed_with(text: &str) -> Report {
    Report::Failed(Failure::unrecoverable(AttemptError::new(text)))
}

fn revive() -> Change {
    Change::Revive(Revival::default())
}

fn rename() -> PayloadPatch {
    let operations = json!([{"op": "move", "from": "/number", "path": "/n"}]);
    PayloadPatch::new(operations).unwrap()
}

/// Makes these jobs dead at `now`.
async fn kill(store: &Opened, numbers: std::ops::Range<u64>, now: Timestamp) {
    let named = numbers.map(id).collect();
    let claim = crate::Claim {
        jobs: Some(named),
        ..claim(100)
    };
    for running in store.claim(&claim, now).await.unwrap().jobs {
        settle_one(store, &running, failed_with("boom"), now).await;
    }
}

async fn change_one(store: &Opened, number: u64, change: &Change, step: &ActionStep) -> Changed {
    let changed = store
        .change(&[id(number)], change, Some(step), at(50))
        .await;
    changed.unwrap().remove(0)
}

pub async fn a_step_leaves_alone_what_changed_later(store: &Opened) {
    put(store, jobs(1..3)).await;
    kill(store, 1..2, at(1)).await;
    kill(store, 2..3, at(10)).await;
    let dead = state_of(store, id(2)).await;
    let step = step(1, at(5));
    assert_eq!(
        change_one(store, 1, &revive(), &step).await,
        Changed::Now(State::Waiting)
    );
    assert_eq!(
        change_one(store, 2, &revive(), &step).await,
        Changed::ChangedSince(dead)
    );
    assert_eq!(
        change_one(store, 2, &Change::Purge, &step).await,
        Changed::ChangedSince(dead)
    );
    assert_eq!(
        change_one(store, 9, &Change::Purge, &step).await,
        Changed::NotFound
    );
}

pub async fn a_step_changes_a_job_once(store: &Opened) {
    put(store, jobs(1..2)).await;
    let patch = Change::Patch(Patch {
        payload: Some(PayloadPatch::new(json!({"a": 1})).unwrap()),
        ..Patch::default()
    });
    let frozen_at = at(5);
    let waiting = Changed::Now(State::Waiting);
    assert_eq!(
        change_one(store, 1, &patch, &step(1, frozen_at)).await,
        waiting
    );
    let again = change_one(store, 1, &patch, &step(1, frozen_at)).await;
    assert_eq!(again, Changed::Repeated(State::Waiting));
    assert_eq!(
        change_one(store, 1, &patch, &step(2, frozen_at)).await,
        waiting
    );
    assert_eq!(
        find(store, id(1)).await.interventions.last_action,
        Some(action(2))
    );
}

pub async fn a_step_leaves_alone_what_a_newer_action_changed(store: &Opened) {
    put(store, jobs(1..3)).await;
    let priority = |priority| {
        Change::Patch(Patch {
            priority: Some(priority),
            ..Patch::default()
        })
    };
    let (older, newer) = (step(1, at(5)), step(2, at(5)));
    let (changed, waiting) = (Changed::Now(State::Waiting), State::Waiting);
    assert_eq!(change_one(store, 1, &priority(1), &older).await, changed);
    assert_eq!(change_one(store, 1, &priority(2), &newer).await, changed);
    assert_eq!(change_one(store, 2, &priority(2), &newer).await, changed);
    for number in [1, 2] {
        let late = change_one(store, number, &priority(1), &older).await;
        assert_eq!(late, Changed::ChangedSince(waiting));
        let again = change_one(store, number, &priority(2), &newer).await;
        assert_eq!(again, Changed::Repeated(waiting));
        assert_eq!(find(store, id(number)).await.priority, 2);
    }
}

pub async fn a_step_leaves_alone_what_it_saw_differently(store: &Opened) {
    put(store, jobs(1..4)).await;
    let as_new = |number| (id(number), (State::Waiting, 0));
    let step = ActionStep {
        seen: (1..4).map(as_new).collect(),
        ..step(1, at(100))
    };
    // The clock of the node that runs these jobs is behind, so the time does not show the change.
    let running = crate::Claim {
        jobs: Some([id(1), id(2)].into()),
        ..claim(2)
    };
    let running = store.claim(&running, at(1)).await.unwrap().jobs;
    let released = running.iter().find(|job| job.id == id(2)).unwrap();
    settle_one(store, released, Report::Released { started: true }, at(2)).await;
    let ids = [id(1), id(2), id(3)];
    let expected = [
        Changed::ChangedSince(State::Running),
        Changed::ChangedSince(State::Waiting),
        Changed::Now(State::Cancelled),
    ];
    let changed = store
        .change(&ids, &Change::Cancel, Some(&step), at(101))
        .await;
    assert_eq!(changed.unwrap(), expected);
    let again = store
        .change(&ids[2..], &Change::Cancel, Some(&step), at(102))
        .await;
    let repeated = Changed::Repeated(State::Cancelled);
    assert_eq!(again.unwrap(), [repeated], "a lost answer can be repeated");
}

pub async fn a_bulk_action_counts_what_it_changes(store: &Opened) {
    put(store, jobs(1..6)).await;
    kill(store, 1..4, at(1)).await;
    let tally = |number| async move { store.action_tally(action(number)).await.unwrap().changed() };
    let change = |change, number, ids: Vec<_>| async move {
        let step = step(number, at(100));
        let changed = store.change(&ids, &change, Some(&step), at(50)).await;
        changed.unwrap()
    };
    let all: Vec<_> = (1..7).map(id).collect();
    change(revive(), 1, all.clone()).await;
    assert_eq!(tally(1).await, 3, "two jobs wait, and one does not exist");
    change(revive(), 1, all.clone()).await;
    assert_eq!(tally(1).await, 3, "a repeated step counts nothing");
    change(Change::Cancel, 2, all.clone()).await;
    assert_eq!(tally(2).await, 5);
    change(Change::Purge, 3, all.clone()).await;
    change(Change::Purge, 3, all).await;
    assert_eq!((tally(1).await, tally(2).await, tally(3).await), (3, 5, 5));
    store.trim_tallies(at(0), at(0)).await.unwrap();
    assert_eq!(tally(3).await, 0, "the action is older than the limit");
}

pub async fn a_patch_changes_what_it_names(store: &Opened) {
    put(store, jobs(1..3)).await;
    kill(store, 1..2, at(1)).await;
    let patch = Patch {
        payload: Some(rename()),
        priority: Some(7),
        queue: Some(queue("other")),
        tags: Some(vec![Tag::new("patched").unwrap()]),
        retry: Some(Preset::Immediate.policy()),
    };
    for number in [1, 2] {
        let before = find(store, id(number)).await;
        let change = Change::Patch(patch.clone());
        let changed = store.change(&[id(number)], &change, None, at(2)).await;
        assert_eq!(changed.unwrap(), [Changed::Now(before.state())]);
        let mut expected = before;
        expected.patch(&patch).unwrap();
        assert_eq!(find(store, id(number)).await, expected);
    }
    let counts = store.counts(at(3)).await.unwrap();
    let moved = counts.get(&queue("other")).unwrap();
    assert_eq!((moved.dead, moved.ready), (1, 1));
    assert!(!counts.contains_key(&queue("default")));
    let running = crate::Claim {
        queue: queue("other"),
        ..claim(1)
    };
    let running = store.claim(&running, at(3)).await.unwrap().jobs.remove(0);
    assert_eq!(running.payload.as_str(), "{\"n\":2}");
    let conflict = store
        .change(&[id(2)], &Change::Patch(patch), None, at(3))
        .await
        .unwrap();
    assert_eq!(conflict, [Changed::Conflict(State::Running)]);
}

pub async fn a_patch_that_does_not_apply_changes_nothing(store: &Opened) {
    put(
        store,
        vec![
            Job {
                payload: payload("[]"),
                ..job(1)
            },
            job(2),
        ],
    )
    .await;
    let before = find(store, id(1)).await;
    let patch = Patch {
        payload: Some(rename()),
        priority: Some(3),
        ..Patch::default()
    };
    let ids = [id(1), id(2)];
    let changed = store
        .change(&ids, &Change::Patch(patch), None, at(1))
        .await
        .unwrap();
    assert!(matches!(&changed[0], Changed::PatchFailed { reason } if !reason.is_empty()));
    assert_eq!(changed[1], Changed::Now(State::Waiting));
    assert_eq!(find(store, id(1)).await, before);
}

pub async fn a_revived_job_waits_in_the_retry_lane(store: &Opened) {
    put(store, jobs(1..2)).await;
    kill(store, 1..2, at(1)).await;
    store
        .change(&[id(1)], &revive(), None, at(2))
        .await
        .unwrap();
    let job = find(store, id(1)).await;
    assert_eq!(
        (job.lane(), job.failures, job.waiting_since),
        (Lane::Retry, 0, at(2))
    );
    let counts = store.counts(at(2)).await.unwrap();
    assert_eq!(counts[&queue("default")].retrying, 1);
    put(
        store,
        vec![Job {
            run_at: at(2),
            ..self::job(2)
        }],
    )
    .await;
    let slots = Slots {
        total: 1,
        free: 1,
        retries_running: 0,
    };
    let fresh_first = crate::Claim {
        plan: ratio(Some(0.0)).plan(Pool::Main, slots, Credit::default()),
        ..claim(1)
    };
    let claimed = store.claim(&fresh_first, at(3)).await.unwrap();
    assert_eq!(claimed.jobs[0].id, id(2), "a fresh job goes first");
}

pub async fn a_revival_can_patch_the_payload(store: &Opened) {
    put(
        store,
        vec![
            job(1),
            Job {
                payload: payload("[]"),
                ..job(2)
            },
        ],
    )
    .await;
    kill(store, 1..3, at(1)).await;
    let dead = state_of(store, id(2)).await;
    let revival = Revival {
        payload_patch: Some(rename()),
        ..Revival::default()
    };
    let ids = [id(1), id(2)];
    let changed = store
        .change(&ids, &Change::Revive(revival), None, at(2))
        .await
        .unwrap();
    assert_eq!(changed[0], Changed::Now(State::Waiting));
    assert!(matches!(changed[1], Changed::PatchFailed { .. }));
    assert_eq!(find(store, id(1)).await.payload.as_str(), "{\"n\":1}");
    assert_eq!(state_of(store, id(2)).await, dead);
}

pub async fn a_replay_counts_what_becomes_of_its_jobs(store: &Opened) {
    put(store, jobs(1..8)).await;
    kill(store, 1..8, at(1)).await;
    let first = replay(1, at(5));
    let ids: Vec<_> = (1..8).map(id).collect();
    store
        .change(&ids, &revive(), Some(&first), at(10))
        .await
        .unwrap();
    let tally = || async { store.action_tally(action(1)).await.unwrap() };
    assert_eq!(
        tally().await,
        ActionTally {
            pending: 7,
            ..ActionTally::default()
        }
    );
    let running = take(store, 6, at(11)).await;
    assert_eq!(tally().await.pending, 7, "a claim decides nothing");
    let reports = vec![
        report(&running[0], Report::Succeeded(None)),
        report(&running[1], failed_with("boom")),
        report(&running[2], failed_with("something else")),
        report(&running[3], Report::Released { started: true }),
        report(&running[4], failed()),
    ];
    store.settle(reports, at(12)).await.unwrap();
    store
        .change(&[id(7)], &Change::Cancel, None, at(12))
        .await
        .unwrap();
    let expected = ActionTally {
        pending: 2,
        recovered: 1,
        failed_again: 3,
        gone: 1,
        first_succeeded: 1,
        first_failed: 1,
        first_failed_alike: 2,
    };
    assert_eq!(tally().await, expected);
    assert_eq!(expected.changed(), 7);
    // Job 5 waits for a retry: it recovers, but its first outcome was a failure.
    let retry = take_one(store, at(30)).await;
    let revived = |job: &Job| job.interventions.revived.clone().unwrap();
    assert_eq!(retry.id, id(4), "the released job is first");
    settle_one(store, &retry, Report::Succeeded(None), at(31)).await;
    let retry = take_one(store, at(31)).await;
    assert_eq!(
        revived(&retry).first_outcome,
        Some(FirstOutcome::FailedAlike)
    );
    settle_one(store, &retry, Report::Succeeded(None), at(31)).await;
    let expected = ActionTally {
        pending: 1,
        recovered: 3,
        failed_again: 2,
        gone: 1,
        first_succeeded: 2,
        ..expected
    };
    assert_eq!(tally().await, expected);
    // Another replay takes over a job: the first one keeps its result.
    let second = replay(2, at(40));
    let changed = store
        .change(&[id(2)], &revive(), Some(&second), at(41))
        .await
        .unwrap();
    assert_eq!(changed, [Changed::Now(State::Waiting)]);
    assert_eq!(tally().await, expected);
    store
        .change(&[id(1), id(3)], &Change::Purge, None, at(42))
        .await
        .unwrap();
    assert_eq!(tally().await, expected, "results of removed jobs stay");
    let second = store.action_tally(action(2)).await.unwrap();
    assert_eq!(
        second,
        ActionTally {
            pending: 1,
            ..ActionTally::default()
        }
    );
    store.trim_tallies(at(0), at(0)).await.unwrap();
    let trimmed = store.action_tally(action(1)).await.unwrap();
    assert_eq!(
        trimmed,
        ActionTally::default(),
        "the replay is older than the limit"
    );
}

pub async fn a_replay_revives_a_job_once(store: &Opened) {
    put(store, jobs(1..2)).await;
    kill(store, 1..2, at(1)).await;
    let step = replay(1, at(100));
    assert_eq!(
        change_one(store, 1, &revive(), &step).await,
        Changed::Now(State::Waiting)
    );
    kill(store, 1..2, at(51)).await;
    let dead = state_of(store, id(1)).await;
    assert_eq!(
        change_one(store, 1, &revive(), &step).await,
        Changed::Repeated(dead)
    );
    let keep = Revival {
        failures: FailureCount::Keep,
        ..Revival::default()
    };
    let by_hand = store
        .change(&[id(1)], &Change::Revive(keep), None, at(60))
        .await
        .unwrap();
    assert_eq!(by_hand, [Changed::Now(State::Waiting)]);
    let job = find(store, id(1)).await;
    assert_eq!(job.interventions.revived.unwrap().by, None);
}

pub async fn an_edit_as_a_step_is_remembered(store: &Opened) {
    put(store, jobs(1..2)).await;
    let edit = Change::Edit(Edit {
        priority: Some(4),
        ..Edit::default()
    });
    change_one(store, 1, &edit, &step(3, at(1))).await;
    let job = find(store, id(1)).await;
    assert_eq!(
        (job.priority, job.interventions.last_action),
        (4, Some(action(3)))
    );
    assert_eq!(
        change_one(store, 1, &Change::RunNow, &step(3, at(1))).await,
        Changed::Repeated(State::Waiting)
    );
}

pub async fn lists_go_by_the_time_of_the_end(store: &Opened) {
    put(store, jobs(1..6)).await;
    for (number, now) in [(2, 10), (1, 11), (4, 12), (3, 12)] {
        kill(store, number..number + 1, at(now)).await;
    }
    let filter = crate::Filter::state(ListedState::Dead);
    let mut page = Page {
        order: ListOrder::Finished,
        ..Page::first(1)
    };
    let mut ids = Vec::new();
    // Four jobs, one per page, and one page to find the end.
    for _ in 0..5 {
        let listed = store.list(&filter, page, at(20)).await.unwrap();
        ids.extend(listed.jobs.iter().map(|job| job.id));
        page.after = listed.next;
        if listed.next.is_none() {
            break;
        }
    }
    assert_eq!(page.after, None, "the pages end");
    assert_eq!(ids, [id(4), id(3), id(1), id(2)]);
    let all = crate::Filter::default();
    let running = take_one(store, at(20)).await;
    settle_one(store, &running, Report::Succeeded(None), at(21)).await;
    let page = Page {
        order: ListOrder::Finished,
        ..Page::first(2)
    };
    let listed = store.list(&all, page, at(22)).await.unwrap();
    let ids: Vec<_> = listed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id(5), id(4)]);
}
