//! Which retry policy and which limit a job gets when it is claimed.

use std::sync::Arc;

use super::{AttemptLimit, Preset, RetryPolicy};

/// What a worker, or the server, sets for retries of the jobs it claims.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerRetry {
    /// The policy of a job if neither the job, its kind nor its queue sets one. `None` turns
    /// retries off: the first failure is final, even if the job, its kind or its queue has a
    /// policy.
    pub policy: Option<Arc<RetryPolicy>>,
    /// The most attempts this worker allows, even if a job asks for more.
    pub cap: Cap,
}

/// The most attempts that a worker allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    /// As many as its own policy allows. The default of SDK workers.
    FromPolicy,
    /// At most this many.
    AtMost(AttemptLimit),
    /// As many as a job asks for. The default of the server.
    Unlimited,
}

impl Default for WorkerRetry {
    /// The default of SDK workers: the preset `standard`, which also sets the cap.
    fn default() -> Self {
        WorkerRetry {
            policy: Some(Arc::new(Preset::default().policy())),
            cap: Cap::FromPolicy,
        }
    }
}

/// What the job, its kind and its queue set for retries.
#[derive(Debug, Clone, Copy, Default)]
pub struct RetrySettings<'a> {
    /// The job's own `max_attempts`.
    pub max_attempts: Option<AttemptLimit>,
    /// The job's own policy.
    pub job: Option<&'a Arc<RetryPolicy>>,
    /// The policy of its kind, from the handler's registration.
    pub kind: Option<&'a Arc<RetryPolicy>>,
    /// The policy of its queue.
    pub queue: Option<&'a Arc<RetryPolicy>>,
}

/// The origin of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicySource {
    /// The job itself.
    Job,
    /// The registration of its kind.
    Kind,
    /// Its queue.
    Queue,
    /// The default of the worker or server.
    Worker,
    /// None: the worker has no policy, so the first failure is final.
    FailFast,
}

/// The policy and limit that a claim stores on a job, so that every later decision about the
/// attempt uses the same.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedRetry<'a> {
    /// The policy that computes delays; `None` if the first failure is final.
    pub policy: Option<&'a Arc<RetryPolicy>>,
    /// Where the policy comes from.
    pub source: PolicySource,
    /// The limit: the failure that reaches it is final.
    pub effective_max: AttemptLimit,
}

/// Resolves the policy: the job's own, or else that of its kind, of its queue, or of the worker.
///
/// The limit is the job's own `max_attempts`. If the job has none, it is the limit of the first
/// policy in the same order that has one. If no policy has one, it is one attempt. The worker's cap
/// can lower it.
pub fn resolve<'a>(settings: RetrySettings<'a>, worker: &'a WorkerRetry) -> ResolvedRetry<'a> {
    let Some(default) = &worker.policy else {
        return ResolvedRetry {
            policy: None,
            source: PolicySource::FailFast,
            effective_max: AttemptLimit::ONE,
        };
    };
    let in_order = [
        (settings.job, PolicySource::Job),
        (settings.kind, PolicySource::Kind),
        (settings.queue, PolicySource::Queue),
        (Some(default), PolicySource::Worker),
    ];
    let mut policies = in_order
        .into_iter()
        .filter_map(|(policy, source)| Some((policy?, source)));
    let requested = settings.max_attempts.or_else(|| {
        policies
            .clone()
            .find_map(|(policy, _)| policy.max_attempts())
    });
    let cap = match worker.cap {
        Cap::FromPolicy => default.max_attempts(),
        Cap::AtMost(limit) => Some(limit),
        Cap::Unlimited => None,
    };
    let requested = requested.unwrap_or(AttemptLimit::ONE);
    let (policy, source) = policies.next().unwrap_or((default, PolicySource::Worker));
    ResolvedRetry {
        policy: Some(policy),
        source,
        effective_max: cap.map_or(requested, |cap| requested.min(cap)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(n: i64) -> AttemptLimit {
        AttemptLimit::from_max_attempts(n).unwrap().unwrap()
    }

    /// `standard` with another limit; 0 means no limit.
    fn policy(max_attempts: u32) -> Arc<RetryPolicy> {
        let standard = Preset::Standard.policy();
        Arc::new(standard.with_max_attempts(max_attempts).unwrap())
    }

    fn sdk_worker(policy: Arc<RetryPolicy>) -> WorkerRetry {
        WorkerRetry {
            policy: Some(policy),
            cap: Cap::FromPolicy,
        }
    }

    fn effective(job: Option<i64>, worker: &WorkerRetry) -> u32 {
        let settings = RetrySettings {
            max_attempts: job.map(limit),
            ..RetrySettings::default()
        };
        resolve(settings, worker).effective_max.get()
    }

    #[test]
    fn the_limit_of_job_and_worker() {
        assert_eq!(effective(Some(5), &sdk_worker(policy(25))), 5); // the job asks for less
        assert_eq!(effective(None, &WorkerRetry::default()), 25); // the default policy
        assert_eq!(effective(Some(20), &sdk_worker(policy(10))), 10); // the worker allows less
        assert_eq!(effective(Some(5), &sdk_worker(policy(0))), 5); // the policy has no limit
        assert_eq!(effective(None, &sdk_worker(policy(0))), 1); // no limit at all is one attempt
        let fail_fast = WorkerRetry {
            policy: None,
            cap: Cap::FromPolicy,
        };
        assert_eq!(effective(Some(5), &fail_fast), 1); // a worker without a policy
        assert_eq!(effective(Some(100), &WorkerRetry::default()), 25); // capped by the default policy
        assert_eq!(effective(Some(1), &WorkerRetry::default()), 1); // the first failure is the last
    }

    #[test]
    fn the_workers_cap_also_limits_a_jobs_own_policy() {
        let own = policy(500);
        let worker = WorkerRetry {
            policy: Some(policy(25)),
            cap: Cap::AtMost(limit(10)),
        };
        let settings = RetrySettings {
            job: Some(&own),
            ..RetrySettings::default()
        };
        let resolved = resolve(settings, &worker);
        assert_eq!(resolved.effective_max, limit(10));
        assert_eq!(resolved.policy, Some(&own));
        assert_eq!(resolved.source, PolicySource::Job);
    }

    #[test]
    fn a_worker_without_policy_overrides_a_jobs_own() {
        let own = policy(5);
        let worker = WorkerRetry {
            policy: None,
            cap: Cap::Unlimited,
        };
        let settings = RetrySettings {
            max_attempts: Some(limit(5)),
            job: Some(&own),
            kind: Some(&own),
            queue: Some(&own),
        };
        let resolved = resolve(settings, &worker);
        assert_eq!(resolved.effective_max, AttemptLimit::ONE);
        assert_eq!(resolved.policy, None);
        assert_eq!(resolved.source, PolicySource::FailFast);
    }

    #[test]
    fn on_the_server_the_limit_of_a_preset_is_a_default_and_no_cap() {
        let webhook = Arc::new(Preset::Webhook.policy());
        let server = WorkerRetry {
            policy: Some(Arc::new(Preset::Standard.policy())),
            cap: Cap::Unlimited,
        };
        let settings = RetrySettings {
            max_attempts: Some(limit(11)),
            kind: Some(&webhook),
            ..RetrySettings::default()
        };
        let resolved = resolve(settings, &server);
        assert_eq!(resolved.effective_max, limit(11));
        assert_eq!(resolved.source, PolicySource::Kind);
    }

    #[test]
    fn the_nearest_policy_gives_the_timing_and_the_first_limit_counts() {
        let (job, kind, queue) = (policy(0), policy(0), policy(3));
        let worker = WorkerRetry {
            policy: Some(policy(9)),
            cap: Cap::Unlimited,
        };
        let mut settings = RetrySettings {
            max_attempts: None,
            job: Some(&job),
            kind: Some(&kind),
            queue: Some(&queue),
        };
        let source = |settings| {
            let resolved = resolve(settings, &worker);
            (resolved.source, resolved.effective_max.get())
        };
        assert_eq!(source(settings), (PolicySource::Job, 3));
        settings.job = None;
        assert_eq!(source(settings), (PolicySource::Kind, 3));
        settings.kind = None;
        assert_eq!(source(settings), (PolicySource::Queue, 3));
        settings.queue = None;
        assert_eq!(source(settings), (PolicySource::Worker, 9));
    }

    #[test]
    fn a_job_keeps_its_limit_but_takes_the_delay_of_the_worker_that_claimed_it() {
        let settings = RetrySettings {
            max_attempts: Some(limit(3)),
            ..RetrySettings::default()
        };
        let quick = sdk_worker(Arc::new(Preset::Standard.policy()));
        let slow = sdk_worker(Arc::new(Preset::Patient.policy()));
        let by_quick = resolve(settings, &quick);
        let by_slow = resolve(settings, &slow);
        assert_eq!(by_quick.effective_max, by_slow.effective_max);
        assert_ne!(by_quick.policy, by_slow.policy);
    }
}
