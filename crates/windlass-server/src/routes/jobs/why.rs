//! Why a job is not running: the facts are gathered here, `core` says what they mean.

mod finished;

use windlass_api::{JobState, Why, WhyReason};
use windlass_core::{Job, JobId, Reason, State, Surroundings, Timestamp, why_not_running};
use windlass_engine::{WorkerAbout, is_alive, lingering_of};
use windlass_store::{Filter, ListedState, Node, PAGE_MAX};

use crate::app::App;
use crate::call::Call;
use crate::endpoint::Reply;
use crate::problem::Problem;
use crate::search::Walk;

/// So many jobs that run, or come before it, are looked at.
const LOOKED_AT_MAX: usize = 10_000;
/// So often the store is asked for more of them: it may find none where it has many others.
const STEPS_MAX: usize = 200;

pub(super) async fn why(call: Call) -> Result<Reply<Why>, Problem> {
    let id = call.job_id()?;
    let job = call.app.client.get(id).await?;
    let job = job.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
    let around = if job.state() == State::Waiting {
        surroundings(&call.app, &job, call.now).await?
    } else {
        Surroundings::default()
    };
    let reasons = why_not_running(&job, &around, call.now);
    let (death, revive) = match job.state() {
        State::Dead(_) | State::Cancelled => finished::look(&call, &job).await?,
        _ => (None, None),
    };
    let view = |reason: &Reason| WhyReason {
        code: code_of(reason).to_owned(),
        text: reason.to_string(),
    };
    Ok(Reply::ok(Why {
        id,
        state: JobState::new(job.state(), job.run_at, call.now),
        reasons: reasons.iter().map(view).collect(),
        death,
        revive,
    }))
}

fn code_of(reason: &Reason) -> &'static str {
    match reason {
        Reason::NotWaiting { .. } => "not_waiting",
        Reason::Dead { .. } => "dead",
        Reason::Expired { .. } => "expired",
        Reason::NotDue { .. } => "not_due",
        Reason::QueuePaused { .. } => "queue_paused",
        Reason::NoWorker { .. } => "no_worker",
        Reason::LimitHeld { .. } => "limit_held",
        Reason::RetriesHeld { .. } => "retries_held",
        Reason::RateHeld { .. } => "rate_held",
        Reason::OldHandler { .. } => "old_handler",
        Reason::Behind { .. } => "behind",
        Reason::Next => "next",
    }
}

async fn surroundings(app: &App, job: &Job, now: Timestamp) -> Result<Surroundings, Problem> {
    let store = app.store();
    let limits = store.queues().await?.remove(&job.queue).unwrap_or_default();
    let counts = store.counts(now).await?.remove(&job.queue);
    let nodes = store.nodes().await?;
    let reserved = [windlass_http::http_kind()].into();
    let serves = |node: &&Node| {
        is_alive(node, now) && WorkerAbout::takes(&node.about, &job.queue, &job.kind, &reserved)
    };
    let here = nodes.iter().filter(serves).count();
    let remote = app.remote.roster().count(|node| serves(&node), now).await?;
    let workers = here + remote;
    let lingers = |node: &&Node| {
        is_alive(node, now) && lingering_of(&node.about).any(|lingering| lingering == job.id)
    };
    let old_handler = nodes.iter().find(lingers).map(|node| node.name.clone());
    let settings = crate::queue_settings::settings_of(store, &job.queue, now).await?;
    let running = running(app, job, now).await?;
    let by_queue = running
        .queue
        .limit_held("the limit of its queue", limits.concurrency);
    let by_key = job.concurrency.as_ref().and_then(|mine| {
        let limit = format!("concurrency_key {}", mine.key);
        running.key.limit_held(&limit, Some(mine.limit))
    });
    let cap = settings.claims.max_inflight_retries;
    let (ahead, ahead_or_more) = ahead(app, job, now).await?;
    Ok(Surroundings {
        paused_by: limits.paused.map(|pause| pause.by),
        workers: u64::try_from(workers).unwrap_or(u64::MAX),
        limit_held: by_key.or(by_queue),
        retries_held: cap.filter(|cap| running.retries >= u64::from(*cap)),
        rate_until: counts.and_then(|counts| counts.rate_until),
        old_handler,
        ahead,
        ahead_or_more,
    })
}

/// Jobs that run under the same limit.
#[derive(Default)]
struct Under {
    count: u64,
    /// One of them, and the end of its lease.
    holder: Option<(JobId, Timestamp)>,
}

impl Under {
    fn add(&mut self, job: &Job) {
        self.count += 1;
        let holder = job.lease().map(|lease| (job.id, lease.until));
        self.holder = self.holder.or(holder);
    }

    fn limit_held(&self, limit: &str, most: Option<u32>) -> Option<(String, JobId, Timestamp)> {
        most.filter(|most| self.count >= u64::from(*most))?;
        let (job, until) = self.holder?;
        Some((limit.to_owned(), job, until))
    }
}

/// The jobs that run in the queue of a job, and in all queues with its key.
#[derive(Default)]
struct RunningBeside {
    queue: Under,
    key: Under,
    retries: u64,
}

async fn running(app: &App, job: &Job, now: Timestamp) -> Result<RunningBeside, Problem> {
    let filter = Filter {
        queue: job.concurrency.is_none().then(|| job.queue.clone()),
        ..Filter::state(ListedState::Running)
    };
    let mut beside = RunningBeside::default();
    walk_over(app, filter, None, now, |other| {
        if other.queue == job.queue {
            beside.queue.add(other);
            beside.retries += u64::from(other.failures > 0);
        }
        let key = |of: &Job| of.concurrency.as_ref().map(|of| of.key.clone());
        if key(other).is_some() && key(other) == key(job) {
            beside.key.add(other);
        }
    })
    .await?;
    Ok(beside)
}

/// How many ready jobs of its queue come before it, and whether there may be more. Most of those are older, so these are looked
/// at first.
async fn ahead(app: &App, job: &Job, now: Timestamp) -> Result<(u64, bool), Problem> {
    if !job.is_ready(now) {
        return Ok((0, false));
    }
    let filter = Filter {
        queue: Some(job.queue.clone()),
        ..Filter::state(ListedState::Ready)
    };
    let mut first = 0;
    let mut count = |other: &Job| first += u64::from(other.claim_order() < job.claim_order());
    let older = walk_over(app, filter.clone(), Some(job.id), now, &mut count).await?;
    let newer = Filter {
        created_from: Some(job.created_at),
        ..filter
    };
    let newer = walk_over(app, newer, None, now, |other| {
        if other.id > job.id {
            count(other);
        }
    })
    .await?;
    Ok((first, !older || !newer))
}

/// Shows the jobs of a filter behind a cursor, a bounded number of them; whether that was all.
async fn walk_over(
    app: &App,
    filter: Filter,
    after: Option<JobId>,
    now: Timestamp,
    mut show: impl FnMut(&Job),
) -> Result<bool, Problem> {
    let mut walk = Walk::new(filter, after);
    let (mut seen, mut steps) = (0, 0);
    while !walk.is_over() && seen < LOOKED_AT_MAX && steps < STEPS_MAX {
        let jobs = walk.step(app.store(), PAGE_MAX, now).await?;
        jobs.iter().for_each(&mut show);
        seen += jobs.len();
        steps += 1;
    }
    Ok(walk.saw_all())
}
