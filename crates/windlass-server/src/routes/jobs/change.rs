//! Changes to single jobs by operators.

use serde_json::{Value, json};
use windlass_api::{Edit, Job as JobView, ReplacedPayload, Revival};
use windlass_core::{Job, JobId, Payload};

use super::form;
use crate::audit::{Before, removed, replaced_payload};
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::http_jobs;
use crate::problem::Problem;

pub(super) async fn cancel(call: Call) -> Result<Reply<JobView>, Problem> {
    let id = call.job_id()?;
    let before = before(&call, id, None).await?;
    let state = call.app.client.cancel(id).await?;
    done(call, "job.cancel", id, before.cancelled(state)).await
}

pub(super) async fn revive(
    call: Call,
    JsonBody(mut revival): JsonBody<Revival>,
) -> Result<Reply<JobView>, Problem> {
    let id = call.job_id()?;
    revival.run_at = revival.run_at.or(Some(call.now));
    check_payload(&call, revival.payload.as_ref())?;
    let before = before(&call, id, revival.payload.as_ref()).await?;
    let state = call.app.client.revive(id, &revival).await?;
    done(call, "job.revive", id, before.revived(&revival, state)).await
}

pub(super) async fn run_now(call: Call) -> Result<Reply<JobView>, Problem> {
    let id = call.job_id()?;
    let before = before(&call, id, None).await?;
    let state = call.app.client.run_now(id).await?;
    done(call, "job.run_now", id, before.made_due(state)).await
}

pub(super) async fn resolve(call: Call) -> Result<Reply<JobView>, Problem> {
    let id = call.job_id()?;
    let before = before(&call, id, None).await?;
    let state = call.app.client.resolve(id).await?;
    done(call, "job.resolve", id, before.resolved(state)).await
}

pub(super) async fn edit(
    call: Call,
    JsonBody(edit): JsonBody<Edit>,
) -> Result<Reply<JobView>, Problem> {
    let id = call.job_id()?;
    check_payload(&call, edit.payload.as_ref())?;
    let before = before(&call, id, edit.payload.as_ref()).await?;
    let state = call.app.client.edit(id, &edit).await?;
    done(call, "job.edit", id, before.edited(&edit, state)).await
}

pub(super) async fn delete(call: Call) -> Result<Reply<()>, Problem> {
    let id = call.job_id()?;
    if let Some(schedule) = form::find(&call, id).await? {
        return form::delete(&call, &schedule).await;
    }
    // A job that the server cannot read can still be removed.
    let job = call.app.client.get(id).await.unwrap_or_default();
    call.app.client.purge(id).await?;
    let detail = job.map_or_else(|| json!({}), |job| removed(&job, call.now));
    call.audit("job.delete", &id.to_string(), detail).await;
    Ok(Reply::empty())
}

pub(super) async fn replaced(call: Call) -> Result<Reply<ReplacedPayload>, Problem> {
    let owner = call.job_id()?.to_string();
    Ok(Reply::ok(replaced_payload(&call, &owner).await?))
}

/// Refuses a payload that is too large.
fn check_payload(call: &Call, payload: Option<&Payload>) -> Result<(), Problem> {
    let most = call.app.settings.payload_bytes_max;
    let checked = payload.map_or(Ok(()), |payload| payload.check_size(most));
    checked.map_err(|error| {
        Problem::too_large("payload_too_large", error.within("payload").to_string())
    })
}

/// Refuses a new payload that is not a valid request of an HTTP job.
async fn check_request(call: &Call, job: &Job, payload: Option<&Payload>) -> Result<(), Problem> {
    let Some(payload) = payload else {
        return Ok(());
    };
    let kind = (&job.kind, job.delivery);
    http_jobs::check_request(&mut call.signers(), kind, payload).await
}

/// Returns the job before the change. Saves its payload if a new one is about to replace it.
async fn before(call: &Call, id: JobId, payload: Option<&Payload>) -> Result<Before, Problem> {
    let job = call.app.client.get(id).await?;
    let job = job.ok_or(windlass::Error::NotFound(id))?;
    check_request(call, &job, payload).await?;
    Before::keep(call, job, payload).await
}

/// Records the change in the audit log and returns the changed job.
async fn done(
    call: Call,
    action: &str,
    id: JobId,
    changes: Value,
) -> Result<Reply<JobView>, Problem> {
    let detail = json!({"changes": changes});
    call.audit(action, &id.to_string(), detail).await;
    let job = call.app.client.get(id).await?;
    let job = job.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
    let now = call.app.client.now();
    Ok(Reply::ok(JobView::new(job, now, call.content())))
}
