//! Whom to wake: a fiber in a certain wait, or a plain thread that is parked.
//!
//! Whoever announces something ([`completion`](super::completion), scopes, later locks and channels) keeps one of these, so
//! that fibers and threads can wait for the same things.

use crate::fiber::{Outcome, TaskRef, WaitNumber};
use std::thread::Thread;

/// Somebody who waits.
pub(crate) enum Waker {
    /// A fiber, and the wait that is to end.
    Fiber(TaskRef, WaitNumber),
    /// A thread that parks itself until it finds what it waits for.
    Thread(Thread),
}

impl Waker {
    /// Ends the wait, if it has not ended for another reason.
    pub(crate) fn wake(self) {
        match self {
            Waker::Fiber(task, number) => {
                if task.wait.claim(number, Outcome::Woken) {
                    // SAFETY: its wait was just claimed.
                    unsafe { task.wake() }
                }
            }
            Waker::Thread(thread) => thread.unpark(),
        }
    }
}
