//! Records: append-only JSON values by topic.

use serde_json::Value;
use tokio_postgres::Row;
use windlass_core::Timestamp;
use windlass_store::{Record, RecordRange};

use crate::error::DriverResult;
use crate::param::{Time, bigint, params};
use crate::row::{self, value};
use crate::session::Session;
use crate::unreadable::skip_unreadable;

/// The advisory lock of an append. It makes records visible in the order of their cursors, so that
/// a reader that continues after a cursor misses none.
pub(crate) const RECORDS_LOCK: i64 = 0x7265_636F_7264;

pub(crate) async fn append(
    session: &mut Session,
    topic: &str,
    values: &[Value],
    now: Timestamp,
) -> DriverResult<()> {
    let lock = "select pg_advisory_xact_lock($1)";
    session.query(lock, params![RECORDS_LOCK]).await?;
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    let sql = "insert into windlass.records (topic, at, value)
         select $1, $2, value from unnest($3::text[]) with ordinality as new (value, position) order by position";
    session.query(sql, params![topic, Time(now), texts]).await?;
    session.commit().await
}

pub(crate) async fn records(
    session: &mut Session,
    topic: &str,
    range: RecordRange,
    limit: usize,
) -> DriverResult<Vec<Record>> {
    let (sql, cursor) = match range {
        RecordRange::After(cursor) => (
            "select cursor, at, value from windlass.records where topic = $1 and cursor > $2 order by cursor limit $3",
            cursor,
        ),
        RecordRange::Before(cursor) => (
            "select cursor, at, value from windlass.records where topic = $1 and cursor < $2 order by cursor desc limit $3",
            cursor,
        ),
    };
    let params = params![topic, bigint(cursor), bigint(limit as u64)];
    let rows = session.read(sql, params).await?;
    Ok(skip_unreadable("record", &rows, read_record))
}

fn read_record(found: &Row) -> DriverResult<Record> {
    Ok(Record {
        cursor: row::number(found, 0)?,
        at: row::time(found, 1)?,
        value: value(found.try_get(2)?)?,
    })
}

pub(crate) async fn trim(
    session: &mut Session,
    topic: &str,
    before: Timestamp,
    limit: usize,
) -> DriverResult<usize> {
    let sql = "delete from windlass.records where cursor = any (array(
             select cursor from windlass.records where topic = $1 and at < $2 order by at, cursor limit $3))
         returning cursor";
    let limit = bigint(limit as u64);
    let rows = session
        .single(sql, params![topic, Time(before), limit])
        .await?;
    Ok(rows.len())
}
