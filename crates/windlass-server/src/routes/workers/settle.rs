//! What workers tell of their attempts: how they ended.

use serde_json::{Value, json};
use tracing::warn;
use windlass::RESULT_BYTES_MAX;
use windlass_api::{LeaseRef, ReportedOutcome, read_outcomes};
use windlass_core::{
    Job, JobId, Outcome, Reported, Settlement, State, Timestamp, Verdict, WorkerName,
};
use windlass_engine::PROGRESS;
use windlass_store::{AttemptId, AttemptReport, Expected, Settled};

use super::lease::{Became, Claimed, Lost, jobs_of, speaker};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;

/// `POST /api/v1/settle`.
pub(super) async fn settle(call: Call) -> Result<Answer, Problem> {
    let (worker, outcomes) = call.read(|parts| read_outcomes(&parts, call.now))?;
    for (place, outcome) in outcomes.iter().enumerate() {
        check_result(place, outcome)?;
    }
    let app = &call.app;
    let worker = speaker(&call, worker.as_ref())?;
    let ids: Vec<JobId> = outcomes.iter().map(|outcome| outcome.of.id).collect();
    let jobs = jobs_of(app, &ids).await?;
    let told = outcomes.iter().zip(&jobs);
    let told = told.map(|(outcome, job)| told_of(&worker, outcome.of, job.as_ref()));
    let told: Vec<Result<&Job, Lost>> = told.collect();
    let mut reports = Vec::with_capacity(outcomes.len());
    for (outcome, job) in outcomes.iter().zip(&told) {
        if let Ok(job) = job {
            reports.push(report(app, outcome, job, call.now).await?);
        }
    }
    let now = app.engine().now();
    let settled = if reports.is_empty() {
        Vec::new()
    } else {
        app.store().settle(reports, now).await?
    };
    // What is told twice may be told twice in one request: then only the store knows where the job stands now.
    let later = match settled.contains(&Settled::Repeated) {
        true => jobs_of(app, &ids).await?,
        false => Vec::new(),
    };
    let mut settled = settled.iter();
    let mut data = Vec::with_capacity(outcomes.len());
    for (place, (outcome, job)) in outcomes.iter().zip(told).enumerate() {
        let answer = job.and_then(|job| Ok((job, settled.next().ok_or(Lost::Over)?)));
        data.push(match answer {
            Err(reason) => Became::lease_lost(outcome.of, reason),
            Ok((_, Settled::LeaseLost)) => Became::lease_lost(outcome.of, Lost::Over),
            Ok((job, Settled::Refused { reason })) => {
                warn!(job.id = %job.id, attempt = job.attempt, reason, "the store refused an outcome");
                Became::new(outcome.of, "refused")
            }
            Ok((job, Settled::Repeated)) => {
                let later = later.get(place).and_then(Option::as_ref);
                repeated(outcome.of, later.unwrap_or(job), now)
            }
            Ok((job, Settled::Done(settlement))) => {
                done(app, outcome, job, settlement, now).await?
            }
        });
    }
    Answer::ok(&json!({"data": data}))
}

/// The job that a worker may tell something about. What it tells of an attempt that is over changes nothing, but may have
/// been told before.
fn told_of<'a>(worker: &WorkerName, of: LeaseRef, job: Option<&'a Job>) -> Result<&'a Job, Lost> {
    match Claimed::by(worker, of, job) {
        Claimed::Not(reason) => Err(reason),
        Claimed::Running | Claimed::Over => job.ok_or(Lost::Unknown),
    }
}

fn check_result(place: usize, outcome: &ReportedOutcome) -> Result<(), Problem> {
    let Reported::Succeeded(Some(result)) = &outcome.reported else {
        return Ok(());
    };
    result.check_size(RESULT_BYTES_MAX).map_err(|error| {
        let field = format!("outcomes[{place}].result");
        Problem::too_large("result_too_large", error.within(&field).to_string())
            .hint("keep large results elsewhere, and their address in the result")
    })
}

/// What the store is asked to settle.
async fn report(
    app: &App,
    outcome: &ReportedOutcome,
    job: &Job,
    now: Timestamp,
) -> Result<AttemptReport, Problem> {
    let runs = job.lease().is_some() && job.attempt == outcome.of.attempt;
    let ran = runs.then(|| app.attempts.ran(job));
    let report = outcome.reported.report(job, ran);
    let progress = if app.claims.told_progress(job.id) {
        app.client.progress(job.id).await?
    } else {
        None
    };
    Ok(AttemptReport {
        of: AttemptId {
            job: outcome.of.id,
            attempt: outcome.of.attempt,
        },
        report,
        random: app.engine().ids().bits(),
        detail: detail(&outcome.log, progress, now),
    })
}

/// What goes into the row of history beside the outcome, as the engine's own workers leave it.
fn detail(log: &[String], progress: Option<Value>, now: Timestamp) -> Option<Value> {
    if log.is_empty() && progress.is_none() {
        return None;
    }
    let lines: Vec<Value> = log
        .iter()
        .map(|line| json!({"at": now, "line": line}))
        .collect();
    Some(json!({"log": lines, "log_lines_dropped": 0, "progress": progress}))
}

fn repeated(of: LeaseRef, job: &Job, now: Timestamp) -> Became {
    Became {
        state: Some(job.state().name(job.run_at, now)),
        ..Became::new(of, "repeated")
    }
}

async fn done(
    app: &App,
    outcome: &ReportedOutcome,
    job: &Job,
    settlement: &Settlement,
    now: Timestamp,
) -> Result<Became, Problem> {
    app.attempts.forget(job);
    app.engine().settled(job, settlement, now);
    forget_progress(app, job.id).await?;
    let run_at = match settlement.verdict {
        Verdict::Waiting { run_at } => Some(run_at),
        _ => None,
    };
    let state = settlement.verdict.state();
    let status = match (&outcome.reported, settlement.outcome) {
        (Reported::TimedOut, _) => "done",
        (_, Outcome::TimedOut) => "timed_out",
        _ => "done",
    };
    Ok(Became {
        state: Some(state.name(run_at.unwrap_or(now), now)),
        run_at,
        dead_reason: match state {
            State::Dead(reason) => Some(reason.name()),
            _ => None,
        },
        failures: Some(settlement.failures),
        ..Became::new(outcome.of, status)
    })
}

/// What an attempt told of its progress goes with it; what it told to another node, the janitor removes.
async fn forget_progress(app: &App, job: JobId) -> Result<(), Problem> {
    if app.claims.told_progress(job) {
        let name = job.to_string();
        app.store()
            .remove_document(PROGRESS, &name, Expected::Anything)
            .await?;
        app.claims.forget_progress(job);
    }
    Ok(())
}
