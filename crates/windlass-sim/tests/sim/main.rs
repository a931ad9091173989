//! Bounded simulations. `./test --long` runs many more seeds.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may"
)]

mod determinism;
mod planted;
mod seeds;
