//! Test support that the crates of Windlass share.
//!
//! It depends on the drivers and the engine, so the unit tests inside those crates cannot use it:
//! they would see two versions of their own types. Integration tests can use it.

pub mod browser;
pub mod child;
pub mod client;
pub mod cluster;
pub mod fuzz;
pub mod pooler;
pub mod proxy;
pub mod running;
pub mod seeds;
pub mod target;
pub mod world;

mod faulty;

pub use faulty::Faulty;
pub use fuzz::Fuzz;
pub use running::Running;
pub use seeds::seeds;
pub use target::Target;
pub use world::World;
