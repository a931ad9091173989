//! What people change about single jobs.

use windlass_core::fields::{Fields, RawFields, one_of};
use windlass_core::{Consent, Edit, Failures, Invalid, Payload, QueueName, Revival, Timestamp};

use crate::duration::instant_or_span;

/// Reads how a job is run again: `failures` (`reset` or `keep`), `run_at` or `delay`, `payload`, `force`.
pub fn read_revival(parts: &RawFields, now: Timestamp) -> Result<Revival, Invalid> {
    let others = parts.values_but("payload")?;
    let mut fields = Fields::of(&others);
    let words = [("reset", Failures::Reset), ("keep", Failures::Keep)];
    let failures = fields.parsed("failures", |text| one_of(text, &words))?;
    let forced = fields.flag("force")?.unwrap_or(false);
    let revival = Revival {
        failures: failures.unwrap_or_default(),
        run_at: instant_or_span(&mut fields, "run_at", "delay", now)?,
        payload: read_payload(parts)?,
        consent: if forced {
            Consent::Force
        } else {
            Consent::Plain
        },
    };
    fields.finish()?;
    Ok(revival)
}

/// Reads what is to be different about a waiting job: `payload`, `priority`, `run_at` or `delay`, `queue`.
pub fn read_edit(parts: &RawFields, now: Timestamp) -> Result<Edit, Invalid> {
    let others = parts.values_but("payload")?;
    let mut fields = Fields::of(&others);
    let priority = fields.integer("priority", i16::MIN.into(), i16::MAX.into())?;
    let edit = Edit {
        payload: read_payload(parts)?,
        priority: priority.and_then(|number| number.try_into().ok()),
        run_at: instant_or_span(&mut fields, "run_at", "delay", now)?,
        queue: fields.parsed("queue", QueueName::new)?,
    };
    fields.finish()?;
    Ok(edit)
}

/// The payload to the byte; `null` is a payload too.
fn read_payload(parts: &RawFields) -> Result<Option<Payload>, Invalid> {
    let read = parts
        .raw("payload")
        .map(|raw| Payload::parse(raw, usize::MAX));
    read.transpose().map_err(|error| error.within("payload"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn parts(text: &str) -> RawFields {
        RawFields::parse(text).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_revival_says_all_it_may() {
        let text = r#"{"failures":"keep","delay":"5s","payload":{"b":1, "a":2},"force":true}"#;
        let revival = read_revival(&parts(text), now()).unwrap();
        assert_eq!(revival.failures, Failures::Keep);
        assert_eq!(revival.consent, Consent::Force);
        assert_eq!(
            revival.run_at,
            Some(now().saturating_add(Duration::from_secs(5)))
        );
        assert_eq!(revival.payload.unwrap().as_str(), r#"{"b":1, "a":2}"#);
        let plain = read_revival(&parts("{}"), now()).unwrap();
        assert_eq!(plain.failures, Failures::Reset);
        assert_eq!((plain.consent, plain.run_at), (Consent::Plain, None));
        assert!(plain.payload.is_none());
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (text, field) in [
            (r#"{"failures":"some"}"#, "failures"),
            (r#"{"delay":"1s","run_at":"2026-01-01T00:00:00Z"}"#, "delay"),
            (r#"{"forced":true}"#, "forced"),
        ] {
            let refused = read_revival(&parts(text), now()).unwrap_err();
            assert_eq!(refused.field(), field, "{refused}");
        }
        let refused = read_edit(&parts(r#"{"priority":40000}"#), now()).unwrap_err();
        assert_eq!(refused.field(), "priority");
    }

    #[test]
    fn an_edit_changes_only_what_it_names() {
        let edit = read_edit(
            &parts(r#"{"priority":-3,"queue":"q","payload":null}"#),
            now(),
        );
        let edit = edit.unwrap();
        assert_eq!((edit.priority, edit.run_at), (Some(-3), None));
        assert_eq!(edit.queue.unwrap().as_str(), "q");
        assert_eq!(edit.payload.unwrap().as_str(), "null");
    }
}
