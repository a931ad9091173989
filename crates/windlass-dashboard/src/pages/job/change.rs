//! The actions on one job.

use askama::Template;
use axum::body::{Body, Bytes};
use axum::http::{Method, Response};
use serde_json::{Map, Value, json};
use windlass_api::{CreatedJob, Job, JobState};
use windlass_core::{JobId, Timestamp, parse_duration};

use super::{job_id, pretty, title};
use crate::failure::Failure;
use crate::fields::Fields;
use crate::frame::{Frame, Section};
use crate::pages::dead::quoted;
use crate::show;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

/// The longest payload that the form shows for editing.
const EDITED_BYTES_MAX: usize = 256 * 1024;

pub(super) async fn run_now(submit: Submit) -> PageResult {
    act(&submit, "run-now", json!({}), "The job is due now.").await
}

/// Cancels the job. Only a job that waited can take this back: an attempt that was stopped cannot.
pub(super) async fn cancel(submit: Submit) -> PageResult {
    let job = read(&submit.visit).await?;
    let waited = matches!(job.state, JobState::Scheduled | JobState::Ready);
    let run_at = job.run_at.filter(|_| waited);
    let done = "Cancelled. A running attempt is asked to stop.";
    let Some(run_at) = run_at else {
        return act(&submit, "cancel", json!({}), done).await;
    };
    call(&submit, "cancel", json!({})).await?;
    let page = format!("/jobs/{}", job.id);
    let undo = format!("{page}/{}/uncancel", run_at.as_micros());
    Ok(submit.visit.undoable(&page, &undo, "Cancelled the job."))
}

/// Takes back a cancellation: the job waits again, with its failures and until its old time.
pub(super) async fn uncancel(submit: Submit) -> PageResult {
    let micros = submit.visit.param("run_at").parse().ok();
    let run_at = micros.and_then(Timestamp::from_micros);
    let run_at = run_at.ok_or_else(Failure::no_page)?;
    let body = json!({"failures": "keep", "run_at": run_at});
    act(&submit, "revive", body, "The job waits again.").await
}

pub(super) async fn resolve(submit: Submit) -> PageResult {
    act(&submit, "resolve", json!({}), "Marked as succeeded.").await
}

pub(super) async fn revive(submit: Submit) -> PageResult {
    let mut body = Map::new();
    let keep = submit.fields.get("failures") == Some("keep");
    body.insert(
        "failures".to_owned(),
        if keep { "keep" } else { "reset" }.into(),
    );
    if submit.fields.get("force").is_some() {
        body.insert("force".to_owned(), true.into());
    }
    act(
        &submit,
        "revive",
        Value::Object(body),
        "Revived. The next attempt is due now.",
    )
    .await
}

pub(super) async fn delete(submit: Submit) -> PageResult {
    let id = job_id(&submit.visit)?;
    let typed = submit.fields.get("confirm").unwrap_or_default();
    let end = id_end(&id);
    if typed != end {
        return Err(Failure::invalid(format!("type {end} to delete the job")));
    }
    let path = format!("/api/v1/jobs/{id}");
    submit
        .visit
        .call(Method::DELETE, &path, Bytes::new(), None)
        .await?;
    Ok(submit
        .visit
        .done("/jobs", "Deleted the job with its history."))
}

/// The last characters of an id, which tell it from others.
pub(in super::super) fn id_end(id: &JobId) -> String {
    let id = id.to_string();
    id.get(id.len().saturating_sub(6)..)
        .unwrap_or_default()
        .to_owned()
}

/// Calls a route of the job and returns to its page.
async fn act(submit: &Submit, route: &str, body: Value, done: &str) -> PageResult {
    let id = call(submit, route, body).await?;
    Ok(submit.visit.done(&format!("/jobs/{id}"), done))
}

async fn call(submit: &Submit, route: &str, body: Value) -> Result<JobId, Failure> {
    let id = job_id(&submit.visit)?;
    let path = format!("/api/v1/jobs/{id}/{route}");
    let body = match body.as_object().is_some_and(|fields| fields.is_empty()) {
        true => Bytes::new(),
        false => body.to_string().into(),
    };
    submit.visit.call(Method::POST, &path, body, None).await?;
    Ok(id)
}

pub(super) async fn edit_form(visit: Visit) -> PageResult {
    let job = read(&visit).await?;
    let fields = fields_of(&job, Purpose::Edit);
    form(&visit, &job, fields, Purpose::Edit, None).await
}

pub(super) async fn clone_form(visit: Visit) -> PageResult {
    let job = read(&visit).await?;
    let fields = fields_of(&job, Purpose::Clone);
    form(&visit, &job, fields, Purpose::Clone, None).await
}

async fn read(visit: &Visit) -> Result<Job, Failure> {
    let id = job_id(visit)?;
    visit.get(&format!("/api/v1/jobs/{id}")).await
}

pub(super) async fn edit(submit: Submit) -> PageResult {
    let job = read(&submit.visit).await?;
    let done = match edit_body(&job, &submit.fields) {
        Ok(body) => {
            let path = format!("/api/v1/jobs/{}", job.id);
            submit
                .visit
                .call(Method::PATCH, &path, body.into(), None)
                .await
                .map(|_| ())
        }
        Err(failure) => Err(failure),
    };
    match done {
        Ok(()) => Ok(submit
            .visit
            .done(&format!("/jobs/{}", job.id), "Changed the job.")),
        Err(failure) => {
            form(
                &submit.visit,
                &job,
                submit.fields,
                Purpose::Edit,
                Some(failure),
            )
            .await
        }
    }
}

pub(super) async fn clone(submit: Submit) -> PageResult {
    let job = read(&submit.visit).await?;
    let created = match clone_body(&job, &submit.fields) {
        Ok(body) => create(&submit.visit, body).await,
        Err(failure) => Err(failure),
    };
    match created {
        Ok(id) => Ok(submit
            .visit
            .done(&format!("/jobs/{id}"), "Created a copy of the job.")),
        Err(failure) => {
            form(
                &submit.visit,
                &job,
                submit.fields,
                Purpose::Clone,
                Some(failure),
            )
            .await
        }
    }
}

pub(super) async fn create(visit: &Visit, body: String) -> Result<JobId, Failure> {
    let answer = visit
        .call(Method::POST, "/api/v1/jobs", body.into(), None)
        .await?;
    let created: Result<CreatedJob, _> = serde_json::from_slice(&answer.body);
    let created = created.map_err(|error| Failure::unreadable(&error))?;
    Ok(created.job.id)
}

/// What the form does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Edit,
    Clone,
}

#[derive(Template)]
#[template(path = "job_form.html")]
struct FormTemplate {
    frame: Frame,
    title: String,
    job_id: JobId,
    is_edit: bool,
    payload: String,
    payload_hidden: Option<String>,
    priority: String,
    queue: String,
    delay: String,
    kind: String,
    failure: Option<Failure>,
    commands: Vec<String>,
}

async fn form(
    visit: &Visit,
    job: &Job,
    fields: Fields,
    purpose: Purpose,
    failure: Option<Failure>,
) -> Result<Response<Body>, Failure> {
    let name = match purpose {
        Purpose::Edit => "Edit",
        Purpose::Clone => "Copy",
    };
    let frame = Frame::new(visit, format!("{name} {}", title(job)), Section::Jobs).await?;
    let text = |name: &str| fields.get(name).unwrap_or_default().to_owned();
    let status = failure.as_ref().map(|failure| failure.status);
    let url = &visit.site().backend().about().url;
    let page = FormTemplate {
        title: title(job),
        job_id: job.id,
        is_edit: purpose == Purpose::Edit,
        payload: text("payload"),
        payload_hidden: payload_hidden(job),
        priority: text("priority"),
        queue: text("queue"),
        delay: text("delay"),
        kind: show::visible(job.kind.as_str()),
        failure,
        commands: vec![command_of(job), curl_of(job, url)],
        frame,
    };
    let mut response = visit.page(&page)?;
    if let Some(status) = status {
        *response.status_mut() = status;
    }
    Ok(response)
}

/// Why the payload cannot be edited here.
fn payload_hidden(job: &Job) -> Option<String> {
    if job.payload_withheld {
        return Some("The payload needs the scope read-payload. It stays as it is.".to_owned());
    }
    let bytes = job
        .payload
        .as_ref()
        .map_or(0, |payload| payload.0.as_str().len());
    (bytes > EDITED_BYTES_MAX).then(|| {
        let size = show::grouped(bytes as u64);
        format!("The payload has {size} bytes, too many to edit here. It stays as it is.")
    })
}

fn fields_of(job: &Job, purpose: Purpose) -> Fields {
    let payload = job
        .payload
        .as_ref()
        .filter(|_| payload_hidden(job).is_none());
    let mut fields = vec![
        (
            "payload".to_owned(),
            payload
                .map(|payload| pretty(payload.0.as_str()))
                .unwrap_or_default(),
        ),
        ("priority".to_owned(), job.priority.to_string()),
        ("queue".to_owned(), job.queue.as_str().to_owned()),
    ];
    if purpose == Purpose::Clone {
        fields.push(("delay".to_owned(), String::new()));
    }
    fields.into_iter().collect()
}

/// The JSON of a payload field, exactly as it was typed.
pub(super) fn payload_json(
    fields: &Fields,
) -> Result<Option<Box<serde_json::value::RawValue>>, Failure> {
    let Some(text) = fields.get("payload") else {
        return Ok(None);
    };
    let raw = serde_json::from_str(text.trim());
    raw.map(Some)
        .map_err(|error| Failure::invalid(format!("payload: must be JSON: {error}")))
}

pub(super) fn priority(fields: &Fields) -> Result<Option<i16>, Failure> {
    let Some(text) = fields.get("priority") else {
        return Ok(None);
    };
    let read = text.trim().parse();
    let rule = "priority: must be a whole number from -32768 to 32767";
    read.map(Some).map_err(|_| Failure::invalid(rule))
}

pub(super) fn delay(fields: &Fields) -> Result<Option<String>, Failure> {
    let Some(text) = fields.get("delay").map(str::trim) else {
        return Ok(None);
    };
    let checked = parse_duration(text);
    checked.map_err(|error| Failure::invalid(format!("delay: {}", error.rule())))?;
    Ok(Some(text.to_owned()))
}

/// The changed fields of a job as JSON. The payload keeps the bytes that were typed.
fn edit_body(job: &Job, fields: &Fields) -> Result<String, Failure> {
    let mut parts = Vec::new();
    if let Some(payload) = payload_json(fields)? {
        let before = job.payload.as_ref().map(|payload| payload.0.as_str());
        if before.is_none_or(|before| pretty(before) != pretty(payload.get())) {
            parts.push(format!(r#""payload":{}"#, payload.get()));
        }
    }
    if let Some(priority) = priority(fields)?.filter(|priority| *priority != job.priority) {
        parts.push(format!(r#""priority":{priority}"#));
    }
    if let Some(queue) = fields
        .get("queue")
        .filter(|queue| *queue != job.queue.as_str())
    {
        parts.push(format!(r#""queue":{}"#, json!(queue)));
    }
    if let Some(delay) = delay(fields)? {
        parts.push(format!(r#""delay":{}"#, json!(delay)));
    }
    if parts.is_empty() {
        return Err(Failure::invalid("nothing is changed: change a field first"));
    }
    Ok(format!("{{{}}}", parts.join(",")))
}

/// A job with the options of another one as JSON.
fn clone_body(job: &Job, fields: &Fields) -> Result<String, Failure> {
    let typed = payload_json(fields)?;
    let payload = match &typed {
        Some(payload) => Some(payload.get()),
        None => job.payload.as_ref().map(|payload| payload.0.as_str()),
    };
    if payload.is_none() && job.payload_withheld {
        return Err(Failure::invalid(
            "payload: type one, because you may not read that of the job",
        ));
    }
    let mut options = options_of(job);
    if let Some(priority) = priority(fields)? {
        options.insert("priority".to_owned(), priority.into());
    }
    if let Some(queue) = fields.get("queue") {
        options.insert("queue".to_owned(), queue.into());
    }
    if let Some(delay) = delay(fields)? {
        options.insert("delay".to_owned(), delay.into());
    }
    Ok(with_payload(&options, payload))
}

/// The options of a job that another job can have. A unique key would only find the first job.
fn options_of(job: &Job) -> Map<String, Value> {
    let all = serde_json::to_value(job).unwrap_or_default();
    let mut options = Map::new();
    for name in [
        "kind",
        "queue",
        "priority",
        "delivery",
        "max_attempts",
        "retry",
        "timeout",
        "tags",
        "meta",
        "concurrency_key",
        "limit",
    ] {
        let value = all.get(name).cloned().unwrap_or_default();
        let is_default = match &value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Number(number) => name == "priority" && number.as_i64() == Some(0),
            Value::String(text) => {
                matches!(
                    (name, text.as_str()),
                    ("delivery", "at_least_once") | ("timeout", "1h")
                )
            }
            Value::Bool(_) => false,
        };
        if !is_default {
            options.insert(name.to_owned(), value);
        }
    }
    if let Some(Value::Object(meta)) = options.get_mut("meta") {
        meta.retain(|name, _| !name.starts_with("windlass."));
    }
    options
}

/// An object with options and a payload, whose bytes are kept.
pub(super) fn with_payload(options: &Map<String, Value>, payload: Option<&str>) -> String {
    let options = Value::Object(options.clone()).to_string();
    match payload {
        Some(payload) => {
            let options = options.strip_suffix('}').unwrap_or(&options);
            format!("{options},\"payload\":{payload}}}")
        }
        None => options,
    }
}

/// The payload of a job, if it is short enough for a command.
fn short_payload(job: &Job) -> Option<&str> {
    const SHOWN: usize = 4096;
    let payload = job.payload.as_ref().map(|payload| payload.0.as_str());
    payload.filter(|payload| payload.len() <= SHOWN)
}

/// The command that creates the same job again.
pub(super) fn command_of(job: &Job) -> String {
    let mut command = format!("windlass enqueue {}", quoted(job.kind.as_str()));
    if let Some(payload) = short_payload(job) {
        command.push_str(&format!(" {}", quoted(payload)));
    }
    let options = options_of(job);
    let flags = [
        ("queue", "--queue"),
        ("priority", "--priority"),
        ("delivery", "--delivery"),
        ("max_attempts", "--max-attempts"),
        ("retry", "--retry"),
        ("timeout", "--timeout"),
        ("concurrency_key", "--concurrency-key"),
        ("limit", "--concurrency-limit"),
    ];
    let mut add = |flag: &str, value: &str| {
        command.push_str(&format!(" {flag} {}", quoted(value)));
    };
    for (name, flag) in flags {
        match options.get(name) {
            Some(Value::String(text)) => add(flag, text),
            Some(value) => add(flag, &value.to_string()),
            None => {}
        }
    }
    for tag in &job.tags {
        add("--tag", tag.as_str());
    }
    command
}

/// The same as a request.
pub(super) fn curl_of(job: &Job, url: &str) -> String {
    let payload = short_payload(job);
    let body = with_payload(&options_of(job), payload);
    let body = show::visible(&body).replace('\'', r"'\''");
    format!("curl {url}/api/v1/jobs -H 'Content-Type: application/json' -d '{body}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        serde_json::from_value(json!({
            "id": "019b0000-0000-7000-8000-000000000001", "kind": "email:send", "queue": "mail",
            "state": "scheduled", "payload": {"a": 1}, "result": null, "priority": 0, "run_at": null,
            "delivery": "at_least_once", "max_attempts": 3, "retry": null, "timeout": "1h",
            "deadline": null, "unique_key": "u", "unique_for": null, "concurrency_key": null,
            "limit": null, "tags": ["eu"], "meta": {"windlass.form": 1, "team": "a"}, "attempt": 1,
            "failures": 1, "last_error": null, "failed_at": null,
            "created_at": "2026-01-01T00:00:00Z", "started_at": null, "finished_at": null,
            "lease_until": null, "worker": null, "dead_reason": null, "schedule_id": null,
            "scheduled_for": null, "cancel_requested": false,
        }))
        .unwrap()
    }

    #[test]
    fn an_edit_sends_only_what_changed() {
        let fields = Fields::parse("payload=%7B%22a%22%3A1%7D&priority=9&queue=mail&delay=");
        assert_eq!(edit_body(&job(), &fields).unwrap(), r#"{"priority":9}"#);
        let other = Fields::parse("payload=%7B%22a%22%3A2.50%7D&priority=0&queue=q&delay=5m");
        assert_eq!(
            edit_body(&job(), &other).unwrap(),
            r#"{"payload":{"a":2.50},"queue":"q","delay":"5m"}"#
        );
        let same = Fields::parse("priority=0&queue=mail");
        assert!(edit_body(&job(), &same).is_err());
        for bad in ["payload=%7B", "priority=x", "delay=soon"] {
            assert!(edit_body(&job(), &Fields::parse(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_copy_has_the_options_of_the_job_but_not_its_unique_key() {
        let body = clone_body(&job(), &Fields::parse("priority=0&queue=mail")).unwrap();
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["kind"], "email:send");
        assert_eq!(body["max_attempts"], 3);
        assert_eq!(body["payload"], json!({"a": 1}));
        assert_eq!(body["meta"], json!({"team": "a"}), "without reserved names");
        assert!(body.get("unique_key").is_none());
    }

    #[test]
    fn a_command_quotes_what_a_shell_would_read() {
        let mut job = job();
        job.payload = serde_json::from_str(r#""it's""#).ok();
        assert!(curl_of(&job, "http://a").contains(r#""it'\''s""#));
        assert_eq!(
            command_of(&job),
            r#"windlass enqueue email:send '"it'\''s"' --queue mail --max-attempts 3 --tag eu"#
        );
    }
}
