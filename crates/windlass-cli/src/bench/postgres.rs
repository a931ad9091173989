//! Statistics of a PostgreSQL server, and the baseline of bare inserts.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};
use windlass_postgres::{Options, PostgresStore};
use windlass_store::Store as _;

use super::run::percentiles;
use crate::clock;

/// A connection to the database, separate from those of the store.
pub(super) struct Server {
    client: Client,
}

/// Whether the URL of a store names a PostgreSQL database.
pub(super) fn is_url(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

/// Opens a database and migrates its schema. The database must not hold any jobs.
pub(super) async fn open(url: &str) -> anyhow::Result<(PostgresStore, Server)> {
    let server = Server::connect(url).await?;
    let store = PostgresStore::connect(Options::parse(url)?).await?;
    let jobs = store.counts(clock::now()).await?;
    anyhow::ensure!(
        jobs.is_empty(),
        "the database already holds jobs; use an empty one"
    );
    Ok((store, server))
}

impl Server {
    /// Connects to a database and migrates its schema.
    pub(super) async fn connect(url: &str) -> anyhow::Result<Self> {
        let options = Options::parse(url)?;
        PostgresStore::migrate(&options).await?;
        let (client, connection) = options.server.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(Server { client })
    }

    /// Returns the number of transactions so far.
    pub(super) async fn transactions(&self) -> anyhow::Result<f64> {
        let sql = "select (xact_commit + xact_rollback)::float8 from pg_stat_database
             where datname = current_database()";
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }

    /// Returns the number of WAL syncs and the stored bytes.
    pub(super) async fn written(&self) -> anyhow::Result<(u64, u64)> {
        let sql = "select wal_sync, pg_database_size(current_database()) from pg_stat_wal";
        let row = self.client.query_one(sql, &[]).await?;
        let (syncs, bytes): (i64, i64) = (row.get(0), row.get(1));
        Ok((u64::try_from(syncs)?, u64::try_from(bytes)?))
    }

    /// Returns the median time of `select 1`, one insert and a synced commit, in one round trip.
    pub(super) async fn commit_ms(&self) -> anyhow::Result<f64> {
        const SAMPLES: usize = 201;
        self.create_bare_table().await?;
        let mut times = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            let started = clock::start();
            let sql = "begin; select 1; insert into windlass_bare (at) values (1); commit";
            self.client.batch_execute(sql).await?;
            times.push(started.elapsed());
        }
        self.drop_bare_table().await?;
        Ok(percentiles(&mut times).p50)
    }

    async fn create_bare_table(&self) -> anyhow::Result<()> {
        let sql = "drop table if exists windlass_bare;
             create table windlass_bare (id uuid, queue text, kind text, at bigint, payload text)";
        Ok(self.client.batch_execute(sql).await?)
    }

    async fn drop_bare_table(&self) -> anyhow::Result<()> {
        let sql = "drop table windlass_bare";
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Inserts the same rows into one table without an index, in batches; returns jobs per second.
    pub(super) async fn bare_inserts(
        &self,
        jobs: u64,
        batch: u32,
        payload: &str,
    ) -> anyhow::Result<f64> {
        self.create_bare_table().await?;
        let sql = "insert into windlass_bare
             select gen_random_uuid(), 'default', 'bench', at, payload from unnest($1::bigint[], $2::text[]) as row (at, payload)";
        let started = clock::start();
        let mut inserted = 0;
        while inserted < jobs {
            let count = jobs.saturating_sub(inserted).min(batch.into());
            let numbers: Vec<i64> = (0..i64::try_from(count)?).collect();
            let payloads = vec![payload; usize::try_from(count)?];
            self.client
                .query_typed(
                    sql,
                    &[(&numbers, Type::INT8_ARRAY), (&payloads, Type::TEXT_ARRAY)],
                )
                .await?;
            inserted += count;
        }
        let per_second = jobs as f64 / started.elapsed().as_secs_f64();
        self.drop_bare_table().await?;
        Ok(per_second)
    }
}
