//! Runs occurrences that a person asks for.

use axum::http::StatusCode;
use serde_json::json;
use windlass_core::fields::{Fields, RawFields};
use windlass_core::{Invalid, Timestamp};

use super::named;
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

pub(super) async fn run_now(call: Call) -> Result<Answer, Problem> {
    let name = named(&call).await?.definition.name;
    let job = call
        .app
        .client
        .run_schedule_now_from(name.as_str(), call.origin())
        .await?;
    call.audit("schedule.run_now", name.as_str(), json!({"job": job}))
        .await;
    let answer = Answer::json(StatusCode::CREATED, &json!({"job_id": job}))?;
    Ok(answer.location(&call.address(&format!("/jobs/{job}"))))
}

pub(super) async fn backfill(call: Call) -> Result<Answer, Problem> {
    let (from, to) = call.read(read_range)?;
    let name = named(&call).await?.definition.name;
    let created = call
        .app
        .client
        .backfill_from(name.as_str(), from, to, call.origin())
        .await?;
    let detail = json!({"from": from, "to": to, "created": created});
    call.audit("schedule.backfill", name.as_str(), detail).await;
    Answer::ok(&json!({"created": created}))
}

fn read_range(parts: RawFields) -> Result<(Timestamp, Timestamp), Invalid> {
    let map = parts.values()?;
    let mut fields = Fields::of(&map);
    let required = |name: &str| Invalid::new(name, "is required");
    let from = fields.timestamp("from")?.ok_or_else(|| required("from"))?;
    let to = fields.timestamp("to")?.ok_or_else(|| required("to"))?;
    fields.finish()?;
    if to < from {
        return Err(Invalid::new("to", "must not be before `from`"));
    }
    Ok((from, to))
}
