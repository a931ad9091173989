//! Reads on a connection of their own. They see committed data and never block the writer.

mod list;

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, Row, params};
use windlass_core::{Job, JobId, QueueName, ScheduleId, Timestamp};
use windlass_store::stored::LastAttempt;
use windlass_store::{
    Attempt, Document, FiredOccurrence, Node, QueueLimits, Record, RecordRange, Schedule,
    ScheduleRef, ScheduleRow, Schedules, UNFINISHED_SCAN_MAX, UnreadableSchedule,
};

use crate::error::{DriverResult, if_readable};
use crate::names::Names;
use crate::row::{self, sql_limit, timestamp, unsigned, value};
use crate::schema;

pub(crate) struct Reader {
    connection: Connection,
    names: Names,
    /// The highest numbers of names and policies that `names` has.
    newest: (i64, i64),
}

impl Reader {
    pub(crate) fn open(path: &Path) -> DriverResult<Self> {
        let connection = schema::open_reader(path)?;
        Ok(Reader {
            connection,
            names: Names::default(),
            newest: (0, 0),
        })
    }

    /// Runs a read in one snapshot of the file.
    pub(crate) fn read<T>(
        &mut self,
        read: impl Fn(&mut Reader) -> DriverResult<T>,
    ) -> DriverResult<T> {
        self.connection.prepare_cached("begin")?.execute([])?;
        let done = self.refresh_names().and_then(|()| read(self));
        // Nothing was written; this only ends the snapshot.
        self.connection.prepare_cached("rollback")?.execute([])?;
        done
    }

    /// Loads names that are new in this snapshot. After that, a missing name does not exist.
    fn refresh_names(&mut self) -> DriverResult<()> {
        let sql = "select coalesce((select max(id) from names), 0), coalesce((select max(id) from policies), 0)";
        let newest = self
            .connection
            .prepare_cached(sql)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if newest != self.newest {
            self.names.refresh(&self.connection)?;
            self.newest = newest;
        }
        Ok(())
    }

    /// Returns the jobs with these ids. An unreadable job is an error only if it is the only one.
    pub(crate) fn get(&mut self, jobs: &[JobId]) -> DriverResult<Vec<Option<Job>>> {
        if let [id] = jobs {
            let job = row::find(&self.connection, &mut self.names, *id)?;
            return Ok(vec![job.map(|(job, _)| job)]);
        }
        jobs.iter().map(|id| self.find(*id)).collect()
    }

    /// Returns a job, or `None` if it does not exist or cannot be read.
    fn find(&mut self, id: JobId) -> DriverResult<Option<Job>> {
        Ok(self.find_with_last_attempt(id)?.map(|(job, _)| job))
    }

    fn find_with_last_attempt(&mut self, id: JobId) -> DriverResult<Option<(Job, LastAttempt)>> {
        let job = if_readable(row::find(&self.connection, &mut self.names, id))?;
        Ok(job.flatten())
    }

    pub(crate) fn attempts(&mut self, id: JobId, limit: usize) -> DriverResult<Vec<Attempt>> {
        let last = self.find_with_last_attempt(id)?;
        let last = last.and_then(|(job, last)| last.row(&job));
        let rows = row::attempts(&self.connection, &mut self.names, id, limit)?;
        Ok(last.into_iter().chain(rows).take(limit).collect())
    }

    pub(crate) fn queues(&mut self) -> DriverResult<BTreeMap<QueueName, QueueLimits>> {
        let mut statement = self
            .connection
            .prepare_cached("select name, limits from queues")?;
        let mut rows = statement.query([])?;
        let mut queues = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let (name, limits): (String, String) = (row.get(0)?, row.get(1)?);
            // Skip names that only a newer version allows.
            if let Ok(name) = name.parse() {
                queues.insert(name, QueueLimits::from_stored(&limits));
            }
        }
        Ok(queues)
    }

    pub(crate) fn schedules(&mut self) -> DriverResult<Schedules> {
        let schedules = self.stored_schedules("order by name", &[])?;
        Ok(schedules.into_iter().collect())
    }

    pub(crate) fn schedule(&mut self, which: &ScheduleRef) -> DriverResult<Option<Schedule>> {
        let schedules = match which {
            ScheduleRef::Id(id) => {
                self.stored_schedules("where id = ?1", &[&id.as_u128().to_be_bytes()])
            }
            ScheduleRef::Name(name) => self.stored_schedules("where name = ?1", &[&name.as_str()]),
        };
        Ok(schedules?.pop().and_then(Result::ok))
    }

    fn stored_schedules(
        &self,
        condition: &str,
        parameters: &[&dyn rusqlite::ToSql],
    ) -> DriverResult<Vec<Result<Schedule, UnreadableSchedule>>> {
        let sql = format!(
            "select id, version, definition, created_at, last_at, next_at, name from schedules {condition}"
        );
        self.rows(&sql, parameters, schedule)
    }

    /// Returns the fired occurrences scheduled before an instant, newest first.
    pub(crate) fn occurrences(
        &mut self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> DriverResult<Vec<FiredOccurrence>> {
        let schedule = schedule.as_u128().to_be_bytes();
        let before = before.map_or(i64::MAX, Timestamp::as_micros);
        let limit = sql_limit(limit);
        self.rows(
            "select at, job from occurrences where schedule = ?1 and at < ?2 order by at desc limit ?3",
            &[&schedule, &before, &limit],
            |row| {
                let job: Option<[u8; 16]> = row.get(1)?;
                Ok(FiredOccurrence {
                    scheduled_for: timestamp(row.get(0)?)?,
                    job: job.map(|job| JobId::from_u128(u128::from_be_bytes(job))),
                })
            },
        )
    }

    /// Returns the unfinished jobs of each schedule. Skips those that cannot be read.
    pub(crate) fn unfinished_occurrences(
        &mut self,
        schedules: &[ScheduleId],
    ) -> DriverResult<Vec<Vec<Job>>> {
        let mut unfinished = Vec::with_capacity(schedules.len());
        for schedule in schedules {
            let ids = self.rows(
                include_str!("../sql/unfinished_occurrences.sql"),
                &[
                    &schedule.as_u128().to_be_bytes(),
                    &sql_limit(UNFINISHED_SCAN_MAX),
                ],
                |row| Ok(JobId::from_u128(u128::from_be_bytes(row.get(0)?))),
            )?;
            let mut jobs = Vec::with_capacity(ids.len());
            for id in ids {
                let found = self.find(id)?;
                jobs.extend(found.filter(|job| !job.state().is_final()));
            }
            unfinished.push(jobs);
        }
        Ok(unfinished)
    }

    /// Returns the schedules that are due for longest. Skips those that cannot be read.
    pub(crate) fn due(&mut self, limit: usize, now: Timestamp) -> DriverResult<Vec<Schedule>> {
        let mut statement = self.connection.prepare_cached(
            "select id, version, definition, created_at, last_at, next_at, name from schedules \
             where next_at <= ?1 order by next_at, id",
        )?;
        let mut rows = statement.query([now.as_micros()])?;
        let mut due = Vec::new();
        while due.len() < limit
            && let Some(row) = rows.next()?
        {
            due.extend(if_readable(schedule(row))?.into_iter().flatten());
        }
        Ok(due)
    }

    pub(crate) fn nodes(&mut self) -> DriverResult<Vec<Node>> {
        self.rows(
            "select name, about, beat_at from nodes order by name",
            &[],
            |row| {
                Ok(Node {
                    name: row.get(0)?,
                    about: value(&row.get::<_, String>(1)?)?,
                    beat_at: timestamp(row.get(2)?)?,
                })
            },
        )
    }

    pub(crate) fn document(
        &mut self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> DriverResult<Option<Document>> {
        let mut statement = self.connection.prepare_cached(
            "select name, version, value, updated_at, expires_at from documents \
             where collection = ?1 and name = ?2 and (expires_at is null or expires_at > ?3)",
        )?;
        let params = params![collection, name, now.as_micros()];
        let found = statement.query_row(params, |row| Ok(document(row)));
        found.optional()?.transpose()
    }

    pub(crate) fn documents(
        &mut self,
        collection: &str,
        now: Timestamp,
    ) -> DriverResult<Vec<Document>> {
        self.rows(
            "select name, version, value, updated_at, expires_at from documents \
             where collection = ?1 and (expires_at is null or expires_at > ?2) order by name",
            &[&collection, &now.as_micros()],
            document,
        )
    }

    pub(crate) fn document_names(
        &mut self,
        collection: &str,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> DriverResult<Vec<String>> {
        let limit = sql_limit(limit);
        self.rows(
            "select name from documents where collection = ?1 and name > ?2 \
             and (expires_at is null or expires_at > ?4) order by name limit ?3",
            &[&collection, &after, &limit, &now.as_micros()],
            |row| Ok(row.get(0)?),
        )
    }

    pub(crate) fn records(
        &mut self,
        topic: &str,
        range: RecordRange,
        limit: usize,
    ) -> DriverResult<Vec<Record>> {
        let (sql, cursor) = match range {
            RecordRange::After(cursor) => (
                "select cursor, at, value from records where topic = ?1 and cursor > ?2 order by cursor limit ?3",
                cursor,
            ),
            RecordRange::Before(cursor) => (
                "select cursor, at, value from records where topic = ?1 and cursor < ?2 order by cursor desc limit ?3",
                cursor,
            ),
        };
        let cursor = i64::try_from(cursor).unwrap_or(i64::MAX);
        let limit = sql_limit(limit);
        self.rows(sql, &[&topic, &cursor, &limit], record)
    }

    fn rows<T>(
        &self,
        sql: &str,
        parameters: &[&dyn rusqlite::ToSql],
        read: impl Fn(&Row<'_>) -> DriverResult<T>,
    ) -> DriverResult<Vec<T>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(parameters)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.extend(if_readable(read(row))?);
        }
        Ok(found)
    }
}

/// Reads a schedule, or what can be read of one with an unreadable definition.
fn schedule(row: &Row<'_>) -> DriverResult<Result<Schedule, UnreadableSchedule>> {
    let id: [u8; 16] = row.get(0)?;
    let optional = |micros: Option<i64>| micros.map(timestamp).transpose();
    let stored = ScheduleRow {
        id: ScheduleId::from_u128(u128::from_be_bytes(id)),
        name: row.get(6)?,
        version: unsigned(row, 1)?,
        definition: row.get(2)?,
        created_at: timestamp(row.get(3)?)?,
        last_at: optional(row.get(4)?)?,
        next_at: optional(row.get(5)?)?,
    };
    Ok(stored.read())
}

fn record(row: &Row<'_>) -> DriverResult<Record> {
    Ok(Record {
        cursor: unsigned(row, 0)?,
        at: timestamp(row.get(1)?)?,
        value: value(&row.get::<_, String>(2)?)?,
    })
}

fn document(row: &Row<'_>) -> DriverResult<Document> {
    Ok(Document {
        name: row.get(0)?,
        version: unsigned(row, 1)?,
        value: value(&row.get::<_, String>(2)?)?,
        updated_at: timestamp(row.get(3)?)?,
        expires_at: row.get::<_, Option<i64>>(4)?.map(timestamp).transpose()?,
    })
}
