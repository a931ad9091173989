//! Searches for jobs in bounded steps.

use windlass_core::{Job as StoredJob, JobId, Timestamp};
use windlass_store::{
    Filter, ListCursor, ListOrder, Listed, PAGE_BYTES_MAX, Page, Store, StoreError, job_bytes,
};

use super::Client;
use crate::error::Error;

/// A search ends once it examined this many jobs.
const SCANNED_MAX: usize = 10_000;

/// The most that one search or walk reads. 256 MiB.
const READ_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The jobs that one search found, and how far it got.
#[derive(Debug)]
pub struct SearchPage {
    /// The jobs, in the order of the page.
    pub jobs: Vec<StoredJob>,
    /// Where the next page starts. `None` at the end.
    pub next: Option<ListCursor>,
    /// How many jobs the store examined.
    pub scanned: usize,
    /// How far the search came: when the last examined job was enqueued, or when it finished in a
    /// list by the time of the end. `None` if no job matches and none is left.
    pub scanned_until: Option<Timestamp>,
    /// The instant at which the store judged which jobs are due.
    pub at: Timestamp,
}

impl Client {
    /// Searches for jobs by any conditions, also by payload and error.
    ///
    /// One call examines about 10,000 jobs and returns at most 16 MiB. So a page may be short or
    /// empty and not be the last: continue with `next` until it is `None`.
    ///
    /// ```
    /// # use windlass::admin::Page;
    /// # use windlass::{Client, Error, Filter, ListedState};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let timeouts = Filter {
    ///     error: Some("timeout".into()),
    ///     ..Filter::state(ListedState::Dead)
    /// };
    /// let page = client.search(&timeouts, Page::first(100)).await?;
    /// println!("{} of {} dead jobs timed out", page.jobs.len(), page.scanned);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn search(&self, filter: &Filter, page: Page) -> Result<SearchPage, Error> {
        let mut walk = Walk::new(filter.clone(), page);
        let mut found = SearchPage {
            jobs: Vec::new(),
            next: None,
            scanned: 0,
            scanned_until: None,
            at: self.now(),
        };
        let mut bytes = 0;
        while !walk.is_over() && found.scanned < SCANNED_MAX && found.jobs.len() < page.limit {
            let most = page.limit - found.jobs.len();
            let step = walk.step(self.engine.store(), most, found.at).await?;
            found.scanned += step.examined.max(step.jobs.len());
            let mut jobs = step.jobs.into_iter();
            while let Some(job) = jobs.next() {
                bytes += job_bytes(&job);
                let position = page.position(&job);
                found.scanned_until = position.map(|position| reached(&position, Some(&job)));
                found.jobs.push(job);
                if bytes > PAGE_BYTES_MAX && (jobs.len() > 0 || walk.next.is_some()) {
                    found.next = position;
                    return Ok(found);
                }
            }
        }
        found.next = walk.next;
        if let Some(next) = &found.next {
            let last = found.jobs.last().filter(|job| job.id == next.id);
            found.scanned_until = Some(reached(next, last));
        }
        Ok(found)
    }
}

/// The instant that a list came to.
fn reached(position: &ListCursor, job: Option<&StoredJob>) -> Timestamp {
    let created_at = job.map_or_else(|| position.id.made_at(), |job| job.created_at);
    position.finished_at.unwrap_or(created_at)
}

/// Goes over the jobs of a list in steps. The store bounds the bytes of each.
#[derive(Debug)]
pub(super) struct Walk {
    filter: Filter,
    order: ListOrder,
    next: Option<ListCursor>,
    read_bytes: usize,
    saw_all: bool,
}

impl Walk {
    /// Goes over the jobs of a filter from the start of a page on.
    pub(super) fn new(filter: Filter, page: Page) -> Self {
        // Ids are in the order of time, so the walk starts at the newest job that the filter allows.
        let newest = filter
            .created_before
            .filter(|_| page.order == ListOrder::Created)
            .map(|before| ListCursor::from(JobId::new(before, 0)));
        let next = match (page.after, newest) {
            (Some(after), Some(newest)) => Some(after.min(newest)),
            (after, newest) => after.or(newest),
        };
        Walk {
            filter,
            order: page.order,
            next,
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
    ) -> Result<Listed, StoreError> {
        let page = Page {
            order: self.order,
            after: self.next,
            limit: most,
        };
        let listed = store.list(&self.filter, page, now).await?;
        // Ids are in the order of time: there are no more jobs behind the oldest that is asked for.
        let oldest = self
            .filter
            .created_from
            .filter(|_| self.order == ListOrder::Created)
            .map(|from| JobId::new(from, 0));
        self.next = listed
            .next
            .filter(|next| oldest.is_none_or(|oldest| next.id > oldest));
        self.saw_all = self.next.is_none();
        self.read_bytes += listed.jobs.iter().map(job_bytes).sum::<usize>();
        Ok(listed)
    }
}
