//! The scheduler form: a schedule and a URL in one flat object, posted like a job. Its id is the id
//! of the schedule.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use windlass::Error;
use windlass::schedule::Expected;
use windlass_api::{
    Attempt, Body, BodyRefused, Checks, Content, Created, FormAttempt, FormDelivery, FormSchedule,
    FormView, read_body, some_even_if_null,
};
use windlass_core::fields::RawFields;
use windlass_core::{Delivery, Job, JobId, ScheduleId, ScheduleName, State, Timestamp};
use windlass_http::form::{FORM_META, FormError, SchedulerForm, next_execution_time, status_of};
use windlass_store::{FiredOccurrence, PAGE_MAX, Schedule, ScheduleRef};

use super::read::{ATTEMPTS_MAX, attempt_view};
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::Reply;
use crate::http_jobs::with_depth;
use crate::problem::Problem;

/// The most occurrences whose attempts are read for one page of history.
const OCCURRENCES_READ_MAX: usize = PAGE_MAX;

/// Whether a body is a scheduler form: it has the field `schedule` or `api`.
pub(super) fn is_form(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Names {
        #[serde(default, deserialize_with = "some_even_if_null")]
        schedule: Option<IgnoredAny>,
        #[serde(default, deserialize_with = "some_even_if_null")]
        api: Option<IgnoredAny>,
    }
    let may_be = text.contains("\"schedule\"") || text.contains("\"api\"");
    let names = may_be.then(|| serde_json::from_str::<Names>(text).ok());
    let names = names.flatten();
    names.is_some_and(|names| names.schedule.is_some() || names.api.is_some())
}

/// Reads a form. The code of the problem is that of the first invalid field.
pub(super) fn read(text: &str, now: Timestamp) -> Result<SchedulerForm, Problem> {
    read_body::<Form>(text, now).map_err(|refused| match refused {
        BodyRefused::Invalid(problems) => {
            let first = problems.first().cloned().map(FormError::of);
            let code = first.map_or("INVALID_REQUEST", |first| first.code);
            Problem::invalid(&problems).code(code)
        }
        malformed => malformed.into(),
    })
}

/// A form that is checked with the rules of `windlass-http`.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
struct Form(windlass_api::SchedulerForm);

impl Body for Form {
    type Checked = SchedulerForm;

    fn check(self, checks: &mut Checks) -> Option<SchedulerForm> {
        let mut form = self.0;
        checks.required("schedule", form.schedule.as_ref());
        checks.required("api", form.api.as_ref());
        loop {
            let text = serde_json::to_string(&form).ok()?;
            let read = checks.keep(RawFields::parse(&text))?;
            let problem = match SchedulerForm::from_parts(&read, usize::MAX) {
                Ok(form) => return Some(form),
                Err(refused) => refused.invalid,
            };
            let field = problem.field().split(['.', '[']).next();
            // Removing the invalid field reveals the next problem.
            let is_removed = match field.unwrap_or_default() {
                "schedule" => replace(&mut form.schedule, "* * * * *"),
                "api" => replace(&mut form.api, "https://example.com"),
                "method" => form.method.take().is_some(),
                "headers" => form.headers.take().is_some(),
                "sign" => form.sign.take().is_some(),
                "body" => form.body.take().is_some(),
                _ => false,
            };
            checks.report(problem);
            if !is_removed {
                return None;
            }
        }
    }
}

/// Replaces an invalid value by a valid one. Returns whether that changed anything.
fn replace(value: &mut Option<String>, valid: &str) -> bool {
    value.replace(valid.to_owned()).as_deref() != Some(valid)
}

/// Creates the schedule of a form.
pub(super) async fn create(call: &Call, form: SchedulerForm) -> Result<Reply<Created>, Problem> {
    if !call.caller.may(Scope::Operate) {
        let detail = "a scheduler form creates a schedule, which needs the scope `operate`";
        let problem = Problem::new(StatusCode::FORBIDDEN, "forbidden", detail);
        return Err(problem.hint("use a key with the scope `operate`"));
    }
    let name = ScheduleName::new(&format!("form/{}", call.new_job_id()))?;
    if let Some(refusal) = call.signers().refusal(form.request()).await? {
        return Err(FormError::of(refusal).into());
    }
    let mut definition = form.into_schedule(name.clone(), call.now)?;
    let size = definition
        .job
        .payload
        .check_size(call.app.settings.payload_bytes_max);
    size.map_err(|error| FormError::of(error.within("body")))?;
    definition.job = with_depth(&call.headers, definition.job);
    let client = &call.app.client;
    let written = client.write_schedule_from(definition, Expected::Absent, call.origin());
    let schedule = match written.await {
        // The same request with the same `Idempotency-Key` has already created this schedule.
        Err(Error::ScheduleChanged { .. }) if call.seeded.is_some() => {
            let which = ScheduleRef::Name(name);
            let found = call.app.client.schedule(&which).await?;
            found.ok_or_else(|| Problem::not_found("such schedule"))?
        }
        written => written?,
    };
    let id = schedule.id.to_string();
    let name = schedule.definition.name.as_str();
    call.audit("schedule.create", name, json!({"id": id})).await;
    let created = Created::Form(Box::new(view(call, &schedule).await?));
    let path = call.address(&format!("/jobs/{id}"));
    Ok(Reply::created(created).location(path))
}

/// Finds the schedule of a form by its id.
pub(super) async fn find(call: &Call, id: JobId) -> Result<Option<Schedule>, Problem> {
    let which = ScheduleRef::Id(ScheduleId::from_u128(id.as_u128()));
    let found = call.app.client.schedule(&which).await?;
    Ok(found.filter(|schedule| schedule.definition.job.meta.contains_key(FORM_META)))
}

pub(super) async fn schedule(call: Call) -> Result<Reply<FormSchedule>, Problem> {
    let id = call.job_id()?;
    let found = find(&call, id).await?;
    let schedule = found.ok_or_else(|| Problem::not_found(format!("schedule of job {id}")))?;
    let next = next_run_at(&call, &schedule).await?;
    let meta = FormMeta::of(&schedule);
    Ok(Reply::ok(FormSchedule {
        id: schedule.id,
        job_id: schedule.id,
        schedule: meta.schedule,
        is_recurring: meta.is_recurring,
        paused: schedule.definition.paused,
        last_at: schedule.last_at,
        next_at: schedule.next_at,
        next_run_at: next,
        next_execution_time: next,
    }))
}

/// Removes a form and its waiting jobs, retries included.
pub(super) async fn delete(call: &Call, schedule: &Schedule) -> Result<Reply<()>, Problem> {
    let name = schedule.definition.name.as_str();
    if !call.app.client.remove_schedule_and_jobs(name).await? {
        return Err(Problem::not_found(format!("job {}", schedule.id)));
    }
    call.audit_plain("schedule.delete", name).await;
    Ok(Reply::empty())
}

/// The fields of the form, as stored in the metadata of its jobs.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FormMeta {
    schedule: String,
    is_recurring: bool,
    max_retry_count: u32,
}

impl FormMeta {
    fn of(schedule: &Schedule) -> Self {
        let meta = schedule.definition.job.meta.get(FORM_META);
        let read = meta.and_then(|meta| FormMeta::deserialize(meta).ok());
        read.unwrap_or_default()
    }
}

/// The form as a client reads it.
pub(super) async fn view(call: &Call, schedule: &Schedule) -> Result<FormView, Problem> {
    let definition = &schedule.definition;
    let next = next_run_at(call, schedule).await?;
    let meta = FormMeta::of(schedule);
    let shown = call.content() == Content::Shown;
    let mut request: Map<String, Value> = if shown {
        definition.job.payload.decode().unwrap_or_default()
    } else {
        Map::new()
    };
    if let Some(url) = request.remove("url") {
        request.insert("api".to_owned(), url);
    }
    Ok(FormView {
        id: schedule.id,
        job_id: schedule.id,
        kind: definition.job.kind.clone(),
        queue: definition.job.queue.clone(),
        schedule: meta.schedule,
        delivery: match definition.job.delivery {
            Delivery::AtLeastOnce => FormDelivery::AtLeastOnce,
            Delivery::AtMostOnce => FormDelivery::AtMostOnce,
        },
        is_recurring: meta.is_recurring,
        max_retry_count: meta.max_retry_count,
        paused: definition.paused,
        created_at: schedule.created_at,
        next_run_at: next,
        next_execution_time: next,
        finished: schedule.next_at.is_none() && !definition.paused,
        payload_withheld: !shown,
        request,
    })
}

/// Returns the time of the waiting retry, if there is one, else that of the next occurrence.
async fn next_run_at(call: &Call, schedule: &Schedule) -> Result<Option<Timestamp>, Problem> {
    let last = occurrences(call, schedule, 1).await?;
    let job = match last.first().and_then(|fired| fired.job) {
        Some(job) => call.app.client.get(job).await?,
        None => None,
    };
    let retries = |job: &Job| job.state() == State::Waiting && job.failures > 0;
    let retry_at = job.filter(retries).map(|job| job.run_at);
    Ok(next_execution_time(retry_at, schedule.next_at))
}

/// Returns the newest occurrences that fired. Empty if the schedule was removed in the meantime.
async fn occurrences(
    call: &Call,
    schedule: &Schedule,
    limit: usize,
) -> Result<Vec<FiredOccurrence>, Problem> {
    let name = schedule.definition.name.as_str();
    match call.app.client.occurrences(name, None, limit).await {
        Err(Error::ScheduleNotFound(_)) => Ok(Vec::new()),
        fired => Ok(fired?),
    }
}

/// Returns the attempts of all occurrences, newest first.
pub(super) async fn history(
    call: &Call,
    schedule: &Schedule,
    status: Option<&str>,
    limit: usize,
) -> Result<Vec<Attempt>, Problem> {
    let mut rows: Vec<Attempt> = Vec::new();
    for occurrence in occurrences(call, schedule, OCCURRENCES_READ_MAX).await? {
        if rows.len() >= limit {
            break;
        }
        let Some(job_id) = occurrence.job else {
            continue;
        };
        let attempts = call.app.client.attempts(job_id, ATTEMPTS_MAX).await?;
        let is_selected = |row_status: &str| status.is_none_or(|status| status == row_status);
        let attempts = attempts
            .into_iter()
            .filter(|row| is_selected(status_of(row.outcome)));
        rows.extend(attempts.map(|row| {
            let form = FormAttempt {
                job_id,
                scheduled_for: occurrence.scheduled_for,
                status: status_of(row.outcome).to_owned(),
                execution_time: row.started_at,
            };
            Attempt {
                form: Some(form),
                ..attempt_view(row, &schedule.definition.job.kind, call.content())
            }
        }));
    }
    rows.truncate(limit);
    Ok(rows)
}
