//! Jobs as a client writes them, aliases of fields included.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use windlass_core::retry::AttemptLimit;
use windlass_core::{
    Concurrency, Deadline, Delivery, Key, Kind, OnDuplicate, Payload, QueueName, Start, Tag,
    Timeout, Timestamp, Unique, check_meta,
};

use crate::read::request;
use crate::value::either_duration;
use crate::{
    Body, BoundedInt, Checks, DurationText, Json, List, Millis, Retry, TimeoutText,
    some_even_if_null,
};

/// The prefix of metadata names that are reserved for Windlass.
const OWN_META: &str = "windlass.";

request! {
    /// A job to create.
    pub struct NewJob {
        /// Kind of the job, which selects the handler. Required, unless `type` or `http` is given.
        pub kind: Kind,
        /// Alias of `kind`, or of `delivery` if the value is a delivery mode.
        #[serde(rename = "type")]
        pub kind_or_delivery: KindOrDelivery,
        /// Input of the handler: any JSON, at most 1 MiB unless configured. For the kind `http`, an
        /// `HttpRequest`. Default: null.
        #[serde(default, deserialize_with = "some_even_if_null")]
        pub payload: Json,
        /// Payload of an HTTP job. Sets `kind` to `http`. Excludes `payload`.
        #[serde(default, deserialize_with = "some_even_if_null")]
        #[schemars(with = "Option<HttpRequest>")]
        pub http: Json,
        /// Queue of the job. Default: `default`.
        pub queue: QueueName,
        /// Priority, from -32768 to 32767. Workers claim higher priorities first. Default: 0.
        pub priority: i16,
        /// Earliest start. Default: now. Excludes `delay`.
        pub run_at: Timestamp,
        /// Alias of `run_at`.
        pub retry_at: Timestamp,
        /// Earliest start, counted from now. Excludes `run_at`.
        pub delay: DurationText,
        /// `delay` in milliseconds.
        pub delay_ms: Millis,
        /// Whether a started job may run again after a crash (`at_least_once`) or not
        /// (`at_most_once`). Upper case is accepted too. Default: `at_least_once`.
        #[serde(default, deserialize_with = "any_case")]
        pub delivery: Delivery,
        /// How many attempts may fail in total, at most 1000. Default: 0, which means that the
        /// retry policy decides.
        pub max_attempts: BoundedInt<0, 1000>,
        /// How many retries may follow the first attempt: one less than `max_attempts`.
        pub max_retries: BoundedInt<0, 999>,
        /// Alias of `max_retries`.
        #[serde(rename = "maxRetryCount")]
        pub max_retry_count: BoundedInt<0, 999>,
        /// Retry policy of the job. Default: the policy of its kind or queue, or that of the
        /// server.
        pub retry: Retry,
        /// Maximum duration of one attempt, or `none`. Default: 1 h; 30 s for HTTP jobs.
        pub timeout: TimeoutText,
        /// `timeout` in milliseconds.
        pub timeout_ms: BoundedInt<1, 315_360_000_000>,
        /// No attempt starts after this time. Excludes `expires_in`.
        pub deadline: Timestamp,
        /// Deadline, counted from now. Excludes `deadline`.
        pub expires_in: DurationText,
        /// `expires_in` in milliseconds.
        pub expires_in_ms: Millis,
        /// Unique key: while a job holds it, no other job with the same key is created in the same
        /// queue.
        pub unique_key: Key,
        /// Minimum time to hold the unique key, even if the job finishes earlier. Only allowed
        /// together with `unique_key`.
        pub unique_for: DurationText,
        /// `unique_for` in milliseconds.
        pub unique_for_ms: Millis,
        /// What happens if the unique key is taken: `keep` returns the existing job, `replace` also
        /// gives it the new payload and time if it is still waiting. Only allowed together with
        /// `unique_key`. Default: `keep`.
        pub on_duplicate: OnDuplicate,
        /// Concurrency key: at most `limit` jobs with the same key run at once, across all queues.
        pub concurrency_key: Key,
        /// How many jobs with the same `concurrency_key` may run at once. Only allowed together
        /// with `concurrency_key`. Default: 1.
        pub limit: BoundedInt<1, { u32::MAX as i64 }>,
        /// Tags, for people and search: at most 32.
        pub tags: List<Tag, 0, 32>,
        /// Metadata, for people and programs: at most 64 entries and 16 KiB.
        pub meta: Meta,
    }
}

impl NewJob {
    /// A job of this kind with all other fields at their defaults.
    pub fn new(kind: Kind) -> Self {
        NewJob {
            kind: Some(kind),
            ..NewJob::default()
        }
    }
}

impl From<&windlass_core::NewJob> for NewJob {
    /// The job as a client would write it; fields at their defaults are left out.
    fn from(job: &windlass_core::NewJob) -> Self {
        let plain = windlass_core::NewJob::new(job.kind.clone());
        let (mut run_at, mut delay) = (None, None);
        match job.start {
            Start::Now => {}
            Start::At(instant) => run_at = Some(instant),
            Start::After(span) => delay = Some(DurationText(span)),
        }
        let (mut deadline, mut expires_in) = (None, None);
        match job.deadline {
            None => {}
            Some(Deadline::At(instant)) => deadline = Some(instant),
            Some(Deadline::After(span)) => expires_in = Some(DurationText(span)),
        }
        let (unique, concurrency) = (job.unique.as_ref(), job.concurrency.as_ref());
        let limit = job.max_attempts.map(|limit| i64::from(limit.get()));
        NewJob {
            kind: Some(job.kind.clone()),
            payload: Some(Json(job.payload.clone())),
            queue: Some(job.queue.clone()).filter(|queue| *queue != plain.queue),
            priority: Some(job.priority).filter(|priority| *priority != plain.priority),
            run_at,
            delay,
            delivery: Some(job.delivery).filter(|delivery| *delivery != plain.delivery),
            max_attempts: limit.and_then(BoundedInt::new),
            retry: job.retry.as_deref().map(Retry::from),
            timeout: job.timeout.map(TimeoutText),
            deadline,
            expires_in,
            unique_key: unique.map(|unique| unique.key.clone()),
            unique_for: unique
                .and_then(|unique| unique.unique_for)
                .map(DurationText),
            on_duplicate: unique.map(|unique| unique.on_duplicate),
            concurrency_key: concurrency.map(|concurrency| concurrency.key.clone()),
            limit: concurrency.and_then(|concurrency| BoundedInt::new(concurrency.limit.into())),
            tags: Some(List(job.tags.clone())).filter(|tags| !tags.0.is_empty()),
            meta: Some(Meta(job.meta.clone())).filter(|meta| !meta.0.is_empty()),
            ..NewJob::default()
        }
    }
}

impl Body for NewJob {
    type Checked = windlass_core::NewJob;

    fn check(self, checks: &mut Checks) -> Option<windlass_core::NewJob> {
        let (other_kind, other_delivery) = match self.kind_or_delivery {
            Some(KindOrDelivery::Kind(kind)) => (Some(kind), None),
            Some(KindOrDelivery::Delivery(delivery)) => (None, Some(delivery)),
            None => (None, None),
        };
        let kind = checks.exclusive(("kind", self.kind), ("type", other_kind));
        let kind = check_kind(checks, kind, self.http.is_some());
        let delivery = checks.exclusive(("delivery", self.delivery), ("type", other_delivery));
        let payload = checks.exclusive(("payload", self.payload), ("http", self.http));
        let run_at_name = if self.retry_at.is_some() {
            "retry_at"
        } else {
            "run_at"
        };
        let run_at = checks.exclusive(("run_at", self.run_at), ("retry_at", self.retry_at));
        let delay = either_duration(checks, "delay", self.delay, self.delay_ms);
        let start = checks.exclusive(
            (run_at_name, run_at.map(Start::At)),
            ("delay", delay.map(Start::After)),
        );
        let expires_in = either_duration(checks, "expires_in", self.expires_in, self.expires_in_ms);
        let deadline = checks.exclusive(
            ("deadline", self.deadline.map(Deadline::At)),
            ("expires_in", expires_in.map(Deadline::After)),
        );
        let retries_name = match self.max_retry_count {
            Some(_) => "maxRetryCount",
            None => "max_retries",
        };
        let max_retries = checks.exclusive(
            ("max_retries", self.max_retries),
            ("maxRetryCount", self.max_retry_count),
        );
        let max_attempts = self.max_attempts.map(BoundedInt::get);
        let max_attempts =
            AttemptLimit::from_either(max_attempts, max_retries.map(BoundedInt::get));
        let max_attempts =
            max_attempts.map_err(|error| error.rename_field("max_retries", retries_name));
        let max_attempts = checks.keep(max_attempts);
        let retry = self.retry;
        let retry = checks.within("retry", |checks| retry.map(|retry| retry.check(checks)));
        let timeout_ms = self.timeout_ms.map(|millis| {
            Timeout::After(std::time::Duration::from_millis(
                millis.get().unsigned_abs(),
            ))
        });
        let timeout = self.timeout.map(|timeout| timeout.0);
        let timeout = checks.exclusive(("timeout", timeout), ("timeout_ms", timeout_ms));
        let unique_for = either_duration(checks, "unique_for", self.unique_for, self.unique_for_ms);
        let unique = ("unique_key", self.unique_key.is_some());
        checks.needs(("unique_for", unique_for.is_some()), unique);
        checks.needs(("on_duplicate", self.on_duplicate.is_some()), unique);
        let limited = ("concurrency_key", self.concurrency_key.is_some());
        checks.needs(("limit", self.limit.is_some()), limited);
        let meta = self.meta.map(|meta| meta.0).unwrap_or_default();
        if let Some(own) = meta.keys().find(|name| name.starts_with(OWN_META)) {
            let rule =
                format!("is reserved: names that begin with `{OWN_META}` belong to Windlass");
            checks.refuse(&format!("meta.{own}"), rule);
        }
        Some(windlass_core::NewJob {
            payload: payload.map_or_else(Payload::default, |payload| payload.0),
            queue: self.queue.unwrap_or_default(),
            priority: self.priority.unwrap_or_default(),
            start: start.unwrap_or_default(),
            delivery: delivery.unwrap_or_default(),
            max_attempts: max_attempts.flatten(),
            retry: retry.flatten(),
            timeout,
            deadline,
            unique: self.unique_key.map(|key| Unique {
                key,
                unique_for,
                on_duplicate: self.on_duplicate.unwrap_or_default(),
            }),
            concurrency: self.concurrency_key.map(|key| Concurrency {
                key,
                limit: self.limit.map_or(1, BoundedInt::to),
            }),
            tags: self.tags.map(|tags| tags.0).unwrap_or_default(),
            meta,
            ..windlass_core::NewJob::new(kind?)
        })
    }
}

fn check_kind(checks: &mut Checks, kind: Option<Kind>, is_http: bool) -> Option<Kind> {
    match kind {
        None if is_http => checks.keep(Kind::new("http")),
        None if checks.is_refused("type") => None,
        None => checks.required("kind", None),
        Some(kind) => {
            if is_http && kind.as_str() != "http" {
                checks.refuse("http", "is only allowed if `kind` is `http`");
            }
            Some(kind)
        }
    }
}

/// The kind of a job, or its delivery mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KindOrDelivery {
    /// A kind.
    Kind(Kind),
    /// A delivery mode.
    Delivery(Delivery),
}

impl<'de> Deserialize<'de> for KindOrDelivery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.to_ascii_lowercase().parse() {
            Ok(delivery) => Ok(KindOrDelivery::Delivery(delivery)),
            Err(_) => {
                let kind = Kind::new(&text).map_err(de::Error::custom)?;
                Ok(KindOrDelivery::Kind(kind))
            }
        }
    }
}

impl JsonSchema for KindOrDelivery {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "KindOrDelivery".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Kind>()
    }
}

/// Reads a delivery mode in lower or upper case.
fn any_case<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Delivery>, D::Error> {
    let word = Option::<String>::deserialize(deserializer)?;
    let read = word.map(|word| word.to_ascii_lowercase().parse());
    read.transpose().map_err(de::Error::custom)
}

/// Metadata of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Meta(pub BTreeMap<String, Value>);

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Json(json) = Json::deserialize(deserializer)?;
        if json.as_str().contains("$serde_json::private") {
            let rule = "the value must not contain names reserved by the JSON library";
            return Err(de::Error::custom(rule));
        }
        let map = json.decode();
        let map = map.map_err(|_| de::Error::custom("the value must be an object"))?;
        check_meta(&map).map_err(de::Error::custom)?;
        Ok(Meta(map))
    }
}

impl JsonSchema for Meta {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Meta".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "maxProperties": 64})
    }
}

request! {
    /// The request of an HTTP job.
    pub struct HttpRequest {
        /// URL to request.
        #[schemars(required, example = "https://example.com/hook")]
        pub url: String,
        /// HTTP method: `GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE` or `OPTIONS`. Default:
        /// `POST`.
        pub method: String,
        /// HTTP headers.
        pub headers: BTreeMap<String, String>,
        /// Request body. Text is sent as it is, any other JSON value as JSON.
        pub body: Value,
        /// Response statuses that are not retried: numbers from 300 to 599, or `"3xx"`, `"4xx"`,
        /// `"5xx"`.
        pub permanent_statuses: Vec<Value>,
        /// Whether the target may answer 202 and report the result later, with the token that the
        /// request carries. Default: `false`.
        #[serde(rename = "async")]
        pub later: bool,
        /// How long the target may take to report the result. Only with `async`. Default: 1 h.
        pub complete_within: DurationText,
        /// `complete_within` in milliseconds.
        pub complete_within_ms: Millis,
        /// Name of the secret that signs the request, or a list of up to 8 names.
        pub sign: Value,
        /// Value of the header `Idempotency-Key` of the request. Default: the id of the job.
        pub idempotency_key: Key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyRefused, read_body};
    use windlass_core::Invalid;

    fn read(text: &str) -> Result<windlass_core::NewJob, Vec<String>> {
        read_body::<NewJob>(text, Timestamp::UNIX_EPOCH).map_err(|refused| match refused {
            BodyRefused::Invalid(problems) => {
                let field = |problem: &Invalid| problem.field().to_owned();
                let mut fields: Vec<String> = problems.iter().map(field).collect();
                fields.sort();
                fields
            }
            BodyRefused::Malformed(malformed) => panic!("{malformed}"),
        })
    }

    #[test]
    fn a_whole_job_is_read() {
        let text = concat!(
            r#"{"kind":"email:send","payload":{"b": 1.0,  "a": 2},"concurrency_key":"eu","#,
            r#""delay":"1m 30s","delivery":"at_most_once","expires_in":"1d","limit":3,"max_attempts":5,"#,
            r#""meta":{"traceparent":"00-ab"},"on_duplicate":"replace","priority":-7,"queue":"mail","#,
            r#""retry":"webhook","tags":["x","y"],"timeout":"none","unique_for":"1h","unique_key":"u1"}"#,
        );
        let job = windlass_core::NewJob::from_json(text).unwrap();
        assert_eq!(read(text).unwrap(), job);
        let shape: NewJob = serde_json::from_str(text).unwrap();
        assert_eq!(
            read(&serde_json::to_string(&shape).unwrap()).unwrap(),
            job,
            "a client writes what the server reads"
        );
        let written = serde_json::to_value(NewJob::from(&job)).unwrap();
        assert_eq!(written, serde_json::to_value(&job).unwrap());
        let nulls = r#"{"kind":"a","queue":null,"retry":null,"tags":null,"meta":null}"#;
        assert_eq!(read(nulls), read(r#"{"kind":"a"}"#));
    }

    #[test]
    fn other_spellings_mean_the_same() {
        let plain = r#"{"kind":"a","delivery":"at_most_once","max_retries":3,"run_at":"2026-01-01T00:00:00Z"}"#;
        let other = r#"{"kind":"a","type":"AT_MOST_ONCE","maxRetryCount":3,"retry_at":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(read(plain).unwrap(), read(other).unwrap());
        for (text, same) in [
            (r#"{"type":"email:send"}"#, r#"{"kind":"email:send"}"#),
            (
                r#"{"kind":"a","delivery":"AT_MOST_ONCE"}"#,
                r#"{"kind":"a","delivery":"at_most_once"}"#,
            ),
            (
                r#"{"http":{"url":"x"}}"#,
                r#"{"kind":"http","payload":{"url":"x"}}"#,
            ),
            (
                r#"{"kind":"a","delay_ms":1500}"#,
                r#"{"kind":"a","delay":"1s 500ms"}"#,
            ),
        ] {
            assert_eq!(read(text).unwrap(), read(same).unwrap(), "{text}");
        }
    }

    #[test]
    fn every_bad_field_is_named_once_as_it_was_spelled() {
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        for (text, expected) in [
            (r#"{"kid":"a"}"#, &["kid", "kind"][..]),
            (
                r#"{"kind":"a b","queue":"x/y","priority":1e9}"#,
                &["kind", "priority", "queue"],
            ),
            (
                r#"{"type":5,"maxRetryCount":-1}"#,
                &["maxRetryCount", "type"],
            ),
            (
                r#"{"kind":"a","retry_at":"soon","unknown":1,"tags":[5,"ok",7]}"#,
                &["retry_at", "tags[0]", "tags[2]", "unknown"],
            ),
            (
                r#"{"kind":"a","unique_key":"","unique_for":"1h"}"#,
                &["unique_key"],
            ),
            (
                r#"{"kind":"a","unique_for":"1h","limit":3,"on_duplicate":"keep"}"#,
                &["limit", "on_duplicate", "unique_for"],
            ),
            (
                r#"{"kind":"a","retry":{"backoff":{"type":"odd"},"jitter":{"type":"odd"}},"x":1}"#,
                &["retry.backoff.type", "retry.jitter.type", "x"],
            ),
            (r#"{"kind":"a","kind":"b"}"#, &["kind"]),
            (r#"{"kind":"a","type":"b"}"#, &["type"]),
            (
                r#"{"kind":"a","type":"at_most_once","delivery":"at_least_once"}"#,
                &["type"],
            ),
            (
                r#"{"kind":"a","max_attempts":3,"maxRetryCount":5}"#,
                &["maxRetryCount"],
            ),
            (
                r#"{"kind":"a","retry_at":"2026-01-01T00:00:00Z","delay":"1s","timeout":"0s"}"#,
                &["delay", "timeout"],
            ),
            (r#"{"kind":"a","http":{},"payload":1}"#, &["http"]),
            (
                r#"{"kind":"a","meta":{"windlass.x":1}}"#,
                &["meta.windlass.x"],
            ),
            (r#"{"kind":"a","meta":[]}"#, &["meta"]),
            (r#"{"kind":"a","meta":{"x\u0000":1}}"#, &["meta"]),
            (
                r#"{"kind":"a","meta":{"x":{"$serde_json::private::RawValue":"1"}}}"#,
                &["meta"],
            ),
            (
                &format!(r#"{{"kind":"a","meta":{{"x":{deep}}},"payload":{deep}}}"#),
                &["meta", "payload"],
            ),
        ] {
            let refused = read(text).expect_err(text);
            assert_eq!(refused, expected, "{text}");
        }
    }
}
