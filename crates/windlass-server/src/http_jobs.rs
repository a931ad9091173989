//! The server's own worker: it runs HTTP jobs, in every queue that has had one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use windlass_core::retry::WorkerRetry;
use windlass_core::{Invalid, Kind, NewJob, QueueName, WorkerName};
use windlass_engine::{Engine, JanitorConfig, QueueConfig, Worker, WorkerConfig};
use windlass_http::{HttpJobs, HttpRequest, KeyError, SigningKey, SigningKeys};
use windlass_store::{Expected, Store, StoreError};

use crate::secrets::Secrets;

/// The collection of documents that name the queues that HTTP jobs wait in.
const QUEUES: &str = "http-queues";

/// The server serves at most so many queues.
const QUEUES_MAX: usize = 100;

/// Queues that another node noted are looked for so often.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Refuses an HTTP job whose payload is no request; other jobs are not its business.
pub(crate) fn check_request(new: &NewJob) -> Result<(), Invalid> {
    match new.kind.is_http() {
        true => HttpRequest::check_job(new).map(drop),
        false => Ok(()),
    }
}

/// The queues that HTTP jobs wait in, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct HttpQueues {
    known: Mutex<BTreeSet<QueueName>>,
    more: Notify,
}

impl HttpQueues {
    /// Notes that HTTP jobs will wait in a queue, before the first of them does: so it will be served.
    pub(crate) async fn note(
        &self,
        engine: &Engine,
        kind: &Kind,
        queue: &QueueName,
    ) -> Result<(), StoreError> {
        if !kind.is_http() || self.known().contains(queue) {
            return Ok(());
        }
        let (store, any) = (engine.store(), Expected::Anything);
        store
            .put_document(QUEUES, queue.as_str(), &json!({}), any, engine.now())
            .await?;
        self.known().insert(queue.clone());
        self.more.notify_one();
        Ok(())
    }

    /// Takes in what other nodes, and this one before it was restarted, have noted; all that is known then.
    async fn learn(&self, store: &dyn Store) -> Result<BTreeSet<QueueName>, StoreError> {
        let noted = store.documents(QUEUES).await?;
        let noted = noted.iter().filter_map(|one| one.name.parse().ok());
        let mut known = self.known();
        known.extend(noted);
        Ok(known.clone())
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<QueueName>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the server runs HTTP jobs.
#[derive(Debug, Clone)]
pub(crate) struct Executor {
    pub(crate) engine: Arc<Engine>,
    pub(crate) queues: Arc<HttpQueues>,
    pub(crate) jobs: HttpJobs,
    /// The name of this node.
    pub(crate) node: String,
    /// At most so many requests of a queue at once.
    pub(crate) concurrency: u32,
    pub(crate) lease: Duration,
    pub(crate) retry: WorkerRetry,
    pub(crate) shutdown_grace: Duration,
    pub(crate) janitor: JanitorConfig,
}

impl Executor {
    /// Serves `default` and every queue that is noted, one worker each, until it is told to stop.
    pub(crate) async fn run(self, stop: CancellationToken, stop_now: CancellationToken) {
        let mut served = BTreeSet::new();
        let mut workers = JoinSet::new();
        while !stop.is_cancelled() {
            let mut wanted = match self.queues.learn(self.engine.store()).await {
                Ok(wanted) => wanted,
                Err(error) => {
                    warn!(%error, "the queues of HTTP jobs are not known, trying again");
                    BTreeSet::new()
                }
            };
            wanted.insert(QueueName::default());
            for queue in wanted {
                if served.len() < QUEUES_MAX && served.insert(queue.clone()) {
                    self.serve(queue, &mut workers, &stop, &stop_now);
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.queues.more.notified() => {}
                () = self.engine.clock().sleep(LOOK_EVERY) => {}
            }
        }
        while workers.join_next().await.is_some() {}
    }

    fn serve(
        &self,
        queue: QueueName,
        workers: &mut JoinSet<()>,
        stop: &CancellationToken,
        stop_now: &CancellationToken,
    ) {
        let worker = match self.worker(queue.clone()) {
            Ok(worker) => worker,
            Err(problem) => {
                error!(%queue, %problem, "HTTP jobs of this queue are not run");
                return;
            }
        };
        info!(%queue, concurrency = self.concurrency, "HTTP jobs are run");
        let (stop, stop_now) = (stop.clone(), stop_now.clone());
        workers.spawn(async move {
            worker.run(stop, stop_now).await;
        });
    }

    fn worker(&self, queue: QueueName) -> Result<Worker, Invalid> {
        let name = WorkerName::new(&format!("{}-http-{queue}", self.node))?;
        let mut config = WorkerConfig::new(name);
        config.queues = vec![QueueConfig::new(queue, self.concurrency)];
        config.retry = self.retry.clone();
        config.lease = self.lease;
        config.shutdown_grace = self.shutdown_grace;
        config.janitor = self.janitor.clone();
        self.jobs.register(&mut config);
        Worker::new(Arc::clone(&self.engine), config)
    }
}

/// Webhook secrets, as they are kept: the valid keys of one name with spaces between, the newest first.
#[async_trait]
impl SigningKeys for Secrets {
    async fn keys(&self, name: &str) -> Result<Vec<SigningKey>, KeyError> {
        let unreadable = |why: String| KeyError::Unavailable(why);
        let found = self.get(name).await;
        let found = found.map_err(|error| unreadable(error.to_string()))?;
        let secret = found.ok_or_else(|| KeyError::Unknown(name.to_owned()))?;
        let text = std::str::from_utf8(&secret).map_err(|error| unreadable(error.to_string()))?;
        SigningKey::parse_all(text).map_err(|refusal| unreadable(refusal.to_string()))
    }
}
