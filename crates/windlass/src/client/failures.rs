//! The causes of failures: groups of failing jobs.

use std::cmp::Reverse;
use std::ops::Range;

use windlass_core::{Fingerprint, GroupMember, JobId, Kind, QueueName};
use windlass_store::{CHANGE_MAX, FailureGroup, GroupFilter, PAGE_MAX};

use super::Client;
use crate::error::Error;

/// The most groups that one call reads.
const GROUPS_READ_MAX: usize = 100_000;

/// Selects failure groups. All given conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailureFilter {
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// With this cause.
    pub fingerprint: Option<Fingerprint>,
    /// Groups that have such jobs.
    pub member: Option<GroupMember>,
}

impl Client {
    /// Returns failure groups: the dead and retrying jobs of each queue, kind and cause. The group
    /// with the most jobs comes first.
    ///
    /// `positions` is the part of the list to return, such as `0..20`, at most 10,000 groups. The
    /// list changes while jobs fail and recover, so the next part may repeat or leave out groups.
    /// A group without jobs stays at the end of the list for 7 days. Beyond 100,000 groups, some
    /// are left out.
    ///
    /// [`FailureGroup::error`] is the error of the [sample](FailureGroup::sample), or of the first
    /// failure if the sample was removed. [`admin`](crate::admin) has an example.
    pub async fn failure_groups(
        &self,
        filter: &FailureFilter,
        positions: Range<usize>,
    ) -> Result<Vec<FailureGroup>, Error> {
        let mut groups = self.all_groups(filter).await?;
        let jobs = |group: &FailureGroup| group.dead + group.retrying;
        groups.sort_by_cached_key(|group| {
            let last_seen_at = Reverse(group.last_seen_at);
            (Reverse(jobs(group)), last_seen_at, group.key.clone())
        });
        let count = positions.len().min(CHANGE_MAX);
        let mut groups: Vec<_> = groups
            .into_iter()
            .skip(positions.start)
            .take(count)
            .collect();
        self.look_up_samples(&mut groups).await?;
        Ok(groups)
    }

    /// All groups that match, ordered by queue, kind and cause.
    pub(super) async fn all_groups(
        &self,
        filter: &FailureFilter,
    ) -> Result<Vec<FailureGroup>, Error> {
        let (store, now) = (self.engine.store(), self.now());
        let stored = GroupFilter {
            queue: filter.queue.clone(),
            kind: filter.kind.clone(),
            fingerprint: filter.fingerprint,
        };
        let has_member = |group: &FailureGroup| match filter.member {
            None => true,
            Some(GroupMember::Dead) => group.dead > 0,
            Some(GroupMember::Retrying) => group.retrying > 0,
        };
        let (mut groups, mut after, mut read) = (Vec::new(), None, 0);
        while read < GROUPS_READ_MAX {
            let page = store.failure_groups(&stored, after.as_ref(), PAGE_MAX, now);
            let page = page.await?;
            read += page.len();
            after = page.last().map(|last| last.key.clone());
            let is_last = page.len() < PAGE_MAX;
            groups.extend(page.into_iter().filter(has_member));
            if is_last {
                break;
            }
        }
        Ok(groups)
    }

    /// Replaces the errors of groups by those of their samples.
    async fn look_up_samples(&self, groups: &mut [FailureGroup]) -> Result<(), Error> {
        let ids: Vec<JobId> = groups.iter().filter_map(|group| group.sample).collect();
        let jobs = self.get_many(&ids).await?;
        let mut jobs = jobs.into_iter().flatten();
        let mut job = jobs.next();
        for group in groups {
            let Some(sample) = job.take_if(|job| Some(job.id) == group.sample) else {
                continue;
            };
            // A job that failed again with another cause is no longer in this group.
            if sample.group().is_some_and(|(key, _)| key == group.key) {
                group.error = sample.group_error();
            }
            job = jobs.next();
        }
        Ok(())
    }
}
