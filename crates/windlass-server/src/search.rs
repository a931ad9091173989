//! Converts filters of the REST API to searches of the SDK.

use windlass::admin::Search;
use windlass_api::{JobFilter, JobState};
use windlass_store::{Filter, ListedState};

/// Returns the search for the jobs that match a filter.
pub(crate) fn search_of(filter: &JobFilter) -> Search {
    Search {
        filter: Filter {
            state: filter.state.map(listed),
            queue: filter.queue.clone(),
            kind: filter.kind.clone(),
            tag: filter.tag.clone(),
            unique_key: filter.unique_key.clone(),
            schedule: filter.schedule,
            reason: filter.reason,
            created_from: filter.created_from,
            created_before: filter.created_before,
            finished_before: filter.finished_before,
        },
        scan: filter.scan(),
    }
}

fn listed(state: JobState) -> ListedState {
    match state {
        JobState::Scheduled => ListedState::Scheduled,
        JobState::Ready => ListedState::Ready,
        JobState::Running => ListedState::Running,
        JobState::Succeeded => ListedState::Succeeded,
        JobState::Dead => ListedState::Dead,
        JobState::Cancelled => ListedState::Cancelled,
    }
}
