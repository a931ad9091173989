//! Creates and edits a schedule, with a preview of when it fires.

use askama::Template;
use axum::http::Method;
use serde_json::{Map, Value, json};
use windlass_api::{Firing, Page, Schedule};
use windlass_core::schedule::{Expression, Zone};

use super::{api_path, sentence};
use crate::failure::Failure;
use crate::fields::{Fields, escaped};
use crate::frame::{Frame, Section};
use crate::show;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

/// How many occurrences the preview shows.
const PREVIEWED: usize = 8;

/// The rule of a form in words, and when it fires.
struct PreviewView {
    words: Option<String>,
    problem: Option<String>,
    next: Vec<Firing>,
}

#[derive(Template)]
#[template(path = "schedule_form.html")]
struct FormTemplate {
    frame: Frame,
    /// The name of the schedule to edit.
    editing: Option<String>,
    action: String,
    cancel: String,
    name: String,
    rule: String,
    timezone: String,
    kind: String,
    queue: String,
    payload: String,
    payload_withheld: bool,
    missed: String,
    overlap: String,
    splay: String,
    preview: PreviewView,
    failure: Option<Failure>,
    commands: Vec<String>,
}

pub(super) async fn create_form(visit: Visit) -> PageResult {
    let fields = visit.query().clone();
    render(&visit, None, &fields, None).await
}

pub(super) async fn edit_form(visit: Visit) -> PageResult {
    let schedule = read(&visit).await?;
    // The preview of the script sends what is typed as the query.
    let fields = match visit.query().get("rule") {
        Some(_) => visit.query().clone(),
        None => fields_of(&schedule),
    };
    render(&visit, Some(&schedule), &fields, None).await
}

async fn read(visit: &Visit) -> Result<Schedule, Failure> {
    visit.get(&api_path(visit.param("name"))).await
}

pub(super) async fn create(submit: Submit) -> PageResult {
    let (visit, fields) = (&submit.visit, &submit.fields);
    if fields.get("do") == Some("preview") {
        return render(visit, None, fields, None).await;
    }
    let created = match new_body(fields) {
        Ok(body) => {
            visit
                .send::<Value>(Method::POST, "/api/v1/schedules", &body)
                .await
        }
        Err(failure) => Err(failure),
    };
    match created {
        Ok(_) => {
            let page = format!(
                "/schedules/{}",
                escaped(fields.get("name").unwrap_or_default())
            );
            Ok(visit.done(&page, "Created the schedule."))
        }
        Err(failure) => render(visit, None, fields, Some(failure)).await,
    }
}

pub(super) async fn edit(submit: Submit) -> PageResult {
    let (visit, fields) = (&submit.visit, &submit.fields);
    let schedule = read(visit).await?;
    if fields.get("do") == Some("preview") {
        return render(visit, Some(&schedule), fields, None).await;
    }
    let path = api_path(visit.param("name"));
    let changed = match patch_body(&schedule, fields) {
        Ok(body) => visit.send::<Value>(Method::PATCH, &path, &body).await,
        Err(failure) => Err(failure),
    };
    match changed {
        Ok(_) => {
            let page = format!("/schedules/{}", escaped(visit.param("name")));
            Ok(visit.done(&page, "Changed the schedule."))
        }
        Err(failure) => render(visit, Some(&schedule), fields, Some(failure)).await,
    }
}

async fn render(
    visit: &Visit,
    schedule: Option<&Schedule>,
    fields: &Fields,
    failure: Option<Failure>,
) -> PageResult {
    let editing = schedule.map(|schedule| schedule.name.as_str().to_owned());
    let title = match &editing {
        Some(name) => format!("Edit {}", show::visible(name)),
        None => "New schedule".to_owned(),
    };
    let frame = Frame::new(visit, title, Section::Schedules).await?;
    let text = |name: &str, default: &str| fields.get(name).unwrap_or(default).to_owned();
    let (action, cancel) = match &editing {
        Some(name) => {
            let page = format!("/schedules/{}", escaped(name));
            (format!("{page}/edit"), page)
        }
        None => ("/new/schedule".to_owned(), "/schedules".to_owned()),
    };
    let status = failure.as_ref().map(|failure| failure.status);
    let rule = text("rule", "");
    let page = FormTemplate {
        action,
        cancel,
        name: text("name", ""),
        timezone: text("timezone", visit.zone().name()),
        kind: text("kind", ""),
        queue: text("queue", "default"),
        payload: text("payload", ""),
        payload_withheld: schedule.is_some_and(|schedule| schedule.payload_withheld),
        missed: text("missed", ""),
        overlap: text("overlap", "skip"),
        splay: text("splay", ""),
        preview: preview(visit, &rule, &text("timezone", visit.zone().name())).await?,
        commands: vec![format!(
            "windlass schedules next {} --tz {}",
            super::super::dead::quoted(if rule.is_empty() { "0 2 * * *" } else { &rule }),
            super::super::dead::quoted(&text("timezone", "UTC"))
        )],
        rule,
        failure,
        editing,
        frame,
    };
    let mut response = visit.page(&page)?;
    if let Some(status) = status {
        *response.status_mut() = status;
    }
    Ok(response)
}

/// The rule of a form: a cron expression, an interval, or an instant.
fn expression(rule: &str) -> Result<Expression, Failure> {
    let rule = rule.trim();
    let is_instant = rule.parse::<windlass_core::Timestamp>().is_ok();
    let text = if is_instant {
        format!("at {rule}")
    } else {
        rule.to_owned()
    };
    text.parse().map_err(|error: windlass_core::Invalid| {
        Failure::invalid(format!("rule: {} {}", error.field(), error.rule()))
    })
}

/// The fields of the API for a rule.
fn rule_fields(expression: &Expression) -> Map<String, Value> {
    let (name, value) = match expression {
        Expression::Cron(cron) => ("cron", cron.as_str().to_owned()),
        Expression::Every(period) => ("every", windlass_core::format_duration(*period)),
        Expression::At(instant) => ("at", instant.to_string()),
    };
    Map::from_iter([(name.to_owned(), value.into())])
}

async fn preview(visit: &Visit, rule: &str, timezone: &str) -> Result<PreviewView, Failure> {
    let empty = PreviewView {
        words: None,
        problem: None,
        next: Vec::new(),
    };
    if rule.trim().is_empty() {
        return Ok(empty);
    }
    let parsed = expression(rule).and_then(|expression| {
        let zone = Zone::new(timezone).map_err(|error| Failure::invalid(error.to_string()))?;
        Ok((expression, zone))
    });
    let (expression, zone) = match parsed {
        Ok(parsed) => parsed,
        Err(failure) => {
            return Ok(PreviewView {
                problem: Some(failure.detail),
                ..empty
            });
        }
    };
    let mut body = rule_fields(&expression);
    body.insert("timezone".to_owned(), zone.name().into());
    body.insert("count".to_owned(), PREVIEWED.into());
    let next: Page<Firing> = visit
        .send(Method::POST, "/api/v1/schedules/preview", &body)
        .await?;
    let words = expression.words().unwrap_or_else(|| expression.to_string());
    let words = match expression {
        Expression::Cron(_) => format!("{}, {}", sentence(&words), zone.name()),
        Expression::Every(_) | Expression::At(_) => sentence(&words),
    };
    Ok(PreviewView {
        words: Some(words),
        next: next.data,
        ..empty
    })
}

fn fields_of(schedule: &Schedule) -> Fields {
    let job = serde_json::to_value(&schedule.job).unwrap_or_default();
    let text = |name: &str| {
        job.get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let rule = super::Rule::new(schedule).text;
    let rule = rule.strip_prefix("at ").unwrap_or(&rule).to_owned();
    let payload = job
        .get("payload")
        .map(|payload| super::super::job::pretty(&payload.to_string()));
    [
        ("name", schedule.name.as_str().to_owned()),
        ("rule", rule),
        ("timezone", schedule.timezone.clone()),
        ("kind", text("kind")),
        ("queue", text("queue")),
        ("payload", payload.unwrap_or_default()),
        (
            "missed",
            schedule
                .missed
                .map_or(String::new(), |missed| missed.name().to_owned()),
        ),
        ("overlap", schedule.overlap.name().to_owned()),
        (
            "splay",
            match schedule.splay.0 {
                splay if splay.is_zero() => String::new(),
                splay => windlass_core::format_duration(splay),
            },
        ),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// The fields of the schedule that the form sets, without its name and job.
fn schedule_fields(fields: &Fields) -> Result<Map<String, Value>, Failure> {
    let rule = fields
        .get("rule")
        .ok_or_else(|| Failure::invalid("rule is required"))?;
    let mut body = rule_fields(&expression(rule)?);
    body.insert(
        "timezone".to_owned(),
        fields.get("timezone").unwrap_or("UTC").into(),
    );
    body.insert(
        "overlap".to_owned(),
        fields.get("overlap").unwrap_or("skip").into(),
    );
    body.insert(
        "splay".to_owned(),
        fields.get("splay").unwrap_or("0s").into(),
    );
    if let Some(missed) = fields.get("missed") {
        body.insert("missed".to_owned(), missed.into());
    }
    Ok(body)
}

fn payload(fields: &Fields) -> Result<Option<Value>, Failure> {
    let Some(text) = fields.get("payload") else {
        return Ok(None);
    };
    let value = serde_json::from_str(text.trim());
    value
        .map(Some)
        .map_err(|error| Failure::invalid(format!("payload: must be JSON: {error}")))
}

fn new_body(fields: &Fields) -> Result<Value, Failure> {
    let mut body = schedule_fields(fields)?;
    let mut job = Map::new();
    for name in ["kind", "queue"] {
        if let Some(value) = fields.get(name) {
            job.insert(name.to_owned(), value.into());
        }
    }
    if let Some(payload) = payload(fields)? {
        job.insert("payload".to_owned(), payload);
    }
    body.insert(
        "name".to_owned(),
        fields.get("name").unwrap_or_default().into(),
    );
    body.insert("job".to_owned(), Value::Object(job));
    Ok(Value::Object(body))
}

/// The changes of a schedule. The job keeps the options that the form does not have.
fn patch_body(schedule: &Schedule, fields: &Fields) -> Result<Value, Failure> {
    let mut body = schedule_fields(fields)?;
    if fields.get("missed").is_none() {
        body.insert("missed".to_owned(), Value::Null);
    }
    let before = serde_json::to_value(&schedule.job).unwrap_or_default();
    let mut job = before.as_object().cloned().unwrap_or_default();
    for name in ["kind", "queue"] {
        match fields.get(name) {
            Some(value) => job.insert(name.to_owned(), value.into()),
            None => job.remove(name),
        };
    }
    if !schedule.payload_withheld {
        match payload(fields)? {
            Some(payload) => job.insert("payload".to_owned(), payload),
            None => job.remove("payload"),
        };
    }
    let job = Value::Object(job);
    if job != before {
        if schedule.payload_withheld {
            let rule = "the job cannot be changed without the scope read-payload, because its payload would be lost";
            return Err(Failure::invalid(rule));
        }
        body.insert("job".to_owned(), job);
    }
    Ok(json!(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(job: Value) -> Schedule {
        serde_json::from_value(json!({
            "id": "019b0000-0000-7000-8000-000000000001", "name": "nightly", "cron": "0 2 * * *",
            "timezone": "Europe/Berlin", "missed_after": "5s", "overlap": "skip", "splay": "0s",
            "starts_at": null, "ends_at": null, "paused": false, "job": job,
            "created_at": "2026-01-01T00:00:00Z", "last_at": null, "next_at": null, "finished": false,
        }))
        .unwrap()
    }

    #[test]
    fn each_form_of_a_rule_becomes_its_own_field() {
        for (rule, expected) in [
            ("0 2 * * *", json!({"cron": "0 2 * * *"})),
            ("@every 90s", json!({"every": "1m 30s"})),
            (
                "2026-04-01T09:00:00Z",
                json!({"at": "2026-04-01T09:00:00Z"}),
            ),
        ] {
            assert_eq!(json!(rule_fields(&expression(rule).unwrap())), expected);
        }
        assert!(expression("soon").unwrap_err().detail.starts_with("rule:"));
    }

    #[test]
    fn a_new_schedule_has_what_was_typed() {
        let fields = Fields::parse(
            "name=nightly&rule=0+2+*+*+*&timezone=Europe/Berlin&kind=report&queue=low&payload=%7B%7D&missed=skip&overlap=allow&splay=5m",
        );
        let expected = json!({
            "name": "nightly", "cron": "0 2 * * *", "timezone": "Europe/Berlin", "missed": "skip",
            "overlap": "allow", "splay": "5m", "job": {"kind": "report", "queue": "low", "payload": {}},
        });
        assert_eq!(new_body(&fields).unwrap(), expected);
    }

    #[test]
    fn an_edit_keeps_the_options_that_the_form_does_not_have() {
        let stored = schedule(json!({"kind": "report", "max_attempts": 3, "payload": {"a": 1}}));
        let same = fields_of(&stored);
        let body = patch_body(&stored, &same).unwrap();
        assert!(body.get("job").is_none(), "{body}");
        let other = patch_body(&stored, &same.with("kind", "other")).unwrap();
        assert_eq!(
            other["job"],
            json!({"kind": "other", "max_attempts": 3, "payload": {"a": 1}})
        );
        let hidden = Schedule {
            payload_withheld: true,
            ..schedule(json!({"kind": "report"}))
        };
        assert!(patch_body(&hidden, &fields_of(&hidden).with("kind", "other")).is_err());
        assert!(patch_body(&hidden, &fields_of(&hidden).with("rule", "@hourly")).is_ok());
    }
}
