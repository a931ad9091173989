//! Claims jobs for a worker in any language, by the same guards that the engine's own fetcher keeps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tracing::warn;
use windlass_api::{ClaimRequest, Content, JobView, QueueOrder, QueueSettings};
use windlass_core::fairness::{Guards, Pool, Slots};
use windlass_core::{
    Invalid, Job, JobId, Kind, QueueName, Report, Timestamp, WorkerName, format_duration,
};
use windlass_engine::{JobEvent, JobRef};
use windlass_store::{AttemptId, AttemptReport, Claim, ClaimRetry, Kinds, WorkerPlace};

use super::lease::speaker;
use super::registry::{hear, signal_of};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;
use crate::queue_settings::settings_of;

/// A claim that waits looks at least this often: a job may become due without anybody telling.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct ClaimAnswer<'a> {
    data: Vec<JobView<'a>>,
    signal: Option<&'static str>,
}

/// `POST /api/v1/claim`.
pub(super) async fn claim(call: Call) -> Result<Answer, Problem> {
    let request = ClaimRequest::from_fields(&call.map()?)?;
    let wanted = Wanted::new(&call, request)?;
    let about = || {
        let queues: Vec<_> = wanted
            .request
            .queues
            .iter()
            .map(|queue| &queue.name)
            .collect();
        json!({"type": "rest", "queues": queues, "kinds": wanted.request.kinds})
    };
    hear(&call.app, wanted.request.worker.as_ref(), about).await?;
    let signal = signal_of(&call.app, wanted.request.worker.as_ref()).await?;
    let jobs = match signal {
        Some(_) => Vec::new(),
        None => wait_for_jobs(&call.app, &Arc::new(wanted)).await?,
    };
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
    worker: WorkerName,
    lease: Duration,
    /// What the name of the claim, of the worker and of its key make together: nobody else's claim is repeated by it.
    named: Option<String>,
}

impl Wanted {
    fn new(call: &Call, request: ClaimRequest) -> Result<Self, Problem> {
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
        Ok(Wanted {
            request,
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

    /// The store's name for one step of the claim.
    fn claim_id(&self, app: &App, queue: &QueueName, round: usize) -> u128 {
        match &self.named {
            None => app.engine().ids().claim_id(),
            Some(named) => digest(&format!("{named}\n{queue}\n{round}")),
        }
    }
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

/// Claims, and waits until there is something to claim, as long as the request may.
async fn wait_for_jobs(app: &App, wanted: &Arc<Wanted>) -> Result<Vec<Job>, Problem> {
    let clock = Arc::clone(app.engine().clock());
    let until = clock.now().saturating_add(wanted.request.wait);
    let mut changes = app.store().changes();
    let mut waiting = None;
    loop {
        changes.mark_unchanged();
        let jobs = claim_safely(app, wanted).await?;
        let now = clock.now();
        if !jobs.is_empty() || now >= until || app.stopping.is_cancelled() {
            return Ok(jobs);
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
            () = app.stopping.cancelled() => return Ok(Vec::new()),
        }
    }
}

/// Claims in a task of its own: where the client has gone meanwhile, the jobs are given back at once. Those of a claim with
/// a name are not: whoever asks again by that name may hold them already.
async fn claim_safely(app: &App, wanted: &Arc<Wanted>) -> Result<Vec<Job>, Problem> {
    let (tell, told) = oneshot::channel();
    let (app, wanted) = (app.clone(), Arc::clone(wanted));
    tokio::spawn(async move {
        let claimed = claim_once(&app, &wanted).await;
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

async fn claim_once(app: &App, wanted: &Wanted) -> Result<Vec<Job>, Problem> {
    let request = &wanted.request;
    let several = request.queues.len() > 1;
    let name = wanted
        .named
        .as_ref()
        .map(|named| digest(named))
        .filter(|_| several);
    if let Some(attempts) = name.and_then(|name| app.claims.repeated(name)) {
        return still_running(app, &attempts).await;
    }
    let jobs = match request.order {
        QueueOrder::Strict => claim_strict(app, wanted).await?,
        QueueOrder::Weighted => claim_weighted(app, wanted).await?,
    };
    if let Some(name) = name.filter(|_| !jobs.is_empty()) {
        app.claims
            .remember(name, jobs.iter().map(attempt_of).collect());
    }
    Ok(jobs)
}

async fn still_running(app: &App, attempts: &[AttemptId]) -> Result<Vec<Job>, Problem> {
    let ids: Vec<JobId> = attempts.iter().map(|of| of.job).collect();
    let found = app.store().get(&ids).await?;
    let alive = found.into_iter().zip(attempts).filter_map(|(job, of)| {
        job.filter(|job| job.lease().is_some() && job.attempt == of.attempt)
    });
    Ok(alive.collect())
}

/// The first queue is emptied before the second.
async fn claim_strict(app: &App, wanted: &Wanted) -> Result<Vec<Job>, Problem> {
    let mut jobs = Vec::new();
    for queue in &wanted.request.queues {
        let free = room(wanted, &jobs);
        if free == 0 {
            break;
        }
        let got = claim_from(app, wanted, &queue.name, free, 0, &jobs).await?;
        jobs.extend(got);
    }
    Ok(jobs)
}

/// Each queue gets its share; what one leaves, others get.
async fn claim_weighted(app: &App, wanted: &Wanted) -> Result<Vec<Job>, Problem> {
    let queues = &wanted.request.queues;
    let mut hungry = vec![true; queues.len()];
    let mut jobs = Vec::new();
    for round in 0.. {
        let free = room(wanted, &jobs);
        if free == 0 || !hungry.contains(&true) {
            break;
        }
        let shares = app.claims.share(free, queues, &hungry);
        for ((queue, share), hungry) in queues.iter().zip(shares).zip(&mut hungry) {
            // Where the shares add up to more than there is room for, the first in turn go first.
            let share = share.min(room(wanted, &jobs));
            if share == 0 {
                continue;
            }
            let got = claim_from(app, wanted, &queue.name, share, round, &jobs).await?;
            *hungry = got.len() >= usize::try_from(share).unwrap_or(usize::MAX);
            jobs.extend(got);
        }
    }
    Ok(jobs)
}

fn room(wanted: &Wanted, jobs: &[Job]) -> u32 {
    let taken = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    wanted.request.limit.saturating_sub(taken)
}

/// One step: some slots, one queue.
async fn claim_from(
    app: &App,
    wanted: &Wanted,
    queue: &QueueName,
    free: u32,
    round: usize,
    before: &[Job],
) -> Result<Vec<Job>, Problem> {
    let now = app.engine().now();
    let settings = fresh_settings(app, queue, now).await?;
    let request = &wanted.request;
    // How many slots a worker has in all only it can say; without that, none is kept free of retries.
    let (total, guards) = match request.slots {
        Some(total) => (total.max(free), settings.guards),
        None => (
            free,
            Guards {
                fresh_reserve: Some(0),
                ..settings.guards
            },
        ),
    };
    let retries = before.iter().filter(|job| job.failures > 0).count();
    let retries = u32::try_from(retries).unwrap_or(u32::MAX);
    let slots = Slots {
        total,
        free,
        retries_running: match request.slots {
            Some(_) => request.retries_running.saturating_add(retries),
            None => 0,
        },
    };
    let plan = guards.plan(Pool::Main, slots, app.claims.credit(queue));
    let claim = Claim {
        id: wanted.claim_id(app, queue, round),
        queue: queue.clone(),
        kinds: wanted.kinds(),
        jobs: request.ids.clone() as Option<BTreeSet<JobId>>,
        plan,
        worker: wanted.worker.clone(),
        place: WorkerPlace::Elsewhere,
        lease: wanted.lease,
        retry: ClaimRetry {
            worker: app.settings.retry.clone(),
            kinds: std::collections::BTreeMap::new(),
            queue: settings.retry.clone(),
        },
    };
    let claimed = app.store().claim(&claim, now).await?;
    let credit = guards.credit_after(app.claims.credit(queue), &plan, claimed.taken());
    app.claims.owe(queue, credit);
    for job in &claimed.jobs {
        tell_claimed(app, job, now);
    }
    Ok(claimed.jobs)
}

fn tell_claimed(app: &App, job: &Job, now: Timestamp) {
    let waited = now.since(job.run_at.max(job.created_at));
    let lane = job.lane();
    let named = JobRef::of(job);
    app.engine()
        .emit_job(now, &named, JobEvent::Claimed { waited, lane });
    app.engine().emit_job(now, &named, JobEvent::Started);
}

async fn fresh_settings(
    app: &App,
    queue: &QueueName,
    now: Timestamp,
) -> Result<Arc<QueueSettings>, Problem> {
    if let Some(settings) = app.claims.settings(queue, now) {
        return Ok(settings);
    }
    let settings = Arc::new(settings_of(app.store(), queue).await?);
    app.claims.keep_settings(queue, &settings, now);
    Ok(settings)
}
