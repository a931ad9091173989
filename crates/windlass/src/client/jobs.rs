//! Reading all jobs that match a filter, page by page.

use std::collections::VecDeque;

use futures_util::{Stream, stream};
use windlass_core::{Job as StoredJob, QueueName};
use windlass_store::{Filter, Page};

use super::{Client, FailureFilter};
use crate::error::Error;

/// The number of jobs that [`Jobs`] reads per page, and the most that it holds in memory.
const PAGE_SIZE: usize = 100;

impl Client {
    /// Returns an iterator over all jobs that match a filter, newest first.
    ///
    /// It reads the store page by page, and holds at most 100 jobs in memory. It is not a snapshot:
    /// jobs that are enqueued after the first page was read are left out, and a job whose state
    /// changes meanwhile is returned if it matches when its page is read.
    ///
    /// ```
    /// # use windlass::{Client, Error, Filter, ListedState};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let mut dead = client.jobs(&Filter::state(ListedState::Dead));
    /// while let Some(job) = dead.next().await? {
    ///     println!("{} {}", job.id, job.kind);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn jobs(&self, filter: &Filter) -> Jobs {
        Jobs {
            client: self.clone(),
            filter: filter.clone(),
            page: Some(Page::first(PAGE_SIZE)),
            read: VecDeque::new(),
        }
    }

    /// Returns the number of jobs that match a filter.
    ///
    /// Counters answer a filter by nothing but queue and state, and a filter of dead jobs by nothing
    /// but queue, kind and fingerprint. Any other filter reads every matching job, which takes as
    /// long as [`Client::jobs`].
    pub async fn count(&self, filter: &Filter) -> Result<u64, Error> {
        if filter.is_counted() {
            let counts = self.engine.store().counts(self.now()).await?;
            let matches =
                |queue: &QueueName| filter.queue.as_ref().is_none_or(|only| only == queue);
            let counts = counts.iter().filter(|(queue, _)| matches(queue));
            return Ok(counts.map(|(_, counts)| counts.of(filter.state)).sum());
        }
        if filter.is_grouped() {
            let causes = FailureFilter {
                queue: filter.queue.clone(),
                kind: filter.kind.clone(),
                fingerprint: filter.fingerprint,
                member: None,
            };
            let groups = self.all_groups(&causes).await?;
            return Ok(groups.iter().map(|group| group.dead).sum());
        }
        let mut jobs = self.jobs(filter);
        let mut count = 0;
        while jobs.next().await?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

/// An asynchronous iterator over the jobs that match a filter. [`Client::jobs`] returns it.
#[derive(Debug)]
#[must_use = "call `next` to read jobs"]
pub struct Jobs {
    client: Client,
    filter: Filter,
    /// The page to read next; `None` after the last.
    page: Option<Page>,
    read: VecDeque<StoredJob>,
}

impl Jobs {
    /// Returns the next job, or `None` after the last.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if a page cannot be read. The next call reads the same page again.
    pub async fn next(&mut self) -> Result<Option<StoredJob>, Error> {
        while self.read.is_empty()
            && let Some(page) = self.page
        {
            let listed = self.client.list(&self.filter, page).await?;
            self.read = listed.jobs.into();
            self.page = listed.next.map(|last| Page {
                after: Some(last),
                ..page
            });
        }
        Ok(self.read.pop_front())
    }

    /// Turns the iterator into a [`Stream`], which ends after the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<StoredJob, Error>> + Send {
        stream::try_unfold(self, async |mut jobs| {
            let job = jobs.next().await?;
            Ok(job.map(|job| (job, jobs)))
        })
    }
}
