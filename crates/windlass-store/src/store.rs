//! The contract, verb by verb.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::watch;
use windlass_core::{
    ActionId, ActionTally, GroupKey, Job, JobId, QueueName, ScheduleId, Timestamp,
};

use crate::{
    ActionStep, Attempt, AttemptId, AttemptReport, CHANGE_MAX, Change, Changed, Claim, Claimed,
    Counts, Document, DueQueues, ENQUEUE_MAX, EXPIRED_MAX, Enqueue, Enqueued, Expected, FIRE_MAX,
    FailureGroup, Filter, Fire, Fired, FiredOccurrence, GroupFilter, Listed, Node, PAGE_MAX, Page,
    QueueLimits, RECORDS_MAX, Record, RecordRange, Renewed, SETTLE_MAX, Schedule, ScheduleRef,
    Schedules, Settled, StoreError, Swept, Written,
};

/// Declares [`Store`] and its implementation for every [`Wrapper`] from one list.
///
/// The clause after a signature limits its input: `at_most` refuses a larger batch, `capped`
/// reduces a larger limit. Only wrappers check this, so that drivers do not have to.
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

            /// A number that changes when jobs may have become claimable. It is only a hint: a lost
            /// change costs latency, never a job.
            fn changes(&self) -> watch::Receiver<u64>;
        }

        #[async_trait]
        impl<W: Wrapper> Store for W {
            $(async fn $verb(&self $(, $argument: $of)*) -> $answer {
                $(bound!($verb, $rule, $max, $($bounded)+);)?
                let call = self.inner().$verb($($argument),*);
                self.around(stringify!($verb), call).await
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

/// A store around another store that checks the bounds of every verb. The engine wraps every store
/// that it opens.
pub trait Wrapper: Send + Sync + std::fmt::Debug {
    /// The store that does the work.
    fn inner(&self) -> &dyn Store;

    /// Handles one call: `call` runs the verb on the inner store when it is awaited.
    fn around<T: Send>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send;
}

/// Refuses a batch that is larger than `max`.
fn check_batch(what: &'static str, got: usize, max: usize) -> Result<(), StoreError> {
    if got > max {
        return Err(StoreError::TooMany { what, got, max });
    }
    Ok(())
}

contract! {
/// Where Windlass keeps jobs.
///
/// Every verb is one atomic step. When it returns, all of it is durable and visible; if it returns
/// an error, none of it (but see [`StoreError::Indeterminate`]). The answers of a batch are in the
/// order of the batch. The caller passes `now`; a store reads no clock. Every write to a job is a
/// compare-and-set on its state and attempt: a caller that acts on outdated state changes nothing,
/// and the answer says so.
///
/// Stored data that this version cannot read, because a newer version wrote it, never fails a verb
/// for other data: lists and batches skip it. No claim hands out such a job, and no claim examines
/// it twice. It waits until a version that can read it opens the store.
pub trait Store {
    // Jobs.

    /// Stores waiting jobs.
    ///
    /// A job whose unique key is held in its queue is not stored; the answer names the job that
    /// holds the key. A job holds its key while it waits or runs, and for its `unique_for` after
    /// the enqueue unless it is dead, even if the job is removed before that. A job whose id
    /// already exists is a duplicate too. A queue holds at most `max_depth` waiting jobs.
    async fn enqueue(&self, enqueue: Enqueue, now: Timestamp) -> Result<Vec<Enqueued>, StoreError>
    where at_most(ENQUEUE_MAX, enqueue.jobs.len());

    /// Hands out ready jobs of one queue, most urgent first, each under a lease.
    ///
    /// A job is handed out only if it waits, its `run_at` has come and its deadline has not passed;
    /// if the claim accepts its kind and id and does not except it; if its queue is not paused; and
    /// within the limits of its queue and of its concurrency key. A job that a limit holds back
    /// does not block the jobs after it. A job never has two live leases. The claim increments the
    /// job's attempt together with the lease, and stores the retry policy and limit on the lease.
    /// While another claim runs, a claim may find fewer jobs than are ready.
    ///
    /// A queue with a rate starts at most that many jobs, by their `started_at`, in any window of
    /// its period. A claim with an older `now` than an earlier claim starts its jobs at the later
    /// instant.
    ///
    /// A claim with the same id again returns the same leases, as far as they are still live, and
    /// says that it is repeated.
    async fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError>;

    /// Returns the names of queues with due jobs of some kinds, in the order of names, at most
    /// `look.limit`.
    ///
    /// A queue is included if a job of one of the kinds waits in it whose `run_at` has come, and
    /// the queue is not paused. A claim may still find nothing there: a limit holds the jobs back,
    /// their deadline has passed, or another claim was faster. The cost grows with the due queues
    /// that are examined, but not with queues without due jobs, and not with jobs of other kinds.
    async fn due_queues(
        &self,
        look: &DueQueues,
        now: Timestamp,
    ) -> Result<Vec<QueueName>, StoreError>;

    /// Extends leases to `now + lease`.
    ///
    /// Returns `LeaseLost` for an attempt that has ended. An expired lease that was not swept can
    /// be renewed. If the database refuses to extend a lease, the answer is `LeaseLost` too; the
    /// others are extended.
    async fn renew(
        &self,
        attempts: &[AttemptId],
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<Renewed>, StoreError>
    where at_most(SETTLE_MAX, attempts.len());

    /// Ends attempts as `windlass-core` decides, and writes a history row for each.
    ///
    /// An expired lease that was not swept can be settled. The same report of an attempt again
    /// changes nothing and returns `Repeated`. A different report of an attempt that has ended
    /// returns `LeaseLost`. If a constraint or trigger of the database refuses a report, the answer
    /// is `Refused`; the others are written.
    ///
    /// A failed attempt puts its job into the failure group of its queue, kind and cause. If the
    /// queue and kind has [1,000 groups](windlass_core::GROUPS_MAX) already, the cause becomes
    /// [`Fingerprint::OTHER`](windlass_core::Fingerprint::OTHER).
    async fn settle(
        &self,
        reports: Vec<AttemptReport>,
        now: Timestamp,
    ) -> Result<Vec<Settled>, StoreError>
    where at_most(SETTLE_MAX, reports.len());

    /// Ends up to `limit` attempts whose lease has expired at `now` as lost, and ends waiting jobs
    /// whose deadline has passed as dead; the longest overdue first.
    ///
    /// A renewed lease is not expired. `random` provides the bits for jitter. A store that only one
    /// process can open may end attempts by itself when it is opened; it returns them with the
    /// first sweep. If the database refuses the end of a job, the sweep skips that job, logs it
    /// once and tries again after a minute or more; it sweeps all others.
    async fn sweep(&self, limit: usize, now: Timestamp, random: u64) -> Result<Swept, StoreError>
    where at_most(SETTLE_MAX, limit);

    /// Applies one change to each of these jobs and returns the result for each.
    ///
    /// A change that does not apply to the state of a job is a conflict for that job only. A job
    /// that is revived or moves to another queue needs its unique key to be free there and the
    /// queue not to be full. [`Change::Purge`] removes a job together with its history.
    ///
    /// As a step of an action, the change leaves alone jobs that the action or a newer one has
    /// changed before, jobs whose state changed after the action was created, and jobs that are in
    /// another state or attempt than the action saw. So a step can be repeated when its answer was
    /// lost.
    async fn change(
        &self,
        jobs: &[JobId],
        change: &Change,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError>
    where at_most(CHANGE_MAX, jobs.len());

    /// Returns the jobs with these ids. In a batch, a job that this version cannot read is missing;
    /// requested alone, it returns [`StoreError::Unreadable`].
    async fn get(&self, jobs: &[JobId]) -> Result<Vec<Option<Job>>, StoreError>
    where at_most(CHANGE_MAX, jobs.len());

    /// Lists jobs in bounded steps.
    ///
    /// A page ends once it has `page.limit` jobs or [`PAGE_BYTES_MAX`](crate::PAGE_BYTES_MAX)
    /// bytes, or once [`SCAN_MAX`](crate::SCAN_MAX) jobs were examined. It then has a cursor, with
    /// which the next page continues.
    async fn list(&self, filter: &Filter, page: Page, now: Timestamp)
    -> Result<Listed, StoreError>;

    /// Returns the ended attempts of a job, newest first, at most [`PAGE_MAX`].
    async fn attempts(&self, job: JobId, limit: usize) -> Result<Vec<Attempt>, StoreError>
    where capped(PAGE_MAX, limit);

    /// Returns how many jobs of each queue are in each state. Leaves out queues without jobs.
    async fn counts(&self, now: Timestamp) -> Result<BTreeMap<QueueName, Counts>, StoreError>;

    /// Returns failure groups that sort after `after`, ordered by queue, kind and cause, at most
    /// `limit` and at most [`PAGE_MAX`].
    ///
    /// The numbers of dead and retrying jobs are exact: they change in the same step as the jobs. A
    /// claim does not change them. Groups without jobs are included until
    /// [`Store::trim_tallies`] removes them.
    async fn failure_groups(
        &self,
        filter: &GroupFilter,
        after: Option<&GroupKey>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<FailureGroup>, StoreError>
    where capped(PAGE_MAX, limit);

    /// Returns how many jobs an action changed, and for a replay the results of these jobs. The
    /// numbers are exact: they change in the same step as the jobs.
    async fn action_tally(&self, action: ActionId) -> Result<ActionTally, StoreError>;

    /// Removes failure groups without jobs in which nothing failed since `groups_before`, and
    /// tallies of actions that were created before `actions_before`.
    async fn trim_tallies(
        &self,
        groups_before: Timestamp,
        actions_before: Timestamp,
    ) -> Result<(), StoreError>;

    /// Removes succeeded and cancelled jobs that finished before `before`, with their history,
    /// where that is cheap: as whole days.
    ///
    /// Keeps jobs that finished later, and all dead, waiting and running jobs. It may also keep
    /// some older jobs, which [`Change::Purge`] removes one by one. Returns how many such parts it
    /// removed.
    async fn drop_history(&self, before: Timestamp) -> Result<usize, StoreError>;

    // Queues.

    /// Sets the limits of a queue; with `expected`, only if the queue has exactly these limits now.
    /// Returns whether it set them. A queue without limits has the default ones.
    async fn put_queue(
        &self,
        queue: &QueueName,
        limits: &QueueLimits,
        expected: Option<&QueueLimits>,
    ) -> Result<bool, StoreError>;

    /// Returns the limits of all queues that have any.
    async fn queues(&self) -> Result<BTreeMap<QueueName, QueueLimits>, StoreError>;

    // Schedules.

    /// Creates or changes a schedule if its version is the `expected` one.
    async fn put_schedule(
        &self,
        schedule: &Schedule,
        expected: Expected,
    ) -> Result<Written, StoreError>;

    /// Removes a schedule and the record of its skipped occurrences if its version is the
    /// `expected` one. Its jobs stay.
    async fn remove_schedule(
        &self,
        schedule: ScheduleId,
        expected: Expected,
    ) -> Result<Written, StoreError>;

    /// Returns one schedule, even if it is finished.
    async fn schedule(&self, which: &ScheduleRef) -> Result<Option<Schedule>, StoreError>;

    /// Returns all schedules by name, with the unreadable ones in a separate list. All other verbs
    /// skip an unreadable schedule, except [`Store::put_schedule`], because the schedule still
    /// holds its name, and [`Store::remove_schedule`].
    async fn schedules(&self) -> Result<Schedules, StoreError>;

    /// Returns up to `limit` schedules whose `next_at` has come, the longest due first.
    async fn due(&self, limit: usize, now: Timestamp) -> Result<Vec<Schedule>, StoreError>;

    /// Fires occurrences of many schedules. For each schedule, stores its jobs, the record of
    /// skipped occurrences, its new position and its new definition in one step.
    ///
    /// An occurrence becomes a job at most once, even if several nodes fire it. `max_depth` does
    /// not apply, because a full queue must not drop an occurrence. Steps of the same schedule take
    /// effect in their order. If a step is stale, or a constraint or trigger of the database
    /// refuses it, the others are written.
    async fn fire(&self, fires: Vec<Fire>, now: Timestamp) -> Result<Vec<Fired>, StoreError>
    where at_most(FIRE_MAX, fires.iter().map(Fire::size).sum());

    /// Returns the fired occurrences of a schedule before `before`, newest first, at most `limit`
    /// and at most [`PAGE_MAX`]. The store keeps them as long as their jobs.
    async fn occurrences(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<FiredOccurrence>, StoreError>
    where capped(PAGE_MAX, limit);

    /// Returns the waiting and running jobs among the newest [`UNFINISHED_SCAN_MAX`] occurrences of
    /// each schedule, newest first. Leaves out jobs that this version cannot read.
    ///
    /// [`UNFINISHED_SCAN_MAX`]: crate::UNFINISHED_SCAN_MAX
    async fn unfinished_occurrences(
        &self,
        schedules: &[ScheduleId],
    ) -> Result<Vec<Vec<Job>>, StoreError>
    where at_most(FIRE_MAX, schedules.len());

    // Documents.

    /// Writes a document if its version is the `expected` one.
    ///
    /// From `expires_at` on the document is absent: no read returns it, and a put creates it again
    /// with version 1. Each put sets `expires_at`; without one, the document stays until it is
    /// removed.
    async fn put_document(
        &self,
        collection: &str,
        name: &str,
        value: &Value,
        expected: Expected,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Written, StoreError>;

    /// Removes a document if its version is the `expected` one. An expired document can be removed
    /// until the store removes it itself.
    async fn remove_document(
        &self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Result<Written, StoreError>;

    /// Returns one document unless it has expired.
    async fn document(
        &self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> Result<Option<Document>, StoreError>;

    /// Returns the documents of a collection that have not expired, by name.
    async fn documents(
        &self,
        collection: &str,
        now: Timestamp,
    ) -> Result<Vec<Document>, StoreError>;

    /// Returns the names of unexpired documents of a collection that sort after `after`, in order,
    /// at most `limit` and at most [`PAGE_MAX`].
    async fn document_names(
        &self,
        collection: &str,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<String>, StoreError>
    where capped(PAGE_MAX, limit);

    /// Removes up to `limit` expired documents of all collections, the longest expired first, at
    /// most [`EXPIRED_MAX`] in one step. Returns how many. The cost grows with the number of
    /// removed documents, not with the number of documents.
    async fn remove_expired(&self, limit: usize, now: Timestamp) -> Result<usize, StoreError>
    where capped(EXPIRED_MAX, limit);

    // Records.

    /// Appends records to a topic.
    async fn append(&self, topic: &str, values: &[Value], now: Timestamp)
    -> Result<(), StoreError>
    where at_most(RECORDS_MAX, values.len());

    /// Returns records of a topic: those after a cursor, oldest first, or those before one, newest
    /// first, at most [`RECORDS_MAX`].
    async fn records(
        &self,
        topic: &str,
        range: RecordRange,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError>
    where capped(RECORDS_MAX, limit);

    /// Removes up to `limit` of the oldest records of a topic that were appended before `before`,
    /// at most [`RECORDS_MAX`] in one step. Returns how many.
    async fn trim(&self, topic: &str, before: Timestamp, limit: usize)
    -> Result<usize, StoreError>
    where capped(RECORDS_MAX, limit);

    // Nodes and time.

    /// Records a node's heartbeat.
    async fn beat(&self, name: &str, about: &Value, now: Timestamp) -> Result<(), StoreError>;

    /// Returns the nodes by name.
    async fn nodes(&self) -> Result<Vec<Node>, StoreError>;

    /// Removes a node.
    async fn remove_node(&self, name: &str) -> Result<(), StoreError>;

    /// Returns the time of the clock that all nodes of this store share. `None` if only one process
    /// can open the store, whose own clock counts.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError>;
}
}
