//! Jobs as a client writes them, other spellings included.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};
use windlass_core::fields::{Fields, RawFields, one_of};
use windlass_core::{Delivery, Invalid, NewJob};

use crate::PROBLEMS_MAX;
use crate::all_problems::read_all;

/// The most jobs of one bulk.
pub const BULK_MAX: usize = 10_000;

/// What is in `meta` under names that begin so, no client writes.
const OWN_META: &str = "windlass.";

/// Reads a job. Beside the names of its fields it takes `type` (the kind, or a delivery mode), `maxRetryCount` (retries) and
/// `retry_at` (`run_at`); delivery modes may be in capitals; `http` is the payload of an HTTP job, whose kind goes without saying.
///
/// A refusal names the field as it was spelled.
pub fn read_new_job(mut parts: RawFields) -> Result<NewJob, Invalid> {
    if parts.has("http") {
        if !parts.has("kind") && !parts.has("type") {
            let kind =
                to_raw_value("http").map_err(|error| Invalid::new("kind", error.to_string()))?;
            parts.put("kind", kind);
        }
        parts.rename("http", "payload")?;
        let job = read_new_job(parts).map_err(|error| error.respelled("payload", "http"))?;
        return match job.kind.is_http() {
            true => Ok(job),
            false => Err(Invalid::new("http", "goes with `kind` `http` only")),
        };
    }
    let type_means = match parts.raw("type").and_then(delivery_of) {
        Some(_) => "delivery",
        None => "kind",
    };
    let aliases = [
        ("type", type_means),
        ("maxRetryCount", "max_retries"),
        ("retry_at", "run_at"),
    ];
    let used = aliases.map(|(alias, name)| (alias, name, parts.has(alias)));
    for (alias, name) in aliases {
        parts.rename(alias, name)?;
    }
    if let Some(raw) = parts.take("delivery") {
        let lower = delivery_of(raw.get()).and_then(|mode| to_raw_value(mode.name()).ok());
        parts.put("delivery", lower.unwrap_or(raw));
    }
    let job = NewJob::from_parts(&parts).map_err(|error| {
        let used = used.into_iter().filter(|(_, _, used)| *used);
        used.fold(error, |error, (alias, name, _)| {
            error.respelled(name, alias)
        })
    })?;
    if let Some(own) = job.meta.keys().find(|name| name.starts_with(OWN_META)) {
        let rule = format!("must not be given: what begins with `{OWN_META}` is Windlass's own");
        return Err(Invalid::new(own, rule).within("meta"));
    }
    Ok(job)
}

fn delivery_of(raw: &str) -> Option<Delivery> {
    let text: String = serde_json::from_str(raw).ok()?;
    text.to_ascii_lowercase().parse().ok()
}

/// What a job that cannot be taken means for the others of its bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BulkMode {
    /// None of them is taken.
    #[default]
    AllOrNone,
    /// The others are taken, and it is told what is wrong with this one.
    EachForItself,
}

/// Many jobs in one request.
#[derive(Debug)]
pub struct Bulk {
    /// What one that cannot be taken means for the others.
    pub mode: BulkMode,
    /// The jobs, each read or refused with what is wrong with it.
    pub jobs: Vec<Result<NewJob, Vec<Invalid>>>,
}

impl Bulk {
    /// Reads `{"mode": "all_or_none" | "each", "jobs": […]}`.
    pub fn read(parts: &RawFields) -> Result<Self, Invalid> {
        parts.check_others("jobs", OTHERS_BYTES_MAX)?;
        let others = parts.values_but("jobs")?;
        let mut fields = Fields::of(&others);
        let words = [
            ("all_or_none", BulkMode::AllOrNone),
            ("each", BulkMode::EachForItself),
        ];
        let mode = fields.parsed("mode", |text| one_of(text, &words))?;
        fields.value("jobs");
        fields.finish()?;
        let jobs = read_list(parts, "jobs", 1, BULK_MAX)?;
        Ok(Bulk {
            mode: mode.unwrap_or_default(),
            jobs: read_jobs(&jobs),
        })
    }
}

/// The jobs of a bulk. Where many are bad, only the first problem of each further one is looked
/// for.
fn read_jobs(list: &[Box<RawValue>]) -> Vec<Result<NewJob, Vec<Invalid>>> {
    let mut found = 0;
    let read = |(place, raw): (usize, &RawValue)| {
        let read = match found < PROBLEMS_MAX {
            true => read_all(raw.get(), Some("NewJob"), read_new_job),
            false => RawFields::parse(raw.get())
                .and_then(read_new_job)
                .map_err(|problem| vec![problem]),
        };
        let place = format!("jobs[{place}]");
        let within = |problem: Invalid| problem.within(&place);
        let read = read.map_err(|problems| problems.into_iter().map(within).collect::<Vec<_>>());
        found += read.as_ref().err().map_or(0, Vec::len);
        read
    };
    let list = list.iter().map(AsRef::as_ref);
    list.enumerate().map(read).collect()
}

/// Everything beside the list of a request about many things is short.
pub(crate) const OTHERS_BYTES_MAX: usize = 64 * 1024;

/// A field that lists so many things, each as its text.
pub(crate) fn read_list(
    parts: &RawFields,
    name: &str,
    least: usize,
    most: usize,
) -> Result<Vec<Box<RawValue>>, Invalid> {
    let raw = parts.raw(name);
    let raw = raw.ok_or_else(|| Invalid::new(name, "is required"))?;
    let mut reader = serde_json::Deserializer::from_str(raw);
    let read = UpTo(most).deserialize(&mut reader);
    let (list, count) = read.map_err(|_| Invalid::new(name, "must be a list"))?;
    if !(least..=most).contains(&count) {
        let rule = format!("must list {least} to {most}, got {count}");
        return Err(Invalid::new(name, rule));
    }
    Ok(list)
}

/// Reads the first so many of a list and counts all: what is too long is not even held.
struct UpTo(usize);

impl<'de> DeserializeSeed<'de> for UpTo {
    type Value = (Vec<Box<RawValue>>, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for UpTo {
    type Value = (Vec<Box<RawValue>>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while list.len() < self.0 {
            match items.next_element()? {
                Some(item) => list.push(item),
                None => break,
            }
        }
        let mut count = list.len();
        while items.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok((list, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NewJob, Invalid> {
        read_new_job(RawFields::parse(text)?)
    }

    #[test]
    fn other_spellings_mean_the_same() {
        let plain = read(
            r#"{"kind":"a","delivery":"at_most_once","max_retries":3,"run_at":"2026-01-01T00:00:00Z"}"#,
        );
        let other = read(
            r#"{"kind":"a","type":"AT_MOST_ONCE","maxRetryCount":3,"retry_at":"2026-01-01T00:00:00Z"}"#,
        );
        assert_eq!(plain.unwrap(), other.unwrap());
        assert_eq!(
            read(r#"{"type":"email:send"}"#).unwrap(),
            read(r#"{"kind":"email:send"}"#).unwrap()
        );
        let capitals = read(r#"{"kind":"a","delivery":"AT_MOST_ONCE"}"#).unwrap();
        assert_eq!(capitals.delivery, Delivery::AtMostOnce);
    }

    #[test]
    fn two_spellings_of_one_thing_are_refused() {
        for (text, field) in [
            (r#"{"kind":"a","type":"b"}"#, "type"),
            (
                r#"{"kind":"a","type":"at_most_once","delivery":"at_least_once"}"#,
                "type",
            ),
            (
                r#"{"kind":"a","max_retries":1,"maxRetryCount":1}"#,
                "maxRetryCount",
            ),
            (
                r#"{"kind":"a","run_at":"2026-01-01T00:00:00Z","retry_at":"2026-01-01T00:00:00Z"}"#,
                "retry_at",
            ),
            (r#"{"kind":"a","delivery":"twice"}"#, "delivery"),
            (r#"{"type":5}"#, "type"),
            (r#"{"kind":"a","maxRetryCount":-1}"#, "maxRetryCount"),
            (r#"{"kind":"a","retry_at":"soon"}"#, "retry_at"),
        ] {
            assert_eq!(read(text).unwrap_err().field(), field, "{text}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_counted_and_not_held() {
        let text = format!(r#"{{"jobs":[{}0]}}"#, "0,".repeat(20));
        let parts = RawFields::parse(&text).unwrap();
        let mut reader = serde_json::Deserializer::from_str(parts.raw("jobs").unwrap());
        let (held, count) = UpTo(5).deserialize(&mut reader).unwrap();
        assert_eq!((held.len(), count), (5, 21));
        let refused = read_list(&parts, "jobs", 1, 20).unwrap_err();
        assert_eq!(refused.to_string(), "`jobs` must list 1 to 20, got 21");
        assert_eq!(read_list(&parts, "jobs", 1, 21).unwrap().len(), 21);
    }

    #[test]
    fn a_bulk_tells_of_each_job() {
        let text = r#"{"mode":"each","jobs":[{"kind":"a"},{"kind":"b c"},5]}"#;
        let bulk = Bulk::read(&RawFields::parse(text).unwrap()).unwrap();
        assert_eq!(bulk.mode, BulkMode::EachForItself);
        assert!(bulk.jobs[0].is_ok());
        assert_eq!(
            bulk.jobs[1].as_ref().unwrap_err()[0].field(),
            "jobs[1].kind"
        );
        assert_eq!(bulk.jobs[2].as_ref().unwrap_err()[0].field(), "jobs[2]");
        for (text, field) in [
            (r#"{"jobs":[]}"#, "jobs"),
            (
                &format!(r#"{{"jobs":[{}0]}}"#, "0,".repeat(BULK_MAX)),
                "jobs",
            ),
            (
                &format!(
                    r#"{{"jobs":[{{"kind":"a"}}],"more":[{}0]}}"#,
                    "0,".repeat(40_000)
                ),
                "more",
            ),
            (r#"{"jobs":5}"#, "jobs"),
            ("{}", "jobs"),
            (r#"{"jobs":[{"kind":"a"}],"mode":"some"}"#, "mode"),
            (r#"{"jobs":[{"kind":"a"}],"more":1}"#, "more"),
        ] {
            let refused = Bulk::read(&RawFields::parse(text).unwrap()).unwrap_err();
            let shown: String = text.chars().take(50).collect();
            assert_eq!(refused.field(), field, "{shown}");
        }
        let many = vec![r#"{"kind":"a"}"#; BULK_MAX + 1].join(",");
        let refused = Bulk::read(&RawFields::parse(&format!("{{\"jobs\":[{many}]}}")).unwrap());
        assert!(refused.unwrap_err().rule().contains("10001"));
    }
}
