//! The SQLite driver on real files.

mod conformance;
mod durability;
mod identity;
mod model;
