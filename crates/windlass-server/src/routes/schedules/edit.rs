//! Creates, changes and removes schedules.

use windlass::Error;
use windlass_api::{
    Body as _, BulkScheduleResult, BulkSchedules, BulkSchedulesAnswer, Checks, NewJob, NewSchedule,
    PutSchedule, ReplacedPayload, Schedule, SchedulePatch,
};
use windlass_core::{ScheduleName, fixed_hash, schedule};
use windlass_engine::Origin;
use windlass_http::form::FORM_META;
use windlass_http::with_defaults;
use windlass_store::{Expected, Schedule as Stored, ScheduleRef, compare_and_set};

use super::{StoredSchedule, answer, check_match, find, named};
use crate::audit::{replaced_payload, schedule_changes, schedule_owner};
use crate::call::{Call, escaped};
use crate::endpoint::{JsonBody, Reply, UncheckedBody};
use crate::http_jobs::{check_request, with_depth};
use crate::preconditions::exists;
use crate::problem::Problem;
use crate::routes::jobs::request_problems;

pub(super) async fn create(
    call: Call,
    body: UncheckedBody<NewSchedule>,
) -> Result<Reply<Schedule>, Problem> {
    let definition = body.check(&call, |new, checks| {
        let payload = payload_field(new.job.as_ref());
        check_http_job(new.check(checks)?, payload, checks)
    })?;
    let schedule = create_one(&call, definition, call.origin()).await?;
    created(&call, &schedule)
}

/// Creates each schedule that is valid and whose name is free.
pub(super) async fn create_many(
    call: Call,
    JsonBody(texts): JsonBody<BulkSchedules>,
) -> Result<Reply<BulkSchedulesAnswer>, Problem> {
    let mut results = Vec::with_capacity(texts.len());
    let origin = call.origin();
    for (index, text) in texts.iter().enumerate() {
        let read = text.read(index, call.now, |new, checks| {
            let payload = payload_field(new.job.as_ref());
            check_http_job(new.check(checks)?, payload, checks)
        });
        // Its own seed, so that a repeated request gives each schedule the same id again.
        let seed = fixed_hash(format!("{} {index}", origin.seed).as_bytes());
        let created = match read {
            Ok(definition) => {
                let created = create_one(&call, definition, Origin { seed, ..origin });
                let within = format!("schedules[{index}]");
                created.await.map_err(|problem| problem.within(&within))
            }
            Err(problems) => Err(Problem::invalid(&problems)),
        };
        results.push(match created {
            // The request may be repeated with its `Idempotency-Key`.
            Err(problem) if !problem.is_refusal() => return Err(problem),
            Ok(schedule) => BulkScheduleResult::Created {
                id: schedule.id,
                name: schedule.definition.name,
                next_at: schedule.next_at,
            },
            Err(problem) => BulkScheduleResult::Refused {
                problem: Box::new(problem.into_json()),
            },
        });
    }
    Ok(Reply::ok(BulkSchedulesAnswer::new(results)))
}

/// Creates a schedule and records it in the audit log.
async fn create_one(
    call: &Call,
    definition: schedule::NewSchedule,
    origin: Origin,
) -> Result<Stored, Problem> {
    let definition = ready_to_store(call, definition).await?;
    let name = definition.name.clone();
    let changes = schedule_changes(call, None, &definition).await?;
    let client = &call.app.client;
    let written = client.write_schedule_from(definition, Expected::Absent, origin);
    let schedule = match unless_changed(written.await)? {
        Some(schedule) => schedule,
        None => {
            let found = client.schedule(&ScheduleRef::Name(name.clone())).await?;
            // The same request may have created it before and failed to send its response.
            let is_ours = |found: &Stored| found.id == origin.ids().schedule(origin.now);
            found.filter(is_ours).ok_or_else(|| {
                let detail = format!("schedule {name} already exists");
                Problem::conflict("schedule_exists", detail)
                    .hint("replace it with PUT, or change it with PATCH")
            })?
        }
    };
    call.audit("schedule.create", name.as_str(), changes).await;
    Ok(schedule)
}

fn created(call: &Call, schedule: &Stored) -> Result<Reply<Schedule>, Problem> {
    let name = escaped(schedule.definition.name.as_str());
    let path = call.address(&format!("/schedules/{name}"));
    let reply = answer(call, schedule)?.location(path);
    Ok(reply.status(axum::http::StatusCode::CREATED))
}

/// The field that contains the payload of a job.
fn payload_field(job: Option<&NewJob>) -> &'static str {
    match job {
        Some(job) if job.http.is_some() => "http",
        _ => "payload",
    }
}

/// Reports all problems of the request of an HTTP job.
fn check_http_job(
    definition: schedule::NewSchedule,
    payload: &str,
    checks: &mut Checks,
) -> Option<schedule::NewSchedule> {
    for problem in request_problems(&definition.job) {
        checks.report(problem.rename_field("payload", payload).within("job"));
    }
    Some(definition)
}

/// Returns the definition as it is stored. Refuses a payload that is too large, and a request that
/// may not be signed with the secrets that it names.
async fn ready_to_store(
    call: &Call,
    mut definition: schedule::NewSchedule,
) -> Result<schedule::NewSchedule, Problem> {
    let job = &definition.job;
    let size = job.payload.check_size(call.app.settings.payload_bytes_max);
    size.map_err(|error| {
        Problem::too_large("payload_too_large", error.within("job.payload").to_string())
    })?;
    let mut signers = call.signers();
    let request = check_request(&mut signers, (&job.kind, job.delivery), &job.payload);
    request.await.map_err(|problem| problem.within("job"))?;
    definition.job = with_depth(&call.headers, with_defaults(definition.job));
    Ok(definition)
}

pub(super) async fn put(
    call: Call,
    body: UncheckedBody<PutSchedule>,
) -> Result<Reply<Schedule>, Problem> {
    let name: ScheduleName = call.name("name")?;
    let definition = body.check(&call, |put, checks| {
        let payload = payload_field(put.job.as_ref());
        check_http_job(put.check_named(&name, checks)?, payload, checks)
    })?;
    let definition = ready_to_store(&call, definition).await?;
    let which = ScheduleRef::Name(name.clone());
    until_written(&call, || async {
        let stored = find(&call, &which).await?;
        check_match(&call, stored.as_ref())?;
        if stored.is_some() && call.only_creates() {
            return Err(exists(&format!("schedule {name}")));
        }
        let expected = stored.as_ref().map(StoredSchedule::expected);
        let old = stored.as_ref().and_then(StoredSchedule::definition);
        let changes = schedule_changes(&call, old, &definition).await?;
        let expected = expected.unwrap_or(Expected::Absent);
        let written = call.app.client.write_schedule(definition.clone(), expected);
        let Some(schedule) = unless_changed(written.await)? else {
            return Ok(None);
        };
        call.audit("schedule.put", name.as_str(), changes).await;
        match stored {
            Some(_) => answer(&call, &schedule).map(Some),
            None => created(&call, &schedule).map(Some),
        }
    })
    .await
}

pub(super) async fn patch(
    call: Call,
    body: UncheckedBody<SchedulePatch>,
) -> Result<Reply<Schedule>, Problem> {
    until_written(&call, || async {
        let stored = named(&call).await?;
        check_match(&call, Some(&stored))?;
        let expected = stored.expected();
        let old = stored.readable()?.definition;
        let definition = body.check(&call, |patch, checks| {
            let payload = payload_field(patch.job.as_ref().and_then(Option::as_ref));
            check_http_job(patch.check_over(&old, checks)?, payload, checks)
        })?;
        let mut definition = ready_to_store(&call, definition).await?;
        keep_form(&old.job, &mut definition.job);
        let changes = schedule_changes(&call, Some(&old), &definition).await?;
        let written = call.app.client.write_schedule(definition, expected).await;
        let Some(schedule) = unless_changed(written)? else {
            return Ok(None);
        };
        call.audit("schedule.edit", old.name.as_str(), changes)
            .await;
        answer(&call, &schedule).map(Some)
    })
    .await
}

/// Keeps what makes a schedule a scheduler form: its id stays readable as a job with any new job.
fn keep_form(old: &windlass_core::NewJob, new: &mut windlass_core::NewJob) {
    let Some(form) = old.meta.get(FORM_META) else {
        return;
    };
    let form = new.meta.entry(FORM_META.to_owned()).or_insert(form.clone());
    if let (Some(form), Some(limit)) = (form.as_object_mut(), new.max_attempts) {
        form.insert("maxRetryCount".to_owned(), (limit.get() - 1).into());
    }
}

/// `GET /api/v1/schedules/{name}/replaced-payloads/{sha256}`.
pub(super) async fn replaced(call: Call) -> Result<Reply<ReplacedPayload>, Problem> {
    let name: ScheduleName = call.name("name")?;
    let owner = schedule_owner(name.as_str());
    Ok(Reply::ok(replaced_payload(&call, &owner).await?))
}

pub(super) async fn delete(call: Call) -> Result<Reply<()>, Problem> {
    until_written(&call, || async {
        let stored = named(&call).await?;
        check_match(&call, Some(&stored))?;
        let client = &call.app.client;
        let removed = client.remove_schedule_if(stored.id(), stored.expected());
        if !removed.await? {
            return Ok(None);
        }
        call.audit_plain("schedule.delete", stored.name()).await;
        Ok(Some(Reply::empty()))
    })
    .await
}

pub(super) async fn pause(call: Call) -> Result<Reply<Schedule>, Problem> {
    set_paused(&call, "schedule.pause", true).await
}

pub(super) async fn resume(call: Call) -> Result<Reply<Schedule>, Problem> {
    set_paused(&call, "schedule.resume", false).await
}

async fn set_paused(call: &Call, action: &str, paused: bool) -> Result<Reply<Schedule>, Problem> {
    until_written(call, || async {
        let stored = named(call).await?;
        check_match(call, Some(&stored))?;
        let client = &call.app.client;
        let written = client.set_schedule_paused(stored.readable()?, paused).await;
        let Some(schedule) = unless_changed(written)? else {
            return Ok(None);
        };
        call.audit_plain(action, schedule.definition.name.as_str())
            .await;
        answer(call, &schedule).map(Some)
    })
    .await
}

/// Repeats a change until no firing and no other writer changes the schedule between its read and
/// its write.
async fn until_written<T, Step>(call: &Call, step: impl FnMut() -> Step) -> Result<T, Problem>
where
    Step: Future<Output = Result<Option<T>, Problem>>,
{
    let contended = || {
        Problem::from(Error::ScheduleChanged {
            name: call.param("name").to_owned(),
            version: None,
        })
    };
    compare_and_set(contended, step).await
}

/// Returns the written schedule, or `None` if another writer came first.
fn unless_changed(written: Result<Stored, Error>) -> Result<Option<Stored>, Problem> {
    match written {
        Err(Error::ScheduleChanged { .. }) => Ok(None),
        written => Ok(Some(written?)),
    }
}
