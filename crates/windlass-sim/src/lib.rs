//! Evidence for Windlass: what it promises, and a machine that tries to break the promises.
//!
//! - [`checker`] compares a [`History`](history::History) with the invariants.
//! - [`simulate`] runs the real engine with several nodes, faults and virtual time, from one seed.
//!   The same seed gives the same history.
//! - [`shrink`] makes a failing run smaller.
//! - `crashtest` (a feature) kills real processes, and compares what they acknowledged with what is
//!   left.
//! - A [`Campaign`] simulates many seeds on all cores.

mod campaign;
pub mod checker;
#[cfg(feature = "crashtest")]
pub mod crashtest;
pub mod history;
mod panics;
mod planted;
mod shrink;
mod simulation;
mod store_layer;

pub use campaign::{Campaign, Failure, Report};
pub use planted::Bug;
pub use shrink::{Shrunk, shrink};
pub use simulation::{Driver, Ingredient, Run, Shape, simulate};
