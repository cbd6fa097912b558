//! What a worker keeps for deadlines and timers: the wheel, and records that are free.
//!
//! The I/O driver owns it, as it is what sleeps until the next deadline, and arms and expires deadlines through it. [`handle`](super::handle)
//! finds it through the worker.
//!
//! # Alarms that are left in the wheel
//!
//! The deadline of a wait is disarmed when the wait ends: it lies in the fiber that waits, which may end. A timer's record stays, and most timers are
//! cancelled, or moved to later, long before they are due. So the wheel is not told: a timer that is over leaves its alarm where it is, and so does one that
//! is due later now. When that alarm comes up, whoever finds it looks at the record; and if the record is used for the next timer before
//! that, the alarm may do for that one, too. What must hold is that an armed timer has an alarm that goes off no later than the timer is due.
//!
//! An alarm whose timer is over is *stale*. Nobody is woken for one: before the worker sleeps it sets right the alarms that would wake it, and if more
//! than half of all are stale, it sweeps the wheel, some at a time. If there are thousands of them and nothing else, the next timer finds an
//! empty wheel: to put new alarms in the place of old ones, in no order, takes longer.

use super::records::{Record, Records, Standing, TakenRecords};
use super::wheel::{Key, Visit, Wheel};
use crate::clock;
use crate::primitives::without_waiting;
use crate::scheduler::{Armed, Timed, Worker};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// How many alarms are set right before a worker sleeps; and so many may be stale in any case.
const FEW: usize = 64;

/// How many numbers are looked at in one go when the wheel is swept.
const SOME: Key = 1024;

/// So many stale alarms, and no others, are not worth keeping.
const MANY: usize = 4096;

/// The wheel and the records of one worker.
pub(crate) struct Kept {
    pub(crate) wheel: RefCell<Wheel<Armed>>,
    /// How many alarms are stale.
    stale: Cell<usize>,
    /// The number from which on the wheel is swept next.
    swept: Cell<Key>,
    records: TakenRecords,
}

impl Kept {
    /// What a new worker has: no deadlines.
    pub(crate) fn new() -> Kept {
        Kept {
            wheel: RefCell::new(Wheel::new(clock::now())),
            stale: Cell::new(0),
            swept: Cell::new(0),
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
    /// It is not in a wheel yet, stays valid and in place until it has expired or is disarmed, and is what its purpose says.
    #[inline]
    pub(crate) unsafe fn arm(&self, armed: Armed, deadline: u64) {
        let key = self.wheel.borrow_mut().insert(armed, deadline);
        // SAFETY: it is valid from now on, as the caller promises.
        unsafe { armed.timed().as_ref() }.key.set(key);
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

    /// Sees to it that the alarm of a timer of this worker goes off no later than at that moment.
    #[inline]
    pub(super) fn hasten(&self, record: &'static Record, due: u64) {
        let mut wheel = self.wheel.borrow_mut();
        let key = record.timed.key.get();
        if key != Timed::UNARMED {
            if wheel.deadline(key) <= due {
                return;
            }
            wheel.remove(key);
        }
        record.timed.key.set(wheel.insert(record.armed(), due));
    }

    /// Clears the wheel if there is little but stale alarms in it, before another timer is armed.
    #[inline]
    pub(super) fn make_room(&self) {
        if self.stale.get() > MANY && self.alarms() == 0 {
            self.forget_stale();
        }
    }

    /// Removes all stale alarms.
    #[cold]
    pub(crate) fn forget_stale(&self) {
        // Room may be given back to the allocator, and this may be a fiber.
        without_waiting(|| {
            let wheel = &mut *self.wheel.borrow_mut();
            if wheel.len() == self.stale.get() {
                disarm_all(wheel);
                wheel.clear();
                self.stale.set(0);
            }
            while self.stale.get() > 0 {
                self.sweep(wheel);
            }
        });
    }

    /// Notes that a timer is over, or its record used again, while its alarm is in the wheel.
    #[inline]
    pub(super) fn note_stale(&self, record: &Record, is_stale: bool) {
        if record.timed.is_armed() {
            let stale = self.stale.get();
            self.stale.set(if is_stale { stale + 1 } else { stale - 1 });
        }
    }

    /// Notes that a stale alarm has gone off.
    pub(super) fn note_gone(&self) {
        self.stale.set(self.stale.get() - 1);
    }

    /// How many deadlines are to come.
    #[inline]
    pub(crate) fn alarms(&self) -> usize {
        self.wheel.borrow().len() - self.stale.get()
    }

    /// The next deadline, exactly.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        // Sorting takes memory, and this may be a fiber.
        without_waiting(|| {
            let mut wheel = self.wheel.borrow_mut();
            loop {
                let (deadline, armed) = wheel.next_alarm()?;
                if self.is_right(&mut wheel, armed, deadline) {
                    return Some(deadline);
                }
            }
        })
    }

    /// When to expire deadlines next; a moment that has passed, if there is more to be set right first.
    pub(crate) fn next_visit(&self) -> Option<u64> {
        let mut wheel = self.wheel.borrow_mut();
        if self.has_many_stale(&wheel) {
            self.sweep(&mut wheel);
            if self.has_many_stale(&wheel) {
                return Some(0);
            }
        }
        for _ in 0..FEW {
            match wheel.next_visit()? {
                Visit::Spread(moment) => return Some(moment),
                Visit::Alarm(deadline, armed) => {
                    if self.is_right(&mut wheel, armed, deadline) {
                        return Some(deadline);
                    }
                }
            }
        }
        Some(0)
    }

    #[inline]
    fn has_many_stale(&self, wheel: &Wheel<Armed>) -> bool {
        2 * self.stale.get() > wheel.len() + 2 * FEW
    }

    /// Sets the next alarm right, unless it is: one that is stale is removed, one that is early is armed anew.
    fn is_right(&self, wheel: &mut Wheel<Armed>, armed: Armed, deadline: u64) -> bool {
        // SAFETY: it is armed, so it is valid.
        let Some(record) = (unsafe { Record::of(armed) }) else {
            return true;
        };
        let due = {
            let state = record.lock();
            match state.standing.get() {
                Standing::Free => None,
                Standing::Armed if state.due() > deadline => Some(state.due()),
                Standing::Armed | Standing::Cancelled => return true,
            }
        };
        wheel.remove(record.timed.key.get());
        match due {
            Some(due) => record.timed.key.set(wheel.insert(armed, due)),
            None => {
                record.timed.key.set(Timed::UNARMED);
                self.note_gone();
            }
        }
        false
    }

    /// Removes stale alarms among some numbers.
    #[cold]
    fn sweep(&self, wheel: &mut Wheel<Armed>) {
        for _ in 0..SOME {
            let key = self.swept.get();
            if key >= wheel.numbers() {
                self.swept.set(0);
                return;
            }
            self.swept.set(key + 1);
            // SAFETY: it is armed, so it is valid.
            let record = wheel.armed(key).and_then(|armed| unsafe { Record::of(armed) });
            if let Some(record) = record
                && record.lock().standing.get() == Standing::Free
            {
                wheel.remove(key);
                record.timed.key.set(Timed::UNARMED);
                self.note_gone();
            }
        }
    }
}

/// Has the records of all timers know that they are in this wheel no longer.
fn disarm_all(wheel: &Wheel<Armed>) {
    for key in 0..wheel.numbers() {
        // SAFETY: it is armed, so it is valid.
        if let Some(record) = wheel.armed(key).and_then(|armed| unsafe { Record::of(armed) }) {
            record.timed.key.set(Timed::UNARMED);
        }
    }
}

impl Drop for Kept {
    /// Records are used again, and must not take another wheel for this one.
    fn drop(&mut self) {
        disarm_all(self.wheel.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::Once;
    use super::*;

    const HOUR: u64 = 3600 * 1_000_000_000;

    /// A timer that is due then.
    fn armed(kept: &Kept, due: u64) -> &'static Record {
        kept.make_room();
        let (record, state) = kept.records().take(Box::new(Once(|| ())));
        state.start.set(due);
        state.length.set(0);
        drop(state);
        kept.note_stale(record, false);
        kept.hasten(record, due);
        record
    }

    fn end(kept: &Kept, record: &'static Record) {
        kept.note_stale(record, true);
        drop(kept.records().put(record, record.lock()));
    }

    /// How many alarms are in the wheel, those that are stale included.
    fn all(kept: &Kept) -> usize {
        kept.wheel.borrow().len()
    }

    #[test]
    fn a_stale_alarm_does_for_a_later_timer_but_not_for_an_earlier_one() {
        let kept = Kept::new();
        let record = armed(&kept, 5 * HOUR);
        for (due, alarm) in [(6, 5), (9, 5), (4, 4), (7, 4)] {
            end(&kept, record);
            assert_eq!((all(&kept), kept.alarms()), (1, 0));
            assert!(std::ptr::eq(armed(&kept, due * HOUR), record));
            assert_eq!((all(&kept), kept.alarms()), (1, 1));
            assert_eq!(kept.wheel.borrow_mut().next_alarm().unwrap().0, alarm * HOUR);
        }
        assert_eq!(kept.next_deadline(), Some(7 * HOUR));
        assert_eq!(kept.wheel.borrow_mut().next_alarm().unwrap().0, 7 * HOUR);
        end(&kept, record);
        assert_eq!(kept.next_deadline(), None);
        assert_eq!((all(&kept), kept.alarms()), (0, 0));
    }

    #[test]
    fn what_would_wake_a_worker_is_set_right_before_it_sleeps() {
        let kept = Kept::new();
        let timers = [1, 2, 3, 4].map(|hours| armed(&kept, hours * HOUR));
        end(&kept, timers[0]);
        timers[1].lock().start.set(5 * HOUR); // moved to later
        assert_eq!(kept.next_visit(), Some(3 * HOUR));
        assert_eq!((all(&kept), kept.alarms()), (3, 3));
        for record in &timers[1..] {
            end(&kept, record);
        }
        assert_eq!((kept.next_visit(), all(&kept)), (None, 0));
    }

    #[test]
    fn a_wheel_of_stale_alarms_is_swept_some_at_a_time() {
        let kept = Kept::new();
        let count = 10 * SOME as usize;
        let timers: Vec<_> = (1..=count).map(|hour| armed(&kept, hour as u64 * HOUR)).collect();
        // All but the last of ten.
        for record in timers.iter().enumerate().filter(|(index, _)| index % 10 != 9) {
            end(&kept, record.1);
        }
        assert_eq!((all(&kept), kept.alarms()), (count, count / 10));
        let mut visits = 0;
        while kept.next_visit() == Some(0) {
            visits += 1;
        }
        assert!((5..100).contains(&visits), "{visits}");
        assert!(all(&kept) <= 2 * kept.alarms() + 2 * FEW, "{}", all(&kept));
        assert_eq!(kept.alarms(), count / 10);
        assert_eq!(kept.next_deadline(), Some(10 * HOUR));
        for record in timers.iter().skip(9).step_by(10) {
            end(&kept, record);
        }
        while kept.next_visit() == Some(0) {}
        assert_eq!((kept.next_deadline(), all(&kept)), (None, 0));
    }

    #[test]
    fn where_all_are_stale_the_next_timer_finds_an_empty_wheel() {
        let kept = Kept::new();
        for is_alone in [true, false] {
            let timers: Vec<_> = (0..2 * MANY as u64).map(|hour| armed(&kept, hour)).collect();
            let rest = if is_alone { &timers[..] } else { &timers[1..] };
            rest.iter().for_each(|record| end(&kept, record));
            let record = armed(&kept, 5 * HOUR);
            let expected = if is_alone { 1 } else { 2 * MANY };
            assert_eq!(
                (all(&kept), kept.alarms()),
                (expected, 1 + timers.len() - rest.len())
            );
            // Those that are used again do not take themselves for armed.
            let others = [1, 2, 3].map(|hour| armed(&kept, hour * HOUR));
            others.iter().for_each(|record| end(&kept, record));
            end(&kept, record);
            kept.forget_stale();
            assert_eq!(all(&kept), timers.len() - rest.len());
        }
        assert_eq!(kept.next_deadline(), Some(0));
    }

    #[test]
    fn records_forget_a_wheel_that_has_gone() {
        let kept = Kept::new();
        let record = armed(&kept, HOUR);
        let other = armed(&kept, HOUR);
        end(&kept, record);
        drop(kept);
        assert!(!record.timed.is_armed() && !other.timed.is_armed());
    }
}
