//! Types of the verbs that read failure groups and tallies of replays.

use windlass_core::{Fingerprint, GroupKey, JobId, Kind, QueueName, Timestamp};

/// The number of hours that groups count failures for.
pub const GROUP_HOURS: usize = 24;

/// The failing jobs of one queue, kind and cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureGroup {
    /// The queue, kind and cause.
    pub key: GroupKey,
    /// How many of its jobs are dead.
    pub dead: u64,
    /// How many of its jobs wait or run, and have failed before.
    pub retrying: u64,
    /// When the first failure of the group was settled, or its first job moved here.
    pub first_seen_at: Timestamp,
    /// When the last failure of the group was settled.
    pub last_seen_at: Timestamp,
    /// The job that failed last.
    pub sample: Option<JobId>,
    /// The error of the first failure, at most
    /// [`GROUP_ERROR_CHARS_MAX`](windlass_core::GROUP_ERROR_CHARS_MAX) characters; the word of the
    /// reason for a death without an error.
    pub error: String,
    /// How many failures were settled in each of the last 24 hours, the oldest hour first. The last
    /// one is the hour of `now`.
    pub hours: [u64; GROUP_HOURS],
}

/// Selects failure groups. All given conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct GroupFilter {
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// With this cause.
    pub fingerprint: Option<Fingerprint>,
}

impl GroupFilter {
    /// Whether a group matches.
    pub fn matches(&self, key: &GroupKey) -> bool {
        self.queue.as_ref().is_none_or(|queue| *queue == key.queue)
            && self.kind.as_ref().is_none_or(|kind| *kind == key.kind)
            && self
                .fingerprint
                .is_none_or(|cause| cause == key.fingerprint)
    }
}
