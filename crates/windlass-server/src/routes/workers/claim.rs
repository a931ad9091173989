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
use windlass_api::{ClaimQueue, ClaimRequest, Content, JobView};
use windlass_core::{Invalid, Job, JobId, Kind, QueueName, Report, WorkerName, format_duration};
use windlass_store::{AttemptId, AttemptReport, Kinds};

use super::lease::{jobs_of, speaker};
use super::registry::{Signal, hear, signal_of};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;

/// A claim that waits looks at least this often: a job may become due without anybody telling.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct ClaimAnswer<'a> {
    data: Vec<JobView<'a>>,
    signal: Option<Signal>,
}

/// `POST /api/v1/claim`.
pub(super) async fn claim(call: Call) -> Result<Answer, Problem> {
    let request = ClaimRequest::from_fields(&call.map()?)?;
    let wanted = Wanted::new(&call, request).await?;
    let about = || {
        let queues: Vec<_> = wanted.queues.iter().map(|queue| &queue.name).collect();
        json!({"type": "rest", "queues": queues, "kinds": wanted.request.kinds})
    };
    hear(&call.app, wanted.request.worker.as_ref(), about).await?;
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
    let clock = Arc::clone(app.engine().clock());
    let until = clock.now().saturating_add(wanted.request.wait);
    let mut changes = app.store().changes();
    let mut waiting = None;
    let mut jobs = claimed_before(app, wanted).await?;
    loop {
        changes.mark_unchanged();
        let signal = signal_of(app, wanted.request.worker.as_ref()).await?;
        if jobs.is_empty() && signal.is_none() {
            jobs = claim_safely(app, wanted).await?;
        }
        let now = clock.now();
        let over = now >= until || app.stopping.is_cancelled();
        if !jobs.is_empty() || over || signal == Some(Signal::Stop) {
            return Ok((jobs, signal));
        }
        if waiting.is_none() {
            let permit = app.waiting.clone().try_acquire_owned();
            waiting = Some(permit.map_err(|_| Problem::busy("requests that wait"))?);
        }
        let look_at = now.saturating_add(LOOK_EVERY).min(until);
        let due_at = app.engine().next_due(now);
        let at = due_at.map_or(look_at, |due_at| due_at.min(look_at));
        tokio::select! {
            _ = changes.changed() => {}
            () = clock.sleep_until(at) => {}
            () = app.stopping.cancelled() => return Ok((jobs, signal)),
        }
    }
}

/// The jobs of a claim that is asked again by its name.
async fn claimed_before(app: &App, wanted: &Wanted) -> Result<Vec<Job>, Problem> {
    let Some(named) = &wanted.named else {
        return Ok(Vec::new());
    };
    let _turn = app.claims.turn(digest(named)).await;
    steps::take_again(app, wanted).await
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
        let claimed = steps::take(&app, &wanted).await;
        if let Err(Ok(jobs)) = tell.send(claimed)
            && wanted.named.is_none()
        {
            give_back(&app, &jobs).await;
        }
    });
    told.await.map_err(|error| Problem::internal(&error))?
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
    if let Err(error) = app.store().settle(reports, app.engine().now()).await {
        warn!(%error, jobs = jobs.len(), "jobs of a client that has gone wait for the end of their lease");
    }
}

fn attempt_of(job: &Job) -> AttemptId {
    AttemptId {
        job: job.id,
        attempt: job.attempt,
    }
}
