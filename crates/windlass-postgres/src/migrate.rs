//! Schema migrations. One node at a time migrates, and only forward.

use tokio_postgres::Client;
use windlass_store::StoreError;

use crate::error::{DriverError, DriverResult};
use crate::param::params;

/// A numbered change of the schema.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The version of the schema after this migration, counted from 1.
    pub number: u32,
    /// A short name.
    pub name: &'static str,
    /// The SQL script. Never edited once released.
    pub sql: &'static str,
}

/// All migrations, in order.
pub const MIGRATIONS: [Migration; 4] = [
    Migration {
        number: 1,
        name: "jobs",
        sql: include_str!("../migrations/0001_jobs.sql"),
    },
    Migration {
        number: 2,
        name: "failure groups",
        sql: include_str!("../migrations/0002_failure_groups.sql"),
    },
    Migration {
        number: 3,
        name: "functions",
        sql: include_str!("../migrations/0003_functions.sql"),
    },
    Migration {
        number: 4,
        name: "concurrency keys",
        sql: include_str!("../migrations/0004_concurrency_keys.sql"),
    },
];

/// The advisory lock of a node that migrates: the letters of "windlass".
const LOCK: i64 = 0x7769_6E64_6C61_7373;

pub(crate) fn newest() -> u32 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

/// Returns the version of the schema; 0 if there is none.
pub(crate) async fn version(client: &Client) -> DriverResult<u32> {
    let exists = "select to_regclass('windlass.migrations') is not null";
    let exists: bool = client
        .query_typed(exists, &[])
        .await?
        .first()
        .is_some_and(|row| row.get(0));
    if !exists {
        return Ok(0);
    }
    let newest = "select coalesce(max(number), 0) from windlass.migrations";
    let number: i32 = client
        .query_typed(newest, &[])
        .await?
        .first()
        .map_or(0, |row| row.get(0));
    Ok(u32::try_from(number).unwrap_or(0))
}

/// Migrates the schema to the newest version. Returns the migrations that it applied.
pub(crate) async fn up(client: &Client) -> DriverResult<Vec<Migration>> {
    client.batch_execute("begin").await?;
    client
        .query_typed("select pg_advisory_xact_lock($1)", params![LOCK])
        .await?;
    let found = version(client).await?;
    if found > newest() {
        client.batch_execute("rollback").await?;
        let needed = newest();
        return Err(DriverError::Refused(StoreError::WrongSchema {
            found,
            needed,
        }));
    }
    check_applied(client, found).await?;
    client
        .batch_execute(
            "create schema if not exists windlass;
             create table if not exists windlass.migrations (
                 number     integer not null primary key,
                 name       text not null,
                 checksum   bigint not null,
                 applied_at timestamptz not null default now())",
        )
        .await?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS
        .iter()
        .filter(|migration| migration.number > found)
    {
        client.batch_execute(migration.sql).await?;
        let number = i32::try_from(migration.number).unwrap_or(i32::MAX);
        client
            .query_typed(
                "insert into windlass.migrations (number, name, checksum) values ($1, $2, $3)",
                params![number, migration.name, checksum(migration.sql)],
            )
            .await?;
        applied.push(*migration);
    }
    client.batch_execute("commit").await?;
    Ok(applied)
}

/// Refuses a schema whose migrations differ from those of this build.
async fn check_applied(client: &Client, found: u32) -> DriverResult<()> {
    if found == 0 {
        return Ok(());
    }
    let applied = "select number, checksum from windlass.migrations order by number";
    for row in client.query_typed(applied, &[]).await? {
        let (number, sum): (i32, i64) = (row.get(0), row.get(1));
        let known = MIGRATIONS
            .iter()
            .find(|migration| i32::try_from(migration.number) == Ok(number));
        if let Some(known) = known.filter(|known| checksum(known.sql) != sum) {
            let what = format!(
                "migration {} ({}) differs from the one that was applied",
                known.number, known.name
            );
            return Err(DriverError::damaged(what));
        }
    }
    Ok(())
}

fn checksum(sql: &str) -> i64 {
    windlass_core::fixed_hash(sql.as_bytes()).cast_signed()
}
