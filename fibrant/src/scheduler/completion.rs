//! How a fiber's end is announced, and to whom.
//!
//! The fiber completes once. At most one party waits for it at a time, the holder of its join handle: a fiber, or a plain
//! thread. The state tells who owns the waiter's cell and, in the end, the fiber's result:
//!
//! - **Open**: it has not ended and nobody waits. The cell is the joiner's.
//! - **Awaited**: a waiter is in the cell, which is the completing side's. The joiner may take it back ([`forget`]).
//! - **Detached**: it has not ended, and nobody will ever ask: the completing side drops the result.
//! - **Waking**: it has ended, and the result is the joiner's. If there was a waiter, it is being woken.
//! - **Done**: nothing more happens.
//!
//! A waiter is not counted: it is good as long as its fiber waits. A joiner whose wait ends for another reason takes its waiter
//! back and, if the completing side has it already, stays until that is done with it.
//!
//! [`forget`]: Completion::forget

use super::waker::Waker;
use crate::primitives::atomic::{
    AtomicU8,
    Ordering::{AcqRel, Acquire, Release},
};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

const OPEN: u8 = 0;
const AWAITED: u8 = 1;
const DETACHED: u8 = 2;
const WAKING: u8 = 3;
const DONE: u8 = 4;

/// Whether a fiber has ended, and who waits for that.
pub(crate) struct Completion {
    state: AtomicU8,
    /// There in Awaited, and while it is being put there or taken out.
    waiter: UnsafeCell<MaybeUninit<Waker>>,
}

/// Who owns the result of a fiber that has just completed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResultOwner {
    /// The holder of the join handle.
    Joiner,
    /// Nobody else: the completing side drops it.
    Completer,
}

impl Completion {
    pub(crate) fn new() -> Completion {
        Completion {
            state: AtomicU8::new(OPEN),
            waiter: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Whether the fiber has ended.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Acquire) >= WAKING
    }

    /// Whether nobody will ever ask for the result, if the fiber has not ended.
    #[inline]
    pub(crate) fn is_detached(&self) -> bool {
        self.state.load(Acquire) == DETACHED
    }

    /// Asks to be woken when the fiber ends; false if it has ended.
    ///
    /// # Safety
    /// The caller is the joiner, and has forgotten its last waiter.
    #[inline]
    pub(crate) unsafe fn wait(&self, waiter: Waker) -> bool {
        if self.is_done() {
            return false;
        }
        // SAFETY: in Open, and if it has ended, the cell is the joiner's, and it is in one of them: its last waiter was taken back.
        unsafe { (*self.waiter.get()).write(waiter) };
        if self
            .state
            .compare_exchange(OPEN, AWAITED, AcqRel, Acquire)
            .is_ok()
        {
            return true;
        }
        // SAFETY: it has ended: the cell was never given away, and was filled above.
        unsafe { (*self.waiter.get()).assume_init_drop() };
        false
    }

    /// Takes the waiter back: the joiner does not wait any more. `was_woken` says that its wait was ended by the completing side,
    /// which then has nothing more to do with it.
    ///
    /// # Safety
    /// The caller is the joiner.
    #[inline]
    pub(crate) unsafe fn forget(&self, was_woken: bool) {
        if was_woken && self.is_done() {
            return;
        }
        if self
            .state
            .compare_exchange(AWAITED, OPEN, AcqRel, Acquire)
            .is_ok()
        {
            // SAFETY: in Open the cell is the joiner's; a moment ago it was Awaited, so it is filled.
            unsafe { (*self.waiter.get()).assume_init_drop() };
            return;
        }
        // The completing side has it, on another thread, and is about to find that there is nobody to wake.
        while self.state.load(Acquire) == WAKING {
            crate::primitives::yield_thread();
        }
    }

    /// The joiner goes away. Returns whether the result is there, and the joiner's to drop.
    ///
    /// # Safety
    /// The caller is the joiner, does not wait, and does not come back.
    pub(crate) unsafe fn detach(&self) -> bool {
        self.state
            .compare_exchange(OPEN, DETACHED, AcqRel, Acquire)
            .is_err()
    }

    /// The fiber has ended and its result is in place: wakes who waits.
    ///
    /// # Safety
    /// Called once, by somebody who keeps this alive.
    #[inline]
    pub(crate) unsafe fn complete(&self) -> ResultOwner {
        let before = self.state.swap(WAKING, AcqRel);
        if before == AWAITED {
            // SAFETY: the state was Awaited, so the cell is filled and was the completing side's; the joiner finds Waking and leaves it.
            let waiter = unsafe { (*self.waiter.get()).assume_init_read() };
            // SAFETY: its fiber waits, or stays until this is done.
            unsafe { waiter.wake() };
        }
        self.state.store(DONE, Release);
        if before == DETACHED {
            ResultOwner::Completer
        } else {
            ResultOwner::Joiner
        }
    }

    /// The same, if the joiner neither waits nor goes away meanwhile: then there is nobody to wake, and the result is the joiner's.
    ///
    /// # Safety
    /// Called once, in Open, and the joiner does nothing until this has returned.
    #[inline]
    pub(crate) unsafe fn complete_unasked(&self) {
        self.state.store(DONE, Release);
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion")
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}
