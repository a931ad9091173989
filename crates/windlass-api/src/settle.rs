//! How attempts ended, as workers in any language tell it.

use serde_json::Value;
use windlass_core::fields::{Fields, RawFields};
use windlass_core::{
    AttemptError, Failure, FailureClass, Invalid, LOG_LINE_CHARS_MAX, LOG_LINES_MAX, Payload,
    Reported, Timestamp, WorkerName,
};

use crate::claim::LeaseRef;
use crate::duration::instant_or_span;
use crate::new_job::{OTHERS_BYTES_MAX, read_each, read_list};

/// The most outcomes of one request.
pub const OUTCOMES_MAX: usize = 1000;
/// How one attempt ended.
#[derive(Debug, Clone)]
pub struct ReportedOutcome {
    /// Which attempt.
    pub of: LeaseRef,
    /// How.
    pub reported: Reported,
    /// Lines that are kept with it.
    pub log: Vec<String>,
}

/// Reads `{"worker": …, "outcomes": […]}`.
pub fn read_outcomes(
    parts: &RawFields,
    now: Timestamp,
) -> Result<(Option<WorkerName>, Vec<ReportedOutcome>), Invalid> {
    parts.check_others("outcomes", OTHERS_BYTES_MAX)?;
    let others = parts.values_but("outcomes")?;
    let mut fields = Fields::of(&others);
    let worker = fields.parsed("worker", WorkerName::new)?;
    fields.value("outcomes");
    fields.finish()?;
    let listed = read_list(parts, "outcomes", 1, OUTCOMES_MAX)?;
    let outcomes = read_each(&listed, "outcomes", |parts| read_outcome(&parts, now));
    Ok((worker, outcomes.collect::<Result<_, _>>()?))
}

fn read_outcome(parts: &RawFields, now: Timestamp) -> Result<ReportedOutcome, Invalid> {
    let others = parts.values_but("result")?;
    let mut fields = Fields::of(&others);
    let of = LeaseRef::from_fields(&mut fields)?;
    let word = fields.text("outcome")?;
    let word = word.ok_or_else(|| Invalid::new("outcome", "is required"))?;
    let reported = match word {
        "succeeded" => Reported::Succeeded(read_result(parts)?),
        "failed" => Reported::Failed(read_failure(&mut fields)?),
        "timed_out" => Reported::TimedOut,
        "snoozed" => Reported::Snoozed(read_until(&mut fields, now)?),
        "released" => Reported::Released {
            started: fields.flag("started")?.unwrap_or(true),
        },
        "cancelled" => Reported::Cancelled,
        _ => {
            let rule = "must be one of succeeded, failed, timed_out, snoozed, released, cancelled";
            return Err(Invalid::new("outcome", rule));
        }
    };
    if parts.has("result") && !matches!(reported, Reported::Succeeded(_)) {
        return Err(Invalid::new("result", "goes with `succeeded` only"));
    }
    let log = read_log(&mut fields)?;
    fields.finish()?;
    Ok(ReportedOutcome { of, reported, log })
}

fn read_result(parts: &RawFields) -> Result<Option<Payload>, Invalid> {
    let read = parts
        .raw("result")
        .map(|raw| Payload::parse(raw, usize::MAX));
    read.transpose().map_err(|error| error.within("result"))
}

fn read_until(fields: &mut Fields<'_>, now: Timestamp) -> Result<Timestamp, Invalid> {
    let until = instant_or_span(fields, "until", "delay", now)?;
    until.ok_or_else(|| Invalid::new("until", "or `delay` is required"))
}

/// `error` as text or as `{"message", "causes"}`; `unrecoverable`; `retry_after`.
fn read_failure(fields: &mut Fields<'_>) -> Result<Failure, Invalid> {
    let error = match fields.value("error") {
        Some(Value::String(text)) => AttemptError::new(text),
        Some(value @ Value::Object(_)) => read_error(value)?,
        Some(_) => return Err(Invalid::new("error", "must be text or an object")),
        None => return Err(Invalid::new("error", "is required: say what went wrong")),
    };
    let hopeless = fields.flag("unrecoverable")?.unwrap_or(false);
    let class = if hopeless {
        FailureClass::Unrecoverable
    } else {
        FailureClass::Retryable
    };
    Ok(Failure {
        class,
        retry_after: fields.duration("retry_after")?,
        ..Failure::retryable(error)
    })
}

fn read_error(value: &Value) -> Result<AttemptError, Invalid> {
    let mut fields = Fields::new(value)?;
    fields.value("message");
    fields.value("causes");
    fields.finish().map_err(|error| error.within("error"))?;
    let rule = "must be text, or an object with `message` and `causes`";
    serde_json::from_value(value.clone()).map_err(|_| Invalid::new("error", rule))
}

fn read_log(fields: &mut Fields<'_>) -> Result<Vec<String>, Invalid> {
    let list = fields.list("log")?.map_or(&[][..], Vec::as_slice);
    if list.len() > LOG_LINES_MAX {
        let rule = format!("must be at most {LOG_LINES_MAX} lines, got {}", list.len());
        return Err(Invalid::new("log", rule));
    }
    let read = |(place, value): (usize, &Value)| {
        let line = value.as_str();
        let line = line.ok_or_else(|| Invalid::new(format!("log[{place}]"), "must be text"))?;
        Ok(line.chars().take(LOG_LINE_CHARS_MAX).collect())
    };
    list.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use windlass_core::JobId;

    fn read(outcome: Value) -> Result<ReportedOutcome, Invalid> {
        let mut outcome = outcome;
        let more = outcome.as_object_mut().unwrap();
        more.insert("id".into(), json!(JobId::from_u128(7)));
        more.insert("attempt".into(), json!(1));
        let text = json!({"worker": "w", "outcomes": [outcome]}).to_string();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (worker, mut outcomes) = read_outcomes(&RawFields::parse(&text)?, now)?;
        assert_eq!(worker.unwrap().as_str(), "w");
        Ok(outcomes.remove(0))
    }

    #[test]
    fn every_outcome_is_read_with_what_goes_with_it() {
        let done = read(json!({"outcome": "succeeded", "result": {"n": 1}, "log": ["a"]})).unwrap();
        assert_eq!(done.log, ["a"]);
        assert!(
            matches!(done.reported, Reported::Succeeded(Some(result)) if result.as_str() == "{\"n\":1}")
        );
        let failed = read(json!({
            "outcome": "failed", "error": {"message": "m", "causes": ["c"]},
            "unrecoverable": true, "retry_after": "5s",
        }));
        let Reported::Failed(failure) = failed.unwrap().reported else {
            panic!("a failure");
        };
        assert_eq!(failure.error.to_string(), "m: c");
        assert_eq!(failure.class, FailureClass::Unrecoverable);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(5)));
        let snoozed = read(json!({"outcome": "snoozed", "delay": "1m"}))
            .unwrap()
            .reported;
        assert!(
            matches!(snoozed, Reported::Snoozed(at) if at.to_string() == "2026-01-01T00:01:00Z")
        );
        let released = read(json!({"outcome": "released", "started": false}))
            .unwrap()
            .reported;
        assert!(matches!(released, Reported::Released { started: false }));
        assert!(matches!(
            read(json!({"outcome": "cancelled"})).unwrap().reported,
            Reported::Cancelled
        ));
        assert!(matches!(
            read(json!({"outcome": "timed_out"})).unwrap().reported,
            Reported::TimedOut
        ));
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (outcome, field) in [
            (json!({"outcome": "done"}), "outcome"),
            (json!({}), "outcome"),
            (json!({"outcome": "failed"}), "error"),
            (json!({"outcome": "failed", "error": 5}), "error"),
            (json!({"outcome": "failed", "error": {}}), "error"),
            (
                json!({"outcome": "failed", "error": {"message": "x", "text": "x"}}),
                "error.text",
            ),
            (
                json!({"outcome": "failed", "error": "x", "result": 1}),
                "result",
            ),
            (json!({"outcome": "snoozed"}), "until"),
            (json!({"outcome": "succeeded", "error": "x"}), "error"),
            (json!({"outcome": "succeeded", "log": [5]}), "log[0]"),
            (
                json!({"outcome": "succeeded", "log": vec!["x"; 101]}),
                "log",
            ),
        ] {
            let refused = read(outcome.clone()).unwrap_err();
            assert_eq!(refused.field(), format!("outcomes[0].{field}"), "{outcome}");
        }
    }
}
