//! Counts failure groups and tallies of actions again, from the jobs of a store.

use std::collections::BTreeMap;

use windlass_core::{ActionCount, ActionId, ActionTally, GroupKey, GroupMember, Job, Timestamp};
use windlass_store::conformance::build::Opened;
use windlass_store::{Filter, GroupFilter, PAGE_MAX, Page};

/// Bulk actions have this id or a larger one, and replays a smaller one.
pub(crate) const FIRST_BULK_ACTION: u128 = 1 << 64;

/// Checks that the store counts what it stores. Each job may have been revived at most once, and
/// changed by at most one bulk action.
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
    for (action, expected) in actions(&jobs) {
        let found = store.action_tally(action).await.expect("it answers");
        assert_eq!(found, expected, "{action}");
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

fn actions(jobs: &[Job]) -> BTreeMap<ActionId, ActionTally> {
    let mut actions: BTreeMap<ActionId, ActionTally> = BTreeMap::new();
    for job in jobs {
        let last = job.interventions.last_action;
        if let Some(bulk) = last.filter(|id| id.as_u128() >= FIRST_BULK_ACTION) {
            actions.entry(bulk).or_default().add(ActionCount::Gone, 1);
        }
        let Some((replay, result)) = job.revival_result() else {
            continue;
        };
        let tally = actions.entry(replay).or_default();
        tally.add(result.into(), 1);
        let revived = job.interventions.revived.as_ref();
        if let Some(first) = revived.and_then(|revived| revived.first_outcome) {
            tally.add(first.into(), 1);
        }
    }
    actions
}
