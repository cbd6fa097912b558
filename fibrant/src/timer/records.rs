//! Where timers are kept: records, which are used again and again and never freed.
//!
//! A handle may be asked long after its timer is over, from any thread, so what it points to must stay. Counting the handles
//! would take an allocation and several locked instructions for each timer; instead each record has a *generation*, a number
//! that rises when a timer is over. A handle knows the generation that it was made for and finds out that the record is
//! another's by now. A process keeps as many records as it ever had timers at once.
//!
//! Each worker has a set of those that are free, which it alone uses; the set of a worker that ends goes to the next one that
//! begins. It is a pile of addresses, not a list through the records themselves: those have most often left the cache, and are
//! asked for a few timers before they are needed. [`handle`](super::handle) is the only caller; the I/O driver holds the set for it.

use crate::context;
use crate::primitives::without_waiting;
use crate::scheduler::{Desk, Lock, Purpose, Timed, Worker};
use crate::sys::PerProcess;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many timers a record had before.
pub(super) type Generation = u64;

/// What the handle, the wheel and a running call share: two lines of the cache that come together, as whoever asks for the first
/// has to wait for it.
#[repr(C, align(128))]
pub(super) struct Record {
    /// What the wheel knows it by. First, so that its address is this one's. The worker's.
    pub(super) timed: Timed,
    pub(super) state: Lock<State>,
}

/// What is to become of a timer.
pub(super) struct State {
    pub(super) generation: Generation,
    /// The moment from which it is counted, and for how long.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) callback: Callback,
    /// The worker that it belongs to; none before the record's first use.
    pub(super) desk: Option<&'static Desk>,
    pub(super) armed_at: &'static Location<'static>,
    pub(super) repeats: bool,
    /// It will not fire, and its worker will retire it.
    pub(super) is_cancelled: bool,
}

/// What a timer runs.
pub(super) enum Callback {
    Once(Box<dyn FnOnce() + Send>),
    /// Returns whether it is to be called again.
    Repeating(Box<dyn FnMut() -> bool + Send>),
    /// It is being called, or there is none.
    Gone,
}

impl State {
    /// When it is to fire.
    pub(super) fn due(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// The timer is over: the record is ready for another.
    pub(super) fn retire(&mut self) -> Callback {
        self.generation += 1;
        self.is_cancelled = false;
        std::mem::replace(&mut self.callback, Callback::Gone)
    }
}

// SAFETY: `timed` is touched by the worker whose record it is, or before it is anybody's; workers pass records on under a lock. The rest
// is behind one, and may be sent: a callback is, and the others are plain values.
unsafe impl Sync for Record {}

impl Record {
    fn new() -> Record {
        Record {
            timed: Timed::new(Purpose::Timer),
            state: Lock::new(State {
                generation: 0,
                start: 0,
                length: 0,
                callback: Callback::Gone,
                desk: None,
                armed_at: Location::caller(),
                repeats: false,
                is_cancelled: false,
            }),
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

/// How many timers before it is needed a record is asked for, and how many lines of the cache it has.
const AHEAD: usize = 4;
const LINES: usize = size_of::<Record>() / 64;

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

    /// That of a worker.
    #[inline]
    pub(super) fn of(worker: &Worker) -> &'static Records {
        let taken = worker.driver.timers();
        debug_assert!(taken.is::<TakenRecords>());
        // SAFETY: the only driver there is keeps these, and stays with its worker. To ask for the type would take a tenth of the time that it
        // takes to cancel a timer.
        unsafe { &*ptr::from_ref(taken).cast::<TakenRecords>() }.0
    }

    /// A record for a timer.
    #[inline]
    pub(super) fn take(&'static self) -> &'static Record {
        without_waiting(|| {
            let mut free = self.free.borrow_mut();
            if free.is_empty() {
                self.make(&mut free);
            }
            let record = free.pop().expect("some were made");
            if let Some(later) = free.len().checked_sub(AHEAD) {
                context::prefetch_lines(ptr::from_ref(free[later]), LINES);
            }
            record
        })
    }

    /// Takes one back whose timer is over.
    #[inline]
    pub(super) fn put(&self, record: &'static Record) {
        without_waiting(|| self.free.borrow_mut().push(record));
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

impl Drop for TakenRecords {
    fn drop(&mut self) {
        spare().push(self.0);
    }
}
