//! Workers go on: leases are prolonged.

use std::time::Duration;

use serde_json::json;
use windlass_api::{LeaseRef, RenewRequest};
use windlass_core::{CANCEL_GRACE, Job, JobId, Report, Timeout, WorkerName};
use windlass_store::{AttemptId, AttemptReport, Renewed, Settled};

use super::claim::check_lease;
use super::lease::{Became, Claimed, Lost, jobs_of, prolong, speaker};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;

/// The most leases of one renewal.
const LEASES_MAX: usize = 1000;

/// `POST /api/v1/renew`. An attempt that has used up its timeout is ended instead: nobody extends for ever.
pub(super) async fn renew(call: Call) -> Result<Answer, Problem> {
    let request = call.read(|parts| RenewRequest::read(&parts, LEASES_MAX))?;
    let lease = request.lease.unwrap_or(call.app.settings.lease);
    check_lease(lease, call.app.settings.lease_max)?;
    let app = &call.app;
    let worker = request.worker.as_ref();
    let about = || json!({"type": "rest"});
    app.roster.hear(app, worker, about).await?;
    let ids: Vec<JobId> = request.leases.iter().map(|of| of.id).collect();
    let jobs = jobs_of(app, &ids).await?;
    let speaker = speaker(&call, worker)?;
    let fate = |(of, job): (&LeaseRef, &Option<Job>)| fate(app, *of, job.as_ref(), &speaker);
    let fates: Vec<Fate> = request.leases.iter().zip(&jobs).map(fate).collect();
    let attempts = || jobs.iter().zip(&fates);
    let over = attempts().filter_map(|(job, fate)| match fate {
        Fate::TimedOut(timeout) => Some((job.as_ref()?, *timeout)),
        _ => None,
    });
    end_timed_out(app, over.collect()).await?;
    let live = attempts().filter(|(_, fate)| matches!(fate, Fate::Renew));
    let live = live.filter_map(|(job, _)| job.as_ref());
    let renewed = prolong(app, live, lease, app.engine().now()).await?;
    let told = request
        .leases
        .iter()
        .zip(&fates)
        .map(|(of, fate)| match fate {
            Fate::Lost(reason) => Became::lease_lost(*of, *reason),
            Fate::TimedOut(_) => Became::new(*of, "timed_out"),
            Fate::Renew => match renewed.get(&of.id) {
                Some(Renewed::Until {
                    until,
                    cancel_requested,
                }) => Became {
                    lease_until: Some(*until),
                    cancel_requested: Some(*cancel_requested),
                    ..Became::new(*of, "renewed")
                },
                Some(Renewed::LeaseLost) | None => Became::lease_lost(*of, Lost::Over),
            },
        });
    let data: Vec<Became> = told.collect();
    let signal = app.signals.get(app.engine(), worker).await?;
    Answer::ok(&json!({"data": data, "signal": signal}))
}

/// What is done about one lease.
enum Fate {
    Renew,
    TimedOut(Duration),
    Lost(Lost),
}

fn fate(app: &App, of: LeaseRef, job: Option<&Job>, worker: &WorkerName) -> Fate {
    let job = match (Claimed::by(worker, of, job), job) {
        (Claimed::Running, Some(job)) => job,
        (Claimed::Not(reason), _) => return Fate::Lost(reason),
        _ => return Fate::Lost(Lost::Over),
    };
    match job.timeout {
        Timeout::After(timeout) if app.attempts.ran(job) >= timeout => Fate::TimedOut(timeout),
        _ => Fate::Renew,
    }
}

async fn end_timed_out(app: &App, over: Vec<(&Job, Duration)>) -> Result<(), Problem> {
    if over.is_empty() {
        return Ok(());
    }
    let report = |(job, timeout): &(&Job, Duration)| AttemptReport {
        of: AttemptId {
            job: job.id,
            attempt: job.attempt,
        },
        report: Report::TimedOut {
            timeout: *timeout,
            grace: CANCEL_GRACE,
        },
        random: app.engine().ids().bits(),
        detail: None,
    };
    let now = app.engine().now();
    let reports = over.iter().map(report).collect();
    let settled = app.store().settle(reports, now).await?;
    for ((job, _), answer) in over.iter().zip(&settled) {
        if let Settled::Done(settlement) = answer {
            app.attempts.forget(job);
            app.engine().settled(job, settlement, now);
        }
    }
    Ok(())
}
