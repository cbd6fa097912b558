//! Somebody who waits: the fiber that runs here, or else the calling thread.
//!
//! Locks, channels and the wait table keep such a one in their lists. A wait is ended in two steps: it is *claimed*, which succeeds
//! once; then, when whoever has claimed it is done with what lies in the frame of the one that waits, it is *woken*. A fiber waits by way of
//! its worker, a thread in the kernel, for a number in its own frame.

use super::holder::Holder;
use crate::clock;
use crate::fiber::{Outcome, Subject, Task, WaitNumber, WaitReason};
use crate::primitives::locks;
use crate::scheduler::{InTable, Interruption, WaitEnd, Waiting, Worker};
use crate::sys;
use std::cell::{Cell, OnceCell};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::*};

// The states of a thread that waits.
const WAITING: u32 = 0;
/// Somebody has claimed it, and still uses what is in its frame.
const CLAIMED: u32 = 1;
/// It may go on.
const WOKEN: u32 = 2;
/// It has ended the wait itself.
const GONE: u32 = 3;

/// A fiber or a thread that waits, or is about to.
pub(crate) enum Someone {
    Fiber {
        task: NonNull<Task>,
        /// Which of its waits this is. Set before others know of it.
        number: Cell<Option<WaitNumber>>,
    },
    Thread {
        state: AtomicU32,
    },
}

// SAFETY: a task's wait may be claimed and the task be woken from anywhere; its number is set before others can see it.
unsafe impl Sync for Someone {}

/// What somebody waits for, and how.
#[derive(Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub(crate) reason: WaitReason,
    /// What dumps are told about it. It says nothing while others hold a lock that it needs.
    pub(crate) subject: Option<&'a dyn Subject>,
    /// Whether cancelling the fiber, or the end of a `timeout` around it, ends the wait.
    pub(crate) interruptible: bool,
    /// When it ends at the latest: nanoseconds of the monotonic clock.
    pub(crate) deadline: u64,
    /// What is to be told if the fiber never goes on.
    pub(crate) in_table: Option<InTable>,
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Somebody has claimed it, and counts on that.
    Woken,
    /// The deadline came first.
    TimedOut,
    /// There was no reason to wait.
    Needless,
    /// A fiber is to unwind. The caller cleans up, and then calls [`Interruption::unwind`].
    Interrupted(Interruption),
}

impl Someone {
    /// The caller.
    #[inline]
    pub(crate) fn present() -> Someone {
        Someone::present_with(0)
    }

    /// The caller, who has so many of our own locks and lets them go before it waits.
    #[inline]
    pub(crate) fn present_with(own_locks: u32) -> Someone {
        match Worker::and_fiber() {
            Some((_, fiber)) if locks() == own_locks => Someone::fiber(&fiber.task),
            _ => Someone::thread(),
        }
    }

    pub(crate) fn fiber(task: &Task) -> Someone {
        Someone::Fiber {
            task: NonNull::from(task),
            number: Cell::new(None),
        }
    }

    pub(crate) fn thread() -> Someone {
        Someone::Thread {
            state: AtomicU32::new(WAITING),
        }
    }

    /// Makes the caller, which this is, wait. `announce` lets others know of it, and says whether there is a reason to wait; it must not
    /// wait itself. Whatever it has set up is the caller's to take down afterwards.
    ///
    /// The same one may wait again, when it is in no list that others could find it in by an earlier wait.
    #[inline(always)]
    pub(crate) fn wait(&self, wish: &Wish<'_>, announce: impl FnOnce() -> bool) -> End {
        match self {
            Someone::Fiber { number, .. } => {
                let worker = Worker::here().expect("a fiber has a worker");
                wait_on_worker(worker, self, number, wish, announce)
            }
            Someone::Thread { state } => {
                state.store(WAITING, Relaxed);
                if !announce() && self.withdraw() {
                    return End::Needless;
                }
                self.block(wish.deadline)
            }
        }
    }

    /// Ends the wait of the calling thread, which this is, unless somebody has claimed it.
    fn withdraw(&self) -> bool {
        match self {
            Someone::Fiber { .. } => false,
            Someone::Thread { state } => state.compare_exchange(WAITING, GONE, AcqRel, Acquire).is_ok(),
        }
    }

    /// Ends the wait of a thread, unless somebody has claimed it: it is [`End::Needless`].
    pub(crate) fn interrupt(&self) {
        if let Someone::Thread { state } = self
            && self.withdraw()
        {
            sys::unblock(state);
        }
    }

    /// Blocks the calling thread, which this is, until it is woken.
    pub(crate) fn block(&self, deadline: u64) -> End {
        let Someone::Thread { state } = self else {
            unreachable!("fibers do not block");
        };
        loop {
            match state.load(Acquire) {
                WOKEN => return End::Woken,
                GONE => return End::Needless,
                // Whoever has claimed it is about to be done with it.
                CLAIMED => sys::block_while(state, CLAIMED, clock::NEVER),
                _ if deadline != clock::NEVER && clock::now() >= deadline => {
                    if self.withdraw() {
                        return End::TimedOut;
                    }
                }
                _ => sys::block_while(state, WAITING, deadline),
            }
        }
    }

    /// Ends the wait, unless it has ended. Who gets `true` must wake it; it does not go on until then.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        match self {
            Someone::Fiber { task, number } => {
                let number = number.get().expect("who can be found waits");
                // SAFETY: a fiber that waits has not ended.
                unsafe { task.as_ref() }.wait.claim(number, Outcome::Woken)
            }
            Someone::Thread { state } => state.compare_exchange(WAITING, CLAIMED, AcqRel, Relaxed).is_ok(),
        }
    }

    /// Lets it go on. It may be gone when this returns.
    ///
    /// # Safety
    /// The caller has claimed it, and calls this once.
    #[inline]
    pub(crate) unsafe fn wake(someone: NonNull<Someone>) {
        // SAFETY: it was claimed, so it stays until the step that lets it go on, which is the last one that uses it.
        match unsafe { someone.as_ref() } {
            // SAFETY: as above.
            Someone::Fiber { task, .. } => unsafe { task.as_ref().wake() },
            Someone::Thread { state } => {
                let place = ptr::from_ref(state);
                state.store(WOKEN, Release);
                sys::unblock(place);
            }
        }
    }

    /// It as the holder of something. It is the caller.
    #[inline(always)]
    pub(crate) fn holder(&self) -> Holder {
        match self {
            // SAFETY: it runs.
            Someone::Fiber { task, .. } => Holder::fiber(unsafe { task.as_ref() }.id()),
            Someone::Thread { .. } => Holder::present().0,
        }
    }

    /// Makes sure that nobody counts on a fiber that never goes on. Says whether somebody has claimed it before.
    pub(crate) fn give_up(&self) -> bool {
        match self {
            Someone::Fiber { task, number } => number.get().is_none_or(|number| {
                // SAFETY: abandoned, but not ended.
                !unsafe { task.as_ref() }.wait.claim(number, Outcome::Closed)
            }),
            Someone::Thread { .. } => false,
        }
    }
}

#[inline(always)]
fn wait_on_worker(
    worker: &Worker,
    someone: &Someone,
    place: &Cell<Option<WaitNumber>>,
    wish: &Wish<'_>,
    announce: impl FnOnce() -> bool,
) -> End {
    // Taken apart, so that none of it has to be read from memory again.
    let Wish {
        reason,
        subject,
        interruptible,
        deadline,
        in_table,
    } = *wish;
    let fiber = worker.fiber().expect("what waits here is a fiber");
    let waiting = Waiting {
        reason,
        park: false,
        interruptible,
        deadline,
    };
    let needless = OnceCell::new();
    fiber.in_table.set(in_table.as_ref().map(NonNull::from));
    fiber.task.set_subject(subject.as_ref());
    let end = worker.wait(waiting, |task, number| {
        place.set(Some(number));
        if !announce() && someone.claim() {
            // The wait ends before it has really begun.
            let _ = needless.set(());
            // SAFETY: it was just claimed.
            unsafe { task.wake() };
        }
    });
    fiber.task.set_subject(None);
    fiber.in_table.set(None);
    match end {
        WaitEnd::Woken | WaitEnd::Closed if needless.get().is_some() => End::Needless,
        WaitEnd::Woken | WaitEnd::Closed => End::Woken,
        WaitEnd::TimedOut => End::TimedOut,
        WaitEnd::Interrupted(interruption) => End::Interrupted(interruption),
    }
}
