//! A worker's inbox: where others leave fibers that can go on, and where they learn whether they must ring.
//!
//! Any thread pushes, the worker takes everything at once. It is a linked stack whose head also says whether the worker
//! sleeps, so that leaving something and finding out whether to ring is one step: no wake-up can fall between the two.
//!
//! The head is one of
//!
//! - **nothing**: empty, and the worker runs;
//! - **sleeping**: empty, and the worker sleeps or is about to;
//! - an item, the last one pushed, which leads to the others: the worker runs, or has been rung for.
//!
//! The worker leads from nothing to sleeping ([`fall_asleep`]) and back ([`wake_up`]). Whoever pushes on a sleeping worker's
//! inbox, or [`rouse`]s it, ends the sleep in that same step and must ring the bell; so it is rung once per sleep at most,
//! and never while the worker runs.
//!
//! [`fall_asleep`]: Inbox::fall_asleep
//! [`wake_up`]: Inbox::wake_up
//! [`rouse`]: Inbox::rouse

use crate::primitives::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::ptr::{self, NonNull};

/// Something that can be left in an inbox: it has room for a link.
///
/// # Safety
/// The link is used by nothing else while the item is in an inbox.
pub(crate) unsafe trait Item: Sized {
    /// The link to the item pushed before.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// A stack of items with a sleeper's mark.
pub(crate) struct Inbox<T> {
    head: AtomicPtr<T>,
}

/// The head of a sleeping worker's inbox: an address that no item has.
fn sleeping<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

/// What a push has come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The worker runs and will find it.
    Seen,
    /// The worker sleeps: the pusher must ring.
    MustRing,
}

impl<T: Item> Inbox<T> {
    pub(crate) fn new() -> Inbox<T> {
        Inbox {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Leaves an item.
    ///
    /// # Safety
    /// The item is valid until the worker has taken it, is in no other inbox or queue, and may be given to the worker's
    /// thread.
    #[inline]
    #[must_use = "a sleeping worker must be rung for"]
    pub(crate) unsafe fn push(&self, item: NonNull<T>) -> Pushed {
        let mut head = self.head.load(Relaxed);
        loop {
            let below = if head == sleeping() { ptr::null_mut() } else { head };
            // SAFETY: the item is valid until it is taken, which it cannot be before the exchange below.
            unsafe { item.as_ref() }.link().store(below, Relaxed);
            match self
                .head
                .compare_exchange_weak(head, item.as_ptr(), Release, Relaxed)
            {
                // From here on the item may be taken, and be gone.
                Ok(_) if head == sleeping() => return Pushed::MustRing,
                Ok(_) => return Pushed::Seen,
                Err(now) => head = now,
            }
        }
    }

    /// Whether there is nothing to take. For the worker.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let head = self.head.load(Relaxed);
        head.is_null() || head == sleeping()
    }

    /// Takes everything, and calls `f` with each item, the first one pushed first. For the worker, while it does not sleep.
    #[inline]
    pub(crate) fn take_all(&self, mut f: impl FnMut(NonNull<T>)) {
        let mut newest = self.head.swap(ptr::null_mut(), Acquire);
        debug_assert_ne!(newest, sleeping(), "a worker that sleeps takes nothing");
        // Turns the stack round.
        let mut oldest: *mut T = ptr::null_mut();
        while let Some(item) = NonNull::new(newest) {
            // SAFETY: it was pushed and is now this caller's; the link is the inbox's until `f` has it.
            let link = unsafe { item.as_ref() }.link();
            newest = link.load(Relaxed);
            link.store(oldest, Relaxed);
            oldest = item.as_ptr();
        }
        while let Some(item) = NonNull::new(oldest) {
            // SAFETY: as above. The link is read before `f` has the item.
            oldest = unsafe { item.as_ref() }.link().load(Relaxed);
            f(item);
        }
    }

    /// Marks the worker as sleeping, unless there is something to take.
    #[must_use = "a worker with something in its inbox does not sleep"]
    pub(crate) fn fall_asleep(&self) -> bool {
        self.head
            .compare_exchange(ptr::null_mut(), sleeping(), AcqRel, Relaxed)
            .is_ok()
    }

    /// Ends the sleep from within. Nothing happens if somebody else has ended it.
    pub(crate) fn wake_up(&self) {
        let _ = self
            .head
            .compare_exchange(sleeping(), ptr::null_mut(), AcqRel, Relaxed);
    }

    /// Ends the sleep from outside; true if there was one, and the caller must ring.
    #[must_use = "a sleeping worker must be rung for"]
    pub(crate) fn rouse(&self) -> bool {
        self.head
            .compare_exchange(sleeping(), ptr::null_mut(), AcqRel, Relaxed)
            .is_ok()
    }

    /// Whether the worker sleeps, at this moment.
    pub(crate) fn is_asleep(&self) -> bool {
        self.head.load(Relaxed) == sleeping()
    }
}
