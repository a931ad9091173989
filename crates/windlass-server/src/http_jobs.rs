//! The server's own worker: it runs HTTP jobs, in every queue that has had one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use windlass::Error;
use windlass_core::retry::WorkerRetry;
use windlass_core::{Deadline, Delivery, Invalid, Kind, NewJob, Payload, QueueName, WorkerName};
use windlass_engine::{Engine, HTTP_QUEUES_MAX, QueueConfig, Worker, WorkerConfig};
use windlass_http::{DEADLINE_HEADER, DEPTH_HEADER, DEPTH_META, HttpJobs, HttpRequest};

use crate::problem::Problem;
use crate::signing::Signers;

/// How often the executor looks for queues that another node noted. A worker follows the settings
/// of its queue itself.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Refuses an HTTP job whose payload is no request. Other jobs pass.
pub(crate) fn check_form(
    (kind, delivery): (&Kind, Delivery),
    payload: &Payload,
) -> Result<(), Invalid> {
    match kind.is_http() {
        true => HttpRequest::check_payload(payload, delivery).map(|_| ()),
        false => Ok(()),
    }
}

/// Refuses an HTTP job whose payload is no request, or must not be signed as it asks. Other jobs pass.
pub(crate) async fn check_request(
    signers: &mut Signers<'_>,
    (kind, delivery): (&Kind, Delivery),
    payload: &Payload,
) -> Result<(), Problem> {
    if !kind.is_http() {
        return Ok(());
    }
    let request = HttpRequest::check_payload(payload, delivery)?;
    let refusal = signers.refusal(&request).await?;
    refusal.map_or(Ok(()), |refusal| Err(refusal.within("payload").into()))
}

/// An HTTP job that another one asked for is one step further from where it began: a chain of them comes to an end.
pub(crate) fn with_depth(headers: &HeaderMap, mut new: NewJob) -> NewJob {
    let depth = headers.get(DEPTH_HEADER);
    let depth = depth.and_then(|depth| depth.to_str().ok()?.parse::<u32>().ok());
    if let Some(depth) = depth.filter(|_| new.kind.is_http()) {
        new.meta.insert(DEPTH_META.to_owned(), depth.into());
    }
    new
}

/// A job that an HTTP job asked for has its deadline, unless it says its own.
pub(crate) fn with_deadline(headers: &HeaderMap, mut new: NewJob) -> Result<NewJob, Invalid> {
    let Some(deadline) = headers.get(DEADLINE_HEADER) else {
        return Ok(new);
    };
    let wrong = || {
        Invalid::new(
            DEADLINE_HEADER,
            "must be an instant such as 2026-01-01T00:00:00Z",
        )
    };
    let deadline = deadline.to_str().map_err(|_| wrong())?;
    let deadline = deadline.parse().map_err(|_: Invalid| wrong())?;
    new.deadline = new.deadline.or(Some(Deadline::At(deadline)));
    Ok(new)
}

/// Refuses HTTP jobs in a further queue where there are as many as can be run; notes the queue if not.
pub(crate) async fn check_queue(
    engine: &Engine,
    kind: &Kind,
    queue: &QueueName,
) -> Result<(), Error> {
    let queues = engine.http_queues();
    if !kind.is_http() || queues.knows(queue, engine.now()) {
        return Ok(());
    }
    queues.learn(engine.store(), engine.now()).await?;
    queues.check_room(kind, queue)?;
    Ok(engine.note_queue(kind, queue).await?)
}

/// How the server runs HTTP jobs.
#[derive(Debug, Clone)]
pub(crate) struct Executor {
    pub(crate) engine: Arc<Engine>,
    pub(crate) jobs: HttpJobs,
    /// The name of this node.
    pub(crate) node: String,
    /// At most so many requests of a queue at once.
    pub(crate) concurrency: u32,
    pub(crate) lease: Duration,
    pub(crate) retry: WorkerRetry,
    pub(crate) shutdown_grace: Duration,
    pub(crate) outcome_retry_max: Duration,
}

impl Executor {
    /// Serves `default` and every queue that is noted, one worker each, until it is told to stop.
    pub(crate) async fn run(self, stop: CancellationToken, stop_now: CancellationToken) {
        let mut served: BTreeMap<QueueName, Served> = BTreeMap::new();
        let mut running = JoinSet::new();
        while !stop.is_cancelled() {
            let wanted = self.wanted().await;
            if let Some(wanted) = &wanted {
                served.retain(|queue, one| one.goes_on(wanted.contains(queue)));
            }
            for queue in wanted.into_iter().flatten() {
                if !served.contains_key(&queue)
                    && served.len() < HTTP_QUEUES_MAX
                    && let Some(worker) = self.worker(&queue)
                {
                    let (stop, stop_now) = (stop.child_token(), stop_now.clone());
                    served.insert(queue, Served(stop.clone()));
                    running.spawn(async move { worker.run(stop, stop_now).await });
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = running.join_next() => ended.map_or_else(broke, drop),
                () = self.engine.http_queues().changed() => {}
                () = self.engine.clock().sleep(LOOK_EVERY) => {}
            }
        }
        while let Some(ended) = running.join_next().await {
            ended.map_or_else(broke, drop);
        }
    }

    async fn wanted(&self) -> Option<BTreeSet<QueueName>> {
        let (store, now) = (self.engine.store(), self.engine.now());
        match self.engine.http_queues().learn(store, now).await {
            Ok(mut wanted) => {
                wanted.insert(QueueName::default());
                Some(wanted)
            }
            Err(error) => {
                warn!(%error, "the queues of HTTP jobs are not known, trying again");
                None
            }
        }
    }

    fn worker(&self, queue: &QueueName) -> Option<Arc<Worker>> {
        let made = self
            .config(queue)
            .and_then(|config| Worker::new(Arc::clone(&self.engine), config));
        match made {
            Ok(worker) => {
                info!(%queue, concurrency = self.concurrency, "HTTP jobs are run");
                Some(Arc::new(worker))
            }
            Err(problem) => {
                error!(%queue, %problem, "HTTP jobs of this queue are not run");
                None
            }
        }
    }

    fn config(&self, queue: &QueueName) -> Result<WorkerConfig, Invalid> {
        let name = WorkerName::new(&format!("{}-http-{queue}", self.node))?;
        let mut config = WorkerConfig::new(name);
        config.queues = vec![QueueConfig::new(queue.clone(), self.concurrency)];
        config.retry = self.retry.clone();
        config.lease = self.lease;
        config.shutdown_grace = self.shutdown_grace;
        config.outcome_retry_max = self.outcome_retry_max;
        config.keeps_up = false; // the server does, once for all
        self.jobs.register(&mut config);
        Ok(config)
    }
}

/// A queue that is served, until this is cancelled.
struct Served(CancellationToken);

impl Served {
    /// Whether it stays; the worker of a queue that nobody wants stops.
    fn goes_on(&self, wanted: bool) -> bool {
        if !wanted {
            self.0.cancel();
        }
        wanted
    }
}

/// What broke in a worker breaks whoever runs it.
fn broke(ended: JoinError) {
    if let Ok(panic) = ended.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::Timestamp;
    use windlass_engine::{Ids, Janitor, JanitorConfig, VirtualClock};
    use windlass_http::HttpConfig;
    use windlass_memory::MemoryStore;

    use super::*;

    /// Lets time pass until exactly these workers are there; those that are.
    async fn served(engine: &Engine, clock: &VirtualClock, workers: &[&str]) -> Vec<String> {
        let mut names = Vec::new();
        for _ in 0..10_000 {
            let nodes = engine.store().nodes().await.expect("a store");
            names = nodes.into_iter().map(|node| node.name).collect();
            if names == workers {
                break;
            }
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
        names
    }

    #[tokio::test]
    async fn a_queue_that_is_forgotten_gives_its_worker_back() {
        let clock = VirtualClock::new(Timestamp::UNIX_EPOCH);
        let store = Arc::new(MemoryStore::new());
        let engine = Engine::new(store, Arc::new(clock.clone()), Ids::seeded(1));
        let engine = Arc::new(engine);
        let hooks = "hooks".parse().unwrap();
        engine.note_queue(&Kind::http(), &hooks).await.unwrap();
        let executor = Executor {
            engine: Arc::clone(&engine),
            jobs: HttpJobs::new(HttpConfig::default()).unwrap(),
            node: "n".to_owned(),
            concurrency: 1,
            lease: Duration::from_secs(30),
            retry: WorkerRetry::default(),
            shutdown_grace: Duration::ZERO,
            outcome_retry_max: Duration::from_secs(300),
        };
        let both = ["n-http-default", "n-http-hooks"];
        let stop = CancellationToken::new();
        let running = tokio::spawn(executor.run(stop.clone(), CancellationToken::new()));
        assert_eq!(served(&engine, &clock, &both).await, both);
        clock.advance(Duration::from_secs(25 * 3600));
        let janitor = Janitor::new(Arc::clone(&engine), JanitorConfig::default());
        janitor.pass(engine.now()).await.unwrap();
        assert_eq!(served(&engine, &clock, &both[..1]).await, both[..1]);
        engine.note_queue(&Kind::http(), &hooks).await.unwrap();
        assert_eq!(served(&engine, &clock, &both).await, both);
        stop.cancel();
        running.await.unwrap();
    }
}
