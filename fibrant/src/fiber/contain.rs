//! A wall around the user's code where a panic of it is nobody's: it has been printed, and whoever happens to run there has nothing to do with it.
//!
//! The scheduler and the timers call it for destructors of what was never run, or is not wanted any more.

use std::mem;
use std::panic::{self, AssertUnwindSafe};

/// Calls `f`. Returns nothing if it panics; and neither does the destructor of what it panicked with get out, if that panics in turn.
pub(crate) fn contain<R>(f: impl FnOnce() -> R) -> Option<R> {
    let payload = match panic::catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // There is no end to it otherwise.
        mem::forget(second);
    }
    None
}
