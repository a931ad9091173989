//! The loops that move Windlass jobs.
//!
//! ```text
//!  store ──▶ fetcher ──▶ dispatcher ──▶ (handler) ──▶ committer ──▶ store
//!            claims into   runs, renews,               settles in
//!            free slots    times out, stops            groups
//!
//!  sweeper: leases of workers that died     scheduler: occurrences into jobs     janitor: what is old
//! ```
//!
//! Each loop is a struct with a config, a `run` that only loops, and a pass that does the work. What may happen to a job is
//! asked of `windlass-core`; what did happen is written by the store. Time comes from a [`Clock`] alone.

mod attempt_events;
mod attempt;
mod attempt_end;
mod audit;
mod finish_waits;
mod clock;
mod committer;
mod credits;
mod log_throttle;
mod discovery;
mod dispatcher;
mod drain;
mod engine;
mod event;
mod fetcher;
mod handler;
mod ids;
mod janitor;
mod lingering_handlers;
mod job_log;
mod instrumented_store;
mod progress;
mod queue_settings;
mod recorder;
mod registry;
pub mod remote;
mod loop_backoff;
mod scheduler;
mod slots;
mod sources;
mod sweeper;
mod upkeep;
mod watchdog;
mod worker;
mod worker_description;
mod write_health;

pub use attempt::{
    Cancellation, PROGRESS_BYTES_MAX, Progress, ProgressError, RunningAttempt, StopReason,
};
pub use audit::{AUDIT_TOPIC, Actor, Audit, AuditFilter, AuditPage, AuditRecord, Verified};
pub use clock::{Clock, SystemClock, VirtualClock, Wait};
pub use drain::{DrainError, Drained};
pub use engine::{EVENTS_KEPT, Engine};
pub use event::{Event, Heard, JobEvent, JobRef, Observer, ScheduleEvent, Subscription};
pub use handler::{Handler, Handlers, Hooks, Running};
pub use ids::{Ids, Origin};
pub use janitor::{Janitor, JanitorConfig};
pub use lingering_handlers::lingering_of;
pub use progress::PROGRESS;
pub use queue_settings::{QUEUE_SETTINGS, read_claim_settings};
pub use recorder::Recorder;
pub use scheduler::{Extra, Scheduler, SchedulerConfig, extra_job};
pub use sources::{DiscoverConfig, QueueConfig};
pub use sweeper::{Sweeper, SweeperConfig};
pub use tokio_util::sync::CancellationToken;
pub use upkeep::{UpkeepConfig, keep_up};
pub use watchdog::{Health, PATIENCE_DEFAULT};
pub use worker::{Stopped, Worker, WorkerConfig};
pub use worker_description::{WorkerAbout, is_alive};
pub use write_health::WriteHealth;
