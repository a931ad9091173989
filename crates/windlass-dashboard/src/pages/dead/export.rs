//! Jobs as a file: one JSON object on each line.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use futures_util::stream;
use serde_json::Value;
use windlass_api::Page;

use super::filters_of;
use crate::fields::Fields;
use crate::site::PageResult;
use crate::visit::Visit;

/// How many jobs are read at once.
const PAGE_JOBS: usize = 500;

/// Streams all dead jobs that match.
pub(super) async fn export(visit: Visit) -> PageResult {
    let filters = filters_of(visit.query());
    download(visit, "dead-letters", filters).await
}

/// Streams all jobs of a list that match, page by page, so that memory does not grow with their
/// number. The file is named as the list.
pub(in super::super) async fn download(
    visit: Visit,
    list: &'static str,
    filters: Fields,
) -> PageResult {
    let query = filters.with("limit", &PAGE_JOBS.to_string());
    // The first page is read before the response starts, so that a refusal has its own status.
    let first = read(&visit, list, &query, None).await?;
    let begin = Some((visit.clone(), query, first));
    let lines = stream::unfold(begin, move |state| async move {
        let (visit, query, page) = state?;
        let text: String = page.data.iter().map(|job| format!("{job}\n")).collect();
        let next = match page.next_cursor {
            Some(cursor) => read(&visit, list, &query, Some(&cursor)).await.ok(),
            None => None,
        };
        let state = next.map(|page| (visit, query, page));
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), state))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    let name = format!("attachment; filename=\"{list}.ndjson\"");
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(CONTENT_DISPOSITION, name);
    }
    Ok(visit.finish(response))
}

async fn read(
    visit: &Visit,
    list: &str,
    query: &Fields,
    cursor: Option<&str>,
) -> Result<Page<Value>, crate::failure::Failure> {
    let query = query.with("cursor", cursor.unwrap_or_default());
    visit.get(&format!("/api/v1/{list}{}", query.query())).await
}
