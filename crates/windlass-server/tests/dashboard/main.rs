//! The dashboard: its pages over HTTP, its sessions, and the same pages in a browser.

mod browser;
mod hostile;
mod pages;
mod sessions;
mod support;
