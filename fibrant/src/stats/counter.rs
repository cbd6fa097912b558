//! One number that one thread increments and all may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter with a single writer.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    #[inline(always)]
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    /// Adds a number. Only the owning thread calls this, so reading and writing need not be one step (a locked instruction
    /// would cost as much as a whole switch).
    #[inline(always)]
    pub(crate) fn add(&self, number: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(number), Relaxed);
    }

    /// The number so far.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
