//! Creates and changes schedules.

use axum::http::StatusCode;
use serde_json::value::to_raw_value;
use windlass::Error;
use windlass_api::{ReplacedPayload, read_patch, read_schedule};
use windlass_core::schedule::NewSchedule;
use windlass_core::{Invalid, ScheduleName};
use windlass_http::with_defaults;
use windlass_store::{Expected, Schedule, ScheduleRef, Written};

use super::{Found, answer, check_match, find, found};
use crate::answer::Answer;
use crate::audit::{replaced_payload, schedule_changes, schedule_owner};
use crate::call::{Call, escaped};
use crate::endpoint::Reply;
use crate::http_jobs::{check_form, check_request, with_depth};
use crate::preconditions::exists;
use crate::problem::Problem;

/// So often a change is tried that meets a firing.
const TRIES: usize = 10;

pub(super) async fn create(call: Call) -> Result<Answer, Problem> {
    let definition = call.read(|parts| well_formed(&call, read_schedule(&parts)?))?;
    let definition = checked(&call, definition).await?;
    let name = definition.name.clone();
    let changes = schedule_changes(&call, None, &definition).await?;
    let origin = call.origin();
    let written = call
        .app
        .client
        .write_schedule_from(definition, Expected::Absent, origin)
        .await;
    let schedule = match written {
        Ok(schedule) => schedule,
        Err(Error::ScheduleChanged { .. }) => {
            let found = call
                .app
                .client
                .schedule(&ScheduleRef::Name(name.clone()))
                .await?;
            // An earlier try of the same request made it, and did not live to answer.
            let ours = |found: &Schedule| found.id == origin.ids().schedule(origin.now);
            let taken = || {
                let detail = format!("there is a schedule {name} already");
                Problem::conflict("schedule_exists", detail)
                    .hint("PUT replaces it, PATCH changes it")
            };
            found.filter(ours).ok_or_else(taken)?
        }
        Err(other) => return Err(other.into()),
    };
    call.audit("schedule.create", name.as_str(), changes).await;
    created(&call, &schedule)
}

fn created(call: &Call, schedule: &Schedule) -> Result<Answer, Problem> {
    let name = escaped(schedule.definition.name.as_str());
    let path = call.address(&format!("/schedules/{name}"));
    let answer = answer(call, schedule)?.status(StatusCode::CREATED);
    Ok(answer.location(&path))
}

/// Checks what a schedule itself says.
fn well_formed(call: &Call, definition: NewSchedule) -> Result<NewSchedule, Invalid> {
    definition.check_with(call.now, usize::MAX)?;
    let job = &definition.job;
    check_form((&job.kind, job.delivery), &job.payload).map_err(|error| error.within("job"))?;
    Ok(definition)
}

/// Checks what is stored with a schedule: also that a payload is not too large.
async fn checked(call: &Call, mut definition: NewSchedule) -> Result<NewSchedule, Problem> {
    let most = call.app.settings.payload_bytes_max;
    definition.job.payload.check_size(most).map_err(|error| {
        Problem::too_large("payload_too_large", error.within("job.payload").to_string())
    })?;
    definition.check_with(call.now, most)?;
    let job = &definition.job;
    let mut signers = call.signers();
    let request = check_request(&mut signers, (&job.kind, job.delivery), &job.payload);
    request.await.map_err(|problem| problem.within("job"))?;
    definition.job = with_depth(&call.headers, with_defaults(definition.job));
    Ok(definition)
}

pub(super) async fn put(call: Call) -> Result<Answer, Problem> {
    let name: ScheduleName = call.name("name")?;
    let written = to_raw_value(&name).map_err(|error| Problem::internal(&error))?;
    let definition = call.read(|mut parts| {
        if parts
            .raw("name")
            .is_some_and(|given| given != written.get())
        {
            let rule = "must be the name in the path, or not given";
            return Err(Invalid::new("name", rule));
        }
        parts.put("name", written.clone());
        well_formed(&call, read_schedule(&parts)?)
    })?;
    let definition = checked(&call, definition).await?;
    for _ in 0..TRIES {
        let found = find(&call, &ScheduleRef::Name(name.clone())).await?;
        check_match(&call, found.as_ref())?;
        if found.is_some() && call.only_creates() {
            return Err(exists(&format!("schedule {name}")));
        }
        let expected = found.as_ref().map_or(Expected::Absent, Found::version);
        let old = found.as_ref().and_then(Found::definition);
        let changes = schedule_changes(&call, old, &definition).await?;
        match call
            .app
            .client
            .write_schedule(definition.clone(), expected)
            .await
        {
            Ok(schedule) => {
                call.audit("schedule.put", name.as_str(), changes).await;
                return match found {
                    Some(_) => answer(&call, &schedule),
                    None => created(&call, &schedule),
                };
            }
            Err(Error::ScheduleChanged { .. }) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Err(busy(name.as_str()))
}

pub(super) async fn patch(call: Call) -> Result<Answer, Problem> {
    for _ in 0..TRIES {
        let found = found(&call).await?;
        check_match(&call, Some(&found))?;
        let expected = found.version();
        let found = found.readable()?;
        let read = |parts| well_formed(&call, read_patch(&found.definition, parts)?);
        let definition = call.read(read)?;
        let definition = checked(&call, definition).await?;
        let name = definition.name.clone();
        let changes = schedule_changes(&call, Some(&found.definition), &definition).await?;
        match call.app.client.write_schedule(definition, expected).await {
            Ok(schedule) => {
                call.audit("schedule.edit", name.as_str(), changes).await;
                return answer(&call, &schedule);
            }
            Err(Error::ScheduleChanged { .. }) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Err(busy(call.param("name")))
}

fn busy(name: &str) -> Problem {
    let detail = format!("schedule {name} is changed by others all the time");
    Problem::conflict("schedule_busy", detail).retry_after(std::time::Duration::from_secs(1))
}

/// `GET /api/v1/schedules/{name}/replaced-payloads/{sha256}`.
pub(super) async fn replaced(call: Call) -> Result<Reply<ReplacedPayload>, Problem> {
    let name: ScheduleName = call.name("name")?;
    let owner = schedule_owner(name.as_str());
    Ok(Reply::ok(replaced_payload(&call, &owner).await?))
}

pub(super) async fn delete(call: Call) -> Result<Answer, Problem> {
    for _ in 0..TRIES {
        let found = found(&call).await?;
        check_match(&call, Some(&found))?;
        let store = call.app.store();
        let removed = store.remove_schedule(found.id(), found.version()).await?;
        if let Written::Version(_) = removed {
            call.audit_plain("schedule.delete", found.name()).await;
            return Ok(Answer::empty());
        }
    }
    Err(busy(call.param("name")))
}

pub(super) async fn pause(call: Call) -> Result<Answer, Problem> {
    set_paused(&call, "schedule.pause", true).await
}

pub(super) async fn resume(call: Call) -> Result<Answer, Problem> {
    set_paused(&call, "schedule.resume", false).await
}

async fn set_paused(call: &Call, action: &str, paused: bool) -> Result<Answer, Problem> {
    for _ in 0..TRIES {
        let found = found(call).await?;
        check_match(call, Some(&found))?;
        let found = found.readable()?;
        match call.app.client.set_schedule_paused(found, paused).await {
            Ok(schedule) => {
                call.audit_plain(action, schedule.definition.name.as_str())
                    .await;
                return answer(call, &schedule);
            }
            Err(Error::ScheduleChanged { .. }) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Err(busy(call.param("name")))
}
