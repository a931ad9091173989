//! Query plans of the statements that must stay fast, even with wrong statistics.

use std::time::Duration;

use tokio_postgres::Client;
use windlass_core::{DeadReason, Timestamp};
use windlass_postgres::PostgresStore;
use windlass_store::{Filter, Page, Store as _};
use windlass_testkit::cluster;

const PROMOTE: &str = include_str!("../../sql/promote.sql");
const DUE_QUEUES: &str = include_str!("../../sql/due_queues.sql");
const UNFINISHED: &str = include_str!("../../sql/unfinished_occurrences.sql");

/// Returns a statement with values instead of parameters.
pub(crate) fn values(sql: &str, values: &[&str]) -> String {
    let numbered = values.iter().enumerate().rev();
    numbered.fold(sql.to_owned(), |sql, (number, value)| {
        sql.replace(&format!("${}", number + 1), value)
    })
}

/// Returns the statements with values instead of parameters.
fn statements() -> Vec<(&'static str, String)> {
    let kinds = ["'{k,http}'::text[]", "''", "''", "'%'", "now()", "100"];
    vec![
        ("promote", values(PROMOTE, &["now()", "5000"])),
        ("due queues", values(DUE_QUEUES, &kinds)),
    ]
}

/// Returns calls of the functions, each for 100 of these jobs.
fn calls(ids: &[String]) -> Vec<(&'static str, String)> {
    let ids = format!("'{{{}}}'::uuid[]", ids.join(","));
    let place = "-2147483648, '0001-01-01', '00000000-0000-0000-0000-000000000000'";
    let claim = format!(
        "windlass.claim_v2(gen_random_uuid(), 1, 'default', '{{http}}', false, now(), now(), 1, 'w1', {place}, {place},
             100, 50, 100, 100, 5000)"
    );
    let column = |value: &str, sql_type: &str| {
        format!("array(select {value} from generate_series(1, 100))::{sql_type}[]")
    };
    let (ones, no_text, no_time) = (
        column("1", "integer"),
        column("null", "text"),
        column("null", "timestamptz"),
    );
    let (text, attempts) = (column("'default'", "text"), column("0", "integer"));
    let (times, no, lanes) = (
        column("now()", "timestamptz"),
        column("false", "boolean"),
        column("0", "smallint"),
    );
    let enqueue = format!(
        "windlass.enqueue_v1({}, {text}, {text}, {lanes}, {ones}, {times}, {times}, {no}, {no_time}, {no_text}, {no_time},
             {no_text}, {ones}, {text}, {no_text})",
        column("gen_random_uuid()", "uuid")
    );
    let update = format!(
        "windlass.update_jobs_v1({ids}, {text}, {lanes}, {ones}, {times}, {no}, {no_time}, {text}, {ones}, {ones}, {ones},
             {}, {no_text}, {no_time}, {no}, {}, {no_text}, {no_time}, false, {no_text})",
        column("null", "bigint"),
        column("null", "bigint"),
    );
    let unfinished = UNFINISHED
        .replace("/* columns */", "job.id")
        .replace("$1", "array(select schedule from windlass.occurrences)")
        .replace("$2", "1000");
    let unfinished = format!("({unfinished}) as unfinished");
    vec![
        ("claim", claim),
        ("enqueue", enqueue),
        (
            "succeed",
            format!("windlass.succeed_v1({ids}, {attempts}, {no_text}, {no_text}, now())"),
        ),
        (
            "renew",
            format!("windlass.renew_v1({ids}, {attempts}, now())"),
        ),
        ("lock", format!("windlass.lock_running_v1({ids})")),
        ("update", update),
        ("unfinished occurrences", unfinished),
    ]
}

/// Returns how many rows a call reads by scans of whole tables, and by indexes. The second call uses
/// the plans of the first.
pub(crate) async fn rows_read(client: &Client, call: &str) -> (i64, i64) {
    let sql =
        "select sum(seq_tup_read)::bigint, sum(idx_tup_fetch)::bigint from pg_stat_xact_user_tables
         where relname in ('jobs', 'claims', 'finished_else', 'dead', 'unique_keys', 'key_locks')";
    let read = async || -> (i64, i64) {
        let row = client.query_one(sql, &[]).await.expect("it answers");
        (row.get(0), row.get(1))
    };
    let mut most = (0, 0);
    for _ in 0..2 {
        client.batch_execute("begin").await.expect("it begins");
        let before = read().await;
        let call = format!("select count(*) from {call}");
        client.batch_execute(&call).await.expect("it runs");
        let after = read().await;
        client.batch_execute("rollback").await.expect("it ends");
        most = (
            most.0.max(after.0 - before.0),
            most.1.max(after.1 - before.1),
        );
    }
    most
}

/// Returns the plan if it scans the whole table of jobs.
async fn full_scan_plan(client: &Client, sql: &str) -> Option<String> {
    client
        .batch_execute(include_str!("../../sql/begin.sql"))
        .await
        .expect("it begins");
    let rows = client
        .query(&format!("explain (costs off) {sql}"), &[])
        .await
        .expect("it can be explained");
    client.batch_execute("rollback").await.expect("it ends");
    let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    let scans = plan.contains("Seq Scan on jobs");
    // The index must give the order of due jobs. With a sort, a claim would read the whole backlog.
    let sorted = plan.contains("Sort Key: jobs_1.rank");
    // Queues must be found by the index on kinds. The claim order would step over jobs of other
    // kinds.
    let by_kind = !sql.contains("recursive") || plan.matches("using due_by_kind").count() == 2;
    (scans || sorted || !by_kind).then_some(plan)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_frequent_statement_scans_the_whole_table() {
    let url = cluster::database().await;
    let client = cluster::client(&url).await;
    client
        .batch_execute("alter table windlass.jobs set (autovacuum_enabled = false)")
        .await
        .unwrap();
    let insert = "insert into windlass.jobs (id, queue, kind, lane, rank, run_at, created_at, due, payload, lease_until)
         select gen_random_uuid(), 'default', 'k', n % 2, 0, now() + n * interval '1 second' - interval '10000 seconds',
                now(), n < 10000, '{}', case when n % 10 = 0 then now() end
         from generate_series(1, 30000) as n;";
    let small = "truncate windlass.jobs; insert into windlass.jobs (id, queue, kind, lane, rank, run_at, created_at, due, payload)
         values (gen_random_uuid(), 'default', 'k', 0, 0, now(), now(), true, '{}'); analyze windlass.jobs;";
    let keyed = insert
        .replace(
            "lease_until)",
            "lease_until, concurrency_key, concurrency_limit)",
        )
        .replace("then now() end", "then now() end, 'k' || n, 1");
    let keyed = format!(
        "truncate windlass.jobs; {keyed} analyze windlass.jobs; delete from windlass.jobs;"
    );
    for (statistics, prepare) in [
        ("none", insert.to_owned()),
        ("stale: of a table with one row", small.to_owned() + insert),
        ("fresh", "analyze windlass.jobs".to_owned()),
        ("stale: of jobs that all had keys", keyed + insert),
    ] {
        client.batch_execute(&prepare).await.unwrap();
        for (name, sql) in statements() {
            let walks = full_scan_plan(&client, &sql).await;
            assert_eq!(walks, None, "{name}, statistics {statistics}");
        }
        let ids = "select id::text from windlass.jobs where lease_until is not null limit 100";
        let ids = client.query(ids, &[]).await.unwrap();
        let ids: Vec<String> = ids.iter().map(|row| row.get(0)).collect();
        let fired = "truncate windlass.occurrences; insert into windlass.occurrences
             select gen_random_uuid(), now(), id from windlass.jobs limit 100";
        client.batch_execute(fired).await.unwrap();
        // A new connection plans with these statistics. The other has plans of earlier ones.
        for client in [&client, &cluster::client(&url).await] {
            for (name, call) in calls(&ids) {
                let (scanned, fetched) = rows_read(client, &call).await;
                assert_eq!(scanned, 0, "{name}, statistics {statistics}");
                assert!(
                    fetched < 1000,
                    "{name} read {fetched} rows, statistics {statistics}"
                );
            }
        }
    }
}

/// A sort would read all 30,000 jobs in every step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_without_statistics_reads_the_jobs_in_the_order_of_their_index() {
    let url = cluster::database().await;
    let client = cluster::client(&url).await;
    let insert = "alter table windlass.dead set (autovacuum_enabled = false);
        insert into windlass.dead (id, queue, kind, rank, run_at, created_at, payload, attempt, failures, snoozes,
            losses_in_a_row, state, reason, finished_at)
        select gen_random_uuid(), 'default', 'k', 0, now(), now(), '{}', 1, 1, 0, 0, 'dead', 'unrecoverable', now()
        from generate_series(1, 30000)";
    client.batch_execute(insert).await.unwrap();
    let store = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let filter = Filter {
        reason: Some(DeadReason::Exhausted),
        ..Filter::default()
    };
    let listed = store.list(&filter, Page::first(100), Timestamp::MAX).await;
    let examined = listed.unwrap().examined;
    drop(store); // the database server counts what a connection read when it is closed
    let sql = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'dead_pkey'";
    let mut read: i64 = 0;
    for _ in 0..200 {
        read = client.query_one(sql, &[]).await.unwrap().get(0);
        if read > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(examined, 10_000);
    assert!(
        (10_000..30_000).contains(&read),
        "it read {read} entries of the index"
    );
}
