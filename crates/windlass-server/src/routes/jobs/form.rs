//! The scheduler form: a schedule and a URL in one flat object, posted as if it were a job. Its id stands for all of its
//! occurrences.

use std::cell::Cell;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value, json};
use windlass::Error;
use windlass::schedule::Expected;
use windlass_api::{AttemptView, Content, ListPage};
use windlass_core::fields::one_of;
use windlass_core::{Delivery, Job, JobId, ScheduleId, ScheduleName, State, Timestamp};
use windlass_http::form::{FORM_META, FormError, SchedulerForm, next_execution_time, status_of};
use windlass_store::{Attempt, Change, FiredOccurrence, PAGE_MAX, Schedule, ScheduleRef, Written};

use super::look::{ATTEMPTS_MAX, attempt_view};
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::http_jobs::with_depth;
use crate::problem::Problem;

/// So often a deletion is tried that meets a firing.
const TRIES: usize = 10;

/// The attempts of so many occurrences are looked at for one page of history.
const OCCURRENCES_LOOKED_AT: usize = PAGE_MAX;

/// Creates the schedule that a form stands for.
pub(super) async fn create(call: &Call) -> Result<Answer, Problem> {
    if !call.caller.may(Scope::Operate) {
        let detail = "this creates a schedule, which needs a key with the scope `operate`";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail));
    }
    let name = ScheduleName::new(&format!("form/{}", call.new_job_id()))?;
    let form = read(call)?;
    if let Some(refusal) = call.signers().refusal(form.request()).await? {
        return Err(FormError::of(refusal).into());
    }
    let mut definition = form.into_schedule(name.clone(), call.now)?;
    definition.job = with_depth(&call.headers, definition.job);
    let client = &call.app.client;
    let written = client.write_schedule_from(definition, Expected::Absent, call.origin());
    let schedule = match written.await {
        // The same request again, with the same key: it made the same name.
        Err(Error::ScheduleChanged { .. }) if call.seeded.is_some() => {
            let which = ScheduleRef::Name(name);
            let found = call.app.client.schedule(&which).await?;
            found.ok_or_else(|| Problem::not_found("such schedule"))?
        }
        written => written?,
    };
    let id = schedule.id.to_string();
    call.audit(
        "schedule.create",
        schedule.definition.name.as_str(),
        json!({"id": id}),
    )
    .await;
    let view = view(call, &schedule).await?;
    Ok(Answer::json(StatusCode::CREATED, &view)?.location(&call.address(&format!("/jobs/{id}"))))
}

/// Reads a form. The code is that of its first problem.
fn read(call: &Call) -> Result<SchedulerForm, Problem> {
    let (most, code) = (call.app.settings.payload_bytes_max, Cell::new(None));
    let read = call.read(|parts| {
        let form = SchedulerForm::from_parts(&parts, most);
        form.map_err(|refused| {
            code.set(code.get().or(Some(refused.code)));
            refused.invalid
        })
    });
    read.map_err(|problem| match code.get() {
        Some(code) => problem.code(code),
        None => problem,
    })
}

/// The schedule of a form that an id stands for.
pub(super) async fn find(call: &Call, id: JobId) -> Result<Option<Schedule>, Problem> {
    let which = ScheduleRef::Id(ScheduleId::from_u128(id.as_u128()));
    let found = call.app.client.schedule(&which).await?;
    Ok(found.filter(|schedule| schedule.definition.job.meta.contains_key(FORM_META)))
}

/// `GET /api/v1/jobs/{id}` of a form.
pub(super) async fn get(call: &Call, schedule: &Schedule) -> Result<Answer, Problem> {
    Answer::ok(&view(call, schedule).await?)
}

/// `GET /api/v1/jobs/{id}/schedule`.
pub(super) async fn schedule(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    let found = find(&call, id).await?;
    let schedule = found.ok_or_else(|| Problem::not_found(format!("schedule of job {id}")))?;
    let next = next_run_at(&call, &schedule).await?;
    Answer::ok(&json!({
        "id": schedule.id, "jobId": schedule.id, "schedule": told(&schedule, "schedule"),
        "isRecurring": told(&schedule, "isRecurring"), "paused": schedule.definition.paused,
        "last_at": schedule.last_at, "next_at": schedule.next_at,
        "next_run_at": next, "next_execution_time": next,
    }))
}

/// `DELETE /api/v1/jobs/{id}` of a form: nothing of it runs again, not even a retry that waits.
pub(super) async fn delete(call: &Call, schedule: &Schedule) -> Result<Answer, Problem> {
    let store = call.app.store();
    let mut schedule = schedule.clone();
    for _ in 0..TRIES {
        let fired = store.occurrences(schedule.id, None, PAGE_MAX).await?;
        let jobs: Vec<JobId> = fired.iter().filter_map(|fired| fired.job).collect();
        let version = Expected::Version(schedule.version);
        let removed = store.remove_schedule(schedule.id, version).await?;
        if let Written::Version(_) = removed {
            let found = store.get(&jobs).await?;
            let open = found.iter().flatten().filter(|job| !job.state().is_final());
            let open: Vec<JobId> = open.map(|job| job.id).collect();
            call.app.client.change_many(&open, &Change::Cancel).await?;
            let name = schedule.definition.name.as_str();
            call.audit_plain("schedule.delete", name).await;
            return Ok(Answer::empty());
        }
        // It has fired meanwhile, or is gone.
        let id = JobId::from_u128(schedule.id.as_u128());
        let found = find(call, id).await?;
        schedule = found.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
    }
    Err(Problem::busy("changes of this job"))
}

/// What the form said.
fn told(schedule: &Schedule, name: &str) -> Value {
    let form = schedule.definition.job.meta.get(FORM_META);
    form.and_then(|form| form.get(name))
        .cloned()
        .unwrap_or_default()
}

async fn view(call: &Call, schedule: &Schedule) -> Result<Value, Problem> {
    let definition = &schedule.definition;
    let next = next_run_at(call, schedule).await?;
    let delivery = match definition.job.delivery {
        Delivery::AtLeastOnce => "AT_LEAST_ONCE",
        Delivery::AtMostOnce => "AT_MOST_ONCE",
    };
    let mut view = json!({
        "id": schedule.id, "jobId": schedule.id, "kind": definition.job.kind, "queue": definition.job.queue,
        "schedule": told(schedule, "schedule"), "type": delivery,
        "isRecurring": told(schedule, "isRecurring"), "maxRetryCount": told(schedule, "maxRetryCount"),
        "paused": definition.paused, "created_at": schedule.created_at,
        "next_run_at": next, "next_execution_time": next,
        "finished": schedule.next_at.is_none() && !definition.paused,
    });
    let Some(fields) = view.as_object_mut() else {
        return Ok(view);
    };
    if call.content() == Content::Shown {
        let request: Map<String, Value> = definition.job.payload.decode().unwrap_or_default();
        for (name, value) in request {
            let name = if name == "url" {
                "api".to_owned()
            } else {
                name
            };
            fields.insert(name, value);
        }
    } else {
        fields.insert("payload_withheld".to_owned(), true.into());
    }
    Ok(view)
}

/// The retry's time while one waits, else the next occurrence.
async fn next_run_at(call: &Call, schedule: &Schedule) -> Result<Option<Timestamp>, Problem> {
    let store = call.app.store();
    let last = store.occurrences(schedule.id, None, 1).await?;
    let job = last.first().and_then(|fired| fired.job);
    let job = match job {
        Some(job) => call.app.client.get(job).await?,
        None => None,
    };
    let retries = |job: &Job| job.state() == State::Waiting && job.failures > 0;
    let retry_at = job.filter(retries).map(|job| job.run_at);
    Ok(next_execution_time(retry_at, schedule.next_at))
}

/// A row of a form's history.
#[derive(Serialize)]
struct FormRow {
    job_id: JobId,
    scheduled_for: Timestamp,
    status: &'static str,
    execution_time: Timestamp,
    #[serde(flatten)]
    attempt: AttemptView,
}

/// The attempts of all occurrences, newest first.
pub(super) async fn history(
    call: &Call,
    schedule: &Schedule,
    limit: usize,
) -> Result<Answer, Problem> {
    let wanted = wanted_status(call)?;
    let store = call.app.store();
    let fired = store
        .occurrences(schedule.id, None, OCCURRENCES_LOOKED_AT)
        .await?;
    let mut rows: Vec<FormRow> = Vec::new();
    for occurrence in fired {
        if rows.len() >= limit {
            break;
        }
        let Some(job) = occurrence.job else { continue };
        let attempts = store.attempts(job, ATTEMPTS_MAX).await?;
        let told = attempts
            .into_iter()
            .map(|row| form_row(call, occurrence, job, row));
        rows.extend(told.filter(|row| wanted.is_none_or(|wanted| wanted == row.status)));
    }
    rows.truncate(limit);
    Answer::ok(&ListPage::whole(rows))
}

/// Which attempts are asked for.
pub(super) fn wanted_status(call: &Call) -> Result<Option<&'static str>, Problem> {
    let words = [("SUCCESS", "SUCCESS"), ("FAILED", "FAILED")];
    Ok(call.query().parsed("status", |text| one_of(text, &words))?)
}

fn form_row(call: &Call, of: FiredOccurrence, job_id: JobId, row: Attempt) -> FormRow {
    FormRow {
        job_id,
        scheduled_for: of.scheduled_for,
        status: status_of(row.outcome),
        execution_time: row.started_at,
        attempt: attempt_view(row, &windlass_core::Kind::http(), call.content()),
    }
}
