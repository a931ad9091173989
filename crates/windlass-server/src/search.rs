//! Jobs by what a client asks of them, in bounded steps.

use windlass_api::JobFilter;
use windlass_core::{Job, JobId, Timestamp};
use windlass_store::{Filter, ListedState, PAGE_MAX, Page};

use crate::app::App;
use crate::problem::Problem;

/// One request that looks at jobs one by one looks at so many.
const LOOKED_AT_MAX: usize = 10_000;

/// What was found, and how far the search got.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The jobs, newest first.
    pub(crate) jobs: Vec<Job>,
    /// Where the next page begins; none at the end.
    pub(crate) next: Option<JobId>,
    /// How many jobs were looked at one by one.
    pub(crate) scanned: usize,
    /// When the last one that was looked at was enqueued.
    pub(crate) scanned_until: Option<Timestamp>,
}

/// Up to `limit` jobs behind a cursor. Where a store cannot tell, jobs are looked at one by one, a bounded number of them.
pub(crate) async fn search(
    app: &App,
    filter: &JobFilter,
    after: Option<JobId>,
    limit: usize,
    now: Timestamp,
) -> Result<Found, Problem> {
    let by_store = store_filter(filter);
    let searches = filter.searches();
    let mut found = Found {
        next: after,
        ..Found::default()
    };
    loop {
        let wanted = limit - found.jobs.len();
        let page = Page {
            after: found.next,
            limit: if searches { PAGE_MAX } else { wanted },
        };
        let listed = app.store().list(&by_store, page, now).await?;
        found.next = listed.next;
        for job in listed.jobs {
            found.scanned += 1;
            found.scanned_until = Some(job.created_at);
            if !filter.finds(&job) {
                continue;
            }
            let id = job.id;
            found.jobs.push(job);
            if found.jobs.len() == limit {
                found.next = Some(id);
                return Ok(found);
            }
        }
        if found.next.is_none() || !searches || found.scanned >= LOOKED_AT_MAX {
            return Ok(found);
        }
    }
}

/// The part of a filter that a store answers by itself.
fn store_filter(filter: &JobFilter) -> Filter {
    Filter {
        state: filter.state.and_then(state_of),
        queue: filter.queue.clone(),
        kind: filter.kind.clone(),
        tag: filter.tag.clone(),
        unique_key: filter.unique_key.clone(),
        schedule: filter.schedule,
        reason: filter.reason,
        created_from: filter.created_from,
        created_before: filter.created_before,
        finished_before: filter.finished_before,
    }
}

fn state_of(name: &str) -> Option<ListedState> {
    let state = match name {
        "scheduled" => ListedState::Scheduled,
        "ready" => ListedState::Ready,
        "running" => ListedState::Running,
        "succeeded" => ListedState::Succeeded,
        "dead" => ListedState::Dead,
        "cancelled" => ListedState::Cancelled,
        _ => return None,
    };
    Some(state)
}
