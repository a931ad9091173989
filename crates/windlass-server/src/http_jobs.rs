//! The server's own worker: it runs HTTP jobs, in every queue that has some.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use windlass_core::retry::WorkerRetry;
use windlass_core::{Deadline, Delivery, Invalid, Kind, NewJob, Payload, QueuePattern, WorkerName};
use windlass_engine::{DiscoverConfig, Engine, Worker, WorkerConfig};
use windlass_http::{DEADLINE_HEADER, DEPTH_HEADER, DEPTH_META, HttpJobs, HttpRequest, is_http};

use windlass_store::CLAIM_MAX;

use crate::problem::Problem;
use crate::signing::Signers;

/// All queues together run at most this many times as many HTTP jobs at once as one queue.
const QUEUES_AT_ONCE: u32 = 10;

/// Refuses an HTTP job whose payload is no request. Other jobs pass.
pub(crate) fn check_form(
    (kind, delivery): (&Kind, Delivery),
    payload: &Payload,
) -> Result<(), Invalid> {
    match is_http(kind) {
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
    if !is_http(kind) {
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
    if let Some(depth) = depth.filter(|_| is_http(&new.kind)) {
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

/// How the server runs HTTP jobs.
#[derive(Debug, Clone)]
pub(crate) struct Executor {
    pub(crate) engine: Arc<Engine>,
    pub(crate) jobs: HttpJobs,
    /// The name of this node.
    pub(crate) node: String,
    /// At most this many requests of a queue at once.
    pub(crate) per_queue: u32,
    pub(crate) lease: Duration,
    pub(crate) retry: WorkerRetry,
    pub(crate) shutdown_grace: Duration,
    pub(crate) outcome_retry_max: Duration,
}

impl Executor {
    /// Serves every queue that has HTTP jobs, with one worker, until it is stopped.
    pub(crate) async fn run(self, stop: CancellationToken, stop_now: CancellationToken) {
        let worker = self.config();
        let worker = worker.and_then(|config| Worker::new(Arc::clone(&self.engine), config));
        match worker {
            Ok(worker) => {
                info!(per_queue = self.per_queue, "running HTTP jobs");
                if let Err(error) = worker.run(stop, stop_now).await {
                    error!(%error, "HTTP jobs are no longer run");
                }
            }
            Err(problem) => error!(%problem, "HTTP jobs are not run"),
        }
    }

    fn config(&self) -> Result<WorkerConfig, Invalid> {
        let name = WorkerName::new(&format!("{}-http", self.node))?;
        let mut config = WorkerConfig::new(name);
        let total = self.per_queue.saturating_mul(QUEUES_AT_ONCE);
        let total = total.min(u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX));
        config.discovered = vec![DiscoverConfig {
            per_queue: Some(self.per_queue),
            ..DiscoverConfig::new(QueuePattern::all(), total)
        }];
        config.retry = self.retry.clone();
        config.lease = self.lease;
        config.shutdown_grace = self.shutdown_grace;
        config.outcome_retry_max = self.outcome_retry_max;
        config.runs_maintenance = false; // the server does, once for all
        self.jobs.register(&mut config);
        Ok(config)
    }
}
