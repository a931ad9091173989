//! A remote worker: claims jobs over the REST API, runs them, and reports their outcomes.

mod log;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use windlass_api::{
    AttemptOutcome, BoundedInt, Claim, ClaimAnswer, DurationText, ErrorCauses, ErrorText, Job,
    Json, List, NewWorker, OutcomeWord, Outcomes, Progress, RenewStatus, Renewal, RenewedLease,
    WeightedQueue, WorkerSignal,
};
use windlass_core::{Invalid, JobId, Kind, Payload, QueueName, WorkerName};

use crate::client::Client;
use crate::error::Error;
use log::{LogBatch, LogBuffer};

/// How long the worker waits after a failed claim.
const CLAIM_RETRY_WAIT: Duration = Duration::from_secs(1);
/// How long a request with log lines may take after the handler has returned.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(5);

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

/// One attempt of a job: the argument of the handler.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The job, with its payload.
    pub job: Job,
    /// Cancelled when the attempt should stop: the job was cancelled, the attempt timed out, or the
    /// worker lost its lease. A handler that ignores it keeps its slot until it returns.
    pub stop: CancellationToken,
    client: Client,
    worker: WorkerName,
    log: LogBuffer,
}

impl Attempt {
    /// Parses the payload of the job.
    ///
    /// # Errors
    ///
    /// An unrecoverable [`Failure`] if the payload does not match `T`: a retry could not succeed.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let payload = self.job.payload.as_ref().map(|payload| payload.0.as_str());
        let read = serde_json::from_str(payload.unwrap_or("null"));
        read.map_err(|error| Failure::from(error).unrecoverable())
    }

    /// Adds a text to the log of the attempt. Each line of the text is a line of the log, cut to 1000
    /// characters.
    ///
    /// The worker sends new lines once per second, and the last ones with the outcome. The server
    /// keeps the last 1000 lines, at most 64 KiB.
    pub fn log(&self, text: impl AsRef<str>) {
        self.log.push(text.as_ref());
    }

    /// Sends new lines until `done`. A request that is open then has 5 s to end.
    async fn send_log(&self, done: CancellationToken) {
        while done.run_until_cancelled(self.log.collect()).await.is_some() {
            let batch = self.log.batch();
            let given_up = async {
                done.cancelled().await;
                tokio::time::sleep(LAST_LINES_TIMEOUT).await;
            };
            let sent = tokio::select! {
                sent = self.send_lines(&batch) => sent,
                () = given_up => return,
            };
            match sent {
                Ok(()) => self.log.sent(&batch),
                Err(error) if error.is_temporary() => {
                    debug!(%error, job.id = %self.job.id, "sending log lines failed; retrying");
                }
                // The attempt has ended or is not ours: no later line can be sent either.
                Err(error) => {
                    return debug!(%error, job.id = %self.job.id, "the server refused log lines");
                }
            }
        }
    }

    async fn send_lines(&self, batch: &LogBatch) -> Result<(), Error> {
        let first = i64::try_from(batch.first).unwrap_or(i64::MAX);
        let progress = Progress {
            id: Some(self.job.id),
            attempt: BoundedInt::new(self.job.attempt.into()),
            worker: Some(self.worker.clone()),
            lines: batch.to_list(),
            first_line: BoundedInt::new(first),
            ..Progress::default()
        };
        self.client.progress(&progress).await
    }

    /// Reports the progress of the attempt, up to 16 KiB of JSON. Operators see it with the job.
    ///
    /// # Errors
    ///
    /// Refused with `lease_lost` if the attempt no longer belongs to this worker. Stop the work then.
    pub async fn progress(&self, progress: &(impl Serialize + Sync)) -> Result<(), Error> {
        let progress = Progress {
            id: Some(self.job.id),
            attempt: BoundedInt::new(self.job.attempt.into()),
            worker: Some(self.worker.clone()),
            progress: Some(to_json(progress)?),
            ..Progress::default()
        };
        self.client.progress(&progress).await
    }
}

/// Why an attempt failed. `?` converts every error into a failure that the server retries by the
/// job's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    message: String,
    causes: Vec<String>,
    unrecoverable: bool,
    retry_after: Option<Duration>,
}

impl Failure {
    /// Creates a failure with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            causes: Vec::new(),
            unrecoverable: false,
            retry_after: None,
        }
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Makes the failure final: the server does not retry the job, and the job is dead.
    #[must_use]
    pub fn unrecoverable(mut self) -> Self {
        self.unrecoverable = true;
        self
    }

    /// Sets the shortest wait before the next attempt, at most 24 h. The policy may wait longer.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let causes = std::iter::successors(error.source(), |cause| cause.source());
        Failure {
            causes: causes.map(ToString::to_string).collect(),
            ..Failure::new(error.to_string())
        }
    }
}

/// What a handler returns: the result of the job, or why the attempt failed.
pub type Handled = Result<Value, Failure>;

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

    /// Sets how long running jobs may continue after `stop`. Then the worker aborts them and releases
    /// them to the queue. Default: 30 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Claims and runs jobs until `stop` is cancelled or an operator stops this worker. Then waits for
    /// the running jobs, at most for [`grace`](Worker::grace).
    ///
    /// While the server is unreachable, the worker keeps trying.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker cannot register, or if the server refuses a claim, for example
    /// because the key was revoked.
    pub async fn run<H, F>(self, handler: H, stop: CancellationToken) -> Result<(), Error>
    where
        H: Fn(Attempt) -> F + Send + Sync + 'static,
        F: Future<Output = Handled> + Send + 'static,
    {
        self.client.register_worker(&self.about()).await?;
        let mut run = WorkerRun {
            worker: &self,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            unreported: Vec::new(),
            claim_ids: ClaimIds::default(),
            unanswered: None,
            claims_paused: false,
            ending: None,
        };
        let ended = run.run(&handler, &stop).await;
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

fn to_json(value: &impl Serialize) -> Result<Json, Error> {
    let text = serde_json::to_string(value).map_err(|error| Error::Invalid {
        what: "the value".to_owned(),
        rule: format!("must be JSON: {error}"),
    })?;
    Ok(Json(Payload::from_stored(&text)))
}

/// A running attempt.
struct RunningAttempt {
    id: JobId,
    attempt: u32,
    is_retry: bool,
    stop: CancellationToken,
    cancelled: bool,
    log: LogBuffer,
}

/// Creates claim ids. No other run of a worker with the same name creates the same ids.
struct ClaimIds {
    run: u64,
    next: u64,
}

impl Default for ClaimIds {
    fn default() -> Self {
        // The standard library seeds it with random numbers of the operating system.
        let run = RandomState::new().hash_one(());
        ClaimIds { run, next: 0 }
    }
}

impl ClaimIds {
    fn next(&mut self) -> String {
        self.next += 1;
        format!("{:016x}-{}", self.run, self.next)
    }
}

/// The state of a running worker.
struct WorkerRun<'a> {
    worker: &'a Worker,
    tasks: JoinSet<Handled>,
    running: HashMap<Id, RunningAttempt>,
    unreported: Vec<AttemptOutcome>,
    claim_ids: ClaimIds,
    /// The claim that has no response yet. The server may have granted it, so the worker repeats it
    /// with the same id and gets the same jobs.
    unanswered: Option<Claim>,
    claims_paused: bool,
    /// Set when the worker stops claiming: what `run` returns once all attempts have ended.
    ending: Option<Result<(), Error>>,
}

type Claiming<'a> = Pin<Box<dyn Future<Output = Result<ClaimAnswer, Error>> + Send + 'a>>;

impl<'a> WorkerRun<'a> {
    async fn run<H, F>(&mut self, handler: &H, stop: &CancellationToken) -> Result<(), Error>
    where
        H: Fn(Attempt) -> F,
        F: Future<Output = Handled> + Send + 'static,
    {
        let mut heartbeat = tokio::time::interval(self.worker.lease / 3);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut claiming: Option<Claiming<'_>> = None;
        let mut grace = Box::pin(tokio::time::sleep(self.worker.grace));
        loop {
            if self.ending.is_some() {
                claiming = None; // the server takes back the jobs of an interrupted claim
                if self.running.is_empty() && self.unreported.is_empty() {
                    return self.ending.take().unwrap_or(Ok(()));
                }
            } else if claiming.is_none() && !self.claims_paused && self.free_slots() > 0 {
                claiming = Some(self.claim());
            }
            let is_ending = self.ending.is_some();
            tokio::select! {
                answer = claim_answer(&mut claiming) => {
                    claiming = None;
                    self.start_jobs(answer, handler);
                }
                Some(ended) = self.tasks.join_next_with_id() => {
                    self.add_outcome(ended);
                    self.report().await;
                }
                _ = heartbeat.tick() => {
                    self.renew_leases().await;
                    self.report().await;
                }
                () = stop.cancelled(), if !is_ending => self.ending = Some(Ok(())),
                () = &mut grace, if is_ending => {
                    self.tasks.abort_all();
                    grace = Box::pin(tokio::time::sleep(self.worker.lease));
                    self.unreported.clear(); // the server is unreachable; the leases expire
                }
            }
            if !is_ending && self.ending.is_some() {
                grace = Box::pin(tokio::time::sleep(self.worker.grace));
            }
        }
    }

    /// Claims jobs for the free slots, or repeats the claim that got no response.
    fn claim(&mut self) -> Claiming<'a> {
        let failed_before = self.unanswered.is_some();
        let claim = self.unanswered.take().unwrap_or_else(|| {
            let retries = self
                .running
                .values()
                .filter(|attempt| attempt.is_retry)
                .count();
            let claim_id = self.claim_ids.next();
            self.worker.new_claim(claim_id, self.free_slots(), retries)
        });
        self.unanswered = Some(claim.clone());
        Box::pin(self.worker.claim(claim, failed_before))
    }

    fn free_slots(&self) -> usize {
        let slots = usize::try_from(self.worker.slots).unwrap_or(usize::MAX);
        slots.saturating_sub(self.running.len())
    }

    /// Starts the jobs of a claim.
    fn start_jobs<H, F>(&mut self, answer: Result<ClaimAnswer, Error>, handler: &H)
    where
        H: Fn(Attempt) -> F,
        F: Future<Output = Handled> + Send + 'static,
    {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.is_temporary() => {
                return warn!(%error, worker = %self.worker.name, "claim failed; retrying");
            }
            Err(error) => return self.ending = Some(Err(error)),
        };
        self.unanswered = None;
        for job in answer.data {
            let (stop, log) = (CancellationToken::new(), LogBuffer::default());
            let running = RunningAttempt {
                id: job.id,
                attempt: job.attempt,
                is_retry: job.failures > 0,
                stop: stop.clone(),
                cancelled: false,
                log: log.clone(),
            };
            let attempt = Attempt {
                job,
                stop,
                client: self.worker.client.clone(),
                worker: self.worker.name.clone(),
                log,
            };
            let task = self
                .tasks
                .spawn(with_log(attempt.clone(), handler(attempt)));
            self.running.insert(task.id(), running);
        }
        self.obey(answer.signal);
    }

    fn obey(&mut self, signal: Option<WorkerSignal>) {
        self.claims_paused = signal == Some(WorkerSignal::PauseClaims);
        if signal == Some(WorkerSignal::Stop) && self.ending.is_none() {
            self.ending = Some(Ok(()));
        }
    }

    /// Adds the outcome of an attempt that has ended to those to report.
    fn add_outcome(&mut self, ended: Result<(Id, Handled), JoinError>) {
        let task = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(running) = self.running.remove(&task) else {
            return;
        };
        let outcome = AttemptOutcome {
            id: Some(running.id),
            attempt: BoundedInt::new(running.attempt.into()),
            log: running.log.batch().to_list(),
            ..AttemptOutcome::default()
        };
        let failed = |failure: Failure| AttemptOutcome {
            outcome: Some(OutcomeWord::Failed),
            error: Some(ErrorText::Causes(ErrorCauses {
                message: failure.message,
                causes: failure.causes,
            })),
            unrecoverable: failure.unrecoverable.then_some(true),
            retry_after: failure.retry_after.map(DurationText),
            ..outcome.clone()
        };
        self.unreported.push(match ended {
            Ok((_, Ok(result))) => AttemptOutcome {
                outcome: Some(OutcomeWord::Succeeded),
                result: to_json(&result).ok(),
                ..outcome
            },
            Ok((_, Err(_))) if running.cancelled => AttemptOutcome {
                outcome: Some(OutcomeWord::Cancelled),
                ..outcome
            },
            Ok((_, Err(failure))) => failed(failure),
            Err(error) if error.is_panic() => failed(Failure::new("the handler panicked")),
            Err(_) => AttemptOutcome {
                outcome: Some(OutcomeWord::Released),
                ..outcome
            },
        });
    }

    /// Reports outcomes. After a temporary error, the next heartbeat reports them again.
    async fn report(&mut self) {
        while !self.unreported.is_empty() {
            let count = self.unreported.len().min(1000);
            let outcomes: Vec<_> = self.unreported.iter().take(count).cloned().collect();
            let outcomes = Outcomes {
                worker: Some(self.worker.name.clone()),
                outcomes: Some(List(outcomes)),
            };
            if let Err(error) = self.worker.client.settle(&outcomes).await {
                warn!(%error, worker = %self.worker.name, count, "settle failed");
                if error.is_temporary() {
                    return;
                }
            }
            self.unreported.drain(..count);
        }
    }

    /// Renews the leases, and stops attempts that were cancelled, timed out or lost their lease.
    async fn renew_leases(&mut self) {
        let leases = self.running.values().map(|running| RenewedLease {
            id: Some(running.id),
            attempt: BoundedInt::new(running.attempt.into()),
            ..RenewedLease::default()
        });
        let renewal = Renewal {
            worker: Some(self.worker.name.clone()),
            lease: Some(DurationText(self.worker.lease)),
            leases: Some(List(leases.take(1000).collect())),
            ..Renewal::default()
        };
        let answer = match self.worker.client.renew(&renewal).await {
            Ok(answer) => answer,
            Err(error) => {
                return warn!(%error, worker = %self.worker.name, "renewal failed; retrying at the next heartbeat");
            }
        };
        for renewed in &answer.data {
            let is_renewed = |attempt: &&mut RunningAttempt| {
                (attempt.id, attempt.attempt) == (renewed.id, renewed.attempt)
            };
            let Some(running) = self.running.values_mut().find(is_renewed) else {
                continue;
            };
            running.cancelled |= renewed.cancel_requested == Some(true);
            if running.cancelled || renewed.status != RenewStatus::Renewed {
                running.stop.cancel();
            }
        }
        self.obey(answer.signal);
    }
}

/// Runs a handler and sends what it logs meanwhile.
async fn with_log(attempt: Attempt, handling: impl Future<Output = Handled>) -> Handled {
    let done = CancellationToken::new();
    let handling = async {
        let handled = handling.await;
        done.cancel();
        handled
    };
    let (handled, ()) = tokio::join!(handling, attempt.send_log(done.clone()));
    handled
}

/// Waits for the answer to the claim. Without a claim, waits forever.
async fn claim_answer(claiming: &mut Option<Claiming<'_>>) -> Result<ClaimAnswer, Error> {
    match claiming {
        Some(claiming) => claiming.await,
        None => std::future::pending().await,
    }
}
