//! Every setting, said once: its name, type, default, rule and meaning.
//!
//! Reading, printing, the example file and the reference page all come from here.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use tracing_subscriber::filter::LevelFilter;
use windlass_core::retry::RetryPolicy;
use windlass_core::{QueueName, format_duration};
use windlass_http::Cidr;

use super::layers::Layers;
use super::secret::{Secret, StoreUrl};
use super::value::{Broken, LogFormat, Readable};
use super::{Origin, Problem};
use crate::secrets::MasterKey;

/// What can be set.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name in a file: `http.header_time`.
    pub key: &'static str,
    /// What kind of value it takes.
    pub kind: &'static str,
    /// Its default as it would be written in a file; empty where there is none.
    pub default: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Whether its value is hidden.
    pub secret: bool,
}

impl Setting {
    /// Its name in the environment: `WINDLASS_HTTP_HEADER_TIME`.
    pub fn variable(&self) -> String {
        format!("WINDLASS_{}", self.key.replace('.', "_").to_uppercase())
    }
}

macro_rules! settings {
    ($($key:literal $field:ident: $type:ty = $default:literal, $rule:expr, $doc:literal;)*) => {
        /// Everything that can be set, as it is.
        #[derive(Debug, Clone)]
        pub struct Config {
            $(#[doc = $doc] pub $field: $type,)*
            pub(super) origins: BTreeMap<&'static str, Origin>,
            /// What is allowed, and should be looked at.
            pub warnings: Vec<String>,
        }

        /// All settings, in the order of the example file.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: $key,
            kind: <$type as Readable>::KIND,
            default: $default,
            doc: $doc,
            secret: <$type as Readable>::SECRET,
        }),*];

        /// What could be read of it: nothing where a value breaks a rule of its own.
        pub(super) struct Partial {
            $(pub(super) $field: Option<$type>,)*
        }

        impl Partial {
            /// Reads every setting; what is wrong is added to the problems.
            pub(super) fn read(layers: &mut Layers, problems: &mut Vec<Problem>) -> Self {
                Partial {
                    $($field: layers.read::<$type>($key, $default, $rule, problems),)*
                }
            }

            /// The whole of it, if everything could be read.
            pub(super) fn whole(self, layers: Layers) -> Option<Config> {
                Some(Config {
                    $($field: self.$field?,)*
                    origins: layers.origins,
                    warnings: layers.warnings,
                })
            }
        }

        impl Config {
            /// Each setting as it would be written in a file; nothing secret.
            pub(super) fn shown(&self) -> Vec<(&'static str, String)> {
                vec![$(($key, self.$field.show())),*]
            }
        }
    };
}

settings! {
    "bind" bind: SocketAddr = r#""127.0.0.1:8080""#, any,
        "Where the server listens. Port 0 takes any that is free. Anything but loopback needs a key, and `tls`, `behind_proxy` or `insecure`.";
    "data" data: PathBuf = r#""windlass-data""#, any,
        "The directory of the embedded store. It is made if it is not there, for its owner alone.";
    "store" store: Option<StoreUrl> = "", any,
        "Where jobs are kept: `sqlite:path`, `postgres://user@host/database`, or `memory:` (nothing is durable). Without it, `windlass.db` in the data directory.";
    "behind_proxy" behind_proxy: bool = "false", any,
        "Says that a proxy in front takes care of TLS, so that a public `bind` without `tls` is fine. Keys are still needed.";
    "insecure" insecure: bool = "false", any,
        "Allows a public `bind` without TLS and without keys. Everybody who reaches the server may do everything.";
    "hosts" hosts: Vec<String> = "[]", |hosts: &Vec<String>| host_names(hosts),
        "While there is no key, the server answers only requests whose `Host` is a name of loopback, one of these, or, with `insecure`, any address.";

    "tls.certificate" tls_certificate: Option<PathBuf> = "", any,
        "The certificate and those that it is signed by, in PEM. With `tls.key`, the server speaks TLS.";
    "tls.key" tls_key: Option<PathBuf> = "", any,
        "The private key of the certificate, in PEM.";

    "log.format" log_format: LogFormat = r#""text""#, any,
        "`text` for people, `json` for programs.";
    "log.level" log_level: String = r#""info""#, |filter: &String| log_level(filter),
        "What is logged: `error`, `warn`, `info`, `debug` or `trace`, or a filter like `info,windlass_server=debug`.";

    "jobs.lease" lease: Duration = r#""30s""#, between(1, 86_400),
        "How long a claim holds a job unless it says otherwise. At least three times `jobs.sweep_every`.";
    "jobs.lease_max" lease_max: Duration = r#""1h""#, between(1, 86_400),
        "The longest lease that a worker may ask for.";
    "jobs.sweep_every" sweep_every: Duration = r#""500ms""#, longer_than_nothing,
        "How often expired leases are looked for.";
    "jobs.retry" retry: RetryPolicy = r#""standard""#, any,
        "The retry policy of jobs that neither have one of their own nor from their queue: a preset's name, or a table with the fields that a policy has in JSON, such as `preset`, `max_retries` and `base_ms`.";
    "jobs.retry_cap" retry_cap: Option<u64> = "", |cap: &Option<u64>| maybe_within(1, 1000, cap),
        "The most attempts of a job that this server grants, whatever the job or its policy asks for; as many as they ask for, if not set. `1` is fail fast.";
    "jobs.payload_bytes" payload_bytes: u64 = "1048576", within(1, 64 * 1024 * 1024),
        "The largest payload. `http.bulk_bytes` must have room for it and for the rest of a job.";

    "http.bulk_bytes" bulk_bytes: u64 = "16777216", within(1024, 1024 * 1024 * 1024),
        "The largest body of a request about many jobs. No body is larger.";
    "http.idempotency_keys" idempotency_keys: u64 = "1000000", within(1, 1_000_000_000),
        "The most requests with an `Idempotency-Key` that one caller sends to this server within a day. Each is noted for a day; an answer counts once more for each KiB that is kept of it.";
    "http.header_time" header_time: Duration = r#""10s""#, longer_than_nothing,
        "The head of a request comes within this time.";
    "http.header_bytes" header_bytes: u64 = "32768", within(1024, 1024 * 1024),
        "The largest head of a request.";
    "http.header_fields" header_fields: u64 = "100", within(10, 1000),
        "The most header fields of a request.";
    "http.body_time" body_time: Duration = r#""30s""#, longer_than_nothing,
        "A body comes within this time, and a second more for each `http.body_bytes_per_second` of it.";
    "http.body_bytes_per_second" body_bytes_per_second: u64 = "16384", within(1, 1024 * 1024 * 1024),
        "A long body comes at least so fast.";
    "http.write_time" write_time: Duration = r#""30s""#, longer_than_nothing,
        "In each stretch of so long, the other side takes at least `http.write_bytes` of an answer that waits.";
    "http.write_bytes" write_bytes: u64 = "65536", within(1, 64 * 1024 * 1024),
        "See `http.write_time`.";
    "http.idle_time" idle_time: Duration = r#""60s""#, longer_than_nothing,
        "A connection without a request is closed after this time.";
    "http.connections" connections: u64 = "10000", within(1, 1_000_000),
        "The most connections. Past them, health is still answered.";
    "http.connections_per_address" connections_per_address: u64 = "256", within(1, 1_000_000),
        "The most connections from one address, or from one /64 of IPv6. Raise it behind a proxy.";
    "http.streams" streams: u64 = "100", within(1, 10_000),
        "The most requests at once on one HTTP/2 connection.";
    "http.wait_max" wait_max: Duration = r#""60s""#, between(1, 3600),
        "The longest that a request may wait for jobs, or for the end of one.";
    "http.waiting_max" waiting_max: u64 = "1000", within(1, 1_000_000),
        "At most this many requests wait at once, and at most this many listen to events. One API key gets at most half of them.";

    "http_jobs.run" http_jobs_run: bool = "true", any,
        "Whether this server runs HTTP jobs.";
    "http_jobs.concurrency" http_jobs_concurrency: u64 = "100", within(1, 10_000),
        "The most HTTP jobs of one queue that run at once; those of all queues together are at most ten times as many, and 10,000.";
    "http_jobs.per_host" http_jobs_per_host: Option<u64> = "", maybe_positive,
        "The most requests to one host at once; no bound if not set.";
    "http_jobs.allow_targets" allow_targets: Vec<String> = "[]", |ranges: &Vec<String>| cidrs(ranges),
        "Ranges of addresses that HTTP jobs may reach beside public ones: `10.1.0.0/16`. Private, loopback, link-local and metadata addresses are refused otherwise.";
    "http_jobs.connect_timeout" http_jobs_connect_timeout: Duration = r#""5s""#, longer_than_nothing,
        "Resolving a target's name, connecting and the TLS handshake may each take so long.";
    "http_jobs.outcome_retry_max" outcome_retry_max: Duration = r#""5m""#, longer_than_nothing,
        "An outcome that the store keeps refusing is retried for at most this long after the request ended. Then its lease expires and the attempt counts as lost.";
    "http_jobs.ca_file" http_jobs_ca_file: Option<PathBuf> = "", any,
        "Certificates of further authorities that targets may be signed by, in PEM.";
    "http_jobs.public_url" public_url: Option<String> = "", |url: &Option<String>| maybe_url(url.as_deref()),
        "Where others reach this server, such as `https://jobs.example.org`: sent along with requests that are completed later.";

    "retention.finished" retention_finished: Duration = r#""7d""#, whole_days,
        "How long succeeded and cancelled jobs are kept, in whole days. An `Idempotency-Key` is remembered for one day, so a job is kept at least as long.";
    "retention.dead" retention_dead: Option<Duration> = "", maybe_whole_days,
        "How long dead jobs are kept, in whole days; until a person purges them, if not set.";
    "retention.queues" retention_queues: BTreeMap<QueueName, Duration> = "{}", each_whole_days,
        "Other times than `retention.finished` for single queues.";
    "retention.replaced_payloads" retention_replaced_payloads: Duration = r#""7d""#, any,
        "How long a payload that a change of a job or a schedule replaced is kept, for those who may read payloads; `\"0s\"` keeps none. Payloads over 1 MiB are not kept.";

    "shutdown.grace" shutdown_grace: Duration = r#""30s""#, any,
        "At the end, running requests and jobs have so long to finish. A second signal ends the waiting.";

    "secrets.master_key" master_key: Option<Secret> = "", |key: &Option<Secret>| master_keys(key.as_slice()),
        "The key that secrets in the store are encrypted with: 64 hexadecimal digits, as `windlass secrets new-key` prints them.";
    "secrets.old_keys" old_keys: Vec<Secret> = "[]", |keys: &Vec<Secret>| master_keys(keys),
        "Former master keys: what they encrypted can still be read, until `windlass secrets rotate` has written it anew.";
}

fn any<T>(_: &T) -> Result<(), Broken> {
    Ok(())
}

fn within(min: u64, max: u64) -> impl Fn(&u64) -> Result<(), Broken> {
    move |number| match (min..=max).contains(number) {
        true => Ok(()),
        false => Err(format!("must be from {min} to {max}, got {number}")),
    }
}

fn between(min_seconds: u64, max_seconds: u64) -> impl Fn(&Duration) -> Result<(), Broken> {
    let (min, max) = (
        Duration::from_secs(min_seconds),
        Duration::from_secs(max_seconds),
    );
    move |duration| match (min..=max).contains(duration) {
        true => Ok(()),
        false => Err(format!(
            "must be from {} to {}",
            format_duration(min),
            format_duration(max)
        )),
    }
}

fn longer_than_nothing(duration: &Duration) -> Result<(), Broken> {
    match duration.is_zero() {
        true => Err("must be longer than nothing".to_owned()),
        false => Ok(()),
    }
}

fn whole_days(duration: &Duration) -> Result<(), Broken> {
    const DAY: u128 = 86_400_000_000;
    match duration.as_micros() {
        micros if micros >= DAY && micros % DAY == 0 => Ok(()),
        _ => Err("must be whole days, at least one: \"7d\"".to_owned()),
    }
}

fn maybe_whole_days(duration: &Option<Duration>) -> Result<(), Broken> {
    duration.as_ref().map_or(Ok(()), whole_days)
}

fn each_whole_days(queues: &BTreeMap<QueueName, Duration>) -> Result<(), Broken> {
    queues.values().try_for_each(whole_days)
}

fn maybe_within(min: u64, max: u64, number: &Option<u64>) -> Result<(), Broken> {
    number.as_ref().map_or(Ok(()), within(min, max))
}

fn maybe_positive(number: &Option<u64>) -> Result<(), Broken> {
    match number {
        Some(0) => Err("must be at least 1".to_owned()),
        _ => Ok(()),
    }
}

fn cidrs(ranges: &[String]) -> Result<(), Broken> {
    for range in ranges {
        let read = range.parse::<Cidr>();
        read.map_err(|refusal| format!("{range:?}: {}", refusal.rule()))?;
    }
    Ok(())
}

/// Names as they stand in `Host`, without a port.
fn host_names(hosts: &[String]) -> Result<(), Broken> {
    for host in hosts {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_name = |name: &str| {
            let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
            !name.is_empty() && name.len() <= 253 && name.chars().all(allowed)
        };
        if !is_name(host) && bare.parse::<IpAddr>().is_err() {
            return Err(format!(
                "must be names like \"jobs.example.org\" or addresses, without scheme, port and path, got {host:?}"
            ));
        }
    }
    Ok(())
}

fn maybe_url(url: Option<&str>) -> Result<(), Broken> {
    let Some(url) = url else { return Ok(()) };
    let good = |uri: &Uri| {
        let secure = matches!(uri.scheme_str(), Some("http" | "https"));
        let host = uri.host().is_some_and(|host| !host.is_empty());
        secure && host && uri.query().is_none() && !url.contains(['@', '#'])
    };
    match url.parse::<Uri>() {
        Ok(uri) if good(&uri) => Ok(()),
        _ => Err("must be like https://jobs.example.org, without user, query and fragment".into()),
    }
}

fn master_keys(keys: &[Secret]) -> Result<(), Broken> {
    let digits = "must be 64 hexadecimal digits, as `windlass secrets new-key` prints them";
    let mut read = keys.iter().map(|key| MasterKey::parse(key.reveal()));
    read.try_for_each(|key| key.map(drop))
        .map_err(|_| digits.to_owned())
}

fn log_level(filter: &str) -> Result<(), Broken> {
    // A word alone is taken for the name of a module, and a typo of a level would log nothing else.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let mut parts = filter.split(',').map(str::trim);
    let typo = parts.find(|part| !part.contains(['=', '[', ']', '{', '}']) && !is_level(part));
    if let Some(typo) = typo {
        return Err(format!(
            "must be a level (error, warn, info, debug, trace, off) or a filter like \"info,windlass_server=debug\", got {typo:?}"
        ));
    }
    let read = filter.parse::<tracing_subscriber::EnvFilter>();
    read.map(drop)
        .map_err(|error| format!("must be a level or a filter: {error}"))
}
