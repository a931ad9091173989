//! The Windlass server: REST interface, HTTP jobs, metrics.

pub mod access;
pub mod audit;
pub mod config;
pub mod listen;
pub mod secrets;
