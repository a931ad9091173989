//! The SDK as a program uses it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may, its helpers may"
)]

mod actions;
mod client;
mod examples;
mod handlers;
mod jobs;
mod kill;
mod kit;
mod metrics;
mod operate;
mod rules;
mod schedules;
mod statistics;
mod support;
mod workers;
