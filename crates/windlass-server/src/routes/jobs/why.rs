//! Why a job is not running: the facts are gathered here, `core` says what they mean.

use serde::Serialize;
use serde_json::Value;
use windlass_core::{
    Job, JobId, QueueName, Reason, State, Surroundings, Timestamp, why_not_running,
};
use windlass_store::{Filter, ListedState, PAGE_MAX, Page};

use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;
use crate::routes::workers::is_alive;

/// So many jobs that run, or come before it, are looked at.
const LOOKED_AT_MAX: usize = 10_000;

#[derive(Serialize)]
struct Why {
    id: JobId,
    state: &'static str,
    reasons: Vec<WhyReason>,
}

#[derive(Serialize)]
struct WhyReason {
    code: &'static str,
    text: String,
}

/// `GET /api/v1/jobs/{id}/why`.
pub(super) async fn why(call: Call) -> Result<Answer, Problem> {
    let id = call.job_id()?;
    let job = call.app.client.get(id).await?;
    let job = job.ok_or_else(|| Problem::not_found(format!("job {id}")))?;
    let around = if job.state() == State::Waiting {
        surroundings(&call.app, &job, call.now).await?
    } else {
        Surroundings::default()
    };
    let reasons = why_not_running(&job, &around, call.now);
    Answer::ok(&Why {
        id,
        state: job.state().name(job.run_at, call.now),
        reasons: reasons
            .iter()
            .map(|reason| WhyReason {
                code: code_of(reason),
                text: reason.to_string(),
            })
            .collect(),
    })
}

fn code_of(reason: &Reason) -> &'static str {
    match reason {
        Reason::NotWaiting { .. } => "not_waiting",
        Reason::Expired { .. } => "expired",
        Reason::NotDue { .. } => "not_due",
        Reason::QueuePaused { .. } => "queue_paused",
        Reason::NoWorker { .. } => "no_worker",
        Reason::LimitHeld { .. } => "limit_held",
        Reason::RetriesHeld { .. } => "retries_held",
        Reason::RateHeld { .. } => "rate_held",
        Reason::Behind { .. } => "behind",
        Reason::Next => "next",
    }
}

async fn surroundings(app: &App, job: &Job, now: Timestamp) -> Result<Surroundings, Problem> {
    let limits = app
        .store()
        .queues()
        .await?
        .remove(&job.queue)
        .unwrap_or_default();
    let nodes = app.store().nodes().await?;
    let serves = |about: &Value| {
        names(about, "queues", job.queue.as_str()) && names(about, "kinds", job.kind.as_str())
    };
    let workers = nodes
        .iter()
        .filter(|node| is_alive(node, now) && serves(&node.about))
        .count();
    let running = running(app, &job.queue, job, now).await?;
    let in_queue = || running.iter().filter(|other| other.queue == job.queue);
    let full = limits
        .concurrency
        .filter(|most| count(in_queue()) >= u64::from(*most));
    let by_queue = full.and_then(|_| held_by("the limit of its queue", in_queue()));
    let by_key = job.concurrency.as_ref().and_then(|mine| {
        let same = || {
            let same = |other: &&Job| {
                other
                    .concurrency
                    .as_ref()
                    .is_some_and(|of| of.key == mine.key)
            };
            running.iter().filter(move |other| same(other))
        };
        let full = count(same()) >= u64::from(mine.limit);
        full.then(|| held_by(&format!("concurrency_key {}", mine.key), same()))?
    });
    let settings = crate::queue_settings::settings_of(app.store(), &job.queue).await?;
    let cap = settings.guards.max_inflight_retries;
    let retries = count(in_queue().filter(|other| other.failures > 0));
    Ok(Surroundings {
        paused_by: limits.paused.map(|pause| pause.by),
        workers: u64::try_from(workers).unwrap_or(u64::MAX),
        limit_held: by_key.or(by_queue),
        retries_held: cap.filter(|cap| retries >= u64::from(*cap)),
        rate_until: None,
        ahead: ahead(app, job, now).await?,
    })
}

/// Whether a list in what a node says about itself has a name; a node that does not say takes all.
fn names(about: &Value, list: &str, name: &str) -> bool {
    match about.get(list).and_then(Value::as_array) {
        None => true,
        Some(list) => list.iter().any(|one| one == name),
    }
}

fn count<'a>(jobs: impl Iterator<Item = &'a Job>) -> u64 {
    u64::try_from(jobs.count()).unwrap_or(u64::MAX)
}

fn held_by<'a>(
    limit: &str,
    mut jobs: impl Iterator<Item = &'a Job>,
) -> Option<(String, JobId, Timestamp)> {
    let holder = jobs.next()?;
    Some((limit.to_owned(), holder.id, holder.lease()?.until))
}

/// The jobs that run in its queue, or in all queues where its own key is limited.
async fn running(
    app: &App,
    queue: &QueueName,
    job: &Job,
    now: Timestamp,
) -> Result<Vec<Job>, Problem> {
    let filter = Filter {
        queue: job.concurrency.is_none().then(|| queue.clone()),
        ..Filter::state(ListedState::Running)
    };
    jobs_behind(app, &filter, None, now).await
}

/// How many ready jobs of its queue come before it: most of those are older, so these are looked at first.
async fn ahead(app: &App, job: &Job, now: Timestamp) -> Result<u64, Problem> {
    if !job.is_ready(now) {
        return Ok(0);
    }
    let filter = Filter {
        queue: Some(job.queue.clone()),
        ..Filter::state(ListedState::Ready)
    };
    let older = jobs_behind(app, &filter, Some(job.id), now).await?;
    let newer = jobs_behind(app, &filter, None, now).await?;
    let newer = newer.iter().filter(|other| other.id > job.id);
    let first = |other: &&Job| other.claim_order() < job.claim_order();
    Ok(count(older.iter().chain(newer).filter(first)))
}

/// The jobs of a filter behind a cursor, a bounded number of them.
async fn jobs_behind(
    app: &App,
    filter: &Filter,
    after: Option<JobId>,
    now: Timestamp,
) -> Result<Vec<Job>, Problem> {
    let mut found = Vec::new();
    let mut page = Page {
        after,
        limit: PAGE_MAX,
    };
    loop {
        let listed = app.store().list(filter, page, now).await?;
        found.extend(listed.jobs);
        match listed.next {
            Some(next) if found.len() < LOOKED_AT_MAX => page.after = Some(next),
            _ => return Ok(found),
        }
    }
}
