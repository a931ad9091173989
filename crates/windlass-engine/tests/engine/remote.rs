//! Remote workers: what they claim, report and receive, in virtual time on every store, and waiting
//! claims in paused time.

mod attempts;
mod claims;
mod lines;
mod logs;
mod scene;
mod waiting;
