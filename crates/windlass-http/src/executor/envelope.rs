//! What is sent along with a job's own request: who it is from, which attempt, how long there is, and a signature.

use bytes::Bytes;
use http::header::{HeaderName, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::Full;
use serde_json::Value;
use windlass_core::{AttemptError, Failure, Job};
use windlass_engine::RunningAttempt;

use crate::request::HttpRequest;
use crate::signature::{KeyError, SigningKey, SigningKeys, seconds, sign};

/// Says how many HTTP jobs led to this request, each the cause of the next.
pub const DEPTH_HEADER: &str = "windlass-depth";
/// Where a job that such a request enqueued keeps the number.
pub const DEPTH_META: &str = "windlass.depth";
/// A chain of HTTP jobs may be so long: one that calls itself ends here.
pub const DEPTH_MAX: u64 = 8;

const ATTEMPT: &str = "windlass-attempt";
/// The instant after which no attempt of the job starts. A target that enqueues jobs because of the
/// request sends it along.
pub const DEADLINE_HEADER: &str = "windlass-deadline";

const COMPLETION_TOKEN: &str = "windlass-completion-token";
const COMPLETION_URL: &str = "windlass-completion-url";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const JOB_ID: &str = "windlass-job-id";
const RETRY_COUNT: &str = "windlass-retry-count";
const SCHEDULED_FOR: &str = "windlass-scheduled-for";
const TIME_LEFT: &str = "windlass-time-left-ms";
const TRACEPARENT: &str = "traceparent";

/// Makes the request as it is sent.
pub(super) async fn seal(
    attempt: &RunningAttempt,
    request: &HttpRequest,
    keys: &dyn SigningKeys,
    token: Option<&str>,
    completion_url: Option<&str>,
) -> Result<Request<Full<Bytes>>, Failure> {
    let job = attempt.job();
    let mut sealed = Request::new(Full::new(request.body.clone()));
    *sealed.uri_mut() = request.url.clone();
    *sealed.method_mut() = request.method.clone();
    let headers = sealed.headers_mut();
    headers.extend(request.headers.clone());
    headers
        .entry(USER_AGENT)
        .or_insert(HeaderValue::from_static(concat!(
            "windlass/",
            env!("CARGO_PKG_VERSION")
        )));
    let mut put = |name: &'static str, text: &str| {
        let value = HeaderValue::from_str(text)
            .map_err(|error| failed(&format!("the header {name} cannot be sent: {error}")))?;
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
    if let Some(of) = job.occurrence {
        put(SCHEDULED_FOR, &of.scheduled_for.to_string())?;
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
    let found = find_keys(request, keys).await?;
    if !found.is_empty() {
        let signature = sign(&found, &id, now, &request.body)
            .map_err(|refusal| failed(&refusal.to_string()))?;
        put("webhook-signature", &signature)?;
    }
    Ok(sealed)
}

async fn find_keys(
    request: &HttpRequest,
    keys: &dyn SigningKeys,
) -> Result<Vec<SigningKey>, Failure> {
    let mut found = Vec::new();
    for name in &request.sign {
        // A secret may be created later, so an unknown one is not the end of the job.
        let secret = keys
            .secret(name)
            .await
            .map_err(|error| failed(&error.to_string()))?;
        // Checked again here: its hosts may have changed since the enqueue.
        if !secret.hosts.allow(&request.url) {
            let text = KeyError::OtherHost(name.clone()).to_string();
            return Err(Failure::unrecoverable(AttemptError::new(text)));
        }
        found.extend(secret.keys);
    }
    Ok(found)
}

/// How deep the request is in a chain of jobs; too deep is the end.
fn next_depth(job: &Job) -> Result<u64, Failure> {
    let before = job
        .meta
        .get(DEPTH_META)
        .and_then(Value::as_u64)
        .unwrap_or(0);
    if before >= DEPTH_MAX {
        let text =
            format!("more than {DEPTH_MAX} HTTP jobs led to each other: this looks like a loop");
        return Err(Failure::unrecoverable(AttemptError::new(text)));
    }
    Ok(before + 1)
}

/// The trace that the job belongs to, if it is written as such.
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
    fn only_a_well_formed_trace_is_sent_on() {
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
