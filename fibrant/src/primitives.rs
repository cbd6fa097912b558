//! The primitives of those files that models check: here std's. `tests/models.rs` compiles the same files with loom's in their
//! place.

pub(crate) use std::hint::spin_loop as spin;
pub(crate) use std::sync::atomic;

/// A full fence: what this thread has written before is seen by others before it reads what follows.
#[inline(always)]
pub(crate) fn full_fence() {
    // A locked instruction is one, and takes a fraction of the time that the compiler's choice, MFENCE, does: it is on the way of every
    // lock that is let go.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes nothing, below the stack pointer, where the compiler may keep something but nobody else writes.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 8], 0");
    }
    #[cfg(not(target_arch = "x86_64"))]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// Lets another thread run. Not std's function: that is hooked, and would let another fiber run, in the middle of our own code.
pub(crate) fn yield_thread() {
    // SAFETY: it has no arguments.
    unsafe { crate::sys::syscall!(SYS_sched_yield) };
}
