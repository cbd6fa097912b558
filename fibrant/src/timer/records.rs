//! Where timers are kept: records, which are used again and again and never freed.
//!
//! A handle may be asked long after its timer is over, from any thread, so what it points to must stay. Counting the handles
//! would take an allocation and several locked instructions for each timer; instead each record has a *generation*, a number
//! that rises when a timer is over. A handle knows the generation that it was made for and finds out that the record is
//! another's by now. A process keeps as many records as it ever had timers at once.
//!
//! Each worker has a set of those that are free, which it alone uses; the set of a worker that ends goes to the next one that
//! begins. It is a pile of addresses, not a list through the records themselves: those have most often left the cache, and are
//! asked for a few timers before they are needed. [`handle`](super::handle) is the only caller; [`kept`](super::kept) holds the set for it.

use crate::context;
use crate::primitives::without_waiting;
use crate::scheduler::{Desk, Guard, Lock, Purpose, Timed};
use crate::sys::PerProcess;
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many timers a record had before. One that has had [`LAST`] is not used again.
pub(super) type Generation = u32;

/// The last generation of a record.
const LAST: Generation = Generation::MAX;

/// What the handle, the wheel and a running call share: one line of the cache, as to bring a million of them there is most of what it takes
/// to cancel a million timers.
#[repr(C, align(64))]
pub(super) struct Record {
    /// What the wheel knows it by. First, so that its address is this one's. The worker's.
    pub(super) timed: Timed,
    state: State,
}

const _: () = assert!(size_of::<Record>() == 64);

/// What is to become of a timer. All of it belongs to who has the lock, which is among it as there is room for it here only.
pub(super) struct State {
    lock: Lock<()>,
    pub(super) repeats: Cell<bool>,
    /// It will not fire, and its worker will retire it.
    pub(super) is_cancelled: Cell<bool>,
    pub(super) generation: Cell<Generation>,
    /// The moment from which it is counted, and for how long.
    pub(super) start: Cell<u64>,
    pub(super) length: Cell<u64>,
    /// What it runs; none while that is called.
    pub(super) function: Cell<Option<Box<dyn Function>>>,
    /// The worker that it belongs to; none before the record's first use.
    pub(super) desk: Cell<Option<&'static Desk>>,
    pub(super) armed_at: Cell<&'static Location<'static>>,
}

/// The state of a timer, locked while this lives.
pub(super) struct Held {
    state: &'static State,
    _guard: Guard<'static, ()>,
}

/// What a timer runs.
pub(super) trait Function: Send {
    /// Calls it. Returns it if it is to be called again.
    fn call(self: Box<Self>) -> Option<Box<dyn Function>>;
}

/// One that is called once.
pub(super) struct Once<F>(pub(super) F);

/// One that is called again while it returns true.
pub(super) struct Repeating<F>(pub(super) F);

impl<F: FnOnce() + Send> Function for Once<F> {
    fn call(self: Box<Self>) -> Option<Box<dyn Function>> {
        (self.0)();
        None
    }
}

impl<F: FnMut() -> bool + Send + 'static> Function for Repeating<F> {
    fn call(mut self: Box<Self>) -> Option<Box<dyn Function>> {
        (self.0)().then_some(self as Box<dyn Function>)
    }
}

impl Deref for Held {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.state
    }
}

impl State {
    /// When it is to fire.
    pub(super) fn due(&self) -> u64 {
        self.start.get().saturating_add(self.length.get())
    }

    /// The timer is over: the record is ready for another.
    #[inline]
    pub(super) fn retire(&self) {
        self.generation.set(self.generation.get() + 1);
        self.is_cancelled.set(false);
    }
}

// SAFETY: `timed` is touched by the worker whose record it is, or before it is anybody's; workers pass records on under a lock. The state
// is reached through `lock` alone, one thread after the other, and may be sent: a function is, and the others are plain values.
unsafe impl Sync for Record {}

impl Record {
    fn new() -> Record {
        Record {
            timed: Timed::new(Purpose::Timer),
            state: State {
                lock: Lock::new(()),
                repeats: Cell::new(false),
                is_cancelled: Cell::new(false),
                generation: Cell::new(0),
                start: Cell::new(0),
                length: Cell::new(0),
                function: Cell::new(None),
                desk: Cell::new(None),
                armed_at: Cell::new(Location::caller()),
            },
        }
    }

    /// Locks its state. Nothing may wait meanwhile.
    #[inline]
    pub(super) fn lock(&'static self) -> Held {
        Held {
            state: &self.state,
            _guard: self.state.lock.lock(),
        }
    }

    /// Its head, as an address from which the whole can be found again.
    pub(super) fn timed(&'static self) -> NonNull<Timed> {
        NonNull::from(self).cast()
    }
}

/// The records of a worker.
pub(crate) struct Records {
    /// Those that are free: the last one was used last.
    free: RefCell<Vec<&'static Record>>,
    /// How many to make when there is none left.
    more: Cell<usize>,
}

// SAFETY: the worker whose set it is uses it, and before and after that nobody; workers pass sets on under a lock.
unsafe impl Sync for Records {}

/// A worker's hold on its set, for as long as it works.
pub(crate) struct TakenRecords(&'static Records);

/// The fewest and the most records that are made at once.
const FEW: usize = 16;
const MANY: usize = 1024;

/// How many timers before it is needed a record is asked for.
const AHEAD: usize = 4;

/// The sets of workers that have ended.
static SPARE: PerProcess<Mutex<Vec<&'static Records>>> = PerProcess::new(Mutex::default);

fn spare() -> MutexGuard<'static, Vec<&'static Records>> {
    SPARE.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Records {
    /// A set for a new worker.
    pub(crate) fn take_set() -> TakenRecords {
        let set = spare().pop();
        TakenRecords(set.unwrap_or_else(|| {
            Box::leak(Box::new(Records {
                free: RefCell::default(),
                more: Cell::new(FEW),
            }))
        }))
    }

    /// A record for a timer.
    #[inline]
    pub(super) fn take(&self) -> &'static Record {
        without_waiting(|| {
            let mut free = self.free.borrow_mut();
            if free.is_empty() {
                self.make(&mut free);
            }
            let record = free.pop().expect("some were made");
            if let Some(later) = free.len().checked_sub(AHEAD) {
                context::prefetch(ptr::from_ref(free[later]));
            }
            record
        })
    }

    /// Takes one back whose timer is over, unless it has come to its last generation: then a handle would not know its timer from another.
    /// Whoever has its state locked does not wait here.
    #[inline]
    pub(super) fn put(&self, record: &'static Record, state: Held) {
        if state.generation.get() != LAST {
            self.free.borrow_mut().push(record);
        }
    }

    /// Makes some records. They will be taken in the order in which they lie.
    #[cold]
    fn make(&self, free: &mut Vec<&'static Record>) {
        let count = self.more.get();
        self.more.set(MANY.min(2 * count));
        let records: Box<[Record]> = std::iter::repeat_with(Record::new).take(count).collect();
        let records: &'static [Record] = Box::leak(records);
        free.extend(records.iter().rev());
    }
}

impl TakenRecords {
    #[inline]
    pub(super) fn get(&self) -> &'static Records {
        self.0
    }
}

impl Drop for TakenRecords {
    fn drop(&mut self) {
        spare().push(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_used_again_but_not_for_ever() {
        let set = Records::take_set();
        let record = set.0.take();
        let free = || set.0.free.borrow().len();
        let before = free();
        record.lock().retire();
        set.0.put(record, record.lock());
        assert_eq!(free(), before + 1);
        assert!(ptr::eq(set.0.take(), record));
        record.lock().generation.set(LAST - 1);
        record.lock().retire();
        set.0.put(record, record.lock());
        assert_eq!(free(), before);
    }
}
