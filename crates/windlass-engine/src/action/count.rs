//! Counts the jobs that an action matches.

use windlass_core::ListedState;
use windlass_store::{GroupFilter, PAGE_MAX, Page, StoreError};

use super::document::Action;
use crate::engine::Engine;
use crate::saturate::to_u64;

/// The most jobs that are counted before an action is created. A runner counts the rest.
const FIRST_PART: usize = 10_000;

/// Counts as many jobs as an operator wants to wait for. Counters answer simple filters at once.
pub(super) async fn first_part(engine: &Engine, mut action: Action) -> Result<Action, StoreError> {
    if let Some(matched) = kept_count(engine, &action).await? {
        action.matched = matched;
        action.count_after = None;
        return Ok(action);
    }
    next_part(engine, &mut action).await?;
    Ok(action)
}

/// Counts further jobs.
pub(super) async fn next_part(engine: &Engine, action: &mut Action) -> Result<(), StoreError> {
    let mut examined = 0;
    while let Some(after) = action.count_after.filter(|_| examined < FIRST_PART) {
        let page = Page::after(Some(after), PAGE_MAX);
        let store = engine.store();
        let listed = store.list(&action.filter, page, action.created_at).await?;
        let unchanged = listed.jobs.iter().filter(|job| action.is_unchanged(job));
        action.matched += to_u64(unchanged.count());
        action.count_after = listed.next.map(|next| next.id);
        examined += listed.examined.max(listed.jobs.len());
    }
    Ok(())
}

/// The number of matching jobs, if the store keeps it.
async fn kept_count(engine: &Engine, action: &Action) -> Result<Option<u64>, StoreError> {
    let (store, filter) = (engine.store(), &action.filter);
    if filter.is_counted() {
        let counts = store.counts(action.created_at).await?;
        let counts = counts
            .iter()
            .filter(|(queue, _)| filter.queue.as_ref().is_none_or(|only| only == *queue));
        return Ok(Some(
            counts.map(|(_, counts)| counts.of(filter.state)).sum(),
        ));
    }
    if !filter.is_grouped() || filter.state != Some(ListedState::Dead) {
        return Ok(None);
    }
    let groups = GroupFilter {
        queue: filter.queue.clone(),
        kind: filter.kind.clone(),
        fingerprint: filter.fingerprint,
    };
    let (mut matched, mut after) = (0, None);
    loop {
        let page = store.failure_groups(&groups, after.as_ref(), PAGE_MAX, action.created_at);
        let page = page.await?;
        matched += page.iter().map(|group| group.dead).sum::<u64>();
        match page.last() {
            Some(last) if page.len() == PAGE_MAX => after = Some(last.key.clone()),
            _ => return Ok(Some(matched)),
        }
    }
}
