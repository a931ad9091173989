//! The flags of commands that list rows page by page.

use clap::Args;
use serde::de::DeserializeOwned;
use windlass_api::Page;
use windlass_client::Pager;

/// The most rows that one request returns.
const PAGE_MAX: usize = 1000;

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    /// The largest number of rows to list, 1 to 100000.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,

    /// Continue an earlier list: the cursor that it printed.
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

impl ListArgs {
    /// Reads the rows of a list. Reads several pages, because a page can be short without being the
    /// last.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        list: impl Fn() -> Pager<T>,
    ) -> anyhow::Result<Page<T>> {
        let limit = usize::try_from(self.limit)?;
        let (mut data, mut cursor) = (Vec::new(), self.cursor.clone());
        loop {
            let mut pager = list().limit(PAGE_MAX.min(limit - data.len()));
            if let Some(cursor) = cursor {
                pager = pager.after(cursor);
            }
            let Some(page) = pager.next_page().await? else {
                return Ok(Page::single(data));
            };
            data.extend(page.data);
            cursor = page.next_cursor;
            if data.len() >= limit || cursor.is_none() {
                let next_cursor = cursor;
                return Ok(Page { data, next_cursor });
            }
        }
    }
}
