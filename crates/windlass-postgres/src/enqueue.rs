//! Enqueues jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use windlass_core::{Edit, Job, JobId, OnDuplicate, QueueName, State, Timestamp};
use windlass_store::{EnqueueMode, Enqueued, StoreError};

use crate::concurrency_key;
use crate::error::{DriverError, DriverResult};
use crate::param::{params, unsigned};
use crate::read::find;
use crate::row;
use crate::session::Session;
use crate::settings::Settings;
use crate::statement::Sql;
use crate::unique_key;
use crate::write::{Columns, InsertMode, JobOptions};

/// Stores jobs. A batch without unique keys for queues without a `max_depth` is one statement.
pub(crate) async fn enqueue(
    session: &mut Session,
    settings: &Settings,
    jobs: &[Job],
    mode: EnqueueMode,
    now: Timestamp,
) -> DriverResult<Vec<Enqueued>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    if jobs.iter().all(|job| job.unique.is_none())
        && let Some(stored) = insert(session, jobs, now).await?
    {
        return answers(session, settings, jobs, stored).await;
    }
    enqueue_with_checks(session, settings, jobs, mode, now).await
}

/// Stores jobs whose ids are free. Returns their ids, or `None` and stores nothing if a queue has a
/// `max_depth` or an id belongs to a finished job.
async fn insert(
    session: &mut Session,
    jobs: &[Job],
    now: Timestamp,
) -> DriverResult<Option<HashSet<JobId>>> {
    let columns = Columns::of(jobs, now);
    let sql = Sql::Kept(
        "select * from windlass.enqueue_v1(\
        $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
    );
    let rows = match columns
        .insert(session, sql, InsertMode::OwnTransaction)
        .await
    {
        Err(error) if error.is_failed_check() => return Ok(None),
        other => other?,
    };
    let mut stored = HashSet::with_capacity(rows.len());
    for found in &rows {
        if found.try_get::<_, bool>(0)? {
            return Ok(None);
        }
        if found.try_get::<_, Option<uuid::Uuid>>(1)?.is_some() {
            stored.insert(row::id(found, 1)?);
        }
    }
    Ok(Some(stored))
}

/// Returns the answer for each job: the first with a new id is created, all others are duplicates.
async fn answers(
    session: &mut Session,
    settings: &Settings,
    jobs: &[Job],
    mut stored: HashSet<JobId>,
) -> DriverResult<Vec<Enqueued>> {
    let mut answers = Vec::with_capacity(jobs.len());
    let mut known: HashMap<JobId, Job> = HashMap::new();
    let mut others = Vec::new();
    for (queue_key, job) in jobs.iter().enumerate() {
        if stored.remove(&job.id) {
            known.insert(job.id, job.clone());
            answers.push(Enqueued::Created(job.id));
        } else {
            others.push(queue_key);
            answers.push(duplicate(known.get(&job.id), job));
        }
    }
    let unknown: Vec<JobId> = others
        .iter()
        .filter_map(|queue_key| jobs.get(*queue_key))
        .filter(|job| !known.contains_key(&job.id))
        .map(|job| job.id)
        .collect();
    if unknown.is_empty() {
        return Ok(answers);
    }
    let found = find(session, settings, &unknown, false).await?;
    for queue_key in others {
        if let (Some(job), Some(answer)) = (jobs.get(queue_key), answers.get_mut(queue_key))
            && let Some(first) = found.jobs.get(&job.id)
        {
            *answer = duplicate(Some(&first.job), job);
        }
    }
    Ok(answers)
}

fn duplicate(first: Option<&Job>, second: &Job) -> Enqueued {
    Enqueued::Duplicate {
        id: first.map_or(second.id, |first| first.id),
        payload_differs: first.is_some_and(|first| first.payload != second.payload),
    }
}

/// Turns the answers of a repeated enqueue into those of the first try: a job that exists under its
/// own id was created by the first try.
pub(crate) fn as_first_time(repeated: Vec<Enqueued>, jobs: &[Job]) -> Vec<Enqueued> {
    let mut seen_ids = HashSet::new();
    let answers = repeated.into_iter().zip(jobs);
    answers
        .map(|(answer, job)| match answer {
            Enqueued::Duplicate {
                id,
                payload_differs: false,
            } if id == job.id && seen_ids.insert(id) => Enqueued::Created(id),
            other => other,
        })
        .collect()
}

/// Stores jobs one after the other, with checks of unique keys and queue depths.
///
/// Locks the queues, keys and jobs that exist, and decides on that. A key or id that does not exist
/// cannot be locked: if another transaction takes it meanwhile, that is a collision, and the whole
/// batch runs again.
async fn enqueue_with_checks(
    session: &mut Session,
    settings: &Settings,
    jobs: &[Job],
    mode: EnqueueMode,
    now: Timestamp,
) -> DriverResult<Vec<Enqueued>> {
    let mut state = BatchState::load(session, settings, jobs, now).await?;
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        let answer = state.decide(job);
        if let (Enqueued::QueueFull { queue, max_depth }, EnqueueMode::AllOrNone) = (&answer, mode)
        {
            let (queue, max_depth) = (queue.clone(), *max_depth);
            session.roll_back().await?;
            return Err(DriverError::Refused(StoreError::QueueFull {
                queue,
                max_depth,
            }));
        }
        answers.push(answer);
    }
    let new: Vec<&Job> = state
        .new
        .iter()
        .filter_map(|id| state.jobs.get(id))
        .collect();
    let missed = unique_key::acquire(session, &new, now).await?;
    let columns = Columns::of(new.iter().copied(), now);
    let stored = if columns.is_empty() {
        Vec::new()
    } else {
        let sql = include_str!("../sql/insert_absent_jobs.sql");
        columns
            .insert(session, sql, InsertMode::WithinTransaction)
            .await?
    };
    // Another transaction took a key or an id that was free when this one looked: start again.
    if !missed.is_empty() || stored.len() != new.len() {
        return Err(DriverError::Collision);
    }
    let replaced = || state.replaced.iter().filter_map(|id| state.jobs.get(id));
    concurrency_key::before_change(session, replaced())?;
    Columns::of(replaced(), now).update(session, JobOptions::Keep)?;
    // Rare, so the scan for missed jobs finds the unparked ones.
    concurrency_key::unpark_and_commit(session, concurrency_key::keys(replaced()), now).await?;
    Ok(answers)
}

/// For each queue with a `max_depth`: how many more waiting jobs it takes, and its `max_depth`. The
/// queues are locked, so no other transaction can fill them meanwhile.
pub(crate) type FreeDepths = BTreeMap<QueueName, (u64, u64)>;

/// Locks those of these queues that have a `max_depth`, and returns their free depths.
pub(crate) async fn free_depths(
    session: &mut Session,
    queues: impl IntoIterator<Item = &str>,
) -> DriverResult<FreeDepths> {
    let names: Vec<&str> = queues.into_iter().collect();
    let depths = session
        .query(include_str!("../sql/lock_depths.sql"), params![names])
        .await?;
    let mut bounds: BTreeMap<String, i64> = BTreeMap::new();
    for depth in &depths {
        bounds.insert(depth.try_get(0)?, depth.try_get(1)?);
    }
    let mut free_depths = FreeDepths::new();
    if bounds.is_empty() {
        return Ok(free_depths);
    }
    // A later statement than the lock: its snapshot has what was stored while this one waited.
    let queues: Vec<&str> = bounds.keys().map(String::as_str).collect();
    let depths: Vec<i64> = bounds.values().copied().collect();
    let sql = include_str!("../sql/count_waiting.sql");
    for found in session.query(sql, params![queues, depths]).await? {
        let (queue, waiting): (&str, i64) = (found.try_get(0)?, found.try_get(1)?);
        let max = bounds.get(queue).copied().unwrap_or(0);
        let left = unsigned(max - waiting);
        let max = unsigned(max);
        free_depths.insert(row::name(&found, 0)?, (left, max));
    }
    Ok(free_depths)
}

/// What exists in the database that concerns a batch, and what the batch adds to it.
struct BatchState {
    jobs: HashMap<JobId, Job>,
    unreadable: HashSet<JobId>,
    holders: BTreeMap<unique_key::QueueKey, JobId>,
    free_depths: FreeDepths,
    new: Vec<JobId>,
    replaced: BTreeSet<JobId>,
}

impl BatchState {
    async fn load(
        session: &mut Session,
        settings: &Settings,
        jobs: &[Job],
        now: Timestamp,
    ) -> DriverResult<Self> {
        let queues: BTreeSet<&str> = jobs.iter().map(|job| job.queue.as_str()).collect();
        let free_depths = free_depths(session, queues).await?;
        let queue_keys = jobs
            .iter()
            .filter_map(|job| unique_key::queue_key(job, &job.queue));
        let holders = unique_key::holders(session, &queue_keys.collect(), now).await?;
        let ids: BTreeSet<JobId> = jobs
            .iter()
            .map(|job| job.id)
            .chain(holders.values().copied())
            .collect();
        let found = find(
            session,
            settings,
            &ids.into_iter().collect::<Vec<_>>(),
            true,
        )
        .await?;
        Ok(BatchState {
            jobs: found
                .jobs
                .into_iter()
                .map(|(id, found)| (id, found.job))
                .collect(),
            unreadable: found.unreadable.into_keys().collect(),
            holders,
            free_depths,
            new: Vec::new(),
            replaced: BTreeSet::new(),
        })
    }

    fn decide(&mut self, job: &Job) -> Enqueued {
        if let Some(same) = self.jobs.get(&job.id) {
            return duplicate(Some(same), job);
        }
        if self.unreadable.contains(&job.id) {
            return duplicate(None, job);
        }
        let queue_key = unique_key::queue_key(job, &job.queue);
        let holder = queue_key
            .as_ref()
            .and_then(|queue_key| self.holders.get(queue_key))
            .copied();
        if let Some(id) = holder.filter(|id| !self.jobs.contains_key(id)) {
            // The key outlasts its job, which was purged.
            return Enqueued::Duplicate {
                id,
                payload_differs: false,
            };
        }
        if let Some(first) = holder.and_then(|id| self.jobs.get_mut(&id)) {
            let replace = job
                .unique
                .as_ref()
                .is_some_and(|unique| unique.on_duplicate == OnDuplicate::Replace);
            if !replace || first.state() != State::Waiting {
                return duplicate(Some(first), job);
            }
            let edit = Edit {
                payload: Some(job.payload.clone()),
                run_at: Some(job.run_at),
                ..Edit::default()
            };
            first
                .edit(edit)
                .expect("the job waits, and its row is locked");
            if !self.new.contains(&first.id) {
                self.replaced.insert(first.id);
            }
            return Enqueued::Replaced(first.id);
        }
        if let Some((left, max_depth)) = self.free_depths.get_mut(&job.queue) {
            if *left == 0 {
                let (queue, max_depth) = (job.queue.clone(), *max_depth);
                return Enqueued::QueueFull { queue, max_depth };
            }
            *left -= 1;
        }
        if let Some(queue_key) = queue_key {
            self.holders.insert(queue_key, job.id);
        }
        self.jobs.insert(job.id, job.clone());
        self.new.push(job.id);
        Enqueued::Created(job.id)
    }
}
