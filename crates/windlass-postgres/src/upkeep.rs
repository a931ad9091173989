//! Background maintenance: partitions, old rows, and jobs that were set aside.
//!
//! `finished` and `attempts` have a partition for each day (UTC), so that retention drops whole
//! tables instead of deleting millions of rows. Partitions are created up to three days ahead: rows
//! that arrive before their partition exists go to the default partition (`…_else`), and PostgreSQL
//! refuses to create a partition whose rows are already in there. For the same reason today's
//! partition is never created, only later ones.
//!
//! Every node runs this once a minute. An advisory lock lets one node at a time do the work; the
//! others skip it.

use std::time::Duration;

use uuid::Uuid;
use windlass_core::Timestamp;
use windlass_store::StoreError;

use crate::connect::{ConnectionClass, Connections};
use crate::error::DriverResult;
use crate::param::{Time, params};
use crate::session::Session;
use crate::settings::Settings;
use crate::unreadable;

const EVERY: Duration = Duration::from_secs(60);

/// The advisory lock of the node that does the maintenance.
const LOCK: i64 = 0x7570_6B65_6570;

/// The tables that have a partition for each day.
const DAILY: [&str; 2] = ["finished", "attempts"];

/// Runs all tasks once a minute, as long as the store is open.
pub(crate) async fn run(connections: &Connections, settings: &Settings) {
    let mut set_aside_from = Uuid::nil();
    loop {
        for task in [CLAIMS, KEYS, EMPTY_QUEUES, OLD_HOURS] {
            let done = connections.run(ConnectionClass::Other, |mut session| async move {
                run_exclusively(&mut session, task).await
            });
            report(done.await);
        }
        report(add_days(connections).await);
        let looked = connections.run(ConnectionClass::Other, |mut session| async move {
            unreadable::pick_up_readable(&mut session, settings, set_aside_from).await
        });
        report(looked.await.map(|next| set_aside_from = next));
        tokio::time::sleep(EVERY).await;
    }
}

fn report(done: Result<(), StoreError>) {
    if let Err(error) = done {
        tracing::warn!(%error, "a database maintenance task failed; retrying in one minute");
    }
}

// Times come from the clock of the store, which is that of the newest claim. Where it is ahead of
// the server, because the clock of one node jumped, the server's clock counts. An empty table of
// claims removes nothing.
const CLAIMS: &str = "delete from windlass.claims where at < (
         select least(now(), max(at)) - interval '1 hour' from windlass.claims having count(*) > 0
     )";
const KEYS: &str = "delete from windlass.unique_keys where not living and until < (
         select least(now(), max(at)) - interval '1 hour' from windlass.claims having count(*) > 0
     )";
const EMPTY_QUEUES: &str = "delete from windlass.queue_tallies
     where active = 0 and retries = 0 and future = 0 and succeeded = 0 and dead = 0 and cancelled = 0";
const OLD_HOURS: &str = "delete from windlass.group_hours as hours using windlass.failure_groups as known
     where (hours.queue, hours.kind, hours.fingerprint) = (known.queue, known.kind, known.fingerprint)
       and hours.hour < extract(epoch from known.last_seen_at)::bigint / 3600 - 48";

/// Runs one statement, unless another node does the maintenance.
async fn run_exclusively(session: &mut Session, sql: &str) -> DriverResult<()> {
    if lock(session).await? {
        session.query(sql, params![]).await?;
    }
    session.commit().await
}

/// Takes the maintenance lock until the end of the transaction. Returns `false` if another node has
/// it.
async fn lock(session: &mut Session) -> DriverResult<bool> {
    let sql = "select pg_try_advisory_xact_lock($1)";
    let rows = session.query(sql, params![LOCK]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Creates partitions for the next days, each in its own transaction.
async fn add_days(connections: &Connections) -> Result<(), StoreError> {
    let missing = connections
        .run(ConnectionClass::Other, |mut session| async move {
            missing_days(&mut session).await
        })
        .await?;
    for (table, day, next) in missing {
        let suffix = day.replace('-', "");
        let sql = &format!(
            "create table if not exists windlass.{table}_{suffix} partition of windlass.{table}
             for values from ('{day} 00:00+00') to ('{next} 00:00+00')"
        );
        connections
            .run(ConnectionClass::Other, |mut session| async move {
                run_exclusively(&mut session, sql).await
            })
            .await?;
    }
    Ok(())
}

/// Returns the days from tomorrow on that have no partition yet. Today's rows may already be in the
/// default partition, so today is left out.
async fn missing_days(session: &mut Session) -> DriverResult<Vec<(&'static str, String, String)>> {
    let sql = "select to_char(day, 'YYYY-MM-DD'), to_char(day + interval '1 day', 'YYYY-MM-DD')
         from generate_series(date_trunc('day', now() at time zone 'utc') + interval '1 day',
                              date_trunc('day', now() at time zone 'utc') + interval '3 days', interval '1 day') as day
         where to_regclass('windlass.' || $1 || '_' || to_char(day, 'YYYYMMDD')) is null";
    let mut missing = Vec::new();
    for table in DAILY {
        for row in session.read(sql, params![table]).await? {
            missing.push((table, row.try_get(0)?, row.try_get(1)?));
        }
    }
    Ok(missing)
}

/// Drops the partitions of days that ended before an instant, each in its own transaction, and
/// deletes such rows from the default partition. Returns how many partitions it dropped.
pub(crate) async fn drop_days(
    connections: &Connections,
    before: Timestamp,
) -> Result<usize, StoreError> {
    let mut dropped = 0;
    for table in DAILY {
        let days = connections
            .run(ConnectionClass::Other, |mut session| async move {
                old_days(&mut session, table, before).await
            })
            .await?;
        for day in &days {
            let deleted = connections
                .run(ConnectionClass::Other, |mut session| async move {
                    drop_day(&mut session, table, day).await
                })
                .await?;
            dropped += usize::from(deleted);
        }
        while connections
            .run(ConnectionClass::Other, |mut session| async move {
                drop_rows(&mut session, table, before).await
            })
            .await?
            > 0
        {}
    }
    Ok(dropped)
}

async fn old_days(
    session: &mut Session,
    table: &str,
    before: Timestamp,
) -> DriverResult<Vec<String>> {
    let sql = "select child.relname::text
         from pg_inherits join pg_class as child on child.oid = inhrelid
         where inhparent = ('windlass.' || $1)::regclass and child.relname ~ ('^' || $1 || '_[0-9]{8}$')
           and to_date(right(child.relname, 8), 'YYYYMMDD') + 1 <= ($2::timestamptz at time zone 'utc')::date
         order by child.relname";
    let rows = session.read(sql, params![table, Time(before)]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The attempts of active and dead jobs are kept, however old they are.
const STILL_NEEDED: &str = "exists (select from windlass.jobs where id = job) or exists (select from windlass.dead where id = job)";

/// Drops the partition of a day. Returns `false` if another node does the maintenance.
async fn drop_day(session: &mut Session, table: &str, day: &str) -> DriverResult<bool> {
    if !lock(session).await? {
        session.roll_back().await?; // another node does it
        return Ok(false);
    }
    let statements = match table {
        "finished" => vec![
            format!("lock table windlass.{day}"),
            format!(
                "delete from windlass.occurrences where job in (select id from windlass.{day})"
            ),
            format!(
                "insert into windlass.queue_changes (queue, succeeded, cancelled)
                 select queue, -count(*) filter (where state = 'succeeded'), -count(*) filter (where state = 'cancelled')
                 from windlass.{day} group by queue"
            ),
            format!("drop table windlass.{day}"),
        ],
        _ => vec![
            format!("lock table windlass.{day}"),
            format!(
                "create temporary table kept on commit drop as select * from windlass.{day} where {STILL_NEEDED}"
            ),
            format!("drop table windlass.{day}"),
            "insert into windlass.attempts select * from pg_temp.kept".to_owned(),
        ],
    };
    for sql in statements {
        session.query(&sql, params![]).await?;
    }
    session.commit().await?;
    Ok(true)
}

/// Deletes up to 1,000 old rows from the default partition. Returns how many.
async fn drop_rows(session: &mut Session, table: &str, before: Timestamp) -> DriverResult<usize> {
    if !lock(session).await? {
        session.roll_back().await?;
        return Ok(0);
    }
    let sql = match table {
        "finished" => "with deleted as (
                 delete from windlass.finished_else where ctid = any (array(
                     select ctid from windlass.finished_else where finished_at < $1 limit 1000)) returning id, queue, state
             ), freed as (
                 delete from windlass.occurrences where job in (select id from deleted)
             ), counted as (
                 insert into windlass.queue_changes (queue, succeeded, cancelled)
                 select queue, -count(*) filter (where state = 'succeeded'), -count(*) filter (where state = 'cancelled')
                 from deleted group by queue
             ) select from deleted"
            .to_owned(),
        _ => format!(
            "delete from windlass.attempts_else where ctid = any (array(
                 select ctid from windlass.attempts_else where finished_at < $1 and not ({STILL_NEEDED}) limit 1000)) returning job"
        ),
    };
    let rows = session
        .query_and_commit(&sql, params![Time(before)])
        .await?;
    Ok(rows.len())
}
