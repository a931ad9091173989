//! Remote workers: what they claim, report and receive, in virtual time on every store, and waiting
//! claims in paused time.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may"
)]

mod attempts;
mod claims;
mod lines;
mod scene;
mod waiting;
