//! A small lock, for what is held for some nanoseconds only.
//!
//! The scheduler's own lists are behind it. It is not std's, for two reasons: releasing it is a plain store, and three locks a
//! fiber are a good part of what a fiber costs; and it never waits in a futex, so that it can be taken where blocking calls are
//! hooked. Whoever finds it taken spins, then lets other threads run: its holder may have been preempted.

use crate::primitives::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::primitives::const_unless_modelled;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// How often it is looked at before other threads are let run.
const SPINS: u32 = 64;

/// Something that one thread at a time may use. What the value begins with is in the same line of the cache as the lock, if its owner sees
/// to that.
#[repr(C)]
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the guard only, and there is one at a time: it passes from thread to thread.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Gives the value while it lives.
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    const_unless_modelled! {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock {
                taken: AtomicBool::new(false),
                value: UnsafeCell::new(value),
            }
        }
    }

    /// Takes the lock. Not twice on one thread, and nothing may wait while it is held.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self
            .taken
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_err()
        {
            self.lock_slowly();
        }
        crate::primitives::note_locked();
        Guard(self)
    }

    #[cold]
    fn lock_slowly(&self) {
        let mut spins = 0;
        while self.taken.load(Relaxed)
            || self
                .taken
                .compare_exchange(false, true, Acquire, Relaxed)
                .is_err()
        {
            spins += 1;
            if spins < SPINS {
                crate::primitives::spin();
            } else {
                crate::primitives::yield_thread();
            }
        }
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard stands for the lock, which this thread has taken.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; there is one guard, and it is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
        crate::primitives::note_unlocked();
    }
}
