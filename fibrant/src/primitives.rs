//! The primitives of those files that models check: here std's. `tests/models.rs` compiles the same files with loom's in their
//! place.

pub(crate) use std::hint::spin_loop as spin;
pub(crate) use std::sync::atomic;

/// Makes a function `const`; not in the models, whose primitives are made at run time.
macro_rules! const_unless_modelled {
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visibility const fn $($rest)*
    };
}
pub(crate) use const_unless_modelled;

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

/// A number that was not drawn before. One counter for all: thread-locals would begin anew with each fiber.
#[inline]
pub(crate) fn draw() -> u64 {
    static COUNTER: atomic::AtomicU64 = atomic::AtomicU64::new(0);
    COUNTER.fetch_add(0x9E37_79B9_7F4A_7C15, atomic::Ordering::Relaxed)
}

std::thread_local! {
    /// How many of our own locks this thread has taken.
    static LOCKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Notes that this thread has taken one of our own locks.
#[inline(always)]
pub(crate) fn note_locked() {
    LOCKS.with(|locks| locks.set(locks.get() + 1));
}

/// Notes that it has given one back.
#[inline(always)]
pub(crate) fn note_unlocked() {
    LOCKS.with(|locks| locks.set(locks.get() - 1));
}

/// Calls `f`, in which the fiber that runs here does not wait, as if it had one of our own locks: for what only its worker uses, and borrows
/// without a lock. Another fiber of the worker, or the worker itself, would find it borrowed.
#[inline(always)]
pub(crate) fn without_waiting<T>(f: impl FnOnce() -> T) -> T {
    struct Noted;
    impl Drop for Noted {
        #[inline(always)]
        fn drop(&mut self) {
            note_unlocked();
        }
    }
    note_locked();
    let _noted = Noted;
    f()
}

/// How many of our own locks this thread has.
#[inline(always)]
pub(crate) fn locks() -> u32 {
    LOCKS.get()
}

/// Whether this thread has one of our own locks. Then its fiber must not wait, for the allocator's locks either: whoever wants ours
/// would spin until it goes on, and that may be the worker that it would go on on.
#[inline(always)]
pub(crate) fn has_lock() -> bool {
    LOCKS.get() > 0
}
