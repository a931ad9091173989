//! Durable, typed, retried, scheduled background jobs for Rust programs.
//!
//! A job is a type, a handler is an async function. What was enqueued is on disk before the answer; what fails is retried by
//! a policy that can be read and predicted; what cannot succeed waits, explained, for a person.
//!
//! ```
#![doc = include_str!("../examples/minimal.rs")]
//! ```
//!
//! - [`Client`] enqueues jobs and looks at them; [`Worker`] runs them; [`Schedule`] enqueues them again and again.
//! - [`Job`] is what a type must say to be one; [`Options`] what can be said about one job.
//! - [`Failure`] is what a handler may ask for when it fails; every other error is retried.
//! - [`testing`] has a virtual clock, and injects crashes.

mod client;
mod context;
mod error;
mod failure;
mod handler;
mod job;
mod open;
mod options;
#[cfg(feature = "prometheus")]
mod prometheus;
mod queue;
mod retry_rule;
mod schedule;
pub mod testing;
mod worker;

pub use client::{Client, Enqueue, Jobs, QueueSettings, Receipt};
pub use context::Context;
pub use error::Error;
pub use failure::{Class, Classify, Failure};
pub use handler::{Handler, RESULT_BYTES_MAX};
pub use job::Job;
pub use options::{Options, Retry};
#[cfg(feature = "prometheus")]
pub use prometheus::{METRICS, Metric, MetricKind, MetricsFormat, PrometheusRecorder};
pub use queue::{Queue, Queues};
pub use retry_rule::{FailedAttempt, RetryDecision, RetryRule};
pub use schedule::Schedule;
pub use worker::Worker;

pub use windlass_core::retry::{Backoff, Jitter, Preset, RetryPolicy};
pub use windlass_core::schedule::{Firing, Missed, NewSchedule, Overlap};
pub use windlass_core::{
    Consent, DeadReason, Edit, Failures, Invalid, Job as StoredJob, JobId, Outcome, Payload,
    Report, Revival, State, Timestamp, Unrecoverable,
};
pub use windlass_engine::{
    Event, Handler as AttemptHandler, Health, Heard, JobEvent, JobRef, Progress, Recorder,
    Running as RunningHandler, RunningAttempt, ScheduleEvent, StopReason, Stopped, Subscription,
};
pub use windlass_store::{
    Attempt, Expected, Filter, FiredOccurrence, ListedState, Page, Schedule as StoredSchedule,
    ScheduleRef, StoreError,
};

/// The examples of the documentation are compiled, and run where they can be.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../README.md")]
    struct CrateReadme;
    #[doc = include_str!("../../windlass-core/README.md")]
    struct CoreReadme;
    #[doc = include_str!("../../../docs/first-job.md")]
    struct FirstJob;
    #[doc = include_str!("../../../docs/retries-and-errors.md")]
    struct RetriesAndErrors;
    #[doc = include_str!("../../../docs/delivery.md")]
    struct DeliveryGuarantees;
    #[doc = include_str!("../../../docs/fairness.md")]
    struct Fairness;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/shutdown.md")]
    struct Shutdown;
    #[doc = include_str!("../../../docs/schedules-in-rust.md")]
    struct Schedules;
    #[doc = include_str!("../../../docs/metrics.md")]
    struct Metrics;
}
