//! An action on all jobs that match a filter: what it would do, then a bulk action with progress.

use askama::Template;
use axum::http::Method;
use serde_json::{Map, Value, json};
use windlass_api::{ActionPreview, BulkActionAnswer};

use super::filter;
use super::matching::Matching;
use super::selected::{PATCH, VERBS, Verb, verb};
use crate::failure::Failure;
use crate::fields::Fields;
use crate::frame::{Frame, Section};
use crate::pages::queues::created_path;
use crate::show;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

#[derive(Template)]
#[template(path = "jobs_all.html")]
struct AllPage {
    frame: Frame,
    verbs: [Verb; 8],
    chosen: &'static str,
    fields: Fields,
    /// The conditions in words.
    conditions: Vec<(String, String)>,
    /// How many jobs match, if a dry run can count them.
    matching: Option<Matching>,
    /// What the action would do. `None` before the first look.
    preview: Option<Preview>,
    commands: Vec<String>,
}

struct Preview {
    sentence: String,
    matching: Matching,
    /// The first jobs: id, kind, queue, and what changes or why not.
    samples: Vec<(String, String, String, String)>,
}

/// The conditions of a form: the fields of the page's URL, or the hidden fields.
fn conditions(fields: &Fields) -> Fields {
    let filter = fields.pairs().filter_map(|(name, value)| {
        Some((name.strip_prefix("filter.")?.to_owned(), value.to_owned()))
    });
    filter::of(&filter.collect())
}

pub(super) async fn form(visit: Visit) -> PageResult {
    let filters = filter::of(visit.query());
    let usual = match filters.get("state") {
        Some("dead" | "cancelled") => verb("revive")?,
        _ => VERBS[0],
    };
    page(&visit, &filters, usual, &Fields::default(), None).await
}

async fn page(
    visit: &Visit,
    filters: &Fields,
    chosen: Verb,
    fields: &Fields,
    preview: Option<Preview>,
) -> PageResult {
    let frame = Frame::new(visit, "Change all matching jobs", Section::Jobs).await?;
    let mut command = filter::command(
        &format!("windlass bulk start --action {}", chosen.name),
        filters,
    );
    if let Some((name, _, placeholder)) = chosen.field {
        let flag = match name {
            "queue" => "--to-queue",
            PATCH => "--payload-patch",
            _ => "--priority",
        };
        let value = fields.get(name).unwrap_or(placeholder);
        command.push_str(&format!(" {flag} {}", filter::quoted(value)));
    }
    command.push_str(" --reason 'why' --dry-run");
    let conditions = filters
        .pairs()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let matching = match &preview {
        Some(preview) => Some(preview.matching),
        None => Matching::count(visit, filters).await,
    };
    visit.page(&AllPage {
        matching,
        verbs: VERBS,
        chosen: chosen.name,
        conditions: conditions.collect(),
        fields: fields.clone(),
        preview,
        commands: vec![command],
        frame,
    })
}

/// The body of the bulk action.
fn body(submit: &Submit, filters: &Fields, dry_run: bool) -> Result<(Verb, Value), Failure> {
    let verb = verb(submit.required("action")?)?;
    let number = |name: &str, text: &str| {
        let number: Result<i64, _> = text.trim().parse();
        number.map_err(|_| Failure::invalid(format!("the {name} must be a whole number")))
    };
    let mut body = Map::new();
    body.insert("action".to_owned(), json!(verb.name));
    body.insert("filter".to_owned(), filter::to_json(filters));
    body.insert("reason".to_owned(), json!(submit.required("reason")?));
    body.insert("dry_run".to_owned(), json!(dry_run));
    if let Some((name, ..)) = verb.field {
        let text = submit.required(name)?;
        let value = match name {
            "priority" => json!(number(name, text)?),
            PATCH => json!({"payload": patch(text)?}),
            _ => json!(text.trim()),
        };
        body.insert(name.to_owned(), value);
    }
    if let Some(rate) = submit.fields.get("rate") {
        body.insert("rate".to_owned(), json!(number("rate", rate)?));
    }
    Ok((verb, Value::Object(body)))
}

/// Reads a payload patch.
fn patch(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Failure::invalid(format!("the patch is not JSON: {error}")))
}

/// Shows what the action would do. Nothing changes.
pub(super) async fn preview(submit: Submit) -> PageResult {
    let filters = conditions(&submit.fields);
    let (verb, body) = body(&submit, &filters, true)?;
    let preview: ActionPreview = submit
        .visit
        .send(Method::POST, "/api/v1/bulk-actions", &body)
        .await?;
    let matching = Matching::previewed(&preview);
    let samples = preview.samples.iter().map(|job| {
        let id = job.id.to_string();
        let diff = preview.diff.iter().find(|diff| diff.job_id == job.id);
        let what = diff.map_or_else(String::new, |diff| match (&diff.refused, &diff.changes) {
            (Some(refused), _) => format!("left out: {refused}"),
            (None, Some(changes)) => {
                let changes = changes.iter().map(|(field, change)| {
                    format!(
                        "{field}: {} → {}",
                        show::clipped(&change.from.to_string(), 40),
                        show::clipped(&change.to.to_string(), 40)
                    )
                });
                changes.collect::<Vec<_>>().join(", ")
            }
            (None, None) => String::new(),
        });
        (id, job.kind.to_string(), job.queue.to_string(), what)
    });
    let shown = Preview {
        sentence: format!("{} {}?", verb.ask, matching.jobs()),
        samples: samples.collect(),
        matching,
    };
    page(&submit.visit, &filters, verb, &submit.fields, Some(shown)).await
}

/// Creates the bulk action and leads to its progress.
pub(super) async fn apply(submit: Submit) -> PageResult {
    let filters = conditions(&submit.fields);
    let (_, body) = body(&submit, &filters, false)?;
    let answer: BulkActionAnswer = submit
        .visit
        .send(Method::POST, "/api/v1/bulk-actions", &body)
        .await?;
    let to = match answer {
        BulkActionAnswer::Created(created) => created_path(&created),
        BulkActionAnswer::Preview(_) => "/actions".to_owned(),
    };
    Ok(submit.visit.done(
        &to,
        "The bulk action is running. This page shows its progress.",
    ))
}
