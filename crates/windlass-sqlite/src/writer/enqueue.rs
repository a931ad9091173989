//! Jobs come in.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{Edit, Job, JobId, OnDuplicate, State, Timestamp};
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
        // What is due at once then stands among the ready ones from the start.
        self.index.promote(now);
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            answers.push(self.enqueue_one(job, now)?);
        }
        Ok(Ok(answers))
    }

    /// The queue that these jobs would overfill, looked up before anything is written.
    fn first_full_queue(&self, jobs: &[Job], now: Timestamp) -> DriverResult<Option<StoreError>> {
        let bounded = |job: &Job| self.limits(&job.queue).and_then(|limits| limits.max_depth);
        if !jobs.iter().any(|job| bounded(job).is_some()) {
            return Ok(None);
        }
        let mut coming: BTreeMap<_, u64> = BTreeMap::new();
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
            let Some(max_depth) = bounded(job) else {
                continue;
            };
            let more = coming.entry(&job.queue).or_default();
            *more += 1;
            let waiting = queue.map_or(0, |queue| self.index.count(queue).waiting);
            if waiting + *more > max_depth {
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
            return self.meet_first(hold.id, job);
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

    /// Whether there is such a job, living or over.
    fn is_stored(&self, id: JobId) -> DriverResult<bool> {
        let mut statement = self
            .connection
            .prepare_cached("select 1 from jobs where id = ?1")?;
        Ok(statement.exists([row::blob(id)])?)
    }

    /// Stores a job, unless another has its id.
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

    /// Lets a job hold its unique key.
    pub(super) fn take_key(&mut self, job: &Job, queue: u32) -> DriverResult<()> {
        let Some(unique) = &job.unique else {
            return Ok(());
        };
        let hold = Hold {
            id: job.id,
            until: None,
        };
        self.index.set_hold(queue, unique.key.clone(), Some(hold));
        self.keep_hold(job, queue)
    }

    /// Writes down a hold that may outlast its job.
    pub(super) fn keep_hold(&self, job: &Job, queue: u32) -> DriverResult<()> {
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
        let found = if_readable(self.find(first))?.flatten();
        let payload_differs = found.is_some_and(|(first, _)| first.payload != second.payload);
        Ok(Enqueued::Duplicate {
            id: first,
            payload_differs,
        })
    }

    /// The unique key is held by another job.
    fn meet_first(&mut self, first: JobId, second: &Job) -> DriverResult<Enqueued> {
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
        job.edit(edit).expect("it waits, and nobody else writes");
        self.rewrite(&mut job, &last)?;
        Ok(Enqueued::Replaced(first))
    }

    /// Writes a waiting job that was changed.
    pub(super) fn rewrite(&mut self, job: &mut Job, last: &LastAttempt) -> DriverResult<()> {
        debug_assert_eq!(job.state(), State::Waiting);
        row::update_job(self.connection, &mut self.names, job)?;
        let before = self.index.take(job.id);
        let never_ran = matches!(before, Some(Entry::Waiting(waiting)) if !waiting.ran);
        if !never_ran {
            return self.write(job, last);
        }
        let (queue, kind) = self.numbers(job)?;
        self.index_job(job, queue, kind, false);
        Ok(())
    }
}
