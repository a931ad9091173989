//! Reads one job, its history, and waits for it.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use windlass::Error;
use windlass_api::{BoundedInt, Content, HistoryParams, Job, JobOrForm, Page, WaitParams};
use windlass_core::{Invalid, JobId, Kind, format_duration};
use windlass_http::form::status_of;
use windlass_store::{Attempt, AttemptId};

use super::form;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

const HISTORY_DEFAULT: usize = 10;
/// The most attempts that are read of a job. Only snoozes and releases can exceed this number.
pub(super) const ATTEMPTS_MAX: usize = 2001;
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

pub(super) async fn get(call: Call) -> Result<Reply<JobOrForm>, Problem> {
    let id = call.job_id()?;
    let Some(job) = call.app.client.get(id).await? else {
        let schedule = form::find(&call, id).await?;
        let schedule = schedule.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
        let form = form::view(&call, &schedule).await?;
        return Ok(Reply::ok(JobOrForm::Form(Box::new(form))));
    };
    let progress = match job.lease() {
        Some(_) => call.app.client.progress(id).await?,
        None => None,
    };
    let job = Job {
        progress,
        ..Job::new(job, call.now, call.content())
    };
    Ok(Reply::ok(JobOrForm::Job(Box::new(job))))
}

pub(super) async fn history(
    call: Call,
    Params(params): Params<HistoryParams>,
) -> Result<Reply<Page<windlass_api::Attempt>>, Problem> {
    let id = call.job_id()?;
    let limit = params.limit.map_or(HISTORY_DEFAULT, BoundedInt::to);
    let status = params.status.map(|status| status.name());
    let rows = match call.app.client.get(id).await? {
        Some(job) => {
            let mut attempts = call.app.client.attempts(id, ATTEMPTS_MAX).await?;
            attempts.retain(|row| status.is_none_or(|status| status == status_of(row.outcome)));
            attempts.truncate(limit);
            if call.content() == Content::Shown {
                add_logs(&call, id, &mut attempts).await?;
            }
            let rows = attempts.into_iter();
            rows.map(|row| attempt_view(row, &job.kind, call.content()))
                .collect()
        }
        None => {
            let schedule = form::find(&call, id).await?;
            let schedule = schedule.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
            form::history(&call, &schedule, status, limit).await?
        }
    };
    Ok(Reply::ok(Page::single(rows)))
}

/// Adds the lines that are not in the entries themselves: those of lost attempts, and those that
/// came through another node than the outcome.
async fn add_logs(call: &Call, id: JobId, attempts: &mut [Attempt]) -> Result<(), Problem> {
    let engine = windlass::admin::engine_of(&call.app.client);
    let logged = engine.attempts_with_log(id).await?;
    for row in attempts
        .iter_mut()
        .filter(|row| logged.contains(&row.attempt))
    {
        let attempt = row.attempt;
        let log = engine.attempt_log(AttemptId { job: id, attempt }, Some(row));
        let log = log.await?;
        let detail = row.detail.get_or_insert_with(|| json!({}));
        if let Some(detail) = detail.as_object_mut() {
            detail.extend(log.to_json());
        }
    }
    Ok(())
}

/// An attempt as a client reads it. Errors, log lines and HTTP responses are as secret as a
/// payload.
pub(super) fn attempt_view(row: Attempt, kind: &Kind, content: Content) -> windlass_api::Attempt {
    let shown = content == Content::Shown;
    let detail = row.detail.unwrap_or(Value::Null);
    let part = |name: &str| detail.get(name).filter(|part| !part.is_null()).cloned();
    let http = part("http").filter(|_| shown && windlass_http::is_http(kind));
    let (log, progress) = (part("log").filter(|_| shown), part("progress"));
    windlass_api::Attempt {
        attempt: row.attempt,
        retry_count: row.retry_count,
        outcome: row.outcome,
        started_at: row.started_at,
        finished_at: row.finished_at,
        worker: row.worker,
        error_withheld: row.error.is_some() && !shown,
        error: row.error.filter(|_| shown),
        http,
        log,
        progress,
        form: None,
    }
}

pub(super) async fn wait(
    call: Call,
    Params(requested): Params<WaitParams>,
) -> Result<Reply<Job>, Problem> {
    let id = call.job_id()?;
    let wait_max = call.app.settings.wait_max;
    if requested.is_some_and(|timeout| timeout > wait_max) {
        let rule = format!("must be at most {}", format_duration(wait_max));
        return Err(Invalid::new("timeout", rule).into());
    }
    let timeout = requested.unwrap_or(WAIT_DEFAULT.min(wait_max));
    let _waiting = call.app.waiting.take(&call.caller)?;
    let ended = tokio::select! {
        ended = call.app.client.wait(id, timeout) => ended,
        () = call.app.stopping.cancelled() => Err(Error::WaitTimedOut { id, after: timeout }),
    };
    call.recheck(Scope::Read).await?;
    let (status, job) = match ended {
        Ok(job) => (StatusCode::OK, Some(job)),
        Err(Error::WaitTimedOut { .. }) => (StatusCode::ACCEPTED, call.app.client.get(id).await?),
        Err(other) => return Err(other.into()),
    };
    let job = job.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
    let now = call.app.client.now();
    Ok(Reply::ok(Job::new(job, now, call.content())).status(status))
}
