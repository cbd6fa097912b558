//! The descriptor table: who waits for which descriptor, and where it is registered.
//!
//! One table for the process, because a descriptor is the process's: whoever closes one must find the waiters of every worker.
//! Each descriptor has an entry behind a lock of its own. Entries are made on demand in segments that double in size, are
//! never moved and never freed; so there is no upper limit, and a reference to one is good for ever.
//!
//! The table is a cache of what the kernel knows: a registration that it remembers may be gone, because the descriptor was
//! closed without our knowledge. Waits verify it when they have lasted a while.

use super::Event;
use super::callback::Callback;
use crate::fiber::{Outcome, Task, WaitNumber};
use crate::scheduler::{Desk, Guard, Lock};
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering::*};

/// How many entries the first segment has; each further one has twice as many.
const FIRST_SEGMENT: usize = 64;

/// Enough segments for every descriptor number there can be.
const SEGMENTS: usize = 26;

static TABLE: [AtomicPtr<Entry>; SEGMENTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS];

/// What is known of one descriptor number.
#[derive(Default)]
pub(super) struct Entry {
    state: Lock<State>,
    /// The state's generation, for those who do not need to know more.
    pub(super) generation: AtomicU32,
    /// Whether input, and output, are not to be waited for at all: a socket's negative timeouts, which the kernel does not tell.
    pub(super) impatient: [AtomicBool; 2],
    /// What kind of file it is, if that is known.
    pub(super) kind: AtomicU8,
}

/// The state of a descriptor, under its entry's lock.
#[derive(Default)]
pub(super) struct State {
    /// Counts the files that this number has stood for, as far as we know: an event for an earlier one is ignored.
    pub(super) generation: u32,
    /// Who waits for input and for output, oldest first.
    waiters: [Waiters; 2],
    /// The callbacks for input and for output.
    pub(super) callbacks: [Option<Callback>; 2],
    /// Where it is registered.
    pub(super) registrations: Vec<Registration>,
}

/// A descriptor's registration with one worker's epoll.
pub(super) struct Registration {
    /// That epoll's descriptor.
    pub(super) epoll: RawFd,
    /// What it asks for.
    pub(super) interest: Event,
    /// How many edges in a row have found nobody.
    pub(super) strays: u8,
}

/// The two directions, by the index of their lists.
pub(super) const DIRECTIONS: [(usize, Event); 2] = [(0, Event::READ), (1, Event::WRITE)];

/// The entry of a descriptor, which is not negative; made if there is none. The caller knows that it is open: a table for all
/// numbers there are would fill the memory.
pub(super) fn entry(fd: RawFd) -> &'static Entry {
    existing(fd).unwrap_or_else(|| {
        let (segment, offset) = place_of(fd as usize);
        let entries = add_segment(segment);
        // SAFETY: a segment has twice as many entries as the one before, which is more than the offset, and is never freed.
        unsafe { &*entries.add(offset) }
    })
}

/// The entry of a descriptor, if there is one.
pub(super) fn existing(fd: RawFd) -> Option<&'static Entry> {
    let (segment, offset) = place_of(usize::try_from(fd).ok()?);
    let entries = TABLE[segment].load(Acquire);
    // SAFETY: as above.
    (!entries.is_null()).then(|| unsafe { &*entries.add(offset) })
}

/// Those of these descriptors that have an entry.
pub(super) fn known(descriptors: RangeInclusive<RawFd>) -> impl Iterator<Item = RawFd> {
    // Segments are made as they are needed, so there may be gaps; but none is made for a number that was never open.
    let segments = TABLE
        .iter()
        .rposition(|entries| !entries.load(Acquire).is_null())
        .map_or(0, |last| last + 1);
    let end = FIRST_SEGMENT * ((1 << segments) - 1);
    let (first, last) = descriptors.into_inner();
    (first.max(0)..=last.min(end as RawFd - 1)).filter(|&fd| existing(fd).is_some())
}

/// The segment of a descriptor's entry, and its place there.
fn place_of(fd: usize) -> (usize, usize) {
    let number = fd / FIRST_SEGMENT + 1;
    let segment = number.ilog2() as usize;
    (segment, fd - FIRST_SEGMENT * ((1 << segment) - 1))
}

#[cold]
fn add_segment(segment: usize) -> *mut Entry {
    let entries: Box<[Entry]> = (0..FIRST_SEGMENT << segment).map(|_| Entry::default()).collect();
    let entries = Box::into_raw(entries);
    match TABLE[segment].compare_exchange(ptr::null_mut(), entries.cast(), AcqRel, Acquire) {
        Ok(_) => entries.cast(),
        Err(theirs) => {
            // SAFETY: it was made above and nobody has seen it.
            drop(unsafe { Box::from_raw(entries) });
            theirs
        }
    }
}

/// Forgets a descriptor's registration with a worker's epoll, which is about to be closed, so that its number may be used again;
/// and the callbacks that would have run there.
pub(super) fn forget_worker(fd: RawFd, epoll: RawFd, desk: &'static Desk) {
    let mut state = entry(fd).lock();
    state.registrations.retain(|one| one.epoll != epoll);
    let of_desk = |callback: &mut Callback| ptr::eq(callback.desk, desk);
    let callbacks = [0, 1].map(|index| state.callbacks[index].take_if(of_desk));
    // Dropped without the lock: what they hold is the user's.
    drop(state);
    drop(callbacks);
}

/// Forgets everything, in a forked child: who waits is in its parent.
pub(super) fn forget_all() {
    for entries in &TABLE {
        entries.store(ptr::null_mut(), Release);
    }
}

impl Entry {
    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }
}

/// A fiber that waits for a descriptor: on its stack, linked into the lists of the directions that it waits for. Everything
/// here is guarded by the entry's lock while it is linked.
pub(super) struct Waiter {
    pub(super) task: NonNull<Task>,
    /// The number of its present wait; a waiter stays in its place while its fiber looks after the registration.
    pub(super) number: Cell<WaitNumber>,
    /// The worker that it belongs to, whose edges wake it.
    pub(super) desk: &'static Desk,
    /// Its neighbours in the two lists.
    links: [Links; 2],
    /// Which lists it is in.
    linked: Cell<Event>,
    /// The error to report, if somebody has closed or cancelled what it waits for.
    pub(super) error: Cell<i32>,
    /// What the kernel has said of the descriptor, if that is what has woken it: bits of epoll's.
    pub(super) edge: Cell<u32>,
}

#[derive(Default)]
struct Links {
    previous: Cell<Option<NonNull<Waiter>>>,
    next: Cell<Option<NonNull<Waiter>>>,
}

/// A list of waiters.
#[derive(Default)]
struct Waiters {
    first: Option<NonNull<Waiter>>,
    last: Option<NonNull<Waiter>>,
}

// SAFETY: the lists point to waiters on the stacks of fibers that wait; whoever holds the lock may look at them and end their
// waits, from any thread.
unsafe impl Send for Waiters {}

impl Waiter {
    pub(super) fn new(task: &Task, number: WaitNumber, desk: &'static Desk) -> Waiter {
        Waiter {
            task: NonNull::from(task),
            number: Cell::new(number),
            desk,
            links: Default::default(),
            linked: Cell::new(Event::default()),
            error: Cell::new(0),
            edge: Cell::new(0),
        }
    }

    /// Whether it is in a list. The caller holds the lock.
    pub(super) fn is_linked(&self) -> bool {
        !self.linked.get().is_empty()
    }

    /// Ends its wait, unless something else has. The caller holds the lock.
    pub(super) fn claim(&self, outcome: Outcome) -> bool {
        // SAFETY: a linked waiter's fiber is still in its wait, or has been claimed and has not yet come to unlink itself,
        // which takes the lock: it has not ended. Or it is the caller.
        let task = unsafe { self.task.as_ref() };
        let claimed = task.wait.claim(self.number.get(), outcome);
        if claimed {
            // SAFETY: its wait was just claimed.
            unsafe { task.wake() };
        }
        claimed
    }
}

impl State {
    /// Adds a waiter, the youngest, or the oldest if it has waited before.
    ///
    /// # Safety
    /// It is in no list, and stays in place until it is unlinked.
    pub(super) unsafe fn link(&mut self, waiter: NonNull<Waiter>, event: Event, in_front: bool) {
        // SAFETY: by the caller's promise.
        let linked = unsafe { waiter.as_ref() };
        linked.linked.set(event);
        for (index, direction) in DIRECTIONS {
            if event.contains(direction) {
                self.waiters[index].add(waiter, index, in_front);
            }
        }
    }

    /// Takes a waiter out of all lists.
    ///
    /// # Safety
    /// It is this descriptor's.
    pub(super) unsafe fn unlink(&mut self, waiter: NonNull<Waiter>) {
        // SAFETY: by the caller's promise.
        let linked = unsafe { waiter.as_ref() };
        let event = linked.linked.take();
        for (index, direction) in DIRECTIONS {
            if event.contains(direction) {
                self.waiters[index].remove(waiter, index);
            }
        }
    }

    /// Wakes the oldest waiter of this worker for a direction, because of what the kernel has said, or of nothing. Returns whether there
    /// was one.
    pub(super) fn wake_oldest(&mut self, index: usize, desk: &'static Desk, edge: u32) -> bool {
        let mut next = self.waiters[index].first;
        while let Some(waiter) = next {
            // SAFETY: it is linked, so it is in place.
            let linked = unsafe { waiter.as_ref() };
            next = linked.links[index].next.get();
            // Unlinked before it is woken: it may be gone after that. If it was claimed by something else, it is about to
            // leave, and the next one is asked.
            if ptr::eq(linked.desk, desk) {
                // SAFETY: it is this descriptor's.
                unsafe { self.unlink(waiter) };
                linked.edge.set(edge);
                if linked.claim(Outcome::Woken) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether a fiber or a function of this worker waits for the descriptor.
    pub(super) fn concerns(&self, desk: &'static Desk) -> bool {
        let of_desk =
            |callback: &Option<Callback>| callback.as_ref().is_some_and(|one| ptr::eq(one.desk, desk));
        self.callbacks.iter().any(of_desk)
            || DIRECTIONS.iter().any(|(index, _)| {
                let mut next = self.waiters[*index].first;
                std::iter::from_fn(|| {
                    // SAFETY: it is linked, so it is in place.
                    let waiter = unsafe { next?.as_ref() };
                    next = waiter.links[*index].next.get();
                    Some(waiter)
                })
                .any(|waiter| ptr::eq(waiter.desk, desk))
            })
    }

    /// Ends all waits for these directions, on whatever worker, with an error. Returns whether there were any.
    pub(super) fn end_waits(&mut self, event: Event, error: i32) -> bool {
        let mut any = false;
        for (index, direction) in DIRECTIONS {
            while event.contains(direction)
                && let Some(waiter) = self.waiters[index].first
            {
                // SAFETY: it is linked, so it is in place, and this descriptor's.
                unsafe {
                    self.unlink(waiter);
                    waiter.as_ref().error.set(error);
                    any |= waiter.as_ref().claim(Outcome::Closed);
                }
            }
        }
        any
    }

    /// The registration with an epoll, if there is one.
    pub(super) fn registration(&mut self, epoll: RawFd) -> Option<&mut Registration> {
        self.registrations.iter_mut().find(|one| one.epoll == epoll)
    }
}

impl Waiters {
    fn add(&mut self, waiter: NonNull<Waiter>, index: usize, in_front: bool) {
        // SAFETY: what is linked is in place, and so is what is being linked.
        let links = |waiter: NonNull<Waiter>| unsafe { &(*waiter.as_ptr()).links[index] };
        let (previous, next) = if in_front {
            (None, self.first)
        } else {
            (self.last, None)
        };
        links(waiter).previous.set(previous);
        links(waiter).next.set(next);
        match previous {
            Some(previous) => links(previous).next.set(Some(waiter)),
            None => self.first = Some(waiter),
        }
        match next {
            Some(next) => links(next).previous.set(Some(waiter)),
            None => self.last = Some(waiter),
        }
    }

    fn remove(&mut self, waiter: NonNull<Waiter>, index: usize) {
        // SAFETY: as above.
        let links = |waiter: NonNull<Waiter>| unsafe { &(*waiter.as_ptr()).links[index] };
        let (previous, next) = (links(waiter).previous.take(), links(waiter).next.take());
        match previous {
            Some(previous) => links(previous).next.set(next),
            None => self.first = next,
        }
        match next {
            Some(next) => links(next).previous.set(previous),
            None => self.last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_descriptor_has_a_place_of_its_own() {
        let mut expected = (0, 0);
        for fd in 0..100_000 {
            assert_eq!(place_of(fd), expected, "descriptor {fd}");
            expected.1 += 1;
            if expected.1 == FIRST_SEGMENT << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let (segment, offset) = place_of(i32::MAX as usize);
        assert!(segment < SEGMENTS && offset < FIRST_SEGMENT << segment);
    }

    #[test]
    fn an_entry_stays_where_it_is() {
        let before = ptr::from_ref(entry(70));
        entry(70_000).lock().generation = 7;
        assert_eq!(ptr::from_ref(entry(70)), before);
        assert_eq!(entry(70_000).lock().generation, 7);
    }
}
