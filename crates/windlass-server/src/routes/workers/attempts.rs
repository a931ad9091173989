//! Reports of remote workers about attempts: settle, renew and progress.

use windlass::admin::RESULT_BYTES_MAX;
use windlass_api::{
    JobState, LeaseRef, LostReason, Outcomes, Progress, RenewAnswer, RenewStatus, Renewal, Renewed,
    ReportedOutcome, SettleAnswer, SettleStatus, Settled,
};
use windlass_core::{Outcome, Settlement, State, Timestamp, Verdict, WorkerReport};
use windlass_engine::remote::{
    Lost, RemoteOutcome, RemoteProgress, RemoteRenewed, RemoteSettled, ReportedLines,
};
use windlass_store::AttemptId;

use super::{signal_word, worker_of};
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::problem::Problem;

pub(super) async fn settle(
    call: Call,
    JsonBody((worker, outcomes)): JsonBody<Outcomes>,
) -> Result<Reply<SettleAnswer>, Problem> {
    for (index, outcome) in outcomes.iter().enumerate() {
        check_result(index, outcome)?;
    }
    let worker = worker_of(&call, worker)?;
    let leases: Vec<LeaseRef> = outcomes.iter().map(|outcome| outcome.lease).collect();
    let reports = outcomes.into_iter().map(|outcome| RemoteOutcome {
        attempt_id: attempt_id(outcome.lease),
        reported: outcome.reported,
        log: outcome.log,
    });
    let reports: Vec<RemoteOutcome> = reports.collect();
    let settled = call.app.remote.settle(&worker, &reports).await?;
    let now = call.app.client.now();
    let answers = leases.into_iter().zip(&reports).zip(&settled);
    let data = answers.map(|((lease, report), settled)| match settled {
        RemoteSettled::LeaseLost(reason) => Settled {
            reason: Some(lost_reason(*reason)),
            ..plain(lease, SettleStatus::LeaseLost)
        },
        RemoteSettled::Repeated { state, run_at } => Settled {
            state: Some(JobState::new(*state, *run_at, now)),
            ..plain(lease, SettleStatus::Repeated)
        },
        RemoteSettled::Refused => plain(lease, SettleStatus::Refused),
        RemoteSettled::Done(settlement) => done(lease, &report.reported, settlement, now),
    });
    let data = data.collect();
    Ok(Reply::ok(SettleAnswer { data }))
}

fn check_result(index: usize, outcome: &ReportedOutcome) -> Result<(), Problem> {
    let WorkerReport::Succeeded(Some(result)) = &outcome.reported else {
        return Ok(());
    };
    result.check_size(RESULT_BYTES_MAX).map_err(|error| {
        let field = format!("outcomes[{index}].result");
        Problem::too_large("result_too_large", error.within(&field).to_string())
            .hint("store large results elsewhere and put their address into the result")
    })
}

fn plain(lease: LeaseRef, status: SettleStatus) -> Settled {
    Settled {
        id: lease.id,
        attempt: lease.attempt,
        status,
        reason: None,
        state: None,
        run_at: None,
        dead_reason: None,
        failures: None,
    }
}

fn done(
    lease: LeaseRef,
    reported: &WorkerReport,
    settlement: &Settlement,
    now: Timestamp,
) -> Settled {
    let run_at = match settlement.verdict {
        Verdict::Waiting { run_at } => Some(run_at),
        _ => None,
    };
    let status = match (reported, settlement.outcome) {
        (WorkerReport::TimedOut, _) => SettleStatus::Done,
        (_, Outcome::TimedOut) => SettleStatus::TimedOut,
        _ => SettleStatus::Done,
    };
    let state = settlement.verdict.state();
    Settled {
        state: Some(JobState::new(state, run_at.unwrap_or(now), now)),
        run_at,
        dead_reason: match state {
            State::Dead(reason) => Some(reason),
            _ => None,
        },
        failures: Some(settlement.failures),
        ..plain(lease, status)
    }
}

pub(super) async fn renew(
    call: Call,
    JsonBody(request): JsonBody<Renewal>,
) -> Result<Reply<RenewAnswer>, Problem> {
    let worker = worker_of(&call, request.worker)?;
    let leases = request.leases.iter().map(|lease| attempt_id(*lease));
    let leases: Vec<AttemptId> = leases.collect();
    let remote = &call.app.remote;
    let renewal = remote.renew(&worker, &leases, request.lease).await?;
    let answers = request.leases.iter().zip(&renewal.leases);
    Ok(Reply::ok(RenewAnswer {
        data: answers.map(|(lease, to)| renewed(*lease, *to)).collect(),
        signal: renewal.signal.map(signal_word),
    }))
}

fn renewed(lease: LeaseRef, renewed: RemoteRenewed) -> Renewed {
    let (status, reason) = match renewed {
        RemoteRenewed::LeaseLost(reason) => (RenewStatus::LeaseLost, Some(lost_reason(reason))),
        RemoteRenewed::TimedOut => (RenewStatus::TimedOut, None),
        RemoteRenewed::Until { .. } => (RenewStatus::Renewed, None),
    };
    let (lease_until, cancel_requested) = match renewed {
        RemoteRenewed::Until {
            until,
            cancel_requested,
        } => (Some(until), Some(cancel_requested)),
        _ => (None, None),
    };
    Renewed {
        id: lease.id,
        attempt: lease.attempt,
        status,
        reason,
        lease_until,
        cancel_requested,
    }
}

pub(super) async fn progress(
    call: Call,
    JsonBody(request): JsonBody<Progress>,
) -> Result<Reply<()>, Problem> {
    let worker = worker_of(&call, request.worker)?;
    let remote = &call.app.remote;
    let attempt = attempt_id(request.lease);
    let report = RemoteProgress {
        progress: request.progress,
        lines: ReportedLines {
            lines: request.lines,
            first: request.first_line,
        },
    };
    remote.progress(&worker, attempt, &report).await?;
    Ok(Reply::empty())
}

fn attempt_id(lease: LeaseRef) -> AttemptId {
    AttemptId {
        job: lease.id,
        attempt: lease.attempt,
    }
}

fn lost_reason(lost: Lost) -> LostReason {
    match lost {
        Lost::Unknown => LostReason::Unknown,
        Lost::Over => LostReason::Over,
        Lost::OtherWorker => LostReason::OtherWorker,
    }
}
