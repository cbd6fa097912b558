//! What a worker needs from below its queues: something to sleep in, and deadlines.
//!
//! The scheduler calls it; the I/O manager, which is above the scheduler, implements it; the runtime plugs it in. The contract:
//!
//! - [`poll`](Driver::poll) turns what has happened into wakes: it ends the waits whose descriptors are ready and expires the
//!   deadlines that have come. If it may sleep, it does until something happens, the next deadline comes or the desk's bell
//!   is rung, whichever is first; otherwise it returns at once.
//! - A deadline is armed and disarmed in constant time and expires once, never early, in a poll.
//! - All of it is called on the worker's thread only.

use super::alarm::Alarm;
use super::worker::Worker;
use std::any::Any;
use std::ptr::NonNull;

/// What a worker sleeps in.
pub(crate) trait Driver {
    /// Turns what has happened into wakes; may sleep until then, but not beyond `until`, if one is given.
    fn poll(&self, worker: &Worker, until: Option<u64>);

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
}

/// An alarm, and what is to be done when it goes off.
#[repr(C)]
pub(crate) struct Timed {
    /// First, so that its address is this one's.
    pub(crate) alarm: Alarm,
    /// Called on the worker that armed it, when it has expired.
    ///
    /// # Safety
    /// The address is that of the expired one, and this is called once each time it expires.
    pub(crate) expire: unsafe fn(NonNull<Timed>, &Worker),
}
