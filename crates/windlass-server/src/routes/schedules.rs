//! Schedules: their whole life.

mod edit;
mod fire;
mod look;

use axum::http::Method;
use axum::http::header::IF_MATCH;
use sha2::{Digest as _, Sha256};
use windlass_api::schema::{Field, Schema};
use windlass_api::{Definition, ScheduleView};
use windlass_core::ScheduleId;
use windlass_core::schedule::NewSchedule;
use windlass_store::{Expected, Schedule, ScheduleRef, UnreadableSchedule};

use super::Route;
use super::jobs::page_params;
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const TAG: &str = "schedules";

pub(super) fn routes() -> Vec<Route> {
    let schedule = || Schema::named("Schedule");
    let if_match = || {
        Field::maybe(
            "If-Match",
            Schema::text().about("The `ETag` that was read."),
        )
    };
    let count = || Field::maybe("count", Schema::integer(1, 1000));
    vec![
        Route::new(
            Method::POST,
            "/api/v1/schedules",
            Scope::Operate,
            edit::create,
        )
        .says(TAG, "Creates a schedule.")
        .takes("NewSchedule")
        .answers(201, "It is stored.", schedule())
        .idempotent(),
        Route::new(Method::GET, "/api/v1/schedules", Scope::Read, look::list)
            .says(
                TAG,
                "Lists the schedules that will fire again, are paused, or cannot be read any more, by name.",
            )
            .params(page_params())
            .answers(200, "A page.", Schema::page(schedule(), vec![])),
        Route::new(
            Method::POST,
            "/api/v1/schedules/preview",
            Scope::Read,
            look::preview,
        )
        .says(TAG, "When a rule would fire, before it is stored.")
        .takes("Preview")
        .answers(
            200,
            "The next instants.",
            Schema::page(Schema::named("Firing"), vec![]),
        ),
        Route::new(
            Method::GET,
            "/api/v1/schedules/{name}",
            Scope::Read,
            look::get,
        )
        .says(TAG, "One schedule, by name or id; also one that is over.")
        .answers(200, "The schedule, with its `ETag`.", schedule()),
        Route::new(
            Method::PUT,
            "/api/v1/schedules/{name}",
            Scope::Operate,
            edit::put,
        )
        .says(TAG, "Creates a schedule or replaces the one of that name.")
        .takes("PutSchedule")
        .header(if_match())
        .answers(200, "It is replaced.", schedule())
        .answers(201, "It is created.", schedule()),
        Route::new(
            Method::PATCH,
            "/api/v1/schedules/{name}",
            Scope::Operate,
            edit::patch,
        )
        .says(
            TAG,
            "Changes what is given about a schedule; `null` is its default.",
        )
        .takes("SchedulePatch")
        .header(if_match())
        .answers(200, "The schedule.", schedule()),
        Route::get(
            "/api/v1/schedules/{name}/replaced-payloads/{sha256}",
            Scope::ReadPayload,
            edit::replaced,
        )
        .says(
            TAG,
            "The payload that a change of a schedule replaced, by the hash that the audit log has; kept for a limited time.",
        )
        .status(200, "The payload."),
        Route::new(
            Method::DELETE,
            "/api/v1/schedules/{name}",
            Scope::Operate,
            edit::delete,
        )
        .says(TAG, "Removes a schedule; its jobs stay.")
        .header(if_match())
        .answers_nothing(),
        Route::new(
            Method::POST,
            "/api/v1/schedules/{name}/pause",
            Scope::Operate,
            edit::pause,
        )
        .says(TAG, "It does not fire until it is resumed.")
        .header(if_match())
        .answers(200, "The schedule.", schedule()),
        Route::new(
            Method::POST,
            "/api/v1/schedules/{name}/resume",
            Scope::Operate,
            edit::resume,
        )
        .says(
            TAG,
            "It fires again; what it missed is recorded as skipped.",
        )
        .header(if_match())
        .answers(200, "The schedule.", schedule()),
        Route::new(
            Method::POST,
            "/api/v1/schedules/{name}/run-now",
            Scope::Operate,
            fire::run_now,
        )
        .says(TAG, "Runs its job now, beside its occurrences.")
        .answers(201, "The job.", Schema::named("RunAnswer"))
        .idempotent(),
        Route::new(
            Method::POST,
            "/api/v1/schedules/{name}/backfill",
            Scope::Operate,
            fire::backfill,
        )
        .says(
            TAG,
            "Runs the occurrences of a range in the past that were not fired.",
        )
        .takes("Backfill")
        .answers(
            200,
            "How many jobs were made.",
            Schema::named("BackfillAnswer"),
        )
        .idempotent(),
        Route::new(
            Method::GET,
            "/api/v1/schedules/{name}/occurrences",
            Scope::Read,
            look::occurrences,
        )
        .says(TAG, "What was fired, newest first, and what was skipped.")
        .params(page_params())
        .answers(
            200,
            "A page.",
            Schema::page(Schema::named("Occurrence"), vec![]),
        ),
        Route::new(
            Method::GET,
            "/api/v1/schedules/{name}/preview",
            Scope::Read,
            look::upcoming,
        )
        .says(TAG, "Its next occurrences, as if it were not paused.")
        .params([count()])
        .answers(
            200,
            "The next instants.",
            Schema::page(Schema::named("Firing"), vec![]),
        ),
    ]
}

/// A schedule that is there.
enum Found {
    /// As it is understood.
    Read(Box<Schedule>),
    /// One that cannot be read any more.
    Unreadable(UnreadableSchedule),
}

impl Found {
    fn id(&self) -> ScheduleId {
        match self {
            Found::Read(schedule) => schedule.id,
            Found::Unreadable(schedule) => schedule.id,
        }
    }

    fn name(&self) -> &str {
        match self {
            Found::Read(schedule) => schedule.definition.name.as_str(),
            Found::Unreadable(schedule) => &schedule.name,
        }
    }

    /// What a change of it expects.
    fn version(&self) -> Expected {
        Expected::Version(match self {
            Found::Read(schedule) => schedule.version,
            Found::Unreadable(schedule) => schedule.version,
        })
    }

    /// What was asked for, if it can be read.
    fn definition(&self) -> Option<&NewSchedule> {
        match self {
            Found::Read(schedule) => Some(&schedule.definition),
            Found::Unreadable(_) => None,
        }
    }

    /// The schedule, if it can be read.
    fn readable(self) -> Result<Schedule, Problem> {
        match self {
            Found::Read(schedule) => Ok(*schedule),
            Found::Unreadable(schedule) => {
                let detail = format!(
                    "schedule {} cannot be read any more: {}",
                    schedule.name, schedule.reason
                );
                let problem = Problem::conflict("schedule_unreadable", detail);
                Err(problem.hint("PUT writes it anew, DELETE removes it"))
            }
        }
    }

    fn view(&self, call: &Call) -> ScheduleView<'_> {
        let content = call.content();
        match self {
            Found::Read(schedule) => view(call, schedule),
            Found::Unreadable(schedule) => ScheduleView {
                id: schedule.id,
                definition: Definition::Unreadable {
                    name: &schedule.name,
                    text: &schedule.definition,
                    reason: &schedule.reason,
                },
                created_at: schedule.created_at,
                last_at: schedule.last_at,
                next_at: None,
                content,
            },
        }
    }

    fn etag(&self) -> Result<String, Problem> {
        match self {
            Found::Read(schedule) => etag(schedule),
            Found::Unreadable(schedule) => Ok(tag(schedule.id, schedule.definition.as_bytes())),
        }
    }
}

/// The schedule that is found by name, or by id.
async fn find(call: &Call, which: &ScheduleRef) -> Result<Option<Found>, Problem> {
    if let Some(found) = call.app.client.schedule(which).await? {
        return Ok(Some(Found::Read(Box::new(found))));
    }
    let unreadable = call.app.client.unreadable_schedules().await?;
    let is_it = |one: &UnreadableSchedule| match which {
        ScheduleRef::Id(id) => one.id == *id,
        ScheduleRef::Name(name) => one.name == name.as_str(),
    };
    Ok(unreadable.into_iter().find(is_it).map(Found::Unreadable))
}

/// The schedule that the path names, by name or by id.
async fn found(call: &Call) -> Result<Found, Problem> {
    let text = call.param("name");
    let which = match text.parse() {
        Ok(id) => ScheduleRef::Id(id),
        Err(_) => ScheduleRef::Name(call.name("name")?),
    };
    let found = find(call, &which).await?;
    found.ok_or_else(|| Problem::not_found("such schedule"))
}

/// The same, if it can be read.
async fn named(call: &Call) -> Result<Schedule, Problem> {
    found(call).await?.readable()
}

fn view<'a>(call: &Call, schedule: &'a Schedule) -> ScheduleView<'a> {
    ScheduleView {
        id: schedule.id,
        definition: Definition::Read(&schedule.definition),
        created_at: schedule.created_at,
        last_at: schedule.last_at,
        next_at: schedule.next_at,
        content: call.content(),
    }
}

fn answer(call: &Call, schedule: &Schedule) -> Result<Answer, Problem> {
    Ok(Answer::ok(&view(call, schedule))?.etag(&etag(schedule)?))
}

/// Changes with what was asked for, and not with each firing: so an edit meets only other edits.
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

/// Refuses a change to a schedule that is not what the client read.
fn check_match(call: &Call, schedule: Option<&Found>) -> Result<(), Problem> {
    let Some(expected) = call.headers.get(IF_MATCH) else {
        return Ok(());
    };
    let found = schedule.map(Found::etag).transpose()?;
    // What is no text is nobody's tag.
    let mut expected = expected.to_str().unwrap_or_default().split(',');
    let fits = found
        .is_some_and(|found| expected.any(|tag| matches!(tag.trim(), "*") || tag.trim() == found));
    if fits {
        return Ok(());
    }
    let status = axum::http::StatusCode::PRECONDITION_FAILED;
    let detail = "the schedule is not what `If-Match` says";
    Err(Problem::new(status, "precondition_failed", detail).hint("read it again, then change it"))
}
