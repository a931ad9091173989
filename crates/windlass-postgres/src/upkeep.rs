//! What nobody waits for: partitions for the days to come, and small heaps cleared away.

use std::time::Duration;

use windlass_core::Timestamp;

use crate::connect::{Class, Connections};
use crate::fault::Step;
use crate::param::{Time, params};
use crate::session::Session;

const EVERY: Duration = Duration::from_secs(60);

/// Whoever does it holds this lock; others leave it to them.
const LOCK: i64 = 0x7570_6B65_6570;

/// The tables that have a partition for each day.
const DAILY: [&str; 2] = ["finished", "attempts"];

/// Does what is to be done, again and again, for as long as the store lives.
pub(crate) async fn keep_up(connections: &Connections) {
    loop {
        if let Err(error) = connections
            .run(Class::Other, |mut session| async move {
                pass(&mut session).await
            })
            .await
        {
            tracing::warn!(%error, "the upkeep of the store failed: it is tried again");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Once.
pub(crate) async fn pass(session: &mut Session) -> Step<()> {
    let lock = session
        .query("select pg_try_advisory_xact_lock($1)", params![LOCK])
        .await?;
    if !lock.first().is_some_and(|row| row.get(0)) {
        return session.roll_back().await;
    }
    for sql in [
        "delete from windlass.claims where at < now() - interval '1 hour'",
        "delete from windlass.unique_keys where not living and until < now() - interval '1 hour'",
        "with gone as (delete from windlass.tallies returning *)
         insert into windlass.tallies (queue, state, count)
         select queue, state, sum(count) from gone group by queue, state having sum(count) <> 0",
    ] {
        session.query(sql, params![]).await?;
    }
    for (table, day, next) in missing_days(session).await? {
        let suffix = day.replace('-', "");
        let sql = format!(
            "create table windlass.{table}_{suffix} partition of windlass.{table}
             for values from ('{day} 00:00+00') to ('{next} 00:00+00')"
        );
        session.query(&sql, params![]).await?;
    }
    session.commit().await
}

/// The days from tomorrow on that have no partition yet. Today's rows may be among the others already: it is left alone.
async fn missing_days(session: &mut Session) -> Step<Vec<(&'static str, String, String)>> {
    let sql = "select to_char(day, 'YYYY-MM-DD'), to_char(day + interval '1 day', 'YYYY-MM-DD')
         from generate_series(date_trunc('day', now() at time zone 'utc') + interval '1 day',
                              date_trunc('day', now() at time zone 'utc') + interval '3 days', interval '1 day') as day
         where to_regclass('windlass.' || $1 || '_' || to_char(day, 'YYYYMMDD')) is null";
    let mut missing = Vec::new();
    for table in DAILY {
        for row in session.query(sql, params![table]).await? {
            missing.push((table, row.try_get(0)?, row.try_get(1)?));
        }
    }
    Ok(missing)
}

/// Drops the days that ended before then; answers how many partitions.
pub(crate) async fn drop_days(session: &mut Session, before: Timestamp) -> Step<usize> {
    let mut dropped = 0;
    for table in DAILY {
        let sql = "select child.relname::text
             from pg_inherits join pg_class as child on child.oid = inhrelid
             where inhparent = ('windlass.' || $1)::regclass and child.relname ~ ('^' || $1 || '_[0-9]{8}$')
               and to_date(right(child.relname, 8), 'YYYYMMDD') + 1 <= ($2::timestamptz at time zone 'utc')::date
             order by child.relname";
        for row in session.query(sql, params![table, Time(before)]).await? {
            let partition: String = row.try_get(0)?;
            if table == "finished" {
                let sql = format!(
                    "insert into windlass.tallies (queue, state, count)
                     select queue, state, -count(*) from windlass.{partition} group by queue, state"
                );
                session.query(&sql, params![]).await?;
            }
            session
                .query(&format!("drop table windlass.{partition}"), params![])
                .await?;
            dropped += 1;
        }
    }
    session.commit().await?;
    Ok(dropped)
}
