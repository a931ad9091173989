//! What operators do to single jobs.

use serde_json::json;
use windlass_api::{JobView, read_edit, read_revival};
use windlass_core::{Job, JobId, Payload};

use super::form;
use crate::answer::Answer;
use crate::call::Call;
use crate::http_jobs::{self, check_queue};
use crate::problem::Problem;

/// `POST /api/v1/jobs/{id}/cancel`.
pub(super) async fn cancel(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    call.app.client.cancel(id).await?;
    done(call, "job.cancel", id).await
}

/// `POST /api/v1/jobs/{id}/revive`.
pub(super) async fn revive(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    let revival = read_revival(&call.parts()?, call.now)?;
    check_payload(&call, revival.payload.as_ref())?;
    if let Some(job) = call.app.client.get(id).await? {
        check_request(&call, &job, revival.payload.as_ref()).await?;
    }
    call.app.client.revive(id, &revival).await?;
    done(call, "job.revive", id).await
}

/// `POST /api/v1/jobs/{id}/run-now`.
pub(super) async fn run_now(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    call.app.client.run_now(id).await?;
    done(call, "job.run_now", id).await
}

/// `POST /api/v1/jobs/{id}/resolve`.
pub(super) async fn resolve(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    call.app.client.resolve(id).await?;
    done(call, "job.resolve", id).await
}

/// `PATCH /api/v1/jobs/{id}`.
pub(super) async fn edit(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    let edit = read_edit(&call.parts()?, call.now)?;
    check_payload(&call, edit.payload.as_ref())?;
    if let Some(job) = call.app.client.get(id).await? {
        check_request(&call, &job, edit.payload.as_ref()).await?;
        if let Some(queue) = &edit.queue {
            check_queue(call.app.engine(), &job.kind, queue).await?;
        }
    }
    call.app.client.edit(id, &edit).await?;
    done(call, "job.edit", id).await
}

/// `DELETE /api/v1/jobs/{id}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    if let Some(schedule) = form::find(&call, id).await? {
        return form::delete(&call, &schedule).await;
    }
    call.app.client.purge(id).await?;
    call.audit_plain("job.delete", &id.to_string()).await;
    Ok(Answer::empty())
}

/// Refuses a payload that is too large.
pub(in crate::routes) fn check_payload(
    call: &Call,
    payload: Option<&Payload>,
) -> Result<(), Problem> {
    let most = call.app.settings.payload_bytes_max;
    let checked = payload.map_or(Ok(()), |payload| payload.check_size(most));
    checked.map_err(|error| {
        Problem::too_large("payload_too_large", error.within("payload").to_string())
    })
}

/// Refuses a payload that an HTTP job must not have.
async fn check_request(call: &Call, job: &Job, payload: Option<&Payload>) -> Result<(), Problem> {
    let Some(payload) = payload else {
        return Ok(());
    };
    let kind = (&job.kind, job.delivery);
    http_jobs::check_request(&mut call.signers(), kind, payload).await
}

/// Records what was done, and answers the job as it is now.
async fn done(call: Call, action: &str, id: JobId) -> Result<Answer, Problem> {
    call.audit(action, &id.to_string(), json!({})).await;
    let job = call.app.client.get(id).await?;
    let job = job.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
    let now = call.app.engine().now();
    Answer::ok(&JobView {
        job: &job,
        now,
        content: call.content(),
    })
}
