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
    /// It is not armed, stays valid and in place until it has expired or is disarmed, and is what its purpose says.
    unsafe fn arm(&self, timed: NonNull<Timed>, purpose: Purpose, deadline: u64);

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

/// What has a deadline: embedded in a fiber or a timer. Only the worker that armed it touches it.
pub(crate) struct Timed {
    /// What the driver knows its deadline by, while it is armed.
    pub(crate) key: Cell<u32>,
}

/// What is done when a deadline has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It ends the wait of the fiber that it is embedded in: see [`expire_wait`](super::expire_wait).
    Wait,
    /// The timer fires whose head it is: see [`timer::expire`](crate::timer::expire).
    Timer,
    /// Nothing: the worker's sleep is over.
    Nothing,
}

/// Something that is armed, and its purpose, in one word: the purpose is in the lowest bits of the address, which are zero. So whoever
/// expires a million of them knows what each is before it has to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Armed(NonNull<Timed>);

const _: () = assert!((Purpose::Nothing as usize) < align_of::<Timed>());

impl Armed {
    /// What is armed for this purpose.
    #[inline]
    pub(crate) fn new(timed: NonNull<Timed>, purpose: Purpose) -> Armed {
        Armed(timed.map_addr(|address| address | purpose as usize))
    }

    /// What is done when its deadline has come.
    #[inline]
    pub(crate) fn purpose(self) -> Purpose {
        match self.0.addr().get() % align_of::<Timed>() {
            0 => Purpose::Wait,
            1 => Purpose::Timer,
            _ => Purpose::Nothing,
        }
    }

    /// What is armed.
    #[inline]
    pub(crate) fn timed(self) -> NonNull<Timed> {
        // SAFETY: without its purpose it is the address that it was made with, which is not null.
        unsafe { NonNull::new_unchecked(self.0.as_ptr().wrapping_byte_sub(self.purpose() as usize)) }
    }
}

impl Timed {
    /// The key of one that is not armed.
    pub(crate) const UNARMED: u32 = u32::MAX;

    /// One that is not armed.
    pub(crate) const fn new() -> Timed {
        Timed {
            key: Cell::new(Timed::UNARMED),
        }
    }

    /// Whether its deadline is to come.
    pub(crate) fn is_armed(&self) -> bool {
        self.key.get() != Timed::UNARMED
    }
}
