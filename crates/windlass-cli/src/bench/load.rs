//! Concurrent clients that call a store directly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::fairness::{Credit, Guards, Pool, Slots};
use windlass_core::{
    Concurrency, Job, JobId, Key, Kind, NewJob, Payload, QueueName, Random, Report, Start,
    Timestamp, WorkerName,
};
use windlass_store::{AttemptId, AttemptReport, Claim, ClaimRetry, Enqueue, Store, WorkerLocation};

use super::{StoreBench, lock};
use crate::clock;

/// The payload of every job.
pub(super) const PAYLOAD: &str =
    r#"{"to":"ann@example.org","subject":"Your order has shipped","order":1234567}"#;

/// Concurrent clients of one store.
#[derive(Clone)]
pub(super) struct StoreLoad {
    pub(super) store: Arc<dyn Store>,
    clients: u32,
    batch: u32,
    /// Makes the ids and claims of all clients distinct.
    serial: Arc<AtomicU64>,
    /// Jobs that are claimed and not settled yet.
    claimed: Arc<Mutex<Vec<Job>>>,
}

/// What each client does in a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAction {
    Enqueue(JobGroup),
    /// Claims jobs without settling them; see `settle_claimed`.
    Claim,
    ClaimAndSettle,
    Lifecycle,
}

/// What the enqueued jobs are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobGroup {
    /// The measured jobs, which are claimed first.
    Measured,
    /// Ready jobs that are claimed after all measured ones.
    Backlog,
    /// Jobs that are due in a year.
    Future,
    /// Measured jobs over this many concurrency keys with limit 1.
    Keyed(u64),
}

impl StoreLoad {
    pub(super) fn new(store: Arc<dyn Store>, bench: &StoreBench) -> Self {
        StoreLoad {
            store,
            clients: bench.clients,
            batch: bench.batch,
            serial: Arc::new(AtomicU64::new(1)),
            claimed: Arc::default(),
        }
    }

    /// Runs `action` on all clients until it handled `jobs` jobs; returns jobs per second.
    pub(super) async fn run(
        &self,
        action: ClientAction,
        jobs: u64,
        progress: &indicatif::ProgressBar,
    ) -> anyhow::Result<f64> {
        let left = Arc::new(AtomicU64::new(jobs));
        let started = clock::start();
        let clients: Vec<_> = (0..self.clients)
            .map(|number| {
                let (load, left, progress) = (self.clone(), Arc::clone(&left), progress.clone());
                tokio::spawn(async move { load.client(action, number, &left, &progress).await })
            })
            .collect();
        for client in clients {
            client.await??;
        }
        Ok(jobs as f64 / started.elapsed().as_secs_f64())
    }

    async fn client(
        &self,
        action: ClientAction,
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
            match action {
                ClientAction::Enqueue(group) => self.enqueue(count, group, &mut random).await?,
                ClientAction::Claim => {
                    let jobs = self.claim(count).await?;
                    lock(&self.claimed).extend(jobs);
                }
                ClientAction::ClaimAndSettle => self.claim_and_settle(count, &mut random).await?,
                ClientAction::Lifecycle => {
                    self.enqueue(count, JobGroup::Measured, &mut random).await?;
                    self.claim_and_settle(count, &mut random).await?;
                }
            }
            progress.inc(count.into());
        }
    }

    async fn enqueue(
        &self,
        count: u32,
        group: JobGroup,
        random: &mut Random,
    ) -> anyhow::Result<()> {
        let now = clock::now();
        let jobs: Result<Vec<Job>, _> =
            (0..count).map(|_| job(group, now, random.bits())).collect();
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
            worker_location: WorkerLocation::Local,
            lease: Duration::from_secs(3600),
            retry: ClaimRetry::default(),
        };
        Ok(self.store.claim(&claim, clock::now()).await?.jobs)
    }

    /// Claims and settles `count` jobs. Polls while there are none, because another client may have
    /// claimed the jobs that this one enqueued.
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

    /// Settles the jobs that `ClientAction::Claim` claimed.
    pub(super) async fn settle_claimed(&self) -> anyhow::Result<()> {
        let claimed = std::mem::take(&mut *lock(&self.claimed));
        for jobs in claimed.chunks(1000) {
            self.settle(jobs, &mut Random::new(0)).await?;
        }
        Ok(())
    }

    /// Settles attempts as succeeded.
    async fn settle(&self, jobs: &[Job], random: &mut Random) -> anyhow::Result<()> {
        let reports = jobs.iter().map(|job| AttemptReport {
            attempt_id: AttemptId {
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

fn job(group: JobGroup, now: Timestamp, random: u64) -> anyhow::Result<Job> {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    let new = NewJob {
        payload: Payload::from_stored(PAYLOAD),
        priority: if matches!(group, JobGroup::Measured | JobGroup::Keyed(_)) {
            1
        } else {
            0
        },
        concurrency: match group {
            JobGroup::Keyed(keys) => Some(Concurrency {
                key: Key::new(&format!("customer-{}", random % keys))?,
                limit: 1,
            }),
            _ => None,
        },
        start: if group == JobGroup::Future {
            Start::After(YEAR)
        } else {
            Start::Now
        },
        ..NewJob::new(Kind::new("bench")?)
    };
    Ok(new.into_job(JobId::new(now, random), now)?)
}
