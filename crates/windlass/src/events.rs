//! The stream of everything that happens to jobs and schedules, and the types that hooks see.
//!
//! There are three ways to follow what happens:
//!
//! - [`Client::events`](crate::Client::events) returns a [`Subscription`]: a stream of every
//!   [`Event`] in this process, from that moment on. Use it for logs, live views and tests.
//! - [`Worker::before`](crate::Worker::before) and [`Worker::after`](crate::Worker::after) call a
//!   function around each attempt, with the [`RunningAttempt`] and the [`Report`] of its outcome.
//! - A [`Recorder`] receives every event and measurement, for a metrics system. With the feature
//!   `prometheus`, the crate has one for Prometheus.
//!
//! A subscription buffers a bounded number of events. A reader that falls behind receives
//! [`Received::Missed`] with the number of events that it lost, and then continues.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use windlass::events::Received;
//! use windlass::testing::TestKit;
//! use windlass::{Context, Failure, Job, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Ping;
//!
//! impl Job for Ping {
//!     const KIND: &'static str = "ping";
//! }
//!
//! async fn ping(_: Ping, ctx: Context) -> Result<(), Failure> {
//!     if ctx.attempt() == 1 { Err("no answer".into()) } else { Ok(()) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), windlass::Error> {
//! let kit = TestKit::new();
//! let mut events = kit.client().events();
//! kit.client().enqueue(Ping).await?;
//! kit.worker(Worker::new(kit.client(), ()).handle(ping)).await?.drain().await?;
//!
//! let mut names = Vec::new();
//! while let Some(Received::Event(event)) = events.try_next() {
//!     names.push(event.name());
//! }
//! assert_eq!(
//!     names,
//!     [
//!         "enqueued", "claimed", "started", "failed", "failure_group_created", "retried", // the first attempt
//!         "claimed", "started", "succeeded", // the second
//!     ]
//! );
//! # Ok(())
//! # }
//! ```

#[doc(inline)]
pub use windlass_core::{Failure as ReportedFailure, FailureClass, Report};
#[doc(inline)]
pub use windlass_engine::{
    ActionEvent, Cancellation, Event, JobEvent, JobRef, Progress, ProgressError, Received,
    Recorder, RunningAttempt, ScheduleEvent, StopReason, Stopped, Subscription,
};
#[doc(inline)]
pub use windlass_store::AttemptId;
