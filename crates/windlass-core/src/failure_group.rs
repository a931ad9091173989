//! Failure groups: the failing jobs of one queue, kind and cause.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::state::State;
use crate::{Fingerprint, Job, Kind, QueueName, Timestamp, fixed_hash};

/// The most groups of one queue and kind. Jobs with further causes share one group,
/// [`Fingerprint::OTHER`].
pub const GROUPS_MAX: usize = 1000;

/// A group in which nothing failed for this time counts as new when something fails again. 24 h.
pub const GROUP_NEW_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The most groups of the first page of a list that has more. The cursor of the next page names
/// them.
pub const FIRST_GROUPS_MAX: usize = 200;

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

/// A position in a list of failure groups, behind its first page.
///
/// The first page has the largest groups. Their numbers change all the time, so the list cannot go
/// on in this order: groups would come twice or not at all. Instead, the other groups follow in the
/// order of their keys, which never change, without the groups of the first page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupCursor {
    /// Hashes of the groups of the first page: [`GroupKey::short_hash`].
    pub first: BTreeSet<u64>,
    /// The last group of the previous page; `None` after the first page.
    pub after: Option<GroupKey>,
}

impl GroupCursor {
    /// The position behind the first page.
    pub fn behind_first<'a>(groups: impl Iterator<Item = &'a GroupKey>) -> Self {
        GroupCursor {
            first: groups.map(GroupKey::short_hash).collect(),
            after: None,
        }
    }

    /// The position behind a group of a later page.
    pub fn behind(&self, key: &GroupKey) -> Self {
        GroupCursor {
            first: self.first.clone(),
            after: Some(key.clone()),
        }
    }

    /// Whether the group was on the first page.
    pub fn was_first(&self, key: &GroupKey) -> bool {
        self.first.contains(&key.short_hash())
    }
}

impl GroupKey {
    /// A hash of 48 bits that never changes. In a list of 100,000 groups, the chance that two
    /// cannot be distinguished is below one in ten million.
    pub fn short_hash(&self) -> u64 {
        let text = format!("{}\0{}\0{}", self.queue, self.kind, self.fingerprint);
        fixed_hash(text.as_bytes()) >> 16
    }
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
