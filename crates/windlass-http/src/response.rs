//! What a target's response means for the job.
//!
//! Pure: the response, or the error in its place, goes in and a verdict comes out. The error texts
//! made here are what operators read as `last_error` of a job. They name the target by scheme, host
//! and port only, because paths and queries may hold secrets. They quote it, so that the log hides
//! it; fingerprints keep it, so that each target is a cause of its own.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode, Version};
use serde_json::{Map, Value, json};
use windlass_core::{
    AttemptError, Failure, FailureClass, Payload, RETRY_AFTER_MAX, Timestamp, format_duration,
};

use crate::request::HttpRequest;

/// The most that is read of a response body.
pub(crate) const BODY_READ_MAX: usize = 64 * 1024;
/// The most that is stored of a response body.
const BODY_STORED_MAX: usize = 4 * 1024;
/// The most that is stored of the response headers.
const HEADERS_STORED_MAX: usize = 4 * 1024;

/// A complete response of a target.
#[derive(Debug, Clone)]
pub(crate) struct TargetResponse {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    /// The body, up to [`BODY_READ_MAX`].
    pub(crate) body: Bytes,
    /// Whether the body was longer than that.
    pub(crate) is_truncated: bool,
}

/// Why a request has no response. The texts do not name the target; [`judge`] adds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The address in the URL is not allowed.
    AddressNotAllowed,
    /// The host name was not found, or resolves to an address that is not allowed.
    NoAllowedAddress,
    /// There was no connection, so nothing was sent.
    NotSent(String),
    /// The request was sent, at least in part. Whether the target processed it is unknown.
    OutcomeUnknown(String),
}

/// What a response leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestVerdict {
    /// The job succeeded, with this result.
    Succeeded(Option<Payload>),
    /// The target reports the outcome later.
    CompletesLater {
        /// The latest time at which it may.
        until: Timestamp,
    },
    /// The attempt failed.
    Failed(Failure),
}

/// Decides what a response that arrived at `now`, or the error in its place, means for the job.
pub(crate) fn judge(
    request: &HttpRequest,
    result: &Result<TargetResponse, RequestError>,
    now: Timestamp,
) -> RequestVerdict {
    let target = target_of(request);
    let failure = match result {
        Ok(response) => return judge_response(request, response, now),
        // The same text for every address, also for those that no setting can open: it must not
        // show what is behind an address.
        Err(RequestError::AddressNotAllowed) => Failure::unrecoverable(AttemptError::new(format!(
            "sending to `{target}` is not allowed: HTTP jobs reach only public addresses and those \
             opened with --allow-target, and never the server itself"
        ))),
        // The same text whether the name exists or not: a caller who may enqueue must not find out
        // which names exist in the network of the server.
        Err(RequestError::NoAllowedAddress) => Failure::retryable(AttemptError::new(format!(
            "could not resolve the host of `{target}` to an allowed address: check the name, or \
             open its address with --allow-target"
        ))),
        Err(RequestError::NotSent(cause)) => Failure::retryable(AttemptError::new(format!(
            "could not connect to `{target}`: {cause}"
        ))),
        Err(RequestError::OutcomeUnknown(cause)) => Failure {
            class: FailureClass::Unknown,
            ..Failure::retryable(AttemptError::new(format!(
                "no complete response from `{target}`, which may have processed the request: {cause}"
            )))
        },
    };
    RequestVerdict::Failed(failure)
}

/// The target of a request as errors show it: scheme, host and port.
fn target_of(request: &HttpRequest) -> String {
    let scheme = request.url.scheme_str().unwrap_or("http");
    let authority = request.url.authority().map_or("", |host| host.as_str());
    format!("{scheme}://{authority}")
}

fn judge_response(
    request: &HttpRequest,
    response: &TargetResponse,
    now: Timestamp,
) -> RequestVerdict {
    let status = response.status;
    match request.complete_within {
        Some(within) if status == StatusCode::ACCEPTED => {
            return RequestVerdict::CompletesLater {
                until: now.saturating_add(within),
            };
        }
        _ if status.is_success() => {
            let result = json!({"status": status.as_u16()}).to_string();
            return RequestVerdict::Succeeded(Some(Payload::from_stored(&result)));
        }
        _ => {}
    }
    let mut text = format!("`{}` responded with {status}", target_of(request));
    if status.is_redirection() {
        text.push_str("; redirects are not followed, use the final URL");
    }
    if request.permanent_statuses.contains(status.as_u16()) {
        text.push_str("; not retried, because it is one of the job's permanent_statuses");
        return RequestVerdict::Failed(Failure::unrecoverable(AttemptError::new(text)));
    }
    RequestVerdict::Failed(Failure {
        retry_after: requested_wait(&response.headers, now),
        ..Failure::retryable(AttemptError::new(text))
    })
}

/// Returns how long the target asks to wait: `Retry-After`, or else the reset of a rate limit that
/// is used up.
fn requested_wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    retry_after(headers, now).or_else(|| rate_limit_reset(headers))
}

/// Returns the time until a rate limit resets, unless `RateLimit-Remaining` says that requests are
/// left.
fn rate_limit_reset(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| seconds(headers.get(name)?.to_str().ok()?.trim());
    let reset = number("ratelimit-reset").filter(|reset| !reset.is_zero())?;
    number("ratelimit-remaining")
        .is_none_or(|left| left.is_zero())
        .then_some(reset)
}

/// Parses whole seconds, capped at the longest wait.
fn seconds(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.then(|| text.parse().unwrap_or(u64::MAX))?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// Returns the wait of `Retry-After`, which holds seconds or a date. Ignores invalid values.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Some(seconds) = seconds(text) {
        return Some(seconds);
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).ok()?;
    let micros = i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX);
    let at = Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX);
    let wait = at.since(now);
    (!wait.is_zero()).then(|| wait.min(RETRY_AFTER_MAX))
}

/// The failure of an async request whose target did not report the outcome in time.
pub(crate) fn not_completed(request: &HttpRequest, within: Duration) -> Failure {
    let text = format!(
        "`{}` responded with 202 and did not report the outcome within {} (`complete_within`)",
        target_of(request),
        format_duration(within)
    );
    Failure::retryable(AttemptError::new(text))
}

/// Returns what is stored of a response head: status and headers, without secrets.
pub(crate) fn head_json(
    status: StatusCode,
    version: Version,
    headers: &HeaderMap,
) -> Map<String, Value> {
    let mut stored = Map::new();
    stored.insert("status".to_owned(), status.as_u16().into());
    stored.insert("version".to_owned(), format!("{version:?}").into());
    stored.insert("headers".to_owned(), headers_json(headers));
    stored
}

impl TargetResponse {
    /// Returns what is stored with the attempt: status, headers without secrets, and the beginning
    /// of the body.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut stored = head_json(self.status, self.version, &self.headers);
        let beginning = self.body.get(..BODY_STORED_MAX).unwrap_or(&self.body);
        let text = String::from_utf8_lossy(beginning).replace('\0', "\u{fffd}");
        stored.insert("body".to_owned(), text.into());
        stored.insert("body_bytes".to_owned(), self.body.len().into());
        let is_cut = self.is_truncated || beginning.len() < self.body.len();
        stored.insert("body_cut".to_owned(), is_cut.into());
        stored
    }
}

fn headers_json(headers: &HeaderMap) -> Value {
    let mut stored = Map::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let text = if is_secret(name.as_str()) {
            "[redacted]".to_owned()
        } else {
            String::from_utf8_lossy(value.as_bytes()).replace('\0', "\u{fffd}")
        };
        bytes += name.as_str().len() + text.len();
        if bytes > HEADERS_STORED_MAX {
            stored.insert("…".to_owned(), "more headers were not stored".into());
            break;
        }
        match stored.get_mut(name.as_str()) {
            Some(Value::String(earlier)) => {
                earlier.push_str(", ");
                earlier.push_str(&text);
            }
            _ => {
                stored.insert(name.as_str().to_owned(), text.into());
            }
        }
    }
    Value::Object(stored)
}

/// Whether the value of a header is likely a secret, judged by its name.
fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 10] = [
        "auth",
        "cookie",
        "credential",
        "jwt",
        "key",
        "password",
        "secret",
        "session",
        "signature",
        "token",
    ];
    WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn now() -> Timestamp {
        at("2026-01-01T12:00:00Z")
    }

    fn response(status: u16) -> TargetResponse {
        TargetResponse {
            status: StatusCode::from_u16(status).unwrap(),
            version: Version::HTTP_11,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            is_truncated: false,
        }
    }

    fn request(more: &str) -> HttpRequest {
        HttpRequest::from_json(&format!(r#"{{"url": "http://a.example"{more}}}"#)).unwrap()
    }

    fn failure(more: &str, result: Result<TargetResponse, RequestError>) -> Failure {
        match judge(&request(more), &result, now()) {
            RequestVerdict::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_2xx_statuses_succeed() {
        for status in 100..=599 {
            let verdict = judge(&request(""), &Ok(response(status)), now());
            let succeeded = matches!(verdict, RequestVerdict::Succeeded(_));
            assert_eq!(succeeded, (200..300).contains(&status), "{status}");
            if !succeeded {
                assert_eq!(
                    failure("", Ok(response(status))).class,
                    FailureClass::Retryable
                );
            }
        }
    }

    #[test]
    fn only_202_to_an_async_job_completes_later() {
        let later = request(r#", "async": true, "complete_within": "10m""#);
        let verdict = judge(&later, &Ok(response(202)), now());
        let until = at("2026-01-01T12:10:00Z");
        assert_eq!(verdict, RequestVerdict::CompletesLater { until });
        assert!(matches!(
            judge(&later, &Ok(response(200)), now()),
            RequestVerdict::Succeeded(_)
        ));
        assert!(matches!(
            judge(&request(""), &Ok(response(202)), now()),
            RequestVerdict::Succeeded(_)
        ));
    }

    #[test]
    fn permanent_statuses_are_unrecoverable() {
        let permanent = r#", "permanent_statuses": [410, "5xx"]"#;
        for (status, class) in [
            (410, FailureClass::Unrecoverable),
            (503, FailureClass::Unrecoverable),
            (404, FailureClass::Retryable),
        ] {
            assert_eq!(failure(permanent, Ok(response(status))).class, class);
        }
        let text = |more: &str, status| failure(more, Ok(response(status))).error.to_string();
        assert_eq!(text("", 410), "`http://a.example` responded with 410 Gone");
        assert_eq!(
            text(permanent, 410),
            "`http://a.example` responded with 410 Gone; not retried, because it is one of the \
             job's permanent_statuses"
        );
        assert!(text("", 308).ends_with("redirects are not followed, use the final URL"));
    }

    #[test]
    fn errors_say_whether_something_was_sent() {
        let cause = || "timed out".to_owned();
        for (error, class, text) in [
            (
                RequestError::AddressNotAllowed,
                FailureClass::Unrecoverable,
                "sending to `http://a.example` is not allowed: HTTP jobs reach only public \
                 addresses and those opened with --allow-target, and never the server itself",
            ),
            (
                RequestError::NoAllowedAddress,
                FailureClass::Retryable,
                "could not resolve the host of `http://a.example` to an allowed address: check the \
                 name, or open its address with --allow-target",
            ),
            (
                RequestError::NotSent(cause()),
                FailureClass::Retryable,
                "could not connect to `http://a.example`: timed out",
            ),
            (
                RequestError::OutcomeUnknown(cause()),
                FailureClass::Unknown,
                "no complete response from `http://a.example`, which may have processed the \
                 request: timed out",
            ),
        ] {
            let failure = failure("", Err(error));
            assert_eq!(
                (failure.class, failure.error.to_string().as_str()),
                (class, text)
            );
        }
    }

    #[test]
    fn retry_after_is_obeyed_up_to_a_day() {
        for (text, wait) in [
            ("120", Some(120)),
            ("0", Some(0)),
            ("86400", Some(86_400)),
            ("1000000000", Some(86_400)),
            ("99999999999999999999999999", Some(86_400)),
            ("-5", None),
            ("1.5", None),
            ("", None),
            ("soon", None),
            ("Thu, 01 Jan 2026 12:01:00 GMT", Some(60)),
            ("Thursday, 01-Jan-26 12:01:00 GMT", Some(60)),
            ("Thu, 01 Jan 2026 11:59:00 GMT", None),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(86_400)),
            ("Thu, 99 Jan 2026 12:01:00 GMT", None),
        ] {
            let mut received = response(429);
            received
                .headers
                .insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            let requested = failure("", Ok(received)).retry_after;
            assert_eq!(requested, wait.map(Duration::from_secs), "{text}");
        }
        assert_eq!(failure("", Ok(response(429))).retry_after, None);
    }

    #[test]
    fn the_reset_of_a_rate_limit_counts_without_retry_after() {
        for (headers, wait) in [
            (&[("ratelimit-reset", "30")][..], Some(30)),
            (
                &[("ratelimit-reset", "30"), ("ratelimit-remaining", "0")],
                Some(30),
            ),
            (
                &[("ratelimit-reset", "30"), ("ratelimit-remaining", "4")],
                None,
            ),
            (&[("ratelimit-reset", "30"), ("retry-after", "7")], Some(7)),
            (&[("ratelimit-reset", "99999999999999999999")], Some(86_400)),
            (&[("ratelimit-reset", "0")], None),
            (&[("ratelimit-reset", "soon")], None),
            (&[("ratelimit-remaining", "0")], None),
        ] {
            let mut received = response(429);
            for (name, value) in headers {
                received
                    .headers
                    .insert(*name, HeaderValue::from_static(value));
            }
            let requested = failure("", Ok(received)).retry_after;
            assert_eq!(requested, wait.map(Duration::from_secs), "{headers:?}");
        }
    }

    #[test]
    fn what_is_stored_is_limited_and_holds_no_secrets() {
        let mut received = response(500);
        for name in [
            "set-cookie",
            "authorization",
            "x-api-key",
            "x-auth-token",
            "x-session-id",
        ] {
            received
                .headers
                .insert(name, HeaderValue::from_static("hush"));
        }
        received
            .headers
            .insert("server", HeaderValue::from_static("x"));
        received.headers.append("a", HeaderValue::from_static("1"));
        received.headers.append("a", HeaderValue::from_static("2"));
        received.body = Bytes::from(vec![0; 10_000]);
        let stored = Value::Object(received.to_json());
        assert!(!stored.to_string().contains("hush"), "{stored}");
        assert_eq!(stored["headers"]["x-api-key"], "[redacted]");
        assert_eq!(stored["headers"]["a"], "1, 2");
        assert_eq!(stored["body"].as_str().unwrap().chars().count(), 4096);
        assert!(!stored["body"].as_str().unwrap().contains('\0'));
        assert_eq!(
            (&stored["body_bytes"], &stored["body_cut"]),
            (&json!(10_000), &json!(true))
        );
        let long = HeaderValue::from_str(&"v".repeat(5000)).unwrap();
        received.headers.insert("z", long);
        assert!(Value::Object(received.to_json()).to_string().len() < 30_000);
    }
}
