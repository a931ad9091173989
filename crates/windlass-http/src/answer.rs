//! What the target's answer means for the job. Pure: the answer, or the trouble in its place, goes in; a verdict comes out.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode, Version};
use serde_json::{Map, Value, json};
use windlass_core::{
    AttemptError, Failure, FailureClass, Payload, RETRY_AFTER_MAX, Timestamp, format_duration,
};

use crate::request::HttpRequest;

/// So much of an answer's body is read.
pub(crate) const BODY_READ_MAX: usize = 64 * 1024;
/// So much of an answer's body is kept with the attempt.
const BODY_KEPT_MAX: usize = 4 * 1024;
/// So much of an answer's headers is kept with the attempt.
const HEADERS_KEPT_MAX: usize = 4 * 1024;

/// What the target answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    /// The body, up to [`BODY_READ_MAX`].
    pub(crate) body: Bytes,
    /// There was more of it.
    pub(crate) cut: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The address is not allowed, whatever it is.
    Refused,
    /// The name was not found, or has an address that is not allowed.
    NoAddress(String),
    /// Nothing was sent.
    NotSent(String),
    /// Something was sent, and nobody knows what became of it.
    Unknown(String),
}

/// What an answer leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The job is done.
    Succeeded(Option<Payload>),
    /// The target will tell later.
    Later {
        /// Until then at the latest.
        until: Timestamp,
    },
    /// It is not.
    Failed(Failure),
}

/// Judges what came back at `now`.
pub(crate) fn judge(
    request: &HttpRequest,
    came: &Result<Answer, Trouble>,
    now: Timestamp,
) -> Verdict {
    match came {
        Ok(answer) => judge_answer(request, answer, now),
        Err(Trouble::Refused) => Verdict::Failed(Failure::unrecoverable(AttemptError::new(
            "the target's address is not allowed",
        ))),
        Err(Trouble::NoAddress(text) | Trouble::NotSent(text)) => {
            Verdict::Failed(Failure::retryable(AttemptError::new(text)))
        }
        Err(Trouble::Unknown(text)) => Verdict::Failed(Failure {
            class: FailureClass::Unknown,
            ..Failure::retryable(AttemptError::new(text))
        }),
    }
}

fn judge_answer(request: &HttpRequest, answer: &Answer, now: Timestamp) -> Verdict {
    let status = answer.status;
    match request.complete_within {
        Some(within) if status == StatusCode::ACCEPTED => {
            return Verdict::Later {
                until: now.saturating_add(within),
            };
        }
        _ if status.is_success() => {
            let result = json!({"status": status.as_u16()}).to_string();
            return Verdict::Succeeded(Some(Payload::from_stored(&result)));
        }
        _ => {}
    }
    let error = AttemptError::new(format!("the target answered {status}"));
    if request.permanent_statuses.contains(status.as_u16()) {
        return Verdict::Failed(Failure::unrecoverable(error));
    }
    Verdict::Failed(Failure {
        retry_after: wait_asked_for(&answer.headers, now),
        ..Failure::retryable(error)
    })
}

/// How long the target asks to wait: `Retry-After`, or else the reset of a rate limit that is used
/// up.
fn wait_asked_for(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    retry_after(headers, now).or_else(|| rate_limit_reset(headers))
}

/// The seconds until a rate limit starts over. Where `RateLimit-Remaining` says that requests are
/// left, there is no need to wait.
fn rate_limit_reset(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| seconds(headers.get(name)?.to_str().ok()?.trim());
    let reset = number("ratelimit-reset").filter(|reset| !reset.is_zero())?;
    number("ratelimit-remaining")
        .is_none_or(|left| left.is_zero())
        .then_some(reset)
}

/// Digits alone, as seconds up to the longest wait.
fn seconds(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.then(|| text.parse().unwrap_or(u64::MAX))?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// `Retry-After`: in seconds, or until a date. What makes no sense is not heeded.
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

/// What was waited for too long, said of a request that was to be completed later.
pub(crate) fn not_completed(within: Duration) -> Failure {
    let text = format!(
        "the target took the request for later and did not complete it within {}",
        format_duration(within)
    );
    Failure::retryable(AttemptError::new(text))
}

/// What is kept of the head of an answer: status and headers without secrets.
pub(crate) fn head_json(
    status: StatusCode,
    version: Version,
    headers: &HeaderMap,
) -> Map<String, Value> {
    let mut kept = Map::new();
    kept.insert("status".to_owned(), status.as_u16().into());
    kept.insert("version".to_owned(), format!("{version:?}").into());
    kept.insert("headers".to_owned(), shown_headers(headers));
    kept
}

impl Answer {
    /// What is kept with the attempt: status, headers without secrets, the beginning of the body.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut kept = head_json(self.status, self.version, &self.headers);
        let short = self.body.get(..BODY_KEPT_MAX).unwrap_or(&self.body);
        let text = String::from_utf8_lossy(short).replace('\0', "\u{fffd}");
        kept.insert("body".to_owned(), text.into());
        kept.insert("body_bytes".to_owned(), self.body.len().into());
        let cut = self.cut || short.len() < self.body.len();
        kept.insert("body_cut".to_owned(), cut.into());
        kept
    }
}

fn shown_headers(headers: &HeaderMap) -> Value {
    let mut shown = Map::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let text = if is_secret(name.as_str()) {
            "[redacted]".to_owned()
        } else {
            String::from_utf8_lossy(value.as_bytes()).replace('\0', "\u{fffd}")
        };
        bytes += name.as_str().len() + text.len();
        if bytes > HEADERS_KEPT_MAX {
            shown.insert("…".to_owned(), "further headers are not kept".into());
            break;
        }
        match shown.get_mut(name.as_str()) {
            Some(Value::String(before)) => {
                before.push_str(", ");
                before.push_str(&text);
            }
            _ => {
                shown.insert(name.as_str().to_owned(), text.into());
            }
        }
    }
    Value::Object(shown)
}

/// Whether a header looks as if its value were somebody's secret.
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

    fn answer(status: u16) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            version: Version::HTTP_11,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            cut: false,
        }
    }

    fn request(more: &str) -> HttpRequest {
        HttpRequest::from_json(&format!(r#"{{"url": "http://a.example"{more}}}"#)).unwrap()
    }

    fn failure(more: &str, came: Result<Answer, Trouble>) -> Failure {
        match judge(&request(more), &came, now()) {
            Verdict::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_hundreds_succeed_and_nothing_else_does() {
        for status in 100..=599 {
            let verdict = judge(&request(""), &Ok(answer(status)), now());
            let succeeded = matches!(verdict, Verdict::Succeeded(_));
            assert_eq!(succeeded, (200..300).contains(&status), "{status}");
            if !succeeded {
                assert_eq!(
                    failure("", Ok(answer(status))).class,
                    FailureClass::Retryable
                );
            }
        }
    }

    #[test]
    fn only_202_of_a_job_that_says_so_is_completed_later() {
        let later = request(r#", "async": true, "complete_within": "10m""#);
        let verdict = judge(&later, &Ok(answer(202)), now());
        let until = at("2026-01-01T12:10:00Z");
        assert_eq!(verdict, Verdict::Later { until });
        assert!(matches!(
            judge(&later, &Ok(answer(200)), now()),
            Verdict::Succeeded(_)
        ));
        assert!(matches!(
            judge(&request(""), &Ok(answer(202)), now()),
            Verdict::Succeeded(_)
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
            assert_eq!(failure(permanent, Ok(answer(status))).class, class);
        }
        assert_eq!(
            failure("", Ok(answer(410))).error.to_string(),
            "the target answered 410 Gone"
        );
    }

    #[test]
    fn troubles_tell_whether_something_was_sent() {
        let class = |trouble| failure("", Err(trouble)).class;
        assert_eq!(class(Trouble::Refused), FailureClass::Unrecoverable);
        assert_eq!(
            class(Trouble::NotSent("x".to_owned())),
            FailureClass::Retryable
        );
        assert_eq!(
            class(Trouble::Unknown("x".to_owned())),
            FailureClass::Unknown
        );
    }

    #[test]
    fn retry_after_is_heeded_within_reason() {
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
            let mut answer = answer(429);
            answer
                .headers
                .insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            let asked = failure("", Ok(answer)).retry_after;
            assert_eq!(asked, wait.map(Duration::from_secs), "{text}");
        }
        assert_eq!(failure("", Ok(answer(429))).retry_after, None);
    }

    #[test]
    fn the_reset_of_a_rate_limit_counts_where_there_is_no_retry_after() {
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
            let mut answer = answer(429);
            for (name, value) in headers {
                answer
                    .headers
                    .insert(*name, HeaderValue::from_static(value));
            }
            let asked = failure("", Ok(answer)).retry_after;
            assert_eq!(asked, wait.map(Duration::from_secs), "{headers:?}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_holds_no_secrets() {
        let mut answer = answer(500);
        for name in [
            "set-cookie",
            "authorization",
            "x-api-key",
            "x-auth-token",
            "x-session-id",
        ] {
            answer
                .headers
                .insert(name, HeaderValue::from_static("hush"));
        }
        answer
            .headers
            .insert("server", HeaderValue::from_static("x"));
        answer.headers.append("a", HeaderValue::from_static("1"));
        answer.headers.append("a", HeaderValue::from_static("2"));
        answer.body = Bytes::from(vec![0; 10_000]);
        let kept = Value::Object(answer.to_json());
        assert!(!kept.to_string().contains("hush"), "{kept}");
        assert_eq!(kept["headers"]["x-api-key"], "[redacted]");
        assert_eq!(kept["headers"]["a"], "1, 2");
        assert_eq!(kept["body"].as_str().unwrap().chars().count(), 4096);
        assert!(!kept["body"].as_str().unwrap().contains('\0'));
        assert_eq!(
            (&kept["body_bytes"], &kept["body_cut"]),
            (&json!(10_000), &json!(true))
        );
        let long = HeaderValue::from_str(&"v".repeat(5000)).unwrap();
        answer.headers.insert("z", long);
        assert!(Value::Object(answer.to_json()).to_string().len() < 30_000);
    }
}
