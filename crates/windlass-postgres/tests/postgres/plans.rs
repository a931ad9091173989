//! Query plans of the statements that must stay fast, even with wrong statistics.

use std::time::Duration;

use tokio_postgres::Client;
use windlass_core::{DeadReason, Timestamp};
use windlass_postgres::PostgresStore;
use windlass_store::{Filter, Page, Store as _};
use windlass_testkit::cluster;

const CLAIM: &str = include_str!("../../sql/claim.sql");
const CLAIM_CONDITIONS: &str = include_str!("../../sql/claim_conditions.sql");
const PROMOTE: &str = include_str!("../../sql/promote.sql");
const SUCCEED: &str = include_str!("../../sql/succeed.sql");
const DUE_QUEUES: &str = include_str!("../../sql/due_queues.sql");
const RENEW: &str = include_str!("../../sql/renew.sql");

const IDS: &str = "array(select id from windlass.jobs limit 100)";

/// Returns the statements with values instead of parameters.
fn statements() -> Vec<(&'static str, String)> {
    let place = "-2147483648, '0001-01-01', '00000000-0000-0000-0000-000000000000'";
    let values = |sql: &str, values: &[&str]| {
        let numbered = values.iter().enumerate().rev();
        numbered.fold(sql.replace("/* columns */", "*"), |sql, (number, value)| {
            sql.replace(&format!("${}", number + 1), value)
        })
    };
    let places: Vec<&str> = place.split(", ").collect();
    let mut claim = vec![
        "'default'::text",
        "0::smallint",
        "now()",
        "'{http}'::text[]",
    ];
    claim.extend(&places);
    claim.extend([
        "1000",
        "gen_random_uuid()",
        "true",
        "now()",
        "1",
        "'w1'",
        "false",
    ]);
    let mut before = vec![
        "'default'::text",
        "gen_random_uuid()",
        "now()",
        "'{http}'::text[]",
    ];
    before.extend(&places);
    before.extend(&places);
    before.push("false");
    let kinds = ["'{k,http}'::text[]", "''", "''", "'%'", "now()", "100"];
    let due_queues = values(DUE_QUEUES, &kinds);
    let attempts = "array(select 1 from generate_series(1, 100))";
    let nothing = "array(select null::text from generate_series(1, 100))";
    vec![
        ("claim", values(CLAIM, &claim)),
        ("before a claim", values(CLAIM_CONDITIONS, &before)),
        ("promote", values(PROMOTE, &["now()", "5000"])),
        (
            "succeed",
            values(SUCCEED, &[IDS, attempts, nothing, nothing, "now()"]),
        ),
        ("due queues", due_queues),
        ("renew", values(RENEW, &[IDS, attempts, "now()"])),
    ]
}

/// Returns the plan if it scans the whole table of jobs, ignoring the selects of test values.
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
    let own = plan.matches("Limit\n").count(); // sequential scans under "limit 100" are of the test values
    let scans = plan.matches("Seq Scan on jobs").count();
    // The index must give the order of due jobs. With a sort, a claim would read the whole backlog.
    let sorted = plan.contains("Sort Key: jobs_1.rank");
    let allowed = usize::from(sql.contains(IDS)).min(own.max(1));
    // Queues must be found by the index on kinds. The claim order would step over jobs of other
    // kinds.
    let by_kind = !sql.contains("recursive") || plan.matches("using due_by_kind").count() == 2;
    (scans > allowed || sorted || !by_kind).then_some(plan)
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
    for (statistics, prepare) in [
        ("none", insert.to_owned()),
        ("stale: of a table with one row", small.to_owned() + insert),
        ("fresh", "analyze windlass.jobs".to_owned()),
    ] {
        client.batch_execute(&prepare).await.unwrap();
        for (name, sql) in statements() {
            let walks = full_scan_plan(&client, &sql).await;
            assert_eq!(walks, None, "{name}, statistics {statistics}");
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
