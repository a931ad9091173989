//! The flags that describe a job to create. They have the names of the fields of the REST API.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};
use windlass_api::{Json, NewJob};
use windlass_core::{Invalid, QueueName, Timestamp};

use crate::body::{body_of, flag_of_field, given, read_input, word_or_json};

/// All flags of a job except its kind and its payload.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobFlags {
    #[command(flatten)]
    job: JobArgs,

    #[command(flatten)]
    http: HttpArgs,
}

/// The fields of every job.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Job")]
struct JobArgs {
    /// The queue [default: default].
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,

    /// The priority, from -32768 to 32767. Workers claim higher priorities first [default: 0].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,

    /// The earliest start, counted from now, such as `10m`.
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,

    /// The earliest start, such as 2026-01-01T00:00:00Z [default: now].
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    run_at: Option<Timestamp>,

    /// How many attempts may fail in total, at most 1000 [default: the retry policy decides].
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,

    /// The retry policy: a preset, or a policy as JSON [default: that of the kind, the queue or the
    /// server].
    #[arg(long, value_name = "PRESET|JSON")]
    retry: Option<String>,

    /// Whether a started job may run again after a crash: `at_least_once` or `at_most_once`
    /// [default: at_least_once].
    #[arg(long, value_name = "MODE")]
    delivery: Option<String>,

    /// The longest duration of one attempt, or `none` [default: 1h, for HTTP jobs 30s].
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,

    /// No attempt starts after this time.
    #[arg(long, value_name = "TIME")]
    deadline: Option<Timestamp>,

    /// The deadline, counted from now, such as `1d`.
    #[arg(long, value_name = "DURATION", conflicts_with = "deadline")]
    expires_in: Option<String>,

    /// While a job of the queue holds this key, no other job with the same key is created.
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,

    /// Hold the unique key for at least this long, even if the job finishes earlier.
    #[arg(long, value_name = "DURATION", requires = "unique_key")]
    unique_for: Option<String>,

    /// What happens if the unique key is taken: `keep` or `replace` (the waiting job gets the new
    /// payload and time) [default: keep].
    #[arg(long, value_name = "WHAT", requires = "unique_key")]
    on_duplicate: Option<String>,

    /// At most `--concurrency-limit` jobs with this key run at once, across all queues.
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,

    /// How many jobs with the same concurrency key may run at once [default: 1].
    #[arg(long, value_name = "N", requires = "concurrency_key")]
    concurrency_limit: Option<u32>,

    /// A tag, for people and search. Can be given up to 32 times.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,

    /// Metadata, such as `source=import`; the value is text or JSON. Can be given up to 64 times.
    #[arg(long, value_name = "NAME=VALUE")]
    meta: Vec<String>,
}

/// The request of an HTTP job.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "HTTP job")]
struct HttpArgs {
    /// Create an HTTP job: the server sends a request to this URL. The kind is `http`.
    #[arg(long, value_name = "URL")]
    http_url: Option<String>,

    /// The method: GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS [default: POST].
    #[arg(long, value_name = "METHOD", requires = "http_url")]
    http_method: Option<String>,

    /// A header of the request, such as `X-Team: mail`. Can be given several times.
    #[arg(
        long = "http-header",
        value_name = "NAME: VALUE",
        requires = "http_url"
    )]
    http_headers: Vec<String>,

    /// The body of the request: JSON, or any other text as it is; `-` reads it from stdin.
    #[arg(long, value_name = "BODY", requires = "http_url")]
    http_body: Option<String>,

    /// The name of a secret that signs the request. Can be given up to 8 times.
    #[arg(long, value_name = "SECRET", requires = "http_url")]
    http_sign: Vec<String>,

    /// A response status that is not retried: 300 to 599, or `3xx`, `4xx`, `5xx`. Can be given
    /// several times.
    #[arg(long, value_name = "STATUS", requires = "http_url")]
    http_permanent_status: Vec<String>,

    /// Let the target answer 202 and report the result later.
    #[arg(long, requires = "http_url")]
    http_async: bool,

    /// How long the target may take to report the result [default: 1h].
    #[arg(long, value_name = "DURATION", requires = "http_async")]
    http_complete_within: Option<String>,

    /// The header `Idempotency-Key` of the request [default: the id of the job].
    #[arg(long, value_name = "KEY", requires = "http_url")]
    http_idempotency_key: Option<String>,
}

/// A payload as a flag or as a file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PayloadArgs {
    /// The payload as JSON, or `-` to read it from stdin.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    payload: Option<String>,

    /// A file with the payload.
    #[arg(long, value_name = "FILE", conflicts_with = "payload")]
    payload_file: Option<PathBuf>,
}

impl PayloadArgs {
    pub(crate) fn read(&self) -> Result<Option<Json>, Invalid> {
        let text = self.payload.as_deref();
        read_payload(("--payload", text), self.payload_file.as_deref())
    }

    pub(crate) fn is_given(&self) -> bool {
        self.payload.is_some() || self.payload_file.is_some()
    }
}

/// Returns a payload that is given as text, with its flag, or as a file.
pub(crate) fn read_payload(
    (flag, text): (&str, Option<&str>),
    file: Option<&Path>,
) -> Result<Option<Json>, Invalid> {
    let (flag, text) = match (text, file) {
        (Some("-"), _) => (flag, read_input(flag, Path::new("-"))?),
        (Some(text), _) => (flag, text.to_owned()),
        (None, Some(path)) => ("--payload-file", read_input("--payload-file", path)?),
        (None, None) => return Ok(None),
    };
    let json = serde_json::from_str(&text).map_err(|error| {
        let rule = format!("must be JSON, with text in quotes such as '\"hello\"': {error}");
        Invalid::new(flag, rule)
    });
    json.map(Some)
}

impl JobFlags {
    /// Returns the fields of the REST API that are given.
    pub(crate) fn fields(&self) -> Result<Map<String, Value>, Invalid> {
        let mut fields = self.job.fields()?;
        let http = self.http.fields()?;
        fields.extend(http.map(|http| ("http".to_owned(), Value::Object(http))));
        Ok(fields)
    }

    pub(crate) fn is_http(&self) -> bool {
        self.http.http_url.is_some()
    }
}

impl JobArgs {
    fn fields(&self) -> Result<Map<String, Value>, Invalid> {
        let tags = (!self.tags.is_empty()).then_some(&self.tags);
        Ok(given(json!({
            "queue": self.queue,
            "priority": self.priority,
            "delay": self.delay,
            "run_at": self.run_at,
            "max_attempts": self.max_attempts,
            "retry": self.retry.as_deref().map(word_or_json),
            "delivery": self.delivery,
            "timeout": self.timeout,
            "deadline": self.deadline,
            "expires_in": self.expires_in,
            "unique_key": self.unique_key,
            "unique_for": self.unique_for,
            "on_duplicate": self.on_duplicate,
            "concurrency_key": self.concurrency_key,
            "limit": self.concurrency_limit,
            "tags": tags,
            "meta": self.meta()?,
        })))
    }

    fn meta(&self) -> Result<Option<Map<String, Value>>, Invalid> {
        let pair = |text: &String| {
            let rule = "must be NAME=VALUE, such as `source=import`";
            let pair = text.split_once('=');
            let (name, value) = pair.ok_or_else(|| Invalid::new("--meta", rule))?;
            Ok((name.to_owned(), word_or_json(value)))
        };
        let meta: Map<String, Value> = self.meta.iter().map(pair).collect::<Result<_, _>>()?;
        Ok((!meta.is_empty()).then_some(meta))
    }
}

impl HttpArgs {
    fn fields(&self) -> Result<Option<Map<String, Value>>, Invalid> {
        let Some(url) = &self.http_url else {
            return Ok(None);
        };
        let header = |text: &String| {
            let rule = "must be NAME: VALUE, such as `X-Team: mail`";
            let pair = text.split_once(':');
            let (name, value) = pair.ok_or_else(|| Invalid::new("--http-header", rule))?;
            Ok((name.to_owned(), Value::from(value.trim())))
        };
        let headers = self.http_headers.iter().map(header);
        let headers: Map<String, Value> = headers.collect::<Result<_, _>>()?;
        let body = match self.http_body.as_deref() {
            Some("-") => Some(read_input("--http-body", Path::new("-"))?),
            text => text.map(str::to_owned),
        };
        let statuses = self.http_permanent_status.iter();
        let statuses: Vec<Value> = statuses.map(|text| word_or_json(text)).collect();
        Ok(Some(given(json!({
            "url": url,
            "method": self.http_method,
            "headers": (!headers.is_empty()).then_some(headers),
            "body": body.as_deref().map(word_or_json),
            "sign": (!self.http_sign.is_empty()).then_some(&self.http_sign),
            "permanent_statuses": (!statuses.is_empty()).then_some(statuses),
            "async": self.http_async.then_some(true),
            "complete_within": self.http_complete_within,
            "idempotency_key": self.http_idempotency_key,
        }))))
    }
}

/// Refuses fields that do not go with a flag which names a file. `flag` names the flag of a field.
pub(crate) fn none_with(
    file_flag: &str,
    fields: &Map<String, Value>,
    flag: impl Fn(&str) -> String,
) -> Result<(), Invalid> {
    match fields.keys().next() {
        None => Ok(()),
        Some(field) => {
            let rule = format!("is not allowed with `{file_flag}`; write it into the file");
            Err(Invalid::new(flag(field), rule))
        }
    }
}

/// Returns a job of these fields. The payload is kept byte for byte.
pub(crate) fn new_job(fields: Map<String, Value>, payload: Option<Json>) -> anyhow::Result<NewJob> {
    let job: NewJob = body_of(Value::Object(fields), flag_of_job_field)?;
    Ok(NewJob {
        payload: payload.or(job.payload),
        ..job
    })
}

/// Returns the flag of a field of a job.
pub(crate) fn flag_of_job_field(field: &str) -> String {
    let name = field.split(['[', '.']).next().unwrap_or(field);
    match (name, field) {
        ("kind", _) => "KIND".to_owned(),
        ("limit", _) => "--concurrency-limit".to_owned(),
        ("tags", _) => "--tag".to_owned(),
        ("http", "http.url" | "http") => "--http-url".to_owned(),
        ("http", field) => flag_of_field(field),
        (name, _) => flag_of_field(name),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};
    use windlass_api::params;

    use super::*;

    #[derive(Debug, Parser)]
    struct Enqueue {
        #[command(flatten)]
        job: JobFlags,
    }

    fn fields(arguments: &[&str]) -> Map<String, Value> {
        let arguments = [&["enqueue"], arguments].concat();
        Enqueue::try_parse_from(arguments)
            .unwrap()
            .job
            .fields()
            .unwrap()
    }

    #[test]
    fn every_flag_is_a_field_of_the_job() {
        let (time, url) = ("2030-01-01T00:00:00Z", "https://example.com");
        let http = |field: &str, value: Value| json!({"http": {"url": url, field: value}});
        for (arguments, expected) in [
            (&["--queue", "q"][..], json!({"queue": "q"})),
            (&["--priority", "-3"], json!({"priority": -3})),
            (&["--delay", "10m"], json!({"delay": "10m"})),
            (&["--run-at", time], json!({"run_at": time})),
            (&["--max-attempts", "5"], json!({"max_attempts": 5})),
            (&["--retry", "patient"], json!({"retry": "patient"})),
            (
                &["--retry", r#"{"preset": "patient"}"#],
                json!({"retry": {"preset": "patient"}}),
            ),
            (
                &["--delivery", "at_most_once"],
                json!({"delivery": "at_most_once"}),
            ),
            (&["--timeout", "none"], json!({"timeout": "none"})),
            (&["--deadline", time], json!({"deadline": time})),
            (&["--expires-in", "1d"], json!({"expires_in": "1d"})),
            (
                &[
                    "--unique-key",
                    "k",
                    "--unique-for",
                    "1h",
                    "--on-duplicate",
                    "replace",
                ],
                json!({"unique_key": "k", "unique_for": "1h", "on_duplicate": "replace"}),
            ),
            (
                &["--concurrency-key", "k", "--concurrency-limit", "3"],
                json!({"concurrency_key": "k", "limit": 3}),
            ),
            (&["--tag", "a", "--tag", "b"], json!({"tags": ["a", "b"]})),
            (
                &["--meta", "a=b=c", "--meta", "n=5"],
                json!({"meta": {"a": "b=c", "n": 5}}),
            ),
            (&["--http-url", url], json!({"http": {"url": url}})),
            (
                &["--http-url", url, "--http-method", "GET"],
                http("method", json!("GET")),
            ),
            (
                &["--http-url", url, "--http-header", "X-A: b: c"],
                http("headers", json!({"X-A": "b: c"})),
            ),
            (
                &["--http-url", url, "--http-body", "hello"],
                http("body", json!("hello")),
            ),
            (
                &["--http-url", url, "--http-body", "[1]"],
                http("body", json!([1])),
            ),
            (
                &["--http-url", url, "--http-sign", "s"],
                http("sign", json!(["s"])),
            ),
            (
                &[
                    "--http-url",
                    url,
                    "--http-permanent-status",
                    "404",
                    "--http-permanent-status",
                    "5xx",
                ],
                http("permanent_statuses", json!([404, "5xx"])),
            ),
            (
                &["--http-url", url, "--http-async"],
                http("async", json!(true)),
            ),
            (
                &[
                    "--http-url",
                    url,
                    "--http-async",
                    "--http-complete-within",
                    "2h",
                ],
                json!({"http": {"url": url, "async": true, "complete_within": "2h"}}),
            ),
            (
                &["--http-url", url, "--http-idempotency-key", "k"],
                http("idempotency_key", json!("k")),
            ),
        ] {
            assert_eq!(Value::Object(fields(arguments)), expected, "{arguments:?}");
        }
        assert!(fields(&[]).is_empty());
    }

    #[test]
    fn every_field_of_a_job_has_a_flag() {
        let aliases = ["type", "retry_at", "max_retries", "maxRetryCount"];
        let is_alias = |name: &str| aliases.contains(&name) || name.ends_with("_ms");
        let command = Enqueue::command();
        let flags: Vec<&str> = command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .collect();
        for param in params::<NewJob>() {
            let flag = flag_of_job_field(&param.name);
            let is_argument = matches!(param.name.as_str(), "kind" | "payload");
            let has_flag = flags.contains(&flag.trim_start_matches('-'));
            assert!(
                is_argument || is_alias(&param.name) || has_flag,
                "{}",
                param.name
            );
        }
    }

    #[test]
    fn a_broken_rule_names_its_flag() {
        for (arguments, flag) in [
            (&[][..], "KIND"),
            (&["--delay", "soon"], "--delay"),
            (&["--max-attempts", "1001"], "--max-attempts"),
            (&["--retry", "nope"], "--retry"),
            (&["--retry", r#"{"backoff": {"type": "odd"}}"#], "--retry"),
            (&["--delivery", "once"], "--delivery"),
            (&["--unique-key", ""], "--unique-key"),
            (
                &["--concurrency-key", "k", "--concurrency-limit", "0"],
                "--concurrency-limit",
            ),
            (&["--tag", ""], "--tag"),
            (&["--meta", "windlass.x=1"], "--meta"),
        ] {
            let mut fields = fields(arguments);
            if flag != "KIND" {
                fields.insert("kind".to_owned(), json!("k"));
            }
            let refused = new_job(fields, None).unwrap_err();
            let invalid = refused.downcast_ref::<Invalid>().unwrap();
            assert_eq!(invalid.field(), flag, "{arguments:?}: {invalid}");
        }
    }
}
