//! Schedules: create, read, change, preview and run them.

mod edit;
mod fire;
mod preview;
mod read;

use axum::http::header::{ETAG, IF_MATCH};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use windlass_api::{Content, ScheduleTimes, ScheduleView};
use windlass_core::ScheduleId;
use windlass_core::schedule::NewSchedule;
use windlass_store::{Expected, Schedule, ScheduleRef, UnreadableSchedule};

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::Reply;
use crate::problem::Problem;

const TAG: &str = "schedules";

pub(super) fn routes() -> Vec<Route> {
    let if_match = |route: Route| {
        route.header(
            "If-Match",
            text("Only apply the change if this is the current `ETag` of the schedule."),
        )
    };
    let one = "/api/v1/schedules/{name}";
    vec![
        Route::post("/api/v1/schedules", Scope::Operate, edit::create)
            .summary(TAG, "Creates a schedule.")
            .status(201, "The schedule was created.")
            .idempotent(),
        Route::get("/api/v1/schedules", Scope::Read, read::list)
            .summary(
                TAG,
                "Lists schedules by name. Schedules that will not fire again are left out.",
            )
            .status(200, "A page of schedules."),
        Route::post("/api/v1/schedules/bulk", Scope::Operate, edit::create_many)
            .summary(
                TAG,
                "Creates up to 1,000 schedules. A refused one does not stop the others.",
            )
            .status(200, "The result of each schedule.")
            .bulk_body()
            .idempotent(),
        Route::post("/api/v1/schedules/preview", Scope::Read, preview::rule)
            .summary(TAG, "Previews when a rule would fire, without storing it.")
            .status(200, "The next occurrences."),
        Route::get(one, Scope::Read, read::get)
            .summary(
                TAG,
                "Returns a schedule by name or id, even if it will not fire again.",
            )
            .status(200, "The schedule, with its `ETag`."),
        if_match(Route::put(one, Scope::Operate, edit::put))
            .summary(TAG, "Creates a schedule, or replaces the schedule of this name.")
            .status(200, "The schedule was replaced.")
            .status(201, "The schedule was created."),
        if_match(Route::patch(one, Scope::Operate, edit::patch))
            .summary(
                TAG,
                "Changes the given fields of a schedule. `null` resets a field to its default.",
            )
            .status(200, "The schedule."),
        Route::get(
            "/api/v1/schedules/{name}/replaced-payloads/{sha256}",
            Scope::ReadPayload,
            edit::replaced,
        )
        .summary(
            TAG,
            "Returns a payload that a change of a schedule replaced, by its hash in the audit log. The server keeps it for a limited time.",
        )
        .status(200, "The payload."),
        if_match(Route::delete(one, Scope::Operate, edit::delete))
            .summary(TAG, "Removes a schedule. Its jobs are not removed."),
        if_match(Route::post(
            "/api/v1/schedules/{name}/pause",
            Scope::Operate,
            edit::pause,
        ))
        .summary(TAG, "Pauses a schedule: it does not fire until it is resumed.")
        .status(200, "The schedule."),
        if_match(Route::post(
            "/api/v1/schedules/{name}/resume",
            Scope::Operate,
            edit::resume,
        ))
        .summary(
            TAG,
            "Resumes a paused schedule. Occurrences that it missed are recorded as skipped.",
        )
        .status(200, "The schedule."),
        Route::post(
            "/api/v1/schedules/{name}/run-now",
            Scope::Operate,
            fire::run_now,
        )
        .summary(TAG, "Creates a job of a schedule now, in addition to its occurrences.")
        .status(201, "The job was created.")
        .idempotent(),
        Route::post(
            "/api/v1/schedules/{name}/backfill",
            Scope::Operate,
            fire::backfill,
        )
        .summary(
            TAG,
            "Creates jobs for the occurrences in a past time range that did not fire. At most 1000.",
        )
        .status(200, "The number of created jobs.")
        .idempotent(),
        Route::get(
            "/api/v1/schedules/{name}/occurrences",
            Scope::Read,
            read::occurrences,
        )
        .summary(
            TAG,
            "Lists the occurrences that fired and the ranges that were skipped, newest first.",
        )
        .status(200, "A page of occurrences."),
        Route::get(
            "/api/v1/schedules/{name}/preview",
            Scope::Read,
            preview::stored,
        )
        .summary(
            TAG,
            "Previews the next occurrences of a schedule, as if it were not paused.",
        )
        .status(200, "The next occurrences."),
    ]
}

fn text(about: &str) -> Value {
    json!({"type": "string", "description": about})
}

/// A schedule in the store.
enum StoredSchedule {
    Readable(Box<Schedule>),
    /// The server cannot read its definition.
    Unreadable(UnreadableSchedule),
}

impl StoredSchedule {
    fn id(&self) -> ScheduleId {
        match self {
            StoredSchedule::Readable(schedule) => schedule.id,
            StoredSchedule::Unreadable(schedule) => schedule.id,
        }
    }

    fn name(&self) -> &str {
        match self {
            StoredSchedule::Readable(schedule) => schedule.definition.name.as_str(),
            StoredSchedule::Unreadable(schedule) => &schedule.name,
        }
    }

    /// The version that must still be stored when the schedule is written.
    fn expected(&self) -> Expected {
        Expected::Version(match self {
            StoredSchedule::Readable(schedule) => schedule.version,
            StoredSchedule::Unreadable(schedule) => schedule.version,
        })
    }

    fn definition(&self) -> Option<&NewSchedule> {
        match self {
            StoredSchedule::Readable(schedule) => Some(&schedule.definition),
            StoredSchedule::Unreadable(_) => None,
        }
    }

    /// Returns the schedule, or a problem if the server cannot read it.
    fn readable(self) -> Result<Schedule, Problem> {
        match self {
            StoredSchedule::Readable(schedule) => Ok(*schedule),
            StoredSchedule::Unreadable(schedule) => {
                let (name, reason) = (schedule.name, schedule.reason);
                let detail = format!("schedule {name} cannot be read: {reason}");
                let problem = Problem::conflict("schedule_unreadable", detail);
                Err(problem.hint("replace it with PUT, or remove it with DELETE"))
            }
        }
    }

    fn view(&self, content: Content) -> ScheduleView {
        match self {
            StoredSchedule::Readable(schedule) => {
                ScheduleView::Readable(Box::new(view(schedule, content)))
            }
            StoredSchedule::Unreadable(schedule) => {
                let times = ScheduleTimes {
                    created_at: schedule.created_at,
                    last_at: schedule.last_at,
                    next_at: None,
                };
                ScheduleView::Unreadable(Box::new(windlass_api::UnreadableSchedule::new(
                    (schedule.id, &schedule.name),
                    (&schedule.definition, &schedule.reason),
                    times,
                    content,
                )))
            }
        }
    }

    fn etag(&self) -> Result<String, Problem> {
        match self {
            StoredSchedule::Readable(schedule) => etag(schedule),
            StoredSchedule::Unreadable(schedule) => {
                Ok(tag(schedule.id, schedule.definition.as_bytes()))
            }
        }
    }
}

async fn find(call: &Call, which: &ScheduleRef) -> Result<Option<StoredSchedule>, Problem> {
    if let Some(found) = call.app.client.schedule(which).await? {
        return Ok(Some(StoredSchedule::Readable(Box::new(found))));
    }
    let unreadable = call.app.client.unreadable_schedules().await?;
    let is_same = |one: &UnreadableSchedule| match which {
        ScheduleRef::Id(id) => one.id == *id,
        ScheduleRef::Name(name) => one.name == name.as_str(),
    };
    let found = unreadable.into_iter().find(is_same);
    Ok(found.map(StoredSchedule::Unreadable))
}

/// Returns the schedule in the path, which is a name or an id.
async fn named(call: &Call) -> Result<StoredSchedule, Problem> {
    let which = match call.param("name").parse() {
        Ok(id) => ScheduleRef::Id(id),
        Err(_) => ScheduleRef::Name(call.name("name")?),
    };
    let found = find(call, &which).await?;
    found.ok_or_else(|| Problem::not_found("such schedule"))
}

fn view(schedule: &Schedule, content: Content) -> windlass_api::Schedule {
    let times = ScheduleTimes {
        created_at: schedule.created_at,
        last_at: schedule.last_at,
        next_at: schedule.next_at,
    };
    windlass_api::Schedule::new(schedule.id, &schedule.definition, times, content)
}

fn answer(call: &Call, schedule: &Schedule) -> Result<Reply<windlass_api::Schedule>, Problem> {
    let reply = Reply::ok(view(schedule, call.content()));
    Ok(reply.header(ETAG, etag(schedule)?))
}

/// The tag changes with the definition and not with each firing, so that an edit conflicts only
/// with other edits.
fn etag(schedule: &Schedule) -> Result<String, Problem> {
    let text = serde_json::to_vec(&schedule.definition);
    let text = text.map_err(|error| Problem::internal(&error))?;
    Ok(tag(schedule.id, &text))
}

fn tag(id: ScheduleId, definition: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(id.to_string());
    digest.update(definition);
    let digest = digest.finalize();
    let hex: String = digest
        .iter()
        .take(12)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("\"{hex}\"")
}

/// Refuses a change whose `If-Match` is not the tag of the stored schedule.
fn check_match(call: &Call, schedule: Option<&StoredSchedule>) -> Result<(), Problem> {
    let Some(expected) = call.headers.get(IF_MATCH) else {
        return Ok(());
    };
    let stored = schedule.map(StoredSchedule::etag).transpose()?;
    // A value that is not text matches no tag.
    let mut expected = expected.to_str().unwrap_or_default().split(',');
    let matches =
        stored.is_some_and(|stored| expected.any(|tag| tag.trim() == "*" || tag.trim() == stored));
    if matches {
        return Ok(());
    }
    let status = axum::http::StatusCode::PRECONDITION_FAILED;
    let detail = "the schedule does not match `If-Match`";
    let problem = Problem::new(status, "precondition_failed", detail);
    Err(problem.hint("read the schedule again, then repeat the change"))
}
