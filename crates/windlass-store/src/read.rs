//! Types of the verbs that read jobs: filters, pages, counts.

use windlass_core::{Job, JobId, ListedState, Timestamp};

use crate::stored::result_of;

/// The most rows of one page.
pub const PAGE_MAX: usize = 1000;

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListOrder {
    /// The newest job first.
    #[default]
    Created,
    /// The job that finished last first. Lists only finished jobs.
    Finished,
}

/// A position in a list: behind this job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListCursor {
    /// When the job finished; `None` in a list by creation.
    pub finished_at: Option<Timestamp>,
    /// The job.
    pub id: JobId,
}

impl From<JobId> for ListCursor {
    fn from(id: JobId) -> Self {
        ListCursor {
            finished_at: None,
            id,
        }
    }
}

/// A part of a list.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// The order of the list.
    pub order: ListOrder,
    /// [`Listed::next`] of the previous page; `None` for the first page.
    pub after: Option<ListCursor>,
    /// The most jobs of the page, at most [`PAGE_MAX`].
    pub limit: usize,
}

impl Page {
    /// The first page, newest job first.
    pub fn first(limit: usize) -> Self {
        Page {
            order: ListOrder::Created,
            after: None,
            limit,
        }
    }

    /// The page of the newest jobs that are older than `after`.
    pub fn after(after: Option<JobId>, limit: usize) -> Self {
        Page {
            after: after.map(ListCursor::from),
            ..Page::first(limit)
        }
    }

    /// The position of a job in the list; `None` if the list cannot contain it.
    pub fn position(&self, job: &Job) -> Option<ListCursor> {
        let finished_at = match self.order {
            ListOrder::Created => None,
            ListOrder::Finished => Some(job.finished_at()?),
        };
        Some(ListCursor {
            finished_at,
            id: job.id,
        })
    }
}

/// The most jobs that one list examines.
pub const SCAN_MAX: usize = 10_000;

/// A page ends early once its jobs have this many bytes. 16 MiB.
pub const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// About how many bytes a job has: its payload and its result. Everything else is small.
pub fn job_bytes(job: &Job) -> usize {
    job.payload.as_str().len() + result_of(job).map_or(0, str::len)
}

/// A page of a list. If few of many jobs match, or if jobs are large, the page may be short or empty
/// although more pages follow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listed {
    /// The jobs in the order of the page.
    pub jobs: Vec<Job>,
    /// The cursor of the next page; `None` at the end of the list.
    pub next: Option<ListCursor>,
    /// How many jobs were examined, because no index answers the whole filter.
    pub examined: usize,
}

/// Fills a page from jobs that a driver examines one by one. All drivers use it, so that their
/// pages end alike.
#[derive(Debug)]
pub struct Lister {
    limit: usize,
    examined: usize,
    last: Option<ListCursor>,
    jobs: Vec<Job>,
    bytes: usize,
}

impl Lister {
    /// Starts an empty page.
    pub fn new(page: Page) -> Self {
        Lister {
            limit: page.limit.min(PAGE_MAX),
            examined: 0,
            last: page.after,
            jobs: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether the page is complete: it has `limit` jobs or [`PAGE_BYTES_MAX`] bytes, or
    /// [`SCAN_MAX`] jobs were examined.
    pub fn is_full(&self) -> bool {
        self.jobs.len() >= self.limit || self.bytes >= PAGE_BYTES_MAX || self.examined >= SCAN_MAX
    }

    /// Examines the next job; `job` is `None` if it does not match.
    pub fn look(&mut self, position: ListCursor, job: Option<Job>) {
        self.examined += 1;
        self.last = Some(position);
        self.bytes += job.as_ref().map_or(0, job_bytes);
        self.jobs.extend(job);
    }

    /// Returns the page. It has a cursor if it was complete before the list ended.
    pub fn finish(self) -> Listed {
        let next = self.last.filter(|_| self.is_full() && self.limit > 0);
        Listed {
            jobs: self.jobs,
            next,
            examined: self.examined,
        }
    }
}

/// How many jobs of a queue are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting; `run_at` is in the future.
    pub scheduled: u64,
    /// Waiting; `run_at` has come.
    pub ready: u64,
    /// How many of the waiting jobs are in the retry lane: they have failed before, or were revived.
    pub retrying: u64,
    /// Running.
    pub running: u64,
    /// Succeeded and not yet removed.
    pub succeeded: u64,
    /// Dead and not yet removed.
    pub dead: u64,
    /// Cancelled and not yet removed.
    pub cancelled: u64,
    /// The `run_at` of the job that has been ready for longest.
    pub oldest_ready: Option<Timestamp>,
    /// When the queue may start the next job, if its rate is used up.
    pub rate_until: Option<Timestamp>,
}

impl Counts {
    /// How many jobs are in a state; in all states together for `None`.
    pub fn of(&self, state: Option<ListedState>) -> u64 {
        match state {
            None => ListedState::ALL
                .iter()
                .map(|state| self.of(Some(*state)))
                .sum(),
            Some(ListedState::Scheduled) => self.scheduled,
            Some(ListedState::Ready) => self.ready,
            Some(ListedState::Running) => self.running,
            Some(ListedState::Succeeded) => self.succeeded,
            Some(ListedState::Dead) => self.dead,
            Some(ListedState::Cancelled) => self.cancelled,
        }
    }
}
