//! The client, against a real server on loopback and against one that misbehaves.

mod connections;
mod resources;
mod support;
mod worker;
