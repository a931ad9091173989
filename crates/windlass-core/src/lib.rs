//! The rules of Windlass: what a job is and what may happen to it.
//!
//! A [`NewJob`] describes the work: a [`Kind`], which picks the handler, and a [`Payload`] for the
//! handler. Enqueuing turns it into a [`Job`] that waits in a queue. A worker claims the job, which
//! starts an attempt under a [`Lease`]. When the attempt ends, the worker sends a [`Report`], and
//! [`settle()`] decides what happens next: the job succeeds, waits for a retry, dies or is
//! cancelled. [`State::after`] is the whole state machine.
//!
//! - [`retry`] says whether and when a failed job runs again.
//! - [`schedule`] computes when a recurring job is due.
//! - [`fairness`] decides which ready jobs a queue starts next.
//! - [`statistics`] adds up what happened in each queue.
//! - [`Invalid`] is the error of every check of user input.
//!
//! Each rule is one pure function. The engine, the storage drivers, the server and the simulator
//! all call the same one. This crate does no I/O, has no async code and reads neither a clock nor a
//! source of randomness: callers pass `now` and random bits as arguments.

mod action;
mod attempt_log;
mod duration;
mod elapsed;
mod error_text;
mod failure;
mod failure_group;
pub mod fairness;
pub mod fields;
mod filter;
mod fingerprint;
mod hook;
mod id;
mod intervention;
mod invalid;
mod job;
mod json_rules;
mod name;
mod new_job;
mod outage;
mod patch;
mod pattern;
mod payload;
mod random;
mod redact;
mod replay;
mod reported;
pub mod retry;
pub mod schedule;
#[cfg(feature = "schema")]
mod schema;
mod settle;
mod state;
pub mod statistics;
mod timestamp;
mod why;
mod words;

pub use action::{
    ActionCommand, ActionState, BulkChange, BulkRevival, SkipReason, allowance, paced_until,
};
pub use attempt_log::{AttemptLog, LOG_BYTES_MAX, LOG_LINE_CHARS_MAX, LOG_LINES_MAX, LogLine};
pub use duration::{DURATION_MAX, format_duration, parse_duration};
pub use elapsed::Uptime;
pub use failure::{AttemptError, Failure, FailureClass, Unrecoverable};
pub use failure_group::{
    FIRST_GROUPS_MAX, GROUP_ERROR_CHARS_MAX, GROUP_NEW_AFTER, GROUPS_MAX, GroupCursor, GroupKey,
    GroupMember, hour_of, is_new_group,
};
pub use filter::{Filter, ListedState, PayloadMatch};
pub use fingerprint::{Fingerprint, cause_in_words};
pub use hook::{
    HOOK_QUEUE, HOOKS_MAX, Hook, HookDefinition, HookEvent, HookReport, HookSubject, QueueStarts,
    STALL_QUEUES_MAX, STALLED_AFTER_DEFAULT, hook_queue, idle_since,
};
pub use id::{ActionId, JobId, ScheduleId};
pub use intervention::{
    ActionCount, ActionTally, FirstOutcome, Interventions, RevivalResult, Revived, revival_changes,
};
pub use invalid::Invalid;
pub use job::{
    Concurrency, Conflict, Delivery, Edit, FailureCount, FinalState, Finish, Job, Lane, Lease,
    Occurrence, OnDuplicate, Revival, RevivalChanges, StateDetails, Timeout, Unique,
};
pub use json_rules::JsonRules;
pub use name::{HookName, Key, Kind, QueueName, ScheduleName, Tag, WorkerName, check_path_segment};
pub use new_job::{Deadline, JOB_BYTES_MAX, NewJob, Start, TIMEOUT_DEFAULT, check_meta};
pub use outage::{Heartbeats, HoldNotice, SweepHold, outage_hold};
pub use patch::{Patch, PatchError, PayloadPatch};
pub use pattern::QueuePattern;
pub use payload::{JSON_DEPTH_MAX, PAYLOAD_BYTES_MAX, Payload};
pub use random::{Random, fixed_hash};
pub use redact::redacted;
pub use replay::{Phase, ReplayProgress, ReplayRules, ReplayStep, StopReason, WaitingFor};
pub use reported::WorkerReport;
pub use settle::{
    CANCEL_GRACE, Outcome, RETRY_AFTER_MAX, Report, Running, SNOOZES_MAX, Settlement, Verdict,
    has_expired, settle,
};
pub use state::{Consent, DeadReason, Event, State};
pub use timestamp::Timestamp;
pub use why::{
    FinishedContext, PLANNED_MAX, PlannedAttempt, Reason, RevivalForecast, RevivalRefusal,
    WaitingContext, forecast_revival, plan_attempts, why_dead, why_not_running,
};
