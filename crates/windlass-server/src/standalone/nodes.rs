//! Finds configuration differences between servers that share a store. Each server publishes its
//! important settings with its heartbeat.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use windlass_core::Timestamp;
use windlass_engine::is_alive;
use windlass_store::Node;

use crate::standalone::config::Config;

/// The field of a heartbeat that contains the settings.
const SETTINGS: &str = "settings";
/// The settings that should be equal on all servers of a store, because each server handles any
/// job.
const SHARED: [&str; 10] = [
    "jobs.lease",
    "jobs.sweep_every",
    "jobs.retry",
    "jobs.retry_cap",
    "jobs.payload_bytes",
    "retention.finished",
    "retention.dead",
    "retention.queues",
    "retention.replaced_payloads",
    "http_jobs.allow_targets",
];

/// Returns what a server publishes about itself with its heartbeat.
pub fn about(config: &Config) -> Map<String, Value> {
    let shared = SHARED.iter().filter_map(|key| {
        let shown = config.shown_of(key)?;
        Some(((*key).to_owned(), shown.into()))
    });
    let version = env!("CARGO_PKG_VERSION");
    let about = [
        ("role", "server".into()),
        ("version", version.into()),
        (SETTINGS, Value::Object(shared.collect())),
    ];
    about
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Describes each setting that differs between active servers.
pub fn differences(nodes: &[Node], now: Timestamp) -> Vec<String> {
    let mut values_by_key: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for node in nodes.iter().filter(|node| is_alive(node, now)) {
        let Some(settings) = node.about.get(SETTINGS).and_then(Value::as_object) else {
            continue; // a worker, or an older server
        };
        let version = node
            .about
            .get("version")
            .map(|version| ("version", version));
        let settings = settings.iter().map(|(key, value)| (key.as_str(), value));
        for (key, value) in settings.chain(version) {
            let values = values_by_key.entry(key).or_default();
            let value = value.as_str().unwrap_or("?");
            values.entry(value).or_default().push(&node.name);
        }
    }
    let differing = values_by_key
        .into_iter()
        .filter(|(_, values)| values.len() > 1);
    differing
        .map(|(key, values)| {
            let each = values
                .into_iter()
                .map(|(value, names)| format!("{value} on {}", names.join(", ")));
            let each = each.collect::<Vec<_>>().join("; ");
            format!("servers differ in `{key}`: {each}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::standalone::config::Sources;

    fn node(name: &str, flags: &[(&'static str, &str)], beat_at: Timestamp) -> Node {
        let flags = flags.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let sources = Sources {
            flags: flags.collect(),
            ..Sources::default()
        };
        let config = Config::load(&sources).expect("a good configuration");
        Node {
            name: name.to_owned(),
            about: about(&config).into(),
            beat_at,
        }
    }

    #[test]
    fn each_setting_that_differs_between_active_servers_is_reported() {
        let now = Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(100));
        let long_ago = Timestamp::UNIX_EPOCH;
        let alike = [
            node("a", &[], now),
            node("b", &[("log.level", "debug")], now),
        ];
        assert_eq!(differences(&alike, now), [""; 0]);
        for (key, value) in [
            ("jobs.lease", "45s"),
            ("jobs.sweep_every", "1s"),
            ("jobs.retry", "patient"),
            ("jobs.retry_cap", "3"),
            ("jobs.payload_bytes", "1000"),
            ("retention.finished", "9d"),
            ("retention.dead", "30d"),
            ("retention.queues", "mail=14d"),
            ("retention.replaced_payloads", "0s"),
            ("http_jobs.allow_targets", "10.0.0.0/8"),
        ] {
            let nodes = [node("a", &[], now), node("b", &[(key, value)], now)];
            let found = differences(&nodes, now);
            assert_eq!(found.len(), 1, "{key}: {found:?}");
            assert!(found[0].contains(&format!("`{key}`")), "{found:?}");
            let stopped = [node("a", &[], now), node("b", &[(key, value)], long_ago)];
            assert_eq!(differences(&stopped, now), [""; 0], "a stopped server");
        }
        let mut older = node("c", &[], now);
        older.about["version"] = json!("0.0.9");
        let worker = Node {
            about: json!({"version": "7"}),
            ..node("w", &[], now)
        };
        let found = differences(
            &[node("a", &[], now), node("b", &[], now), older, worker],
            now,
        );
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!("servers differ in `version`: 0.0.9 on c; {version} on a, b");
        assert_eq!(found, [expected]);
    }
}
