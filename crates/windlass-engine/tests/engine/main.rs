//! The engine: its passes in virtual time on every store, its loops in paused time.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may, its helpers may"
)]

mod action_simulation;
mod actions;
mod claims;
mod discovery;
mod drain;
mod fairness;
mod log;
mod loops;
mod many_schedules;
mod races;
mod remote;
mod schedules;
mod signals;
mod simulation;
mod spans;
mod statistics;
mod turns;
mod vectors;
