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
//! - [`retry`], [`schedule`] and [`events`] hold the types of their subjects, [`admin`] what operators' tools need.
//! - [`testing`] has a virtual clock, and injects crashes.

pub mod admin;
mod client;
mod context;
mod error;
pub mod events;
mod failure;
mod handler;
mod job;
mod open;
mod options;
#[cfg(feature = "prometheus")]
pub mod prometheus;
mod queue;
pub mod retry;
pub mod schedule;
pub mod testing;
mod worker;

pub use client::{Client, Enqueue, Jobs, Receipt};
pub use context::Context;
pub use error::Error;
pub use failure::Failure;
pub use handler::Handler;
pub use job::Job;
pub use options::Options;
pub use queue::{Queue, Queues};
pub use schedule::Schedule;
pub use worker::Worker;

pub use windlass_core::{
    DeadReason, Invalid, Job as StoredJob, JobId, Outcome, Payload, State, Timestamp,
};
pub use windlass_store::{Attempt, Filter, ListedState, StoreError};

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
