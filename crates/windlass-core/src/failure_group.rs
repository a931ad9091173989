//! Failure groups: the failing jobs of one queue, kind and cause.

use std::time::Duration;

use crate::state::State;
use crate::{Fingerprint, Job, Kind, QueueName, Timestamp};

/// The most groups of one queue and kind. Jobs with further causes share one group,
/// [`Fingerprint::OTHER`].
pub const GROUPS_MAX: usize = 1000;

/// A group in which nothing failed for this time counts as new when something fails again. 24 h.
pub const GROUP_NEW_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The most characters of the error text that a group keeps.
pub const GROUP_ERROR_CHARS_MAX: usize = 500;

/// Identifies a failure group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// The queue of the jobs.
    pub queue: QueueName,
    /// The kind of the jobs.
    pub kind: Kind,
    /// The cause of the failures.
    pub fingerprint: Fingerprint,
}

/// How a job counts in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupMember {
    /// The job is dead.
    Dead,
    /// The job waits or runs, and at least one attempt failed. A claim does not change this.
    Retrying,
}

impl Job {
    /// How the job counts in the group of its cause; `None` if it is in no group.
    pub fn group_member(&self) -> Option<GroupMember> {
        self.fingerprint?;
        match self.state() {
            State::Dead(_) => Some(GroupMember::Dead),
            State::Waiting | State::Running if self.failures > 0 => Some(GroupMember::Retrying),
            _ => None,
        }
    }

    /// The group that the job is in.
    pub fn group(&self) -> Option<(GroupKey, GroupMember)> {
        let member = self.group_member()?;
        let key = GroupKey {
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            fingerprint: self.fingerprint?,
        };
        Some((key, member))
    }
}

impl Job {
    /// When the job failed or died of its cause.
    pub fn group_seen_at(&self) -> Timestamp {
        let died_at = self.dead_reason().and(self.finished_at());
        died_at.or(self.failed_at).unwrap_or(self.created_at)
    }

    /// The error that a group shows if this job is its first: the error of the job, or the reason
    /// of a death without one.
    pub fn group_error(&self) -> String {
        let without_error = self
            .dead_reason()
            .filter(|_| self.finished_at() != self.failed_at);
        let text = match (without_error, &self.last_error) {
            (None, Some(error)) => error.to_string(),
            (Some(reason), _) => reason.name().to_owned(),
            (None, None) => String::new(),
        };
        text.chars().take(GROUP_ERROR_CHARS_MAX).collect()
    }
}

/// Whether a failure at `now` makes a group new: it had none before, or the last one was 24 h ago.
pub fn is_new_group(last_seen_at: Option<Timestamp>, now: Timestamp) -> bool {
    last_seen_at.is_none_or(|last| now.since(last) >= GROUP_NEW_AFTER)
}

/// The start of the hour of an instant, in hours since 1970. Groups count failures per hour.
pub fn hour_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(3_600_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;

    #[test]
    fn a_group_is_new_after_a_day_without_failures() {
        let now = at("2026-01-02T00:00:00Z");
        assert!(is_new_group(None, now));
        assert!(is_new_group(Some(at("2026-01-01T00:00:00Z")), now));
        assert!(!is_new_group(Some(at("2026-01-01T00:00:01Z")), now));
    }

    #[test]
    fn hours_start_on_the_hour() {
        let hour = hour_of(at("2026-01-01T00:00:00Z"));
        assert_eq!(hour_of(at("2026-01-01T00:59:59.999999Z")), hour);
        assert_eq!(hour_of(at("2026-01-01T01:00:00Z")), hour + 1);
    }
}
