//! Declares every setting once: its key, type, default, rule and documentation.
//!
//! Loading, printing, the example file and the reference page all use these declarations.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::{HeaderName, Uri};
use tracing_subscriber::filter::LevelFilter;
use windlass_core::retry::RetryPolicy;
use windlass_core::{QueueName, format_duration};
use windlass_dashboard::Colour;
use windlass_http::Cidr;

use super::layers::Layers;
use super::secret::{Secret, StoreUrl};
use super::value::{BrokenRule, LogFormat, PeopleTable, SettingValue};
use super::{Origin, Problem};
use crate::secrets::MasterKey;

/// The declaration of a setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The key in the configuration file: `http.header_time`.
    pub key: &'static str,
    /// The type of its value, in words.
    pub kind: &'static str,
    /// The default in TOML syntax. Empty if the setting has no default.
    pub default: &'static str,
    /// What the setting does.
    pub doc: &'static str,
    /// Whether the value is a secret, which is never printed.
    pub secret: bool,
}

impl Setting {
    /// Returns the name of its environment variable: `WINDLASS_HTTP_HEADER_TIME`.
    pub fn variable(&self) -> String {
        format!("WINDLASS_{}", self.key.replace('.', "_").to_uppercase())
    }
}

macro_rules! settings {
    ($($key:literal $field:ident: $type:ty = $default:literal, $rule:expr, $doc:literal;)*) => {
        /// The value of every setting.
        #[derive(Debug, Clone)]
        pub struct Config {
            $(#[doc = $doc] pub $field: $type,)*
            pub(super) origins: BTreeMap<&'static str, Origin>,
            /// Problems that do not prevent a start but that an operator should look at.
            pub warnings: Vec<String>,
        }

        /// The declarations of all settings, in the order of the example file.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: $key,
            kind: <$type as SettingValue>::KIND,
            default: $default,
            doc: $doc,
            secret: <$type as SettingValue>::SECRET,
        }),*];

        /// The settings read so far. A setting with an invalid value is `None`.
        pub(super) struct PartialConfig {
            $(pub(super) $field: Option<$type>,)*
        }

        impl PartialConfig {
            /// Reads every setting and adds invalid values to `problems`.
            pub(super) fn read(layers: &mut Layers, problems: &mut Vec<Problem>) -> Self {
                PartialConfig {
                    $($field: layers.read::<$type>($key, $default, $rule, problems),)*
                }
            }

            /// Returns the configuration, or `None` if a setting is invalid.
            pub(super) fn complete(self, layers: Layers) -> Option<Config> {
                Some(Config {
                    $($field: self.$field?,)*
                    origins: layers.origins,
                    warnings: layers.warnings,
                })
            }
        }

        impl Config {
            /// Returns every setting in TOML syntax, with secrets hidden.
            pub(super) fn shown(&self) -> Vec<(&'static str, String)> {
                vec![$(($key, self.$field.show())),*]
            }
        }
    };
}

settings! {
    "bind" bind: SocketAddr = r#""127.0.0.1:8080""#, any,
        "The address that the server listens on. Port 0 picks a free port. An address other than loopback needs an API key and one of `tls`, `behind_proxy` or `insecure`.";
    "data" data: PathBuf = r#""windlass-data""#, any,
        "The directory of the embedded store. The server creates it if it does not exist, readable only by its owner.";
    "store" store: Option<StoreUrl> = "", any,
        "The store that holds the jobs: `sqlite:path`, `postgres://user@host/database`, or `memory:` (jobs are lost when the server stops). If not set, `windlass.db` in the data directory.";
    "behind_proxy" behind_proxy: bool = "false", any,
        "Confirms that a proxy in front of the server terminates TLS, which allows a public `bind` without `tls`. Clients still need API keys.";
    "insecure" insecure: bool = "false", any,
        "Allows a public `bind` without TLS and without API keys. Anyone who can reach the server can then do everything.";
    "hosts" hosts: Vec<String> = "[]", |hosts: &Vec<String>| host_names(hosts),
        "Additional host names for a server without API keys. Such a server accepts a request only if its `Host` header is a loopback name, one of these names or, with `insecure`, any IP address.";

    "tls.certificate" tls_certificate: Option<PathBuf> = "", any,
        "The PEM file with the server's certificate, followed by its intermediate certificates. With `tls.key`, the server accepts only TLS connections.";
    "tls.key" tls_key: Option<PathBuf> = "", any,
        "The PEM file with the private key of the certificate.";

    "log.format" log_format: LogFormat = r#""text""#, any,
        "`text` is for people, `json` for programs.";
    "log.level" log_level: String = r#""info""#, |filter: &String| log_level(filter),
        "The lowest level to log: `error`, `warn`, `info`, `debug` or `trace`. Also accepts a filter like `info,windlass_server=debug`.";

    "jobs.lease" lease: Duration = r#""30s""#, between(1, 86_400),
        "The lease of a claim that does not ask for one, from 1 s to 24 h. At least three times `jobs.sweep_every`.";
    "jobs.lease_max" lease_max: Duration = r#""1h""#, between(1, 86_400),
        "The longest lease that a worker can request, from 1 s to 24 h. At least `jobs.lease`.";
    "jobs.sweep_every" sweep_every: Duration = r#""500ms""#, positive,
        "How often the server looks for expired leases. More than 0.";
    "jobs.retry" retry: RetryPolicy = r#""standard""#, any,
        "The retry policy for jobs that have none of their own and none from their queue: the name of a preset, or a table with the same fields as a policy in JSON, such as `preset`, `max_retries` and `base_ms`.";
    "jobs.retry_cap" retry_cap: Option<u64> = "", |cap: &Option<u64>| within_if_set(1, 1000, cap),
        "The most attempts that this server allows for a job, whatever the job or its policy requests. From 1 to 1000; no cap if not set. With `1`, failed jobs are never retried.";
    "jobs.payload_bytes" payload_bytes: u64 = "1048576", within(1, 64 * 1024 * 1024),
        "The largest payload of a job in bytes, up to 64 MiB. `http.bulk_bytes` must be large enough for the payload and the other fields of a job.";

    "http.bulk_bytes" bulk_bytes: u64 = "16777216", within(1024, 1024 * 1024 * 1024),
        "The largest request body in bytes, from 1 KiB to 1 GiB. It applies to requests about many jobs; other requests have smaller limits.";
    "http.idempotency_keys" idempotency_keys: u64 = "1000000", within(1, 1_000_000_000),
        "The most requests with an `Idempotency-Key` that one API key can send to this server in 24 hours, up to 1,000,000,000. A stored response counts as one more request for every full KiB.";
    "http.header_time" header_time: Duration = r#""10s""#, positive,
        "Clients must send a whole request head within this time.";
    "http.header_bytes" header_bytes: u64 = "32768", within(1024, 1024 * 1024),
        "The largest request head in bytes, from 1 KiB to 1 MiB.";
    "http.header_fields" header_fields: u64 = "100", within(10, 1000),
        "The most header fields in a request, from 10 to 1000.";
    "http.body_time" body_time: Duration = r#""30s""#, positive,
        "Clients must send a whole request body within this time, plus one second for every `http.body_bytes_per_second` received.";
    "http.body_bytes_per_second" body_bytes_per_second: u64 = "16384", within(1, 1024 * 1024 * 1024),
        "The slowest rate at which clients may send a long body, in bytes per second, up to 1 GiB.";
    "http.write_time" write_time: Duration = r#""30s""#, positive,
        "Clients must read at least `http.write_bytes` of a response in every window of this length, or they are disconnected.";
    "http.write_bytes" write_bytes: u64 = "65536", within(1, 64 * 1024 * 1024),
        "The least that clients must read of a response within `http.write_time`, in bytes, up to 64 MiB.";
    "http.idle_time" idle_time: Duration = r#""60s""#, positive,
        "The server closes a connection that has no request for this long.";
    "http.connections" connections: u64 = "10000", within(1, 1_000_000),
        "The most open connections, up to 1,000,000. Further connections can only query `/livez`, `/readyz` and `/metrics`.";
    "http.connections_per_address" connections_per_address: u64 = "256", within(1, 1_000_000),
        "The most open connections from one IPv4 address or one IPv6 /64 network. At most `http.connections`. Raise it if a proxy is in front of the server.";
    "http.streams" streams: u64 = "100", within(1, 10_000),
        "The most concurrent requests on one HTTP/2 connection, up to 10,000.";
    "http.wait_max" wait_max: Duration = r#""60s""#, between(1, 3600),
        "The longest time that a long poll can wait for jobs or for a result, from 1 s to 1 h.";
    "http.waiting_max" waiting_max: u64 = "1000", within(1, 1_000_000),
        "The most open long polls, and separately the most open event streams, up to 1,000,000. One API key can use at most half of each.";

    "http_jobs.run" http_jobs_run: bool = "true", any,
        "Whether this server runs HTTP jobs.";
    "http_jobs.concurrency" http_jobs_concurrency: u64 = "100", within(1, 10_000),
        "The most HTTP jobs of one queue that run at once, up to 10,000. All queues together run at most ten times as many, and at most 10,000.";
    "http_jobs.per_host" http_jobs_per_host: Option<u64> = "", at_least_one_if_set,
        "The most concurrent requests to one host. No limit if not set.";
    "http_jobs.allow_targets" allow_targets: Vec<String> = "[]", |ranges: &Vec<String>| cidrs(ranges),
        "Address ranges that HTTP jobs can reach in addition to public addresses, such as `10.1.0.0/16`. Otherwise the server refuses private, loopback, link-local and metadata addresses.";
    "http_jobs.connect_timeout" http_jobs_connect_timeout: Duration = r#""5s""#, positive,
        "The time limit for each of three steps: resolving the target's name, connecting, and the TLS handshake.";
    "http_jobs.outcome_retry_max" outcome_retry_max: Duration = r#""5m""#, positive,
        "How long the server retries writing an outcome to an unavailable store after the request has ended. After that, the lease expires and the attempt counts as lost.";
    "http_jobs.ca_file" http_jobs_ca_file: Option<PathBuf> = "", any,
        "A PEM file with additional certificate authorities to trust for targets.";
    "http_jobs.public_url" public_url: Option<String> = "", |url: &Option<String>| url_if_set(url.as_deref()),
        "The URL at which targets reach this server, such as `https://jobs.example.org`. Targets that complete a job later receive a completion URL that starts with it.";

    "dashboard.serve" dashboard_serve: bool = "true", any,
        "Whether this server serves the dashboard at `/`.";
    "dashboard.environment" dashboard_environment: Option<String> = "", |label: &Option<String>| label_if_set(label.as_deref()),
        "A label for the environment, such as `production`, which every page shows. At most 24 characters.";
    "dashboard.colour" dashboard_colour: Colour = r#""grey""#, any,
        "The colour of the label: `grey`, `green`, `blue`, `amber` or `red`.";
    "dashboard.read_only" dashboard_read_only: bool = "false", any,
        "Whether the dashboard changes nothing, whatever a person may do. The REST API is not affected.";
    "dashboard.proxies" dashboard_proxies: Vec<String> = "[]", |ranges: &Vec<String>| cidrs(ranges),
        "Addresses of proxies that authenticate people, such as `10.0.0.5/32`. They name the person in a header. Needs `dashboard.proxy_secret`. The server refuses such headers from all other addresses.";
    "dashboard.proxy_secret" dashboard_proxy_secret: Option<Secret> = "", any,
        "The secret that the proxies send with every request, so that only they can name a person.";
    "dashboard.proxy_secret_header" dashboard_proxy_secret_header: String = r#""x-windlass-proxy-secret""#, |name: &String| header_name(name),
        "The header with the secret of the proxies.";
    "dashboard.user_header" dashboard_user_header: String = r#""x-forwarded-user""#, |name: &String| header_name(name),
        "The header in which the proxies name the person.";
    "dashboard.groups_header" dashboard_groups_header: String = r#""x-forwarded-groups""#, |name: &String| header_name(name),
        "The header in which the proxies list the groups of the person, separated by commas.";
    "dashboard.people" dashboard_people: PeopleTable = "{}", any,
        "What people may do: the scopes of a person, such as `read,operate` for `mara`, and of a group, such as `admin` for `group:ops`. A person in no row has no access.";

    "retention.finished" retention_finished: Duration = r#""7d""#, whole_days,
        "How long the server keeps succeeded and cancelled jobs, in whole days. At least one day, because an `Idempotency-Key` is remembered for one day.";
    "retention.dead" retention_dead: Option<Duration> = "", whole_days_if_set,
        "How long the server keeps dead jobs, in whole days. If not set, it keeps them until someone deletes them.";
    "retention.queues" retention_queues: BTreeMap<QueueName, Duration> = "{}", each_whole_days,
        "Retention of finished jobs for single queues, instead of `retention.finished`. In whole days.";
    "retention.replaced_payloads" retention_replaced_payloads: Duration = r#""7d""#, any,
        "How long the server keeps a payload after a change to a job or schedule replaced it. Callers who may read payloads can read it. `\"0s\"` keeps none. Payloads over 1 MiB are not kept.";

    "shutdown.grace" shutdown_grace: Duration = r#""30s""#, any,
        "How long running requests and jobs have to finish at shutdown. A second signal stops the server at once.";

    "secrets.master_key" master_key: Option<Secret> = "", |key: &Option<Secret>| master_keys(key.as_slice()),
        "The key that encrypts the secrets in the store: 64 hexadecimal digits. `windlass secrets new-key` prints a new one.";
    "secrets.old_keys" old_keys: Vec<Secret> = "[]", |keys: &Vec<Secret>| master_keys(keys),
        "Earlier master keys, which can still decrypt secrets. You can remove them once `windlass secrets rotate` has re-encrypted all secrets.";
}

fn any<T>(_: &T) -> Result<(), BrokenRule> {
    Ok(())
}

fn within(min: u64, max: u64) -> impl Fn(&u64) -> Result<(), BrokenRule> {
    move |number| {
        if (min..=max).contains(number) {
            Ok(())
        } else {
            Err(format!("must be from {min} to {max}, got {number}"))
        }
    }
}

fn between(min_seconds: u64, max_seconds: u64) -> impl Fn(&Duration) -> Result<(), BrokenRule> {
    let (min, max) = (
        Duration::from_secs(min_seconds),
        Duration::from_secs(max_seconds),
    );
    move |duration| {
        if (min..=max).contains(duration) {
            return Ok(());
        }
        let (min, max) = (format_duration(min), format_duration(max));
        Err(format!("must be from {min} to {max}"))
    }
}

fn positive(duration: &Duration) -> Result<(), BrokenRule> {
    if duration.is_zero() {
        return Err("must be more than 0".to_owned());
    }
    Ok(())
}

fn whole_days(duration: &Duration) -> Result<(), BrokenRule> {
    const DAY: u128 = 86_400_000_000;
    match duration.as_micros() {
        micros if micros >= DAY && micros % DAY == 0 => Ok(()),
        _ => Err("must be a whole number of days, at least one, like \"7d\"".to_owned()),
    }
}

fn whole_days_if_set(duration: &Option<Duration>) -> Result<(), BrokenRule> {
    duration.as_ref().map_or(Ok(()), whole_days)
}

fn each_whole_days(queues: &BTreeMap<QueueName, Duration>) -> Result<(), BrokenRule> {
    queues.values().try_for_each(whole_days)
}

fn within_if_set(min: u64, max: u64, number: &Option<u64>) -> Result<(), BrokenRule> {
    number.as_ref().map_or(Ok(()), within(min, max))
}

fn at_least_one_if_set(number: &Option<u64>) -> Result<(), BrokenRule> {
    match number {
        Some(0) => Err("must be at least 1".to_owned()),
        _ => Ok(()),
    }
}

fn cidrs(ranges: &[String]) -> Result<(), BrokenRule> {
    for range in ranges {
        let parsed = range.parse::<Cidr>();
        parsed.map_err(|invalid| format!("{range:?}: {}", invalid.rule()))?;
    }
    Ok(())
}

/// Checks names as a client sends them in `Host`, without a port.
fn host_names(hosts: &[String]) -> Result<(), BrokenRule> {
    for host in hosts {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_name = |name: &str| {
            let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
            !name.is_empty() && name.len() <= 253 && name.chars().all(allowed)
        };
        if !is_name(host) && bare.parse::<IpAddr>().is_err() {
            return Err(format!(
                "must be host names like \"jobs.example.org\" or IP addresses, without scheme, port or path, got {host:?}"
            ));
        }
    }
    Ok(())
}

fn label_if_set(label: Option<&str>) -> Result<(), BrokenRule> {
    let is_label = |label: &str| {
        (1..=24).contains(&label.chars().count()) && !label.contains(char::is_control)
    };
    match label {
        Some(label) if !is_label(label) => {
            Err("must be 1 to 24 characters without control characters".to_owned())
        }
        _ => Ok(()),
    }
}

fn header_name(name: &str) -> Result<(), BrokenRule> {
    let parsed = name.parse::<HeaderName>();
    parsed
        .map(drop)
        .map_err(|_| "must be the name of a header, such as \"x-forwarded-user\"".to_owned())
}

fn url_if_set(url: Option<&str>) -> Result<(), BrokenRule> {
    let Some(url) = url else { return Ok(()) };
    let is_base_url = |uri: &Uri| {
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        is_http && has_host && uri.query().is_none() && !url.contains(['@', '#'])
    };
    match url.parse::<Uri>() {
        Ok(uri) if is_base_url(&uri) => Ok(()),
        _ => Err(
            "must be a URL like https://jobs.example.org, without user, query or fragment".into(),
        ),
    }
}

fn master_keys(keys: &[Secret]) -> Result<(), BrokenRule> {
    let rule = "must be 64 hexadecimal digits; `windlass secrets new-key` prints a new key";
    let mut parsed = keys.iter().map(|key| MasterKey::parse(key.reveal()));
    parsed
        .try_for_each(|key| key.map(drop))
        .map_err(|_| rule.to_owned())
}

fn log_level(filter: &str) -> Result<(), BrokenRule> {
    // `EnvFilter` takes a bare word for a module name, so a mistyped level would silence the log.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let mut parts = filter.split(',').map(str::trim);
    let typo = parts.find(|part| !part.contains(['=', '[', ']', '{', '}']) && !is_level(part));
    if let Some(typo) = typo {
        return Err(format!(
            "must be a level (error, warn, info, debug, trace, off) or a filter like \"info,windlass_server=debug\", got {typo:?}"
        ));
    }
    let parsed = filter.parse::<tracing_subscriber::EnvFilter>();
    parsed
        .map(drop)
        .map_err(|error| format!("must be a level or a filter: {error}"))
}
