//! Looks at one job.

use std::time::Duration;

use axum::http::StatusCode;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use windlass::Error;
use windlass_api::{AttemptView, Content, JobView, ListPage};
use windlass_core::{Invalid, Kind, format_duration};
use windlass_http::form::status_of;
use windlass_store::Attempt;

use super::form;
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const HISTORY_DEFAULT: usize = 10;
const HISTORY_MAX: usize = 1000;
/// A job has no more attempts than that, but for snoozes and releases.
pub(super) const ATTEMPTS_MAX: usize = 2001;
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// A job with what its running attempt told of its progress.
struct Watched<'a> {
    view: JobView<'a>,
    progress: Option<Value>,
}

impl Serialize for Watched<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.view.fields(&mut map)?;
        if let Some(progress) = &self.progress {
            map.serialize_entry("progress", progress)?;
        }
        map.end()
    }
}

/// `GET /api/v1/jobs/{id}`.
pub(super) async fn get(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    let Some(job) = call.app.client.get(id).await? else {
        return match form::find(&call, id).await? {
            Some(schedule) => form::get(&call, &schedule).await,
            None => Err(Problem::not_found(format!("job {id}"))),
        };
    };
    let progress = match job.lease() {
        Some(_) => call.app.client.progress(id).await?,
        None => None,
    };
    let view = JobView {
        job: &job,
        now: call.now,
        content: call.content(),
    };
    Answer::ok(&Watched { view, progress })
}

/// `GET /api/v1/jobs/{id}/history`.
pub(super) async fn history(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    let limit = call.limit(HISTORY_DEFAULT, HISTORY_MAX)?;
    let Some(job) = call.app.client.get(id).await? else {
        return match form::find(&call, id).await? {
            Some(schedule) => form::history(&call, &schedule, limit).await,
            None => Err(Problem::not_found(format!("job {id}"))),
        };
    };
    let wanted = form::wanted_status(&call)?;
    let attempts = call.app.client.attempts(id, ATTEMPTS_MAX).await?;
    let attempts = attempts
        .into_iter()
        .filter(|row| wanted.is_none_or(|wanted| wanted == status_of(row.outcome)))
        .take(limit);
    let rows = attempts.map(|row| attempt_view(row, &job.kind, call.content()));
    Answer::ok(&ListPage::whole(rows.collect()))
}

/// An attempt as it is answered. Errors, log lines and what an HTTP job was answered are as secret as a payload.
pub(super) fn attempt_view(row: Attempt, kind: &Kind, content: Content) -> AttemptView {
    let shown = content == Content::Shown;
    let detail = row.detail.unwrap_or(Value::Null);
    let part = |name: &str| detail.get(name).filter(|part| !part.is_null()).cloned();
    let http = part("http").filter(|_| shown && kind.is_http());
    let (log, progress) = (part("log").filter(|_| shown), part("progress"));
    AttemptView {
        attempt: row.attempt,
        retry_count: row.retry_count,
        outcome: row.outcome.name(),
        started_at: row.started_at,
        finished_at: row.finished_at,
        worker: row.worker,
        error_withheld: row.error.is_some() && !shown,
        error: row.error.filter(|_| shown),
        http,
        log,
        progress,
    }
}

/// `GET /api/v1/jobs/{id}/wait`.
pub(super) async fn wait(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    let asked = call.query().duration("timeout")?;
    let most = call.app.settings.wait_max;
    if asked.is_some_and(|asked| asked > most) {
        let rule = format!("must be at most {}", format_duration(most));
        return Err(Invalid::new("timeout", rule).into());
    }
    let timeout = asked.unwrap_or(WAIT_DEFAULT.min(most));
    let _waiting = call.app.waiting.take(&call.caller)?;
    let ended = tokio::select! {
        ended = call.app.client.wait(id, timeout) => ended,
        () = call.app.stopping.cancelled() => Err(Error::NotOver { id, after: timeout }),
    };
    call.recheck(Scope::Read).await?;
    let (status, job) = match ended {
        Ok(job) => (StatusCode::OK, Some(job)),
        Err(Error::NotOver { .. }) => (StatusCode::ACCEPTED, call.app.client.get(id).await?),
        Err(other) => return Err(other.into()),
    };
    let job = job.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
    let now = call.app.engine().now();
    let view = JobView {
        job: &job,
        now,
        content: call.content(),
    };
    Answer::json(status, &view)
}
