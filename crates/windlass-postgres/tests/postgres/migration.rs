//! Migrating a database of an older version, also if that is interrupted.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;
use windlass_core::{DeadReason, Fingerprint, fixed_hash};
use windlass_postgres::{MIGRATIONS, PostgresStore};
use windlass_store::GroupFilter;
use windlass_store::conformance::build::{Opened, at, kind};
use windlass_testkit::cluster;

use crate::tallies::check_recount;

/// Creates a database of version 1 with 2,500 dead jobs and 2,500 that failed once. The payloads of the
/// dead jobs are damaged: causes do not depend on them.
async fn version_1() -> (String, Client) {
    let url = cluster::empty_database().await;
    let client = cluster::client(&url).await;
    let first = &MIGRATIONS[0];
    let checksum = fixed_hash(first.sql.as_bytes()).cast_signed();
    let sql = format!(
        "create schema windlass;
         create table windlass.migrations (
             number integer not null primary key, name text not null, checksum bigint not null,
             applied_at timestamptz not null default now());
         {}
         insert into windlass.migrations (number, name, checksum) values (1, 'jobs', {checksum});
         insert into windlass.jobs (id, queue, kind, lane, rank, run_at, created_at, due, payload, attempt, failures,
             last_error, failed_at)
         select gen_random_uuid(), 'mail', 'k', 1, 0, '2026-01-01', '2026-01-01', n % 2 = 0, '{{}}', 1, 1,
             case when n % 3 = 0 then '{{\"message\":\"refused\"}}' else '{{\"message\":\"timed out\"}}' end, '2026-01-01'
         from generate_series(1, 2500) as n;
         insert into windlass.dead (id, queue, kind, rank, run_at, created_at, payload, attempt, failures, snoozes,
             losses_in_a_row, last_error, failed_at, state, reason, finished_at, outcome)
         select gen_random_uuid(), 'mail', 'k', 0, '2026-01-01', '2026-01-01', '{{', 1, 1, 0, 0,
             case when n % 6 = 0 then '{{\"message\":\"the lease expired\"}}'
                 when n % 3 = 0 then '{{\"message\":\"refused\"}}' end,
             case when n % 3 = 0 then '2026-01-02'::timestamptz end,
             'dead', case when n % 3 = 0 then 'exhausted' else 'expired' end, '2026-01-02',
             case when n % 6 = 0 then 'lost' when n % 3 = 0 then 'failed' end
         from generate_series(1, 2500) as n;
         insert into windlass.tallies values ('mail', 'dead', 2500)",
        first.sql
    );
    client.batch_execute(&sql).await.expect("it answers");
    (url, client)
}

/// The other connections that wait for a lock.
const WAITING: &str = "from pg_stat_activity
     where datname = current_database() and wait_event_type = 'Lock' and pid <> pg_backend_pid()";

pub(crate) async fn wait_until_one_waits(client: &Client) {
    let sql = format!("select pid {WAITING}");
    let one_waits = async {
        while client
            .query(&sql, &[])
            .await
            .expect("it answers")
            .is_empty()
        {}
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), one_waits).await;
    assert!(in_time.is_ok(), "no connection waits for a lock");
}

/// Waits until another connection waits for a lock, and ends it.
async fn kill_waiting(client: &Client) {
    wait_until_one_waits(client).await;
    let sql = format!("select pg_terminate_backend(pid) {WAITING}");
    client.query(&sql, &[]).await.expect("it answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_migration_continues() {
    let (url, client) = version_1().await;
    let options = cluster::options(&url);
    // The change of the schema waits for a reader and is killed: nothing of it happened.
    client
        .batch_execute("begin; select count(*) from windlass.tallies")
        .await
        .unwrap();
    let (killer, migrating) = (
        cluster::client(&url).await,
        PostgresStore::migrate(&options),
    );
    let (migrated, ()) = tokio::join!(migrating, kill_waiting(&killer));
    migrated.unwrap_err();
    client.batch_execute("rollback").await.unwrap();
    assert_eq!(PostgresStore::schema_version(&options).await.unwrap(), 1);
    // The schema changes. Then someone holds a row in the middle of the dead jobs, so that filling in
    // causes waits there, and is killed.
    let second = &MIGRATIONS[1];
    let checksum = fixed_hash(second.sql.as_bytes()).cast_signed();
    let sql = format!(
        "begin; {} insert into windlass.migrations (number, name, checksum) values (2, 'two', {checksum}); commit;
         begin; select id from windlass.dead
         where id = (select id from windlass.dead order by id offset 1500 limit 1) for update",
        second.sql
    );
    client.batch_execute(&sql).await.unwrap();
    let migrating = tokio::spawn(async move { PostgresStore::migrate(&options).await });
    wait_until_one_waits(&killer).await;
    migrating.abort();
    kill_waiting(&killer).await;
    client.batch_execute("rollback").await.unwrap();
    let filled_in = "select count(*) from windlass.dead where fingerprint is not null";
    let filled_in: i64 = client.query_one(filled_in, &[]).await.unwrap().get(0);
    assert_eq!(filled_in, 1000, "the first step stays");
    // A store that connects continues.
    let store = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let store: Opened = Arc::new(store);
    let open = "select count(*) from windlass.cause_backfill";
    while client.query_one(open, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::task::yield_now().await;
    }
    check_recount(&store, &client, at(1)).await;
    let all = GroupFilter::default();
    let groups = store.failure_groups(&all, None, 10, at(1)).await.unwrap();
    assert_eq!(groups.iter().map(|group| group.dead).sum::<u64>(), 2500);
    assert_eq!(groups.iter().map(|group| group.retrying).sum::<u64>(), 2500);
    let mut errors: Vec<&str> = groups.iter().map(|group| group.error.as_str()).collect();
    errors.sort_unstable();
    assert_eq!(
        errors,
        ["expired", "refused", "the lease expired", "timed out"]
    );
    let lost = groups.iter().find(|group| group.error.contains("lease"));
    let cause = lost.map(|group| group.key.fingerprint);
    let expected = Fingerprint::without_error(&kind("k"), DeadReason::Exhausted);
    assert_eq!(
        cause,
        Some(expected),
        "a lost attempt has no error of its own"
    );
}
