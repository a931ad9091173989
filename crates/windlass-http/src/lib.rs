//! HTTP jobs: requests to a URL that a job names, guarded, signed, retried and explained.
//!
//! The one crate that dials out. Nothing else of Windlass opens a connection to an address that a user named.
//!
//! ```text
//!  payload ──▶ request ──▶ executor ──▶ sender ──▶ connector ──▶ guard ──▶ the target
//!              checked     headers,     bounds     resolves,     is every
//!                          signature               dials         address allowed?
//!                             │
//!                             └──▶ answer: what came back means for the job
//! ```

mod answer;
mod completion;
mod connector;
mod executor;
pub mod form;
mod guard;
mod hosts;
mod job;
mod phases;
mod request;
mod sender;
mod signature;

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
