//! Failure groups and tallies of actions, kept in memory.
//!
//! The writer passes every change of a job to [`Tallies::count_change`]. What changed is written
//! once for each group of requests, before its commit, and undone with the group if that fails.

use std::collections::BTreeMap;
use std::ops::Bound;

use windlass_core::{
    ActionCount, ActionId, ActionTally, Fingerprint, GROUPS_MAX, GroupKey, GroupMember, Job, JobId,
    Timestamp, hour_of, is_new_group, revival_changes,
};
use windlass_store::{FailureGroup, GROUP_HOURS, GroupFilter};

use crate::undo_map::UndoMap;

#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) groups: UndoMap<GroupKey, Group>,
    pub(crate) actions: UndoMap<ActionId, ActionTally>,
}

/// What is stored about a failure group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) dead: u64,
    pub(crate) retrying: u64,
    pub(crate) first_seen_at: Timestamp,
    pub(crate) last_seen_at: Timestamp,
    pub(crate) sample: Option<JobId>,
    pub(crate) error: String,
    /// Failures by hours since 1970, at most [`GROUP_HOURS`] + 1 of them.
    pub(crate) hours: BTreeMap<i64, u64>,
}

impl Tallies {
    /// Counts a failure or a death of a job, before the change of the job itself is counted. Gives
    /// the job its cause. Returns whether the failure made its group new.
    pub(crate) fn count_failure(&mut self, job: &mut Job, now: Timestamp) -> bool {
        let Some(key) = self.admit(job) else {
            return false;
        };
        let last_seen_at = self.groups.get(&key).map(|group| group.last_seen_at);
        let group = self.groups.change(&key, || Group::new(job));
        group.last_seen_at = group.last_seen_at.max(now);
        group.sample = Some(job.id);
        group.count_hour(now);
        is_new_group(last_seen_at, now)
    }

    /// Counts what a change of a job means for groups and replays; `None` if the job is removed.
    /// A job that moves to a queue with too many groups gets another cause, so call this before the
    /// job is written.
    pub(crate) fn count_change(&mut self, before: &Job, mut after: Option<&mut Job>) {
        for (replay, count, by) in revival_changes(before, after.as_deref()) {
            self.count_action(replay, count, by);
        }
        let key = after.as_deref_mut().and_then(|job| self.admit(job));
        let old = before.group();
        let new = after.as_deref().and_then(Job::group);
        if old == new {
            return;
        }
        if let Some((key, member)) = old.filter(|(key, _)| self.groups.get(key).is_some()) {
            let group = self.groups.change(&key, || Group::new(before));
            group.add(member, -1);
        }
        if let (Some(key), Some((_, member)), Some(job)) = (key, new, after) {
            let group = self.groups.change(&key, || Group::new(job));
            group.add(member, 1);
        }
    }

    /// Adds to a number of an action.
    pub(crate) fn count_action(&mut self, action: ActionId, count: ActionCount, by: i64) {
        let tally = self.actions.change(&action, ActionTally::default);
        tally.add(count, by);
    }

    /// Counts a job that failed before groups were stored.
    pub(crate) fn count_earlier_failure(&mut self, job: &mut Job) {
        let Some(key) = self.admit(job) else { return };
        let (seen_at, member) = (job.group_seen_at(), job.group_member());
        let group = self.groups.change(&key, || Group::new(job));
        if group.sample.is_none() || seen_at >= group.last_seen_at {
            group.sample = Some(job.id);
        }
        group.first_seen_at = group.first_seen_at.min(seen_at);
        group.last_seen_at = group.last_seen_at.max(seen_at);
        group.count_hour(seen_at);
        member.into_iter().for_each(|member| group.add(member, 1));
    }

    /// Returns the group of a job. A cause for which there is no space becomes `other`.
    fn admit(&self, job: &mut Job) -> Option<GroupKey> {
        let (mut key, _) = job.group()?;
        if self.groups.get(&key).is_none() && self.siblings(&key) >= GROUPS_MAX {
            key.fingerprint = Fingerprint::OTHER;
            job.count_as_other();
        }
        Some(key)
    }

    /// Returns how many groups a queue and kind has, without `other` and at most [`GROUPS_MAX`].
    fn siblings(&self, key: &GroupKey) -> usize {
        let with = |bits| GroupKey {
            fingerprint: Fingerprint::from_bits(bits),
            ..key.clone()
        };
        let other = Fingerprint::OTHER.bits();
        let siblings = self.groups.range(with(other + 1)..=with(u64::MAX));
        siblings.take(GROUPS_MAX).count()
    }

    pub(crate) fn failure_groups(
        &self,
        filter: &GroupFilter,
        after: Option<&GroupKey>,
        limit: usize,
        now: Timestamp,
    ) -> Vec<FailureGroup> {
        let first = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        let groups = self.groups.range((first, Bound::Unbounded));
        let groups = groups.filter(|(key, _)| filter.matches(key)).take(limit);
        groups.map(|(key, group)| group.shown(key, now)).collect()
    }

    /// Removes groups without jobs, and tallies of old actions.
    pub(crate) fn trim(&mut self, groups_before: Timestamp, actions_before: Timestamp) {
        let groups = self.groups.range(..);
        let unused = groups.filter(|(_, group)| group.is_empty_since(groups_before));
        let unused: Vec<GroupKey> = unused.map(|(key, _)| key.clone()).collect();
        unused.iter().for_each(|key| self.groups.remove(key));
        let old = self.actions.range(..ActionId::new(actions_before, 0));
        let old: Vec<ActionId> = old.map(|(action, _)| *action).collect();
        old.iter().for_each(|action| self.actions.remove(action));
    }

    pub(crate) fn commit(&mut self) {
        self.groups.commit();
        self.actions.commit();
    }

    pub(crate) fn roll_back(&mut self) {
        self.groups.roll_back();
        self.actions.roll_back();
    }
}

impl Group {
    /// A group that a job is the first of. It has no members yet.
    fn new(job: &Job) -> Self {
        Group {
            dead: 0,
            retrying: 0,
            first_seen_at: job.group_seen_at(),
            last_seen_at: job.group_seen_at(),
            sample: None,
            error: job.group_error(),
            hours: BTreeMap::new(),
        }
    }

    fn add(&mut self, member: GroupMember, by: i64) {
        let count = match member {
            GroupMember::Dead => &mut self.dead,
            GroupMember::Retrying => &mut self.retrying,
        };
        *count = count.saturating_add_signed(by);
    }

    /// Counts a failure in its hour, and forgets hours that no one asks for again.
    fn count_hour(&mut self, at: Timestamp) {
        *self.hours.entry(hour_of(at)).or_default() += 1;
        while self.hours.len() > GROUP_HOURS + 1 {
            self.hours.pop_first();
        }
    }

    fn is_empty_since(&self, before: Timestamp) -> bool {
        self.dead == 0 && self.retrying == 0 && self.last_seen_at < before
    }

    fn shown(&self, key: &GroupKey, now: Timestamp) -> FailureGroup {
        let hour = |back: usize| {
            let hour = hour_of(now) - i64::try_from(back).unwrap_or(0);
            self.hours.get(&hour).copied().unwrap_or(0)
        };
        FailureGroup {
            key: key.clone(),
            dead: self.dead,
            retrying: self.retrying,
            first_seen_at: self.first_seen_at,
            last_seen_at: self.last_seen_at,
            sample: self.sample,
            error: self.error.clone(),
            hours: std::array::from_fn(|position| hour(GROUP_HOURS - 1 - position)),
        }
    }
}
