//! Builders for test data: a case sets only what matters to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass_core::fairness::{Credit, Guards, Pool, Ratio, Slots};
use windlass_core::retry::{Cap, Preset, RetryPolicy, WorkerRetry};
use windlass_core::{
    AttemptError, Edit, Failure, Job, JobId, Key, Kind, NewJob, OnDuplicate, Payload, QueueName,
    Report, State, Timestamp, Unique, WorkerName,
};

use crate::{
    AttemptId, AttemptReport, Change, Changed, Claim, ClaimRetry, Enqueue, Enqueued, Kinds,
    Settled, Store, StoreError, WorkerLocation, Wrapper,
};

/// A freshly opened store.
pub type Opened = Arc<dyn Store>;

/// The store as the engine uses it, with checks of batch sizes.
pub fn bounded(store: Opened) -> Opened {
    Arc::new(Bounded(store))
}

#[derive(Debug)]
struct Bounded(Opened);

impl Wrapper for Bounded {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    async fn around<T: Send>(
        &self,
        _verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        call.await
    }
}

/// Edits one waiting job.
pub async fn edit_one(store: &Opened, id: JobId, edit: &Edit, now: Timestamp) -> Changed {
    let edit = Change::Edit(edit.clone());
    let mut changed = store.change(&[id], &edit, None, now).await.unwrap();
    changed.remove(0)
}

/// This many seconds after the start of the case.
pub fn at(seconds: u64) -> Timestamp {
    at_micros(seconds * 1_000_000)
}

/// This many microseconds after the start of the case.
pub fn at_micros(micros: u64) -> Timestamp {
    let start = Timestamp::from_micros(1_767_225_600_000_000).unwrap();
    start.saturating_add(Duration::from_micros(micros))
}

/// Job number `number`, enqueued at the start.
pub fn job(number: u64) -> Job {
    let id = JobId::new(at_micros(number), number);
    let new = NewJob {
        payload: payload(&format!("{{\"number\":{number}}}")),
        ..NewJob::new(kind("a"))
    };
    new.into_job(id, at(0)).unwrap()
}

pub fn jobs(numbers: std::ops::Range<u64>) -> Vec<Job> {
    numbers.map(job).collect()
}

pub fn id(number: u64) -> JobId {
    job(number).id
}

pub fn kind(text: &str) -> Kind {
    Kind::new(text).unwrap()
}

pub fn queue(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub fn payload(text: &str) -> Payload {
    Payload::parse(text, 1_000_000).unwrap()
}

pub fn unique(text: &str) -> Option<Unique> {
    Some(Unique {
        key: key(text),
        unique_for: None,
        on_duplicate: OnDuplicate::Keep,
    })
}

/// The retry settings of an SDK worker with this policy.
pub fn worker(policy: RetryPolicy) -> ClaimRetry {
    ClaimRetry {
        worker: WorkerRetry {
            policy: Some(Arc::new(policy)),
            cap: Cap::FromPolicy,
        },
        ..ClaimRetry::default()
    }
}

/// Guards that only set the ratio; `None` claims strictly by priority.
pub fn ratio(ratio: Option<f64>) -> Guards {
    Guards {
        retry_fetch_ratio: ratio.map(|ratio| Ratio::new(ratio).unwrap()),
        fresh_reserve: Some(0),
        ..Guards::default()
    }
}

/// A claim of up to `limit` jobs of the default queue under leases of 30 s, by a worker with the
/// policy `patient`.
pub fn claim(limit: u32) -> Claim {
    static CLAIMS: AtomicU64 = AtomicU64::new(1);
    let slots = Slots {
        total: limit,
        free: limit,
        retries_running: 0,
    };
    Claim {
        id: CLAIMS.fetch_add(1, Ordering::Relaxed).into(),
        queue: QueueName::default(),
        kinds: Kinds::ALL,
        jobs: None,
        except: std::collections::BTreeSet::new(),
        plan: ratio(Some(0.2)).plan(Pool::Main, slots, Credit::default()),
        worker: WorkerName::new("w1").unwrap(),
        worker_location: WorkerLocation::Local,
        lease: Duration::from_secs(30),
        retry: worker(Preset::Patient.policy()),
    }
}

pub fn failed() -> Report {
    Report::Failed(Failure::retryable(AttemptError::new("boom")))
}

pub fn report(job: &Job, report: Report) -> AttemptReport {
    AttemptReport {
        attempt_id: attempt_of(job),
        report,
        random: 0,
        detail: None,
    }
}

pub fn attempt_of(job: &Job) -> AttemptId {
    AttemptId {
        job: job.id,
        attempt: job.attempt,
    }
}

/// Stores jobs that must all be new.
pub async fn put(store: &Opened, jobs: Vec<Job>) {
    let expected: Vec<Enqueued> = jobs.iter().map(|job| Enqueued::Created(job.id)).collect();
    let enqueued = store.enqueue(Enqueue::all(jobs), at(0)).await.unwrap();
    assert_eq!(enqueued, expected);
}

pub async fn enqueue_one(store: &Opened, job: Job, now: Timestamp) -> Result<Enqueued, StoreError> {
    let mut enqueued = store.enqueue(Enqueue::all(vec![job]), now).await?;
    Ok(enqueued.pop().unwrap())
}

/// Claims up to `limit` jobs.
pub async fn take(store: &Opened, limit: u32, now: Timestamp) -> Vec<Job> {
    store.claim(&claim(limit), now).await.unwrap().jobs
}

/// Claims one job, which must be ready.
pub async fn take_one(store: &Opened, now: Timestamp) -> Job {
    let mut jobs = take(store, 1, now).await;
    jobs.pop().expect("a job is ready")
}

pub async fn settle_one(store: &Opened, job: &Job, end: Report, now: Timestamp) -> Settled {
    let mut settled = store.settle(vec![report(job, end)], now).await.unwrap();
    settled.pop().unwrap()
}

pub async fn find(store: &Opened, id: JobId) -> Job {
    let mut found = store.get(&[id]).await.unwrap();
    found.pop().flatten().expect("the job exists")
}

pub async fn state_of(store: &Opened, id: JobId) -> State {
    find(store, id).await.state()
}

/// Makes these jobs retries that are due at `at(1)`: each failed once under `patient`.
pub async fn fail_once(store: &Opened, numbers: std::ops::Range<u64>) {
    let claim = Claim {
        jobs: Some(numbers.clone().map(id).collect()),
        ..claim(10_000)
    };
    let running = store.claim(&claim, at(0)).await.unwrap().jobs;
    assert_eq!(running.len() as u64, numbers.end - numbers.start);
    let reports = running.iter().map(|job| report(job, failed())).collect();
    store.settle(reports, at(0)).await.unwrap();
}
