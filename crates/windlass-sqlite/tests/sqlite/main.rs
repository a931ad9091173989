//! The SQLite driver on real files.

mod checkpoints;
mod conformance;
mod damage;
mod durability;
mod identity;
mod migration;
mod model;
#[path = "../recount/mod.rs"]
mod recount;
#[path = "../version_1/mod.rs"]
mod version_1;
