//! Failure groups and tallies of actions: their rows. A bulk action counts in the column `gone`
//! only.

use std::collections::BTreeMap;

use rusqlite::{Row, params};
use windlass_core::{ActionId, ActionTally, Fingerprint, GroupKey};

use super::Writer;
use crate::error::{DriverResult, if_readable};
use crate::names::Names;
use crate::row::{self, signed, timestamp, unsigned};
use crate::tallies::Group;

impl Writer<'_> {
    pub(super) fn load_tallies(&mut self) -> DriverResult<()> {
        self.load_failure_groups()?;
        self.load_action_tallies()?;
        self.tallies.commit();
        Ok(())
    }

    fn load_failure_groups(&mut self) -> DriverResult<()> {
        let mut statement = self.connection.prepare(
            "select queue, kind, fingerprint, dead, retrying, first_seen_at, last_seen_at, sample, \
             error, hours from failure_groups",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            // Skip names that only a newer version allows: no one can read their jobs either.
            if let Some((key, group)) = if_readable(read_group(row, &mut self.names))? {
                self.tallies.groups.change(&key, || group);
            }
        }
        Ok(())
    }

    fn load_action_tallies(&mut self) -> DriverResult<()> {
        let mut statement = self.connection.prepare(
            "select replay, pending, recovered, failed_again, gone, first_succeeded, first_failed, \
             first_failed_alike from revivals",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let replay = ActionId::from_u128(u128::from_be_bytes(row.get(0)?));
            let tally = ActionTally {
                pending: unsigned(row, 1)?,
                recovered: unsigned(row, 2)?,
                failed_again: unsigned(row, 3)?,
                gone: unsigned(row, 4)?,
                first_succeeded: unsigned(row, 5)?,
                first_failed: unsigned(row, 6)?,
                first_failed_alike: unsigned(row, 7)?,
            };
            self.tallies.actions.change(&replay, || tally);
        }
        Ok(())
    }

    /// Writes the failure groups that changed in this group of requests.
    pub(super) fn save_failure_groups(&mut self) -> DriverResult<()> {
        let connection = self.connection;
        for (key, group) in self.tallies.groups.changed() {
            let queue = self.names.number(connection, key.queue.as_str())?;
            let kind = self.names.number(connection, key.kind.as_str())?;
            let fingerprint = key.fingerprint.bits().cast_signed();
            let Some(group) = group else {
                connection
                    .prepare_cached(
                        "delete from failure_groups where queue = ?1 and kind = ?2 and fingerprint = ?3",
                    )?
                    .execute(params![queue, kind, fingerprint])?;
                continue;
            };
            connection
                .prepare_cached(include_str!("../../sql/put_failure_group.sql"))?
                .execute(params![
                    queue,
                    kind,
                    fingerprint,
                    signed(group.dead),
                    signed(group.retrying),
                    group.first_seen_at.as_micros(),
                    group.last_seen_at.as_micros(),
                    group.sample.map(row::blob),
                    group.error,
                    serde_json::to_string(&group.hours).expect("numbers serialize to JSON"),
                ])?;
        }
        Ok(())
    }

    /// Writes the tallies of actions that changed in this group of requests.
    pub(super) fn save_action_tallies(&mut self) -> DriverResult<()> {
        for (replay, tally) in self.tallies.actions.changed() {
            let replay = replay.as_u128().to_be_bytes();
            let Some(tally) = tally else {
                self.connection
                    .prepare_cached("delete from revivals where replay = ?1")?
                    .execute([replay])?;
                continue;
            };
            self.connection
                .prepare_cached(include_str!("../../sql/put_revivals.sql"))?
                .execute(params![
                    replay,
                    signed(tally.pending),
                    signed(tally.recovered),
                    signed(tally.failed_again),
                    signed(tally.gone),
                    signed(tally.first_succeeded),
                    signed(tally.first_failed),
                    signed(tally.first_failed_alike),
                ])?;
        }
        Ok(())
    }
}

fn read_group(row: &Row<'_>, names: &mut Names) -> DriverResult<(GroupKey, Group)> {
    let fingerprint: i64 = row.get(2)?;
    let key = GroupKey {
        queue: names.queue(row.get(0)?)?,
        kind: names.kind(row.get(1)?)?,
        fingerprint: Fingerprint::from_bits(fingerprint.cast_unsigned()),
    };
    let sample: Option<[u8; 16]> = row.get(7)?;
    let hours: String = row.get(9)?;
    let hours: Option<BTreeMap<i64, u64>> = serde_json::from_str(&hours).ok();
    let group = Group {
        dead: unsigned(row, 3)?,
        retrying: unsigned(row, 4)?,
        first_seen_at: timestamp(row.get(5)?)?,
        last_seen_at: timestamp(row.get(6)?)?,
        sample: sample.map(row::id_from),
        error: row.get(8)?,
        hours: hours.unwrap_or_default(),
    };
    Ok((key, group))
}
