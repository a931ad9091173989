//! Counts failure groups and results of replays again, from the jobs of a store.

use std::collections::BTreeMap;

use windlass_core::{ActionId, GroupKey, GroupMember, Job, RevivalTally, Timestamp};
use windlass_store::conformance::build::Opened;
use windlass_store::{Filter, GroupFilter, PAGE_MAX, Page};

/// Checks that the store counts what it stores. Each job may have been revived at most once.
/// Returns how many jobs are in groups.
pub(crate) async fn check(store: &Opened, now: Timestamp) -> u64 {
    let jobs = all_jobs(store, now).await;
    let mut expected: BTreeMap<GroupKey, (u64, u64)> = BTreeMap::new();
    for (key, member) in jobs.iter().filter_map(Job::group) {
        let counts = expected.entry(key).or_default();
        match member {
            GroupMember::Dead => counts.0 += 1,
            GroupMember::Retrying => counts.1 += 1,
        }
    }
    assert_eq!(groups(store, now).await, expected);
    for (replay, expected) in revivals(&jobs) {
        let found = store.revival_tally(replay).await.expect("it answers");
        assert_eq!(found, expected, "{replay}");
    }
    expected.values().map(|counts| counts.0 + counts.1).sum()
}

async fn all_jobs(store: &Opened, now: Timestamp) -> Vec<Job> {
    let mut page = Page::first(PAGE_MAX);
    let mut jobs = Vec::new();
    loop {
        let listed = store.list(&Filter::default(), page, now).await;
        let listed = listed.expect("it answers");
        jobs.extend(listed.jobs);
        page.after = listed.next;
        if page.after.is_none() {
            return jobs;
        }
    }
}

/// The numbers of dead and retrying jobs of all groups that have any.
async fn groups(store: &Opened, now: Timestamp) -> BTreeMap<GroupKey, (u64, u64)> {
    let all = GroupFilter::default();
    let mut groups = BTreeMap::new();
    let mut last = None;
    loop {
        let page = store.failure_groups(&all, last.as_ref(), PAGE_MAX, now);
        let page = page.await.expect("it answers");
        let Some(end) = page.last() else { break };
        last = Some(end.key.clone());
        groups.extend(
            page.into_iter()
                .map(|group| (group.key, (group.dead, group.retrying))),
        );
    }
    groups.retain(|_, counts| *counts != (0, 0));
    groups
}

fn revivals(jobs: &[Job]) -> BTreeMap<ActionId, RevivalTally> {
    let mut revivals: BTreeMap<ActionId, RevivalTally> = BTreeMap::new();
    for job in jobs {
        let Some((replay, result)) = job.revival_result() else {
            continue;
        };
        let tally = revivals.entry(replay).or_default();
        tally.add(result.into(), 1);
        let revived = job.interventions.revived.as_ref();
        if let Some(first) = revived.and_then(|revived| revived.first_outcome) {
            tally.add(first.into(), 1);
        }
    }
    revivals
}
