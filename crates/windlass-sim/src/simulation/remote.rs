//! Remote workers: processes that claim, renew and report through the nodes, over a bad network.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use windlass_core::fairness::ClaimQueue;
use windlass_core::{AttemptError, Failure, Job, JobId, Random, WorkerName, WorkerReport};
use windlass_engine::CancellationToken;
use windlass_engine::remote::{
    Admission, Remote, RemoteClaim, RemoteOutcome, RemoteRenewed, RemoteWorker,
};
use windlass_store::AttemptId;

use super::Simulation;
use super::handler::Script;
use super::node::{QUEUES, queue};
use super::plan::{CHAOS, Ingredient, Plan, below};
use super::world::{World, lock};
use crate::history::{Event, digest_of};

/// The nodes that remote workers can reach, each with the token that ends its long polls.
pub(crate) type Servers = Arc<Mutex<Vec<(Arc<Remote>, CancellationToken)>>>;

/// Remote workers have these numbers in the history.
const FIRST: u32 = 100;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long a claim waits for jobs.
const WAIT: Duration = Duration::from_millis(1500);
const RENEW_EVERY: Duration = Duration::from_secs(1);
const SLOTS: u32 = 3;
/// How often a request is repeated whose answer did not arrive.
const TRIES: u32 = 12;

/// Everyone may claim and wait.
struct Open;

impl Admission for Open {
    type Refusal = ();
    type Permit = ();

    async fn check(&self) -> Result<(), ()> {
        Ok(())
    }

    fn wait(&self) -> Result<(), ()> {
        Ok(())
    }
}

impl Simulation<'_> {
    /// Updates which nodes remote workers can reach.
    pub(super) fn list_servers(&self) {
        let serving = self.nodes.iter().filter(|node| node.serves());
        *lock(&self.servers) = serving
            .map(|node| (Arc::clone(&node.remote), node.stop_token()))
            .collect();
    }
}

/// Starts the remote workers of the plan. They work until `stop`.
pub(super) fn start(simulation: &Simulation<'_>, stop: &CancellationToken) -> JoinSet<()> {
    let mut workers = JoinSet::new();
    let mut random = simulation.plan.stream("remote", 0);
    let many = 1 + below(&mut random, 2) as u32;
    if simulation.plan.has(Ingredient::Remote) {
        for number in FIRST..FIRST + many {
            let worker = Worker::new(simulation, number);
            workers.spawn(worker.work(stop.clone()));
        }
    }
    workers
}

struct Worker {
    number: u32,
    plan: Arc<Plan>,
    world: Arc<World>,
    servers: Servers,
    worker: RemoteWorker,
    random: Random,
    claims: u64,
    /// The handlers that run, and the attempts that they run.
    running: BTreeMap<JobId, (AttemptId, AbortHandle)>,
    handlers: JoinSet<()>,
}

/// The end of a handler.
type Ended = (AttemptId, WorkerReport);

impl Worker {
    fn new(simulation: &Simulation<'_>, number: u32) -> Self {
        let name = WorkerName::new(&format!("remote-{number}")).expect("a valid name");
        Worker {
            number,
            plan: Arc::clone(&simulation.plan),
            world: Arc::clone(&simulation.world),
            servers: Arc::clone(&simulation.servers),
            worker: RemoteWorker::Named(name),
            random: simulation.plan.stream("remote", u64::from(number)),
            claims: 0,
            running: BTreeMap::new(),
            handlers: JoinSet::new(),
        }
    }

    async fn work(mut self, stop: CancellationToken) {
        let (send_end, mut ends) = mpsc::unbounded_channel();
        let mut renewed_at = self.world.elapsed();
        loop {
            while let Ok((attempt, report)) = ends.try_recv() {
                self.report(attempt, report).await;
            }
            if self.world.elapsed() - renewed_at >= RENEW_EVERY {
                renewed_at = self.world.elapsed();
                self.renew().await;
            }
            if stop.is_cancelled() && self.running.is_empty() {
                return;
            }
            let has_room = self.running.len() < SLOTS as usize;
            if has_room && !stop.is_cancelled() {
                self.claim(&send_end).await;
            }
            if self.crashes() {
                self.crash();
            }
            tokio::time::sleep(Duration::from_millis(20 + below(&mut self.random, 100))).await;
        }
    }

    /// Whether the process ends now, during the chaos only.
    fn crashes(&mut self) -> bool {
        let has_kills = self.plan.has(Ingredient::Kill) && self.world.elapsed() < CHAOS;
        below(&mut self.random, 150) == 0 && has_kills
    }

    fn crash(&mut self) {
        self.handlers.abort_all();
        self.running.clear();
        self.world.record(self.number, Event::Killed);
        self.world.record(self.number, Event::Booted);
    }

    /// A node that serves, if the request arrives.
    fn server(&mut self) -> Option<(Arc<Remote>, CancellationToken)> {
        let bits = self.random.bits();
        if self.is_lost() {
            return None;
        }
        let servers = lock(&self.servers);
        let index = usize::try_from(bits >> 8).unwrap_or(0);
        let index = index.checked_rem(servers.len())?;
        servers.get(index).cloned()
    }

    /// Whether the network loses a message.
    fn is_lost(&mut self) -> bool {
        let is_lost = below(&mut self.random, 12) == 0;
        let is_bad = self.plan.has(Ingredient::FailBefore) || self.plan.has(Ingredient::FailAfter);
        is_lost && is_bad && self.world.elapsed() < CHAOS
    }

    /// Claims jobs, with the same claim id until an answer arrives.
    async fn claim(&mut self, ends: &mpsc::UnboundedSender<Ended>) {
        self.claims += 1;
        let id = format!("{}-{}", self.number, self.claims);
        for _ in 0..TRIES {
            let mut claim = RemoteClaim::new(self.worker.clone());
            let names = QUEUES.iter().map(|name| ClaimQueue::plain(queue(name)));
            claim.queues = Some(names.collect());
            claim.limit = SLOTS - self.running.len() as u32;
            claim.claim_id = Some(id.clone());
            claim.wait = WAIT;
            claim.slots = Some(SLOTS);
            if let Some((remote, stop)) = self.server() {
                let claimed = remote.claim(claim, Open, &stop);
                let claimed = tokio::time::timeout(PATIENCE, claimed).await;
                if let Ok(Ok(claimed)) = claimed
                    && !self.is_lost()
                {
                    for job in claimed.jobs {
                        self.start(job, ends);
                    }
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            // Leases must not expire while this repeats its claim.
            self.renew().await;
        }
    }

    fn start(&mut self, job: Job, ends: &mpsc::UnboundedSender<Ended>) {
        // The old attempt of the job is lost, or there would not be a new one.
        self.abort(job.id);
        let attempt = AttemptId {
            job: job.id,
            attempt: job.attempt,
        };
        let (world, number, ends) = (Arc::clone(&self.world), self.number, ends.clone());
        let payload = digest_of(job.payload.as_str());
        self.world
            .record(number, Event::Started { attempt, payload });
        let handler = self.handlers.spawn(async move {
            let report = handle(&world, number, &job, attempt).await;
            world.record(number, Event::Returned { attempt });
            let _ = ends.send((attempt, report));
        });
        self.running.insert(attempt.job, (attempt, handler));
    }

    /// Ends a handler if it still runs.
    fn abort(&mut self, job: JobId) {
        let Some((attempt, handler)) = self.running.remove(&job) else {
            return;
        };
        if !handler.is_finished() {
            handler.abort();
            self.world.record(self.number, Event::Returned { attempt });
        }
    }

    async fn renew(&mut self) {
        let leases: Vec<AttemptId> = self.running.values().map(|(attempt, _)| *attempt).collect();
        if leases.is_empty() {
            return;
        }
        let Some((remote, _)) = self.server() else {
            return;
        };
        let answer = remote.renew(&self.worker, &leases, None);
        let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, answer).await else {
            return;
        };
        if self.is_lost() {
            return;
        }
        for (attempt, renewed) in leases.iter().zip(answer.leases) {
            let is_same = self
                .running
                .get(&attempt.job)
                .is_some_and(|(running, _)| running == attempt);
            match renewed {
                RemoteRenewed::TimedOut | RemoteRenewed::LeaseLost(_) if is_same => {
                    self.abort(attempt.job);
                }
                RemoteRenewed::Until {
                    cancel_requested: true,
                    ..
                } if is_same => {
                    self.abort(attempt.job);
                    self.report(*attempt, WorkerReport::Cancelled).await;
                }
                _ => {}
            }
        }
    }

    /// Reports the end of an attempt until an answer arrives.
    async fn report(&mut self, attempt: AttemptId, reported: WorkerReport) {
        let is_same = self
            .running
            .get(&attempt.job)
            .is_some_and(|(running, _)| *running == attempt);
        if is_same {
            self.running.remove(&attempt.job);
        }
        let outcome = RemoteOutcome {
            attempt_id: attempt,
            reported,
            log: Vec::new(),
        };
        for _ in 0..TRIES {
            if let Some((remote, _)) = self.server() {
                let settled = remote.settle(&self.worker, std::slice::from_ref(&outcome));
                let settled = tokio::time::timeout(PATIENCE, settled).await;
                if matches!(settled, Ok(Ok(_))) && !self.is_lost() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Does what the payload says.
async fn handle(world: &World, number: u32, job: &Job, attempt: AttemptId) -> WorkerReport {
    let failure = |text: &str| Failure::retryable(AttemptError::new(text));
    let Ok(script) = job.payload.decode::<Script>() else {
        return WorkerReport::Failed(failure("unreadable script"));
    };
    tokio::time::sleep(Duration::from_millis(script.ms)).await;
    match script.act(job.attempt) {
        Some(b'f' | b'p') => return WorkerReport::Failed(failure("simulated")),
        Some(b'u') => {
            let error = AttemptError::new("never again");
            return WorkerReport::Failed(Failure::unrecoverable(error));
        }
        Some(b'h' | b'c') => std::future::pending::<()>().await,
        Some(b'w') => tokio::time::sleep(super::handler::SLOW).await,
        Some(b'z') => {
            let until = world.now().saturating_add(Duration::from_millis(700));
            return WorkerReport::Snoozed(until);
        }
        _ => {}
    }
    world.record(number, Event::Effect { attempt });
    WorkerReport::Succeeded(None)
}
