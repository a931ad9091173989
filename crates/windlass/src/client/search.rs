//! Jobs by conditions that a store cannot answer by itself, found in bounded steps.

use windlass_core::{
    FinalState, Finish, Job as StoredJob, JobId, ScanFilter, StateDetails, Timestamp,
};
use windlass_store::{Filter, Page, Store, StoreError};

use super::Client;
use crate::error::Error;

/// The most jobs that one search reads one by one.
const SCANNED_MAX: usize = 10_000;

/// A page ends early once its jobs carry more than this. 16 MiB.
const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The most that one search or walk reads. 256 MiB.
const READ_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How many jobs the first step reads, before it is known how large they are.
const STEP_FIRST: usize = 16;

/// The most jobs of one step.
const STEP_MAX: usize = 256;

/// Which jobs to search for. Both parts must hold.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// What the store finds by itself.
    pub filter: Filter,
    /// What is checked by reading the jobs that the store finds.
    pub scan: ScanFilter,
}

impl From<Filter> for Search {
    fn from(filter: Filter) -> Self {
        Search {
            filter,
            scan: ScanFilter::default(),
        }
    }
}

/// The jobs that one search found, and how far it got.
#[derive(Debug)]
pub struct SearchPage {
    /// The jobs, newest first.
    pub jobs: Vec<StoredJob>,
    /// Where the next page starts. `None` at the end.
    pub next: Option<JobId>,
    /// How many jobs were read.
    pub scanned: usize,
    /// When the last job that was read was enqueued.
    pub scanned_until: Option<Timestamp>,
    /// The instant at which the store judged which jobs are due.
    pub at: Timestamp,
}

impl Client {
    /// Searches for jobs, newest first, also by payload and error.
    ///
    /// One call reads at most 10,000 jobs and 256 MiB, and returns at most 16 MiB. So a page may be
    /// short or empty and not be the last: continue with `next` until it is `None`.
    ///
    /// ```
    /// # use windlass::admin::{Page, ScanFilter, Search};
    /// # use windlass::{Client, Error, Filter, ListedState};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let timeouts = Search {
    ///     filter: Filter::state(ListedState::Dead),
    ///     scan: ScanFilter { error: Some("timeout".into()), ..ScanFilter::default() },
    /// };
    /// let page = client.search(&timeouts, Page::first(100)).await?;
    /// println!("{} of {} dead jobs timed out", page.jobs.len(), page.scanned);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn search(&self, search: &Search, page: Page) -> Result<SearchPage, Error> {
        let scans = !search.scan.is_empty();
        let mut walk = Walk::new(search.filter.clone(), page.after);
        let mut found = SearchPage {
            jobs: Vec::new(),
            next: None,
            scanned: 0,
            scanned_until: None,
            at: self.now(),
        };
        let mut found_bytes = 0;
        while !walk.is_over() && found.scanned < SCANNED_MAX {
            let most = if scans {
                STEP_MAX.min(SCANNED_MAX - found.scanned)
            } else {
                page.limit - found.jobs.len()
            };
            let step = walk.step(self.engine.store(), most, found.at).await?;
            let is_empty = step.is_empty();
            let mut step = step.into_iter();
            while let Some(job) = step.next() {
                found.scanned += 1;
                found.scanned_until = Some(job.created_at);
                if !search.scan.matches(&job) {
                    continue;
                }
                found_bytes += bytes_of(&job);
                let last = Some(job.id);
                found.jobs.push(job);
                if found.jobs.len() == page.limit || found_bytes > PAGE_BYTES_MAX {
                    found.next = if step.len() > 0 { last } else { walk.next };
                    return Ok(found);
                }
            }
            if is_empty && !scans {
                break; // the store looked as far as it does in one step
            }
        }
        found.next = walk.next;
        Ok(found)
    }
}

/// About how much a job carries.
fn bytes_of(job: &StoredJob) -> usize {
    let result = match &job.state_details {
        StateDetails::Finished(Finish {
            state: FinalState::Succeeded(Some(result)),
            ..
        }) => result.as_str().len(),
        _ => 0,
    };
    job.payload.as_str().len() + result
}

/// Goes over jobs, newest first, in steps that are small where jobs are large.
#[derive(Debug)]
pub(super) struct Walk {
    filter: Filter,
    next: Option<JobId>,
    step: usize,
    read_bytes: usize,
    saw_all: bool,
}

impl Walk {
    /// Goes over the jobs of a filter behind a cursor.
    pub(super) fn new(filter: Filter, after: Option<JobId>) -> Self {
        // Ids are in the order of time, so the walk starts at the newest job that the filter allows.
        let newest = filter.created_before.map(|before| JobId::new(before, 0));
        let next = match (after, newest) {
            (Some(after), Some(newest)) => Some(after.min(newest)),
            (after, newest) => after.or(newest),
        };
        Walk {
            filter,
            next,
            step: STEP_FIRST,
            read_bytes: 0,
            saw_all: false,
        }
    }

    /// Whether the walk saw all jobs, or read as much as it may.
    pub(super) fn is_over(&self) -> bool {
        self.saw_all || self.read_bytes > READ_BYTES_MAX
    }

    /// Whether the walk saw all jobs.
    pub(super) fn saw_all(&self) -> bool {
        self.saw_all
    }

    /// The next jobs, at most `most`. A step may be empty and not be the last.
    pub(super) async fn step(
        &mut self,
        store: &dyn Store,
        most: usize,
        now: Timestamp,
    ) -> Result<Vec<StoredJob>, StoreError> {
        let page = Page {
            after: self.next,
            limit: self.step.min(most),
        };
        let listed = store.list(&self.filter, page, now).await?;
        // Ids are in the order of time: there are no more jobs behind the oldest that is asked for.
        let oldest = self.filter.created_from.map(|from| JobId::new(from, 0));
        self.next = listed
            .next
            .filter(|next| oldest.is_none_or(|oldest| *next > oldest));
        self.saw_all = self.next.is_none();
        let bytes: usize = listed.jobs.iter().map(bytes_of).sum();
        self.read_bytes += bytes;
        let each = bytes / listed.jobs.len().max(1);
        let fitting = PAGE_BYTES_MAX / each.max(1);
        self.step = fitting.clamp(1, (self.step * 2).min(STEP_MAX));
        Ok(listed.jobs)
    }
}
