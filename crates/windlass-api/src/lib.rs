//! The JSON types of the Windlass REST API: requests, responses and errors.
//!
//! The server and its clients share them. Requests are checked with the rules of `windlass-core`,
//! so that they mean the same in every interface. The doc comments of the types are the
//! descriptions in `openapi.json`. The crate does no I/O.

mod action;
mod audit;
mod bulk;
mod change;
mod claim;
mod event;
mod export;
mod failures;
mod filter;
mod form;
mod hook;
mod job;
mod key;
mod log;
mod login_link;
mod new_job;
mod page;
mod policy;
mod problem;
mod query;
mod queue;
mod read;
mod replay;
mod retry;
mod schedule;
mod settle;
mod statistics;
mod strict;
mod system;
mod value;
mod why;

pub use action::{
    ActionPreview, BulkAction, BulkActionAnswer, BulkActionFields, BulkActionName,
    CheckedBulkAction, FieldChange, ItemFailure, JobDiff, JobPatch, NewBulkAction, Reason,
};
pub use audit::{
    AuditPage, AuditParams, AuditRecord, ReplacedPayload, VerifiedAudit, VerifyParams,
};
pub use bulk::{Bulk, BulkMode, CheckedBulk};
pub use change::{Edit, FailureCount, Revival, RunNow};
pub use claim::{
    AttemptNumber, CheckedClaim, CheckedProgress, CheckedRenewal, Claim, ClaimAnswer, ClaimOrder,
    LeaseRef, LostReason, NewWorker, Progress, QueueWeight, RenewAnswer, RenewStatus, Renewal,
    Renewed, RenewedLease, WeightedQueue, Worker, WorkerPage, WorkerSignal, WorkerState,
};
pub use event::{Event, EventName, EventParams};
pub use export::{ExportEnd, ExportFormat, ExportLine, ExportParams, ExportSummary};
pub use failures::{FailingState, FailureGroup, FailureParams, FailureSample};
pub use filter::{DeadFilter, JobFilter, JobOrder, ListParams};
pub use form::{
    CompletedJob, Completion, CompletionOutcome, Created, FormDelivery, FormSchedule, FormView,
    JobOrForm, NewJobOrForm, SchedulerForm,
};
pub use hook::{Hook, HookDetails, HookReport, HookTest, PutHook};
pub use job::{
    Attempt, AttemptStatus, BatchAnswer, BulkAnswer, BulkResult, Content, CreatedJob, FormAttempt,
    HistoryParams, Job, JobPage, JobState, Receipt, WaitParams,
};
pub use key::{CheckedNewKey, CreatedKey, Key, NewKey, NewSecret, Rotated, Scope, Secret};
pub use log::{CheckedLogParams, JobLog, LogLine, LogParams};
pub use login_link::LoginLink;
pub use new_job::{HttpRequest, KindOrDelivery, Meta, NewJob};
pub use page::{
    AuditPosition, BulkActionPosition, JobPosition, OccurrencePosition, Page, PageCursor,
    PageParams, Position, QueuePosition, ReplayPosition, SchedulePosition, WorkerPosition,
};
pub use policy::{
    AttemptForecast, ExplainParams, ExplainRequest, HerdSecond, NamedPolicy, PolicyExplanation,
    Range,
};
pub use problem::{FieldProblem, Problem, pointer_of};
pub use query::query_pairs;
pub use queue::{
    CreateQueue, FetchRatio, LastMinute, PauseQueue, Queue, QueueCounts, QueuePause, QueueRate,
    QueueSettings,
};
pub use read::{
    Body, BodyRefused, Checks, PROBLEMS_MAX, Param, params, read_body, read_body_with, read_query,
};
pub use replay::{Canary, CheckedReplay, NewReplay, Replay, ReplayAnswer, StopRules};
pub use retry::{Backoff, BackoffType, Jitter, JitterObject, JitterType, Policy, Retry};
pub use schedule::{
    Backfill, BackfillAnswer, BackfillRange, BulkScheduleResult, BulkSchedules,
    BulkSchedulesAnswer, CheckedPreview, Firing, NewSchedule, Occurrence, Preview, PreviewParams,
    PutSchedule, RunAnswer, Schedule, ScheduleParams, SchedulePatch, ScheduleText, ScheduleTimes,
    ScheduleView, UnreadableSchedule,
};
pub use settle::{
    AttemptOutcome, ErrorCauses, ErrorText, OutcomeWord, Outcomes, ReportedOutcome, SettleAnswer,
    SettleStatus, Settled,
};
pub use statistics::{
    Activity, AttemptSplit, QueueActivity, Statistics, StatisticsParams, StatisticsPoint,
    TimePercentiles,
};
pub use strict::{Malformed, body_text};
pub use system::{ServerSetting, ServerStatus, StatusWord};
pub use value::{
    BoundedInt, Count, DurationText, Json, List, Millis, Text, TimeoutText, either_duration,
    some_even_if_null,
};
pub use why::{
    Death, PlannedAttempt, PolicyFrom, PolicyInForce, RetryPlan, RevivalForecast, Why, WhyReason,
};
