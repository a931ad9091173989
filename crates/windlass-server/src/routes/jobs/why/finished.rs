//! Why a job is dead, and what reviving it would do: the facts around a job that is dead or
//! cancelled.

use windlass_api::{Content, Death, PolicyFrom, PolicyInForce, Retry, RevivalForecast, WhyReason};
use windlass_core::retry::{PolicySource, ResolvedRetry};
use windlass_core::{
    AroundFinished, AttemptError, Job, JobId, RevivalRefusal, forecast_revival, why_dead,
};
use windlass_store::{ClaimRetry, Filter, Page};

use crate::call::Call;
use crate::problem::Problem;
use crate::queue_settings;

/// This many jobs with the same unique key are looked at: the one that holds it is among the
/// newest.
const SAME_KEY_MAX: usize = 10;

/// Why a finished job is dead, and what reviving it would do.
pub(super) async fn look(
    call: &Call,
    job: &Job,
) -> Result<(Option<Death>, Option<RevivalForecast>), Problem> {
    let (store, now) = (call.app.store(), call.now);
    let settings = queue_settings::settings_of(store, &job.queue, now).await?;
    let retry = ClaimRetry {
        queue: settings.claims.retry.clone(),
        worker: call.app.settings.retry.clone(),
        kinds: windlass_http::kind_retry(),
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

fn death(job: &Job, resolved: &ResolvedRetry<'_>, content: Content) -> Option<Death> {
    let reason = job.dead_reason()?;
    let error = job.last_error.as_ref();
    let shown = error.filter(|_| content == Content::Shown);
    Some(Death {
        reason,
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

fn revival(
    forecast: windlass_core::RevivalForecast,
    resolved: &ResolvedRetry<'_>,
) -> RevivalForecast {
    let refusal = |refusal: &RevivalRefusal| WhyReason {
        code: match refusal {
            RevivalRefusal::NeedsForce => "needs_force".to_owned(),
            RevivalRefusal::QueueFull { .. } => "queue_full".to_owned(),
            RevivalRefusal::KeyHeld { .. } => "unique_key_taken".to_owned(),
        },
        text: refusal.to_string(),
    };
    RevivalForecast {
        allowed: forecast.refusals.is_empty(),
        refusals: forecast.refusals.iter().map(refusal).collect(),
        run_at: forecast.run_at,
        deadline: forecast.deadline,
        attempts_left: forecast.attempts_left,
        policy: policy_view(resolved),
    }
}

/// The policy that a claim through this server gives the job, and where it comes from.
fn policy_view(resolved: &ResolvedRetry<'_>) -> PolicyInForce {
    PolicyInForce {
        source: match resolved.source {
            PolicySource::Job => PolicyFrom::Job,
            PolicySource::Kind => PolicyFrom::Kind,
            PolicySource::Queue => PolicyFrom::Queue,
            PolicySource::Worker => PolicyFrom::Default,
            PolicySource::FailFast => PolicyFrom::None,
        },
        retry: resolved.policy.map(|policy| Retry::from(&**policy)),
    }
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
