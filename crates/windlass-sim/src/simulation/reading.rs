//! Reads everything that the checker compares.

use std::collections::BTreeMap;

use windlass_core::{ActionId, ActionTally, GroupKey, Timestamp};
use windlass_engine::Actions;
use windlass_store::{Filter, GroupFilter, PAGE_MAX, Page, Store, StoreError};

use crate::history::Final;

/// The most actions of a run.
const ACTIONS_MAX: usize = 50;

/// Everything except the tallies of actions.
pub(crate) async fn read_all(store: &dyn Store, now: Timestamp) -> Result<Final, StoreError> {
    let mut last = Final::default();
    let mut page = Page::first(PAGE_MAX);
    loop {
        let listed = store.list(&Filter::default(), page, now).await?;
        last.jobs.extend(listed.jobs);
        page.after = listed.next;
        if listed.next.is_none() {
            break;
        }
    }
    for job in &last.jobs {
        let mut attempts = store.attempts(job.id, PAGE_MAX).await?;
        attempts.reverse();
        last.attempts.push(attempts);
    }
    last.schedules = store.schedules().await?.readable;
    last.counts = Some(store.counts(now).await?);
    last.groups = Some(groups(store, now).await?);
    Ok(last)
}

/// The numbers of dead and retrying jobs of all groups that have any.
async fn groups(
    store: &dyn Store,
    now: Timestamp,
) -> Result<BTreeMap<GroupKey, (u64, u64)>, StoreError> {
    let groups = store
        .failure_groups(&GroupFilter::default(), None, PAGE_MAX, now)
        .await?;
    let groups = groups
        .into_iter()
        .map(|group| (group.key, (group.dead, group.retrying)));
    Ok(groups.filter(|(_, counts)| *counts != (0, 0)).collect())
}

/// What the store counts for each bulk action and replay.
pub(super) async fn tallies(actions: &Actions) -> BTreeMap<ActionId, ActionTally> {
    let mut tallies = BTreeMap::new();
    for replays in [true, false] {
        let listed = actions.list(replays, None, ACTIONS_MAX).await;
        let listed = listed.unwrap_or_default().into_iter();
        tallies.extend(listed.map(|status| (status.action.id, status.tally)));
    }
    tallies
}
