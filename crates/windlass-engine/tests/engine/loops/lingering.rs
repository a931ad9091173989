//! Handlers that still run although their attempt has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;
use windlass_core::{NewJob, Report, State, Timeout, WorkerName};
use windlass_engine::{Engine, Ids, RunningAttempt, lingering_jobs};
use windlass_store::Store;

use windlass_testkit::running::{Running, Sleeping};
use windlass_testkit::world::{Build, constant, job, new_job, seconds, worker};

/// A job whose first attempt leaves work running after its handler has returned, until `done` has a
/// permit.
fn leaves_work(done: &Arc<Semaphore>, starts: &Arc<AtomicU32>) -> Build {
    let (done, starts) = (Arc::clone(done), Arc::clone(starts));
    let handler = move |attempt: Arc<RunningAttempt>| -> Sleeping {
        let (done, starts) = (Arc::clone(&done), Arc::clone(&starts));
        Box::pin(async move {
            starts.fetch_add(1, Ordering::SeqCst);
            if attempt.job().attempt > 1 {
                return Report::Succeeded(None);
            }
            let held = attempt.hold_slot();
            tokio::spawn(async move {
                drop(done.acquire().await);
                drop(held);
            });
            std::future::pending().await
        })
    };
    worker(4).policy(constant(0, 9)).with("a", handler)
}

fn short() -> NewJob {
    NewJob {
        timeout: Some(Timeout::After(seconds(10.0))),
        ..new_job("a")
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_does_not_claim_a_job_whose_old_handler_still_runs() {
    let mut run = Running::new();
    let (done, starts) = (Arc::new(Semaphore::new(0)), Arc::default());
    run.start(leaves_work(&done, &starts).succeeds("b"));
    let id = run.enqueue(short()).await;
    run.until("timed_out", id).await;
    tokio::time::sleep(seconds(120.0)).await;
    assert_eq!(starts.load(Ordering::SeqCst), 1, "the old one still runs");
    assert_eq!(job(&run.engine, id).await.state(), State::Waiting);
    let other = run.enqueue(new_job("b")).await;
    run.until("succeeded", other).await; // other jobs are not delayed
    let nodes = run.engine.store().nodes().await.unwrap();
    let listed: Vec<_> = nodes
        .iter()
        .flat_map(|node| lingering_jobs(&node.about))
        .collect();
    assert_eq!(listed, [id], "the worker says so in its heartbeat");
    done.add_permits(1);
    run.until("succeeded", id).await;
    assert_eq!(starts.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn another_process_may_claim_a_job_whose_old_handler_still_runs() {
    let mut run = Running::new();
    let (done, starts) = (Arc::new(Semaphore::new(0)), Arc::default());
    run.start(leaves_work(&done, &starts));
    let id = run.enqueue(short()).await;
    run.until("timed_out", id).await;
    let shared = Arc::clone(&run.store) as Arc<dyn Store>;
    let clock = Arc::clone(run.engine.clock());
    run.engine = Arc::new(Engine::new(shared, clock, Ids::seeded(4)));
    run.events = run.engine.subscribe();
    let name = WorkerName::new("w2").unwrap();
    let build = leaves_work(&done, &starts);
    run.start(build.set(|config| config.name = name));
    run.until("succeeded", id).await;
    assert_eq!(
        run.elapsed(),
        seconds(15.0),
        "after the grace of the old handler"
    );
}
