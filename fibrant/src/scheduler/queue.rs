//! A worker's run queue: its started fibers that can go on, first in, first out.
//!
//! Only the worker's thread uses it, so nothing here is atomic. A fiber is linked through its own memory: queueing
//! allocates nothing.

use super::roster::Member;
use super::scheduled::Scheduled;
use crate::context;
use crate::primitives::atomic::Ordering::Relaxed;
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// How many cache lines of a fiber its turn needs.
pub(super) const LINES_OF_A_FIBER: usize = 3;

/// How many of a stack are read right after a switch to it in any case: the registers, and the frame of who has switched. More would push
/// those of others out, if there are a thousand who only take turns.
pub(super) const LINES_READ_FIRST: usize = 2;

/// How many of the stack of one that was away are asked for: its callers will be returned to, and each return waits for its line.
const LINES_OF_A_STACK: usize = 12;

/// A queue of fibers.
pub(super) struct Queue {
    first: Cell<*mut Scheduled>,
    last: Cell<*mut Scheduled>,
    length: Cell<usize>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            first: Cell::new(ptr::null_mut()),
            last: Cell::new(ptr::null_mut()),
            length: Cell::new(0),
        }
    }

    /// Appends a fiber with this stamp: it has just run, or has waited.
    ///
    /// # Safety
    /// It has not ended, is in no queue or inbox, and belongs to this worker.
    #[inline]
    pub(super) unsafe fn push(&self, fiber: NonNull<Scheduled>, stamp: u64, has_waited: bool) {
        // SAFETY: a fiber that has not ended is alive.
        let pushed = unsafe { fiber.as_ref() };
        pushed.next.store(ptr::null_mut(), Relaxed);
        pushed.station().set_stamp(stamp, has_waited);
        match NonNull::new(self.last.replace(fiber.as_ptr())) {
            // SAFETY: it is in the queue, so it has not ended.
            Some(last) => unsafe { last.as_ref() }.next.store(fiber.as_ptr(), Relaxed),
            None => self.first.set(fiber.as_ptr()),
        }
        self.length.set(self.length.get() + 1);
    }

    /// Takes the first fiber.
    #[inline]
    pub(super) fn pop(&self) -> Option<NonNull<Scheduled>> {
        let first = NonNull::new(self.first.get())?;
        // SAFETY: it is in the queue, so it has not ended.
        let next = unsafe { first.as_ref() }.next.load(Relaxed);
        self.first.set(next);
        if next.is_null() {
            self.last.set(ptr::null_mut());
        }
        self.length.set(self.length.get() - 1);
        self.prefetch_next();
        Some(first)
    }

    /// Those who are next are as good as certain to run soon, and may not have run for a while: while this one runs, the stack of the next
    /// one, the page of the second one's stack, and what the scheduler knows of the third one are on their way.
    #[inline]
    fn prefetch_next(&self) {
        // SAFETY: what is in the queue has not ended, and has a context, which is this thread's. It is live, or refers to one, or is that of the
        // fiber that runs and has just been queued again: then its address is an old one, but nothing is read there.
        unsafe {
            let Some(next) = self.first.get().as_ref() else {
                return;
            };
            let lines = match next.station().was_away() {
                true => LINES_OF_A_STACK,
                false => LINES_READ_FIRST,
            };
            next.context.prefetch(lines);
            let Some(second) = next.next.load(Relaxed).as_ref() else {
                return;
            };
            second.context.prefetch(1);
            context::prefetch_lines(second.next.load(Relaxed), LINES_OF_A_FIBER);
        }
    }

    /// Takes a fiber out, wherever it is. Says whether it was there.
    pub(super) fn remove(&self, fiber: NonNull<Scheduled>) -> bool {
        let (mut previous, mut next): (*mut Scheduled, _) = (ptr::null_mut(), self.first.get());
        while let Some(one) = NonNull::new(next) {
            // SAFETY: it is in the queue, so it has not ended.
            next = unsafe { one.as_ref() }.next.load(Relaxed);
            if one == fiber {
                // SAFETY: null, or in the queue.
                match unsafe { previous.as_ref() } {
                    Some(previous) => previous.next.store(next, Relaxed),
                    None => self.first.set(next),
                }
                if next.is_null() {
                    self.last.set(previous);
                }
                self.length.set(self.length.get() - 1);
                return true;
            }
            previous = one.as_ptr();
        }
        false
    }

    /// The first fiber.
    pub(super) fn first(&self) -> Option<NonNull<Scheduled>> {
        NonNull::new(self.first.get())
    }

    /// The stamp of the first fiber; higher than any if there is none.
    #[inline]
    pub(super) fn first_stamp(&self) -> u64 {
        match self.first() {
            // SAFETY: it is in the queue, so it has not ended.
            Some(first) => unsafe { first.as_ref() }.station().stamp(),
            None => u64::MAX,
        }
    }

    /// How many fibers are in it.
    pub(super) fn length(&self) -> usize {
        self.length.get()
    }
}
