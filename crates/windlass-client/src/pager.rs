//! Reads lists page by page.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use windlass_api::Page;

use crate::client::{Call, Client};
use crate::error::Error;

/// A list that the client reads page by page.
///
/// ```no_run
/// # use windlass_client::{Client, Error, api::JobFilter};
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let mut pages = client.jobs(&JobFilter::default()).limit(100);
/// while let Some(page) = pages.next_page().await? {
///     for job in page.data {
///         println!("{}", job.id);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a pager sends no request until `next_page` or `all` is called"]
pub struct Pager<T> {
    client: Client,
    call: Call,
    limit: Option<usize>,
    cursor: Option<String>,
    ended: bool,
    rows: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Pager<T> {
    pub(crate) fn new(client: &Client, call: Call) -> Self {
        Pager {
            client: client.clone(),
            call,
            limit: None,
            cursor: None,
            ended: false,
            rows: PhantomData,
        }
    }

    /// Sets the largest number of rows on each page, 1 to 1000.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Starts after an earlier page: takes the `next_cursor` of that page.
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.cursor = Some(cursor.into());
        self
    }

    /// Returns the next page, or `None` after the last one. A page can be empty although more pages
    /// follow.
    ///
    /// After an error, the next call requests the same page again.
    pub async fn next_page(&mut self) -> Result<Option<Page<T>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let mut call = self.call.clone();
        if let Some(limit) = self.limit {
            call = call.param("limit", &limit.to_string());
        }
        if let Some(cursor) = &self.cursor {
            call = call.param("cursor", cursor);
        }
        let page: Page<T> = self.client.send_json(call).await?;
        self.cursor.clone_from(&page.next_cursor);
        self.ended = self.cursor.is_none();
        Ok(Some(page))
    }

    /// Reads all remaining pages and returns their rows.
    pub async fn all(mut self) -> Result<Vec<T>, Error> {
        let mut rows = Vec::new();
        while let Some(page) = self.next_page().await? {
            rows.extend(page.data);
        }
        Ok(rows)
    }
}
