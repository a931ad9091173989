//! Why a job is not running, or is dead.

use windlass::admin::{ClaimRules, Diagnosis, FinishedDiagnosis};
use windlass_api::{
    Content, Death, JobState, PlannedAttempt, PolicyFrom, PolicyInForce, Retry, RetryPlan,
    RevivalForecast, Why, WhyReason,
};
use windlass_core::retry::{PolicySource, RetryPolicy};
use windlass_core::{AttemptError, Job, Reason, RevivalRefusal};

use crate::call::Call;
use crate::endpoint::Reply;
use crate::problem::Problem;

pub(super) async fn why(call: Call) -> Result<Reply<Why>, Problem> {
    let rules = ClaimRules {
        retry: call.app.settings.retry.clone(),
        kinds: windlass_http::kind_retry(),
        reserved: [windlass_http::http_kind()].into(),
    };
    let diagnosis = call.app.client.why_under(call.job_id()?, &rules).await?;
    Ok(Reply::ok(view(&diagnosis, call.content())))
}

fn view(diagnosis: &Diagnosis, content: Content) -> Why {
    let (job, finished) = (&diagnosis.job, diagnosis.finished.as_ref());
    let reason = |reason: &Reason| WhyReason {
        code: reason.code().to_owned(),
        text: reason.to_string(),
    };
    Why {
        id: job.id,
        state: JobState::new(job.state(), job.run_at, diagnosis.at),
        reasons: diagnosis.reasons.iter().map(reason).collect(),
        death: finished.and_then(|finished| death(job, finished, content)),
        revive: finished.and_then(revival),
        plan: diagnosis.plan.as_ref().map(plan),
    }
}

fn plan(plan: &windlass::admin::RetryPlan) -> RetryPlan {
    let attempts = plan.attempts.iter().map(|planned| PlannedAttempt {
        attempt: planned.attempt,
        earliest_at: planned.earliest_at,
        nominal_at: planned.nominal_at,
        latest_at: planned.latest_at,
    });
    RetryPlan {
        policy: policy(plan.policy_source, plan.policy.as_deref()),
        max_attempts: plan.limit.get(),
        attempts: attempts.collect(),
    }
}

fn death(job: &Job, finished: &FinishedDiagnosis, content: Content) -> Option<Death> {
    let error = job.last_error.as_ref();
    let shown = error.filter(|_| content == Content::Shown);
    Some(Death {
        reason: job.dead_reason()?,
        text: finished.death.clone()?,
        at: job.finished_at(),
        attempts: job.attempt,
        failures: job.failures,
        max_attempts: finished.limit.get(),
        deadline: job.deadline,
        last_error: shown.map(AttemptError::to_string),
        error_withheld: error.is_some() && shown.is_none(),
        failed_at: job.failed_at,
        policy: policy(finished.policy_source, finished.policy.as_deref()),
    })
}

fn revival(finished: &FinishedDiagnosis) -> Option<RevivalForecast> {
    let forecast = finished.revival.as_ref()?;
    let refusal = |refusal: &RevivalRefusal| WhyReason {
        code: refusal.code().to_owned(),
        text: refusal.to_string(),
    };
    Some(RevivalForecast {
        allowed: forecast.refusals.is_empty(),
        refusals: forecast.refusals.iter().map(refusal).collect(),
        run_at: forecast.run_at,
        deadline: forecast.deadline,
        attempts_left: forecast.attempts_left,
        policy: policy(finished.policy_source, finished.policy.as_deref()),
    })
}

fn policy(source: PolicySource, policy: Option<&RetryPolicy>) -> PolicyInForce {
    PolicyInForce {
        source: match source {
            PolicySource::Job => PolicyFrom::Job,
            PolicySource::Kind => PolicyFrom::Kind,
            PolicySource::Queue => PolicyFrom::Queue,
            PolicySource::Worker => PolicyFrom::Default,
            PolicySource::FailFast => PolicyFrom::None,
        },
        retry: policy.map(Retry::from),
    }
}
