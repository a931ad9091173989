//! A store that tells how long each verb took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::watch;
use windlass_core::{Edit, Job, JobId, QueueName, Revival, ScheduleId, Timestamp};
use windlass_store::{
    Attempt, AttemptId, AttemptReport, Changed, Claim, Claimed, Counts, Document, Enqueue,
    Enqueued, Expected, Filter, Fire, Fired, Listed, Node, Page, QueueLimits, Record, Renewed,
    Schedule, Settled, Store, StoreError, Swept, Written,
};

use crate::clock::Clock;
use crate::recorder::Recorder;

#[derive(Debug)]
pub(crate) struct Observed {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    recorder: Arc<dyn Recorder>,
}

impl Observed {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Self {
        Observed {
            store,
            clock,
            recorder,
        }
    }
}

/// Each verb is passed on and timed under its own name.
macro_rules! verbs {
    ($($verb:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for Observed {
            $(async fn $verb(&self, $($argument: $of),*) -> Result<$answer, StoreError> {
                let started = self.clock.now();
                let answer = self.store.$verb($($argument),*).await;
                let took = self.clock.now().since(started);
                self.recorder.store_op(stringify!($verb), took);
                answer
            })*

            fn changes(&self) -> watch::Receiver<u64> {
                self.store.changes()
            }
        }
    };
}

verbs! {
    enqueue(enqueue: Enqueue, now: Timestamp) -> Vec<Enqueued>;
    claim(claim: &Claim, now: Timestamp) -> Claimed;
    renew(attempts: &[AttemptId], lease: Duration, now: Timestamp) -> Vec<Renewed>;
    settle(reports: Vec<AttemptReport>, now: Timestamp) -> Vec<Settled>;
    sweep(limit: usize, now: Timestamp, random: u64) -> Swept;
    cancel(jobs: &[JobId], now: Timestamp) -> Vec<Changed>;
    revive(jobs: &[JobId], revival: &Revival, now: Timestamp) -> Vec<Changed>;
    run_now(jobs: &[JobId], now: Timestamp) -> Vec<Changed>;
    edit(job: JobId, edit: &Edit, now: Timestamp) -> Changed;
    resolve(jobs: &[JobId], now: Timestamp) -> Vec<Changed>;
    purge(jobs: &[JobId]) -> Vec<Changed>;
    get(jobs: &[JobId]) -> Vec<Option<Job>>;
    list(filter: &Filter, page: Page, now: Timestamp) -> Listed;
    attempts(job: JobId, limit: usize) -> Vec<Attempt>;
    counts(now: Timestamp) -> BTreeMap<QueueName, Counts>;
    put_queue(queue: &QueueName, limits: &QueueLimits) -> ();
    queues() -> BTreeMap<QueueName, QueueLimits>;
    put_schedule(schedule: &Schedule, expected: Expected) -> Written;
    schedules() -> Vec<Schedule>;
    due(limit: usize, now: Timestamp) -> Vec<Schedule>;
    fire(fire: Fire, now: Timestamp) -> Fired;
    remove_schedule(schedule: ScheduleId) -> bool;
    beat(name: &str, about: &Value, now: Timestamp) -> ();
    nodes() -> Vec<Node>;
    remove_node(name: &str) -> ();
    put_document(collection: &str, name: &str, value: &Value, expected: Expected, now: Timestamp) -> Written;
    document(collection: &str, name: &str) -> Option<Document>;
    documents(collection: &str) -> Vec<Document>;
    remove_document(collection: &str, name: &str, expected: Expected) -> Written;
    append(topic: &str, values: &[Value], now: Timestamp) -> ();
    records(topic: &str, after: u64, limit: usize) -> Vec<Record>;
    trim(topic: &str, before: Timestamp, limit: usize) -> usize;
}
