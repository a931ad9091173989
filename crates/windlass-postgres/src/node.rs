//! Heartbeats of nodes.

use serde_json::Value;
use tokio_postgres::Row;
use windlass_core::Timestamp;
use windlass_store::Node;

use crate::error::DriverResult;
use crate::param::{Time, params};
use crate::row::{self, value};
use crate::session::Session;
use crate::unreadable::skip_unreadable;

pub(crate) async fn beat(
    session: &mut Session,
    name: &str,
    about: &Value,
    now: Timestamp,
) -> DriverResult<()> {
    let sql = "insert into windlass.nodes (name, about, beat_at) values ($1, $2, $3)
         on conflict (name) do update set about = excluded.about, beat_at = excluded.beat_at";
    session
        .single(sql, params![name, about.to_string(), Time(now)])
        .await?;
    Ok(())
}

pub(crate) async fn nodes(session: &mut Session) -> DriverResult<Vec<Node>> {
    let sql = "select name, about, beat_at from windlass.nodes order by name";
    let node = |found: &Row| {
        Ok(Node {
            name: found.try_get(0)?,
            about: value(found.try_get(1)?)?,
            beat_at: row::time(found, 2)?,
        })
    };
    let rows = session.read(sql, params![]).await?;
    Ok(skip_unreadable("node", &rows, node))
}

pub(crate) async fn remove_node(session: &mut Session, name: &str) -> DriverResult<()> {
    let sql = "delete from windlass.nodes where name = $1";
    session.single(sql, params![name]).await?;
    Ok(())
}
