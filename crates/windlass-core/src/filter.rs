//! The one filter of lists, counts, exports, bulk actions and replays.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::words::string_enum;
use crate::{
    ActionId, AttemptError, DeadReason, Fingerprint, Job, Key, Kind, QueueName, ScheduleId, State,
    Tag, Timestamp,
};

/// The state of a job as users see it: a waiting job is scheduled or ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListedState {
    /// Waiting; its `run_at` is in the future.
    Scheduled,
    /// Waiting; its `run_at` has come.
    Ready,
    /// Running.
    Running,
    /// Succeeded.
    Succeeded,
    /// Dead.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl ListedState {
    /// The listed state of a job at `now`.
    pub fn of(job: &Job, now: Timestamp) -> Self {
        match job.state() {
            State::Waiting if job.run_at > now => ListedState::Scheduled,
            State::Waiting => ListedState::Ready,
            State::Running => ListedState::Running,
            State::Succeeded => ListedState::Succeeded,
            State::Dead(_) => ListedState::Dead,
            State::Cancelled => ListedState::Cancelled,
        }
    }
}

string_enum!(ListedState {
    Scheduled = "scheduled",
    Ready = "ready",
    Running = "running",
    Succeeded = "succeeded",
    Dead = "dead",
    Cancelled = "cancelled",
});

/// Selects jobs. All given conditions must hold; conditions that are not given always hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// In this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ListedState>,
    /// In this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// With this cause of the last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Dead for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DeadReason>,
    /// Waiting or running, and failed before. `false`: all other jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retrying: Option<bool>,
    /// With this tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<Tag>,
    /// With this unique key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<Key>,
    /// Of this schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleId>,
    /// Last revived by this replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ActionId>,
    /// Enqueued at or after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_from: Option<Timestamp>,
    /// Enqueued before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<Timestamp>,
    /// Last failed at or after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_from: Option<Timestamp>,
    /// Last failed before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_before: Option<Timestamp>,
    /// Finished at or after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_from: Option<Timestamp>,
    /// Finished before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<Timestamp>,
    /// The last error contains this text, in upper or lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The payload contains a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<PayloadMatch>,
}

/// A value at a position inside a payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayloadMatch {
    /// A JSON pointer such as `/customer/id`.
    pub path: String,
    /// The value at that position: JSON, or a text without quotes.
    pub value: String,
}

impl Filter {
    /// Selects the jobs in this state.
    pub fn state(state: ListedState) -> Self {
        Filter {
            state: Some(state),
            ..Filter::default()
        }
    }

    /// The filter with the value that it looks for in payloads masked, for logs.
    pub fn without_values(&self) -> Self {
        let mut filter = self.clone();
        if let Some(payload) = &mut filter.payload {
            "…".clone_into(&mut payload.value);
        }
        filter
    }

    /// Whether the filter has at most a queue and a state, so that the counts of queues say how
    /// many jobs match.
    pub fn is_counted(&self) -> bool {
        let counted = Filter {
            state: self.state,
            queue: self.queue.clone(),
            ..Filter::default()
        };
        *self == counted
    }

    /// Whether the filter selects dead jobs by at most queue, kind and cause, so that the failure
    /// groups say how many jobs match.
    pub fn is_grouped(&self) -> bool {
        let grouped = Filter {
            state: Some(ListedState::Dead),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            fingerprint: self.fingerprint,
            ..Filter::default()
        };
        *self == grouped
    }

    /// Whether a job matches at `now`.
    pub fn matches(&self, job: &Job, now: Timestamp) -> bool {
        let unique_key = job.unique.as_ref().map(|unique| &unique.key);
        let schedule = job.occurrence.map(|occurrence| occurrence.schedule_id);
        let revived = job.interventions.revived.as_ref();
        fits(&self.state, Some(&ListedState::of(job, now)))
            && fits(&self.queue, Some(&job.queue))
            && fits(&self.kind, Some(&job.kind))
            && fits(&self.fingerprint, job.fingerprint.as_ref())
            && fits(&self.reason, job.dead_reason().as_ref())
            && fits(
                &self.retrying,
                Some(&(job.failures > 0 && !job.state().is_final())),
            )
            && self.tag.as_ref().is_none_or(|tag| job.tags.contains(tag))
            && fits(&self.unique_key, unique_key)
            && fits(&self.schedule, schedule.as_ref())
            && fits(
                &self.replay,
                revived.and_then(|revived| revived.by.as_ref()),
            )
            && in_window(self.created_from, self.created_before, Some(job.created_at))
            && in_window(self.failed_from, self.failed_before, job.failed_at)
            && in_window(self.finished_from, self.finished_before, job.finished_at())
            && self.matches_error(job.last_error.as_ref())
            && self.matches_payload(job.payload.as_str())
    }

    /// Whether the last error of a job matches. A store can check it before it reads the whole job.
    pub fn matches_error(&self, error: Option<&AttemptError>) -> bool {
        self.error.as_ref().is_none_or(|text| {
            let error = error.map(|error| error.to_string().to_lowercase());
            error.is_some_and(|error| error.contains(&text.to_lowercase()))
        })
    }

    /// Whether the JSON text of a payload matches. A store can check it before it reads the whole
    /// job.
    pub fn matches_payload(&self, payload: &str) -> bool {
        self.payload
            .as_ref()
            .is_none_or(|value| value.is_in(payload))
    }
}

fn fits<T: PartialEq>(condition: &Option<T>, value: Option<&T>) -> bool {
    let is_equal = |condition: &T| Some(condition) == value;
    condition.as_ref().is_none_or(is_equal)
}

fn in_window(from: Option<Timestamp>, before: Option<Timestamp>, at: Option<Timestamp>) -> bool {
    from.is_none_or(|from| at.is_some_and(|at| at >= from))
        && before.is_none_or(|before| at.is_some_and(|at| at < before))
}

impl PayloadMatch {
    fn is_in(&self, payload: &str) -> bool {
        let payload: Value = serde_json::from_str(payload).unwrap_or_default();
        payload.pointer(&self.path).is_some_and(|found| {
            let json = serde_json::from_str::<Value>(&self.value);
            found.as_str() == Some(&self.value) || json.is_ok_and(|value| value == *found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;
    use crate::{JobId, NewJob};

    const T0: &str = "2026-01-01T00:00:00Z";

    fn job(payload: &str, error: Option<&str>) -> Job {
        let new = NewJob::from_json(&format!(r#"{{"kind":"a","payload":{payload}}}"#)).unwrap();
        let mut job = new.into_job(JobId::new(at(T0), 1), at(T0)).unwrap();
        job.last_error = error.map(AttemptError::new);
        job.failed_at = error.map(|_| at(T0));
        job.fingerprint = error.map(|_| Fingerprint::from_bits(7));
        job
    }

    fn payload(path: &str, value: &str) -> Filter {
        Filter {
            payload: Some(PayloadMatch {
                path: path.to_owned(),
                value: value.to_owned(),
            }),
            ..Filter::default()
        }
    }

    fn error(text: &str) -> Filter {
        Filter {
            error: Some(text.to_owned()),
            ..Filter::default()
        }
    }

    #[test]
    fn every_condition_must_hold() {
        let one = job(
            r#"{"customer":{"id":42,"name":"Ann"}}"#,
            Some("Timeout after 30 s"),
        );
        let later = Some(at("2026-01-01T00:00:01Z"));
        let none = Filter::default;
        for (filter, matches) in [
            (none(), true),
            (Filter::state(ListedState::Ready), true),
            (Filter::state(ListedState::Dead), false),
            (error("timeOUT"), true),
            (error("refused"), false),
            (payload("/customer/id", "42"), true),
            (payload("/customer/name", "Ann"), true),
            (payload("/customer/name", "\"Ann\""), true),
            (payload("/customer/id", "43"), false),
            (payload("/nothing", "43"), false),
            (
                Filter {
                    fingerprint: Some(Fingerprint::from_bits(7)),
                    ..none()
                },
                true,
            ),
            (
                Filter {
                    fingerprint: Some(Fingerprint::OTHER),
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    failed_from: Some(at(T0)),
                    failed_before: later,
                    ..none()
                },
                true,
            ),
            (
                Filter {
                    retrying: Some(true),
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    failed_before: Some(at(T0)),
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    failed_from: later,
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    created_from: Some(at(T0)),
                    created_before: later,
                    ..none()
                },
                true,
            ),
            (
                Filter {
                    created_before: Some(at(T0)),
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    created_from: later,
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    finished_from: Some(at(T0)),
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    finished_before: later,
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    replay: Some(ActionId::from_u128(1)),
                    ..none()
                },
                false,
            ),
            (
                Filter {
                    error: Some("timeout".to_owned()),
                    ..payload("/customer/id", "43")
                },
                false,
            ),
        ] {
            assert_eq!(filter.matches(&one, at(T0)), matches, "{filter:?}");
        }
    }

    #[test]
    fn a_filter_is_stored_with_what_it_has() {
        let filter = Filter {
            kind: Some("a".parse().unwrap()),
            ..payload("/a", "1")
        };
        let json = serde_json::to_string(&filter).unwrap();
        assert_eq!(json, r#"{"kind":"a","payload":{"path":"/a","value":"1"}}"#);
        assert_eq!(serde_json::from_str::<Filter>(&json).unwrap(), filter);
    }

    #[test]
    fn tallies_answer_the_common_filters() {
        let dead = Filter::state(ListedState::Dead);
        assert!(dead.is_counted() && dead.is_grouped());
        let cause = Filter {
            fingerprint: Some(Fingerprint::OTHER),
            ..dead.clone()
        };
        assert!(!cause.is_counted() && cause.is_grouped());
        let reason = Filter {
            reason: Some(DeadReason::Lost),
            ..dead
        };
        assert!(!reason.is_counted() && !reason.is_grouped());
        assert!(
            !Filter {
                fingerprint: Some(Fingerprint::OTHER),
                ..Filter::default()
            }
            .is_grouped()
        );
    }
}
