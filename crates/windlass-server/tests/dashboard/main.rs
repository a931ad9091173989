//! The dashboard: its pages over HTTP, its sessions, and the same pages in a browser.
#![expect(clippy::indexing_slicing, reason = "what a test may, its helpers may")]

mod accessible;
mod browser;
mod changes;
mod everything;
mod evidence;
mod fields;
mod flows;
mod hostile;
mod pages;
mod queues;
mod sessions;
mod steady;
mod support;
mod touch;
