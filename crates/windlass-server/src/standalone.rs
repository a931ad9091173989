//! The server as a process of its own, as `windlass serve` runs it: configuration, checks before the start, log, shutdown.

pub mod checks;
pub mod config;
pub mod log;
pub mod nodes;
mod start;

pub use start::{RunError, Server, StartError};
