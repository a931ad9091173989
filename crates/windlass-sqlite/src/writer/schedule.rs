//! Schedules and their occurrences.

use rusqlite::{OptionalExtension as _, params};
use windlass_core::{Job, ScheduleId, Timestamp};
use windlass_store::{Expected, Fire, Fired, Schedule, Written};

use super::{Answer, Writer};
use crate::error::{DriverError, DriverResult};
use crate::row::{self, signed, unsigned};

impl Writer<'_> {
    pub(crate) fn put_schedule(
        &mut self,
        schedule: &Schedule,
        expected: Expected,
    ) -> Answer<Written> {
        let (id, name) = (
            schedule.id.as_u128().to_be_bytes(),
            schedule.definition.name.as_str(),
        );
        let version = |sql: &str, value: &dyn rusqlite::ToSql| {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement
                .query_row([value], |row| unsigned(row, 0))
                .optional()
        };
        let other = self
            .connection
            .prepare_cached("select version from schedules where name = ?1 and id <> ?2")?
            .query_row(params![name, id], |row| unsigned(row, 0))
            .optional()?;
        if other.is_some() {
            return Ok(Ok(Written::Conflict(other)));
        }
        let found = version("select version from schedules where id = ?1", &id)?;
        if !expected.allows(found) {
            return Ok(Ok(Written::Conflict(found)));
        }
        let next = found.unwrap_or(0) + 1;
        let definition = serde_json::to_string(&schedule.definition).map_err(|error| {
            DriverError::damaged(format!("the schedule cannot be written as JSON: {error}"))
        })?;
        let mut statement = self.connection.prepare_cached(
            "insert or replace into schedules (id, name, version, definition, created_at, last_at, next_at) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        statement.execute(params![
            id,
            name,
            signed(next),
            definition,
            schedule.created_at.as_micros(),
            schedule.last_at.map(Timestamp::as_micros),
            schedule.next_at.map(Timestamp::as_micros),
        ])?;
        Ok(Ok(Written::Version(next)))
    }

    pub(crate) fn remove_schedule(
        &mut self,
        schedule: ScheduleId,
        expected: Expected,
    ) -> Answer<Written> {
        let id = schedule.as_u128().to_be_bytes();
        let found = self
            .connection
            .prepare_cached("select version from schedules where id = ?1")?
            .query_row([id], |row| unsigned(row, 0))
            .optional()?;
        let Some(version) = found.filter(|_| expected.allows(found)) else {
            return Ok(Ok(Written::Conflict(found)));
        };
        for sql in [
            "delete from schedules where id = ?1",
            "delete from occurrences where schedule = ?1",
        ] {
            self.connection.prepare_cached(sql)?.execute([id])?;
        }
        self.connection
            .prepare_cached("delete from records where topic = ?1")?
            .execute([Fire::skipped_topic(schedule)])?;
        Ok(Ok(Written::Version(version)))
    }

    pub(crate) fn fire_all(&mut self, fires: &[Fire], now: Timestamp) -> Answer<Vec<Fired>> {
        self.index.promote(now);
        let mut answers = Vec::with_capacity(fires.len());
        for fire in fires {
            answers.push(self.fire(fire, now)?);
        }
        Ok(Ok(answers))
    }

    fn fire(&mut self, fire: &Fire, now: Timestamp) -> DriverResult<Fired> {
        let definition = fire.definition.as_ref().map(serde_json::to_string);
        let definition = definition.transpose().map_err(|error| {
            DriverError::damaged(format!("the schedule cannot be written as JSON: {error}"))
        })?;
        let moved = self
            .connection
            .prepare_cached(
                "update schedules set version = version + 1, last_at = ?3, next_at = ?4, \
                 definition = coalesce(?5, definition) where id = ?1 and version = ?2",
            )?
            .execute(params![
                fire.schedule.as_u128().to_be_bytes(),
                signed(fire.version),
                fire.last_at.map(Timestamp::as_micros),
                fire.next_at.map(Timestamp::as_micros),
                definition,
            ])?;
        if moved == 0 {
            return Ok(Fired::Stale);
        }
        self.record_skipped(fire, now)?;
        let mut created = Vec::new();
        for job in &fire.jobs {
            let key = job.unique.as_ref().map(|unique| &unique.key);
            let queue = self.names.number(self.connection, job.queue.as_str())?;
            let held = key.is_some_and(|key| self.index.hold(queue, key, now).is_some());
            if self.is_new_occurrence(job, held)? && !held {
                self.create(job, queue)?;
                created.push(job.id);
            }
        }
        Ok(Fired::Done { jobs: created })
    }

    fn record_skipped(&mut self, fire: &Fire, now: Timestamp) -> DriverResult<()> {
        let topic = Fire::skipped_topic(fire.schedule);
        if let Some(cursor) = fire.lengthened {
            self.connection
                .prepare_cached("delete from records where topic = ?1 and cursor = ?2")?
                .execute(params![topic, signed(cursor)])?;
        }
        for record in fire.skipped_records() {
            self.append_one(&topic, &record, now)?;
        }
        Ok(())
    }

    fn is_new_occurrence(&mut self, job: &Job, held: bool) -> DriverResult<bool> {
        let Some(occurrence) = job.occurrence else {
            return Ok(true);
        };
        let mut statement = self.connection.prepare_cached(
            "insert into occurrences (schedule, at, job) values (?1, ?2, ?3) on conflict do nothing",
        )?;
        let (schedule, at) = (
            occurrence.schedule_id.as_u128().to_be_bytes(),
            occurrence.scheduled_for.as_micros(),
        );
        let fired = Some(row::blob(job.id)).filter(|_| !held);
        Ok(statement.execute(params![schedule, at, fired])? == 1)
    }

    /// Deletes the occurrence of a purged job.
    pub(super) fn remove_occurrence(&mut self, job: &Job) -> DriverResult<()> {
        let Some(occurrence) = job.occurrence else {
            return Ok(());
        };
        let mut statement = self
            .connection
            .prepare_cached("delete from occurrences where schedule = ?1 and at = ?2")?;
        statement.execute(params![
            occurrence.schedule_id.as_u128().to_be_bytes(),
            occurrence.scheduled_for.as_micros()
        ])?;
        Ok(())
    }
}
