//! The PostgreSQL driver, on servers that the tests start.

mod conformance;
mod faults;
mod idle;
mod keys;
mod migration;
mod model;
mod plans;
mod pooler;
mod races;
mod rows;
mod schedules;
mod server;
mod tallies;
mod together;
mod upkeep;
