//! Retry policies: how long to wait after a failure, and how often.
//!
//! A policy is data. It is made and checked here once, stored on a job, a kind or a queue, and evaluated by
//! pure functions of the number of failures and of random bits that are passed in.

mod backoff;
mod explain;
mod jitter;
mod json;
mod limit;
mod policy;
mod preset;
mod resolve;

pub use backoff::{BACKOFF_MAX_DEFAULT, Backoff};
pub use explain::{
    AttemptForecast, Explanation, HERD_REQUESTS_MAX, HERD_SECONDS_MAX, Herd, Span, explain,
};
pub use jitter::Jitter;
pub use limit::{ATTEMPTS_CEILING, AttemptLimit};
pub use policy::{DelayRange, RetryPolicy};
pub use preset::Preset;
pub use resolve::{Cap, PolicySource, ResolvedRetry, RetrySettings, WorkerRetry, resolve};
