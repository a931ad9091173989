//! HTTP jobs: requests to a URL that a job names, guarded, signed, retried and explained.
//!
//! The one crate that dials out. Nothing else of Windlass opens a connection to an address that a user named.
