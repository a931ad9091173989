#![doc = include_str!("../README.md")]

mod actions;
mod admin;
mod client;
mod connection;
mod error;
mod events;
mod export;
mod hooks;
mod jobs;
mod pager;
mod queues;
mod schedules;
mod worker;
mod workers;

pub use client::{Builder, Client, Method};
pub use error::{Cause, Error};
pub use events::Events;
pub use export::Export;
pub use pager::Pager;
pub use windlass_api as api;
pub use windlass_core as core;
pub use worker::{Attempt, Failure, Handled, Worker};
