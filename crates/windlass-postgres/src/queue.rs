//! Queue limits.

use std::collections::BTreeMap;

use windlass_core::QueueName;
use windlass_store::QueueLimits;

use crate::error::{DriverError, DriverResult};
use crate::param::{bigint, params};
use crate::row;
use crate::session::Session;

pub(crate) async fn put_queue(
    session: &mut Session,
    queue: &QueueName,
    limits: &QueueLimits,
    expected: Option<&QueueLimits>,
) -> DriverResult<bool> {
    // The update compares the stored text, not what this version would write: the text may have
    // fields of a newer version.
    let mut found: Option<String> = None;
    if let Some(expected) = expected {
        let sql = "select limits from windlass.queues where name = $1";
        let rows = session.read(sql, params![queue.as_str()]).await?;
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
    let json = json.map_err(|error| DriverError::damaged(error.to_string()))?;
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
    let written = session.single(sql, params).await?;
    Ok(!written.is_empty())
}

pub(crate) async fn queues(
    session: &mut Session,
) -> DriverResult<BTreeMap<QueueName, QueueLimits>> {
    let mut queues = BTreeMap::new();
    for found in session
        .read("select name, limits from windlass.queues", params![])
        .await?
    {
        let Ok(name) = row::name(&found, 0) else {
            continue; // a name that only a newer version allows
        };
        queues.insert(name, QueueLimits::from_stored(found.try_get(1)?));
    }
    Ok(queues)
}
