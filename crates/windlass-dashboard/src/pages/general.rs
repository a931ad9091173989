//! What belongs to no page: the theme, and the search field of the sidebar.

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::SET_COOKIE;
use windlass_core::{JobId, QueueName};

use crate::fields::escaped;
use crate::site::{PageResult, Site, action, page};
use crate::visit::{Submit, THEME, Visit};

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/theme", action(theme))
        .route("/find", page(find))
}

/// Keeps the theme in a cookie, so that the next page has it from its first byte.
async fn theme(submit: Submit) -> PageResult {
    let theme = match submit.fields.get("theme") {
        Some("dark") => "dark",
        _ => "light",
    };
    let back = submit
        .fields
        .get("from")
        .filter(|from| from.starts_with('/'))
        .unwrap_or("/");
    let mut response = submit.visit.redirect(back, None);
    let cookie = format!("{THEME}={theme}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Leads to what the search field names: a job by its id, a queue, or jobs with an error text.
async fn find(visit: Visit) -> PageResult {
    let text = visit.query().get("q").unwrap_or_default().trim().to_owned();
    if text.is_empty() {
        return Ok(visit.redirect("/jobs", None));
    }
    if text.parse::<JobId>().is_ok() {
        return Ok(visit.redirect(&format!("/jobs/{}", escaped(&text)), None));
    }
    let snapshot = visit.snapshot().await?;
    if let Some(queue) = snapshot
        .queues
        .iter()
        .find(|queue| queue.name.as_str() == text)
    {
        return Ok(visit.redirect(&format!("/queues/{}", escaped(queue.name.as_str())), None));
    }
    let name = if text.parse::<QueueName>().is_ok() && text.contains(':') {
        "kind"
    } else {
        "error"
    };
    Ok(visit.redirect(&format!("/jobs?{name}={}", escaped(&text)), None))
}
