//! Durable background jobs for Rust programs: typed, retried and scheduled.
//!
//! Windlass stores every job in a database before the enqueue returns, and runs it with a plain
//! `async fn`. Jobs survive crashes, deploys and outages. An attempt that fails is retried by a
//! policy that you can read and predict. A job that cannot succeed is kept, with its error and its
//! history, until a person decides what to do with it.
//!
//! This crate is a library: there is no server to install. It keeps jobs in memory, in a SQLite file
//! or in PostgreSQL, and runs them inside your own process.
//!
//! # Your first job
//!
//! ```
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use windlass::{Client, Context, Error, Failure, Job, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendEmail {
//!     to: String,
//! }
//!
//! impl Job for SendEmail {
//!     const KIND: &'static str = "email:send";
//! }
//!
//! async fn send_email(job: SendEmail, ctx: Context) -> Result<(), Failure> {
//!     println!("attempt {}: email to {}", ctx.attempt(), job.to);
//!     Ok(()) // an error here would be retried
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let client = Client::open("memory:").await?; // or "sqlite:jobs.db", or "postgres://…"
//!     let receipt = client.enqueue(SendEmail { to: "ann@example.org".into() }).await?;
//!
//!     // A service passes `tokio::signal::ctrl_c()`. This program stops when its job has finished.
//!     let waiting = client.clone();
//!     let finished = async move { waiting.wait(receipt.id, Duration::from_secs(10)).await };
//!     Worker::new(&client, ()).handle(send_email).run_until(finished).await?;
//!     Ok(())
//! }
//! ```
//!
//! # Concepts
//!
//! | concept | type | what it is |
//! |---|---|---|
//! | client | [`Client`] | opens a store, enqueues jobs, reads and changes them |
//! | job | [`Job`] | a Rust type whose values are jobs; its `KIND` picks the handler |
//! | options | [`Options`] | queue, priority, delay, timeout, unique key and more, per type or per enqueue |
//! | receipt | [`Receipt`] | the answer to an enqueue: the id of the job, and whether it is a duplicate |
//! | handler | [`Handler`] | an `async fn(job, Context<S>) -> Result<R, E>` that runs one type of job |
//! | context | [`Context`] | what a handler knows about its attempt, and the state that handlers share |
//! | failure | [`Failure`] | why an attempt failed, and what should happen next |
//! | worker | [`Worker`] | claims jobs from queues and runs their handlers |
//! | queue | [`Queue`], [`Queues`] | where jobs wait, and how a worker serves them |
//! | schedule | [`Schedule`] | a rule that enqueues a job by cron, at an interval, or once |
//! | stored job | [`StoredJob`], [`State`] | a job as the store holds it, and its state |
//!
//! A job is **waiting** until its time has come and a worker claims it. The worker holds a *lease*
//! while the job is **running** and renews it regularly, so another process notices when the worker
//! dies. A job ends as **succeeded**, **dead** or **cancelled**.
//!
//! # Errors and retries
//!
//! A handler may return any error. The job is retried by its [retry policy](retry::RetryPolicy)
//! until it succeeds or reaches its limit of attempts; then it is dead. The default policy is
//! [`Preset::Standard`](retry::Preset::Standard): 25 attempts, with delays that grow from 0.2 s to
//! 5 s. To decide otherwise, return one of the constructors of [`Failure`]
//! ([`retry_after`](Failure::retry_after), [`snooze`](Failure::snooze),
//! [`unrecoverable`](Failure::unrecoverable), [`cancel`](Failure::cancel)), implement
//! [`Classify`](retry::Classify) for your own error type, or set another policy with
//! [`Options::retry`], [`Queue::retry`] or [`Worker::retry`]. Panics, timeouts and crashed workers
//! count as failures too. [`Client::revive`] runs a dead job again. The [`retry`] module explains
//! all of this.
//!
//! Calls on [`Client`] and [`Worker`] return [`Error`], with a variant for each case that a caller
//! handles differently.
//!
//! # Delivery
//!
//! By default a job runs **at least once**: if a worker dies, the job runs again. Make its effects
//! repeatable; [`Context::idempotency_key`] is the same in every attempt. A job that is enqueued
//! with [`Options::at_most_once`] never starts a second time automatically.
//!
//! # Stores
//!
//! | URL for [`Client::open`] | jobs are kept | use it for |
//! |---|---|---|
//! | `memory:`, `memory:name` | in memory, until the process ends | tests and first steps |
//! | `sqlite:path` | in a file that one process owns | one node |
//! | `postgres://user@host/database` | in a database that many nodes share | several nodes |
//!
//! # Crate features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `sqlite` | yes | the store `sqlite:path` |
//! | `postgres` | no | the store `postgres://…`, and `admin::migrate` |
//! | `anyhow` | yes | [`Classify`](retry::Classify) looks into errors of `anyhow` |
//! | `eyre` | no | [`Classify`](retry::Classify) looks into reports of `eyre` |
//! | `prometheus` | no | the module `prometheus`, which counts everything for Prometheus |
//!
//! # Where to read on
//!
//! - [`retry`]: policies, error classes, and rules in code.
//! - [`schedule`]: cron, intervals, missed and overlapping occurrences.
//! - [`testing`]: test jobs with a virtual clock, without sleeping, crashes included.
//! - [`events`]: the stream of everything that happens, and hooks around attempts.
//! - [`admin`]: change many jobs at once, set limits for queues, migrate a database.
//! - The folder `examples` of this crate has a complete program for each of these subjects, and the
//!   folder `docs` of the repository has a guide for each.

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

pub use client::{Client, Enqueue, JobLog, Jobs, Receipt};
pub use context::Context;
pub use error::Error;
pub use failure::Failure;
pub use handler::Handler;
pub use job::Job;
pub use options::Options;
pub use queue::{Queue, Queues};
#[doc(inline)]
pub use schedule::Schedule;
pub use worker::Worker;

#[doc(inline)]
pub use windlass_core::{
    DeadReason, Invalid, Job as StoredJob, JobId, Outcome, Payload, State, Timestamp,
};
#[doc(inline)]
pub use windlass_store::{Attempt, Filter, ListedState, StoreError};

/// Compiles the examples of the documentation, and runs those that can run here.
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
