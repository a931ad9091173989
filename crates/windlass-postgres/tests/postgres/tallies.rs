//! Counts, failure groups and lists: exact while many nodes write, and never by walking all jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::Client;
use windlass_core::{
    AttemptError, Edit, Failure, FailureCount, Fingerprint, Job, Report, Revival, Timestamp,
};
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{
    Opened, at, claim, id, job, jobs, kind, put, queue, report,
};
use windlass_store::{Change, Enqueue, Filter, GroupFilter, ListOrder, ListedState, Page};
use windlass_testkit::cluster;

/// Compares counts and failure groups with a recount of all jobs.
pub(crate) async fn check_recount(store: &Opened, client: &Client, now: Timestamp) {
    let groups = "select queue, kind, fingerprint, count(*) filter (where dead), count(*) filter (where not dead)
         from (select queue, kind, fingerprint, true as dead from windlass.dead
               union all select queue, kind, fingerprint, false from windlass.jobs where failures > 0) as jobs
         where fingerprint is not null group by queue, kind, fingerprint";
    let mut expected: BTreeMap<(String, String, Fingerprint), (u64, u64)> = BTreeMap::new();
    for row in client.query(groups, &[]).await.expect("it answers") {
        let bits = row.get::<_, i64>(2).cast_unsigned() ^ (1 << 63);
        let key = (row.get(0), row.get(1), Fingerprint::from_bits(bits));
        let count = |column| row.get::<_, i64>(column).cast_unsigned();
        expected.insert(key, (count(3), count(4)));
    }
    let all = GroupFilter::default();
    let found = store
        .failure_groups(&all, None, 1000, now)
        .await
        .expect("it answers");
    let found = found
        .into_iter()
        .filter(|group| group.dead + group.retrying > 0);
    let found = found.map(|group| {
        let (queue, kind) = (group.key.queue.to_string(), group.key.kind.to_string());
        (
            (queue, kind, group.key.fingerprint),
            (group.dead, group.retrying),
        )
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);
    let counts = format!(
        "select queue, count(*) filter (where state = 'scheduled'), count(*) filter (where state = 'ready'),
             count(*) filter (where state = 'running'), count(*) filter (where state = 'succeeded'),
             count(*) filter (where state = 'dead'), count(*) filter (where state = 'cancelled'),
             count(*) filter (where retries)
         from (select queue, state, false as retries from windlass.dead
               union all select queue, state, false from windlass.finished
               union all select queue, case when lease_until is not null then 'running'
                   when run_at > '{now}' then 'scheduled' else 'ready' end, lane % 2 = 1 and lease_until is null
               from windlass.jobs) as jobs
         group by queue"
    );
    let mut expected = BTreeMap::new();
    for row in client.query(&counts, &[]).await.expect("it answers") {
        let numbers: Vec<i64> = (1..8).map(|column| row.get(column)).collect();
        expected.insert(row.get::<_, String>(0), numbers);
    }
    let found = store.counts(now).await.expect("it answers");
    let found = found.into_iter().map(|(queue, counts)| {
        let states = ListedState::ALL.iter().map(|state| counts.of(Some(*state)));
        let numbers = states.chain([counts.retrying]).map(u64::cast_signed);
        (queue.to_string(), numbers.collect::<Vec<_>>())
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);
}

async fn connect(url: &str) -> Opened {
    let options = cluster::options(&format!("{url}?pool_size=4"));
    Arc::new(PostgresStore::connect(options).await.expect("it connects"))
}

fn fails(text: &str, for_good: bool) -> Report {
    let error = AttemptError::new(text);
    Report::Failed(if for_good {
        Failure::unrecoverable(error)
    } else {
        Failure::retryable(error)
    })
}

/// Claims and settles what it gets, in all ways that change counts.
async fn work(node: Opened, round: u64) {
    let running = node
        .claim(&claim(23), at(round))
        .await
        .expect("it answers")
        .jobs;
    let reports = running.iter().enumerate().map(|(position, job)| {
        let end = match (position as u64 + round) % 4 {
            0 => Report::Succeeded(None),
            1 => fails("refused", true),
            2 => fails("timed out", false),
            _ => fails("no route", round.is_multiple_of(2)),
        };
        report(job, end)
    });
    node.settle(reports.collect(), at(round))
        .await
        .expect("it answers");
    let dead = Filter::state(ListedState::Dead);
    let dead = node
        .list(&dead, Page::first(6), at(round))
        .await
        .expect("it answers");
    let ids: Vec<_> = dead.jobs.iter().map(|job| job.id).collect();
    let revival = Revival {
        failures: if round.is_multiple_of(2) {
            FailureCount::Keep
        } else {
            FailureCount::Reset
        },
        ..Revival::default()
    };
    let (revived, purged) = ids.split_at(ids.len() / 2);
    let revive = Change::Revive(revival);
    node.change(revived, &revive, None, at(round))
        .await
        .expect("it answers");
    node.change(purged, &Change::Purge, None, at(round))
        .await
        .expect("it answers");
    let edit = Change::Edit(Edit {
        queue: Some(queue("other")),
        ..Edit::default()
    });
    let moved = [id(round * 7 % 600)];
    node.change(&moved, &edit, None, at(round))
        .await
        .expect("it answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_groups_are_exact_while_two_nodes_write() {
    let url = cluster::database().await;
    let nodes = [connect(&url).await, connect(&url).await];
    let mut waiting = jobs(0..600);
    for (position, job) in waiting.iter_mut().enumerate() {
        job.run_at = at(position as u64 / 20);
        job.kind = kind(if position % 3 == 0 { "a" } else { "b" });
    }
    nodes[0]
        .enqueue(Enqueue::all(waiting), at(0))
        .await
        .unwrap();
    let client = cluster::client(&url).await;
    for round in 1..40 {
        let works = nodes.iter().cycle().take(4);
        let works: Vec<_> = works
            .map(|node| tokio::spawn(work(Arc::clone(node), round)))
            .collect();
        for work in works {
            work.await.unwrap();
        }
        if round.is_multiple_of(10) {
            check_recount(&nodes[0], &client, at(round)).await;
            // An older clock sees the same jobs, fewer of them ready.
            check_recount(&nodes[1], &client, at(round / 2)).await;
        }
    }
    // After everything is added up, the numbers are the same.
    for table in ["queue_changes", "group_changes"] {
        let left = format!("select count(*) from windlass.{table}");
        while client.query_one(&left, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
    }
    check_recount(&nodes[1], &client, at(40)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_reads_about_as_many_index_entries_as_it_takes_jobs() {
    const JOBS: u64 = 4000;
    let url = cluster::database().await;
    let store = connect(&url).await;
    put(&store, jobs(0..JOBS)).await;
    let mut left = JOBS as usize;
    while left > 0 {
        let running = store.claim(&claim(100), at(1)).await.unwrap().jobs;
        assert!(!running.is_empty(), "{left} jobs are left");
        left -= running.len();
        let reports = running
            .iter()
            .map(|job| report(job, Report::Succeeded(None)));
        store.settle(reports.collect(), at(1)).await.unwrap();
    }
    drop(store); // PostgreSQL writes the numbers of a connection when it ends
    let client = cluster::client(&url).await;
    let connected = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
         and backend_type = 'client backend'";
    while client
        .query_one(connected, &[])
        .await
        .unwrap()
        .get::<_, i64>(0)
        > 0
    {
        tokio::task::yield_now().await;
    }
    let read =
        "select indexrelname::text, idx_tup_read from pg_stat_user_indexes where relname = 'jobs'";
    let rows = client.query(read, &[]).await.unwrap();
    let read: BTreeMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let jobs = JOBS.cast_signed();
    assert!((jobs..3 * jobs).contains(&read["ready"]), "{read:?}");
    assert!(read["due_by_kind"] < jobs / 4, "{read:?}");
    assert!(read.values().sum::<i64>() < 8 * jobs, "{read:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_by_cause_or_by_time_examines_only_what_it_shows() {
    let url = cluster::database().await;
    let store = connect(&url).await;
    put(&store, jobs(0..300)).await;
    for now in 0..3 {
        let running = store.claim(&claim(100), at(now)).await.unwrap().jobs;
        let reports = running.iter().enumerate().map(|(position, job)| {
            let text = if position == 50 { "rare" } else { "frequent" };
            report(job, fails(text, true))
        });
        store.settle(reports.collect(), at(now)).await.unwrap();
    }
    let rare = Filter {
        fingerprint: Some(Fingerprint::new(&job(0).kind, &AttemptError::new("rare"))),
        ..Filter::state(ListedState::Dead)
    };
    let listed = store.list(&rare, Page::first(10), at(5)).await.unwrap();
    assert_eq!((listed.jobs.len(), listed.examined), (3, 3));
    let by_time = Page {
        order: ListOrder::Finished,
        ..Page::first(2)
    };
    let listed = store.list(&rare, by_time, at(5)).await.unwrap();
    assert_eq!((listed.jobs.len(), listed.examined), (2, 2));
    let second = Page {
        after: listed.next,
        ..by_time
    };
    let listed = store.list(&rare, second, at(5)).await.unwrap();
    assert_eq!((listed.jobs.len(), listed.examined), (1, 1));
    let between = Filter {
        finished_from: Some(at(1)),
        finished_before: Some(at(2)),
        ..Filter::default()
    };
    let mut page = Page {
        order: ListOrder::Finished,
        ..Page::first(60)
    };
    let mut found: Vec<Job> = Vec::new();
    loop {
        let listed = store.list(&between, page, at(5)).await.unwrap();
        assert_eq!(listed.examined, listed.jobs.len());
        found.extend(listed.jobs);
        page.after = listed.next;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 100);
    assert!(found.iter().all(|job| job.finished_at() == Some(at(1))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_no_job_can_match_lists_nothing() {
    let store = connect(&cluster::database().await).await;
    put(&store, jobs(0..3)).await;
    let finished_before = Filter {
        finished_before: Some(at(5)),
        ..Filter::state(ListedState::Ready)
    };
    let by_finish = Page {
        order: ListOrder::Finished,
        ..Page::first(10)
    };
    let running = Filter::state(ListedState::Running);
    for (filter, page) in [(finished_before, Page::first(10)), (running, by_finish)] {
        let listed = store.list(&filter, page, at(1)).await.unwrap();
        assert_eq!((listed.jobs.len(), listed.next), (0, None));
    }
}
