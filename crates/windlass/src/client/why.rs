//! Why a job is not running: gathers the facts, and `windlass-core` says what they mean.

mod finished;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_core::retry::{RetryPolicy, WorkerRetry};
use windlass_core::{
    Job as StoredJob, JobId, Kind, Reason, State, Timestamp, WaitingContext, why_not_running,
};
use windlass_engine::{WorkerDescription, is_alive, lingering_jobs};
use windlass_store::{Filter, ListedState, Node, PAGE_MAX, Page};

pub use finished::FinishedDiagnosis;
pub use plan::RetryPlan;

use super::Client;
use super::search::Walk;
use crate::error::Error;

/// The most jobs that are read to find those that run, or come first.
const SCANNED_MAX: usize = 10_000;
/// The most steps of one walk over jobs: a step may find none.
const STEPS_MAX: usize = 200;

/// How workers claim jobs, as far as the store does not know it. The default is a worker that sets
/// nothing.
#[derive(Debug, Clone, Default)]
pub struct ClaimRules {
    /// The default policy of the workers, and their cap on attempts.
    pub retry: WorkerRetry,
    /// The policies of kinds.
    pub kinds: BTreeMap<Kind, Arc<RetryPolicy>>,
    /// Kinds that a worker takes only if it names them.
    pub reserved: BTreeSet<Kind>,
}

/// Why a job is not running.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    /// The job.
    pub job: StoredJob,
    /// When this was the case.
    pub at: Timestamp,
    /// The reasons, the most important one first. Never empty.
    pub reasons: Vec<Reason>,
    /// Why the job ended, and what reviving it would do. Only of a dead or cancelled job.
    pub finished: Option<FinishedDiagnosis>,
    /// The attempts that the job still has. Only of a waiting or running job.
    pub plan: Option<RetryPlan>,
}

impl Client {
    /// Explains why a job is not running, or why it is dead.
    ///
    /// ```
    /// # use windlass::{Client, Error, JobId};
    /// # async fn example(client: &Client, id: JobId) -> Result<(), Error> {
    /// for reason in client.why(id).await?.reasons {
    ///     println!("{reason}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn why(&self, id: JobId) -> Result<Diagnosis, Error> {
        self.why_under(id, &ClaimRules::default()).await
    }

    /// The same as [`Client::why`], for workers with these rules.
    pub async fn why_under(&self, id: JobId, rules: &ClaimRules) -> Result<Diagnosis, Error> {
        let (found, now) = (self.get(id).await?, self.now());
        let job = found.ok_or(Error::NotFound(id))?;
        let surroundings = if job.state() == State::Waiting {
            self.surroundings(&job, rules, now).await?
        } else {
            WaitingContext::default()
        };
        let finished = match job.state() {
            State::Dead(_) | State::Cancelled => {
                Some(self.diagnose_finished(&job, rules, now).await?)
            }
            State::Waiting | State::Running | State::Succeeded => None,
        };
        let plan = match job.state() {
            State::Waiting | State::Running => Some(self.plan(&job, rules, now).await?),
            State::Dead(_) | State::Cancelled | State::Succeeded => None,
        };
        Ok(Diagnosis {
            reasons: why_not_running(&job, &surroundings, now),
            job,
            at: now,
            finished,
            plan,
        })
    }

    async fn surroundings(
        &self,
        job: &StoredJob,
        rules: &ClaimRules,
        now: Timestamp,
    ) -> Result<WaitingContext, Error> {
        let queue = self.queue(&job.queue).await?;
        let mut workers = self.workers().await?;
        workers.retain(|worker| is_alive(worker, now));
        let serves = |worker: &&Node| {
            WorkerDescription::takes(&worker.about, &job.queue, &job.kind, &rules.reserved)
        };
        let lingers = |worker: &&Node| lingering_jobs(&worker.about).any(|id| id == job.id);
        let running = self.running_beside(job, now).await?;
        let by_queue = running
            .queue
            .limit_held("the limit of its queue", queue.settings.concurrency);
        let by_key = job.concurrency.as_ref().and_then(|concurrency| {
            let limit = format!("concurrency_key {}", concurrency.key);
            running.key.limit_held(&limit, Some(concurrency.limit))
        });
        let cap = queue.settings.claims.max_inflight_retries;
        let (ahead, ahead_or_more) = self.ahead(job, now).await?;
        let (paused_by, pause_reason) = match queue.paused {
            Some(pause) => (Some(pause.by), pause.reason),
            None => (None, None),
        };
        Ok(WaitingContext {
            paused_by,
            pause_reason,
            workers: u64::try_from(workers.iter().filter(serves).count()).unwrap_or(u64::MAX),
            limit_held: by_key.or(by_queue),
            retries_held: cap.filter(|cap| running.retries >= u64::from(*cap)),
            rate_until: queue.counts.rate_until,
            old_handler: workers
                .iter()
                .find(lingers)
                .map(|worker| worker.name.clone()),
            ahead,
            ahead_or_more,
        })
    }

    /// The jobs that run in the queue of a job, and in all queues with its key.
    async fn running_beside(
        &self,
        job: &StoredJob,
        now: Timestamp,
    ) -> Result<RunningBeside, Error> {
        let filter = Filter {
            queue: job.concurrency.is_none().then(|| job.queue.clone()),
            ..Filter::state(ListedState::Running)
        };
        let key = |job: &StoredJob| job.concurrency.as_ref().map(|limit| limit.key.clone());
        let mut beside = RunningBeside::default();
        self.walk(filter, None, now, |other| {
            if other.queue == job.queue {
                beside.queue.add(other);
                beside.retries += u64::from(other.failures > 0);
            }
            if key(other).is_some() && key(other) == key(job) {
                beside.key.add(other);
            }
        })
        .await?;
        Ok(beside)
    }

    /// How many ready jobs of its queue come before a job, and whether there may be more. Most of
    /// them are older, so the walk reads those first.
    async fn ahead(&self, job: &StoredJob, now: Timestamp) -> Result<(u64, bool), Error> {
        if !job.is_ready(now) {
            return Ok((0, false));
        }
        let filter = Filter {
            queue: Some(job.queue.clone()),
            ..Filter::state(ListedState::Ready)
        };
        let mut first = 0;
        let mut count =
            |other: &StoredJob| first += u64::from(other.claim_order() < job.claim_order());
        let saw_older = self
            .walk(filter.clone(), Some(job.id), now, &mut count)
            .await?;
        let newer = Filter {
            created_from: Some(job.created_at),
            ..filter
        };
        let count_newer = |other: &StoredJob| {
            if other.id > job.id {
                count(other);
            }
        };
        let saw_newer = self.walk(newer, None, now, count_newer).await?;
        Ok((first, !saw_older || !saw_newer))
    }

    /// Shows the jobs of a filter behind a cursor, a bounded number of them. Returns whether it
    /// showed all.
    async fn walk(
        &self,
        filter: Filter,
        after: Option<JobId>,
        now: Timestamp,
        mut show: impl FnMut(&StoredJob),
    ) -> Result<bool, Error> {
        let mut walk = Walk::new(filter, Page::after(after, PAGE_MAX));
        let (mut scanned, mut steps) = (0, 0);
        while !walk.is_over() && scanned < SCANNED_MAX && steps < STEPS_MAX {
            let jobs = walk.step(self.engine.store(), PAGE_MAX, now).await?.jobs;
            jobs.iter().for_each(&mut show);
            scanned += jobs.len();
            steps += 1;
        }
        Ok(walk.saw_all())
    }
}

/// Jobs that run under the same limit.
#[derive(Default)]
struct LimitUse {
    count: u64,
    /// One of them, and the end of its lease.
    holder: Option<(JobId, Timestamp)>,
}

impl LimitUse {
    fn add(&mut self, job: &StoredJob) {
        self.count += 1;
        let holder = job.lease().map(|lease| (job.id, lease.until));
        self.holder = self.holder.or(holder);
    }

    fn limit_held(&self, limit: &str, most: Option<u32>) -> Option<(String, JobId, Timestamp)> {
        most.filter(|most| self.count >= u64::from(*most))?;
        let (job, until) = self.holder?;
        Some((limit.to_owned(), job, until))
    }
}

/// Running jobs that may hold another one back.
#[derive(Default)]
struct RunningBeside {
    queue: LimitUse,
    key: LimitUse,
    retries: u64,
}
