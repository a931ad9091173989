//! The binary `windlass`, as a process.

mod admin;
mod bulk;
mod commands;
mod crash;
mod disk;
mod failures;
mod generated_docs;
mod http_jobs;
mod http_settings;
mod jobs;
mod live;
mod log;
mod postgres;
mod queues;
mod rehearsal;
mod replay;
mod replay_crash;
mod schedules;
mod server;
mod settings;
mod store;
mod support;
mod workers;
