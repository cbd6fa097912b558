//! What a worker keeps for deadlines and timers: the wheel, and records that are free.
//!
//! The I/O driver owns it, as it is what sleeps until the next deadline, and arms and expires deadlines through it. [`handle`](super::handle)
//! finds it through the worker.

use super::records::{Records, TakenRecords};
use super::wheel::Wheel;
use crate::clock;
use crate::scheduler::{Timed, Worker};
use std::cell::RefCell;
use std::ptr::NonNull;

/// The wheel and the records of one worker.
pub(crate) struct Kept {
    pub(crate) wheel: RefCell<Wheel<NonNull<Timed>>>,
    records: TakenRecords,
}

impl Kept {
    /// What a new worker has: no deadlines.
    pub(crate) fn new() -> Kept {
        Kept {
            wheel: RefCell::new(Wheel::new(clock::now())),
            records: Records::take_set(),
        }
    }

    /// That of a worker.
    #[inline]
    pub(super) fn of(worker: &Worker) -> &Kept {
        debug_assert!(worker.driver.timers().is::<Kept>());
        // SAFETY: the only driver there is gives this, and stays with its worker, in its place. To ask for it, and for its type, would take a
        // fifth of the time that it takes to cancel a timer.
        unsafe { worker.timers.cast::<Kept>().as_ref() }
    }

    /// The free records.
    #[inline]
    pub(super) fn records(&self) -> &'static Records {
        self.records.get()
    }

    /// Arms a deadline.
    ///
    /// # Safety
    /// It is not armed, and stays valid and in place until it has expired or is disarmed.
    #[inline]
    pub(crate) unsafe fn arm(&self, timed: NonNull<Timed>, deadline: u64) {
        let key = self.wheel.borrow_mut().insert(timed, deadline);
        // SAFETY: it is valid from now on, as the caller promises.
        unsafe { timed.as_ref() }.key.set(key);
    }

    /// Disarms a deadline.
    ///
    /// # Safety
    /// It is armed, here.
    #[inline]
    pub(crate) unsafe fn disarm(&self, timed: NonNull<Timed>) {
        // SAFETY: it is armed, so it is valid, as the caller promises.
        let key = unsafe { timed.as_ref() }.key.replace(Timed::UNARMED);
        self.wheel.borrow_mut().remove(key);
    }
}
