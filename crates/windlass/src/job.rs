//! A job as a Rust type.

use std::error::Error;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::options::Options;

/// The entry of a job's `meta` that says which version of its type wrote the payload; absent for the first.
pub(crate) const VERSION: &str = "payload_version";

/// A type whose values are jobs: the payload is its JSON, the kind picks the handler.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use windlass::retry::Preset;
/// use windlass::{Job, Options};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendEmail {
///     to: String,
/// }
///
/// impl Job for SendEmail {
///     const KIND: &'static str = "email:send";
///
///     fn defaults() -> Options {
///         Options::new().queue("mail").retry(Preset::Conservative)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job",
    label = "its first argument must be a job",
    note = "a job is a type that serialises and says its kind: `impl windlass::Job for {Self} {{ const KIND: &'static str = \"…\"; }}`"
)]
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// Picks the handler: `[A-Za-z0-9_.:/-]{1,128}`.
    const KIND: &'static str;

    /// Former kinds of this type: jobs that still wait under them get the same handler.
    const ALIASES: &'static [&'static str] = &[];

    /// The version of the payload; count it up when the type changes in a way that old payloads do not fit.
    const VERSION: u32 = 1;

    /// Options of every job of this type, unless its enqueue says otherwise.
    ///
    /// A retry policy given here belongs to the kind: it is the worker's, so that a new one holds for waiting jobs too.
    fn defaults() -> Options {
        Options::new()
    }

    /// The unique key of this job: while a job with it waits or runs in the same queue, another enqueue is a duplicate. An
    /// enqueue may say another one.
    fn unique_key(&self) -> Option<String> {
        None
    }

    /// Turns the payload of an older version into one of this version.
    fn upcast(version: u32, payload: Value) -> Result<Value, Box<dyn Error + Send + Sync>> {
        let _ = payload;
        let (kind, ours) = (Self::KIND, Self::VERSION);
        Err(
            format!("{kind} has version {ours} and does not say how to read version {version}")
                .into(),
        )
    }
}
