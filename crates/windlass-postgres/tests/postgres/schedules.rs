//! Batches of schedules: races between nodes, lost connections, and rows that the database refuses.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::JobId;
use windlass_postgres::PostgresStore;
use windlass_store::conformance::build::{Opened, at, enqueue_one, id, job, unique};
use windlass_store::conformance::schedule::{created, step};
use windlass_store::{Enqueue, Fire, Fired, StoreError};
use windlass_testkit::cluster;
use windlass_testkit::proxy::{Proxy, Wire};

async fn nodes(count: usize) -> (Vec<Opened>, String) {
    let url = cluster::database().await;
    let mut nodes: Vec<Opened> = Vec::new();
    for _ in 0..count {
        nodes.push(Arc::new(cluster::open(&url).await));
    }
    (nodes, url)
}

/// Creates schedules, and returns a step of each. The occurrence of schedule `n` is at second `n`.
async fn steps(store: &Opened, count: u64) -> Vec<Fire> {
    let mut steps = Vec::new();
    for number in 1..=count {
        let schedule = created(store, number.into(), &format!("s{number}"), number).await;
        steps.push(step(&schedule, &[number]));
    }
    steps
}

/// The same steps as another node plans them: its jobs have other ids.
fn planned_by(node: usize, steps: &[Fire]) -> Vec<Fire> {
    let mut steps = steps.to_vec();
    for job in steps.iter_mut().flat_map(|step| &mut step.jobs) {
        job.id = JobId::from_u128(job.id.as_u128() + (node as u128) * 1_000_000);
    }
    steps
}

fn done(answers: &[Fired]) -> Vec<JobId> {
    let jobs = answers.iter().flat_map(|fired| match fired {
        Fired::Done { jobs } => jobs.clone(),
        _ => Vec::new(),
    });
    jobs.collect()
}

async fn jobs_in(url: &str) -> i64 {
    let client = cluster::client(url).await;
    let sql = "select count(*) from windlass.jobs";
    client.query_one(sql, &[]).await.expect("it counts").get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_fire_the_same_batches_fire_each_occurrence_once() {
    let (nodes, url) = nodes(4).await;
    let steps = steps(&nodes[0], 400).await;
    let runs = nodes.iter().enumerate().map(|(number, node)| {
        let (node, mut steps) = (Arc::clone(node), planned_by(number, &steps));
        if number % 2 == 1 {
            steps.reverse();
        }
        tokio::spawn(async move {
            let mut fired = Vec::new();
            // Batches of different sizes overlap in different ways.
            for batch in steps.chunks(60 + 30 * number) {
                fired.extend(done(&node.fire(batch.to_vec(), at(500)).await.unwrap()));
            }
            fired
        })
    });
    let mut fired = Vec::new();
    for run in runs.collect::<Vec<_>>() {
        fired.extend(run.await.unwrap());
    }
    let occurrences: BTreeSet<u128> = fired.iter().map(|job| job.as_u128() % 1_000_000).collect();
    assert_eq!((fired.len(), occurrences.len()), (400, 400), "each once");
    assert_eq!(jobs_in(&url).await, 400);
    for schedule in nodes[0].schedules().await.unwrap().readable {
        assert_eq!(schedule.version, 2, "{}", schedule.definition.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_key_that_an_enqueue_takes_meanwhile_makes_one_job() {
    let (nodes, url) = nodes(2).await;
    let mut steps = steps(&nodes[0], 20).await;
    for step in &mut steps {
        step.jobs[0].unique = unique("k");
    }
    let firing = Arc::clone(&nodes[1]);
    let firing = tokio::spawn(async move { firing.fire(steps, at(50)).await.unwrap() });
    let keyed = windlass_core::Job {
        unique: unique("k"),
        ..job(777)
    };
    enqueue_one(&nodes[0], keyed, at(50)).await.unwrap();
    let answers = firing.await.unwrap();
    assert!(
        answers
            .iter()
            .all(|fired| matches!(fired, Fired::Done { .. }))
    );
    assert_eq!(jobs_in(&url).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_connection_is_killed_fires_once() {
    let (nodes, url) = nodes(1).await;
    let steps = steps(&nodes[0], 50).await;
    let mut other = cluster::client(&url).await;
    let holder = other.transaction().await.unwrap();
    let lock = "select from windlass.schedules where name = 's50' for update";
    holder.query_one(lock, &[]).await.unwrap();
    let node = Arc::clone(&nodes[0]);
    let firing = tokio::spawn(async move { node.fire(steps, at(60)).await });
    let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity
         where datname = current_database() and wait_event_type = 'Lock'";
    let admin = cluster::client(&url).await;
    let killed = async {
        while admin.query_one(kill, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let killed = tokio::time::timeout(Duration::from_secs(30), killed).await;
    assert!(killed.is_ok(), "the firing waits for the lock");
    holder.rollback().await.unwrap();
    let answers = firing.await.unwrap().expect("it fires on a new connection");
    assert_eq!(done(&answers).len(), 50);
    assert_eq!(jobs_in(&url).await, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_commit_result_is_lost_is_not_fired_again() {
    let url = cluster::database().await;
    let (_, database) = url.rsplit_once('/').expect("a database");
    let proxy = Proxy::to(cluster::shared().port).await;
    let behind = format!("postgres://windlass@127.0.0.1:{}/{database}", proxy.port);
    let store = PostgresStore::connect(cluster::options(&behind)).await;
    let store: Opened = Arc::new(store.expect("it connects"));
    let steps = steps(&store, 30).await;
    proxy.set(Wire::CutAtCommitOf("windlass.occurrences"));
    let lost = store.fire(steps.clone(), at(60)).await;
    assert!(
        matches!(lost, Err(StoreError::Indeterminate(_))),
        "{lost:?}"
    );
    assert!(proxy.is_whole(), "it was cut");
    let again = store.fire(planned_by(1, &steps), at(61)).await.unwrap();
    assert_eq!(again, vec![Fired::Stale; 30]);
    assert_eq!(jobs_in(&url).await, 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_the_database_refuses_does_not_affect_the_others() {
    let (nodes, url) = nodes(1).await;
    let store = &nodes[0];
    let (bad, taken) = (id(7), id(9));
    store
        .enqueue(Enqueue::all(vec![job(9)]), at(0))
        .await
        .unwrap();
    let create = format!(
        "create function refuse() returns trigger language plpgsql as $$ begin
             if new.id = '{bad}' then raise exception 'no'; end if;
             return new;
         end $$;
         create trigger refuse before insert on windlass.jobs for each row execute function refuse()"
    );
    let client = cluster::client(&url).await;
    client.batch_execute(&create).await.unwrap();
    let steps = steps(store, 20).await;
    let answers = store.fire(steps.clone(), at(30)).await.unwrap();
    for (number, answer) in (1..).zip(&answers) {
        if [bad, taken].contains(&id(number)) {
            assert!(
                matches!(answer, Fired::Refused { .. }),
                "{number}: {answer:?}"
            );
        } else {
            let jobs = vec![id(number)];
            assert_eq!(*answer, Fired::Done { jobs });
        }
    }
    client
        .batch_execute("drop trigger refuse on windlass.jobs")
        .await
        .unwrap();
    let again = store.fire(steps, at(31)).await.unwrap();
    assert_eq!(done(&again), [bad], "nothing of it was written before");
}
