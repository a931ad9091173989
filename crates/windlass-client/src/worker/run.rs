//! A worker that runs: one task that claims, starts handlers, renews leases, reports and follows
//! signals.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::pin::Pin;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use windlass_api::{
    AttemptOutcome, BoundedInt, Claim, ClaimAnswer, DurationText, ErrorCauses, ErrorText, List,
    OutcomeWord, Outcomes, RenewStatus, Renewal, RenewedLease, WorkerSignal,
};
use windlass_core::JobId;

use super::Worker;
use super::attempt::{Attempt, Failure, Handled, to_json, with_log};
use super::log::LogBuffer;
use crate::error::Error;

/// The state of a running worker.
pub(super) struct WorkerRun<'a> {
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

/// A running attempt.
struct RunningAttempt {
    id: JobId,
    attempt: u32,
    is_retry: bool,
    stop: CancellationToken,
    cancelled: bool,
    log: LogBuffer,
}

type Claiming<'a> = Pin<Box<dyn Future<Output = Result<ClaimAnswer, Error>> + Send + 'a>>;

impl<'a> WorkerRun<'a> {
    pub(super) fn new(worker: &'a Worker) -> Self {
        WorkerRun {
            worker,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            unreported: Vec::new(),
            claim_ids: ClaimIds::default(),
            unanswered: None,
            claims_paused: false,
            ending: None,
        }
    }

    pub(super) async fn run<H, F>(
        &mut self,
        handler: &H,
        stop: &CancellationToken,
    ) -> Result<(), Error>
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

/// Waits for the answer to the claim. Without a claim, waits forever.
async fn claim_answer(claiming: &mut Option<Claiming<'_>>) -> Result<ClaimAnswer, Error> {
    match claiming {
        Some(claiming) => claiming.await,
        None => std::future::pending().await,
    }
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
