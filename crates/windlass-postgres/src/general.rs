//! Queues, nodes and records.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio_postgres::Row;
use windlass_core::{QueueName, Timestamp};
use windlass_store::{Node, QueueLimits, Record, RecordRange};

use crate::fault::{Fault, Step};
use crate::param::{Time, bigint, params};
use crate::row::{self, value};
use crate::session::Session;
use crate::unreadable::readable;

/// Whoever appends holds this lock, so that records become visible in the order of their cursors.
const RECORDS_LOCK: i64 = 0x7265_636F_7264;

pub(crate) async fn put_queue(
    session: &mut Session,
    queue: &QueueName,
    limits: &QueueLimits,
    expected: Option<&QueueLimits>,
) -> Step<bool> {
    // The text that was read is compared, not what this version would write: it may hold fields of
    // a newer one.
    let mut found: Option<String> = None;
    if let Some(expected) = expected {
        let sql = "select limits from windlass.queues where name = $1";
        let rows = session.look(sql, params![queue.as_str()]).await?;
        found = rows.first().map(|row| row.try_get(0)).transpose()?;
        let limits = found.as_deref().map(QueueLimits::from_stored);
        if limits.unwrap_or_default() != *expected {
            return Ok(false);
        }
    }
    let sql =
        "insert into windlass.queues (name, limits, bounded, max_depth, paused) values ($1, $2, $3, $4, $7)
         on conflict (name) do update
         set limits = excluded.limits, bounded = excluded.bounded, max_depth = excluded.max_depth, paused = excluded.paused
         where not $5 or queues.limits = $6
         returning 1";
    let max_depth = limits.max_depth.map(bigint);
    let unbounded = QueueLimits {
        max_depth: limits.max_depth,
        ..QueueLimits::default()
    };
    let bounded = *limits != unbounded;
    let json = serde_json::to_string(limits);
    let json = json.map_err(|error| Fault::damaged(error.to_string()))?;
    let compared = expected.is_some();
    let paused = limits.paused.is_some();
    let params = params![
        queue.as_str(),
        json,
        bounded,
        max_depth,
        compared,
        found,
        paused
    ];
    let written = session.alone(sql, params).await?;
    Ok(!written.is_empty())
}

pub(crate) async fn queues(session: &mut Session) -> Step<BTreeMap<QueueName, QueueLimits>> {
    let mut queues = BTreeMap::new();
    for found in session
        .look("select name, limits from windlass.queues", params![])
        .await?
    {
        let Ok(name) = row::name(&found, 0) else {
            continue; // a name that only a newer version allows
        };
        queues.insert(name, QueueLimits::from_stored(found.try_get(1)?));
    }
    Ok(queues)
}

pub(crate) async fn beat(
    session: &mut Session,
    name: &str,
    about: &Value,
    now: Timestamp,
) -> Step<()> {
    let sql = "insert into windlass.nodes (name, about, beat_at) values ($1, $2, $3)
         on conflict (name) do update set about = excluded.about, beat_at = excluded.beat_at";
    session
        .alone(sql, params![name, about.to_string(), Time(now)])
        .await?;
    Ok(())
}

pub(crate) async fn nodes(session: &mut Session) -> Step<Vec<Node>> {
    let sql = "select name, about, beat_at from windlass.nodes order by name";
    let node = |found: &Row| {
        Ok(Node {
            name: found.try_get(0)?,
            about: value(found.try_get(1)?)?,
            beat_at: row::time(found, 2)?,
        })
    };
    let rows = session.look(sql, params![]).await?;
    Ok(readable("node", &rows, node))
}

pub(crate) async fn remove_node(session: &mut Session, name: &str) -> Step<()> {
    let sql = "delete from windlass.nodes where name = $1";
    session.alone(sql, params![name]).await?;
    Ok(())
}

pub(crate) async fn append(
    session: &mut Session,
    topic: &str,
    values: &[Value],
    now: Timestamp,
) -> Step<()> {
    append_within(session, topic, values, now).await?;
    session.commit().await
}

pub(crate) async fn append_within(
    session: &mut Session,
    topic: &str,
    values: &[Value],
    now: Timestamp,
) -> Step<()> {
    let lock = "select pg_advisory_xact_lock($1)";
    session.query(lock, params![RECORDS_LOCK]).await?;
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    let sql = "insert into windlass.records (topic, at, value)
         select $1, $2, value from unnest($3::text[]) with ordinality as new (value, place) order by place";
    session.query(sql, params![topic, Time(now), texts]).await?;
    Ok(())
}

pub(crate) async fn records(
    session: &mut Session,
    topic: &str,
    range: RecordRange,
    limit: usize,
) -> Step<Vec<Record>> {
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
    let rows = session.look(sql, params).await?;
    Ok(readable("record", &rows, read_record))
}

fn read_record(found: &Row) -> Step<Record> {
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
) -> Step<usize> {
    let sql = "delete from windlass.records where cursor = any (array(
             select cursor from windlass.records where topic = $1 and at < $2 order by at, cursor limit $3))
         returning cursor";
    let limit = bigint(limit as u64);
    let rows = session
        .alone(sql, params![topic, Time(before), limit])
        .await?;
    Ok(rows.len())
}
