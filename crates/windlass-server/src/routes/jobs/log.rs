//! The log of an attempt, also while it runs.

use std::time::Duration;

use tokio::time::Instant;
use windlass::JobLog;
use windlass_api::{CheckedLogParams, JobState, LogLine, LogParams};
use windlass_core::{AttemptLog, Invalid, format_duration};

use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

/// How often a request that waits looks for new lines. Other nodes may write them, so there is no
/// event to wait for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn log(
    call: Call,
    Params(params): Params<LogParams>,
) -> Result<Reply<windlass_api::JobLog>, Problem> {
    let wait_max = call.app.settings.wait_max;
    if params.wait > wait_max {
        let rule = format!("must be at most {}", format_duration(wait_max));
        return Err(Invalid::new("wait", rule).into());
    }
    let mut found = read(&call, &params).await?;
    if !params.wait.is_zero() && !is_answer(&found, &params) {
        let _waiting = call.app.waiting.take(&call.caller)?;
        let until = Instant::now() + params.wait;
        while !is_answer(&found, &params) && Instant::now() < until {
            tokio::select! {
                () = tokio::time::sleep_until(until.min(Instant::now() + LOOK_EVERY)) => {}
                () = call.app.stopping.cancelled() => break,
            }
            found = read(&call, &params).await?;
        }
        call.recheck(Scope::ReadPayload).await?;
    }
    Ok(Reply::ok(view(&found, &params, &call)))
}

async fn read(call: &Call, params: &CheckedLogParams) -> Result<JobLog, Problem> {
    let id = call.job_id()?;
    let found = call.app.client.log(id, params.attempt).await?;
    found.ok_or_else(|| Problem::not_found(format!("job {id}")))
}

/// Whether there are new lines, or none can come.
fn is_answer(found: &JobLog, params: &CheckedLogParams) -> bool {
    let is_over = found.outcome.is_some() || found.job.finished_at().is_some();
    is_over || found.log.last_number() > params.after
}

fn view(found: &JobLog, params: &CheckedLogParams, call: &Call) -> windlass_api::JobLog {
    let (log, job): (&AttemptLog, _) = (&found.log, &found.job);
    let lines = log.after(params.after).take(params.limit);
    let data: Vec<LogLine> = lines
        .map(|(number, line)| LogLine {
            number,
            at: line.at,
            line: line.line.clone(),
        })
        .collect();
    let last = data.last().map(|line| line.number);
    windlass_api::JobLog {
        job_id: job.id,
        attempt: found.attempt,
        next_after: last.unwrap_or(params.after),
        data,
        dropped: log.dropped(),
        outcome: found.outcome,
        latest_attempt: job.attempt,
        state: JobState::new(job.state(), job.run_at, call.app.client.now()),
    }
}
