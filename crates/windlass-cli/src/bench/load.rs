//! Concurrent clients of a store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use windlass_core::fairness::{Credit, Guards, Pool, Slots};
use windlass_core::{
    Job, JobId, Kind, NewJob, Payload, QueueName, Random, Report, Start, Timestamp, WorkerName,
};
use windlass_store::{AttemptId, AttemptReport, Claim, ClaimRetry, Enqueue, Store, WorkerPlace};

use super::StoreBench;
use crate::clock;

/// What every job of the benchmark carries.
pub(super) const PAYLOAD: &str =
    r#"{"to":"ann@example.org","subject":"Your order has shipped","order":1234567}"#;

/// Clients that share a store and a number of jobs still to do.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) store: Arc<dyn Store>,
    clients: u32,
    batch: u32,
    /// Makes ids and claims of all clients distinct.
    serial: Arc<AtomicU64>,
    /// What was claimed and not settled.
    claimed: Arc<Mutex<Vec<Job>>>,
}

/// What a client does again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Enqueue(Kinds),
    /// Claims, and leaves what it claimed to be settled later.
    Claim,
    ClaimAndSettle,
    Lifecycle,
}

/// Which jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds {
    /// Those that are measured: they come first.
    Measured,
    /// Ready, and behind all that are measured.
    Backlog,
    /// In a year.
    Future,
}

impl Load {
    pub(super) fn new(store: Arc<dyn Store>, bench: &StoreBench) -> Self {
        Load {
            store,
            clients: bench.clients,
            batch: bench.batch,
            serial: Arc::new(AtomicU64::new(1)),
            claimed: Arc::default(),
        }
    }

    /// Lets all clients do `step` until `jobs` are through; jobs per second.
    pub(super) async fn run(
        &self,
        step: Step,
        jobs: u64,
        progress: &indicatif::ProgressBar,
    ) -> anyhow::Result<f64> {
        let left = Arc::new(AtomicU64::new(jobs));
        let started = clock::start();
        let clients: Vec<_> = (0..self.clients)
            .map(|number| {
                let (load, left, progress) = (self.clone(), Arc::clone(&left), progress.clone());
                tokio::spawn(async move { load.client(step, number, &left, &progress).await })
            })
            .collect();
        for client in clients {
            client.await??;
        }
        Ok(jobs as f64 / started.elapsed().as_secs_f64())
    }

    async fn client(
        &self,
        step: Step,
        number: u32,
        left: &AtomicU64,
        progress: &indicatif::ProgressBar,
    ) -> anyhow::Result<()> {
        let mut random =
            Random::new(self.serial.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(number));
        loop {
            let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                (left > 0).then(|| left.saturating_sub(self.batch.into()))
            });
            let Ok(before) = before else { return Ok(()) };
            let count = u32::try_from(before.min(self.batch.into()))?;
            match step {
                Step::Enqueue(kinds) => self.enqueue(count, kinds, &mut random).await?,
                Step::Claim => {
                    let jobs = self.claim(count).await?;
                    self.claimed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend(jobs);
                }
                Step::ClaimAndSettle => self.claim_and_settle(count, &mut random).await?,
                Step::Lifecycle => {
                    self.enqueue(count, Kinds::Measured, &mut random).await?;
                    self.claim_and_settle(count, &mut random).await?;
                }
            }
            progress.inc(count.into());
        }
    }

    async fn enqueue(&self, count: u32, kinds: Kinds, random: &mut Random) -> anyhow::Result<()> {
        let now = clock::now();
        let jobs: Result<Vec<Job>, _> =
            (0..count).map(|_| job(kinds, now, random.bits())).collect();
        self.store.enqueue(Enqueue::all(jobs?), now).await?;
        Ok(())
    }

    async fn claim(&self, count: u32) -> anyhow::Result<Vec<Job>> {
        let slots = Slots {
            total: count,
            free: count,
            retries_running: 0,
        };
        let claim = Claim {
            id: self.serial.fetch_add(1, Ordering::Relaxed).into(),
            queue: QueueName::default(),
            kinds: windlass_store::Kinds::ALL,
            jobs: None,
            except: std::collections::BTreeSet::new(),
            plan: Guards::default().plan(Pool::Main, slots, Credit::default()),
            worker: WorkerName::new("bench")?,
            place: WorkerPlace::Here,
            lease: Duration::from_secs(3600),
            retry: ClaimRetry::default(),
        };
        Ok(self.store.claim(&claim, clock::now()).await?.jobs)
    }

    /// Claims until `count` jobs were settled: another client may have taken those that this one enqueued.
    async fn claim_and_settle(&self, count: u32, random: &mut Random) -> anyhow::Result<()> {
        let mut settled = 0;
        while settled < count {
            let jobs = self.claim(count - settled).await?;
            if jobs.is_empty() {
                tokio::task::yield_now().await;
                continue;
            }
            settled += u32::try_from(jobs.len())?;
            self.settle(&jobs, random).await?;
        }
        Ok(())
    }

    /// Ends what was claimed and not settled.
    pub(super) async fn settle_claimed(&self) -> anyhow::Result<()> {
        let claimed =
            std::mem::take(&mut *self.claimed.lock().unwrap_or_else(PoisonError::into_inner));
        for jobs in claimed.chunks(1000) {
            self.settle(jobs, &mut Random::new(0)).await?;
        }
        Ok(())
    }

    /// Ends attempts as succeeded.
    async fn settle(&self, jobs: &[Job], random: &mut Random) -> anyhow::Result<()> {
        let reports = jobs.iter().map(|job| AttemptReport {
            of: AttemptId {
                job: job.id,
                attempt: job.attempt,
            },
            report: Report::Succeeded(None),
            random: random.bits(),
            detail: None,
        });
        self.store.settle(reports.collect(), clock::now()).await?;
        Ok(())
    }
}

fn job(kinds: Kinds, now: Timestamp, random: u64) -> anyhow::Result<Job> {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    let new = NewJob {
        payload: Payload::from_stored(PAYLOAD),
        priority: if kinds == Kinds::Measured { 1 } else { 0 },
        start: if kinds == Kinds::Future {
            Start::After(YEAR)
        } else {
            Start::Now
        },
        ..NewJob::new(Kind::new("bench")?)
    };
    Ok(new.into_job(JobId::new(now, random), now)?)
}
