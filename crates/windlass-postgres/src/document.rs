//! Documents: named JSON with a version, which may expire.

use serde_json::Value;
use tokio_postgres::Row;
use windlass_core::Timestamp;
use windlass_store::{Document, Expected, Written};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, bigint, params};
use crate::row::{self, value};
use crate::session::Session;
use crate::unreadable::skip_unreadable;

/// A document to be written.
pub(crate) struct NewDocument<'a> {
    pub(crate) collection: &'a str,
    pub(crate) name: &'a str,
    pub(crate) value: &'a Value,
    pub(crate) expires_at: Option<Timestamp>,
}

/// Writes a document if its version is the expected one. If two transactions create it at the same
/// time, the primary key makes one of them retry.
pub(crate) async fn put(
    session: &mut Session,
    new: NewDocument<'_>,
    expected: Expected,
    now: Timestamp,
) -> DriverResult<Written> {
    let locked = lock(session, new.collection, new.name).await?;
    let found = locked.filter(|locked| locked.expires_at.is_none_or(|at| at > now));
    let found = found.map(|locked| locked.version);
    if !expected.allows(found) {
        session.roll_back().await?;
        return Ok(Written::Conflict(found));
    }
    let version = found.unwrap_or(0) + 1;
    let replaced = locked.map_or(0, |locked| locked.version);
    let sql = "insert into windlass.documents as known (collection, name, version, value, updated_at, expires_at)
         values ($1, $2, $3, $4, $5, $6)
         on conflict (collection, name) do update
         set version = excluded.version, value = excluded.value, updated_at = excluded.updated_at,
             expires_at = excluded.expires_at
         where known.version = $7
         returning version";
    let params = params![
        new.collection,
        new.name,
        bigint(version),
        new.value.to_string(),
        Time(now),
        new.expires_at.map(Time),
        bigint(replaced)
    ];
    if session.query_and_commit(sql, params).await?.is_empty() {
        return Err(DriverError::Collision); // another transaction created it
    }
    Ok(Written::Version(version))
}

pub(crate) async fn remove(
    session: &mut Session,
    collection: &str,
    name: &str,
    expected: Expected,
) -> DriverResult<Written> {
    let found = lock(session, collection, name).await?;
    let found = found.map(|locked| locked.version);
    let Some(version) = found.filter(|_| expected.allows(found)) else {
        session.roll_back().await?;
        return Ok(Written::Conflict(found));
    };
    let sql = "delete from windlass.documents where collection = $1 and name = $2";
    session
        .query_and_commit(sql, params![collection, name])
        .await?;
    Ok(Written::Version(version))
}

/// Removes expired documents. Skips rows that another transaction has locked.
pub(crate) async fn remove_expired(
    session: &mut Session,
    limit: usize,
    now: Timestamp,
) -> DriverResult<usize> {
    let sql = "with expired as materialized (
             select collection, name from windlass.documents where expires_at <= $1
             order by expires_at limit $2 for update skip locked)
         delete from windlass.documents as known using expired
         where known.collection = expired.collection and known.name = expired.name
         returning 1";
    let limit = bigint(limit as u64);
    Ok(session.single(sql, params![Time(now), limit]).await?.len())
}

/// An existing document, perhaps expired, whose row is locked.
#[derive(Clone, Copy)]
struct LockedDocument {
    version: u64,
    expires_at: Option<Timestamp>,
}

async fn lock(
    session: &mut Session,
    collection: &str,
    name: &str,
) -> DriverResult<Option<LockedDocument>> {
    let sql = "select version, expires_at from windlass.documents where collection = $1 and name = $2 for update";
    let rows = session.query(sql, params![collection, name]).await?;
    let locked = |found: &Row| {
        Ok(LockedDocument {
            version: row::number(found, 0)?,
            expires_at: row::optional_time(found, 1)?,
        })
    };
    rows.first().map(locked).transpose()
}

fn read(found: &Row) -> DriverResult<Document> {
    Ok(Document {
        version: row::number(found, 0)?,
        name: found.try_get(1)?,
        value: value(found.try_get(2)?)?,
        updated_at: row::time(found, 3)?,
        expires_at: row::optional_time(found, 4)?,
    })
}

pub(crate) async fn one(
    session: &mut Session,
    collection: &str,
    name: &str,
    now: Timestamp,
) -> DriverResult<Option<Document>> {
    let sql = "select version, name, value, updated_at, expires_at from windlass.documents
         where collection = $1 and name = $2 and (expires_at is null or expires_at > $3)";
    let params = params![collection, name, Time(now)];
    let rows = session.read(sql, params).await?;
    rows.first().map(read).transpose()
}

pub(crate) async fn all(
    session: &mut Session,
    collection: &str,
    now: Timestamp,
) -> DriverResult<Vec<Document>> {
    let sql = "select version, name, value, updated_at, expires_at from windlass.documents
         where collection = $1 and (expires_at is null or expires_at > $2) order by name";
    let rows = session.read(sql, params![collection, Time(now)]).await?;
    Ok(skip_unreadable("document", &rows, read))
}

pub(crate) async fn names(
    session: &mut Session,
    collection: &str,
    after: &str,
    limit: usize,
    now: Timestamp,
) -> DriverResult<Vec<String>> {
    let sql = "select name from windlass.documents
         where collection = $1 and name > $2 and (expires_at is null or expires_at > $4)
         order by name limit $3";
    let limit = bigint(limit as u64);
    let params = params![collection, after, limit, Time(now)];
    let rows = session.read(sql, params).await?;
    rows.iter().map(|found| Ok(found.try_get(0)?)).collect()
}
