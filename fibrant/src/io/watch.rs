//! A fiber's wait for descriptors, in rounds.
//!
//! [`wait`](super::wait) and the hooks come here when a descriptor is not ready. They [`watch`] it: wait for a round, look again,
//! and wait for another one if that was in vain. In between the fiber keeps its place among those who wait.
//!
//! Nothing is missed between a look and the wait that follows: an edge that comes then stays in the worker's epoll until its next
//! poll, which is after the fiber has given way. A descriptor that was not registered yet makes an edge when it is, if it is ready.

use super::Event;
use super::doubt::Age;
use super::reactor::Reactor;
use super::table::{self, DIRECTIONS, Waiter};
use crate::clock;
use crate::fiber::{Outcome, WaitReason};
use crate::scheduler::{InTable, Interruption, WaitEnd, Waiting, Worker};
use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// Why a round has ended.
#[derive(Debug)]
pub(crate) enum Round {
    /// There may be something: look again.
    Look,
    /// It has lasted a while, or until its deadline, and the watch is for someone who [believes](Watch::believe) something: time to
    /// make sure of it.
    Doubt,
    /// The deadline has come.
    TimedOut,
    /// Somebody has closed the descriptor, or cancelled the waits for it: this is the error to report.
    Ended(i32),
    /// The fiber was cancelled, or the time of a `timeout` around the wait is up.
    Interrupted(Interruption),
}

/// Descriptors that a fiber waits for.
pub(crate) struct Watch<'a> {
    worker: &'a Worker,
    places: &'a [Place],
    /// Whether it has lasted, and its registrations have been verified.
    is_verified: Cell<bool>,
    has_waited: Cell<bool>,
    /// Whether an edge has ended the last round: it may have been meant for others, too.
    has_edge: Cell<bool>,
    /// Whether the wait rests on something that may be wrong.
    is_belief: Cell<bool>,
    /// Whether the one place has been left.
    has_left: Cell<bool>,
}

/// A place among those who wait for a descriptor.
struct Place {
    fd: RawFd,
    event: Event,
    entry: &'static table::Entry,
    /// The descriptor's, when the wait began: if it changes, the number is another file's.
    generation: u32,
    waiter: OnceCell<Waiter>,
    /// How many places follow, this one included.
    count: usize,
    /// What is to be told if a coroutine that waits here never goes on, in the first place of those. Here: the frame that waits may be on
    /// a shared stack.
    in_table: OnceCell<InTable>,
}

/// Calls `f` with a watch of these descriptors, which are open, for the fiber that runs.
pub(crate) fn watch<R>(worker: &Worker, targets: &[(RawFd, Event)], f: impl FnOnce(&Watch<'_>) -> R) -> R {
    let place = |(index, &(fd, event)): (usize, &(RawFd, Event))| {
        let entry = table::entry(fd);
        Place {
            count: targets.len() - index,
            fd,
            event,
            entry,
            generation: entry.lock().generation,
            waiter: OnceCell::new(),
            in_table: OnceCell::new(),
        }
    };
    match targets {
        // Most often: no allocation. On a shared stack nothing is left that others look at.
        [one] if !worker.keeps_no_records() => Watch::lend(worker, &[place((0, one))], f),
        several => {
            let places: Box<[_]> = several.iter().enumerate().map(place).collect();
            Watch::lend(worker, &places, f)
        }
    }
}

/// Calls `f` with a watch of one descriptor, as long as it stands for the file with this [`generation`](super::generation).
pub(crate) fn watch_file<R>(
    worker: &Worker,
    (fd, event): (RawFd, Event),
    generation: u32,
    f: impl FnOnce(&Watch<'_>) -> R,
) -> R {
    if worker.keeps_no_records() {
        let place: Box<[_]> = vec![Place::of_file((fd, event), generation)].into();
        Watch::lend(worker, &place, f)
    } else {
        watch_file_here(worker, (fd, event), generation, f)
    }
}

/// The same for a fiber that may leave its records on its stack.
#[inline(always)]
pub(crate) fn watch_file_here<R>(
    worker: &Worker,
    target: (RawFd, Event),
    generation: u32,
    f: impl FnOnce(&Watch<'_>) -> R,
) -> R {
    Watch::lend(worker, &[Place::of_file(target, generation)], f)
}

impl Watch<'_> {
    #[inline(always)]
    fn lend<R>(worker: &Worker, places: &[Place], f: impl FnOnce(&Watch<'_>) -> R) -> R {
        f(&Watch {
            worker,
            places,
            is_verified: Cell::new(false),
            has_waited: Cell::new(false),
            has_edge: Cell::new(false),
            is_belief: Cell::new(false),
            has_left: Cell::new(false),
        })
    }

    /// Makes sure that something which happens from now on makes an edge; and that the descriptors are still the same ones.
    /// Returns how often in a row that was found to be so.
    pub(super) fn register(&self) -> io::Result<u8> {
        let mut trust = u8::MAX;
        let epoll = Reactor::of(self.worker).epoll();
        for place in self.places {
            if place.event == Event::READ
                && let Some(known) = place.entry.trust(epoll)
            {
                trust = trust.min(known);
                continue;
            }
            let mut state = place.entry.lock();
            if state.generation != place.generation {
                return Err(io::Error::from_raw_os_error(libc::EBADF)); // closed; the number may be another file's now
            }
            trust = trust.min(Reactor::of(self.worker).register(place.fd, &mut state, place.event)?);
        }
        Ok(trust)
    }

    /// Says that the wait rests on what is remembered: if it lasts a while, it is interrupted once, by [`Round::Doubt`].
    pub(crate) fn believe(&self) {
        self.is_belief.set(true);
    }

    /// What the kernel has said of the one descriptor that is watched, if that has ended the last round: bits of epoll's; 0 if it was
    /// something else.
    pub(crate) fn edge(&self) -> u32 {
        match self.places {
            [one] => one.waiter.get().map_or(0, |waiter| waiter.edge.take()),
            _ => 0,
        }
    }

    /// `EBADF`, if a descriptor has been closed since the wait began.
    pub(crate) fn check(&self) -> Result<(), i32> {
        let is_same = |place: &Place| place.entry.lock().generation == place.generation;
        if self.places.iter().all(is_same) {
            Ok(())
        } else {
            Err(libc::EBADF)
        }
    }

    /// Whether a descriptor has been closed since the wait began.
    pub(crate) fn is_closed(&self, fd: RawFd) -> bool {
        let is_gone = |place: &Place| place.fd == fd && place.entry.lock().generation != place.generation;
        self.places.iter().any(is_gone)
    }

    /// Makes a call on the one descriptor that is watched, while nobody can put another file in its place. `EBADF`, if somebody
    /// has. The call must not wait.
    #[inline]
    pub(crate) fn attempt(&self, call: impl FnOnce() -> isize) -> Result<isize, i32> {
        self.attempt_and(call, |_, _| ())
    }

    /// The same for a call that is the last one, unless it would block: the place is left at once.
    #[inline]
    pub(crate) fn attempt_and_leave(&self, call: impl FnOnce() -> isize) -> Result<isize, i32> {
        self.attempt_and(call, |place, state| {
            place.leave(state, self.has_edge.get());
            self.has_left.set(true);
        })
    }

    #[inline]
    fn attempt_and(
        &self,
        call: impl FnOnce() -> isize,
        done: impl FnOnce(&Place, &mut table::State),
    ) -> Result<isize, i32> {
        let [place] = self.places else {
            unreachable!("a call is made on one descriptor");
        };
        let mut state = place.entry.lock();
        if state.generation != place.generation {
            return Err(libc::EBADF);
        }
        let result = call();
        if result != -(libc::EAGAIN as isize) {
            done(place, &mut state);
        }
        Ok(result)
    }

    /// Waits for a round, at most until the deadline.
    #[inline(always)]
    pub(crate) fn wait(&self, deadline: u64, interruptible: bool) -> io::Result<Round> {
        loop {
            let end = self.wait_once(deadline, interruptible)?;
            let is_reminded = end == WaitEnd::Woken && self.is_reminded();
            self.has_edge.set(end == WaitEnd::Woken && !is_reminded);
            return Ok(match end {
                WaitEnd::Woken if !is_reminded => Round::Look,
                WaitEnd::Closed => Round::Ended(self.error()),
                WaitEnd::Interrupted(interruption) => {
                    self.distrust();
                    Round::Interrupted(interruption)
                }
                WaitEnd::TimedOut if clock::now() >= deadline && !self.is_belief.get() => {
                    self.distrust();
                    Round::TimedOut
                }
                WaitEnd::Woken | WaitEnd::TimedOut => {
                    let verified = self.verify();
                    if self.is_belief.take() {
                        return Ok(Round::Doubt); // who will find out what is wrong
                    }
                    verified?;
                    continue;
                }
            });
        }
    }

    /// Whether the round has ended because it is time to verify the registrations.
    fn is_reminded(&self) -> bool {
        let first = self.places.first().and_then(|first| first.waiter.get());
        first.is_some_and(|waiter| waiter.age.get() == Age::Reminded)
    }

    /// It has lasted a while: perhaps a descriptor was closed and opened anew without our knowledge. If it is ready, an edge comes of it,
    /// for whoever waits longest; to look now would be to jump the queue.
    #[cold]
    fn verify(&self) -> io::Result<()> {
        self.is_verified.set(true);
        for place in self.places {
            Reactor::of(self.worker).verify(place.fd, &mut place.entry.lock())?;
        }
        Ok(())
    }

    /// The wait was too short to verify the registrations, and nothing has come of them: if all waits are so, nobody would ever.
    #[cold]
    fn distrust(&self) {
        if !self.is_verified.get() {
            for place in self.places {
                Reactor::of(self.worker).distrust(place.fd, &mut place.entry.lock());
            }
        }
    }

    /// Waits until something happens, the deadline comes, or it is time to verify the registrations.
    #[inline(always)]
    fn wait_once(&self, deadline: u64, interruptible: bool) -> io::Result<WaitEnd> {
        // Each time: while this fiber was awake, edges that found nobody may have ended a registration.
        let trust = self.register()?;
        let is_first = !self.has_waited.replace(true);
        self.has_left.set(false);
        let waiting = Waiting {
            reason: self.reason(),
            // A coroutine may be resumed by hand.
            park: self.worker.is_event_loop,
            interruptible,
            deadline,
        };
        if self.worker.is_event_loop
            && let Some(fiber) = self.worker.fiber()
        {
            let in_table = self.places.first().map(|first| {
                first.in_table.get_or_init(|| InTable {
                    give_up: Place::give_up,
                    wait: NonNull::from(first).cast(),
                })
            });
            fiber.in_table.set(in_table.map(NonNull::from));
        }
        let end = self.worker.wait(waiting, |task, number| {
            for (index, place) in self.places.iter().enumerate() {
                let mut state = place.entry.lock();
                let waiter = place
                    .waiter
                    .get_or_init(|| Waiter::new(task, number, self.worker.desk));
                waiter.number.set(number);
                waiter.edge.set(0); // one that came too late for the last wait is not this one's
                if state.generation != place.generation {
                    // Closed since it was registered, by somebody who did not find it here.
                    waiter.error.set(libc::EBADF);
                }
                if waiter.error.get() != 0 {
                    // Or somebody has ended the waits while this one looked after its registration.
                    waiter.claim(Outcome::Closed);
                    break;
                }
                // If it lasts, it is to verify all of them: the first reminds it.
                if index > 0 || self.is_verified.get() {
                    waiter.age.set(Age::Settled);
                } else {
                    Reactor::of(self.worker).doubt(place.fd, &mut state, trust);
                }
                // Whoever only looked after its registration has kept its place.
                if !waiter.is_linked() {
                    // SAFETY: it stays where it is: the watch has borrowed its place, and unlinks it when it is dropped.
                    unsafe { state.link(NonNull::from(waiter), place.event, !is_first) };
                }
            }
        });
        if self.worker.is_event_loop
            && let Some(fiber) = self.worker.fiber()
        {
            fiber.in_table.set(None);
        }
        Ok(end)
    }

    /// What dumps show: the first descriptor.
    fn reason(&self) -> WaitReason {
        match self.places {
            [first, ..] => WaitReason::Descriptor {
                fd: first.fd,
                read: first.event.contains(Event::READ),
                write: first.event.contains(Event::WRITE),
            },
            [] => WaitReason::Sleeping,
        }
    }

    /// The error that somebody has left.
    fn error(&self) -> i32 {
        let errors = self.places.iter().filter_map(|place| place.waiter.get());
        let error = errors.map(|waiter| waiter.error.get()).find(|&error| error != 0);
        error.unwrap_or(libc::ECANCELED)
    }
}

impl Place {
    /// The only one, as long as the descriptor stands for the file with this generation.
    #[inline(always)]
    fn of_file((fd, event): (RawFd, Event), generation: u32) -> Place {
        Place {
            fd,
            event,
            entry: table::entry(fd),
            generation,
            waiter: OnceCell::new(),
            in_table: OnceCell::new(),
            count: 1,
        }
    }

    /// Leaves it. Whom an edge has woken lets the next one look: one edge may stand for several events.
    fn leave(&self, state: &mut table::State, has_edge: bool) {
        let Some(waiter) = self.waiter.get() else {
            return;
        };
        // SAFETY: it is this descriptor's.
        unsafe { state.unlink(NonNull::from(waiter)) };
        if has_edge && state.generation == self.generation {
            for (index, direction) in DIRECTIONS {
                if self.event.contains(direction) {
                    state.wake_oldest(index, waiter.desk, 0);
                }
            }
        }
    }

    /// Takes a coroutine that never goes on out of its places. If an edge has woken it, somebody else has it.
    ///
    /// # Safety
    /// It is the first of the places that a coroutine of this thread's waits in, and this is called once.
    unsafe fn give_up(first: NonNull<()>) {
        let first = first.cast::<Place>();
        // SAFETY: by the contract; they lie one after the other, as it says.
        let places = unsafe { std::slice::from_raw_parts(first.as_ptr(), first.as_ref().count) };
        for place in places {
            place.leave(&mut place.entry.lock(), true);
        }
    }
}

impl Drop for Watch<'_> {
    /// Leaves all places.
    fn drop(&mut self) {
        if self.has_left.get() {
            return;
        }
        for place in self.places {
            place.leave(&mut place.entry.lock(), self.has_edge.get());
        }
    }
}
