//! Retry policies: how long to wait after a failure, and how many times to retry.
//!
//! A policy combines a [`Backoff`] (how the delay grows), a [`Jitter`] (how it is randomized) and
//! limits. Users often name a [`Preset`]. [`resolve()`] picks the policy of a job from those of the
//! job, its kind, its queue and its worker. [`explain()`] forecasts what a policy does.
//!
//! A policy is data: it is checked when it is made, can be stored, and is evaluated by pure
//! functions of the number of failures and of random bits that the caller passes.

mod backoff;
mod explain;
mod jitter;
mod json;
mod limit;
mod policy;
mod preset;
mod resolve;
mod words;

pub use backoff::{BACKOFF_MAX_DEFAULT, Backoff};
pub use explain::{
    AttemptForecast, Explanation, HERD_REQUESTS_MAX, HERD_SECONDS_MAX, Herd, Span, explain,
};
pub use jitter::Jitter;
pub use limit::{ATTEMPTS_CEILING, AttemptLimit};
pub use policy::{DelayRange, RetryPolicy};
pub use preset::Preset;
pub use resolve::{Cap, PolicySource, ResolvedRetry, RetrySettings, WorkerRetry, resolve};
