//! What a worker needs from below its queues: something to sleep in, and deadlines.
//!
//! The scheduler calls it; the I/O manager, which is above the scheduler, implements it; the runtime plugs it in. The contract:
//!
//! - [`poll`](Driver::poll) turns what has happened into wakes: it ends the waits whose descriptors are ready and expires the
//!   deadlines that have come. If it may sleep, it does until something happens, the next deadline comes or the desk's bell
//!   is rung, whichever is first; otherwise it returns at once.
//! - A deadline is armed and disarmed in constant time and expires once, never early, in a poll.
//! - All of it is called on the worker's thread only.

use super::worker::Worker;
use std::any::Any;
use std::cell::Cell;
use std::ptr::NonNull;

/// What a worker sleeps in.
pub(crate) trait Driver {
    /// Turns what has happened into wakes; may sleep until then, but not beyond `until`, if one is given. Returns whether the
    /// kernel had to be asked.
    fn poll(&self, worker: &Worker, until: Option<u64>) -> bool;

    /// Expires the deadlines that have come, and leaves everything else for a poll. Returns whether there were any.
    fn expire_due(&self, worker: &Worker) -> bool;

    /// Arms a deadline: nanoseconds of the monotonic clock.
    ///
    /// # Safety
    /// It is not armed, and stays valid and in place until it has expired or is disarmed.
    unsafe fn arm(&self, timed: NonNull<Timed>, deadline: u64);

    /// Disarms a deadline.
    ///
    /// # Safety
    /// It is armed, here.
    unsafe fn disarm(&self, timed: NonNull<Timed>);

    /// Expires all deadlines, whenever they come: the worker ends.
    fn expire_all(&self, worker: &Worker);

    /// When the next deadline comes.
    fn next_deadline(&self) -> Option<u64>;

    /// How many deadlines are armed.
    fn alarms(&self) -> usize;

    /// Itself, for the module that made it.
    fn as_any(&self) -> &dyn Any;

    /// What the timers keep for this worker, for them.
    fn timers(&self) -> &dyn Any;
}

/// What has a deadline: embedded in a wait's frame on a fiber's stack, or in a timer. Only the worker that armed it touches it.
pub(crate) struct Timed {
    /// What the driver knows its deadline by, while it is armed.
    pub(crate) key: Cell<u32>,
    pub(crate) purpose: Purpose,
}

/// What is done when a deadline has come.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// It ends a wait: see [`expire_wait`](super::expire_wait).
    Wait,
    /// A timer fires: see [`timer::expire`](crate::timer::expire).
    Timer,
    /// Nothing: the worker's sleep is over.
    Nothing,
}

impl Timed {
    /// The key of one that is not armed.
    pub(crate) const UNARMED: u32 = u32::MAX;

    /// One that is not armed.
    pub(crate) const fn new(purpose: Purpose) -> Timed {
        Timed {
            key: Cell::new(Timed::UNARMED),
            purpose,
        }
    }

    /// Whether its deadline is to come.
    pub(crate) fn is_armed(&self) -> bool {
        self.key.get() != Timed::UNARMED
    }
}
