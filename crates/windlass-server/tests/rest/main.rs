//! The REST interface, over real HTTP on loopback with a real store.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "what a test may, its helpers may"
)]

mod access;
mod admin;
mod audit;
mod bulk;
mod bulk_actions;
mod claims;
mod clock;
mod conditions;
mod dead_letters;
mod description;
mod events;
mod export;
mod failures;
mod fairness;
mod form;
mod guide;
mod hooks;
mod hostile;
mod idempotency;
mod idempotency_crash;
mod jobs;
mod lists;
mod logs;
mod mounted;
mod policies;
mod problems;
mod queues;
mod refused;
mod replays;
mod schedules;
mod signing;
mod statistics;
mod support;
mod system;
mod unreadable;
mod withheld;
mod workers;
