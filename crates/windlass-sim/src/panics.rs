//! Panics of the simulated engine. Its tasks catch them, so a run would pass without this.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use crate::checker::{Invariant, Violation};

thread_local! {
    /// The first panic of this thread's run.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Begins a run on this thread.
pub(crate) fn forget() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANIC.with_borrow_mut(|first| {
                first.get_or_insert_with(|| info.to_string());
            });
            before(info);
        }));
    });
    PANIC.set(None);
}

/// The first panic of the run, as a violation.
pub(crate) fn violation() -> Option<Violation> {
    let what = PANIC.take()?;
    Some(Violation {
        invariant: Invariant::I25,
        job: None,
        what,
        events: Vec::new(),
    })
}
