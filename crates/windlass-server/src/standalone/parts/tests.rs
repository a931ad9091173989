//! Tests of how settings are applied.

use std::time::Duration;

use windlass_core::retry::Preset;

use super::*;
use crate::standalone::config::{SETTINGS, Sources};

/// Settings that are converted, each with a value other than its default.
const SET: &[(&str, &str)] = &[
    ("jobs.lease", "45s"),
    ("jobs.lease_max", "2h"),
    ("jobs.sweep_every", "1s"),
    ("jobs.retry", "patient"),
    ("jobs.retry_cap", "7"),
    ("jobs.payload_bytes", "2000"),
    ("http.bulk_bytes", "400000"),
    ("http.header_time", "11s"),
    ("http.header_bytes", "33000"),
    ("http.header_fields", "90"),
    ("http.body_time", "31s"),
    ("http.body_bytes_per_second", "1000"),
    ("http.write_time", "32s"),
    ("http.write_bytes", "1001"),
    ("http.idle_time", "1m 30s"),
    ("http.connections", "500"),
    ("http.connections_per_address", "50"),
    ("http.streams", "10"),
    ("http.wait_max", "20s"),
    ("http.waiting_max", "7"),
    ("http_jobs.per_host", "3"),
    ("http_jobs.allow_targets", "10.0.0.0/8, 192.168.1.1"),
    ("http_jobs.connect_timeout", "2s"),
    ("http_jobs.public_url", "https://jobs.example/"),
    ("retention.finished", "8d"),
    ("retention.dead", "30d"),
    ("retention.queues", "mail=14d"),
    ("retention.replaced_payloads", "2d"),
    ("shutdown.grace", "5s"),
];

pub(in crate::standalone) fn config(flags: &[(&'static str, &str)]) -> Config {
    let flags = flags.iter().map(|(key, value)| (*key, (*value).to_owned()));
    let sources = Sources {
        flags: flags.collect(),
        ..Sources::default()
    };
    Config::load(&sources).expect("a good configuration")
}

/// A machine without tight limits.
fn machine() -> Machine {
    Machine {
        files: 100_000,
        outgoing: 0,
        space: None,
        has_store: false,
        unwritable: None,
        open_to_others: false,
        now: windlass_core::Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn every_setting_is_applied() {
    let config = config(SET);
    let machine = machine();
    let seconds = Duration::from_secs;
    let limits = Limits {
        header_time: seconds(11),
        header_bytes: 33_000,
        header_fields: 90,
        body_time: seconds(31),
        body_bytes_per_second: 1000,
        body_bytes_max: 400_000,
        write_time: seconds(32),
        write_bytes: 1001,
        idle_time: seconds(90),
        connections: 500,
        connections_per_address: 50,
        streams: 10,
        drain_time: seconds(5),
    };
    assert_eq!(config.limits(&machine), limits);
    let few_files = Machine {
        files: 228,
        ..machine
    };
    assert_eq!(config.limits(&few_files).connections, 100);
    let settings = config.settings();
    assert_eq!(
        (settings.payload_bytes_max, settings.bulk_bytes_max),
        (2000, 400_000)
    );
    assert_eq!(
        (settings.lease, settings.lease_max),
        (seconds(45), seconds(7200))
    );
    assert_eq!((settings.wait_max, settings.waiting_max), (seconds(20), 7));
    assert_eq!(settings.replaced_payload_retention, seconds(2 * 86_400));
    assert_eq!(
        settings.retry.policy,
        Some(Arc::new(Preset::Patient.policy()))
    );
    let cap = AttemptLimit::from_max_attempts(7).unwrap().unwrap();
    assert_eq!(settings.retry.cap, Cap::AtMost(cap));
    let own = config.bind;
    let http = config.http_config(own).expect("a good configuration");
    let allowed: Vec<_> = http.allow.iter().map(ToString::to_string).collect();
    assert_eq!(allowed, ["10.0.0.0/8", "192.168.1.1/32"]);
    assert_eq!((http.per_host, http.connect_timeout), (Some(3), seconds(2)));
    assert_eq!(http.own, [own]);
    let completions = "https://jobs.example/api/v1/completions/";
    assert_eq!(http.completion_url.as_deref(), Some(completions));
    let mut missing = config.clone();
    missing.http_jobs_ca_file = Some("/nowhere/ca.pem".into());
    let refused = missing.http_config(own);
    assert!(matches!(refused, Err(StartError::Authorities { .. })));
    let upkeep = config.upkeep("node".to_owned());
    assert_eq!(
        (upkeep.lease, upkeep.sweep_every),
        (seconds(45), seconds(1))
    );
    let days = |days: u64| seconds(days * 86_400);
    assert_eq!(upkeep.janitor.retention, days(8));
    assert_eq!(upkeep.janitor.dead_retention, Some(days(30)));
    let queues: Vec<_> = upkeep.janitor.queues.values().copied().collect();
    assert_eq!(queues, [days(14)]);
}

/// The settings of the dashboard, each with a value other than its default.
const DASHBOARD: &[(&str, &str)] = &[
    ("behind_proxy", "true"),
    ("insecure", "true"),
    ("dashboard.environment", "production"),
    ("dashboard.colour", "red"),
    ("dashboard.read_only", "true"),
    ("dashboard.proxies", "10.0.0.5/32"),
    (
        "dashboard.proxy_secret",
        "hush-hush-hush-hush-hush-hush-hush",
    ),
    ("dashboard.proxy_secret_header", "x-secret"),
    ("dashboard.user_header", "x-user"),
    ("dashboard.groups_header", "x-groups"),
    ("dashboard.people", "mara=operate"),
];

#[test]
fn every_setting_of_the_dashboard_is_applied() {
    let known = SETTINGS.iter().map(|setting| setting.key);
    let set = |key: &str| key == "dashboard.serve" || DASHBOARD.iter().any(|(set, _)| *set == key);
    let known = known.filter(|key| key.starts_with("dashboard."));
    let unset: Vec<_> = known.filter(|key| !set(key)).collect();
    assert_eq!(unset, [""; 0], "another setting needs a value above");
    let DashboardSettings {
        about,
        secure,
        proxies,
    } = config(DASHBOARD).dashboard("https://jobs.example");
    assert_eq!(about.environment.as_deref(), Some("production"));
    assert_eq!(about.colour.name(), "red");
    assert!(about.read_only && secure);
    assert_eq!(about.url, "https://jobs.example");
    let proxies = proxies.expect("people come through a proxy");
    let addresses: Vec<_> = proxies.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.5/32"]);
    assert_eq!(proxies.secret, "hush-hush-hush-hush-hush-hush-hush");
    let headers = [
        proxies.secret_header,
        proxies.user_header,
        proxies.groups_header,
    ];
    assert_eq!(headers, ["x-secret", "x-user", "x-groups"]);
    assert!(proxies.people.contains_key("mara"));
    let plain = config(&[]).dashboard("");
    assert!(!plain.secure && !plain.about.read_only && plain.proxies.is_none());
}

#[test]
fn the_defaults_are_the_same_wherever_they_are_declared() {
    let config = config(&[]);
    let machine = machine();
    assert_eq!(config.limits(&machine), Limits::default());
    let (set, plain) = (config.settings(), Settings::default());
    assert_eq!(format!("{set:?}"), format!("{plain:?}"));
}

#[test]
fn a_server_that_others_can_reach_needs_a_key() {
    let needs = |flags: &[(&'static str, &str)]| config(flags).needs_key();
    assert!(!needs(&[]));
    assert!(
        needs(&[("behind_proxy", "true")]),
        "others reach the server through the proxy"
    );
    assert!(!needs(&[("behind_proxy", "true"), ("insecure", "true")]));
    let public = ("bind", "0.0.0.0:80");
    assert!(needs(&[public, ("tls.key", "k"), ("tls.certificate", "c")]));
    assert!(!needs(&[public, ("insecure", "true")]));
}

#[test]
fn without_a_store_url_the_store_is_in_the_data_directory() {
    let embedded = config(&[("data", "/srv/w")]);
    assert_eq!(embedded.store_url(), "sqlite:/srv/w/windlass.db");
    assert!(embedded.keeps_files() && embedded.is_durable());
    let elsewhere = config(&[("store", "postgres://ann:x@db/jobs")]);
    assert_eq!(elsewhere.store_shown(), "postgres://ann:…@db/jobs");
    assert!(!elsewhere.keeps_files());
    assert!(!config(&[("store", "memory:")]).is_durable());
}
