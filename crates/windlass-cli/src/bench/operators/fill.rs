//! Fills a store with dead jobs of many causes.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_core::fairness::{Credit, Guards, Pool, Slots};
use windlass_core::retry::AttemptLimit;
use windlass_core::{
    AttemptError, Failure, Job, JobId, Kind, NewJob, Payload, QueueName, Random, Report, Timestamp,
    WorkerName,
};
use windlass_store::{
    AttemptId, AttemptReport, Claim, ClaimRetry, Enqueue, Kinds, Store, WorkerLocation,
};

use crate::bench::progress;
use crate::clock;

/// The most failure groups: 10 queues with 10 kinds of jobs, each with 10 causes.
pub(in crate::bench) const GROUPS: u64 = 1000;
/// The number of jobs in each call of the store.
const BATCH: u64 = 10_000;
/// One of this many jobs is dead for another reason.
const EXHAUSTED_ONE_IN: u64 = 100;

/// The queues of the jobs.
pub(in crate::bench) const QUEUES: [&str; 10] = [
    "mail", "billing", "search", "media", "reports", "sync", "export", "import", "alerts", "audit",
];
/// The kinds of jobs in each queue.
pub(super) const KINDS: [&str; 10] = [
    "send", "charge", "index", "resize", "render", "fetch", "upload", "parse", "notify", "record",
];
/// Causes differ in this word and in the queue. Numbers in a text do not make another cause.
const PROBLEMS: [&str; 10] = [
    "refused",
    "reset",
    "expired",
    "missing",
    "locked",
    "corrupt",
    "rejected",
    "unknown",
    "forbidden",
    "exceeded",
];

/// Stores dead jobs of at most `groups` causes. Returns the number of an old job, and the id of a job
/// that is older than nine tenths of all.
pub(in crate::bench) async fn dead_jobs(
    store: &dyn Store,
    jobs: u64,
    groups: u64,
) -> anyhow::Result<(u64, JobId)> {
    let bar = progress("dead jobs", jobs);
    let deep_number = jobs / 10;
    let (mut random, mut deep, mut number) = (Random::new(1), None, 0);
    while number < jobs {
        let end = jobs.min(number + BATCH);
        let now = clock::now();
        let batch: Vec<Job> = (number..end)
            .map(|number| job(number, groups, now, random.bits()))
            .collect::<Result<_, _>>()?;
        if (number..end).contains(&deep_number) {
            let mut ids: Vec<JobId> = batch.iter().map(|job| job.id).collect();
            ids.sort_unstable(); // ids of one instant are in random order
            let id = ids.get(usize::try_from(deep_number - number)?).copied();
            deep = id.map(|id| (number, id));
        }
        store.enqueue(Enqueue::all(batch), now).await?;
        fail_all(store, u128::from(number) << 8, groups, &mut random).await?;
        bar.inc(end - number);
        number = end;
    }
    bar.finish_and_clear();
    deep.ok_or_else(|| anyhow::anyhow!("there are no jobs"))
}

fn job(number: u64, groups: u64, now: Timestamp, random: u64) -> anyhow::Result<Job> {
    let name = |names: &[&'static str; 10], digit: u64| {
        let index = usize::try_from(number % groups / digit % 10).unwrap_or_default();
        names.get(index).copied().unwrap_or_default()
    };
    let payload = format!(
        r#"{{"order":{number},"customer":{{"id":{},"email":"ann@example.org"}},"total":"19.90"}}"#,
        number / 10
    );
    let new = NewJob {
        payload: Payload::from_stored(&payload),
        queue: QueueName::new(name(&QUEUES, 1))?,
        max_attempts: number
            .is_multiple_of(EXHAUSTED_ONE_IN)
            .then(|| AttemptLimit::from_max_attempts(1))
            .transpose()?
            .flatten(),
        ..NewJob::new(Kind::new(name(&KINDS, 10))?)
    };
    Ok(new.into_job(JobId::new(now, random), now)?)
}

/// Runs all waiting jobs; each fails for good.
async fn fail_all(
    store: &dyn Store,
    claim_id: u128,
    groups: u64,
    random: &mut Random,
) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for (index, queue) in (0..).zip(QUEUES) {
        let limit = u32::try_from(BATCH)?;
        let slots = Slots {
            total: limit,
            free: limit,
            retries_running: 0,
        };
        let claim = Claim {
            id: claim_id + index,
            queue: QueueName::new(queue)?,
            kinds: Kinds::ALL,
            jobs: None,
            except: BTreeSet::new(),
            plan: Guards::default().plan(Pool::Main, slots, Credit::default()),
            worker: WorkerName::new("bench")?,
            worker_location: WorkerLocation::Local,
            lease: Duration::from_secs(3600),
            retry: ClaimRetry::default(),
        };
        let claimed = store.claim(&claim, clock::now()).await?;
        let jobs = claimed.jobs.iter();
        reports.extend(jobs.map(|job| report(job, groups, random.bits())));
    }
    store.settle(reports, clock::now()).await?;
    Ok(())
}

fn report(job: &Job, groups: u64, random: u64) -> AttemptReport {
    let payload: serde_json::Value = job.payload.decode().unwrap_or_default();
    let number = payload.get("order").and_then(|order| order.as_u64());
    let number = number.unwrap_or_default();
    let index = usize::try_from(number % groups / 100).unwrap_or_default();
    let problem = PROBLEMS.get(index).copied().unwrap_or_default();
    let queue = &job.queue;
    let error = format!("order {number}: the connection to the {queue} service was {problem}");
    let error = AttemptError::new(error);
    let failure = match job.max_attempts {
        Some(_) => Failure::retryable(error),
        None => Failure::unrecoverable(error),
    };
    AttemptReport {
        attempt_id: AttemptId {
            job: job.id,
            attempt: job.attempt,
        },
        report: Report::Failed(failure),
        random,
        detail: None,
    }
}
