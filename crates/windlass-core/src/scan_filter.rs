//! Conditions on jobs for which no store has an index: jobs are read one by one to check them.

use serde_json::Value;

use crate::{AttemptError, Fingerprint, Job, Timestamp};

/// Conditions that only reading a job can check. All that are given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanFilter {
    /// The job finished at or after this instant.
    pub finished_from: Option<Timestamp>,
    /// The last error contains this text, in upper or lower case.
    pub error: Option<String>,
    /// The error belongs to the group with this [`Fingerprint`], written as 16 hexadecimal digits.
    pub fingerprint: Option<String>,
    /// The payload contains a value.
    pub payload: Option<PayloadMatch>,
}

/// A value at a position inside a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadMatch {
    /// A JSON pointer such as `/customer/id`.
    pub path: String,
    /// The value at that position: JSON, or a text without quotes.
    pub value: String,
}

impl ScanFilter {
    /// Whether it has no condition, so that no job must be read to check it.
    pub fn is_empty(&self) -> bool {
        *self == ScanFilter::default()
    }

    /// Whether a job meets every condition.
    pub fn matches(&self, job: &Job) -> bool {
        let is_finished = |from: &Timestamp| job.finished_at().is_some_and(|at| at >= *from);
        let has_error = |text: &String| {
            let error = job.last_error.as_ref().map(AttemptError::to_string);
            let text = text.to_lowercase();
            error.is_some_and(|error| error.to_lowercase().contains(&text))
        };
        let in_group = |group: &String| {
            let fingerprint = Fingerprint::of_job(job).to_string();
            fingerprint.eq_ignore_ascii_case(group)
        };
        self.finished_from.as_ref().is_none_or(is_finished)
            && self.error.as_ref().is_none_or(has_error)
            && self.fingerprint.as_ref().is_none_or(in_group)
            && self.payload.as_ref().is_none_or(|value| value.is_in(job))
    }
}

impl PayloadMatch {
    fn is_in(&self, job: &Job) -> bool {
        let payload: Value = job.payload.decode().unwrap_or_default();
        payload.pointer(&self.path).is_some_and(|found| {
            let json = serde_json::from_str::<Value>(&self.value);
            found.as_str() == Some(&self.value) || json.is_ok_and(|value| value == *found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JobId, NewJob};

    fn job(payload: &str, error: Option<&str>) -> Job {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let new = NewJob::from_json(&format!(r#"{{"kind":"a","payload":{payload}}}"#)).unwrap();
        let mut job = new.into_job(JobId::new(now, 1), now).unwrap();
        job.last_error = error.map(AttemptError::new);
        job
    }

    fn payload(path: &str, value: &str) -> ScanFilter {
        ScanFilter {
            payload: Some(PayloadMatch {
                path: path.to_owned(),
                value: value.to_owned(),
            }),
            ..ScanFilter::default()
        }
    }

    fn error(text: &str) -> ScanFilter {
        ScanFilter {
            error: Some(text.to_owned()),
            ..ScanFilter::default()
        }
    }

    #[test]
    fn every_condition_must_hold() {
        let one = job(
            r#"{"customer":{"id":42,"name":"Ann"}}"#,
            Some("Timeout after 30 s"),
        );
        let finished = ScanFilter {
            finished_from: Some(one.created_at),
            ..ScanFilter::default()
        };
        let both = ScanFilter {
            error: Some("timeout".to_owned()),
            ..payload("/customer/id", "43")
        };
        for (filter, found) in [
            (ScanFilter::default(), true),
            (error("timeOUT"), true),
            (error("refused"), false),
            (payload("/customer/id", "42"), true),
            (payload("/customer/name", "Ann"), true),
            (payload("/customer/name", "\"Ann\""), true),
            (payload("/customer/id", "43"), false),
            (payload("/nothing", "43"), false),
            (finished, false),
            (both, false),
        ] {
            assert_eq!(filter.matches(&one), found, "{filter:?}");
        }
    }

    #[test]
    fn a_fingerprint_finds_the_jobs_of_its_group() {
        let one = job("1", Some("Timeout after 30 s"));
        let group = ScanFilter {
            fingerprint: Some(Fingerprint::of_job(&one).to_string().to_uppercase()),
            ..ScanFilter::default()
        };
        assert!(!group.is_empty());
        assert!(group.matches(&job("2", Some("Timeout after 7 s"))));
        assert!(!group.matches(&job("1", Some("other"))));
    }
}
