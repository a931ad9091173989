//! Writes queue limits, documents, records and nodes.

use rusqlite::{OptionalExtension as _, params};
use serde_json::Value;
use windlass_core::{QueueName, Timestamp};
use windlass_store::{Expected, QueueLimits, Written};

use super::{Answer, Writer};
use crate::error::{DriverError, DriverResult};
use crate::row::{signed, sql_limit, unsigned};

impl Writer<'_> {
    pub(crate) fn put_queue(
        &mut self,
        queue: &QueueName,
        limits: &QueueLimits,
        expected: Option<&QueueLimits>,
    ) -> Answer<bool> {
        let found = self.queues.get(queue).cloned().unwrap_or_default();
        if expected.is_some_and(|expected| *expected != found) {
            return Ok(Ok(false));
        }
        let json = serde_json::to_string(limits)
            .map_err(|error| DriverError::damaged(error.to_string()))?;
        let mut statement = self
            .connection
            .prepare_cached("insert or replace into queues (name, limits) values (?1, ?2)")?;
        statement.execute(params![queue.as_str(), json])?;
        drop(statement);
        self.queues.insert(queue.clone(), limits.clone());
        Ok(Ok(true))
    }

    pub(crate) fn put_document(
        &mut self,
        collection: &str,
        name: &str,
        value: &Value,
        expected: Expected,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Answer<Written> {
        let found = self.document_version(collection, name, now)?;
        if !expected.allows(found) {
            return Ok(Ok(Written::Conflict(found)));
        }
        let version = found.unwrap_or(0) + 1;
        let mut statement = self.connection.prepare_cached(
            "insert or replace into documents (collection, name, version, value, updated_at, expires_at) \
             values (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        statement.execute(params![
            collection,
            name,
            signed(version),
            value.to_string(),
            now.as_micros(),
            expires_at.map(Timestamp::as_micros)
        ])?;
        Ok(Ok(Written::Version(version)))
    }

    pub(crate) fn remove_expired(&mut self, limit: usize, now: Timestamp) -> Answer<usize> {
        let limit = sql_limit(limit);
        let mut statement = self.connection.prepare_cached(
            "delete from documents where (collection, name) in ( \
                 select collection, name from documents where expires_at <= ?1 \
                 order by expires_at, collection, name limit ?2)",
        )?;
        Ok(Ok(statement.execute(params![now.as_micros(), limit])?))
    }

    pub(crate) fn remove_document(
        &mut self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Answer<Written> {
        // At the earliest time nothing has expired: an expired document can be removed too.
        let found = self.document_version(collection, name, Timestamp::MIN)?;
        let Some(version) = found.filter(|_| expected.allows(found)) else {
            return Ok(Ok(Written::Conflict(found)));
        };
        let mut statement = self
            .connection
            .prepare_cached("delete from documents where collection = ?1 and name = ?2")?;
        statement.execute([collection, name])?;
        Ok(Ok(Written::Version(version)))
    }

    /// Returns the version of a document, unless it has expired.
    fn document_version(
        &self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> DriverResult<Option<u64>> {
        let mut statement = self.connection.prepare_cached(
            "select version from documents where collection = ?1 and name = ?2 \
             and (expires_at is null or expires_at > ?3)",
        )?;
        let params = params![collection, name, now.as_micros()];
        let version = statement.query_row(params, |row| unsigned(row, 0));
        Ok(version.optional()?)
    }

    pub(crate) fn append(&mut self, topic: &str, values: &[Value], now: Timestamp) -> Answer<()> {
        for value in values {
            self.append_one(topic, value, now)?;
        }
        Ok(Ok(()))
    }

    pub(super) fn append_one(
        &mut self,
        topic: &str,
        value: &Value,
        now: Timestamp,
    ) -> DriverResult<()> {
        let mut statement = self
            .connection
            .prepare_cached("insert into records (topic, at, value) values (?1, ?2, ?3)")?;
        statement.execute(params![topic, now.as_micros(), value.to_string()])?;
        Ok(())
    }

    pub(crate) fn trim(&mut self, topic: &str, before: Timestamp, limit: usize) -> Answer<usize> {
        let limit = sql_limit(limit);
        let mut statement = self.connection.prepare_cached(
            "delete from records where cursor in ( \
                 select cursor from records where topic = ?1 and at < ?2 order by at, cursor limit ?3)",
        )?;
        Ok(Ok(statement.execute(params![
            topic,
            before.as_micros(),
            limit
        ])?))
    }

    pub(crate) fn beat(&mut self, name: &str, about: &Value, now: Timestamp) -> Answer<()> {
        let mut statement = self.connection.prepare_cached(
            "insert or replace into nodes (name, about, beat_at) values (?1, ?2, ?3)",
        )?;
        statement.execute(params![name, about.to_string(), now.as_micros()])?;
        Ok(Ok(()))
    }

    pub(crate) fn remove_node(&mut self, name: &str) -> Answer<()> {
        self.connection
            .prepare_cached("delete from nodes where name = ?1")?
            .execute([name])?;
        Ok(Ok(()))
    }
}
