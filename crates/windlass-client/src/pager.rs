//! Lists in pages.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use windlass_api::Page;

use crate::client::{Call, Client};
use crate::error::Error;

/// A list that is read page by page.
#[derive(Debug)]
#[must_use = "a list is read with `next_page` or `all`"]
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

    /// At most this many rows on each page, up to 1000.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Begins behind an earlier page, whose `next_cursor` this is.
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.cursor = Some(cursor.into());
        self
    }

    /// The next page; none after the last one. A page may be empty and not the last.
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
        let page: Page<T> = self.client.json(call).await?;
        self.cursor.clone_from(&page.next_cursor);
        self.ended = self.cursor.is_none();
        Ok(Some(page))
    }

    /// All rows that are left.
    pub async fn all(mut self) -> Result<Vec<T>, Error> {
        let mut rows = Vec::new();
        while let Some(page) = self.next_page().await? {
            rows.extend(page.data);
        }
        Ok(rows)
    }
}
