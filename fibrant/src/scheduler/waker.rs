//! Whom to wake: a fiber in a certain wait, or a plain thread that is parked.
//!
//! Whoever announces something ([`completion`](super::completion), scopes, later locks and channels) keeps one of these, so
//! that fibers and threads can wait for the same things.

use crate::fiber::{Outcome, Task, WaitNumber};
use std::ptr::NonNull;
use std::thread::Thread;

/// Somebody who waits.
pub(crate) enum Waker {
    /// A fiber, and the wait that is to end. Not counted: whoever keeps it knows that the fiber has not ended.
    Fiber(NonNull<Task>, WaitNumber),
    /// A thread that parks itself until it finds what it waits for.
    Thread(Thread),
}

impl Waker {
    /// Ends the wait, if it has not ended for another reason.
    ///
    /// # Safety
    /// The fiber, if it is one, has not ended.
    #[inline]
    pub(crate) unsafe fn wake(self) {
        match self {
            Waker::Fiber(task, number) => {
                // SAFETY: the caller's promise. After the claim it goes on only when it is in a queue, by the last step of
                // `Task::wake`.
                unsafe {
                    if task.as_ref().wait.claim(number, Outcome::Woken) {
                        task.as_ref().wake();
                    }
                }
            }
            Waker::Thread(thread) => thread.unpark(),
        }
    }
}
