//! Logs of handlers in this process.

use std::sync::Arc;

use windlass_core::{JobId, Report};
use windlass_engine::RunningAttempt;
use windlass_store::AttemptId;

use windlass_testkit::running::{Running, Sleeping};
use windlass_testkit::world::{new_job, seconds, worker};

/// A handler that writes a hundred lines per second for ten seconds.
fn chatty(attempt: Arc<RunningAttempt>) -> Sleeping {
    let clock = Arc::clone(attempt.engine().clock());
    Box::pin(async move {
        for number in 1..=1000 {
            attempt.log(&format!("line {number}"));
            clock.sleep(seconds(0.01)).await;
        }
        Report::Succeeded(None)
    })
}

async fn lines(run: &Running, job: JobId) -> u64 {
    let entry = run.engine.store().attempts(job, 1).await.unwrap();
    let attempt_id = AttemptId { job, attempt: 1 };
    let log = run.engine.attempt_log(attempt_id, entry.first()).await;
    log.unwrap().last_number()
}

async fn documents(run: &Running) -> usize {
    let store = run.engine.store();
    let names = store.document_names("attempt-logs", "", 1000, run.engine.now());
    names.await.unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn lines_are_visible_while_the_handler_runs_and_few_writes_store_them() {
    let mut run = Running::new();
    run.start(worker(1).with("a", chatty));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(3.0)).await;
    let early = lines(&run, id).await;
    assert!((100..=300).contains(&early), "{early} lines after 3 s");
    run.until("succeeded", id).await;
    assert_eq!(lines(&run, id).await, 1000);
    let writes = run.store.asked("put_document");
    assert!((5..=21).contains(&writes), "{writes} writes for 1000 lines");
    tokio::time::sleep(seconds(2.0)).await;
    assert_eq!(documents(&run).await, 0, "the history has the lines");
    assert_eq!(lines(&run, id).await, 1000);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_lost_its_lease_writes_no_more_lines() {
    let mut run = Running::new();
    run.start(worker(1).with("a", chatty).set(|config| {
        config.lease = seconds(4.0);
    }));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    tokio::time::sleep(seconds(1.2)).await;
    let store = run.engine.store();
    let later = run.engine.now().saturating_add(seconds(60.0));
    store.sweep(10, later, 0).await.unwrap();
    let before = lines(&run, id).await;
    assert!(before > 0, "lines before the lease was lost");
    tokio::time::sleep(seconds(0.9)).await;
    assert_eq!(lines(&run, id).await, before);
}
