//! Builds the request that is sent: that of the job, plus the headers that Windlass adds and the
//! signature.

use bytes::Bytes;
use http::header::{HeaderName, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::Full;
use serde_json::Value;
use windlass_core::{AttemptError, Failure, Job};
use windlass_engine::RunningAttempt;

use crate::request::HttpRequest;
use crate::signature::{KeyError, SigningKey, SigningKeys, seconds, sign};

/// The header with the number of HTTP jobs that led to this request, each causing the next.
pub const DEPTH_HEADER: &str = "windlass-depth";
/// The entry of a job's `meta` that stores the value of [`DEPTH_HEADER`].
pub const DEPTH_META: &str = "windlass.depth";
/// The longest chain of HTTP jobs. It stops jobs that enqueue themselves through their target.
pub const DEPTH_MAX: u64 = 8;

const ATTEMPT: &str = "windlass-attempt";
/// The header with the deadline of the job. A target that enqueues jobs because of the request can
/// pass it on.
pub const DEADLINE_HEADER: &str = "windlass-deadline";

const COMPLETION_TOKEN: &str = "windlass-completion-token";
const COMPLETION_URL: &str = "windlass-completion-url";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const JOB_ID: &str = "windlass-job-id";
const RETRY_COUNT: &str = "windlass-retry-count";
const SCHEDULED_FOR: &str = "windlass-scheduled-for";
const TIME_LEFT: &str = "windlass-time-left-ms";
const TRACEPARENT: &str = "traceparent";

/// Builds the request that is sent.
pub(super) async fn build(
    attempt: &RunningAttempt,
    request: &HttpRequest,
    keys: &dyn SigningKeys,
    token: Option<&str>,
    completion_url: Option<&str>,
) -> Result<Request<Full<Bytes>>, Failure> {
    let job = attempt.job();
    let mut outgoing = Request::new(Full::new(request.body.clone()));
    *outgoing.uri_mut() = request.url.clone();
    *outgoing.method_mut() = request.method.clone();
    let headers = outgoing.headers_mut();
    headers.extend(request.headers.clone());
    headers
        .entry(USER_AGENT)
        .or_insert(HeaderValue::from_static(concat!(
            "windlass/",
            env!("CARGO_PKG_VERSION")
        )));
    let mut put = |name: &'static str, text: &str| {
        let value = HeaderValue::from_str(text).map_err(|error| {
            failed(&format!(
                "the value of the header {name} is invalid: {error}"
            ))
        })?;
        headers.insert(HeaderName::from_static(name), value);
        Ok::<(), Failure>(())
    };
    let id = job.id.to_string();
    let own_key = request.idempotency_key.as_ref().map(|key| key.as_str());
    put(IDEMPOTENCY_KEY, own_key.unwrap_or(&id))?;
    put(JOB_ID, &id)?;
    put(ATTEMPT, &job.attempt.to_string())?;
    put(RETRY_COUNT, &job.failures.to_string())?;
    put(DEPTH_HEADER, &next_depth(job)?.to_string())?;
    if let Some(left) = attempt.time_left() {
        put(TIME_LEFT, &left.as_millis().to_string())?;
    }
    if let Some(deadline) = job.deadline {
        put(DEADLINE_HEADER, &deadline.to_string())?;
    }
    if let Some(occurrence) = job.occurrence {
        put(SCHEDULED_FOR, &occurrence.scheduled_for.to_string())?;
    }
    if let Some(parent) = traceparent(job) {
        put(TRACEPARENT, parent)?;
    }
    if let Some(token) = token {
        put(COMPLETION_TOKEN, token)?;
        if let Some(url) = completion_url {
            put(COMPLETION_URL, &format!("{url}{token}"))?;
        }
    }
    let now = attempt.engine().now();
    put("webhook-id", &id)?;
    put("webhook-timestamp", &seconds(now).to_string())?;
    let signing_keys = find_keys(request, keys).await?;
    if !signing_keys.is_empty() {
        let signature = sign(&signing_keys, &id, now, &request.body)
            .map_err(|invalid| failed(&invalid.to_string()))?;
        put("webhook-signature", &signature)?;
    }
    Ok(outgoing)
}

async fn find_keys(
    request: &HttpRequest,
    keys: &dyn SigningKeys,
) -> Result<Vec<SigningKey>, Failure> {
    let mut signing_keys = Vec::new();
    for name in &request.sign {
        // Retryable, because an operator may still create an unknown secret.
        let secret = keys
            .secret(name)
            .await
            .map_err(|error| failed(&error.to_string()))?;
        // Checked again, because the hosts of the secret may have changed since the enqueue.
        if !secret.hosts.allow(&request.url) {
            let text = KeyError::OtherHost(name.clone()).to_string();
            return Err(Failure::unrecoverable(AttemptError::new(text)));
        }
        signing_keys.extend(secret.keys);
    }
    Ok(signing_keys)
}

/// Returns the depth of this request in a chain of HTTP jobs, or a failure if it is too deep.
fn next_depth(job: &Job) -> Result<u64, Failure> {
    let depth = job
        .meta
        .get(DEPTH_META)
        .and_then(Value::as_u64)
        .unwrap_or(0);
    if depth >= DEPTH_MAX {
        let text = format!(
            "a chain of more than {DEPTH_MAX} HTTP jobs, each enqueued because of the last; check \
             for a job that enqueues itself"
        );
        return Err(Failure::unrecoverable(AttemptError::new(text)));
    }
    Ok(depth + 1)
}

/// Returns the trace context of the job, if it is well-formed.
fn traceparent(job: &Job) -> Option<&str> {
    let text = job.meta.get(TRACEPARENT)?.as_str()?;
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, length: usize| {
        let digits = part
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        part.len() == length && digits
    };
    match parts[..] {
        [version, trace, span, flags]
            if hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2) =>
        {
            Some(text)
        }
        _ => None,
    }
}

fn failed(text: &str) -> Failure {
    Failure::retryable(AttemptError::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use windlass_core::{JobId, NewJob, Timestamp};

    fn job(meta: &[(&str, Value)]) -> Job {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let own = meta
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        let new = NewJob {
            meta: own.collect(),
            ..NewJob::new(crate::http_kind())
        };
        new.into_job(JobId::new(now, 1), now).unwrap()
    }

    #[test]
    fn a_chain_of_jobs_ends_at_the_eighth() {
        assert_eq!(next_depth(&job(&[])), Ok(1));
        assert_eq!(next_depth(&job(&[(DEPTH_META, json!(7))])), Ok(8));
        assert!(next_depth(&job(&[(DEPTH_META, json!(8))])).is_err());
        assert!(next_depth(&job(&[(DEPTH_META, json!(u64::MAX))])).is_err());
    }

    #[test]
    fn only_a_well_formed_trace_context_is_sent() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(traceparent(&job(&[(TRACEPARENT, json!(good))])), Some(good));
        for bad in [
            "",
            "00-ab",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "a\r\nb: c",
        ] {
            assert_eq!(
                traceparent(&job(&[(TRACEPARENT, json!(bad))])),
                None,
                "{bad}"
            );
        }
        assert_eq!(traceparent(&job(&[(TRACEPARENT, json!(5))])), None);
    }
}
