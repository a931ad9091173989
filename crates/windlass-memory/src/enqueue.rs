//! Enqueuing jobs.

use windlass_core::{Edit, Job, OnDuplicate, State as JobState, Timestamp};
use windlass_store::{Enqueue, EnqueueMode, Enqueued, StoreError};

use crate::state::State;

impl State {
    pub(crate) fn enqueue(
        &mut self,
        enqueue: Enqueue,
        now: Timestamp,
    ) -> Result<Vec<Enqueued>, StoreError> {
        let before = match enqueue.mode {
            EnqueueMode::AllOrNone => self.clone_if_bounded(&enqueue.jobs),
            EnqueueMode::Independent => None,
        };
        let mut answers = Vec::with_capacity(enqueue.jobs.len());
        for job in enqueue.jobs {
            let answer = self.enqueue_one(job, now);
            if let Enqueued::QueueFull { queue, max_depth } = &answer
                && let Some(before) = before
            {
                *self = before;
                return Err(StoreError::QueueFull {
                    queue: queue.clone(),
                    max_depth: *max_depth,
                });
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    /// A copy to restore if one of the jobs meets a full queue; `None` if that cannot happen.
    fn clone_if_bounded(&self, jobs: &[Job]) -> Option<State> {
        let bounded = |job: &Job| {
            self.queues
                .get(&job.queue)
                .is_some_and(|queue| queue.max_depth.is_some())
        };
        jobs.iter().any(bounded).then(|| self.clone())
    }

    pub(crate) fn enqueue_one(&mut self, job: Job, now: Timestamp) -> Enqueued {
        if let Some(same) = self.jobs.get(&job.id) {
            return duplicate_of(same, &job);
        }
        let key = job.unique.as_ref().map(|unique| &unique.key);
        if let Some(first) = key.and_then(|key| self.key_holder(&job.queue, key, now)) {
            let first = first.clone();
            return self.meet_first(first, job);
        }
        if let Some(id) = key.and_then(|key| self.removed_holder(&job.queue, key, now)) {
            return Enqueued::Duplicate {
                id,
                payload_differs: false,
            };
        }
        if let Some(max_depth) = self.full(&job.queue) {
            let queue = job.queue.clone();
            return Enqueued::QueueFull { queue, max_depth };
        }
        let id = job.id;
        self.take_key(&job);
        self.put(job);
        Enqueued::Created(id)
    }

    /// Answers an enqueue of `second` while `first` holds the unique key.
    fn meet_first(&mut self, mut first: Job, second: Job) -> Enqueued {
        let replace = second
            .unique
            .as_ref()
            .is_some_and(|unique| unique.on_duplicate == OnDuplicate::Replace);
        if !replace || first.state() != JobState::Waiting {
            return duplicate_of(&first, &second);
        }
        let edit = Edit {
            payload: Some(second.payload),
            run_at: Some(second.run_at),
            ..Edit::default()
        };
        let id = first.id;
        if first.edit(edit).is_ok() {
            self.put(first);
        }
        Enqueued::Replaced(id)
    }
}

fn duplicate_of(first: &Job, second: &Job) -> Enqueued {
    Enqueued::Duplicate {
        id: first.id,
        payload_differs: first.payload != second.payload,
    }
}
