//! Lines of waiting claims: how many store calls they cost, and in which order they are served. In
//! paused time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass_core::{JobId, NewJob, Start};
use windlass_engine::CancellationToken;
use windlass_engine::remote::{Remote, RemoteClaim, RemoteConfig, RemoteWorker, Signal};

use crate::remote::scene::{Answer, Key, claim, ids};
use windlass_testkit::running::Running;
use windlass_testkit::world::new_job;

struct Lines {
    running: Running,
    remote: Arc<Remote>,
}

impl Lines {
    fn new() -> Lines {
        let running = Running::new();
        let remote = Remote::new(&running.engine, RemoteConfig::default());
        Lines {
            remote: Arc::new(remote),
            running,
        }
    }

    /// Claims one job of a queue in a task of its own.
    fn claim(&self, worker: RemoteWorker) -> JoinHandle<Answer> {
        let remote = Arc::clone(&self.remote);
        let claim = RemoteClaim {
            worker,
            wait: Duration::from_secs(60),
            ..claim("w", &["q"])
        };
        let stop = CancellationToken::new();
        tokio::spawn(async move { remote.claim(claim, Key::good(), &stop).await })
    }

    fn anonymous(&self) -> JoinHandle<Answer> {
        self.claim(RemoteWorker::Anonymous("key".parse().unwrap()))
    }

    async fn job(&self) -> JobId {
        let queue = "q".parse().unwrap();
        let job = NewJob {
            queue,
            ..new_job("a")
        };
        self.running.enqueue(job).await
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        for _ in 0..1_000_000 {
            if condition() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("it does not come");
    }

    async fn until_waiting(&self, count: usize) {
        self.until(|| self.remote.waiting() == count).await;
    }

    fn asked(&self, verb: &str) -> usize {
        self.running.store.asked(verb)
    }
}

async fn got(claim: JoinHandle<Answer>) -> Vec<JobId> {
    ids(&claim.await.unwrap().unwrap().jobs)
}

#[tokio::test(start_paused = true)]
async fn a_job_among_many_waiting_claims_costs_a_handful_of_claims() {
    const WAITING: usize = 200;
    let lines = Lines::new();
    let first = lines.anonymous();
    lines.until_waiting(1).await;
    lines.until(|| lines.asked("claim") > 0).await;
    let others: Vec<_> = (1..WAITING).map(|_| lines.anonymous()).collect();
    lines.until_waiting(WAITING).await;
    let asked = lines.asked("claim");
    assert!(
        asked <= 2,
        "{asked} claims: those who come later know that there is nothing"
    );
    let job = lines.job().await;
    assert_eq!(got(first).await, [job], "first come, first served");
    lines.until_waiting(WAITING - 1).await;
    let asked = lines.asked("claim");
    assert!(asked <= 6, "{asked} claims for one job");
    let mut jobs = Vec::new();
    for _ in 1..WAITING {
        jobs.push(lines.job().await);
    }
    let mut claimed = Vec::new();
    for other in others {
        claimed.extend(got(other).await);
    }
    claimed.sort();
    jobs.sort();
    assert_eq!(claimed, jobs, "every waiting claim gets one");
}

#[tokio::test(start_paused = true)]
async fn waiting_claims_are_served_in_the_order_in_which_they_came() {
    let lines = Lines::new();
    let mut waiting = Vec::new();
    for count in 1..=5 {
        waiting.push(lines.anonymous());
        lines.until_waiting(count).await;
    }
    for claim in waiting {
        let job = lines.job().await;
        assert_eq!(got(claim).await, [job]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_leaves_its_position_to_the_next() {
    let lines = Lines::new();
    let head = lines.anonymous();
    lines.until_waiting(1).await;
    let next = lines.anonymous();
    lines.until_waiting(2).await;
    head.abort();
    lines.until_waiting(1).await;
    let job = lines.job().await;
    assert_eq!(got(next).await, [job]);
    assert_eq!(lines.remote.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_becomes_due_is_found_without_a_change_of_the_store() {
    let lines = Lines::new();
    let waiting = lines.anonymous();
    lines.until_waiting(1).await;
    let later = NewJob {
        queue: "q".parse().unwrap(),
        start: Start::After(Duration::from_secs(2)),
        ..new_job("a")
    };
    let job = lines.running.enqueue(later).await;
    assert_eq!(got(waiting).await, [job]);
    let waited = lines.running.elapsed();
    assert_eq!(waited, Duration::from_secs(2), "by its time, not by a poll");
}

#[tokio::test(start_paused = true)]
async fn signals_and_heartbeats_cost_no_read_of_the_store_each() {
    let lines = Lines::new();
    let worker = |number: usize| {
        let name = format!("w{number}");
        lines.claim(RemoteWorker::Named(name.parse().unwrap()))
    };
    let waiting: Vec<_> = (0..50).map(worker).collect();
    lines.until_waiting(50).await;
    assert!(lines.asked("documents") <= 3, "one read for all");
    let asked = lines.asked("document");
    assert!(
        asked <= 51,
        "{asked}: each new worker by its name, and the settings of the queue"
    );
    assert_eq!(lines.asked("nodes"), 0, "no heartbeat reads all workers");
    let name = "w7".parse().unwrap();
    let stop = Some(Signal::Stop);
    lines.remote.signal(&name, stop).await.unwrap();
    for (number, waiting) in waiting.into_iter().enumerate() {
        if number == 7 {
            assert_eq!(waiting.await.unwrap().unwrap().signal, stop);
        } else {
            waiting.abort();
        }
    }
}
