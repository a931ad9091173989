//! What workers in any language report of their attempts: how they ended, that they go on, and how
//! far they are.

use serde::Serialize;
use serde_json::json;
use windlass::RESULT_BYTES_MAX;
use windlass_api::{LeaseRef, RenewRequest, ReportedOutcome, read_outcomes, read_progress};
use windlass_core::{JobId, Outcome, Reported, Settlement, State, Timestamp, Verdict};
use windlass_engine::remote::{Lost, RemoteOutcome, RemoteRenewed, RemoteSettled};
use windlass_store::AttemptId;

use super::{signal_name, worker_of};
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

/// The most leases of one renewal.
const LEASES_MAX: usize = 1000;

/// What happened to one outcome or one lease.
#[derive(Debug, Serialize)]
struct Became {
    id: JobId,
    attempt: u32,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
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
            reason: None,
            state: None,
            run_at: None,
            dead_reason: None,
            failures: None,
            lease_until: None,
            cancel_requested: None,
        }
    }

    fn lease_lost(of: LeaseRef, reason: Lost) -> Self {
        Became {
            reason: Some(reason.name()),
            ..Became::new(of, "lease_lost")
        }
    }

    fn settled(outcome: &ReportedOutcome, settled: &RemoteSettled, now: Timestamp) -> Self {
        match settled {
            RemoteSettled::LeaseLost(reason) => Became::lease_lost(outcome.of, *reason),
            RemoteSettled::Repeated { state, run_at } => Became {
                state: Some(state.name(*run_at, now)),
                ..Became::new(outcome.of, "repeated")
            },
            RemoteSettled::Refused => Became::new(outcome.of, "refused"),
            RemoteSettled::Done(settlement) => Became::done(outcome, settlement, now),
        }
    }

    fn done(outcome: &ReportedOutcome, settlement: &Settlement, now: Timestamp) -> Self {
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
        Became {
            state: Some(state.name(run_at.unwrap_or(now), now)),
            run_at,
            dead_reason: match state {
                State::Dead(reason) => Some(reason.name()),
                _ => None,
            },
            failures: Some(settlement.failures),
            ..Became::new(outcome.of, status)
        }
    }

    fn renewed(of: LeaseRef, renewed: RemoteRenewed) -> Self {
        match renewed {
            RemoteRenewed::LeaseLost(reason) => Became::lease_lost(of, reason),
            RemoteRenewed::TimedOut => Became::new(of, "timed_out"),
            RemoteRenewed::Until {
                until,
                cancel_requested,
            } => Became {
                lease_until: Some(until),
                cancel_requested: Some(cancel_requested),
                ..Became::new(of, "renewed")
            },
        }
    }
}

fn attempt_id(of: LeaseRef) -> AttemptId {
    AttemptId {
        job: of.id,
        attempt: of.attempt,
    }
}

/// `POST /api/v1/settle`.
pub(super) async fn settle(call: Call) -> Result<Answer, Problem> {
    let (worker, outcomes) = call.read(|parts| read_outcomes(&parts, call.now))?;
    for (index, outcome) in outcomes.iter().enumerate() {
        check_result(index, outcome)?;
    }
    let worker = worker_of(&call, worker)?;
    let reports = outcomes.iter().map(|outcome| RemoteOutcome {
        of: attempt_id(outcome.of),
        reported: outcome.reported.clone(),
        log: outcome.log.clone(),
    });
    let reports: Vec<RemoteOutcome> = reports.collect();
    let settled = call.app.remote.settle(&worker, &reports).await?;
    let now = call.app.engine().now();
    let answers = outcomes.iter().zip(&settled);
    let data = answers.map(|(outcome, settled)| Became::settled(outcome, settled, now));
    Answer::ok(&json!({"data": data.collect::<Vec<_>>()}))
}

fn check_result(index: usize, outcome: &ReportedOutcome) -> Result<(), Problem> {
    let Reported::Succeeded(Some(result)) = &outcome.reported else {
        return Ok(());
    };
    result.check_size(RESULT_BYTES_MAX).map_err(|error| {
        let field = format!("outcomes[{index}].result");
        Problem::too_large("result_too_large", error.within(&field).to_string())
            .hint("keep large results elsewhere, and their address in the result")
    })
}

/// `POST /api/v1/renew`.
pub(super) async fn renew(call: Call) -> Result<Answer, Problem> {
    let request = call.read(|parts| RenewRequest::read(&parts, LEASES_MAX))?;
    let worker = worker_of(&call, request.worker)?;
    let leases: Vec<AttemptId> = request.leases.iter().map(|of| attempt_id(*of)).collect();
    let remote = &call.app.remote;
    let renewal = remote.renew(&worker, &leases, request.lease).await?;
    let answers = request.leases.iter().zip(&renewal.leases);
    let data = answers.map(|(of, renewed)| Became::renewed(*of, *renewed));
    let signal = signal_name(renewal.signal);
    Answer::ok(&json!({"data": data.collect::<Vec<_>>(), "signal": signal}))
}

/// `POST /api/v1/progress`.
pub(super) async fn progress(call: Call) -> Result<Answer, Problem> {
    let (of, worker, value) = call.read(|parts| read_progress(&parts))?;
    let worker = worker_of(&call, worker)?;
    let remote = &call.app.remote;
    remote.progress(&worker, attempt_id(of), &value).await?;
    Ok(Answer::empty())
}
