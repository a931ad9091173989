//! A store that fails, hangs or forgets to wake when it is told to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
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

#[derive(Debug)]
pub struct Faulty {
    store: Arc<dyn Store>,
    faults: Mutex<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    /// These verbs fail, and do nothing.
    fail: BTreeSet<&'static str>,
    /// These verbs do what they should, and then say that they do not know.
    forget: BTreeSet<&'static str>,
    /// These verbs never answer.
    hang: BTreeSet<&'static str>,
    /// Everything fails.
    away: bool,
    /// How often each verb was asked.
    asked: BTreeMap<&'static str, usize>,
}

impl Faulty {
    pub fn new(store: Arc<dyn Store>) -> Arc<Faulty> {
        Arc::new(Faulty {
            store,
            faults: Mutex::default(),
        })
    }

    pub fn fail(&self, verb: &'static str) {
        self.faults.lock().unwrap().fail.insert(verb);
    }

    pub fn forget(&self, verb: &'static str) {
        self.faults.lock().unwrap().forget.insert(verb);
    }

    pub fn hang(&self, verb: &'static str) {
        self.faults.lock().unwrap().hang.insert(verb);
    }

    pub fn away(&self) {
        self.faults.lock().unwrap().away = true;
    }

    pub fn heal(&self) {
        let mut faults = self.faults.lock().unwrap();
        let asked = std::mem::take(&mut faults.asked);
        *faults = Faults {
            asked,
            ..Faults::default()
        };
    }

    pub fn asked(&self, verb: &str) -> usize {
        let faults = self.faults.lock().unwrap();
        faults.asked.get(verb).copied().unwrap_or(0)
    }

    /// Whether the verb is done, and whether its answer comes through.
    async fn before(&self, verb: &'static str) -> Result<bool, StoreError> {
        let (hangs, fails, forgets) = {
            let mut faults = self.faults.lock().unwrap();
            *faults.asked.entry(verb).or_default() += 1;
            let fails = faults.away || faults.fail.contains(verb);
            let hangs = faults.hang.contains(verb);
            (hangs, fails, faults.forget.contains(verb))
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        if fails {
            return Err(StoreError::Unavailable("out of order".into()));
        }
        Ok(forgets)
    }
}

macro_rules! verbs {
    ($($verb:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for Faulty {
            $(async fn $verb(&self, $($argument: $of),*) -> Result<$answer, StoreError> {
                let forgets = self.before(stringify!($verb)).await?;
                let answer = self.store.$verb($($argument),*).await;
                if forgets {
                    return Err(StoreError::Indeterminate("who knows".into()));
                }
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
