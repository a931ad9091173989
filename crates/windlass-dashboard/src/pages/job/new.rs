//! A form that creates a job.

use askama::Template;
use axum::body::Body;
use axum::http::Response;
use serde_json::Map;
use windlass_api::Scope;

use super::change::{self, delay, payload_json, priority, with_payload};
use crate::failure::Failure;
use crate::fields::Fields;
use crate::frame::{Frame, Section};
use crate::pages::dead::quoted;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

#[derive(Template)]
#[template(path = "job_new.html")]
struct NewTemplate {
    frame: Frame,
    fields: Fields,
    may_enqueue: bool,
    failure: Option<Failure>,
    commands: Vec<String>,
}

pub(super) async fn new_form(visit: Visit) -> PageResult {
    let fields = visit.query().clone();
    form(&visit, fields, None).await
}

async fn form(
    visit: &Visit,
    fields: Fields,
    failure: Option<Failure>,
) -> Result<Response<Body>, Failure> {
    let frame = Frame::new(visit, "New job", Section::Jobs).await?;
    let status = failure.as_ref().map(|failure| failure.status);
    let page = NewTemplate {
        may_enqueue: visit.may(Scope::Enqueue) && !frame.read_only,
        commands: vec![command(&fields)],
        fields,
        failure,
        frame,
    };
    let mut response = visit.page(&page)?;
    if let Some(status) = status {
        *response.status_mut() = status;
    }
    Ok(response)
}

pub(super) async fn create(submit: Submit) -> PageResult {
    let visit = &submit.visit;
    let created = match body(&submit.fields) {
        Ok(body) => change::create(visit, body).await,
        Err(failure) => Err(failure),
    };
    match created {
        Ok(id) => Ok(visit.done(&format!("/jobs/{id}"), "Created the job.")),
        Err(failure) => form(visit, submit.fields.clone(), Some(failure)).await,
    }
}

/// The job as JSON, with the payload exactly as it was typed. The server checks it.
fn body(fields: &Fields) -> Result<String, Failure> {
    let mut options = Map::new();
    if fields.get("kind").is_none() {
        return Err(Failure::invalid("kind: type the kind of the job"));
    }
    for name in ["kind", "queue"] {
        if let Some(text) = fields.get(name) {
            options.insert(name.to_owned(), text.trim().into());
        }
    }
    if let Some(priority) = priority(fields)? {
        options.insert("priority".to_owned(), priority.into());
    }
    if let Some(delay) = delay(fields)? {
        options.insert("delay".to_owned(), delay.into());
    }
    let payload = payload_json(fields)?;
    let payload = payload.as_ref().map(|payload| payload.get());
    Ok(with_payload(&options, payload))
}

/// The command that creates the same job.
fn command(fields: &Fields) -> String {
    let kind = fields.get("kind").unwrap_or("email:send");
    let payload = fields.get("payload").unwrap_or(r#"{"to": "ann"}"#);
    let mut command = format!("windlass enqueue {} {}", quoted(kind), quoted(payload));
    for name in ["queue", "priority", "delay"] {
        if let Some(value) = fields.get(name) {
            command.push_str(&format!(" --{name} {}", quoted(value)));
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_created_from_what_was_typed() {
        let fields = Fields::parse("kind=a&queue=q&payload=%5B1.50%5D&priority=2&delay=5m");
        let body = body(&fields).unwrap();
        assert!(body.ends_with(r#","payload":[1.50]}"#), "{body}");
        assert!(
            body.contains(r#""priority":2"#) && body.contains(r#""delay":"5m""#),
            "{body}"
        );
        assert_eq!(
            command(&fields),
            "windlass enqueue a '[1.50]' --queue q --priority 2 --delay 5m"
        );
        let broken = Fields::parse("kind=a&payload=%7B");
        assert!(super::body(&broken).is_err());
    }
}
