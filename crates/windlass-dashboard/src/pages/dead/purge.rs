//! Removes dead jobs for good, after their number and their filter were shown.

use askama::Template;
use axum::http::Method;
use serde_json::{Map, Value, json};
use windlass_api::{ActionPreview, BulkAction};

use super::{filters_of, flags};
use crate::failure::Failure;
use crate::fields::Fields;
use crate::frame::{Frame, Section};
use crate::show;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

#[derive(Template)]
#[template(path = "dead_purge.html")]
struct PurgeTemplate {
    frame: Frame,
    count: String,
    complete: bool,
    filters: Vec<(String, String)>,
    query: String,
    /// What must be typed: the queue, or the word `purge`.
    word: String,
    failure: Option<Failure>,
    typed_reason: String,
    commands: Vec<String>,
}

pub(super) async fn form(visit: Visit) -> PageResult {
    render(&visit, visit.query(), None, "").await
}

async fn render(
    visit: &Visit,
    query: &Fields,
    failure: Option<Failure>,
    reason: &str,
) -> PageResult {
    let filters = filters_of(query);
    let preview: ActionPreview = {
        let mut body = request(&filters, "dry run");
        body.insert("dry_run".to_owned(), true.into());
        visit
            .send(Method::POST, "/api/v1/bulk-actions", &body)
            .await?
    };
    let frame = Frame::new(visit, "Purge dead jobs", Section::Dead).await?;
    let shown = filters
        .pairs()
        .map(|(name, value)| (name.replace('_', " "), show::visible(value)));
    let status = failure.as_ref().map(|failure| failure.status);
    let page = PurgeTemplate {
        count: show::grouped(preview.matched),
        complete: preview.complete,
        filters: shown.collect(),
        query: filters.query(),
        word: word(&filters),
        failure,
        typed_reason: reason.to_owned(),
        commands: vec![
            format!(
                "windlass jobs export --state dead{} --output dead.ndjson",
                flags(query)
            ),
            format!(
                "windlass bulk start --action delete --state dead{} --reason '…' --dry-run",
                flags(query)
            ),
        ],
        frame,
    };
    let mut response = visit.page(&page)?;
    if let Some(status) = status {
        *response.status_mut() = status;
    }
    Ok(response)
}

/// What must be typed to confirm.
fn word(filters: &Fields) -> String {
    filters.get("queue").unwrap_or("purge").to_owned()
}

fn request(filters: &Fields, reason: &str) -> Map<String, Value> {
    let mut filter = filter_json(filters);
    filter.insert("state".to_owned(), "dead".into());
    let body = json!({"action": "delete", "filter": filter, "reason": reason});
    match body {
        Value::Object(body) => body,
        _ => Map::new(),
    }
}

/// Filters of a query as the filter of an action.
pub(crate) fn filter_json(filters: &Fields) -> Map<String, Value> {
    let field = |(name, value): (&str, &str)| (name.to_owned(), Value::from(value));
    filters.pairs().map(field).collect()
}

pub(super) async fn purge(submit: Submit) -> PageResult {
    let filters = filters_of(submit.visit.query());
    let reason = submit.fields.get("reason").unwrap_or_default();
    if submit.fields.get("confirm") != Some(word(&filters).as_str()) {
        let failure = Failure::invalid(format!("type {} to confirm", word(&filters)));
        return render(&submit.visit, submit.visit.query(), Some(failure), reason).await;
    }
    let created: Result<BulkAction, Failure> = submit
        .visit
        .send(
            Method::POST,
            "/api/v1/bulk-actions",
            &request(&filters, reason),
        )
        .await;
    match created {
        Ok(action) => {
            let path = format!("/actions/bulk/{}", action.id);
            Ok(submit.visit.done(&path, "The purge has started."))
        }
        Err(failure) => render(&submit.visit, submit.visit.query(), Some(failure), reason).await,
    }
}
