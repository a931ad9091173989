//! HTTP jobs: jobs of kind `http` that send a request to a URL.
//!
//! What this crate guarantees:
//!
//! - **Requests reach only allowed addresses**: public ones, and ranges that the operator opens with
//!   [`HttpConfig::allow`]. It checks the address of the socket itself, so no spelling of an address,
//!   no DNS answer and no redirect gets around the check.
//! - **Delivery is as the job says.** An at-most-once request is sent at most once, also by the HTTP
//!   library. An at-least-once request is retried by the policy of the job, and obeys `Retry-After`.
//! - **Requests can be signed** by the Standard Webhooks convention, with secrets that are bound to
//!   hosts.
//! - **A target may report the outcome later**: it responds with 202 and calls back with a token.
//! - **Every attempt explains itself**: status, headers, the beginning of the body, and how long each
//!   phase took.
//!
//! The server runs HTTP jobs by default. A Rust program needs no server: [`HttpJobs::serve`] makes
//! any `Worker` send them.
//!
//! ```
//! use std::time::Duration;
//!
//! use serde_json::json;
//! use windlass::{Client, Worker};
//! use windlass_http::{HttpConfig, HttpJob, HttpJobs};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::open("memory:").await?;
//! let hook = HttpJob::post("http://127.0.0.1:8080/hook").body(json!({"order": 7}));
//! let id = client.enqueue(hook).await?.id;
//!
//! let http = HttpJobs::new(HttpConfig::default())?;
//! let worker = http.serve(Worker::new(&client, ()).queue("default", 10));
//! // A service would run until Ctrl-C; this example runs until the job is finished.
//! let waiting = client.clone();
//! let finished = async move { waiting.wait(id, Duration::from_secs(30)).await };
//! worker.run_until(finished).await?;
//!
//! // This address is not public, so the job failed without opening a connection.
//! let error = client.attempts(id, 1).await?.remove(0).error.expect("an error").to_string();
//! assert!(error.starts_with("sending to `http://127.0.0.1:8080` is not allowed"));
//! assert_eq!(http.connections_opened(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! How a request passes through the modules:
//!
//! ```text
//!  payload ──▶ request ──▶ executor ──▶ sender ──▶ connector ──▶ guard ──▶ the target
//!              checked     headers,     limits     resolves,     is every
//!                          signature               dials         address allowed?
//!                             │
//!                             └──▶ response: what it means for the job
//! ```
//!
//! No other crate of Windlass connects to an address that a user chooses.

mod completion;
mod connector;
mod executor;
pub mod form;
mod guard;
mod hosts;
mod job;
mod request;
mod response;
mod sender;
mod signature;
mod timeline;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use completion::{Completed, Completion, complete};
pub use connector::{Resolve, SystemResolver, TlsError, TlsRoots};
pub use executor::{
    DEADLINE_HEADER, DEPTH_HEADER, DEPTH_MAX, DEPTH_META, HttpConfig, HttpConfigError, HttpJobs,
};
pub use guard::{Cidr, Guard};
pub use hosts::{HostPattern, SECRET_HOSTS_MAX, SecretHosts};
pub use job::{
    HTTP_KIND, HTTP_TIMEOUT_DEFAULT, HttpJob, http_kind, is_http, kind_retry, with_defaults,
};
pub use request::{COMPLETE_WITHIN_DEFAULT, HttpRequest, PermanentStatuses};
pub use signature::{
    KeyError, NoSigningKeys, SigningKey, SigningKeys, WebhookSecret, seconds, sign,
};

/// Locks a mutex even if a thread panicked while it held the lock: all values behind our locks are
/// valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
