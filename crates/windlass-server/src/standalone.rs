//! The server as its own process, as `windlass serve` runs it: configuration, checks at start, log
//! and shutdown.

pub mod checks;
pub mod config;
pub mod log;
mod loopback;
pub mod nodes;
mod parts;
mod start;

pub use loopback::Loopback;
pub use start::{RunError, Server, StartError};
