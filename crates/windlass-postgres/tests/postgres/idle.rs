//! What a claim says about a queue in which nothing waits.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::{Job, Timestamp};
use windlass_store::conformance::build::{Opened, at, claim, job, put};
use windlass_testkit::cluster;

/// Claims until the store listens to other nodes. Returns until when the queue is idle.
async fn idle_until(store: &Opened) -> Option<Timestamp> {
    for _ in 0..10_000 {
        let claimed = store.claim(&claim(5), at(0)).await.expect("it answers");
        assert!(claimed.jobs.is_empty(), "nothing is due");
        if claimed.idle_until.is_some() {
            return claimed.idle_until;
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_idle_until_its_next_job_is_due_and_at_most_half_a_second() {
    let store: Opened = Arc::new(cluster::store().await);
    let half_a_second = at(0).saturating_add(Duration::from_millis(500));
    assert_eq!(idle_until(&store).await, Some(half_a_second));
    let soon = at(0).saturating_add(Duration::from_millis(200));
    let waiting = Job {
        run_at: soon,
        ..job(1)
    };
    put(&store, vec![waiting]).await;
    assert_eq!(idle_until(&store).await, Some(soon));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_with_more_jobs_than_a_claim_takes_is_not_idle() {
    let store: Opened = Arc::new(cluster::store().await);
    assert!(idle_until(&store).await.is_some(), "it listens");
    put(&store, vec![job(1), job(2)]).await;
    let claimed = store.claim(&claim(1), at(0)).await.expect("it answers");
    assert_eq!((claimed.jobs.len(), claimed.idle_until), (1, None));
}
