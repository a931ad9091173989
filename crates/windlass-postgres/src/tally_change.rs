//! What a transaction changes in the numbers of failure groups and actions.

use std::collections::BTreeMap;

use uuid::Uuid;
use windlass_core::{
    ActionCount, ActionId, ActionTally, GroupKey, GroupMember, Job, JobId, Timestamp, hour_of,
    revival_changes,
};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, params};
use crate::row::{self, cause};
use crate::session::Session;
use crate::statement::Sql;

/// Changes of failure groups and of tallies of actions, summed up for one transaction.
#[derive(Debug, Default)]
pub(crate) struct TallyChanges {
    groups: BTreeMap<GroupKey, GroupChange>,
    actions: BTreeMap<(ActionId, ActionCount), i64>,
}

#[derive(Debug, Default, PartialEq)]
struct GroupChange {
    dead: i64,
    retrying: i64,
    failures: i64,
    seen: Option<(Timestamp, JobId)>,
}

impl TallyChanges {
    /// Counts a job that changes from `before` to `after`; `None` if it is removed.
    pub(crate) fn count(&mut self, before: &Job, after: Option<&Job>) {
        self.add_member(before, -1);
        if let Some(after) = after {
            self.add_member(after, 1);
        }
        for (replay, count, by) in revival_changes(before, after) {
            self.count_action(replay, count, by);
        }
    }

    /// Adds to a number of an action.
    pub(crate) fn count_action(&mut self, action: ActionId, count: ActionCount, by: i64) {
        *self.actions.entry((action, count)).or_default() += by;
    }

    /// Adds a job to the numbers of its group, or subtracts it.
    pub(crate) fn add_member(&mut self, job: &Job, by: i64) {
        if let Some((key, member)) = job.group() {
            let change = self.groups.entry(key).or_default();
            match member {
                GroupMember::Dead => change.dead += by,
                GroupMember::Retrying => change.retrying += by,
            }
        }
    }

    /// Counts a failure or death of a job at `at`. All failures of one batch are in the same hour
    /// as the last one.
    pub(crate) fn count_failure(&mut self, job: &Job, at: Timestamp) {
        if let Some((key, _)) = job.group() {
            let change = self.groups.entry(key).or_default();
            change.failures += 1;
            change.seen = Some((at, job.id));
        }
    }

    /// The groups in which something failed.
    pub(crate) fn failed(&self) -> impl Iterator<Item = GroupKey> + '_ {
        let failed = self.groups.iter().filter(|(_, change)| change.failures > 0);
        failed.map(|(key, _)| key.clone())
    }

    /// Appends the changes, in the round trip of the next statement.
    pub(crate) fn write(&self, session: &mut Session) -> DriverResult<()> {
        let nothing = GroupChange::default();
        let groups: Vec<(&GroupKey, &GroupChange)> = self
            .groups
            .iter()
            .filter(|(_, change)| **change != nothing)
            .collect();
        if !groups.is_empty() {
            let queues: Vec<&str> = groups.iter().map(|(key, _)| key.queue.as_str()).collect();
            let kinds: Vec<&str> = groups.iter().map(|(key, _)| key.kind.as_str()).collect();
            let causes: Vec<i64> = groups
                .iter()
                .map(|(key, _)| cause(key.fingerprint))
                .collect();
            let column = |value: fn(&GroupChange) -> i64| -> Vec<i64> {
                groups.iter().map(|(_, change)| value(change)).collect()
            };
            let dead = column(|change| change.dead);
            let retrying = column(|change| change.retrying);
            let failures = column(|change| change.failures);
            let seen = || groups.iter().map(|(_, change)| change.seen);
            let hours: Vec<Option<i64>> = seen().map(|seen| Some(hour_of(seen?.0))).collect();
            let times: Vec<Option<Time>> = seen().map(|seen| Some(Time(seen?.0))).collect();
            let samples: Vec<Option<Uuid>> = seen().map(|seen| Some(row::uuid(seen?.1))).collect();
            let sql = Sql::Kept(
                "select windlass.insert_group_changes_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            );
            let params = params![
                queues, kinds, causes, dead, retrying, failures, hours, times, samples
            ];
            session.queue(sql, params)?;
        }
        let actions = || self.actions.iter().filter(|(_, by)| **by != 0);
        let ids: Vec<Uuid> = actions().map(|((action, _), _)| uuid(*action)).collect();
        if !ids.is_empty() {
            let counts: Vec<&str> = actions().map(|((_, count), _)| count.name()).collect();
            let jobs: Vec<i64> = actions().map(|(_, by)| *by).collect();
            let sql = include_str!("../sql/insert_revival_changes.sql");
            session.queue(sql, params![ids, counts, jobs])?;
        }
        Ok(())
    }
}

fn uuid(id: ActionId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}

pub(crate) async fn action_tally(
    session: &mut Session,
    action: ActionId,
) -> DriverResult<ActionTally> {
    let sql = "select count, sum(jobs)::bigint from (
             select count, jobs from windlass.revival_tallies where replay = $1
             union all
             select count, jobs from windlass.revival_changes where replay = $1
         ) as change group by count";
    let mut tally = ActionTally::default();
    for found in session.read(sql, params![uuid(action)]).await? {
        let name: &str = found.try_get(0)?;
        let count: ActionCount = name
            .parse()
            .map_err(|error: windlass_core::Invalid| DriverError::damaged(error.to_string()))?;
        tally.add(count, found.try_get(1)?);
    }
    Ok(tally)
}

/// Removes the tallies of actions that were created before an instant.
pub(crate) async fn trim_actions(session: &mut Session, before: Timestamp) -> DriverResult<()> {
    let oldest = uuid(ActionId::new(before, 0));
    for table in ["revival_tallies", "revival_changes"] {
        let sql = format!("delete from windlass.{table} where replay < $1");
        session.query(&sql, params![oldest]).await?;
    }
    Ok(())
}
