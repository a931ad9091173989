//! Query plans of the statements that must stay fast, even with wrong statistics.

use tokio_postgres::Client;
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
