//! Enqueues jobs.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{Edit, Interventions, Job, JobId, OnDuplicate, State, Timestamp};
use windlass_store::stored::LastAttempt;
use windlass_store::{EnqueueMode, Enqueued, StoreError};

use super::{Answer, Writer, waiting};
use crate::error::{DriverResult, if_readable};
use crate::index::{Entry, Hold};
use crate::row;

impl Writer<'_> {
    pub(crate) fn enqueue(
        &mut self,
        jobs: &[Job],
        mode: EnqueueMode,
        now: Timestamp,
    ) -> Answer<Vec<Enqueued>> {
        if mode == EnqueueMode::AllOrNone
            && let Some(full) = self.first_full_queue(jobs, now)?
        {
            return Ok(Err(full));
        }
        // Promoting first sets the index to `now`: new jobs that are due go straight to `ready`.
        self.index.promote(now);
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            answers.push(self.enqueue_one(job, now)?);
        }
        Ok(Ok(answers))
    }

    /// Returns an error for the first queue that these jobs would overfill. Checks before anything
    /// is written, because there are no savepoints to roll back to.
    fn first_full_queue(&self, jobs: &[Job], now: Timestamp) -> DriverResult<Option<StoreError>> {
        let max_depth_of = |job: &Job| self.limits(&job.queue).and_then(|limits| limits.max_depth);
        if !jobs.iter().any(|job| max_depth_of(job).is_some()) {
            return Ok(None);
        }
        let mut added: BTreeMap<_, u64> = BTreeMap::new();
        let mut keys = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for job in jobs {
            if ids.contains(&job.id) || self.is_stored(job.id)? {
                continue;
            }
            let queue = self.names.known(job.queue.as_str());
            if let Some(unique) = &job.unique {
                let held =
                    queue.is_some_and(|queue| self.index.hold(queue, &unique.key, now).is_some());
                if held || !keys.insert((&job.queue, &unique.key)) {
                    continue;
                }
            }
            ids.insert(job.id);
            let Some(max_depth) = max_depth_of(job) else {
                continue;
            };
            let added = added.entry(&job.queue).or_default();
            *added += 1;
            let waiting = queue.map_or(0, |queue| self.index.count(queue).waiting);
            if waiting + *added > max_depth {
                let queue = job.queue.clone();
                return Ok(Some(StoreError::QueueFull { queue, max_depth }));
            }
        }
        Ok(None)
    }

    pub(super) fn enqueue_one(&mut self, job: &Job, now: Timestamp) -> DriverResult<Enqueued> {
        let queue = self.names.number(self.connection, job.queue.as_str())?;
        let key = job.unique.as_ref().map(|unique| &unique.key);
        if let Some(hold) = key.and_then(|key| self.index.hold(queue, key, now)) {
            if self.is_stored(job.id)? {
                return self.duplicate_of(job.id, job);
            }
            return self.replace_or_keep(hold.id, job);
        }
        if let Some(max_depth) = self.full(&job.queue) {
            if self.is_stored(job.id)? {
                return self.duplicate_of(job.id, job);
            }
            let queue = job.queue.clone();
            return Ok(Enqueued::QueueFull { queue, max_depth });
        }
        self.create(job, queue)
    }

    /// Whether a job with this id exists, active or finished.
    fn is_stored(&self, id: JobId) -> DriverResult<bool> {
        let mut statement = self
            .connection
            .prepare_cached("select 1 from jobs where id = ?1")?;
        Ok(statement.exists([row::blob(id)])?)
    }

    /// Stores a job, unless its id is already taken.
    pub(super) fn create(&mut self, job: &Job, queue: u32) -> DriverResult<Enqueued> {
        let kind = self.names.number(self.connection, job.kind.as_str())?;
        if !row::insert_job(&mut self.statements.insert_job, job, queue, kind)? {
            return self.duplicate_of(job.id, job);
        }
        self.index
            .put(job.id, Entry::Waiting(waiting(job, queue, kind, false)));
        self.take_key(job, queue)?;
        Ok(Enqueued::Created(job.id))
    }

    /// Makes a job the holder of its unique key.
    pub(super) fn take_key(&mut self, job: &Job, queue: u32) -> DriverResult<()> {
        let Some(unique) = &job.unique else {
            return Ok(());
        };
        let hold = Hold {
            id: job.id,
            until: None,
        };
        self.index.set_hold(queue, unique.key.clone(), Some(hold));
        self.write_hold(job, queue)
    }

    /// Writes a hold that may outlast its job. Other holds follow from the active jobs.
    pub(super) fn write_hold(&self, job: &Job, queue: u32) -> DriverResult<()> {
        if let (Some(unique), Some(until)) = (&job.unique, job.key_until()) {
            let mut statement = self.connection.prepare_cached(
                "insert or replace into holds (queue, key, id, until) values (?1, ?2, ?3, ?4)",
            )?;
            let (key, until) = (unique.key.as_str(), until.as_micros());
            statement.execute(rusqlite::params![queue, key, row::blob(job.id), until])?;
        }
        Ok(())
    }

    fn duplicate_of(&mut self, first: JobId, second: &Job) -> DriverResult<Enqueued> {
        let stored = if_readable(self.find(first))?.flatten();
        let payload_differs = stored.is_some_and(|(first, _)| first.payload != second.payload);
        Ok(Enqueued::Duplicate {
            id: first,
            payload_differs,
        })
    }

    /// Handles a job whose unique key another job holds: replaces that job if the key says so and
    /// it still waits, otherwise reports a duplicate.
    fn replace_or_keep(&mut self, first: JobId, second: &Job) -> DriverResult<Enqueued> {
        let replace = second
            .unique
            .as_ref()
            .is_some_and(|unique| unique.on_duplicate == OnDuplicate::Replace);
        let waits = self.index.waits(first);
        if !replace || !waits {
            return self.duplicate_of(first, second);
        }
        let edit = Edit {
            payload: Some(second.payload.clone()),
            run_at: Some(second.run_at),
            ..Edit::default()
        };
        let Some((mut job, last)) = if_readable(self.find(first))?.flatten() else {
            return self.duplicate_of(first, second);
        };
        job.edit(edit)
            .expect("the job waits, and no one else writes");
        self.rewrite(&mut job, &last)?;
        Ok(Enqueued::Replaced(first))
    }

    /// Writes a changed waiting job.
    pub(super) fn rewrite(&mut self, job: &mut Job, last: &LastAttempt) -> DriverResult<()> {
        debug_assert_eq!(job.state(), State::Waiting);
        row::update_job(self.connection, &mut self.names, job)?;
        let previous = self.index.take(job.id);
        let has_no_state = matches!(previous, Some(Entry::Waiting(waiting)) if !waiting.has_state);
        if !has_no_state || job.interventions != Interventions::default() {
            return self.write(job, last);
        }
        let (queue, kind) = self.numbers(job)?;
        self.index_job(job, queue, kind, false);
        Ok(())
    }
}
