//! Evidence for Windlass: what it promises, and a machine that tries to break the promises.
//!
//! - [`checker`] compares a [`History`](history::History) with the invariants.
//! - [`simulate`] runs the real engine with several nodes, faults and virtual time, from one seed.
//!   The same seed gives the same history.
//! - [`shrink`] makes a failing run smaller.

pub mod checker;
pub mod history;
#[cfg(feature = "planted-bugs")]
pub mod planted;
mod shrink;
mod simulation;
mod store_layer;

pub use shrink::{Shrunk, shrink};
pub use simulation::{Driver, Ingredient, Run, Shape, simulate};
