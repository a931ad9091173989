//! Stores around a store: every verb passes through one place.

/// Implements [`Store`](crate::Store) for a type that has another store in its field `store`.
///
/// Every verb goes through its method `around(&self, verb: &'static str, step)`, which is given the name of the verb and
/// what the inner store would do as a future, and answers in its stead.
#[macro_export]
macro_rules! wrap_store {
    ($wrapper:ty) => {
        const _: () = {
            use std::collections::BTreeMap;
            use std::time::Duration;
            use $crate::wrapped::*;
            use $crate::*;
            $crate::wrap_verbs! { $wrapper;
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
                put_queue(queue: &QueueName, limits: &QueueLimits, expected: Option<&QueueLimits>) -> bool;
                queues() -> BTreeMap<QueueName, QueueLimits>;
                put_schedule(schedule: &Schedule, expected: Expected) -> Written;
                schedules() -> Vec<Schedule>;
                schedule(which: &ScheduleRef) -> Option<Schedule>;
                unreadable_schedules() -> Vec<UnreadableSchedule>;
                due(limit: usize, now: Timestamp) -> Vec<Schedule>;
                fire(fire: Fire, now: Timestamp) -> Fired;
                occurrences(schedule: ScheduleId, before: Option<Timestamp>, limit: usize) -> Vec<FiredOccurrence>;
                remove_schedule(schedule: ScheduleId, expected: Expected) -> Written;
                beat(name: &str, about: &Value, now: Timestamp) -> ();
                nodes() -> Vec<Node>;
                remove_node(name: &str) -> ();
                put_document(collection: &str, name: &str, value: &Value, expected: Expected, expires_at: Option<Timestamp>, now: Timestamp) -> Written;
                document(collection: &str, name: &str, now: Timestamp) -> Option<Document>;
                documents(collection: &str, now: Timestamp) -> Vec<Document>;
                document_names(collection: &str, after: &str, limit: usize, now: Timestamp) -> Vec<String>;
                remove_expired(limit: usize, now: Timestamp) -> usize;
                remove_document(collection: &str, name: &str, expected: Expected) -> Written;
                append(topic: &str, values: &[Value], now: Timestamp) -> ();
                records(topic: &str, after: u64, limit: usize) -> Vec<Record>;
                newest_records(topic: &str, before: Option<u64>, limit: usize) -> Vec<Record>;
                trim(topic: &str, before: Timestamp, limit: usize) -> usize;
                forget(before: Timestamp) -> usize;
                time() -> Option<Timestamp>;
            }
        };
    };
}

/// The verbs as they are passed on.
#[doc(hidden)]
#[macro_export]
macro_rules! wrap_verbs {
    ($wrapper:ty; $($verb:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for $wrapper {
            $(async fn $verb(&self, $($argument: $of),*) -> Result<$answer, StoreError> {
                self.around(stringify!($verb), self.store.$verb($($argument),*)).await
            })*

            fn changes(&self) -> watch::Receiver<u64> {
                self.store.changes()
            }
        }
    };
}
