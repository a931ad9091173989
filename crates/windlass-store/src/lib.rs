//! The contract of a Windlass store.
//!
//! A store keeps jobs and everything around them durably: history, queues, schedules, nodes, and
//! small documents and records. [`Store`] is the contract. The feature `conformance` tests each
//! sentence of it; every driver passes these tests.
//!
//! A store makes no decisions: `windlass-core` decides what may happen to a job, and a driver
//! writes the result in one atomic step.

mod change;
mod claim;
mod compare_and_set;
#[cfg(feature = "conformance")]
pub mod conformance;
mod document;
mod enqueue;
mod error;
mod failure_group;
mod node;
mod queue;
mod read;
pub mod refused;
mod schedule;
mod settle;
mod store;
pub mod stored;

pub use change::{ActionStep, CHANGE_MAX, Change, Changed};
pub use claim::{CLAIM_MAX, Claim, ClaimRetry, Claimed, Kinds, WorkerLocation};
pub use compare_and_set::compare_and_set;
pub use document::{Document, EXPIRED_MAX, Expected, RECORDS_MAX, Record, RecordRange, Written};
pub use enqueue::{ENQUEUE_MAX, Enqueue, EnqueueMode, Enqueued};
pub use error::{Cause, StoreError};
pub use failure_group::{FailureGroup, GROUP_HOURS, GroupFilter};
pub use node::Node;
pub use queue::{DueQueues, PAUSE_REASON_CHARS_MAX, Pause, QueueLimits};
pub use read::{
    Counts, ListCursor, ListOrder, Listed, Lister, PAGE_BYTES_MAX, PAGE_MAX, Page, SCAN_MAX,
    job_bytes,
};
pub use schedule::{
    FIRE_MAX, Fire, Fired, FiredOccurrence, Schedule, ScheduleRef, ScheduleRow, Schedules,
    UNFINISHED_SCAN_MAX, UnreadableSchedule, fire_one, read_skipped, skipped_record,
};
pub use settle::{Attempt, AttemptId, AttemptReport, Expired, Renewed, SETTLE_MAX, Settled, Swept};
pub use store::{Store, Wrapper};
pub use windlass_core::{Filter, ListedState};
