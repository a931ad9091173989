//! What workers tell of their attempts: how they ended, that they go on, how far they are.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use windlass::RESULT_BYTES_MAX;
use windlass_api::{LeaseRef, RenewRequest, Told, ToldOutcome, read_outcomes, read_progress};
use windlass_core::{Invalid, Job, JobId, Report, State, Timeout, Timestamp, Verdict, WorkerName};
use windlass_engine::PROGRESS;
use windlass_store::{AttemptId, AttemptReport, Expected, Renewed, Settled, Written};

use super::claim::check_lease;
use super::registry::{hear, signal_of};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;

/// The most leases of one renewal.
const LEASES_MAX: usize = 1000;
/// What is told of progress is at most so large.
const PROGRESS_BYTES_MAX: usize = 16 * 1024;
/// A job tells of its progress no more often than this.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What became of one outcome or one lease.
#[derive(Debug, Serialize)]
struct Became {
    id: JobId,
    attempt: u32,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_requested: Option<bool>,
}

impl Became {
    fn new(of: LeaseRef, status: &'static str) -> Self {
        Became {
            id: of.id,
            attempt: of.attempt,
            status,
            state: None,
            run_at: None,
            dead_reason: None,
            failures: None,
            lease_until: None,
            cancel_requested: None,
        }
    }

    fn lease_lost(of: LeaseRef) -> Self {
        Became::new(of, "lease_lost")
    }
}

/// `POST /api/v1/settle`.
pub(super) async fn settle(call: Call) -> Result<Answer, Problem> {
    let (worker, outcomes) = read_outcomes(&call.parts()?, call.now)?;
    for (place, outcome) in outcomes.iter().enumerate() {
        check_result(place, outcome)?;
    }
    let app = &call.app;
    let ids: Vec<JobId> = outcomes.iter().map(|outcome| outcome.of.id).collect();
    let jobs = app.store().get(&ids).await?;
    let mut reports = Vec::with_capacity(outcomes.len());
    for (outcome, job) in outcomes.iter().zip(&jobs) {
        if let Some(job) = job.as_ref().filter(|job| is_of(job, worker.as_ref())) {
            reports.push(report(app, outcome, job, call.now).await?);
        }
    }
    let now = app.engine().now();
    let settled = if reports.is_empty() {
        Vec::new()
    } else {
        app.store().settle(reports, now).await?
    };
    let mut settled = settled.iter();
    let mut data = Vec::with_capacity(outcomes.len());
    for (outcome, job) in outcomes.iter().zip(&jobs) {
        let ours = job.as_ref().filter(|job| is_of(job, worker.as_ref()));
        data.push(match ours.and_then(|job| Some((job, settled.next()?))) {
            Some((job, answer)) => became(app, outcome.of, job, answer, now).await?,
            None => Became::lease_lost(outcome.of),
        });
    }
    Answer::ok(&json!({"data": data}))
}

/// Whether a job is the worker's own to tell about; one that does not say who it is, is believed.
fn is_of(job: &Job, worker: Option<&WorkerName>) -> bool {
    worker.is_none_or(|worker| job.worker.as_ref() == Some(worker))
}

fn check_result(place: usize, outcome: &ToldOutcome) -> Result<(), Problem> {
    let Told::Succeeded(Some(result)) = &outcome.told else {
        return Ok(());
    };
    result.check_size(RESULT_BYTES_MAX).map_err(|error| {
        let field = format!("outcomes[{place}].result");
        Problem::too_large("result_too_large", error.within(&field).to_string())
            .hint("keep large results elsewhere, and their address in the result")
    })
}

/// What the store is told. The timeout of an attempt is the job's, whatever its worker believes.
async fn report(
    app: &App,
    outcome: &ToldOutcome,
    job: &Job,
    now: Timestamp,
) -> Result<AttemptReport, Problem> {
    let report = match &outcome.told {
        Told::Succeeded(result) => Report::Succeeded(result.clone()),
        Told::Failed(failure) => Report::Failed(failure.clone()),
        Told::TimedOut => Report::TimedOut {
            timeout: ran(job, now),
        },
        Told::Snoozed(until) => Report::Snoozed { until: *until },
        Told::Released { started } => Report::Released { started: *started },
        Told::Cancelled => Report::Cancelled,
    };
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

fn ran(job: &Job, now: Timestamp) -> Duration {
    match job.timeout {
        Timeout::After(timeout) => timeout,
        Timeout::None => now.since(job.started_at.unwrap_or(now)),
    }
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

async fn became(
    app: &App,
    of: LeaseRef,
    job: &Job,
    answer: &Settled,
    now: Timestamp,
) -> Result<Became, Problem> {
    let settlement = match answer {
        Settled::LeaseLost => return Ok(Became::lease_lost(of)),
        Settled::Repeated => {
            return Ok(Became {
                state: Some(job.state().name(job.run_at, now)),
                ..Became::new(of, "repeated")
            });
        }
        Settled::Done(settlement) => settlement,
    };
    app.engine().settled(job, settlement, now);
    forget_progress(app, job.id).await?;
    let run_at = match settlement.verdict {
        Verdict::Waiting { run_at } => Some(run_at),
        _ => None,
    };
    let state = settlement.verdict.state();
    Ok(Became {
        state: Some(state.name(run_at.unwrap_or(now), now)),
        run_at,
        dead_reason: match state {
            State::Dead(reason) => Some(reason.name()),
            _ => None,
        },
        failures: Some(settlement.failures),
        ..Became::new(of, "done")
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

/// `POST /api/v1/renew`. An attempt that has used up its timeout is ended instead: nobody extends for ever.
pub(super) async fn renew(call: Call) -> Result<Answer, Problem> {
    let request = RenewRequest::read(&call.parts()?, LEASES_MAX)?;
    let lease = request.lease.unwrap_or(call.app.settings.lease);
    check_lease(lease, call.app.settings.lease_max)?;
    let app = &call.app;
    let worker = request.worker.as_ref();
    hear(app, worker, || json!({"type": "rest"})).await?;
    let ids: Vec<JobId> = request.leases.iter().map(|of| of.id).collect();
    let jobs = app.store().get(&ids).await?;
    let fate = |(of, job): (&LeaseRef, &Option<Job>)| fate(*of, job.as_ref(), worker, call.now);
    let fates: Vec<Fate> = request.leases.iter().zip(&jobs).map(fate).collect();
    let (mut live, mut over) = (Vec::new(), Vec::new());
    for (of, fate) in request.leases.iter().zip(&fates) {
        let of = AttemptId {
            job: of.id,
            attempt: of.attempt,
        };
        match fate {
            Fate::Renew => live.push(of),
            Fate::TimedOut(timeout) => over.push((of, *timeout)),
            Fate::Lost => {}
        }
    }
    end_timed_out(app, &over, &jobs).await?;
    let now = app.engine().now();
    let renewed = if live.is_empty() {
        Vec::new()
    } else {
        app.store().renew(&live, lease, now).await?
    };
    let mut renewed = renewed.into_iter();
    let told = request
        .leases
        .iter()
        .zip(&fates)
        .map(|(of, fate)| match fate {
            Fate::Lost => Became::lease_lost(*of),
            Fate::TimedOut(_) => Became::new(*of, "timed_out"),
            Fate::Renew => match renewed.next() {
                Some(Renewed::Until {
                    until,
                    cancel_requested,
                }) => Became {
                    lease_until: Some(until),
                    cancel_requested: Some(cancel_requested),
                    ..Became::new(*of, "renewed")
                },
                Some(Renewed::LeaseLost) | None => Became::lease_lost(*of),
            },
        });
    let data: Vec<Became> = told.collect();
    let signal = signal_of(app, worker).await?;
    Answer::ok(&json!({"data": data, "signal": signal}))
}

/// What is done about one lease.
enum Fate {
    Renew,
    TimedOut(Duration),
    Lost,
}

fn fate(of: LeaseRef, job: Option<&Job>, worker: Option<&WorkerName>, now: Timestamp) -> Fate {
    let ours =
        |job: &&Job| job.lease().is_some() && job.attempt == of.attempt && is_of(job, worker);
    let Some(job) = job.filter(ours) else {
        return Fate::Lost;
    };
    match job.timeout {
        Timeout::After(timeout) if now.since(job.started_at.unwrap_or(now)) >= timeout => {
            Fate::TimedOut(timeout)
        }
        _ => Fate::Renew,
    }
}

async fn end_timed_out(
    app: &App,
    over: &[(AttemptId, Duration)],
    jobs: &[Option<Job>],
) -> Result<(), Problem> {
    if over.is_empty() {
        return Ok(());
    }
    let report = |(of, timeout): &(AttemptId, Duration)| AttemptReport {
        of: *of,
        report: Report::TimedOut { timeout: *timeout },
        random: app.engine().ids().bits(),
        detail: None,
    };
    let now = app.engine().now();
    let settled = app
        .store()
        .settle(over.iter().map(report).collect(), now)
        .await?;
    for ((of, _), answer) in over.iter().zip(&settled) {
        let job = jobs.iter().flatten().find(|job| job.id == of.job);
        if let (Some(job), Settled::Done(settlement)) = (job, answer) {
            app.engine().settled(job, settlement, now);
        }
    }
    Ok(())
}

/// `POST /api/v1/progress`.
pub(super) async fn progress(call: Call) -> Result<Answer, Problem> {
    let (of, worker, value) = read_progress(&call.parts()?)?;
    let app = &call.app;
    let size = value.to_string().len();
    if size > PROGRESS_BYTES_MAX {
        let detail = format!("`progress` must be at most {PROGRESS_BYTES_MAX} bytes, got {size}");
        return Err(Problem::too_large("progress_too_large", detail));
    }
    let lost = || {
        let detail = "the attempt is over, or somebody else's";
        Problem::conflict("lease_lost", detail).hint("stop: nothing it does is counted any more")
    };
    let job = app.client.get(of.id).await?;
    let ours = |job: &Job| job.lease().is_some() && job.attempt == of.attempt;
    let job = job
        .filter(|job| ours(job) && is_of(job, worker.as_ref()))
        .ok_or_else(lost)?;
    if !app.claims.may_tell(job.id, PROGRESS_EVERY, call.now) {
        let status = axum::http::StatusCode::TOO_MANY_REQUESTS;
        let detail = "a job tells of its progress at most ten times a second";
        return Err(
            Problem::new(status, "too_many_requests", detail).retry_after(Duration::from_secs(1))
        );
    }
    let name = job.id.to_string();
    let told = json!({"attempt": job.attempt, "progress": value});
    for _ in 0..10 {
        let before = app.store().document(PROGRESS, &name).await?;
        let newest = before
            .as_ref()
            .and_then(|one| one.value.get("attempt")?.as_u64());
        if newest.is_some_and(|attempt| attempt > u64::from(job.attempt)) {
            return Err(lost());
        }
        let expected = before.map_or(Expected::Absent, |one| Expected::Version(one.version));
        let written = app
            .store()
            .put_document(PROGRESS, &name, &told, expected, call.now);
        if let Written::Version(_) = written.await? {
            return Ok(Answer::empty());
        }
    }
    Err(Invalid::new("progress", "is told by others at the same time: try again").into())
}
