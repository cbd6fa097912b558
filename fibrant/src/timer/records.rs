//! Where timers are kept: records, which are used again and again and never freed.
//!
//! A handle may be asked long after its timer is over, from any thread, so what it points to must stay. Counting the handles
//! would take an allocation and several locked instructions for each timer; instead each record has a *generation*, a number
//! that rises when a timer is over. A handle knows the generation that it was made for and finds out that the record is
//! another's by now. A process keeps as many records as it ever had timers at once.
//!
//! Each worker has a set of those that are free, which it alone uses; the set of a worker that ends goes to the next one that
//! begins. They are a list through the records themselves: one whose timer has just ended is in the cache, and when one is taken, the
//! next is asked for. [`handle`](super::handle) is the only caller; [`kept`](super::kept) holds the set for it.

use crate::context;
use crate::primitives::without_waiting;
use crate::scheduler::{Armed, Desk, Guard, Lock, Purpose, Timed};
use crate::sys::PerProcess;
use std::cell::{Cell, RefCell};
use std::mem::{self, MaybeUninit};
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
    pub(super) standing: Cell<Standing>,
    pub(super) generation: Cell<Generation>,
    /// The moment from which it is counted, and for how long.
    pub(super) start: Cell<u64>,
    pub(super) length: Cell<u64>,
    pub(super) content: Content,
    /// The worker that it belongs to; none before the record's first use.
    pub(super) desk: Cell<Option<&'static Desk>>,
    pub(super) armed_at: Cell<&'static Location<'static>>,
}

/// How a record's timer stands.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Standing {
    /// There is none.
    Free,
    /// It will fire.
    Armed,
    /// It will not, and its worker will retire it.
    Cancelled,
}

/// What a record holds.
pub(super) struct Content(Cell<Holding>);

enum Holding {
    /// What the timer runs.
    Function(Box<dyn Function>),
    /// Nothing, while that is called; in a record that is free, the next one that is.
    Next(Option<&'static Record>),
}

impl Content {
    /// Takes the function out, if it is there.
    #[inline]
    pub(super) fn take_function(&self) -> Option<Box<dyn Function>> {
        match self.0.replace(Holding::Next(None)) {
            Holding::Function(function) => Some(function),
            Holding::Next(_) => None,
        }
    }

    /// Puts the function in. Returns the next free record, if this one is free and there is one.
    #[inline]
    pub(super) fn put_function(&self, function: Box<dyn Function>) -> Option<&'static Record> {
        match self.0.replace(Holding::Function(function)) {
            Holding::Next(next) => next,
            Holding::Function(_) => unreachable!("it has been taken out"),
        }
    }

    /// The record is free, and this is the next one that is. Returns the function, if it is there still.
    #[inline]
    fn put_next(&self, next: Option<&'static Record>) -> Option<Box<dyn Function>> {
        match self.0.replace(Holding::Next(next)) {
            Holding::Function(function) => Some(function),
            Holding::Next(_) => None,
        }
    }
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
}

// SAFETY: `timed` is touched by the worker whose record it is, or before it is anybody's; workers pass records on under a lock. The state
// is reached through `lock` alone, one thread after the other, and may be sent: a function is, and the others are plain values.
unsafe impl Sync for Record {}

impl Record {
    fn new() -> Record {
        Record {
            timed: Timed::new(),
            state: State {
                lock: Lock::new(()),
                repeats: Cell::new(false),
                standing: Cell::new(Standing::Free),
                generation: Cell::new(0),
                start: Cell::new(0),
                length: Cell::new(0),
                content: Content(Cell::new(Holding::Next(None))),
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

    /// The record of a timer's deadline; none if it is not a timer's.
    ///
    /// # Safety
    /// It is what its purpose says.
    #[inline]
    pub(super) unsafe fn of(armed: Armed) -> Option<&'static Record> {
        // SAFETY: by the contract; a timer's is the head of a record, which stays for ever.
        (armed.purpose() == Purpose::Timer).then(|| unsafe { armed.timed().cast::<Record>().as_ref() })
    }

    /// What the wheel has of it: its head, as an address from which the whole can be found again.
    pub(super) fn armed(&'static self) -> Armed {
        Armed::new(NonNull::from(self).cast(), Purpose::Timer)
    }
}

/// The records of a worker.
pub(crate) struct Records {
    /// The one that was used last of those that are free.
    free: Cell<Option<&'static Record>>,
    /// Room for others.
    room: RefCell<&'static mut [MaybeUninit<Record>]>,
    /// How many to make room for when there is none left.
    more: Cell<usize>,
}

// SAFETY: the worker whose set it is uses it, and before and after that nobody; workers pass sets on under a lock.
unsafe impl Sync for Records {}
// SAFETY: as above.
unsafe impl Send for Records {}

/// A worker's hold on its set, for as long as it works.
pub(crate) struct TakenRecords(&'static Records);

/// For how many records room is made at once: the fewest and the most.
const FEW: usize = 16;
const MANY: usize = 1024;

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
                free: Cell::new(None),
                room: RefCell::default(),
                more: Cell::new(FEW),
            }))
        }))
    }

    /// A record for a timer that runs this function, and its state.
    #[inline]
    pub(super) fn take(&self, function: Box<dyn Function>) -> (&'static Record, Held) {
        let record = match self.free.get() {
            Some(record) => record,
            None => self.make(),
        };
        let state = record.lock();
        let next = state.content.put_function(function);
        if let Some(next) = next {
            context::prefetch(ptr::from_ref(next));
        }
        self.free.set(next);
        state.standing.set(Standing::Armed);
        (record, state)
    }

    /// Takes one back whose timer is over; returns the function, if it is there still. One that has come to its last generation is not used
    /// again: a handle would not know its timer from another.
    #[inline]
    pub(super) fn put(&self, record: &'static Record, state: Held) -> Option<Box<dyn Function>> {
        state.generation.set(state.generation.get() + 1);
        state.standing.set(Standing::Free);
        if state.generation.get() == LAST {
            return state.content.take_function();
        }
        state.content.put_next(self.free.replace(Some(record)))
    }

    /// A new record, which is the only one that is free.
    #[cold]
    fn make(&self) -> &'static Record {
        without_waiting(|| {
            let mut room = self.room.borrow_mut();
            if room.is_empty() {
                let count = self.more.get();
                self.more.set(MANY.min(2 * count));
                *room = Box::leak(Box::new_uninit_slice(count));
            }
            let (place, rest) = mem::take(&mut *room).split_first_mut().expect("some were made");
            *room = rest;
            place.write(Record::new())
        })
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

    fn end(set: &TakenRecords, record: &'static Record) {
        assert!(set.0.put(record, record.lock()).is_some());
    }

    #[test]
    fn records_are_used_again_but_not_for_ever() {
        let set = Records::take_set();
        let take = || set.0.take(Box::new(Once(|| ()))).0;
        let [first, second] = [take(), take()];
        assert!(!ptr::eq(first, second));
        end(&set, first);
        end(&set, second);
        assert!(ptr::eq(take(), second));
        assert!(ptr::eq(take(), first));
        first.lock().generation.set(LAST - 1);
        end(&set, first);
        assert!(!ptr::eq(take(), first));
    }
}
