//! A job as a Rust type.

use std::error::Error;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::options::Options;

/// The entry of a job's `meta` with the version of the type that wrote the payload; absent for
/// version 1.
pub(crate) const VERSION: &str = "payload_version";

/// A type whose values are jobs: the JSON of a value is the payload, and `KIND` picks the handler.
///
/// Only [`KIND`](Job::KIND) is required. [`defaults`](Job::defaults) sets options for all jobs of
/// the type.
///
/// When the type changes, jobs with the old payload may still be waiting. Fields that serde can
/// default need nothing. Otherwise raise [`VERSION`](Job::VERSION) and convert old payloads in
/// [`upcast`](Job::upcast). When the kind is renamed, list the old one in
/// [`ALIASES`](Job::ALIASES).
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use serde_json::{Value, json};
/// use windlass::retry::Preset;
/// use windlass::{Job, Options};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendEmail {
///     to: Vec<String>, // a single `String` in version 1
/// }
///
/// impl Job for SendEmail {
///     const KIND: &'static str = "email:send";
///     const VERSION: u32 = 2;
///
///     fn defaults() -> Options {
///         Options::new().queue("mail").retry(Preset::Conservative)
///     }
///
///     fn upcast(
///         _version: u32,
///         old: Value,
///     ) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(json!({ "to": [old["to"]] }))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job",
    label = "its first argument must be a job",
    note = "a job is a type that implements `Serialize` and `Deserialize` and has a kind: `impl windlass::Job for {Self} {{ const KIND: &'static str = \"…\"; }}`"
)]
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name of this type of job, which picks the handler: `[A-Za-z0-9_.:/-]{1,128}`.
    const KIND: &'static str;

    /// Former kinds of this type. The handler also runs jobs that were enqueued under them.
    const ALIASES: &'static [&'static str] = &[];

    /// The version of the payload. Raise it when old payloads no longer decode as this type, and
    /// convert them in [`Job::upcast`].
    const VERSION: u32 = 1;

    /// Returns the options of every job of this type. An enqueue may override them.
    ///
    /// The retry policy of the defaults is not stored with the job: the worker applies it. A deploy
    /// with another policy therefore also applies to jobs that are waiting.
    fn defaults() -> Options {
        Options::new()
    }

    /// Returns the unique key of this job, if it has one.
    ///
    /// While a job with this key is waiting or running in the same queue, another enqueue is a
    /// [duplicate](crate::Receipt::duplicate). [`Options::unique_key`] overrides it.
    fn unique_key(&self) -> Option<String> {
        None
    }

    /// Converts the payload of an older version into a payload of this version.
    ///
    /// The worker calls it for jobs whose version is below [`Job::VERSION`]. The default refuses
    /// them.
    ///
    /// # Errors
    ///
    /// An error is a failure of the attempt, and the job is retried.
    fn upcast(version: u32, payload: Value) -> Result<Value, Box<dyn Error + Send + Sync>> {
        let _ = payload;
        let (kind, current) = (Self::KIND, Self::VERSION);
        Err(format!(
            "{kind} is at version {current} and does not convert version {version}; implement `Job::upcast`"
        )
        .into())
    }
}
