//! All jobs that match a filter, page after page.

use std::collections::VecDeque;

use futures_util::{Stream, stream};
use windlass_core::{Job as StoredJob, QueueName};
use windlass_store::{Filter, Page};

use super::Client;
use crate::error::Error;

/// How many jobs [`Jobs`] reads at once and holds at most.
const PAGE: usize = 100;

impl Client {
    /// All jobs that match a filter, newest first. It follows the pages of the store and holds at most 100 jobs.
    ///
    /// It does not freeze the store: a job that is enqueued after the first page was read is not returned, and a job whose
    /// state changes meanwhile is returned if it matches when its page is read.
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
            page: Some(Page::first(PAGE)),
            read: VecDeque::new(),
        }
    }

    /// How many jobs match a filter.
    ///
    /// With a queue and a state alone, or neither, the store knows the number. Any other filter reads every matching job, page
    /// by page, which takes as long as [`Client::jobs`] does.
    pub async fn count(&self, filter: &Filter) -> Result<u64, Error> {
        if filter.is_counted() {
            let counts = self.engine.store().counts(self.now()).await?;
            let wanted = |queue: &QueueName| filter.queue.as_ref().is_none_or(|only| only == queue);
            let counts = counts.iter().filter(|(queue, _)| wanted(queue));
            return Ok(counts.map(|(_, counts)| counts.of(filter.state)).sum());
        }
        let mut jobs = self.jobs(filter);
        let mut count = 0;
        while jobs.next().await?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

/// The jobs that match a filter: see [`Client::jobs`].
#[derive(Debug)]
#[must_use = "it reads nothing until the next job is asked for"]
pub struct Jobs {
    client: Client,
    filter: Filter,
    /// The page to read next; none after the last.
    page: Option<Page>,
    read: VecDeque<StoredJob>,
}

impl Jobs {
    /// The next job; none when there is no other. After an error, the next call reads the same page again.
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

    /// The same as a [`Stream`], which ends after the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<StoredJob, Error>> + Send {
        stream::try_unfold(self, async |mut jobs| {
            let job = jobs.next().await?;
            Ok(job.map(|job| (job, jobs)))
        })
    }
}
