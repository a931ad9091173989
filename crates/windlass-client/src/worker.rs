//! A remote worker: claims jobs over the REST API, runs them, and reports their outcomes.

mod attempt;
mod log;
mod run;

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_api::{BoundedInt, Claim, ClaimAnswer, DurationText, List, NewWorker, WeightedQueue};
use windlass_core::{Invalid, Kind, QueueName, WorkerName};

use crate::client::Client;
use crate::error::Error;
use run::WorkerRun;

pub use attempt::{Attempt, Failure, Handled};

/// How long the worker waits after a failed claim.
const CLAIM_RETRY_WAIT: Duration = Duration::from_secs(1);

/// Claims jobs of a server and runs a handler for each, up to [`slots`](Worker::slots) at once.
///
/// The worker renews the leases of its jobs, stops attempts whose job was cancelled, and obeys the
/// signals of operators. The crate page has an example.
#[derive(Debug, Clone)]
pub struct Worker {
    client: Client,
    name: WorkerName,
    queues: Vec<QueueName>,
    kinds: Vec<Kind>,
    slots: u32,
    lease: Duration,
    wait: Duration,
    grace: Duration,
}

impl Worker {
    /// Creates a worker with this name, one slot, and the queue `default`.
    ///
    /// Workers that run at the same time need different names.
    ///
    /// # Errors
    ///
    /// [`Invalid`] if the name is invalid.
    pub fn new(client: Client, name: &str) -> Result<Self, Invalid> {
        Ok(Worker {
            client,
            name: WorkerName::new(name)?,
            queues: Vec::new(),
            kinds: Vec::new(),
            slots: 1,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(20),
            grace: Duration::from_secs(30),
        })
    }

    /// Adds a queue. Without any, the worker claims from `default`.
    #[must_use]
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.queues.push(queue);
        self
    }

    /// Adds a kind. Without any, the worker claims every kind except HTTP jobs.
    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Sets how many jobs run at once. Default: 1.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Sets the length of a lease. The worker renews its leases after a third of it. If the worker
    /// dies, the server retries its jobs after the lease. Default: 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long one claim waits for jobs. Default: 20 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long running jobs may continue after `stop`. Then the worker aborts them and
    /// releases them to the queue. Default: 30 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Claims and runs jobs until `stop` is cancelled or an operator stops this worker. Then waits
    /// for the running jobs, at most for [`grace`](Worker::grace).
    ///
    /// While the server is unreachable, the worker keeps trying.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker cannot register, or if the server refuses a claim, for
    /// example because the key was revoked.
    pub async fn run<H, F>(self, handler: H, stop: CancellationToken) -> Result<(), Error>
    where
        H: Fn(Attempt) -> F + Send + Sync + 'static,
        F: Future<Output = Handled> + Send + 'static,
    {
        self.client.register_worker(&self.about()).await?;
        let ended = WorkerRun::new(&self).run(&handler, &stop).await;
        if let Err(error) = self.client.remove_worker(&self.name).await {
            warn!(%error, worker = %self.name, "cannot remove the worker from the server's list");
        }
        ended
    }

    fn about(&self) -> NewWorker {
        NewWorker {
            name: Some(self.name.clone()),
            queues: non_empty(&self.queues),
            kinds: non_empty(&self.kinds),
            slots: BoundedInt::new(self.slots.into()),
            version: None,
        }
    }

    /// Sends a claim. If the previous claim failed, waits first.
    async fn claim(&self, claim: Claim, failed_before: bool) -> Result<ClaimAnswer, Error> {
        if failed_before {
            tokio::time::sleep(CLAIM_RETRY_WAIT).await;
        }
        self.client.claim(&claim).await
    }

    fn new_claim(&self, claim_id: String, free: usize, retries: usize) -> Claim {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let queues: Vec<_> = self
            .queues
            .iter()
            .cloned()
            .map(WeightedQueue::Name)
            .collect();
        Claim {
            queues: non_empty(&queues),
            kinds: non_empty(&self.kinds),
            limit: BoundedInt::new(number(free).min(1000)),
            lease: Some(DurationText(self.lease)),
            wait: Some(DurationText(self.wait)),
            worker: Some(self.name.clone()),
            slots: BoundedInt::new(self.slots.into()),
            retries_running: BoundedInt::new(number(retries)),
            claim_id: Some(claim_id),
            ..Claim::default()
        }
    }
}

/// Returns `None` for an empty list, so that the request leaves it out.
fn non_empty<T: Clone, const MAX: usize>(list: &[T]) -> Option<List<T, 1, MAX>> {
    (!list.is_empty()).then(|| List(list.to_vec()))
}
