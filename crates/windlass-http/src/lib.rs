//! HTTP jobs: requests to a URL that a job names, guarded, signed, retried and explained.
//!
//! The one crate that dials out. Nothing else of Windlass opens a connection to an address that a user named.
//!
//! ```text
//!  payload ──▶ request ──▶ sending ──▶ connector ──▶ guard ──▶ the target
//!              checked     headers,    resolves,     is every
//!                          signature   dials         address allowed?
//!                             │
//!                             └──▶ answer: what the target's answer means for the job
//! ```

mod guard;
mod request;

pub use guard::{Cidr, Guard};
pub use request::{COMPLETE_WITHIN_DEFAULT, HttpRequest, PermanentStatuses};
