//! Occurrences of schedules: preview, backfill and history.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::schedule::{Expression, Recurrence, SkipReason, SkippedRange, Zone};
use windlass_core::{JobId, Timestamp};

use super::check_rule;
use crate::read::request;
use crate::{
    Body, BoundedInt, Checks, Count, DurationText, JobState, Millis, plain_body, some_even_if_null,
};

/// How many times a preview shows if the request does not say.
const PREVIEW_DEFAULT: usize = 10;

request! {
    /// A rule to preview. The fields mean the same as those of a schedule.
    pub struct Preview {
        /// Cron expression. Exactly one of `cron`, `every` (or `every_ms`) and `at` is required.
        #[schemars(example = "0 2 * * *")]
        pub cron: String,
        /// Interval between occurrences, in real time: at least 1 s. Counted from `starts_at`, or
        /// from now.
        pub every: DurationText,
        /// `every` in milliseconds.
        pub every_ms: Millis,
        /// Fire once, at this time.
        pub at: Timestamp,
        /// IANA time zone of `cron`. Default: `UTC`.
        #[schemars(example = "Europe/Berlin")]
        pub timezone: String,
        /// Do not fire before this time.
        pub starts_at: Timestamp,
        /// Do not fire after this time.
        pub ends_at: Timestamp,
        /// Only show occurrences after this time. Default: now. Excludes `from`.
        pub after: Timestamp,
        /// Only show occurrences at this time or later. Excludes `after`.
        pub from: Timestamp,
        /// Most occurrences to show. Default: 10.
        pub count: BoundedInt<1, 1000>,
    }
}

/// A preview that was checked.
#[derive(Debug, Clone)]
pub struct CheckedPreview {
    /// The rule.
    pub recurrence: Recurrence,
    /// Only occurrences after this time are shown.
    pub after: Timestamp,
    /// The most occurrences to show.
    pub count: usize,
}

impl Body for Preview {
    type Checked = CheckedPreview;

    fn check(self, checks: &mut Checks) -> Option<CheckedPreview> {
        let tick = std::time::Duration::from_micros(1);
        let from = self.from.map(|from| from.saturating_sub(tick));
        let after = checks.exclusive(("after", self.after), ("from", from));
        let zone = self.timezone.map(|name| checks.keep(Zone::new(&name)));
        let every = (self.every, self.every_ms);
        let expression: Option<Expression> = check_rule(checks, self.cron, every, self.at);
        Some(CheckedPreview {
            recurrence: Recurrence {
                expression: expression?,
                zone: zone.flatten().unwrap_or_default(),
                anchor: self.starts_at.unwrap_or(checks.now()),
                starts_at: self.starts_at,
                ends_at: self.ends_at,
            },
            after: after.unwrap_or(checks.now()),
            count: self.count.map_or(PREVIEW_DEFAULT, BoundedInt::to),
        })
    }
}

/// How much of a preview to show.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewParams {
    /// Most occurrences to show. Default: 10.
    pub count: Option<BoundedInt<1, 1000>>,
}

impl PreviewParams {
    /// The most occurrences to show.
    pub fn count(self) -> usize {
        self.count.map_or(PREVIEW_DEFAULT, BoundedInt::to)
    }
}

plain_body!(PreviewParams);

/// A time at which a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Firing {
    /// Time of the occurrence.
    pub at: Timestamp,
    /// The same time in the time zone of the schedule.
    pub local: String,
    /// How a daylight saving change affects this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Firing {
    /// Shows an occurrence in a time zone.
    pub fn new(firing: &windlass_core::schedule::Firing, zone: &Zone) -> Self {
        Firing {
            at: firing.at,
            local: zone.local(firing.at).to_string(),
            note: firing.note.as_ref().map(ToString::to_string),
        }
    }
}

request! {
    /// Time range in the past whose missing occurrences to run.
    pub struct Backfill {
        /// Start of the range, inclusive.
        #[schemars(required)]
        pub from: Timestamp,
        /// End of the range, inclusive. Must not be in the future.
        #[schemars(required)]
        pub to: Timestamp,
    }
}

/// A time range, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackfillRange {
    /// The start.
    pub from: Timestamp,
    /// The end, which is not before the start.
    pub to: Timestamp,
}

impl Body for Backfill {
    type Checked = BackfillRange;

    fn check(self, checks: &mut Checks) -> Option<BackfillRange> {
        let from = checks.required("from", self.from);
        let to = checks.required("to", self.to);
        let (from, to) = (from?, to?);
        if to < from {
            checks.refuse("to", "must not be before `from`");
        }
        Some(BackfillRange { from, to })
    }
}

/// Result of a backfill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackfillAnswer {
    /// Number of created jobs.
    pub created: Count,
}

/// The job that was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunAnswer {
    /// Id of the job.
    pub job_id: JobId,
}

/// An occurrence that fired, or a range of occurrences that were skipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Occurrence {
    /// Time of the occurrence, or of the first occurrence of a skipped range.
    pub scheduled_for: Timestamp,
    /// Whether the occurrence created a job.
    pub fired: bool,
    /// Id of the job, as long as the job exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// State of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Number of failed attempts of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<u32>,
    /// When the last attempt of the job started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the job finished. Null if it has not finished.
    #[serde(
        default,
        deserialize_with = "some_even_if_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub finished_at: Option<Option<Timestamp>>,
    /// Time of the last occurrence of a skipped range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// Number of occurrences in a skipped range. Null if there are more than 1000.
    #[serde(
        default,
        deserialize_with = "some_even_if_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub count: Option<Option<Count>>,
    /// Why the range was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<SkipReason>,
}

impl Occurrence {
    /// An occurrence that fired, with its job if that still exists.
    pub fn fired(
        scheduled_for: Timestamp,
        job_id: Option<JobId>,
        job: Option<&windlass_core::Job>,
        now: Timestamp,
    ) -> Self {
        Occurrence {
            scheduled_for,
            fired: job_id.is_some(),
            job_id: job.map(|job| job.id),
            state: job.map(|job| JobState::new(job.state(), job.run_at, now)),
            failures: job.map(|job| job.failures),
            started_at: job.and_then(|job| job.started_at),
            finished_at: job.map(windlass_core::Job::finished_at),
            last: None,
            count: None,
            reason: None,
        }
    }

    /// A range that was skipped.
    pub fn skipped(range: &SkippedRange) -> Self {
        let count = range.count.and_then(|count| count.try_into().ok());
        Occurrence {
            scheduled_for: range.first,
            fired: false,
            job_id: None,
            state: None,
            failures: None,
            started_at: None,
            finished_at: None,
            last: Some(range.last),
            count: Some(count),
            reason: Some(range.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyRefused, read_body};

    fn refused<B: Body>(text: &str) -> Vec<String> {
        match read_body::<B>(text, Timestamp::UNIX_EPOCH) {
            Err(BodyRefused::Invalid(problems)) => {
                let mut fields: Vec<String> =
                    problems.iter().map(|one| one.field().to_owned()).collect();
                fields.sort();
                fields
            }
            Err(malformed) => panic!("{malformed:?}"),
            Ok(_) => Vec::new(),
        }
    }

    #[test]
    fn a_preview_begins_after_or_at_an_instant() {
        let first = |more: &str| {
            let text = format!(r#"{{"cron":"0 0 * * *",{more}}}"#);
            let preview = read_body::<Preview>(&text, Timestamp::UNIX_EPOCH).unwrap();
            let next = preview.recurrence.next(preview.after).unwrap();
            (next.at.to_string(), preview.count)
        };
        let (second, third) = ("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z");
        assert_eq!(
            first(&format!(r#""after":"{second}""#)),
            (third.to_owned(), 10)
        );
        assert_eq!(
            first(&format!(r#""from":"{second}","count":3"#)),
            (second.to_owned(), 3)
        );
    }

    #[test]
    fn broken_rules_are_reported_together() {
        for (text, expected) in [
            (
                r#"{"count":0,"colour":1}"#,
                &["colour", "count", "cron"][..],
            ),
            (
                r#"{"cron":"x","paused":true,"timezone":"Mars"}"#,
                &["cron", "paused", "timezone"],
            ),
            (
                r#"{"every":"1s","after":"2026-01-01T00:00:00Z","from":"2026-01-01T00:00:00Z"}"#,
                &["from"],
            ),
        ] {
            assert_eq!(refused::<Preview>(text), expected, "{text}");
        }
        assert_eq!(refused::<Backfill>(r#"{"x":1}"#), ["from", "to", "x"]);
        let backwards = r#"{"from":"2026-01-02T00:00:00Z","to":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(refused::<Backfill>(backwards), ["to"]);
    }
}
