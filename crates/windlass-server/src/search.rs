//! Jobs by what a client asks of them, in bounded steps.

use windlass_api::{JobFilter, JobState};
use windlass_core::{End, Ended, Job, JobId, Standing, Timestamp};
use windlass_store::{Filter, ListedState, Page, Store, StoreError};

use crate::app::App;
use crate::problem::Problem;

/// One request that looks at jobs one by one looks at so many.
const LOOKED_AT_MAX: usize = 10_000;

/// A page ends early where its jobs carry more than this.
const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One request reads no more than this of what jobs carry.
const READ_BYTES_MAX: usize = 256 * 1024 * 1024;

/// So many jobs are read at once before it is known how large they are, and at most.
const STEP_FIRST: usize = 16;
const STEP_MAX: usize = 256;

/// What was found, and how far the search got.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The jobs, newest first.
    pub(crate) jobs: Vec<Job>,
    /// Jobs that were named and cannot be read.
    pub(crate) unreadable: Vec<JobId>,
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
    let searches = filter.searches();
    let mut walk = Walk::new(store_filter(filter), after);
    let mut found = Found::default();
    let mut kept = 0;
    while !walk.is_over() && found.scanned < LOOKED_AT_MAX {
        let wanted = if searches {
            STEP_MAX.min(LOOKED_AT_MAX - found.scanned)
        } else {
            limit - found.jobs.len()
        };
        let mut listed = walk.step(app.store(), wanted, now).await?.into_iter();
        let none = listed.len() == 0;
        while let Some(job) = listed.next() {
            found.scanned += 1;
            found.scanned_until = Some(job.created_at);
            if !filter.finds(&job) {
                continue;
            }
            kept += bytes_of(&job);
            let last = Some(job.id);
            found.jobs.push(job);
            if found.jobs.len() == limit || kept > PAGE_BYTES_MAX {
                found.next = if listed.len() > 0 { last } else { walk.next };
                return Ok(found);
            }
        }
        if none && !searches {
            break; // the store looked as far as it does in one step
        }
    }
    found.next = walk.next;
    Ok(found)
}

/// What a job carries, about.
fn bytes_of(job: &Job) -> usize {
    let result = match &job.standing {
        Standing::Finished(End {
            how: Ended::Succeeded(result),
            ..
        }) => result.as_ref(),
        _ => None,
    };
    let texts = [Some(&job.payload), result];
    texts
        .into_iter()
        .flatten()
        .map(|of| of.as_str().len())
        .sum()
}

/// Goes over jobs, newest first, in steps that are small where jobs are large.
#[derive(Debug)]
pub(crate) struct Walk {
    filter: Filter,
    next: Option<JobId>,
    step: usize,
    read: usize,
    over: bool,
}

impl Walk {
    /// Over the jobs of a filter behind a cursor.
    pub(crate) fn new(filter: Filter, after: Option<JobId>) -> Self {
        // Ids are in the order of time: what was enqueued later is not walked over.
        let newest = filter.created_before.map(|before| JobId::new(before, 0));
        let next = match (after, newest) {
            (Some(after), Some(newest)) => Some(after.min(newest)),
            (after, newest) => after.or(newest),
        };
        Walk {
            filter,
            next,
            step: STEP_FIRST,
            read: 0,
            over: false,
        }
    }

    /// Whether all jobs were seen, or as much was read as one request may.
    pub(crate) fn is_over(&self) -> bool {
        self.over || self.read > READ_BYTES_MAX
    }

    /// Whether all jobs were seen.
    pub(crate) fn saw_all(&self) -> bool {
        self.over
    }

    /// The next jobs, at most so many; there may be none although there are more.
    pub(crate) async fn step(
        &mut self,
        store: &dyn Store,
        most: usize,
        now: Timestamp,
    ) -> Result<Vec<Job>, StoreError> {
        let page = Page {
            after: self.next,
            limit: self.step.min(most),
        };
        let listed = store.list(&self.filter, page, now).await?;
        // Ids are in the order of time: behind the oldest that is asked for, there are no more.
        let oldest = self.filter.created_from.map(|from| JobId::new(from, 0));
        self.next = listed
            .next
            .filter(|next| oldest.is_none_or(|oldest| *next > oldest));
        self.over = self.next.is_none();
        let bytes: usize = listed.jobs.iter().map(bytes_of).sum();
        self.read += bytes;
        let each = bytes / listed.jobs.len().max(1);
        let fitting = PAGE_BYTES_MAX / each.max(1);
        self.step = fitting.clamp(1, (self.step * 2).min(STEP_MAX));
        Ok(listed.jobs)
    }
}

/// The part of a filter that a store answers by itself.
fn store_filter(filter: &JobFilter) -> Filter {
    Filter {
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
