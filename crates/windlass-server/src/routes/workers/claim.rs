//! Claims jobs for a worker in any language, and waits for some if it is asked to.

mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tracing::warn;
use windlass_api::{ClaimRequest, Content, JobView};
use windlass_core::fairness::ClaimQueue;
use windlass_core::{Invalid, Job, JobId, Kind, QueueName, Report, WorkerName, format_duration};
use windlass_store::{AttemptId, AttemptReport, Kinds, Settled};

use super::lease::{jobs_of, speaker};
use super::line::{Interest, Position};
use super::roster::HEARD_EVERY;
use super::signals::Signal;
use crate::access::{Caller, Scope};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;

#[derive(Serialize)]
struct ClaimAnswer<'a> {
    data: Vec<JobView<'a>>,
    signal: Option<Signal>,
}

/// `POST /api/v1/claim`.
pub(super) async fn claim(call: Call) -> Result<Answer, Problem> {
    let request = call.read(|parts| ClaimRequest::from_fields(&parts.values()?))?;
    let wanted = Wanted::new(&call, request).await?;
    wanted.hear(&call.app).await?;
    let (jobs, signal) = wait_for_jobs(&call.app, &Arc::new(wanted)).await?;
    let now = call.app.engine().now();
    let view = |job| JobView {
        job,
        now,
        content: Content::Shown,
    };
    Answer::ok(&ClaimAnswer {
        data: jobs.iter().map(view).collect(),
        signal,
    })
}

/// A claim, checked.
#[derive(Debug)]
struct Wanted {
    request: ClaimRequest,
    /// The queues that it names, or those of the jobs that it names.
    queues: Vec<ClaimQueue>,
    worker: WorkerName,
    caller: Caller,
    lease: Duration,
    /// What the name of the claim, of the worker and of its key make together: nobody else's claim is repeated by it.
    named: Option<String>,
}

impl Wanted {
    async fn new(call: &Call, request: ClaimRequest) -> Result<Self, Problem> {
        let settings = &call.app.settings;
        let lease = request.lease.unwrap_or(settings.lease);
        check_lease(lease, settings.lease_max)?;
        if request.wait > settings.wait_max {
            let rule = format!("must be at most {}", format_duration(settings.wait_max));
            return Err(Invalid::new("wait", rule).into());
        }
        let worker = speaker(call, request.worker.as_ref())?;
        let named = request
            .claim_id
            .as_ref()
            .map(|id| format!("{}\n{worker}\n{id}", call.caller.id));
        let queues = match (&request.queues, &request.ids) {
            (Some(queues), _) => queues.clone(),
            (None, Some(ids)) => queues_of(&call.app, ids).await?,
            (None, None) => vec![ClaimQueue::plain(QueueName::default())],
        };
        Ok(Wanted {
            request,
            queues,
            worker,
            caller: call.caller.clone(),
            lease,
            named,
        })
    }

    /// Requests are the server's own to send: they may hold secrets, and a worker that takes all it finds knows nothing of
    /// them. One that does says so.
    fn kinds(&self) -> Kinds {
        match &self.request.kinds {
            Some(kinds) => Kinds::Only(kinds.clone()),
            None => Kinds::AllBut(BTreeSet::from([Kind::http()])),
        }
    }

    /// Takes the heartbeat of the worker.
    async fn hear(&self, app: &App) -> Result<(), Problem> {
        let about = || {
            let queues: Vec<_> = self.queues.iter().map(|queue| &queue.name).collect();
            json!({"type": "rest", "queues": queues, "kinds": self.request.kinds})
        };
        let worker = self.request.worker.as_ref();
        app.roster.hear(app, worker, about).await
    }

    fn interest(&self) -> Interest {
        let request = &self.request;
        Interest {
            queues: self.queues.iter().map(|queue| queue.name.clone()).collect(),
            kinds: request.kinds.clone(),
            ids: request.ids.clone(),
            slots: request.slots,
            retries_running: request.retries_running,
        }
    }

    /// Refuses a claim whose key was revoked or has expired while it waited.
    async fn recheck(&self, app: &App) -> Result<(), Problem> {
        let now = app.engine().now();
        let checked = app.access.recheck(&self.caller, Scope::Work, now).await;
        Ok(checked?)
    }

    /// The store's name for the n-th step of the claim in a queue.
    fn claim_id(&self, app: &App, queue: &QueueName, nth: u32) -> u128 {
        match &self.named {
            None => app.engine().ids().claim_id(),
            Some(named) => digest(&format!("{named}\n{queue}\n{nth}")),
        }
    }
}

/// The queues of these jobs.
async fn queues_of(app: &App, ids: &BTreeSet<JobId>) -> Result<Vec<ClaimQueue>, Problem> {
    let ids: Vec<JobId> = ids.iter().copied().collect();
    let jobs = jobs_of(app, &ids).await?.into_iter().flatten();
    let names: BTreeSet<QueueName> = jobs.map(|job| job.queue).collect();
    Ok(names.into_iter().map(ClaimQueue::plain).collect())
}

/// Refuses a lease that is too long, or none at all.
pub(super) fn check_lease(lease: Duration, most: Duration) -> Result<(), Problem> {
    if lease.is_zero() || lease > most {
        let rule = format!(
            "must be longer than nothing and at most {}",
            format_duration(most)
        );
        return Err(Invalid::new("lease", rule).into());
    }
    Ok(())
}

fn digest(text: &str) -> u128 {
    let bytes = Sha256::digest(text.as_bytes());
    bytes
        .iter()
        .take(16)
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

/// Claims, and waits until there is something to claim, as long as the request may. A worker that is to be quiet waits too:
/// it would only ask again.
async fn wait_for_jobs(
    app: &App,
    wanted: &Arc<Wanted>,
) -> Result<(Vec<Job>, Option<Signal>), Problem> {
    let (engine, worker) = (app.engine(), wanted.request.worker.as_ref());
    let mut over = engine.clock().sleep(wanted.request.wait);
    let mut heartbeat = engine.clock().sleep(HEARD_EVERY);
    let jobs = claimed_before(app, wanted).await?;
    let (mut position, mut permit) = (None, None);
    let mut changes = app.signals.changes();
    loop {
        changes.mark_unchanged();
        let signal = app.signals.get(engine, worker).await?;
        if !jobs.is_empty() || signal == Some(Signal::Stop) {
            return Ok((jobs, signal));
        }
        if wanted.request.wait.is_zero() {
            return match signal {
                Some(_) => Ok((jobs, signal)),
                None => Ok((claim_safely(app, wanted).await?, signal)),
            };
        }
        match signal {
            Some(_) => position = None,
            None => position = position.or_else(|| Some(app.lines.join(wanted.interest()))),
        }
        if let Some(position) = position.as_ref().filter(|position| position.looks_now()) {
            let jobs = look(app, wanted, position).await?;
            if !jobs.is_empty() {
                return Ok((jobs, signal));
            }
        }
        if permit.is_none() {
            permit = Some(app.waiting.take(&wanted.caller)?);
        }
        let turn = async {
            match &position {
                Some(position) => position.turn(engine).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = &mut over => return Ok((jobs, signal)),
            () = app.stopping.cancelled() => return Ok((jobs, signal)),
            () = &mut heartbeat => {
                // Who waits here is alive.
                heartbeat = engine.clock().sleep(HEARD_EVERY);
                wanted.hear(app).await?;
            }
            () = app.signals.changed(engine, &mut changes) => {}
            () = turn => {}
        }
    }
}

/// Claims on behalf of a line, and tells it what came of it.
async fn look(app: &App, wanted: &Arc<Wanted>, position: &Position) -> Result<Vec<Job>, Problem> {
    let look = position.begin(app.engine());
    let jobs = claim_safely(app, wanted).await?;
    if jobs.is_empty() {
        let rate_step = steps::rate_step(app, wanted);
        position.found_nothing(look, rate_step, app.engine().ids().bits());
    } else {
        position.found();
    }
    Ok(jobs)
}

/// The jobs of a claim that is asked again by its name.
async fn claimed_before(app: &App, wanted: &Wanted) -> Result<Vec<Job>, Problem> {
    let Some(named) = &wanted.named else {
        return Ok(Vec::new());
    };
    let _turn = app.claims.turn(digest(named)).await;
    let jobs = steps::take_again(app, wanted).await?;
    wanted.recheck(app).await?;
    Ok(jobs)
}

/// Claims in a task of its own: where the client has gone meanwhile, the jobs are given back at once. Those of a claim with
/// a name are not: whoever asks again by that name may hold them already.
async fn claim_safely(app: &App, wanted: &Arc<Wanted>) -> Result<Vec<Job>, Problem> {
    let (tell, told) = oneshot::channel();
    let (app, wanted) = (app.clone(), Arc::clone(wanted));
    tokio::spawn(async move {
        let turn = wanted.named.as_deref().map(digest);
        let _turn = match turn {
            Some(name) => Some(app.claims.turn(name).await),
            None => None,
        };
        let claimed = claim_for_key(&app, &wanted).await;
        if let Err(Ok(jobs)) = tell.send(claimed)
            && wanted.named.is_none()
        {
            give_back(&app, &jobs).await;
        }
    });
    told.await.map_err(|error| Problem::internal(&error))?
}

/// Claims for a key that is good now. If it is revoked or expires meanwhile, the jobs of this claim are given back.
async fn claim_for_key(app: &App, wanted: &Wanted) -> Result<Vec<Job>, Problem> {
    wanted.recheck(app).await?;
    let begun_at = app.engine().now();
    let jobs = steps::take(app, wanted).await?;
    if let Err(problem) = wanted.recheck(app).await {
        // An earlier request by the same name may have handed out what was claimed before this one began.
        let is_new = |job: &Job| job.started_at.is_some_and(|at| at >= begun_at);
        let new: Vec<Job> = jobs.into_iter().filter(is_new).collect();
        give_back(app, &new).await;
        return Err(problem);
    }
    Ok(jobs)
}

async fn give_back(app: &App, jobs: &[Job]) {
    let report = |job: &Job| AttemptReport {
        of: attempt_of(job),
        report: Report::Released { started: false },
        random: app.engine().ids().bits(),
        detail: None,
    };
    let reports: Vec<AttemptReport> = jobs.iter().map(report).collect();
    if reports.is_empty() {
        return;
    }
    let now = app.engine().now();
    let settled = app.store().settle(reports, now).await;
    let settled = settled.unwrap_or_else(|error| {
        warn!(%error, jobs = jobs.len(), "giving back claimed jobs failed; their leases expire");
        Vec::new()
    });
    for (job, answer) in jobs.iter().zip(&settled) {
        if let Settled::Done(settlement) = answer {
            app.engine().settled(job, settlement, now);
        }
    }
}

#[cfg(test)]
mod tests;

fn attempt_of(job: &Job) -> AttemptId {
    AttemptId {
        job: job.id,
        attempt: job.attempt,
    }
}
