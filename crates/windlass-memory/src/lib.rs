//! A store in memory: the reference implementation of the contract, and the fast store for tests.
//!
//! Nothing is durable: when the process ends, all jobs are lost. One lock guards all of `State`, so
//! every verb is atomic. The code prefers being obviously correct over being fast.

mod change;
mod claim;
mod document;
mod enqueue;
mod failure_group;
mod read;
mod schedule;
mod settle;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::watch;
use windlass_core::{
    ActionId, ActionTally, GroupKey, Job, JobId, QueueName, ScheduleId, Timestamp,
};
use windlass_store::{
    ActionStep, Attempt, AttemptId, AttemptReport, Change, Changed, Claim, Claimed, Counts,
    Document, DueQueues, Enqueue, Enqueued, Expected, FailureGroup, Filter, Fire, Fired,
    FiredOccurrence, GroupFilter, Listed, Node, Page, QueueLimits, Record, RecordRange, Renewed,
    Schedule, ScheduleRef, Schedules, Settled, Store, StoreError, Swept, Written,
};

use state::State;

/// A store in memory. Share it with an `Arc`.
pub struct MemoryStore {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> Self {
        MemoryStore {
            state: Mutex::new(State::default()),
            changes: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // After a panic in a verb, which is a bug, the state is still the best available.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces that jobs may have become claimable.
    fn wake(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = self.state().jobs.len();
        write!(f, "MemoryStore({jobs} jobs)")
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn enqueue(&self, enqueue: Enqueue, now: Timestamp) -> Result<Vec<Enqueued>, StoreError> {
        let enqueued = self.state().enqueue(enqueue, now)?;
        self.wake();
        Ok(enqueued)
    }

    async fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError> {
        Ok(self.state().claim(claim, now))
    }

    async fn due_queues(
        &self,
        look: &DueQueues,
        now: Timestamp,
    ) -> Result<Vec<QueueName>, StoreError> {
        Ok(self.state().due_queues(look, now))
    }

    async fn renew(
        &self,
        attempts: &[AttemptId],
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<Renewed>, StoreError> {
        Ok(self.state().renew(attempts, lease, now))
    }

    async fn settle(
        &self,
        reports: Vec<AttemptReport>,
        now: Timestamp,
    ) -> Result<Vec<Settled>, StoreError> {
        let settled = self.state().settle(reports, now);
        self.wake();
        Ok(settled)
    }

    async fn sweep(&self, limit: usize, now: Timestamp, random: u64) -> Result<Swept, StoreError> {
        let swept = self.state().sweep(limit, now, random);
        self.wake();
        Ok(swept)
    }

    async fn change(
        &self,
        jobs: &[JobId],
        change: &Change,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        let changed = self.state().change_all(jobs, change, step, now);
        self.wake();
        Ok(changed)
    }

    async fn get(&self, jobs: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        Ok(self.state().get(jobs))
    }

    async fn list(
        &self,
        filter: &Filter,
        page: Page,
        now: Timestamp,
    ) -> Result<Listed, StoreError> {
        Ok(self.state().list(filter, page, now))
    }

    async fn attempts(&self, job: JobId, limit: usize) -> Result<Vec<Attempt>, StoreError> {
        Ok(self.state().attempts(job, limit))
    }

    async fn counts(&self, now: Timestamp) -> Result<BTreeMap<QueueName, Counts>, StoreError> {
        Ok(self.state().counts(now))
    }

    async fn failure_groups(
        &self,
        filter: &GroupFilter,
        after: Option<&GroupKey>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<FailureGroup>, StoreError> {
        Ok(self.state().failure_groups(filter, after, limit, now))
    }

    async fn action_tally(&self, action: ActionId) -> Result<ActionTally, StoreError> {
        Ok(self.state().action_tally(action))
    }

    async fn trim_tallies(
        &self,
        groups_before: Timestamp,
        actions_before: Timestamp,
    ) -> Result<(), StoreError> {
        self.state().trim_tallies(groups_before, actions_before);
        Ok(())
    }

    async fn put_queue(
        &self,
        queue: &QueueName,
        limits: &QueueLimits,
        expected: Option<&QueueLimits>,
    ) -> Result<bool, StoreError> {
        let mut state = self.state();
        let current = state.queues.get(queue).cloned().unwrap_or_default();
        if expected.is_some_and(|expected| *expected != current) {
            return Ok(false);
        }
        state.queues.insert(queue.clone(), limits.clone());
        drop(state);
        self.wake();
        Ok(true)
    }

    async fn queues(&self) -> Result<BTreeMap<QueueName, QueueLimits>, StoreError> {
        Ok(self.state().queues.clone())
    }

    async fn put_schedule(
        &self,
        schedule: &Schedule,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        Ok(self.state().put_schedule(schedule, expected))
    }

    async fn schedules(&self) -> Result<Schedules, StoreError> {
        let readable = self.state().schedules();
        let unreadable = Vec::new(); // this store keeps no definitions as text
        Ok(Schedules {
            readable,
            unreadable,
        })
    }

    async fn schedule(&self, which: &ScheduleRef) -> Result<Option<Schedule>, StoreError> {
        Ok(self.state().schedule(which))
    }

    async fn due(&self, limit: usize, now: Timestamp) -> Result<Vec<Schedule>, StoreError> {
        Ok(self.state().due(limit, now))
    }

    async fn fire(&self, fires: Vec<Fire>, now: Timestamp) -> Result<Vec<Fired>, StoreError> {
        let fired = {
            let mut state = self.state();
            fires
                .into_iter()
                .map(|fire| state.fire(fire, now))
                .collect()
        };
        self.wake();
        Ok(fired)
    }

    async fn unfinished_occurrences(
        &self,
        schedules: &[ScheduleId],
    ) -> Result<Vec<Vec<Job>>, StoreError> {
        let state = self.state();
        let unfinished = schedules.iter().map(|schedule| state.unfinished(*schedule));
        Ok(unfinished.collect())
    }

    async fn remove_schedule(
        &self,
        schedule: ScheduleId,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        Ok(self.state().remove_schedule(schedule, expected))
    }

    async fn occurrences(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<FiredOccurrence>, StoreError> {
        Ok(self.state().occurrences(schedule, before, limit))
    }

    async fn beat(&self, name: &str, about: &Value, now: Timestamp) -> Result<(), StoreError> {
        let node = Node {
            name: name.to_owned(),
            about: about.clone(),
            beat_at: now,
        };
        self.state().nodes.insert(name.to_owned(), node);
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        Ok(self.state().nodes.values().cloned().collect())
    }

    async fn remove_node(&self, name: &str) -> Result<(), StoreError> {
        self.state().nodes.remove(name);
        Ok(())
    }

    async fn put_document(
        &self,
        collection: &str,
        name: &str,
        value: &Value,
        expected: Expected,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        let document = Document {
            name: name.to_owned(),
            version: 0,
            value: value.clone(),
            updated_at: now,
            expires_at,
        };
        Ok(self.state().put_document(collection, document, expected))
    }

    async fn document(
        &self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> Result<Option<Document>, StoreError> {
        Ok(self.state().document(collection, name, now).cloned())
    }

    async fn documents(
        &self,
        collection: &str,
        now: Timestamp,
    ) -> Result<Vec<Document>, StoreError> {
        Ok(self.state().documents(collection, now))
    }

    async fn document_names(
        &self,
        collection: &str,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<String>, StoreError> {
        Ok(self.state().document_names(collection, after, limit, now))
    }

    async fn remove_expired(&self, limit: usize, now: Timestamp) -> Result<usize, StoreError> {
        Ok(self.state().remove_expired(limit, now))
    }

    async fn remove_document(
        &self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        Ok(self.state().remove_document(collection, name, expected))
    }

    async fn append(
        &self,
        topic: &str,
        values: &[Value],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.state().append(topic, values, now);
        Ok(())
    }

    async fn records(
        &self,
        topic: &str,
        range: RecordRange,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        Ok(self.state().records(topic, range, limit))
    }

    async fn trim(
        &self,
        topic: &str,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        Ok(self.state().trim(topic, before, limit))
    }

    async fn drop_history(&self, _before: Timestamp) -> Result<usize, StoreError> {
        Ok(0) // this store has no parts by day that are cheap to remove
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
