//! The causes of failures: groups of failing jobs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use windlass_core::{
    FIRST_GROUPS_MAX, Fingerprint, GroupCursor, GroupKey, GroupMember, Job, JobId, Kind, QueueName,
};
use windlass_store::{CHANGE_MAX, FailureGroup, GroupFilter, PAGE_MAX};

use super::Client;
use crate::error::Error;

/// The most groups that one call reads.
const GROUPS_READ_MAX: usize = 100_000;

/// The most samples that are read at once. A job may have a payload of 1 MiB.
const SAMPLES_AT_ONCE: usize = 50;

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

/// A page of a list of failure groups.
#[derive(Debug, Clone, PartialEq)]
pub struct FailurePage {
    /// The groups.
    pub groups: Vec<FailureGroup>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<GroupCursor>,
}

impl Client {
    /// Returns failure groups: the dead and retrying jobs of each queue, kind and cause.
    ///
    /// The first page has the groups with the most jobs, the largest first. If there are more than
    /// `limit`, it has at most 200 groups, and the next pages have the other groups in the order of
    /// queue, kind and cause. So no group comes twice, and none is left out, although the numbers
    /// change meanwhile. A group without jobs stays in the list for 7 days.
    ///
    /// `after` is `next` of the previous page, and `limit` at most 10,000. Beyond 100,000 groups,
    /// the largest may not be on the first page.
    ///
    /// [`FailureGroup::error`] is the error of the [sample](FailureGroup::sample), or of the first
    /// failure if the sample was removed. [`admin`](crate::admin) has an example.
    pub async fn failure_groups(
        &self,
        filter: &FailureFilter,
        limit: usize,
        after: Option<&GroupCursor>,
    ) -> Result<FailurePage, Error> {
        let limit = limit.min(CHANGE_MAX);
        let mut page = match after {
            None => self.largest_groups(filter, limit).await?,
            Some(after) => self.other_groups(filter, limit, after).await?,
        };
        self.look_up_samples(&mut page.groups).await?;
        Ok(page)
    }

    async fn largest_groups(
        &self,
        filter: &FailureFilter,
        limit: usize,
    ) -> Result<FailurePage, Error> {
        let mut groups = self.all_groups(filter).await?;
        let jobs = |group: &FailureGroup| group.dead + group.retrying;
        groups.sort_by_cached_key(|group| {
            let last_seen_at = Reverse(group.last_seen_at);
            (Reverse(jobs(group)), last_seen_at, group.key.clone())
        });
        let mut next = None;
        if groups.len() > limit {
            groups.truncate(limit.min(FIRST_GROUPS_MAX));
            let keys = groups.iter().map(|group| &group.key);
            next = Some(GroupCursor::behind_first(keys));
        }
        Ok(FailurePage { groups, next })
    }

    /// Returns groups that were not on the first page, ordered by queue, kind and cause.
    async fn other_groups(
        &self,
        filter: &FailureFilter,
        limit: usize,
        after: &GroupCursor,
    ) -> Result<FailurePage, Error> {
        let mut walk = GroupWalk::new(filter, after.after.clone());
        let mut groups: Vec<FailureGroup> = Vec::new();
        while groups.len() <= limit
            && let Some(part) = walk.next(self).await?
        {
            let others = part.into_iter();
            groups.extend(others.filter(|group| !after.was_first(&group.key)));
        }
        let is_last = groups.len() <= limit;
        groups.truncate(limit);
        let last = groups.last().filter(|_| !is_last);
        let next = last.map(|last| after.behind(&last.key));
        Ok(FailurePage { groups, next })
    }

    /// All groups that match, ordered by queue, kind and cause.
    pub(super) async fn all_groups(
        &self,
        filter: &FailureFilter,
    ) -> Result<Vec<FailureGroup>, Error> {
        let mut walk = GroupWalk::new(filter, None);
        let mut groups = Vec::new();
        while walk.read < GROUPS_READ_MAX
            && let Some(part) = walk.next(self).await?
        {
            groups.extend(part);
        }
        Ok(groups)
    }

    /// Replaces the errors of groups by those of their samples.
    async fn look_up_samples(&self, groups: &mut [FailureGroup]) -> Result<(), Error> {
        for part in groups.chunks_mut(SAMPLES_AT_ONCE) {
            let ids: Vec<JobId> = part.iter().filter_map(|group| group.sample).collect();
            let jobs = self.get_many(&ids).await?;
            let jobs = jobs.into_iter().flatten().map(|job| (job.id, job));
            let jobs: BTreeMap<JobId, Job> = jobs.collect();
            for group in part {
                let sample = group.sample.and_then(|sample| jobs.get(&sample));
                // A job that failed again with another cause is no longer in this group.
                let is_member = |sample: &&Job| {
                    let key = sample.group().map(|(key, _)| key);
                    key.as_ref() == Some(&group.key)
                };
                if let Some(sample) = sample.filter(is_member) {
                    group.error = sample.group_error();
                }
            }
        }
        Ok(())
    }
}

/// Goes over the groups that match, ordered by queue, kind and cause.
struct GroupWalk {
    stored: GroupFilter,
    member: Option<GroupMember>,
    after: Option<GroupKey>,
    /// How many groups were read, also such that do not match.
    read: usize,
    is_over: bool,
}

impl GroupWalk {
    fn new(filter: &FailureFilter, after: Option<GroupKey>) -> Self {
        GroupWalk {
            stored: GroupFilter {
                queue: filter.queue.clone(),
                kind: filter.kind.clone(),
                fingerprint: filter.fingerprint,
            },
            member: filter.member,
            after,
            read: 0,
            is_over: false,
        }
    }

    /// Returns the next groups, or `None` at the end. There may be none that match.
    async fn next(&mut self, client: &Client) -> Result<Option<Vec<FailureGroup>>, Error> {
        if self.is_over {
            return Ok(None);
        }
        let (store, now) = (client.engine.store(), client.now());
        let page = store.failure_groups(&self.stored, self.after.as_ref(), PAGE_MAX, now);
        let page = page.await?;
        self.read += page.len();
        self.is_over = page.len() < PAGE_MAX;
        self.after = page.last().map(|last| last.key.clone());
        let has_member = |group: &FailureGroup| match self.member {
            None => true,
            Some(GroupMember::Dead) => group.dead > 0,
            Some(GroupMember::Retrying) => group.retrying > 0,
        };
        Ok(Some(page.into_iter().filter(has_member).collect()))
    }
}
