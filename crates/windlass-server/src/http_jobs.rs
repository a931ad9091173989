//! HTTP jobs: checks of new ones, and the server's own worker, which runs them in every queue.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use windlass_core::retry::WorkerRetry;
use windlass_core::{Deadline, Delivery, Invalid, Kind, NewJob, Payload, QueuePattern, WorkerName};
use windlass_engine::{DiscoverConfig, Engine, Worker, WorkerConfig};
use windlass_http::{DEADLINE_HEADER, DEPTH_HEADER, DEPTH_META, HttpJobs, HttpRequest, is_http};

use windlass_store::CLAIM_MAX;

use crate::problem::Problem;
use crate::signing::Signers;

/// All queues together run at most this many times the HTTP jobs of one queue.
const TOTAL_PER_QUEUE: u32 = 10;

/// Checks that the payload of an HTTP job is a valid request. Accepts all other jobs.
pub(crate) fn check_form(
    (kind, delivery): (&Kind, Delivery),
    payload: &Payload,
) -> Result<(), Invalid> {
    if is_http(kind) {
        HttpRequest::check_payload(payload, delivery)?;
    }
    Ok(())
}

/// Checks that the payload of an HTTP job is a valid request, and that its secrets may sign it.
/// Accepts all other jobs.
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

/// Sets the depth of an HTTP job that another HTTP job enqueued. The depth limits chains of jobs.
pub(crate) fn with_depth(headers: &HeaderMap, mut new: NewJob) -> NewJob {
    let depth = headers.get(DEPTH_HEADER);
    let depth = depth.and_then(|depth| depth.to_str().ok()?.parse::<u32>().ok());
    if let Some(depth) = depth.filter(|_| is_http(&new.kind)) {
        new.meta.insert(DEPTH_META.to_owned(), depth.into());
    }
    new
}

/// Gives a job the deadline of the HTTP job that enqueued it, unless it has its own.
pub(crate) fn with_deadline(headers: &HeaderMap, mut new: NewJob) -> Result<NewJob, Invalid> {
    let Some(deadline) = headers.get(DEADLINE_HEADER) else {
        return Ok(new);
    };
    let invalid = || {
        Invalid::new(
            DEADLINE_HEADER,
            "must be a timestamp such as 2026-01-01T00:00:00Z",
        )
    };
    let deadline = deadline.to_str().map_err(|_| invalid())?;
    let deadline = deadline.parse().map_err(|_: Invalid| invalid())?;
    new.deadline = new.deadline.or(Some(Deadline::At(deadline)));
    Ok(new)
}

/// Runs HTTP jobs.
#[derive(Debug, Clone)]
pub(crate) struct Executor {
    pub(crate) engine: Arc<Engine>,
    pub(crate) jobs: HttpJobs,
    /// The name of this node.
    pub(crate) node: String,
    /// The most concurrent requests of one queue.
    pub(crate) per_queue: u32,
    pub(crate) lease: Duration,
    pub(crate) retry: WorkerRetry,
    pub(crate) shutdown_grace: Duration,
    pub(crate) outcome_retry_max: Duration,
}

impl Executor {
    /// Runs the HTTP jobs of all queues in one worker until `stop` is cancelled.
    pub(crate) async fn run(self, stop: CancellationToken, stop_now: CancellationToken) {
        let worker = self.config();
        let worker = worker.and_then(|config| Worker::new(Arc::clone(&self.engine), config));
        match worker {
            Ok(worker) => {
                info!(per_queue = self.per_queue, "running HTTP jobs");
                if let Err(error) = worker.run(stop.clone(), stop_now).await {
                    error!(%error, "the worker for HTTP jobs stopped");
                } else if !stop.is_cancelled() {
                    warn!(
                        "an operator stopped the worker for HTTP jobs; restart the server to run them"
                    );
                    stop.cancelled().await;
                }
            }
            Err(problem) => error!(%problem, "cannot start the worker for HTTP jobs"),
        }
    }

    fn config(&self) -> Result<WorkerConfig, Invalid> {
        let name = WorkerName::new(&format!("{}-http", self.node))?;
        let mut config = WorkerConfig::new(name);
        let total = self.per_queue.saturating_mul(TOTAL_PER_QUEUE);
        let total = total.min(u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX));
        config.discovered = vec![DiscoverConfig {
            per_queue: Some(self.per_queue),
            ..DiscoverConfig::new(QueuePattern::all(), total)
        }];
        config.retry = self.retry.clone();
        config.lease = self.lease;
        config.shutdown_grace = self.shutdown_grace;
        config.outcome_retry_max = self.outcome_retry_max;
        config.runs_maintenance = false; // the server runs it itself
        self.jobs.register(&mut config);
        Ok(config)
    }
}
