//! Reads jobs, attempts and counts.

use std::collections::{BTreeMap, HashMap};

use tokio_postgres::Row;
use windlass_core::{Job, JobId, QueueName, Timestamp};
use windlass_store::stored::LastAttempt;
use windlass_store::{Attempt, Counts, StoreError};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, bigint, params};
use crate::queue;
use crate::row::{self, ACTIVE_COLUMNS, FINISHED_COLUMNS, uuids};
use crate::session::Session;
use crate::settings::Settings;
use crate::unreadable::{Unreadable, skip_unreadable, split_unreadable};

/// A job, and the table that has it.
#[derive(Debug, Clone)]
pub(crate) struct StoredJob {
    pub(crate) job: Job,
    pub(crate) last: LastAttempt,
    pub(crate) table: &'static str,
}

/// The jobs that exist under some ids.
#[derive(Debug, Default)]
pub(crate) struct FoundJobs {
    pub(crate) jobs: HashMap<JobId, StoredJob>,
    /// The jobs that cannot be read, and why.
    pub(crate) unreadable: HashMap<JobId, String>,
}

impl FoundJobs {
    fn knows(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id) || self.unreadable.contains_key(&id)
    }

    fn add_unreadable(&mut self, unreadable: Vec<Unreadable>) {
        let unreadable = unreadable.into_iter().map(|job| (job.id, job.reason));
        self.unreadable.extend(unreadable);
    }
}

pub(crate) const JOBS: &str = "windlass.jobs";
pub(crate) const FINISHED: &str = "windlass.finished";
pub(crate) const DEAD: &str = "windlass.dead";

/// Finds the jobs with these ids in all tables. With `lock`, locks their rows.
pub(crate) async fn find(
    session: &mut Session,
    settings: &Settings,
    ids: &[JobId],
    lock: bool,
) -> DriverResult<FoundJobs> {
    // Each statement has its own snapshot, and a job may move between tables meanwhile: from `jobs`
    // to the others when it finishes, and back when it is revived. A job that is nowhere is looked
    // up in `jobs` once more.
    find_in(session, settings, ids, &[JOBS, DEAD, FINISHED, JOBS], lock).await
}

/// Finds the jobs with these ids in some tables, one after the other.
pub(crate) async fn find_in(
    session: &mut Session,
    settings: &Settings,
    ids: &[JobId],
    tables: &[&'static str],
    lock: bool,
) -> DriverResult<FoundJobs> {
    let mut found = FoundJobs::default();
    let mut missing = uuids(ids.iter().copied());
    missing.sort_unstable();
    missing.dedup();
    for &table in tables {
        if missing.is_empty() {
            break;
        }
        let columns = if table == JOBS {
            ACTIVE_COLUMNS
        } else {
            FINISHED_COLUMNS
        };
        let order = if lock { "order by id for update" } else { "" };
        let sql = format!("select {columns} from {table} where id = any ($1) {order}");
        let rows = if lock {
            session.query(&sql, params![missing]).await?
        } else {
            session.read(&sql, params![missing]).await?
        };
        if table == JOBS {
            let (jobs, unreadable) = active(session, settings, &rows).await?;
            found.add_unreadable(unreadable);
            for job in jobs {
                let last = LastAttempt::default();
                found.jobs.insert(job.id, StoredJob { job, last, table });
            }
        } else {
            let (jobs, unreadable) = split_unreadable(&rows, row::finished)?;
            found.add_unreadable(unreadable);
            for (job, last) in jobs {
                found.jobs.insert(job.id, StoredJob { job, last, table });
            }
        }
        missing.retain(|id| !found.knows(JobId::from_u128(id.as_u128())));
    }
    Ok(found)
}

/// Reads rows of active jobs. Returns the jobs, and those that cannot be read.
pub(crate) async fn active(
    session: &mut Session,
    settings: &Settings,
    rows: &[Row],
) -> DriverResult<(Vec<Job>, Vec<Unreadable>)> {
    let numbers = rows.iter().filter_map(row::settings_of);
    let known = settings.get(session, numbers).await?;
    split_unreadable(rows, |row| row::active(row, &known))
}

pub(crate) async fn get(
    session: &mut Session,
    settings: &Settings,
    jobs: &[JobId],
) -> DriverResult<Vec<Option<Job>>> {
    let mut found = find(session, settings, jobs, false).await?;
    if let [job] = jobs
        && let Some(reason) = found.unreadable.remove(job)
    {
        return Err(StoreError::Unreadable { job: *job, reason }.into());
    }
    Ok(jobs
        .iter()
        .map(|id| found.jobs.get(id).map(|found| found.job.clone()))
        .collect())
}

pub(crate) async fn attempts(
    session: &mut Session,
    settings: &Settings,
    job: JobId,
    limit: usize,
) -> DriverResult<Vec<Attempt>> {
    let found = find(session, settings, &[job], false).await?;
    let last = found
        .jobs
        .get(&job)
        .and_then(|found| found.last.row(&found.job));
    let rows = session
        .read(
            include_str!("../sql/select_attempts.sql"),
            params![row::uuid(job), bigint(limit as u64)],
        )
        .await?;
    let rows = skip_unreadable("attempt", &rows, attempt);
    Ok(last.into_iter().chain(rows).take(limit).collect())
}

pub(crate) fn attempt(found: &Row) -> DriverResult<Attempt> {
    let worker: Option<&str> = found.try_get(5)?;
    let worker = worker.map(str::parse).transpose();
    Ok(Attempt {
        attempt: row::count(found, 0)?,
        retry_count: row::count(found, 1)?,
        outcome: row::outcome(found.try_get(2)?)?,
        started_at: row::time(found, 3)?,
        finished_at: row::time(found, 4)?,
        worker: worker.map_err(|error| DriverError::damaged(format!("a worker: {error}")))?,
        error: found
            .try_get::<_, Option<&str>>(6)?
            .map(row::error)
            .transpose()?,
        detail: found
            .try_get::<_, Option<&str>>(7)?
            .map(row::value)
            .transpose()?,
    })
}

pub(crate) async fn counts(
    session: &mut Session,
    now: Timestamp,
) -> DriverResult<BTreeMap<QueueName, Counts>> {
    let mut counts: BTreeMap<QueueName, Counts> = BTreeMap::new();
    let sql = include_str!("../sql/count_jobs.sql");
    for found in session.read(sql, params![Time(now)]).await? {
        let Ok(queue) = row::name(&found, 0) else {
            continue; // a name that only a newer version allows
        };
        let queue_counts = Counts {
            scheduled: row::number(&found, 1)?,
            ready: row::number(&found, 2)?,
            retrying: row::number(&found, 3)?,
            running: row::number(&found, 4)?,
            succeeded: row::number(&found, 5)?,
            dead: row::number(&found, 6)?,
            cancelled: row::number(&found, 7)?,
            oldest_ready: row::optional_time(&found, 8).unwrap_or_default(),
            rate_until: None,
        };
        counts.insert(queue, queue_counts);
    }
    for (queue, limits) in queue::queues(session).await? {
        if let (Some(rate), Some(queue_counts)) = (limits.rate, counts.get_mut(&queue)) {
            queue_counts.rate_until = rate.used_up_until(starts(session, &queue).await?, now);
        }
    }
    Ok(counts)
}

/// Returns when jobs of a queue with a rate limit started, and how many, the oldest first.
async fn starts(session: &mut Session, queue: &QueueName) -> DriverResult<Vec<(Timestamp, u32)>> {
    let sql = "select at, count from windlass.starts where queue = $1 order by at";
    let rows = session.read(sql, params![queue.as_str()]).await?;
    let start = |found: &Row| {
        let count: i32 = found.try_get(1)?;
        Ok((row::time(found, 0)?, u32::try_from(count).unwrap_or(0)))
    };
    Ok(skip_unreadable("start", &rows, start))
}
