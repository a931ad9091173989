//! HTTP jobs, sent to real targets on this machine while the engine runs in virtual time.

mod addresses;
mod async_requests;
mod bad_targets;
mod crowd;
mod delivery;
mod embedded;
mod failure_log;
mod hooks;
mod http2;
mod kill;
mod metrics;
mod scheduler_form;
mod signed;
mod snippets;
mod support;
