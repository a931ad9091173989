//! Creates jobs of a schedule on request.

use serde_json::json;
use windlass_api::{Backfill, BackfillAnswer, BackfillRange, RunAnswer};

use super::named;
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::problem::Problem;

pub(super) async fn run_now(call: Call) -> Result<Reply<RunAnswer>, Problem> {
    let name = named(&call).await?.readable()?.definition.name;
    let client = &call.app.client;
    let job_id = client
        .run_schedule_now_from(name.as_str(), call.origin())
        .await?;
    call.audit("schedule.run_now", name.as_str(), json!({"job": job_id}))
        .await;
    let path = call.address(&format!("/jobs/{job_id}"));
    Ok(Reply::created(RunAnswer { job_id }).location(path))
}

pub(super) async fn backfill(
    call: Call,
    JsonBody(BackfillRange { from, to }): JsonBody<Backfill>,
) -> Result<Reply<BackfillAnswer>, Problem> {
    let name = named(&call).await?.readable()?.definition.name;
    let client = &call.app.client;
    let created = client
        .backfill_from(name.as_str(), from, to, call.origin())
        .await?;
    let detail = json!({"from": from, "to": to, "created": created});
    call.audit("schedule.backfill", name.as_str(), detail).await;
    let created = u64::try_from(created).unwrap_or(u64::MAX);
    Ok(Reply::ok(BackfillAnswer { created }))
}
