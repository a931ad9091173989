use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::retry::Preset;
use windlass_core::{
    ActionId, AttemptError, DeadReason, Edit, Failure, FailureCount, Fingerprint, GROUPS_MAX,
    GroupKey, Job, JobId, Report, Revival, Timestamp,
};

use super::build::*;
use crate::{ActionStep, Change, FailureGroup, Filter, GROUP_HOURS, GroupFilter, Page, Settled};

fn failed_with(text: &str) -> Report {
    Report::Failed(Failure::retryable(AttemptError::new(text)))
}

fn unrecoverable(text: &str) -> Report {
    Report::Failed(Failure::unrecoverable(AttemptError::new(text)))
}

async fn groups(store: &Opened, now: Timestamp) -> Vec<FailureGroup> {
    let all = GroupFilter::default();
    store.failure_groups(&all, None, 100, now).await.unwrap()
}

/// The numbers of dead and retrying jobs of the only group.
async fn only_group(store: &Opened) -> (u64, u64) {
    let groups = groups(store, at(100)).await;
    assert_eq!(groups.len(), 1, "{groups:?}");
    (groups[0].dead, groups[0].retrying)
}

/// Fails the next job for good.
async fn die(store: &Opened, text: &str, now: Timestamp) -> Job {
    let running = take_one(store, now).await;
    settle_one(store, &running, unrecoverable(text), now).await;
    find(store, running.id).await
}

fn is_new(settled: &Settled) -> bool {
    matches!(settled, Settled::Done(settlement) if settlement.is_new_group)
}

pub async fn a_failure_is_counted_with_its_cause(store: &Opened) {
    put(store, jobs(1..4)).await;
    let running = take(store, 3, at(1)).await;
    let first = settle_one(store, &running[0], failed_with("no route to host"), at(2)).await;
    let second = settle_one(store, &running[1], unrecoverable("no route to host"), at(3)).await;
    settle_one(
        store,
        &running[2],
        failed_with("key \"email\" is missing"),
        at(4),
    )
    .await;
    assert!(is_new(&first) && !is_new(&second));
    let job = find(store, id(1)).await;
    let expected = Fingerprint::new(&job.kind, &AttemptError::new("no route to host"));
    assert_eq!(job.fingerprint, Some(expected));
    let groups = groups(store, at(5)).await;
    assert_eq!(groups.len(), 2);
    let group = groups
        .iter()
        .find(|group| group.key.fingerprint == expected)
        .unwrap();
    assert_eq!((group.dead, group.retrying), (1, 1));
    assert_eq!((group.first_seen_at, group.last_seen_at), (at(2), at(3)));
    assert_eq!(
        (group.sample, group.error.as_str()),
        (Some(id(2)), "no route to host")
    );
    assert_eq!(group.hours[GROUP_HOURS - 1], 2);
    assert_eq!(group.hours.iter().sum::<u64>(), 2);
}

pub async fn groups_are_per_queue_kind_and_cause(store: &Opened) {
    let jobs = vec![
        job(1),
        Job {
            queue: queue("other"),
            ..job(2)
        },
        Job {
            kind: kind("b"),
            ..job(3)
        },
    ];
    put(store, jobs).await;
    for name in ["default", "other"] {
        let claim = crate::Claim {
            queue: queue(name),
            ..claim(5)
        };
        for running in store.claim(&claim, at(1)).await.unwrap().jobs {
            settle_one(store, &running, failed(), at(1)).await;
        }
    }
    let all = groups(store, at(2)).await;
    let names: Vec<_> = all
        .iter()
        .map(|group| (group.key.queue.as_str(), group.key.kind.as_str()))
        .collect();
    assert_eq!(names, [("default", "a"), ("default", "b"), ("other", "a")]);
    let every = GroupFilter::default();
    let page = store.failure_groups(&every, Some(&all[0].key), 1, at(2));
    assert_eq!(page.await.unwrap(), all[1..2]);
    for (filter, expected) in [
        (
            GroupFilter {
                queue: Some(queue("other")),
                ..GroupFilter::default()
            },
            &all[2..],
        ),
        (
            GroupFilter {
                kind: Some(kind("b")),
                ..GroupFilter::default()
            },
            &all[1..2],
        ),
        (
            GroupFilter {
                fingerprint: Some(all[0].key.fingerprint),
                ..GroupFilter::default()
            },
            // A cause includes the kind, so the job of the other queue has the same one.
            &[all[0].clone(), all[2].clone()][..],
        ),
        (
            GroupFilter {
                fingerprint: Some(Fingerprint::OTHER),
                ..GroupFilter::default()
            },
            &[],
        ),
    ] {
        let found = store
            .failure_groups(&filter, None, 10, at(2))
            .await
            .unwrap();
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn a_claim_changes_no_group(store: &Opened) {
    put(store, jobs(1..2)).await;
    fail_once(store, 1..2).await;
    let before = groups(store, at(2)).await;
    let running = take_one(store, at(2)).await;
    assert_eq!(groups(store, at(2)).await, before);
    settle_one(store, &running, Report::Succeeded(None), at(3)).await;
    assert_eq!(only_group(store).await, (0, 0));
}

pub async fn every_change_moves_a_job_between_groups(store: &Opened) {
    put(store, jobs(1..3)).await;
    fail_once(store, 1..3).await;
    assert_eq!(only_group(store).await, (0, 2));
    store
        .change(&[id(2)], &Change::Cancel, None, at(1))
        .await
        .unwrap();
    assert_eq!(
        only_group(store).await,
        (0, 1),
        "a cancelled job is in no group"
    );
    die(store, "boom", at(2)).await;
    assert_eq!(only_group(store).await, (1, 0));
    let keep = Revival {
        failures: FailureCount::Keep,
        ..Revival::default()
    };
    store
        .change(&[id(1)], &Change::Revive(keep), None, at(3))
        .await
        .unwrap();
    assert_eq!(only_group(store).await, (0, 1), "it keeps its failures");
    die(store, "boom", at(4)).await;
    let reset = Change::Revive(Revival::default());
    store.change(&[id(1)], &reset, None, at(5)).await.unwrap();
    assert_eq!(only_group(store).await, (0, 0), "its failures are reset");
    assert_eq!(find(store, id(1)).await.fingerprint, None);
    die(store, "boom", at(6)).await;
    assert_eq!(only_group(store).await, (1, 0));
    store
        .change(&[id(1)], &Change::Purge, None, at(7))
        .await
        .unwrap();
    assert_eq!(only_group(store).await, (0, 0), "it is removed");
}

pub async fn a_moved_job_moves_to_the_group_of_its_queue(store: &Opened) {
    put(store, jobs(1..2)).await;
    fail_once(store, 1..2).await;
    let edit = Edit {
        queue: Some(queue("other")),
        ..Edit::default()
    };
    edit_one(store, id(1), &edit, at(5)).await;
    let groups = groups(store, at(6)).await;
    let numbers: Vec<_> = groups
        .iter()
        .map(|group| {
            (
                group.key.queue.as_str(),
                group.retrying,
                group.first_seen_at,
            )
        })
        .collect();
    assert_eq!(numbers, [("default", 0, at(0)), ("other", 1, at(0))]);
}

pub async fn a_death_without_an_error_has_its_reason_as_cause(store: &Opened) {
    let expiring = Job {
        deadline: Some(at(5)),
        ..job(1)
    };
    put(store, vec![expiring]).await;
    let swept = store.sweep(10, at(6), 0).await.unwrap();
    assert!(swept.expired[0].is_new_group);
    let expected = Fingerprint::without_error(&kind("a"), DeadReason::Expired);
    assert_eq!(find(store, id(1)).await.fingerprint, Some(expected));
    let groups = groups(store, at(6)).await;
    assert_eq!((groups[0].dead, groups[0].error.as_str()), (1, "expired"));
    assert_eq!(groups[0].sample, Some(id(1)));
}

pub async fn a_group_is_new_again_after_a_day(store: &Opened) {
    put(store, jobs(1..4)).await;
    let day = 24 * 3600;
    for (now, expected) in [(1, true), (day, false), (2 * day, true)] {
        let claim = crate::Claim {
            retry: worker(Preset::None.policy()),
            ..claim(1)
        };
        let running = store.claim(&claim, at(now)).await.unwrap().jobs.remove(0);
        let settled = settle_one(store, &running, failed(), at(now)).await;
        assert_eq!(is_new(&settled), expected, "after {now} s");
    }
    let groups = groups(store, at(2 * day)).await;
    assert_eq!(groups[0].hours[GROUP_HOURS - 1], 1);
    assert_eq!(
        groups[0].hours.iter().sum::<u64>(),
        1,
        "older hours do not count"
    );
}

pub async fn too_many_causes_share_one_group(store: &Opened) {
    let count = GROUPS_MAX as u64 + 2;
    put(store, jobs(0..count)).await;
    let mut new = 0;
    for running in take(store, 10_000, at(1)).await {
        let text = format!("cause {}", letters(running.id.as_u128()));
        let settled = settle_one(store, &running, unrecoverable(&text), at(1)).await;
        new += usize::from(is_new(&settled));
    }
    assert_eq!(new, GROUPS_MAX + 1, "the shared group is new only once");
    let mut all = groups(store, at(2)).await;
    while let Some(last) = all.last().map(|group| group.key.clone()) {
        let filter = GroupFilter::default();
        let more = store
            .failure_groups(&filter, Some(&last), 100, at(2))
            .await
            .unwrap();
        if more.is_empty() || all.len() > GROUPS_MAX + 1 {
            break;
        }
        all.extend(more);
    }
    assert_eq!(all.len(), GROUPS_MAX + 1);
    let other = all
        .iter()
        .find(|group| group.key.fingerprint == Fingerprint::OTHER);
    assert_eq!(other.unwrap().dead, 2);
    let others = Filter {
        fingerprint: Some(Fingerprint::OTHER),
        ..Filter::default()
    };
    let listed = store.list(&others, Page::first(10), at(2)).await.unwrap();
    assert_eq!(listed.jobs.len(), 2);
    // A replay still knows what each of them died of.
    let replay = ActionStep {
        action: ActionId::from_u128(1),
        frozen_at: at(2),
        is_replay: true,
        seen: BTreeMap::new(),
    };
    let ids: Vec<JobId> = listed.jobs.iter().map(|job| job.id).collect();
    let revive = Change::Revive(Revival::default());
    store
        .change(&ids, &revive, Some(&replay), at(3))
        .await
        .unwrap();
    for running in take(store, 2, at(4)).await {
        let is_first = running.id == ids[0];
        let text = match is_first {
            true => format!("cause {}", letters(running.id.as_u128())),
            false => "quite another cause".to_owned(),
        };
        settle_one(store, &running, unrecoverable(&text), at(4)).await;
        let cause = find(store, running.id).await.fingerprint;
        assert_eq!(cause, Some(Fingerprint::OTHER));
    }
    let tally = store.action_tally(replay.action).await.unwrap();
    assert_eq!((tally.first_failed_alike, tally.first_failed), (1, 1));
}

/// A word that differs for each number: digits would not make another cause.
fn letters(mut number: u128) -> String {
    let mut word = String::new();
    while number > 0 {
        word.push(char::from(b'a' + u8::try_from(number % 26).unwrap()));
        number /= 26;
    }
    word
}

pub async fn empty_groups_are_trimmed(store: &Opened) {
    put(store, jobs(1..3)).await;
    die(store, "refused", at(1)).await;
    die(store, "timed out", at(2)).await;
    store
        .change(&[id(1)], &Change::Purge, None, at(3))
        .await
        .unwrap();
    store.trim_tallies(at(1), at(0)).await.unwrap();
    assert_eq!(groups(store, at(4)).await.len(), 2, "not old enough");
    store.trim_tallies(at(4), at(0)).await.unwrap();
    let left = groups(store, at(4)).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].dead, 1, "a group with jobs stays");
}

pub async fn concurrent_failures_are_all_counted(store: &Opened) {
    put(store, jobs(0..200)).await;
    let running = take(store, 200, at(1)).await;
    let mut settles = tokio::task::JoinSet::new();
    for part in running.chunks(20) {
        let (store, reports) = (store.clone(), part.iter().map(|job| report(job, failed())));
        let reports: Vec<_> = reports.collect();
        settles.spawn(async move { store.settle(reports, at(1)).await.unwrap() });
    }
    let settled: Vec<_> = settles.join_all().await.into_iter().flatten().collect();
    assert_eq!(only_group(store).await, (0, 200));
    assert_eq!(settled.iter().filter(|settled| is_new(settled)).count(), 1);
}

pub async fn a_fingerprint_lists_the_jobs_of_its_group(store: &Opened) {
    put(store, jobs(1..4)).await;
    let running = take(store, 3, at(1)).await;
    settle_one(store, &running[0], failed_with("refused"), at(1)).await;
    settle_one(store, &running[1], unrecoverable("refused"), at(1)).await;
    settle_one(store, &running[2], unrecoverable("timed out"), at(1)).await;
    let key = GroupKey {
        queue: queue("default"),
        kind: kind("a"),
        fingerprint: Fingerprint::new(&kind("a"), &AttemptError::new("refused")),
    };
    let mut filter = Filter {
        fingerprint: Some(key.fingerprint),
        ..Filter::default()
    };
    let listed = store.list(&filter, Page::first(10), at(1)).await.unwrap();
    let ids: Vec<_> = listed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id(2), id(1)]);
    filter.state = Some(crate::ListedState::Dead);
    let listed = store.list(&filter, Page::first(1), at(1)).await.unwrap();
    assert_eq!(listed.jobs[0].id, id(2));
    let error = Filter {
        error: Some("TIMED".to_owned()),
        ..Filter::default()
    };
    let listed = store.list(&error, Page::first(10), at(1)).await.unwrap();
    assert_eq!(listed.jobs[0].id, id(3));
    let late = at(1).saturating_add(Duration::from_secs(1));
    let failed = Filter {
        failed_from: Some(late),
        ..Filter::default()
    };
    assert!(
        store
            .list(&failed, Page::first(10), at(1))
            .await
            .unwrap()
            .jobs
            .is_empty()
    );
}
