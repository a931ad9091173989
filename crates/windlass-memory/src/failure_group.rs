//! Failure groups, and the tallies of actions.

use std::collections::BTreeMap;
use std::ops::Bound;

use windlass_core::{
    ActionId, ActionTally, Fingerprint, GROUPS_MAX, GroupKey, GroupMember, Job, JobId, Timestamp,
    hour_of, is_new_group, revival_changes,
};
use windlass_store::{FailureGroup, GROUP_HOURS, GroupFilter};

use crate::state::State;

/// What a group remembers. How many jobs it has is counted when someone asks.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    first_seen_at: Timestamp,
    last_seen_at: Timestamp,
    sample: Option<JobId>,
    error: String,
    /// Failures per hour, by hours since 1970.
    hours: BTreeMap<i64, u64>,
}

impl State {
    /// Puts a job that just failed or died into its group. Returns whether that made the group new.
    pub(crate) fn count_failure(&mut self, job: &mut Job, now: Timestamp) -> bool {
        let Some(key) = self.admit(job) else {
            return false;
        };
        let last_seen_at = self.groups.get(&key).map(|group| group.last_seen_at);
        let Some(group) = self.enter_group(job) else {
            return false;
        };
        group.last_seen_at = group.last_seen_at.max(now);
        group.sample = Some(job.id);
        *group.hours.entry(hour_of(now)).or_default() += 1;
        is_new_group(last_seen_at, now)
    }

    /// Returns the group that a job belongs to. A cause for which there is no space becomes `other`.
    fn admit(&self, job: &mut Job) -> Option<GroupKey> {
        let (mut key, _) = job.group()?;
        if !self.groups.contains_key(&key) {
            let is_sibling = |other: &&GroupKey| {
                (&other.queue, &other.kind) == (&key.queue, &key.kind)
                    && other.fingerprint != Fingerprint::OTHER
            };
            if self.groups.keys().filter(is_sibling).count() >= GROUPS_MAX {
                key.fingerprint = Fingerprint::OTHER;
                job.count_as_other();
            }
        }
        Some(key)
    }

    /// Makes sure that the group of a job exists.
    pub(crate) fn enter_group(&mut self, job: &mut Job) -> Option<&mut Group> {
        let key = self.admit(job)?;
        let group = self.groups.entry(key).or_insert_with(|| Group {
            first_seen_at: job.group_seen_at(),
            last_seen_at: job.group_seen_at(),
            sample: None,
            error: job.group_error(),
            hours: BTreeMap::new(),
        });
        Some(group)
    }

    /// Counts what a change of a job means for replays; `None` if the job is removed.
    pub(crate) fn count_revival(&mut self, before: &Job, after: Option<&Job>) {
        for (replay, count, by) in revival_changes(before, after) {
            self.actions.entry(replay).or_default().add(count, by);
        }
    }

    pub(crate) fn failure_groups(
        &self,
        filter: &GroupFilter,
        after: Option<&GroupKey>,
        limit: usize,
        now: Timestamp,
    ) -> Vec<FailureGroup> {
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let groups = self.groups.range((first, Bound::Unbounded));
        groups
            .filter(|(key, _)| filter.matches(key))
            .take(limit)
            .map(|(key, group)| self.shown(key, group, now))
            .collect()
    }

    fn shown(&self, key: &GroupKey, group: &Group, now: Timestamp) -> FailureGroup {
        let members = || {
            let groups = self.jobs.values().filter_map(Job::group);
            groups.filter(|(other, _)| other == key)
        };
        let count = |member| {
            let members = members().filter(|(_, other)| *other == member);
            u64::try_from(members.count()).unwrap_or(u64::MAX)
        };
        let hour = |back: usize| {
            let hour = hour_of(now) - i64::try_from(back).unwrap_or(0);
            group.hours.get(&hour).copied().unwrap_or(0)
        };
        FailureGroup {
            key: key.clone(),
            dead: count(GroupMember::Dead),
            retrying: count(GroupMember::Retrying),
            first_seen_at: group.first_seen_at,
            last_seen_at: group.last_seen_at,
            sample: group.sample,
            error: group.error.clone(),
            hours: std::array::from_fn(|position| hour(GROUP_HOURS - 1 - position)),
        }
    }

    pub(crate) fn action_tally(&self, action: ActionId) -> ActionTally {
        self.actions.get(&action).copied().unwrap_or_default()
    }

    pub(crate) fn trim_tallies(&mut self, groups_before: Timestamp, actions_before: Timestamp) {
        let used: std::collections::BTreeSet<GroupKey> = self
            .jobs
            .values()
            .filter_map(|job| Some(job.group()?.0))
            .collect();
        self.groups
            .retain(|key, group| group.last_seen_at >= groups_before || used.contains(key));
        let oldest = ActionId::new(actions_before, 0);
        self.actions.retain(|action, _| *action >= oldest);
    }
}
