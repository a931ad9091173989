//! Reading a body so that all its problems are reported at once.
//!
//! A reader stops at the first field that breaks a rule. So once a body is refused, that field is
//! mended (replaced by what its schema allows, or left out) and the body is read again, until
//! nothing more is wrong. Readers stay as simple as they are, and no route can forget a field. Only
//! refused bodies cost more than one read.

mod mend;

use serde_json::Value;
use windlass_core::Invalid;
use windlass_core::fields::RawFields;

use self::mend::Mender;
use crate::read::PROBLEMS_MAX;

/// A refused body is read again at most this often, and at most this many bytes of it in all.
const READS_MAX: usize = 200;
const READ_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Reads the object in `text`, or says everything that is wrong with it. `schema` names its shape.
pub fn read_all<T>(
    text: &str,
    schema: Option<&str>,
    read: impl Fn(RawFields) -> Result<T, Invalid>,
) -> Result<T, Vec<Invalid>> {
    let read = |text: &str| RawFields::parse(text).and_then(&read);
    let first = match read(text) {
        Ok(value) => return Ok(value),
        Err(first) => first,
    };
    let Ok(body) = serde_json::from_str::<Value>(text) else {
        return Err(vec![first]);
    };
    let mut mender = Mender::new(body, schema);
    let mut problems = vec![first.clone()];
    let (mut last, mut bytes) = (first, text.len());
    for _ in 0..READS_MAX {
        if problems.len() >= PROBLEMS_MAX || bytes > READ_BYTES_MAX || !mender.mend(last.field()) {
            break;
        }
        let text = mender.text();
        bytes += text.len();
        last = match read(&text) {
            Ok(_) => break,
            Err(next) => next,
        };
        // What is wrong only because another field was mended is not the user's problem.
        if !mender.caused(&last) {
            problems.push(last.clone());
        }
    }
    Err(problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read_new_job, read_schedule};

    fn fields<T>(
        text: &str,
        schema: &str,
        read: impl Fn(RawFields) -> Result<T, Invalid>,
    ) -> Vec<String> {
        let problems = read_all(text, Some(schema), read).err().unwrap_or_default();
        let field = |problem: &Invalid| problem.field().to_owned();
        problems.iter().map(field).collect()
    }

    fn job(text: &str) -> Vec<String> {
        let mut found = fields(text, "NewJob", read_new_job);
        found.sort();
        found
    }

    #[test]
    fn every_bad_field_of_a_job_is_named_once_as_it_was_spelled() {
        for (text, expected) in [
            (r#"{"kind":"a"}"#, &[][..]),
            (r#"{"kid":"a"}"#, &["kid", "kind"]),
            (
                r#"{"kind":"a b","queue":"x/y","priority":1e9}"#,
                &["kind", "priority", "queue"],
            ),
            (r#"{"queue":"x/y"}"#, &["kind", "queue"]),
            (
                r#"{"type":5,"maxRetryCount":-1}"#,
                &["maxRetryCount", "type"],
            ),
            (
                r#"{"kind":"a","retry_at":"soon","unknown":1,"tags":[5,"ok",7]}"#,
                &["retry_at", "tags[0]", "tags[2]", "unknown"],
            ),
            (
                r#"{"kind":"a","unique_key":"","unique_for":"1h"}"#,
                &["unique_key"],
            ),
            (
                r#"{"kind":"a","retry":{"backoff":{"type":"odd"},"jitter":{"type":"odd"}},"x":1,"y":1}"#,
                &["retry.backoff.type", "retry.jitter.type", "x", "y"],
            ),
            (r#"{"kind":"a","kind":"b"}"#, &["kind"]),
            ("[]", &[""]),
        ] {
            assert_eq!(job(text), expected, "{text}");
        }
    }

    #[test]
    fn problems_within_lists_and_objects_are_found_beside_each_other() {
        let text = r#"{"name":"a b","cron":"soon","job":{"kind":"x y","queue":"/"},"colour":1}"#;
        let mut found = fields(text, "NewSchedule", |parts| read_schedule(&parts));
        found.sort();
        assert_eq!(found, ["colour", "cron", "job.kind", "job.queue", "name"]);
    }

    #[test]
    fn the_number_of_problems_is_bounded() {
        let many: String = (0..500).map(|number| format!(",\"f{number}\":1")).collect();
        assert_eq!(job(&format!(r#"{{"kind":"a"{many}}}"#)).len(), PROBLEMS_MAX);
    }
}
