//! The client, against a real server on loopback and against one that misbehaves.

mod actions;
mod connections;
mod events;
mod resources;
mod schedules;
mod support;
mod worker;
