//! The contract, verb by verb.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::watch;
use windlass_core::{Job, JobId, QueueName, ScheduleId, Timestamp};

use crate::{
    Attempt, AttemptId, AttemptReport, CHANGE_MAX, Change, Changed, Claim, Claimed, Counts,
    Document, DueQueues, ENQUEUE_MAX, EXPIRED_MAX, Enqueue, Enqueued, Expected, FIRE_MAX, Filter,
    Fire, Fired, FiredOccurrence, Listed, Node, PAGE_MAX, Page, QueueLimits, RECORDS_MAX, Record,
    RecordRange, Renewed, SETTLE_MAX, Schedule, ScheduleRef, Schedules, Settled, StoreError, Swept,
    Written,
};

/// Declares [`Store`], and how a [`Wrapper`] passes each verb on, from one list.
///
/// The bound of a verb is written behind its signature: a batch that is larger than `at_most` is refused, and a limit that
/// is larger than `capped` counts as that. Only wrappers check bounds, so that no driver has to.
macro_rules! contract {
    (
        $(#[$about:meta])*
        pub trait Store {
            $(
                $(#[$sentence:meta])*
                async fn $verb:ident(&self $(, $argument:ident: $of:ty)* $(,)?) -> $answer:ty
                $(where $rule:ident($max:ident, $($bounded:tt)+))?;
            )*
        }
    ) => {
        $(#[$about])*
        #[async_trait]
        pub trait Store: Send + Sync + std::fmt::Debug {
            $($(#[$sentence])* async fn $verb(&self $(, $argument: $of)*) -> $answer;)*

            /// A number that changes when jobs may have become claimable. Only a hint: losing one costs latency, never a job.
            fn changes(&self) -> watch::Receiver<u64>;
        }

        #[async_trait]
        impl<W: Wrapper> Store for W {
            $(async fn $verb(&self $(, $argument: $of)*) -> $answer {
                $(bound!($verb, $rule, $max, $($bounded)+);)?
                let step = self.inner().$verb($($argument),*);
                self.around(stringify!($verb), step).await
            })*

            fn changes(&self) -> watch::Receiver<u64> {
                self.inner().changes()
            }
        }
    };
}

macro_rules! bound {
    ($verb:ident, at_most, $max:ident, $count:expr) => {
        check_batch(stringify!($verb), $count, $max)?
    };
    ($verb:ident, capped, $max:ident, $limit:ident) => {
        let $limit = $limit.min($max);
    };
}

/// A store around another one, which checks the bounds of every verb. The engine puts one around every store that is opened.
pub trait Wrapper: Send + Sync + std::fmt::Debug {
    /// The store that carries the verbs out.
    fn inner(&self) -> &dyn Store;

    /// Answers a verb: `step` is what the inner store does when it is awaited.
    fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send;
}

/// Refuses a batch that is larger than a step may be.
fn check_batch(what: &'static str, got: usize, max: usize) -> Result<(), StoreError> {
    if got > max {
        return Err(StoreError::TooMany { what, got, max });
    }
    Ok(())
}

contract! {
/// Where jobs are kept.
///
/// Every verb is one atomic step: when it answers, all of it is durable and visible, or, with an error, none of it (but
/// see [`StoreError::Indeterminate`]). Batches are answered in the order they were given. `now` is the caller's; a store reads
/// no clock. Every write to a job is a compare-and-set on its state and attempt: a rule that acts on an old picture
/// changes nothing, and is told so.
///
/// Stored data that cannot be read, because a newer version wrote it, never fails a verb for its neighbours: lists and batches
/// pass over it. No claim hands out such a job, and no claim looks at it twice; it waits until a version that can read it opens
/// the store.
pub trait Store {
    // Jobs.

    /// Stores waiting jobs.
    ///
    /// A job whose unique key is held in its queue is not stored: the answer names the job that was there first. A key is
    /// held while its job waits or runs, and for its `hold` after the enqueue unless the job is dead. The same id
    /// again is a duplicate too. A queue takes no more waiting jobs than its `max_depth`. A `hold` outlives the job: it lasts
    /// when the job was removed.
    async fn enqueue(&self, enqueue: Enqueue, now: Timestamp) -> Result<Vec<Enqueued>, StoreError>
    where at_most(ENQUEUE_MAX, enqueue.jobs.len());

    /// Hands out ready jobs of one queue, most urgent first, each under a lease.
    ///
    /// A job is handed out only if it waits, its `run_at` has come and its deadline has not passed;
    /// if the claim wants its kind and id and does not except it; if its queue is not paused; and
    /// within the limits of its queue and of its concurrency key. A job that a limit holds back
    /// does not block those behind it. A job is never in two live leases. The attempt counts up
    /// with the lease. Policy and limit of the retry are stamped on the lease. Beside another
    /// claim, this may find fewer jobs than are ready. A queue with a rate starts at most that many
    /// jobs, by their `started_at`, in any window of its period: a claim that comes with an older
    /// `now` than one before it starts its jobs at the later instant. The same claim id again gives
    /// the same leases, as far as they still live, and says that it is repeated.
    async fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError>;

    /// Names the queues that have due jobs of some kinds, in the order of their names, up to
    /// `look.limit`.
    ///
    /// A queue is named if a job of one of the kinds waits in it whose `run_at` has come, unless
    /// the queue is paused. A claim may still find nothing there: a limit holds the jobs back,
    /// their deadline has passed, or another claim was first. The cost depends on the due queues
    /// that are looked at: not on those without due jobs, and not on jobs of other kinds.
    async fn due_queues(
        &self,
        look: &DueQueues,
        now: Timestamp,
    ) -> Result<Vec<QueueName>, StoreError>;

    /// Prolongs leases to `now + lease`. An attempt that is over answers `LeaseLost`; an expired
    /// lease that was not swept can be renewed. A lease that the database refuses to prolong
    /// answers `LeaseLost` too; the others are prolonged.
    async fn renew(
        &self,
        attempts: &[AttemptId],
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<Renewed>, StoreError>
    where at_most(SETTLE_MAX, attempts.len());

    /// Ends attempts as `core` decides, each with its row of history.
    ///
    /// An expired lease that was not swept can be settled. The same report of an attempt again
    /// changes nothing and answers `Repeated`; another report of an attempt that is over answers
    /// `LeaseLost`. A report that the database refuses, as a constraint or a trigger says, answers
    /// `Refused`; the others are written.
    async fn settle(
        &self,
        reports: Vec<AttemptReport>,
        now: Timestamp,
    ) -> Result<Vec<Settled>, StoreError>
    where at_most(SETTLE_MAX, reports.len());

    /// Ends up to `limit` attempts whose lease has expired at `now` as lost, and buries waiting
    /// jobs whose deadline has passed, those that are longest over first. A lease that was renewed
    /// is not expired. `random` draws the jitter. What a store that one process has alone ended by
    /// itself when it was opened, it tells with the first sweep. A job whose end the database
    /// refuses is passed over, logged once and tried again after a minute or more; all others are
    /// swept.
    async fn sweep(&self, limit: usize, now: Timestamp, random: u64) -> Result<Swept, StoreError>
    where at_most(SETTLE_MAX, limit);

    /// Makes one change to each of these jobs, and says what became of it.
    ///
    /// A change that does not apply to the state of a job is a conflict for that job only. A revived job and a job that moves
    /// to another queue need their unique key to be free and their queue not to be full. [`Change::Purge`] removes the history
    /// of a job with it.
    async fn change(
        &self,
        jobs: &[JobId],
        change: &Change,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError>
    where at_most(CHANGE_MAX, jobs.len());

    /// The jobs with these ids. One that cannot be read is missing in a batch; asked for alone, it answers
    /// [`StoreError::Unreadable`].
    async fn get(&self, jobs: &[JobId]) -> Result<Vec<Option<Job>>, StoreError>
    where at_most(CHANGE_MAX, jobs.len());

    /// Jobs, newest first, in bounded steps.
    async fn list(&self, filter: &Filter, page: Page, now: Timestamp)
    -> Result<Listed, StoreError>;

    /// The ended attempts of a job, newest first, at most [`PAGE_MAX`].
    async fn attempts(&self, job: JobId, limit: usize) -> Result<Vec<Attempt>, StoreError>
    where capped(PAGE_MAX, limit);

    /// How many jobs of each queue are in each state. A queue without jobs is not named.
    async fn counts(&self, now: Timestamp) -> Result<BTreeMap<QueueName, Counts>, StoreError>;

    /// Removes succeeded and cancelled jobs that ended before then, with their history, where that is cheap: as whole days.
    ///
    /// What is younger stays, and so does what is dead, waits or runs. It may leave older ones, which [`Change::Purge`] removes
    /// one by one. Answers how many such parts were removed.
    async fn forget(&self, before: Timestamp) -> Result<usize, StoreError>;

    // Queues.

    /// Sets the limits of a queue, if they are what the writer believes, where it says; answers whether they were. A queue
    /// that has none is at the default.
    async fn put_queue(
        &self,
        queue: &QueueName,
        limits: &QueueLimits,
        expected: Option<&QueueLimits>,
    ) -> Result<bool, StoreError>;

    /// The limits of the queues that have any.
    async fn queues(&self) -> Result<BTreeMap<QueueName, QueueLimits>, StoreError>;

    // Schedules.

    /// Creates or changes a schedule, if it still has the version that `expected` says.
    async fn put_schedule(
        &self,
        schedule: &Schedule,
        expected: Expected,
    ) -> Result<Written, StoreError>;

    /// Removes a schedule and the record of what it skipped, if it still has the version that `expected` says; its jobs
    /// stay.
    async fn remove_schedule(
        &self,
        schedule: ScheduleId,
        expected: Expected,
    ) -> Result<Written, StoreError>;

    /// One schedule, finished ones too.
    async fn schedule(&self, which: &ScheduleRef) -> Result<Option<Schedule>, StoreError>;

    /// All schedules, by name, those that cannot be read apart. Every other verb passes over an unreadable schedule but
    /// [`Store::put_schedule`], whose name it holds, and [`Store::remove_schedule`].
    async fn schedules(&self) -> Result<Schedules, StoreError>;

    /// Up to `limit` schedules whose `next_at` has come, the longest due first.
    async fn due(&self, limit: usize, now: Timestamp) -> Result<Vec<Schedule>, StoreError>;

    /// Fires occurrences: their jobs, the record of what was skipped, the schedule's move and its
    /// new definition, in one step. An occurrence becomes a job at most once, even if several nodes
    /// fire it. `max_depth` does not hold it back: a full queue must not drop an occurrence.
    async fn fire(&self, fire: Fire, now: Timestamp) -> Result<Fired, StoreError>
    where at_most(FIRE_MAX, fire.jobs.len());

    /// The occurrences of a schedule that were fired, newest first: up to `limit` of those before an instant, at most
    /// [`PAGE_MAX`]. They are kept as long as their jobs are.
    async fn occurrences(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<FiredOccurrence>, StoreError>
    where capped(PAGE_MAX, limit);

    // Documents.

    /// Writes a document, if it is what the writer believes.
    ///
    /// From `expires_at` on the document is absent: no read returns it, and a put creates it again with version 1. Each put
    /// sets `expires_at`; without one the document stays until it is removed.
    async fn put_document(
        &self,
        collection: &str,
        name: &str,
        value: &Value,
        expected: Expected,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Written, StoreError>;

    /// Removes a document, if it is what the writer believes. One that has expired can be removed as long as the store
    /// has not done so itself.
    async fn remove_document(
        &self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Result<Written, StoreError>;

    /// One document, unless it has expired.
    async fn document(
        &self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> Result<Option<Document>, StoreError>;

    /// The documents of a collection that have not expired, by name.
    async fn documents(
        &self,
        collection: &str,
        now: Timestamp,
    ) -> Result<Vec<Document>, StoreError>;

    /// The names of the documents of a collection behind a name that have not expired, in order: up to `limit`, at most
    /// [`PAGE_MAX`].
    async fn document_names(
        &self,
        collection: &str,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<String>, StoreError>
    where capped(PAGE_MAX, limit);

    /// Removes up to `limit` expired documents of all collections, the longest expired first, in one step at most
    /// [`EXPIRED_MAX`]; returns how many. The cost depends on how many it removes, not on how many exist.
    async fn remove_expired(&self, limit: usize, now: Timestamp) -> Result<usize, StoreError>
    where capped(EXPIRED_MAX, limit);

    // Records.

    /// Appends records to a topic.
    async fn append(&self, topic: &str, values: &[Value], now: Timestamp)
    -> Result<(), StoreError>
    where at_most(RECORDS_MAX, values.len());

    /// Records of a topic, at most [`RECORDS_MAX`]: those after a cursor, oldest first, or those before one, newest first.
    async fn records(
        &self,
        topic: &str,
        range: RecordRange,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError>
    where capped(RECORDS_MAX, limit);

    /// Removes up to `limit` of the oldest records of a topic that were appended before `before`, in one step at most
    /// [`RECORDS_MAX`]; answers how many.
    async fn trim(&self, topic: &str, before: Timestamp, limit: usize)
    -> Result<usize, StoreError>
    where capped(RECORDS_MAX, limit);

    // Nodes and time.

    /// Takes a node's heartbeat.
    async fn beat(&self, name: &str, about: &Value, now: Timestamp) -> Result<(), StoreError>;

    /// The nodes, by name.
    async fn nodes(&self) -> Result<Vec<Node>, StoreError>;

    /// Forgets a node.
    async fn remove_node(&self, name: &str) -> Result<(), StoreError>;

    /// The instant by the clock that all nodes of this store share; none where one process has it alone, whose own clock is
    /// the one.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError>;
}
}
