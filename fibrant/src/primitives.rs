//! The primitives of those files that models check: here std's. `tests/models.rs` compiles the same files with loom's in their
//! place.

pub(crate) use std::hint::spin_loop as spin;
pub(crate) use std::sync::atomic;

/// Lets another thread run. Not std's function: that is hooked, and would let another fiber run, in the middle of our own code.
pub(crate) fn yield_thread() {
    // SAFETY: it has no arguments.
    unsafe { crate::sys::syscall!(SYS_sched_yield) };
}
