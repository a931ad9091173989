//! A worker that runs: its loops, in memory, in paused time. No test sleeps: time jumps to the next timer.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may"
)]

mod faults;
mod lingering;
mod queues;
mod refused;
mod retention;
mod running;
mod shutdown;
