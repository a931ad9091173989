//! Concurrency keys: claims do not wait for one another, parked jobs cost nothing, and none is forgotten.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::Client;
use windlass_core::{Concurrency, Job, JobId, Report};
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{
    Opened, at, claim, failed, id, job, key, put, report, settle_one, take, take_one,
};
use windlass_store::{AttemptId, Claim, Enqueue, Renewed};
use windlass_testkit::cluster;

use crate::plans::{rows_read, values};
use crate::tallies::check_recount;

async fn connect(url: &str) -> Opened {
    let options = cluster::options(&format!("{url}?pool_size=4"));
    Arc::new(PostgresStore::connect(options).await.expect("it connects"))
}

fn keyed(number: u64, name: &str, limit: u32) -> Job {
    Job {
        concurrency: Some(Concurrency {
            key: key(name),
            limit,
        }),
        ..job(number)
    }
}

const START: &str = "-2147483648, '0001-01-01', '00000000-0000-0000-0000-000000000000'";

/// Returns a call that claims up to `limit` jobs of all kinds but one.
fn claim_call(limit: u32) -> String {
    claim_and_park(limit, 100_000)
}

/// The same, for a claim that ends after it has parked this many jobs.
fn claim_and_park(limit: u32, park_max: u32) -> String {
    format!(
        "windlass.claim_keyed_v1(gen_random_uuid(), 1, 'default', '{{http}}', false, now(), now() + interval '1 hour', 1,
             'w1', {START}, {START}, {limit}, {limit}, {limit}, {limit}, 5000, false,
             array_fill(0, array[{limit}]), {park_max})"
    )
}

/// Returns how many jobs a call of this function returned.
async fn count(client: &Client, call: &str) -> i64 {
    let sql = format!("select count(*) from {call} where part = 0");
    client.query_one(&sql, &[]).await.expect("it runs").get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_jobs_of_a_full_key_cost_the_jobs_behind_them_nothing() {
    let url = cluster::database().await;
    let client = cluster::client(&url).await;
    let off = "alter table windlass.jobs set (autovacuum_enabled = false)";
    client.batch_execute(off).await.unwrap();
    let columns = "insert into windlass.jobs (id, queue, kind, lane, rank, run_at, created_at, due, payload, lease_until,
         concurrency_key, concurrency_limit)";
    let insert = format!(
        "truncate windlass.jobs;
         {columns} select gen_random_uuid(), 'default', 'k', 0, 0, now(), now(), n > 1, '{{}}', case when n = 1 then now() end,
             'full', 1 from generate_series(1, 10001) as n;
         {columns} select gen_random_uuid(), 'default', 'k', n % 2, 1, now(), now(), true, '{{}}', null,
             case when n % 3 > 0 then 'k' || n % 500 end, case when n % 3 > 0 then 1 end from generate_series(1, 10000) as n;"
    );
    let small = format!(
        "truncate windlass.jobs; {columns} values (gen_random_uuid(), 'default', 'k', 0, 0, now(), now(), true, '{{}}', null,
             'full', 1); analyze windlass.jobs;"
    );
    for (statistics, before, after) in [
        ("none", "", ""),
        ("stale: of a table with one job", small.as_str(), ""),
        ("fresh", "", "analyze windlass.jobs"),
    ] {
        client.batch_execute(before).await.unwrap();
        client.batch_execute(&insert).await.unwrap();
        assert_eq!(count(&client, &claim_call(10)).await, 10, "{statistics}");
        let parked = "select count(*) from windlass.jobs where due and lane >= 2 and concurrency_key = 'full'";
        let parked: i64 = client.query_one(parked, &[]).await.unwrap().get(0);
        assert_eq!(parked, 10_000, "the first claim parks them");
        client.batch_execute(after).await.unwrap();
        let running = "select id::text, attempt from windlass.jobs where lease_until is not null";
        let running = client.query(running, &[]).await.unwrap();
        let ids: Vec<String> = running.iter().map(|row| row.get(0)).collect();
        let attempts: Vec<String> = running
            .iter()
            .map(|row| row.get::<_, i32>(1).to_string())
            .collect();
        let (ids, attempts) = (ids.join(","), attempts.join(","));
        let no_text = "array_fill(null::text, array[11])";
        let succeed = format!(
            "windlass.succeed_keyed_v1('{{{ids}}}', '{{{attempts}}}', {no_text}, {no_text}, now())"
        );
        let keys = "array(select 'k' || n from generate_series(1, 100) as n)";
        let calls = [
            ("claim", claim_call(100)),
            ("succeed", succeed),
            (
                "unpark",
                format!("windlass.unpark_v1({keys} || array['full'], now())"),
            ),
            (
                "lock",
                format!("windlass.lock_keys_v1({keys}, now(), true)"),
            ),
        ];
        // A new connection plans with these statistics. The other has plans of earlier ones.
        for client in [&client, &cluster::client(&url).await] {
            for (name, call) in &calls {
                let (scanned, fetched) = rows_read(client, call).await;
                assert_eq!(scanned, 0, "{name}, statistics {statistics}");
                assert!(
                    fetched < 1500,
                    "{name} read {fetched} rows, statistics {statistics}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_parks_many_jobs_leaves_the_rest_to_the_next_one() {
    let url = cluster::database().await;
    let (store, client) = (connect(&url).await, cluster::client(&url).await);
    let full = (1..=60).map(|number| keyed(number, "full", 1));
    put(&store, full.chain([keyed(61, "free", 1)]).collect()).await;
    assert_eq!(take_one(&store, at(1)).await.id, id(1));
    let parked = "select count(*) from windlass.jobs where lane >= 2";
    let parked = async || -> i64 { client.query_one(parked, &[]).await.unwrap().get(0) };
    let before = parked().await;
    assert!(before < 30, "{before}");
    let call = claim_and_park(10, 20);
    let last = format!("select max(part)::text from {call}");
    let last: String = client.query_one(&last, &[]).await.unwrap().get(0);
    assert_eq!(last, "4", "call again");
    let after = parked().await;
    assert!(after > before && after < 59, "{before} to {after}");
    // The store repeats such claims until they meet a job that can start.
    assert_eq!(take_one(&store, at(2)).await.id, id(61));
    assert_eq!(parked().await, 59);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_parks_jobs_does_not_keep_running_ones_from_a_renewal() {
    let url = cluster::database().await;
    let (store, client) = (connect(&url).await, cluster::client(&url).await);
    put(&store, vec![keyed(1, "a", 1), keyed(2, "a", 1)]).await;
    let running = take_one(&store, at(0)).await;
    client.batch_execute("begin").await.unwrap();
    assert_eq!(count(&client, &claim_call(1)).await, 0, "parked the second");
    let lease = Duration::from_secs(60);
    let attempts = [AttemptId {
        job: running.id,
        attempt: running.attempt,
    }];
    // Would fail after the lock timeout.
    let renewed = store.renew(&attempts, lease, at(1)).await.unwrap();
    assert!(matches!(renewed[..], [Renewed::Until { .. }]));
    client.batch_execute("commit").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_different_keys_do_not_wait_for_one_another() {
    let url = cluster::database().await;
    let (store, client) = (connect(&url).await, cluster::client(&url).await);
    let jobs = [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("c", 5)];
    put(
        &store,
        jobs.map(|(name, number)| keyed(number, name, 1)).into(),
    )
    .await;
    client.batch_execute("begin").await.unwrap();
    assert_eq!(
        count(&client, &claim_call(1)).await,
        1,
        "the first one, not committed"
    );
    let other = take(&store, 10, at(9)).await;
    let ids: Vec<JobId> = other.iter().map(|job| job.id).collect();
    assert_eq!(ids, [id(3), id(5)], "each key runs one, and `a` is in use");
    client.batch_execute("rollback").await.unwrap();
    // Claims pass over a job that is locked, and the scan for missed jobs finds it a second later.
    let next = take_one(&store, at(9)).await;
    assert!([id(1), id(2)].contains(&next.id), "one of `a`");
    assert!(take(&store, 10, at(9)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_parked_while_its_key_becomes_free_is_not_forgotten() {
    let url = cluster::database().await;
    let (store, client) = (connect(&url).await, cluster::client(&url).await);
    put(&store, vec![keyed(1, "a", 1), keyed(2, "a", 1)]).await;
    let running = take_one(&store, at(0)).await;
    // A claim parks the second job, and is not committed when the first one ends.
    client.batch_execute("begin").await.unwrap();
    assert_eq!(count(&client, &claim_call(1)).await, 0);
    let node = Arc::clone(&store);
    let settle =
        tokio::spawn(
            async move { settle_one(&node, &running, Report::Succeeded(None), at(1)).await },
        );
    crate::migration::wait_until_one_waits(&cluster::client(&url).await).await;
    client.batch_execute("commit").await.unwrap();
    settle.await.unwrap();
    assert_eq!(take_one(&store, at(1)).await.id, id(2));
    // The other way around: while the end of the second one is not committed, the third one stays.
    put(&store, vec![keyed(3, "a", 1)]).await;
    let end = format!(
        "begin; select from windlass.succeed_keyed_v1(array['{}'::uuid], array[1], array[null], array[null], now())",
        id(2)
    );
    client.batch_execute(&end).await.unwrap();
    assert!(take(&store, 5, at(2)).await.is_empty());
    client.batch_execute("commit").await.unwrap();
    assert_eq!(take_one(&store, at(2)).await.id, id(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_becomes_free_by_itself_is_found() {
    let url = cluster::database().await;
    let (store, client) = (connect(&url).await, cluster::client(&url).await);
    put(&store, vec![keyed(1, "a", 1), keyed(2, "a", 1)]).await;
    assert_eq!(take_one(&store, at(0)).await.id, id(1));
    let unreadable = format!(
        "update windlass.jobs set extra = '{{' where id = '{}'",
        id(1)
    );
    client.batch_execute(&unreadable).await.unwrap();
    assert!(take(&store, 5, at(1)).await.is_empty(), "it may still run");
    // Its lease has expired, but it cannot be swept.
    store.sweep(10, at(5000), 0).await.unwrap();
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let found = take(&store, 5, at(5000)).await;
        if !found.is_empty() {
            assert_eq!(found[0].id, id(2));
            return;
        }
    }
    unreachable!("the job was forgotten");
}

const PASS_OVER: &str = include_str!("../../sql/pass_over.sql");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_few_kinds_does_not_step_over_the_others() {
    let url = cluster::database().await;
    let client = cluster::client(&url).await;
    let insert = "alter table windlass.jobs set (autovacuum_enabled = false);
         insert into windlass.jobs (id, queue, kind, lane, rank, run_at, created_at, due, payload)
         select gen_random_uuid(), 'default', case when n = 9000 then 'known' else 'k' end, 0, 0,
             now() - interval '1 hour' + n * interval '1 ms', now(), true, '{}'
         from generate_series(1, 10000) as n";
    client.batch_execute(insert).await.unwrap();
    let claim = |place: &str| {
        format!(
            "windlass.claim_v2(gen_random_uuid(), 1, 'default', '{known}', true, now(), now(), 1, 'w1', {place}, {START},
                 10, 2, 10, 10, 5000)",
            known = "{known}"
        )
    };
    for (statistics, prepare) in [("none", ""), ("fresh", "analyze windlass.jobs")] {
        client.batch_execute(prepare).await.unwrap();
        let mut place = START.to_owned();
        // The first claim looks for more behind the job that it knows, the second one only there.
        for (taken, most) in [(1, 1100), (0, 100)] {
            let kinds = ["'default'", "0", "'{known}'::text[]", "true"];
            let mark: Vec<&str> = place.split(", ").collect();
            let params = [&kinds[..2], &mark, &kinds[2..]].concat();
            let sql = values(PASS_OVER, &params);
            let sql = format!("select rank::text, run_at::text, id::text from ({sql}) as found");
            client
                .batch_execute("set enable_seqscan = off")
                .await
                .unwrap();
            let found = client.query_one(&sql, &[]).await.unwrap();
            client.batch_execute("reset enable_seqscan").await.unwrap();
            let text = |column| -> &str { found.get(column) };
            place = format!("{}, '{}', '{}'", text(0), text(1), text(2));
            let (scanned, fetched) = rows_read(&client, &claim(&place)).await;
            assert_eq!(scanned, 0, "statistics {statistics}");
            assert!(
                fetched < most,
                "it read {fetched} rows, statistics {statistics}"
            );
            assert_eq!(
                count(&client, &claim(&place)).await,
                taken,
                "statistics {statistics}"
            );
        }
        let again = "update windlass.jobs set due = true, lease_until = null where kind = 'known'";
        client.batch_execute(again).await.unwrap();
    }
}

const KEYS: u64 = 7;
const JOBS: u64 = 600;

/// Claims and ends jobs until none is left. Connections are killed meanwhile, so any step can fail.
async fn work(node: Opened, done: Arc<AtomicBool>, number: u64) {
    for round in number.. {
        if done.load(Ordering::Relaxed) {
            return;
        }
        let now = at(round * 10);
        let few = Claim {
            lease: Duration::from_secs(50),
            ..claim(1 + (round % 9) as u32)
        };
        let claimed = node.claim(&few, now).await;
        let jobs = claimed.map(|claimed| claimed.jobs).unwrap_or_default();
        // Some are never ended, and a lost report ends none: these are swept.
        let ended = jobs
            .iter()
            .zip(round..)
            .filter(|(_, number)| number % 11 > 0);
        let reports = ended.map(|(job, number)| {
            let end = match number % 5 {
                0 if job.attempt < 3 => failed(),
                1 if job.attempt < 3 => Report::Released { started: true },
                _ => Report::Succeeded(None),
            };
            report(job, end)
        });
        drop(node.settle(reports.collect(), now).await);
        drop(node.sweep(100, now, round).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_and_every_job_ends_while_connections_are_killed() {
    let url = cluster::database().await;
    let nodes = [
        connect(&url).await,
        connect(&url).await,
        connect(&url).await,
    ];
    let limit = |number| 1 + (number % KEYS % 3) as u32;
    let new = (0..JOBS).map(|number| keyed(number, &format!("k{}", number % KEYS), limit(number)));
    let new = Enqueue::all(new.collect());
    nodes[0].enqueue(new, at(0)).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let workers = (0..6).map(|number| {
        let node = Arc::clone(&nodes[number % 3]);
        tokio::spawn(work(node, Arc::clone(&done), number as u64))
    });
    let workers: Vec<_> = workers.collect();
    let watcher = cluster::client(&url).await;
    let over = "select concurrency_key, count(*) from windlass.jobs where lease_until is not null
         group by concurrency_key having count(*) > max(concurrency_limit)";
    let kill = "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle' limit 1";
    let left = "select from windlass.jobs limit 1";
    for look in 0_u64.. {
        let over = watcher.query(over, &[]).await.unwrap();
        assert!(over.is_empty(), "{over:?}");
        if look % 20 == 0 {
            watcher.query(kill, &[]).await.unwrap();
        }
        if watcher.query(left, &[]).await.unwrap().is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    done.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let ended = "select id::text from windlass.finished union select id::text from windlass.dead";
    let ended = watcher.query(ended, &[]).await.unwrap();
    let ended: BTreeSet<String> = ended.iter().map(|row| row.get(0)).collect();
    assert_eq!(ended.len() as u64, JOBS);
    check_recount(&nodes[0], &watcher, at(1)).await;
}
