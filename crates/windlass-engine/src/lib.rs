//! The loops that move Windlass jobs.
//!
//! ```text
//!  store ──▶ fetcher ──▶ dispatcher ──▶ (handler) ──▶ committer ──▶ store
//!            claims into   runs, renews,               settles in
//!            free slots    times out, stops            batches
//!
//!  sweeper: ends attempts of dead workers     scheduler: fires schedules     janitor: removes old data
//!  statistics: counts what happens, for all processes of a store
//! ```
//!
//! Each loop is a struct with a config, a `run` that only loops, and a pass that does the work.
//! `windlass-core` decides what may happen to a job, and the store writes what did happen. Only a
//! [`Clock`] reads the time.

mod action;
mod attempt;
mod attempt_end;
mod attempt_events;
mod audit;
mod clock;
mod committer;
mod credits;
mod discovery;
mod dispatcher;
mod drain;
mod engine;
mod event;
mod failure_lines;
mod fetcher;
mod finish_waits;
mod handler;
mod hook;
mod ids;
mod instrumented_store;
mod janitor;
mod job_log;
mod lingering_handlers;
mod log_throttle;
mod log_writer;
mod logs;
mod loop_backoff;
mod maintenance;
mod poison;
mod progress;
mod queue_settings;
mod recorder;
mod registry;
pub mod remote;
mod saturate;
mod scheduler;
mod slots;
mod sources;
mod statistics;
mod sweeper;
mod watchdog;
mod worker;
mod worker_description;
mod worker_state;
mod write_health;

pub use action::{
    Action, ActionError, ActionPreview, ActionRunner, ActionRunnerConfig, ActionStatus, Actions,
    Activity, ItemFailure, NewAction, Work,
};
pub use attempt::{
    Cancellation, PROGRESS_BYTES_MAX, Progress, ProgressError, RunningAttempt, StopReason,
};
pub use audit::{AUDIT_TOPIC, Actor, Audit, AuditFilter, AuditPage, AuditRecord, ChainCheck};
pub use clock::{Clock, SystemClock, VirtualClock, Wait};
pub use drain::{DrainError, Drained};
pub use engine::{EVENTS_KEPT, Engine};
pub use event::{
    ActionEvent, Event, JobEvent, JobRef, Observer, Received, ScheduleEvent, Subscription,
};
pub use handler::{Handler, Handlers, Hooks, Running};
pub use hook::{HookError, HookWatcher, HookWatcherConfig, StoredHooks};
pub use ids::{Ids, Origin};
pub use janitor::{Janitor, JanitorConfig};
pub use lingering_handlers::lingering_jobs;
pub use maintenance::{MaintenanceConfig, run_maintenance};
pub use progress::PROGRESS;
pub use queue_settings::{QUEUE_SETTINGS, read_all_claim_settings, read_claim_settings};
pub use recorder::Recorder;
pub use scheduler::{ManualRun, Scheduler, SchedulerConfig, manual_run_job};
pub use sources::{DiscoverConfig, QueueConfig};
pub use statistics::{StatisticsSeries, StatisticsWriter, keep_writing_statistics};
pub use sweeper::{Sweeper, SweeperConfig};
pub use tokio_util::sync::CancellationToken;
pub use watchdog::{Health, PATIENCE_DEFAULT};
pub use worker::{Stopped, Worker, WorkerConfig};
pub use worker_description::{WorkerDescription, is_alive};
pub use worker_state::WorkerState;
pub use write_health::WriteHealth;
