//! Jobs as a client writes them, other spellings included.

use serde_json::value::to_raw_value;
use windlass_core::fields::RawFields;
use windlass_core::{Delivery, Invalid, NewJob};

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
        return match job.kind.as_str() == "http" {
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
