//! The alarm: a deadline that a worker keeps for one wait or one timer.
//!
//! It is embedded in whatever it wakes (a wait's frame on a fiber's stack, a timer's heap block), so that arming it allocates
//! nothing. [`turn`](super::turn) and the timers arm it through the [`Driver`](super::Driver), whose wheel links it into a
//! list; only the worker that armed it touches it.

use std::cell::Cell;
use std::ptr::NonNull;

/// A deadline in a wheel, or not.
pub(crate) struct Alarm {
    /// The alarms before and after it in its slot's list. The wheel's.
    pub(crate) previous: Cell<Option<NonNull<Alarm>>>,
    pub(crate) next: Cell<Option<NonNull<Alarm>>>,
    /// When it goes off: nanoseconds of the monotonic clock.
    pub(crate) deadline: Cell<u64>,
    /// Which of the wheel's slots it is in, or [`Alarm::UNARMED`]. The wheel's.
    pub(crate) slot: Cell<u16>,
}

impl Alarm {
    /// The slot of an alarm that is in no wheel.
    pub(crate) const UNARMED: u16 = u16::MAX;

    /// An alarm that is in no wheel.
    pub(crate) const fn new() -> Alarm {
        Alarm {
            previous: Cell::new(None),
            next: Cell::new(None),
            deadline: Cell::new(0),
            slot: Cell::new(Alarm::UNARMED),
        }
    }

    /// Whether it is in a wheel.
    pub(crate) fn is_armed(&self) -> bool {
        self.slot.get() != Alarm::UNARMED
    }
}
