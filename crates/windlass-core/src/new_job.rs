//! The request to enqueue a job, checked field by field.

mod json;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::duration::check_duration;
use crate::job::{Concurrency, Delivery, Job, StateDetails, Timeout, Unique};
use crate::retry::{AttemptLimit, RetryPolicy};
use crate::{Invalid, JobId, Kind, PAYLOAD_BYTES_MAX, Payload, QueueName, Tag, Timestamp};

/// The timeout of a job that sets none: 1 hour.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

/// The most bytes of a job's JSON without its payload.
pub const JOB_BYTES_MAX: usize = 256 * 1024;

const TAGS_MAX: usize = 32;
const META_ENTRIES_MAX: usize = 64;
const META_BYTES_MAX: usize = 16 * 1024;

/// A job to enqueue: a kind, a payload and options. Its names are already checked by their types.
///
/// ```
/// use std::time::Duration;
/// use windlass_core::{Kind, NewJob, Payload, PAYLOAD_BYTES_MAX, Start};
///
/// let job = NewJob {
///     payload: Payload::parse(r#"{"to": "ann@example.org"}"#, PAYLOAD_BYTES_MAX)?,
///     start: Start::After(Duration::from_secs(60)),
///     ..NewJob::new(Kind::new("email:send")?)
/// };
/// # Ok::<(), windlass_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// Picks the handler.
    pub kind: Kind,
    /// What the handler decodes.
    pub payload: Payload,
    /// The queue it waits in.
    pub queue: QueueName,
    /// Higher runs first.
    pub priority: i16,
    /// When it may start.
    pub start: Start,
    /// Whether it may start more than once.
    pub delivery: Delivery,
    /// How many attempts may fail in all; `None` leaves that to the retry policy.
    pub max_attempts: Option<AttemptLimit>,
    /// The job's own retry policy.
    pub retry: Option<Arc<RetryPolicy>>,
    /// How long one attempt may take; `None` means 1 h, or 30 s for an HTTP job.
    pub timeout: Option<Timeout>,
    /// After when it must not start.
    pub deadline: Option<Deadline>,
    /// The unique key.
    pub unique: Option<Unique>,
    /// The concurrency key.
    pub concurrency: Option<Concurrency>,
    /// Labels for people and for search; at most 32.
    pub tags: Vec<Tag>,
    /// Free data for people and programs; at most 64 entries and 16 KiB of JSON.
    pub meta: BTreeMap<String, Value>,
}

/// When a job may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// At an instant (`run_at`).
    At(Timestamp),
    /// This long after the enqueue (`delay`).
    After(Duration),
}

/// After when a job must not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// At an instant (`deadline`).
    At(Timestamp),
    /// This long after the enqueue (`expires_in`).
    After(Duration),
}

impl NewJob {
    /// Makes a job of this kind with the payload `null` and all other fields at their defaults.
    pub fn new(kind: Kind) -> Self {
        NewJob {
            kind,
            payload: Payload::default(),
            queue: QueueName::default(),
            priority: 0,
            start: Start::Now,
            delivery: Delivery::AtLeastOnce,
            max_attempts: None,
            retry: None,
            timeout: None,
            deadline: None,
            unique: None,
            concurrency: None,
            tags: Vec::new(),
            meta: BTreeMap::new(),
        }
    }

    /// Checks what the types of the fields do not check, with payloads up to [`PAYLOAD_BYTES_MAX`].
    pub fn check(&self) -> Result<(), Invalid> {
        self.check_with(PAYLOAD_BYTES_MAX)
    }

    /// Checks what the types of the fields do not check, with payloads up to `payload_bytes_max`.
    pub fn check_with(&self, payload_bytes_max: usize) -> Result<(), Invalid> {
        let within = |field: &'static str| move |error: Invalid| error.within(field);
        self.queue.check_unreserved()?;
        self.payload
            .check_size(payload_bytes_max)
            .map_err(within("payload"))?;
        if let Start::After(delay) = self.start {
            check_duration(delay).map_err(within("delay"))?;
        }
        if let Some(Deadline::After(span)) = self.deadline {
            check_duration(span).map_err(within("expires_in"))?;
        }
        if let Some(Timeout::After(timeout)) = self.timeout {
            check_duration(timeout).map_err(within("timeout"))?;
            if timeout.is_zero() {
                let rule = "must be longer than 0s; use `none` for no timeout";
                return Err(Invalid::new("timeout", rule));
            }
        }
        if let Some(hold) = self.unique.as_ref().and_then(|unique| unique.unique_for) {
            check_duration(hold).map_err(within("unique_for"))?;
        }
        if self.concurrency.as_ref().is_some_and(|key| key.limit == 0) {
            return Err(Invalid::new("limit", "must be at least 1"));
        }
        self.check_labels()
    }

    fn check_labels(&self) -> Result<(), Invalid> {
        if self.tags.len() > TAGS_MAX {
            let rule = format!("must list at most {TAGS_MAX} tags, got {}", self.tags.len());
            return Err(Invalid::new("tags", rule));
        }
        check_meta(&self.meta).map_err(|error| error.within("meta"))
    }

    /// Checks the job and makes the stored form at `now`, with payloads up to
    /// [`PAYLOAD_BYTES_MAX`].
    pub fn into_job(self, id: JobId, now: Timestamp) -> Result<Job, Invalid> {
        self.into_job_with(id, now, PAYLOAD_BYTES_MAX)
    }

    /// Checks the job and makes the stored form at `now`, with payloads up to `payload_bytes_max`.
    pub fn into_job_with(
        self,
        id: JobId,
        now: Timestamp,
        payload_bytes_max: usize,
    ) -> Result<Job, Invalid> {
        self.check_with(payload_bytes_max)?;
        Ok(self.into_stored_job(id, now))
    }

    /// Makes the stored form of a job that a store reads back. Does not check it again.
    pub fn into_stored_job(self, id: JobId, now: Timestamp) -> Job {
        Job {
            id,
            run_at: match self.start {
                Start::Now => now,
                Start::At(run_at) => run_at,
                Start::After(delay) => now.saturating_add(delay),
            },
            deadline: self.deadline.map(|deadline| match deadline {
                Deadline::At(deadline) => deadline,
                Deadline::After(span) => now.saturating_add(span),
            }),
            timeout: self.timeout.unwrap_or_default(),
            kind: self.kind,
            payload: self.payload,
            queue: self.queue,
            priority: self.priority,
            delivery: self.delivery,
            max_attempts: self.max_attempts,
            retry: self.retry,
            unique: self.unique,
            concurrency: self.concurrency,
            tags: self.tags,
            meta: self.meta,
            occurrence: None,
            created_at: now,
            attempt: 0,
            failures: 0,
            snoozes: 0,
            losses_in_a_row: 0,
            previous_delay: None,
            first_started_at: None,
            started_at: None,
            worker: None,
            last_error: None,
            failed_at: None,
            fingerprint: None,
            waiting_since: now,
            interventions: crate::Interventions::default(),
            state_details: StateDetails::Waiting,
        }
    }
}

/// Checks that `meta` has at most 64 entries and 16 KiB of JSON.
pub fn check_meta(meta: &BTreeMap<String, Value>) -> Result<(), Invalid> {
    if meta.len() > META_ENTRIES_MAX {
        let entries = meta.len();
        let rule = format!("must have at most {META_ENTRIES_MAX} entries, got {entries}");
        return Err(Invalid::new("", rule));
    }
    if meta.is_empty() {
        return Ok(());
    }
    let bytes = serde_json::to_string(meta).map_or(usize::MAX, |json| json.len());
    if bytes > META_BYTES_MAX {
        let rule = format!("must be at most {META_BYTES_MAX} bytes of JSON, got {bytes}");
        return Err(Invalid::new("", rule));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;
    use crate::{DURATION_MAX, Key};

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn new(kind: &str) -> NewJob {
        NewJob::new(Kind::new(kind).unwrap())
    }

    fn made(new: NewJob) -> Result<Job, Invalid> {
        new.into_job(JobId::new(at(NOW), 0), at(NOW))
    }

    #[test]
    fn defaults_are_the_specified_ones() {
        let job = made(new("email:send")).unwrap();
        assert_eq!(job.queue.as_str(), "default");
        assert_eq!(
            (job.priority, job.run_at, job.created_at),
            (0, at(NOW), at(NOW))
        );
        assert_eq!(job.payload.as_str(), "null");
        assert_eq!(job.timeout, Timeout::After(TIMEOUT_DEFAULT));
        assert_eq!(job.delivery, Delivery::AtLeastOnce);
        assert_eq!((job.attempt, job.failures), (0, 0));
        assert_eq!(
            (job.deadline, job.max_attempts, job.retry),
            (None, None, None)
        );
    }

    #[test]
    fn relative_times_count_from_the_enqueue() {
        let hour = Duration::from_secs(3600);
        let job = made(NewJob {
            start: Start::After(hour),
            deadline: Some(Deadline::After(2 * hour)),
            timeout: Some(Timeout::None),
            ..new("a")
        })
        .unwrap();
        assert_eq!(job.run_at, at("2026-01-01T01:00:00Z"));
        assert_eq!(job.deadline, Some(at("2026-01-01T02:00:00Z")));
        assert_eq!(job.timeout, Timeout::None);
        let job = made(NewJob {
            start: Start::At(at("2020-01-01T00:00:00Z")),
            deadline: Some(Deadline::At(at(NOW))),
            ..new("a")
        })
        .unwrap();
        assert_eq!(job.run_at, at("2020-01-01T00:00:00Z"));
        assert_eq!(job.deadline, Some(at(NOW)));
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        let long = DURATION_MAX + Duration::from_micros(1);
        let key = Key::new("k").unwrap();
        let unique = Unique {
            key: key.clone(),
            unique_for: Some(long),
            on_duplicate: Default::default(),
        };
        let meta = |count: usize, bytes: usize| {
            let entry = |n| (format!("k{n}"), Value::from("x".repeat(bytes)));
            (0..count).map(entry).collect::<BTreeMap<_, _>>()
        };
        let tag = Tag::new("t").unwrap();
        for (field, job) in [
            (
                "queue",
                NewJob {
                    queue: QueueName::new("windlass.hooks").unwrap(),
                    ..new("a")
                },
            ),
            (
                "delay",
                NewJob {
                    start: Start::After(long),
                    ..new("a")
                },
            ),
            (
                "expires_in",
                NewJob {
                    deadline: Some(Deadline::After(long)),
                    ..new("a")
                },
            ),
            (
                "timeout",
                NewJob {
                    timeout: Some(Timeout::After(long)),
                    ..new("a")
                },
            ),
            (
                "timeout",
                NewJob {
                    timeout: Some(Timeout::After(Duration::ZERO)),
                    ..new("a")
                },
            ),
            (
                "unique_for",
                NewJob {
                    unique: Some(unique),
                    ..new("a")
                },
            ),
            (
                "limit",
                NewJob {
                    concurrency: Some(Concurrency { key, limit: 0 }),
                    ..new("a")
                },
            ),
            (
                "tags",
                NewJob {
                    tags: vec![tag.clone(); 33],
                    ..new("a")
                },
            ),
            (
                "meta",
                NewJob {
                    meta: meta(65, 1),
                    ..new("a")
                },
            ),
            (
                "meta",
                NewJob {
                    meta: meta(1, 16 * 1024),
                    ..new("a")
                },
            ),
        ] {
            assert_eq!(job.check().unwrap_err().field(), field);
            assert_eq!(made(job).unwrap_err().field(), field);
        }
        // {"k0":"…"} has nine bytes without the text.
        assert!(
            made(NewJob {
                meta: meta(1, 16 * 1024 - 9),
                ..new("a")
            })
            .is_ok()
        );
        assert!(
            made(NewJob {
                meta: meta(1, 16 * 1024 - 8),
                ..new("a")
            })
            .is_err()
        );
        assert!(
            made(NewJob {
                tags: vec![tag; 32],
                meta: meta(64, 200),
                ..new("a")
            })
            .is_ok()
        );
    }

    #[test]
    fn the_payload_is_bounded_as_configured() {
        let payload = Payload::parse("\"12345678\"", 100).unwrap();
        let job = NewJob {
            payload,
            ..new("a")
        };
        assert!(job.check_with(10).is_ok());
        assert_eq!(job.check_with(9).unwrap_err().field(), "payload");
        let id = JobId::new(at(NOW), 0);
        assert!(job.into_job_with(id, at(NOW), 9).is_err());
    }
}
