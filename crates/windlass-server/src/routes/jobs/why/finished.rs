//! Why a job is dead, and what reviving it would do: the facts around a job that is dead or
//! cancelled.

use serde::Serialize;
use serde_json::{Value, json};
use windlass_api::{Content, retry_json};
use windlass_core::retry::{PolicySource, ResolvedRetry};
use windlass_core::{
    AroundFinished, AttemptError, Job, JobId, RevivalForecast, RevivalRefusal, Timestamp,
    forecast_revival, why_dead,
};
use windlass_store::{ClaimRetry, Filter, Page};

use super::WhyReason;
use crate::call::Call;
use crate::problem::Problem;
use crate::queue_settings;

/// This many jobs with the same unique key are looked at: the one that holds it is among the
/// newest.
const SAME_KEY_MAX: usize = 10;

/// Why a job is dead.
#[derive(Serialize)]
pub(super) struct DeathView {
    reason: &'static str,
    text: String,
    at: Option<Timestamp>,
    attempts: u32,
    failures: u32,
    max_attempts: u32,
    deadline: Option<Timestamp>,
    last_error: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    error_withheld: bool,
    failed_at: Option<Timestamp>,
    policy: Value,
}

/// What reviving a job would do.
#[derive(Serialize)]
pub(super) struct RevivalView {
    allowed: bool,
    refusals: Vec<WhyReason>,
    run_at: Timestamp,
    deadline: Option<Timestamp>,
    attempts_left: u32,
    policy: Value,
}

/// Why a finished job is dead, and what reviving it would do.
pub(super) async fn look(
    call: &Call,
    job: &Job,
) -> Result<(Option<DeathView>, Option<RevivalView>), Problem> {
    let (store, now) = (call.app.store(), call.now);
    let settings = queue_settings::settings_of(store, &job.queue, now).await?;
    let retry = ClaimRetry {
        queue: settings.claims.retry.clone(),
        worker: call.app.settings.retry.clone(),
        ..ClaimRetry::default()
    };
    let resolved = retry.resolve(job);
    let around = AroundFinished {
        limit: resolved.effective_max,
        full_at: match settings.max_depth {
            Some(max_depth) => full_at(call, job, max_depth).await?,
            None => None,
        },
        key_held_by: key_held_by(call, job).await?,
    };
    let death = death(job, &resolved, call.content());
    let forecast = forecast_revival(job, &around, now);
    Ok((death, forecast.map(|forecast| revival(forecast, &resolved))))
}

fn death(job: &Job, resolved: &ResolvedRetry<'_>, content: Content) -> Option<DeathView> {
    let reason = job.dead_reason()?;
    let error = job.last_error.as_ref();
    let shown = error.filter(|_| content == Content::Shown);
    Some(DeathView {
        reason: reason.name(),
        text: why_dead(job, reason, resolved.effective_max),
        at: job.finished_at(),
        attempts: job.attempt,
        failures: job.failures,
        max_attempts: resolved.effective_max.get(),
        deadline: job.deadline,
        last_error: shown.map(AttemptError::to_string),
        error_withheld: error.is_some() && shown.is_none(),
        failed_at: job.failed_at,
        policy: policy_view(resolved),
    })
}

fn revival(forecast: RevivalForecast, resolved: &ResolvedRetry<'_>) -> RevivalView {
    let refusal = |refusal: &RevivalRefusal| WhyReason {
        code: match refusal {
            RevivalRefusal::NeedsForce => "needs_force",
            RevivalRefusal::QueueFull { .. } => "queue_full",
            RevivalRefusal::KeyHeld { .. } => "unique_key_taken",
        },
        text: refusal.to_string(),
    };
    RevivalView {
        allowed: forecast.refusals.is_empty(),
        refusals: forecast.refusals.iter().map(refusal).collect(),
        run_at: forecast.run_at,
        deadline: forecast.deadline,
        attempts_left: forecast.attempts_left,
        policy: policy_view(resolved),
    }
}

/// The policy that a claim through this server gives the job, and where it comes from.
fn policy_view(resolved: &ResolvedRetry<'_>) -> Value {
    let source = match resolved.source {
        PolicySource::Job => "job",
        PolicySource::Kind => "kind",
        PolicySource::Queue => "queue",
        PolicySource::Worker => "default",
        PolicySource::FailFast => "none",
    };
    json!({"source": source, "retry": resolved.policy.map(|policy| retry_json(policy))})
}

/// The `max_depth` of a job's queue, if that many jobs wait in it.
async fn full_at(call: &Call, job: &Job, max_depth: u64) -> Result<Option<u64>, Problem> {
    let mut counts = call.app.store().counts(call.now).await?;
    let counts = counts.remove(&job.queue).unwrap_or_default();
    Ok((counts.scheduled + counts.ready >= max_depth).then_some(max_depth))
}

/// Another job that holds the unique key of a job.
async fn key_held_by(call: &Call, job: &Job) -> Result<Option<JobId>, Problem> {
    let Some(unique) = &job.unique else {
        return Ok(None);
    };
    let filter = Filter {
        queue: Some(job.queue.clone()),
        unique_key: Some(unique.key.clone()),
        ..Filter::default()
    };
    let newest = Page {
        after: None,
        limit: SAME_KEY_MAX,
    };
    let listed = call.app.store().list(&filter, newest, call.now).await?;
    let holds = |other: &&Job| other.id != job.id && other.holds_key(call.now);
    Ok(listed.jobs.iter().find(holds).map(|other| other.id))
}
