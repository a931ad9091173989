//! HTTP jobs, sent to real targets on this machine while the time of the engine is virtual.

mod addresses;
mod bad_targets;
mod counted;
mod crowd;
mod delivery;
mod embedded;
mod http2;
mod kill;
mod later;
mod scheduler_form;
mod signed;
mod snippets;
mod support;
mod told;
