//! What the jobs of one cause have in common. Pure: a sample of jobs goes in.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_api::Job;

use crate::show;

/// A value that this share of the sample has is common.
const COMMON_SHARE: f64 = 0.9;
/// The fewest jobs that can have something in common.
const SAMPLE_MIN: usize = 2;
/// The most fields of a payload that are compared.
const FIELDS_MAX: usize = 200;
/// How deep the fields of a payload are compared.
const DEPTH_MAX: usize = 4;
/// The longest value that is compared, in characters.
const VALUE_CHARS_MAX: usize = 80;
/// The most common values of each sort that are listed.
const LISTED_MAX: usize = 4;

/// A property that most jobs of a sample share, or how it is distributed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trait {
    /// The sort of the property: `Target`, `Payload`, `Tag`, `Worker`, `Reason`, `Attempts`.
    pub(crate) name: &'static str,
    /// The value.
    pub(crate) value: String,
    /// How many jobs have it. `None` if the value lists several counts.
    pub(crate) jobs: Option<usize>,
}

/// Returns what a sample of jobs has in common, the most telling first.
pub(crate) fn in_common(jobs: &[Job]) -> Vec<Trait> {
    if jobs.len() < SAMPLE_MIN {
        return Vec::new();
    }
    let needed = ((jobs.len() as f64) * COMMON_SHARE).ceil() as usize;
    let mut traits = Vec::new();
    let mut fields = Counter::default();
    let (mut targets, mut tags, mut workers) =
        (Counter::default(), Counter::default(), Counter::default());
    let mut reasons = Counter::default();
    for job in jobs {
        let payload: Option<Value> = job
            .payload
            .as_ref()
            .and_then(|payload| payload.0.decode().ok());
        let host = payload
            .as_ref()
            .and_then(|payload| payload.get("url"))
            .and_then(Value::as_str);
        let host = host
            .filter(|_| job.kind.as_str() == "http")
            .and_then(host_of);
        targets.extend(host);
        let mut leaves = Vec::new();
        if let Some(payload) = &payload {
            collect(payload, String::new(), 0, &mut leaves);
        }
        for (path, value) in leaves {
            if !(path == "/url" && job.kind.as_str() == "http") {
                fields.add(format!("{path} = {value}"));
            }
        }
        tags.extend(job.tags.iter().map(|tag| tag.as_str().to_owned()));
        workers.extend(job.worker.as_ref().map(|worker| worker.as_str().to_owned()));
        reasons.extend(job.dead_reason.map(|reason| reason.name().to_owned()));
    }
    traits.extend(targets.common("Target", needed));
    traits.extend(fields.common("Payload", needed));
    traits.extend(tags.common("Tag", needed));
    traits.extend(workers.distribution("Worker"));
    traits.extend(reasons.distribution("Reason"));
    traits.push(attempts(jobs));
    for one in &mut traits {
        one.value = show::visible(&one.value);
    }
    traits
}

fn attempts(jobs: &[Job]) -> Trait {
    let least = jobs.iter().map(|job| job.attempt).min().unwrap_or_default();
    let most = jobs.iter().map(|job| job.attempt).max().unwrap_or_default();
    let value = if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    };
    Trait {
        name: "Attempts",
        value,
        jobs: None,
    }
}

/// The host and port of a URL.
fn host_of(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

/// Collects the scalar values of a payload with their paths.
fn collect(value: &Value, path: String, depth: usize, leaves: &mut Vec<(String, String)>) {
    if leaves.len() >= FIELDS_MAX {
        return;
    }
    match value {
        Value::Object(fields) if depth < DEPTH_MAX => {
            for (name, value) in fields {
                collect(value, format!("{path}/{name}"), depth + 1, leaves);
            }
        }
        Value::Object(_) | Value::Array(_) => {}
        scalar => {
            let text = scalar.to_string();
            if text.chars().count() <= VALUE_CHARS_MAX {
                leaves.push((path, text));
            }
        }
    }
}

/// Counts how many jobs have each value.
#[derive(Default)]
struct Counter(BTreeMap<String, usize>);

impl Counter {
    fn add(&mut self, value: String) {
        *self.0.entry(value).or_default() += 1;
    }

    fn extend(&mut self, values: impl IntoIterator<Item = String>) {
        values.into_iter().for_each(|value| self.add(value));
    }

    fn sorted(self) -> Vec<(String, usize)> {
        let mut counts: Vec<(String, usize)> = self.0.into_iter().collect();
        counts.sort_by(|(one, ones), (other, others)| others.cmp(ones).then(one.cmp(other)));
        counts
    }

    /// The values that at least `needed` jobs have.
    fn common(self, name: &'static str, needed: usize) -> impl Iterator<Item = Trait> {
        let common = self
            .sorted()
            .into_iter()
            .filter(move |(_, jobs)| *jobs >= needed);
        common.take(LISTED_MAX).map(move |(value, jobs)| Trait {
            name,
            value,
            jobs: Some(jobs),
        })
    }

    /// The most frequent values with their counts.
    fn distribution(self, name: &'static str) -> Option<Trait> {
        let counts = self.sorted();
        match counts.as_slice() {
            [] => None,
            [(value, jobs)] => Some(Trait {
                name,
                value: value.clone(),
                jobs: Some(*jobs),
            }),
            _ => {
                let more = counts.len().saturating_sub(LISTED_MAX);
                let listed = counts.iter().take(LISTED_MAX);
                let mut parts: Vec<String> = listed
                    .map(|(value, jobs)| format!("{value}\u{a0}{jobs}"))
                    .collect();
                if more > 0 {
                    parts.push(format!("{more} more"));
                }
                Some(Trait {
                    name,
                    value: parts.join(", "),
                    jobs: None,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(kind: &str, payload: Value, worker: &str) -> Job {
        serde_json::from_value(json!({
            "id": "019b0000-0000-7000-8000-000000000001", "kind": kind, "queue": "mail",
            "state": "dead", "payload": payload, "result": null, "priority": 0, "run_at": null,
            "delivery": "at_least_once", "max_attempts": null, "retry": null, "timeout": "1h",
            "deadline": null, "unique_key": null, "unique_for": null, "concurrency_key": null,
            "limit": null, "tags": ["eu"], "meta": {}, "attempt": 4, "failures": 4,
            "last_error": null, "failed_at": null, "created_at": "2026-01-01T00:00:00Z",
            "started_at": null, "finished_at": null, "lease_until": null, "worker": worker,
            "dead_reason": "exhausted", "schedule_id": null, "scheduled_for": null,
            "cancel_requested": false,
        }))
        .unwrap()
    }

    fn found<'a>(traits: &'a [Trait], name: &str) -> Vec<&'a str> {
        traits
            .iter()
            .filter(|one| one.name == name)
            .map(|one| one.value.as_str())
            .collect()
    }

    #[test]
    fn equal_values_are_common_and_different_ones_are_not() {
        let jobs: Vec<Job> = (0..10)
            .map(|order| {
                job(
                    "a",
                    json!({"order": order, "capture": "final", "x": {"y": 1}}),
                    "w1",
                )
            })
            .collect();
        let traits = in_common(&jobs);
        assert_eq!(
            found(&traits, "Payload"),
            [r#"/capture = "final""#, "/x/y = 1"]
        );
        assert_eq!(found(&traits, "Tag"), ["eu"]);
        assert_eq!(found(&traits, "Worker"), ["w1"]);
        assert_eq!(found(&traits, "Attempts"), ["4"]);
        assert_eq!(found(&traits, "Reason"), ["exhausted"]);
    }

    #[test]
    fn one_exception_in_ten_is_tolerated_and_two_are_not() {
        let jobs = |others: usize| -> Vec<Job> {
            let value = |index: usize| if index < others { "b" } else { "a" };
            (0..10)
                .map(|index| job("k", json!({"v": value(index)}), "w"))
                .collect()
        };
        assert_eq!(found(&in_common(&jobs(1)), "Payload").len(), 1);
        assert_eq!(found(&in_common(&jobs(2)), "Payload").len(), 0);
    }

    #[test]
    fn requests_share_their_target_even_if_their_paths_differ() {
        let jobs: Vec<Job> = (0..4)
            .map(|n| {
                let url = format!("https://user:secret@Ledger.acme.io:8443/{n}?key=s");
                job("http", json!({"url": url}), &format!("w{}", n % 2))
            })
            .collect();
        let traits = in_common(&jobs);
        assert_eq!(found(&traits, "Target"), ["ledger.acme.io:8443"]);
        assert_eq!(found(&traits, "Worker"), ["w0\u{a0}2, w1\u{a0}2"]);
        assert!(!format!("{traits:?}").contains("secret"));
    }

    #[test]
    fn a_sample_of_one_has_nothing_in_common_and_hostile_payloads_are_bounded() {
        assert!(in_common(&[job("a", json!({}), "w")]).is_empty());
        let deep = (0..60).fold(json!(1), |inner, _| json!({"a": inner}));
        let wide: Value = (0..5000)
            .map(|n| (n.to_string(), json!(1)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let jobs = [
            job("a", deep, "w"),
            job("a", wide.clone(), "w"),
            job("a", wide, "w\u{202e}"),
        ];
        assert!(in_common(&jobs).len() < 20);
    }
}
