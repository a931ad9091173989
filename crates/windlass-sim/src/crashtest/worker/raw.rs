//! A remote worker that sends its own requests. It repeats what has no answer, logs every outcome
//! that the server accepted, and now and then reports an attempt that is not its own any longer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use windlass_client::Client;
use windlass_client::api::{
    AttemptOutcome, BoundedInt, Claim, DurationText, ErrorText, Job, List, OutcomeWord, Outcomes,
    Renewal, RenewedLease, SettleStatus, WeightedQueue,
};
use windlass_core::{JobId, Outcome, Random, WorkerName};

use super::super::error::{CrashTestError, During as _};
use super::super::record::{Log, What};
use super::super::work::{self, Ended, KIND, LEASE, QUEUE, Work};
use super::{GRACE, RETRY_WAIT, SLOTS, WorkerProcess, client, say_ready};

/// How often an outcome is sent until the worker gives up.
const REPORTS_MAX: usize = 20;
/// One of this many attempts after the first also reports the attempt before it.
const STALE_REPORT_EVERY: u64 = 10;

struct Raw {
    client: Client,
    name: WorkerName,
    log: Arc<Log>,
}

pub(super) async fn run(
    server: &str,
    process: &WorkerProcess,
    log: &Arc<Log>,
    stop: CancellationToken,
) -> Result<(), CrashTestError> {
    let raw = Arc::new(Raw {
        client: client(server)?,
        name: WorkerName::new(&process.name).during("name a worker")?,
        log: Arc::clone(log),
    });
    say_ready();
    let mut random = Random::new(process.seed);
    let (starts, running) = mpsc::unbounded_channel(); // bounded by the slots
    let renewing = tokio::spawn(Arc::clone(&raw).renew(running));
    let mut attempts = JoinSet::new();
    let mut claims = 0_u64;
    while !stop.is_cancelled() {
        while attempts.try_join_next().is_some() {}
        let free = SLOTS.saturating_sub(u32::try_from(attempts.len()).unwrap_or(SLOTS));
        if free == 0 {
            attempts.join_next().await;
            continue;
        }
        claims += 1;
        let claim = raw.claim(format!("{}-{claims}", process.name), free)?;
        let Some(jobs) = raw.claimed(&claim, &stop).await else {
            continue;
        };
        for job in jobs {
            let reports_stale = job.attempt > 1 && random.bits().is_multiple_of(STALE_REPORT_EVERY);
            let (raw, starts) = (Arc::clone(&raw), starts.clone());
            attempts.spawn(async move { raw.attempt(job, reports_stale, &starts).await });
        }
    }
    let ended = async { while attempts.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, ended).await; // their leases expire otherwise
    renewing.abort();
    Ok(())
}

impl Raw {
    fn claim(&self, id: String, limit: u32) -> Result<Claim, CrashTestError> {
        Ok(Claim {
            queues: Some(List(vec![WeightedQueue::Name(
                QUEUE.parse().during("name a queue")?,
            )])),
            kinds: Some(List(vec![KIND.parse().during("name a kind")?])),
            limit: BoundedInt::new(limit.into()),
            lease: Some(DurationText(LEASE)),
            wait: Some(DurationText(Duration::from_secs(1))),
            worker: Some(self.name.clone()),
            claim_id: Some(id),
            ..Claim::default()
        })
    }

    /// Repeats the claim until it has an answer: it may have got jobs already.
    async fn claimed(&self, claim: &Claim, stop: &CancellationToken) -> Option<Vec<Job>> {
        loop {
            match self.client.claim(claim).await {
                Ok(answer) => return Some(answer.data),
                Err(error) => {
                    tracing::debug!(%error, "the claim failed; repeating it");
                    let waited = tokio::time::sleep(RETRY_WAIT);
                    stop.run_until_cancelled(waited).await?;
                }
            }
        }
    }

    async fn attempt(
        &self,
        job: Job,
        reports_stale: bool,
        starts: &mpsc::UnboundedSender<Running>,
    ) {
        let attempt = (job.id, job.attempt);
        let Ok(log) = self.log.of_attempt(job.id, job.attempt) else {
            return; // without its log, an effect must not happen
        };
        let _ = starts.send(Running::Starts(attempt)); // it ends only at the end
        let payload = job.payload.as_ref();
        let payload = payload.map_or("null", |payload| payload.0.as_str());
        let ended = match serde_json::from_str::<Work>(payload) {
            Ok(work) => work::run(&work, attempt, payload, &log).await,
            Err(_) => Ended::Fatally,
        };
        if reports_stale {
            // The server must refuse it, or has it already.
            self.report((job.id, job.attempt - 1), &Ended::Well).await;
        }
        self.report(attempt, &ended).await;
        let _ = starts.send(Running::Ends(attempt));
    }

    /// Reports the end of an attempt until the server answers. Logs what it accepted.
    async fn report(&self, (id, attempt): (JobId, u32), ended: &Ended) {
        let (word, outcome) = match ended {
            Ended::Well => (OutcomeWord::Succeeded, Outcome::Succeeded),
            Ended::Failed | Ended::Fatally => (OutcomeWord::Failed, Outcome::Failed),
        };
        let has_failed = outcome == Outcome::Failed;
        let report = AttemptOutcome {
            id: Some(id),
            attempt: BoundedInt::new(attempt.into()),
            outcome: Some(word),
            error: has_failed.then(|| ErrorText::Message("it was asked to fail".to_owned())),
            unrecoverable: matches!(ended, Ended::Fatally).then_some(true),
            ..AttemptOutcome::default()
        };
        let outcomes = Outcomes {
            worker: Some(self.name.clone()),
            outcomes: Some(List(vec![report])),
        };
        for _ in 0..REPORTS_MAX {
            match self.client.settle(&outcomes).await {
                Ok(answer) => {
                    let settled = answer.data.first().map(|settled| settled.status);
                    if matches!(settled, Some(SettleStatus::Done | SettleStatus::Repeated)) {
                        let acknowledged = What::Acknowledged {
                            job: id,
                            attempt,
                            outcome,
                        };
                        let _ = self.log.write(acknowledged); // one end less to check
                    }
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "the report failed; repeating it");
                    tokio::time::sleep(RETRY_WAIT).await;
                }
            }
        }
    }

    /// Renews the leases of all running attempts after a third of their length.
    async fn renew(self: Arc<Self>, mut changes: mpsc::UnboundedReceiver<Running>) {
        let mut running = BTreeSet::new();
        let mut ticks = tokio::time::interval(LEASE / 3);
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Some(Running::Starts(attempt)) => drop(running.insert(attempt)),
                    Some(Running::Ends(attempt)) => drop(running.remove(&attempt)),
                    None => return,
                },
                _ = ticks.tick() => {
                    let lease = |(id, attempt): &(JobId, u32)| RenewedLease {
                        id: Some(*id),
                        attempt: BoundedInt::new((*attempt).into()),
                        ..RenewedLease::default()
                    };
                    let renewal = Renewal {
                        worker: Some(self.name.clone()),
                        lease: Some(DurationText(LEASE)),
                        leases: Some(List(running.iter().map(lease).collect())),
                        ..Renewal::default()
                    };
                    let renewed = self.client.renew(&renewal);
                    // A lost lease shows when the attempt is reported.
                    let _ = tokio::time::timeout(LEASE, renewed).await;
                }
            }
        }
    }
}

enum Running {
    Starts((JobId, u32)),
    Ends((JobId, u32)),
}
