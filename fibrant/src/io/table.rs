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
use super::doubt::{Age, Listed};
use super::lull::Lull;
use super::stream::Patience;
use crate::context;
use crate::fiber::{Outcome, Task, WaitNumber};
use crate::scheduler::{Desk, Guard, Lock};
use std::cell::Cell;
use std::mem;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering::*};

/// How many entries the first segment has; each further one has twice as many.
const FIRST_SEGMENT: usize = 64;

/// The descriptors of epolls that an entry's home has no room for begin here.
const HIGHEST_HOME: RawFd = (1 << 24) - 1;

/// What an entry's home says if it is registered, but not there.
const NO_HOME: u32 = 0xFF;

/// Enough segments for every descriptor number there can be.
const SEGMENTS: usize = 26;

static TABLE: [AtomicPtr<Entry>; SEGMENTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS];

/// What is known of one descriptor number: two cache lines, of which every wait needs both.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Entry {
    state: Lock<State>,
    /// The state's generation, for those who do not need to know more.
    pub(super) generation: AtomicU32,
    /// Whether input, and output, are not to be waited for at all: a socket's negative timeouts, which the kernel does not tell.
    pub(super) impatient: [AtomicBool; 2],
    /// What kind of file it is, if that is known.
    pub(super) kind: AtomicU8,
    /// Whether there is nothing to read, if it is a stream.
    pub(super) lull: Lull,
    /// The number of the options with which a read of it waits for ever; 0 if that is not known.
    pub(super) endless: AtomicU32,
    /// The state's first registration, for those who do not need to know more: see [`Entry::trust`].
    home: AtomicU32,
}

/// The state of a descriptor, under its entry's lock.
#[derive(Default)]
pub(super) struct State {
    /// Counts the files that this number has stood for, as far as we know: an event for an earlier one is ignored.
    pub(super) generation: u32,
    /// Who waits for input and for output: observers first, then the others, oldest first.
    waiters: [Waiters; 2],
    /// The callbacks for input and for output.
    pub(super) callbacks: [Option<Box<Callback>>; 2],
    /// How long a read waits, if it is a stream and somebody has asked.
    pub(super) patience: Patience,
    /// Where it is registered.
    pub(super) registrations: Registrations,
}

const _: () = assert!(size_of::<Entry>() == 128);

/// A descriptor's registrations: most have one, which is here.
#[derive(Default)]
pub(super) struct Registrations {
    first: Option<Registration>,
    others: Box<[Registration]>,
}

impl Registrations {
    /// The one with an epoll.
    pub(super) fn with(&mut self, epoll: RawFd) -> Option<&mut Registration> {
        let mut all = self.first.iter_mut().chain(&mut self.others);
        all.find(|one| one.epoll == epoll)
    }

    pub(super) fn add(&mut self, registration: Registration) {
        if self.first.is_none() {
            self.first = Some(registration);
        } else {
            self.others = mem::take(&mut self.others)
                .into_iter()
                .chain([registration])
                .collect();
        }
    }

    /// Forgets the one with an epoll.
    pub(super) fn remove(&mut self, epoll: RawFd) {
        self.first.take_if(|one| one.epoll == epoll);
        if !self.others.is_empty() {
            let others = mem::take(&mut self.others).into_iter();
            self.others = others.filter(|one| one.epoll != epoll).collect();
        }
    }

    /// Takes all.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Registration> + use<> {
        self.first.take().into_iter().chain(mem::take(&mut self.others))
    }
}

/// A descriptor's registration with one worker's epoll.
pub(super) struct Registration {
    /// That epoll's descriptor.
    pub(super) epoll: RawFd,
    /// What it asks for.
    pub(super) interest: Event,
    /// Whether its last edge has found nobody.
    pub(super) is_stray: bool,
    /// How often in a row it was found to be good.
    pub(super) trust: u8,
    /// Which list of that worker's [doubts](super::doubt) the descriptor is on.
    pub(super) doubted: Option<Listed>,
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

/// Brings a descriptor's entry into the cache.
pub(super) fn prefetch(fd: RawFd) {
    if let Some(entry) = existing(fd) {
        context::prefetch_lines(entry, 2);
    }
}

/// The cache lines around a waiter in a frame where its fiber's registers (below) and callers (above) are, as a rule.
const LINES_BELOW: usize = 7;
const LINES_AROUND: usize = 13;

/// Brings what the oldest waiter for a descriptor's input has on its stack into the cache.
pub(super) fn prefetch_waiter(fd: RawFd) {
    if let Some(first) = existing(fd).and_then(|entry| entry.lock().waiters[0].first) {
        let lowest = first.as_ptr().cast::<[u8; 64]>().wrapping_sub(LINES_BELOW);
        context::prefetch_lines(lowest, LINES_AROUND);
    }
}

/// Brings the fiber itself into the cache.
pub(super) fn prefetch_fiber(fd: RawFd) {
    let task = existing(fd).and_then(|entry| {
        let state = entry.lock();
        // SAFETY: it is linked, so it is in place as long as this has the lock.
        state.waiters[0].first.map(|first| unsafe { first.as_ref() }.task)
    });
    if let Some(task) = task {
        context::prefetch_lines(task.as_ptr(), 3);
    }
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
    let entry = entry(fd);
    let mut state = entry.lock();
    state.registrations.remove(epoll);
    entry.note_home(&state);
    let of_desk = |callback: &mut Box<Callback>| ptr::eq(callback.desk, desk);
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

    /// Whether something is known of a file that has not been closed since.
    pub(super) fn has_known_a_file(&self) -> bool {
        self.home.load(Relaxed) != 0 || !self.lull.is_unknown()
    }

    /// How often in a row the registration for input with this epoll was found to be good, if that is known without the lock. A
    /// registration ends on its worker's thread, or when the descriptor is closed, which changes the generation.
    #[inline]
    pub(super) fn trust(&self, epoll: RawFd) -> Option<u8> {
        let home = self.home.load(Acquire);
        (home >> 8 == epoll as u32 + 1).then_some(home as u8)
    }

    /// Notes the state's registrations, after they have changed.
    pub(super) fn note_home(&self, state: &State) {
        let home = match &state.registrations.first {
            Some(first) if first.interest.contains(Event::READ) && first.epoll < HIGHEST_HOME => {
                (first.epoll as u32 + 1) << 8 | u32::from(first.trust)
            }
            // Somewhere else.
            first if first.is_some() || !state.registrations.others.is_empty() => NO_HOME,
            _ => 0,
        };
        self.home.store(home, Release);
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
    /// Whether it is to be reminded that it has lasted.
    pub(super) age: Cell<Age>,
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
            age: Cell::new(Age::Young),
        }
    }

    /// Whether it only looks, for something else than those wait for who take what there is. The caller holds the lock.
    fn is_observer(&self) -> bool {
        self.linked.get().contains(Event::ANYTHING)
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
    /// Adds a waiter, the youngest, or the oldest if it has waited before. Observers have no turn: they are before all others.
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

    /// Wakes the oldest waiter of this worker for a direction, and all observers, because of what the kernel has said. If that is nothing,
    /// somebody leaves, and it is the next one's turn: observers have been woken already. Returns whether there was anybody.
    pub(super) fn wake_oldest(&mut self, index: usize, desk: &'static Desk, edge: u32) -> bool {
        let mut found = false;
        let mut next = self.waiters[index].first;
        while let Some(waiter) = next {
            // SAFETY: it is linked, so it is in place.
            let linked = unsafe { waiter.as_ref() };
            next = linked.links[index].next.get();
            let is_observer = linked.is_observer();
            if is_observer && edge == 0 {
                continue;
            }
            // Unlinked before it is woken: it may be gone after that. If it was claimed by something else, it is about to
            // leave, and the next one is asked.
            if ptr::eq(linked.desk, desk) {
                // SAFETY: it is this descriptor's.
                unsafe { self.unlink(waiter) };
                linked.edge.set(edge);
                if linked.claim(Outcome::Woken) {
                    found = true;
                    // Those who only look come first, and leave everything to the others.
                    if !is_observer {
                        break;
                    }
                }
            }
        }
        found
    }

    /// Whether there are any callbacks.
    #[inline]
    pub(super) fn has_callbacks(&self) -> bool {
        self.callbacks.iter().any(Option::is_some)
    }

    /// Takes this worker's callbacks for these directions.
    #[cold]
    pub(super) fn take_callbacks(&mut self, event: Event, desk: &'static Desk) -> [Option<Box<Callback>>; 2] {
        DIRECTIONS.map(|(index, direction)| {
            self.callbacks[index]
                .take_if(|callback| event.contains(direction) && ptr::eq(callback.desk, desk))
        })
    }

    /// Whether a fiber or a function of this worker waits for the descriptor.
    pub(super) fn concerns(&self, desk: &'static Desk) -> bool {
        let of_desk =
            |callback: &Option<Box<Callback>>| callback.as_ref().is_some_and(|one| ptr::eq(one.desk, desk));
        self.callbacks.iter().any(of_desk) || self.waiters_of(desk).next().is_some()
    }

    /// This worker's waiters. What is done to one must not unlink it.
    fn waiters_of(&self, desk: &'static Desk) -> impl Iterator<Item = &Waiter> {
        let in_list = |(index, _): (usize, Event)| {
            let mut next = self.waiters[index].first;
            let list = std::iter::from_fn(move || {
                // SAFETY: it is linked, so it is in place as long as the lock is held.
                let waiter: &Waiter = unsafe { next?.as_ref() };
                next = waiter.links[index].next.get();
                Some(waiter)
            });
            // Who is in both lists comes once.
            list.filter(move |waiter| index == 0 || !waiter.linked.get().contains(Event::READ))
        };
        let all = DIRECTIONS.into_iter().flat_map(in_list);
        all.filter(move |waiter| ptr::eq(waiter.desk, desk))
    }

    /// Reminds those of this worker's waiters that were there at the last look that they have lasted: they keep their places. Returns
    /// whether there are younger ones, and whether anybody was reminded.
    pub(super) fn remind(&self, desk: &'static Desk) -> (bool, bool) {
        let (mut any_young, mut any_old) = (false, false);
        for waiter in self.waiters_of(desk) {
            match waiter.age.get() {
                Age::Young => {
                    waiter.age.set(Age::Old);
                    any_young = true;
                }
                // If something else has ended its wait, it is about to go on.
                Age::Old if waiter.claim(Outcome::Woken) => {
                    waiter.age.set(Age::Reminded);
                    any_old = true;
                }
                Age::Old | Age::Reminded | Age::Settled => {}
            }
        }
        (any_young, any_old)
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
}

impl Waiters {
    fn add(&mut self, waiter: NonNull<Waiter>, index: usize, in_front: bool) {
        // SAFETY: what is linked is in place, and so is what is being linked.
        let links = |waiter: NonNull<Waiter>| unsafe { &(*waiter.as_ptr()).links[index] };
        // SAFETY: as above.
        let is_observer = |waiter: NonNull<Waiter>| unsafe { waiter.as_ref() }.is_observer();
        let (mut previous, mut next) = if in_front || is_observer(waiter) {
            (None, self.first)
        } else {
            (self.last, None)
        };
        while let Some(observer) = next.filter(|&next| is_observer(next)) {
            (previous, next) = (next, links(observer).next.get());
        }
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
