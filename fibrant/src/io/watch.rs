//! A fiber's wait for one descriptor, in rounds.
//!
//! [`wait`](super::wait) and the hooks come here when a descriptor is not ready. They [`watch`] it: wait for a round, look again,
//! and wait for another one if that was in vain. In between the fiber keeps its place among those who wait.
//!
//! Nothing is missed between a look and the wait that follows: an edge that comes then stays in the worker's epoll until its next
//! poll, which is after the fiber has given way. A descriptor that was not registered yet makes an edge when it is, if it is ready.

use super::Event;
use super::reactor::Reactor;
use super::table::{self, DIRECTIONS, Waiter};
use crate::clock;
use crate::fiber::WaitReason;
use crate::scheduler::{Interruption, WaitEnd, Waiting, Worker};
use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// After how long a wait makes sure that its registration is still good: nanoseconds.
const VERIFY_AFTER: u64 = 10_000_000;

/// Why a round has ended.
#[derive(Debug)]
pub(crate) enum Round {
    /// There may be something: look again.
    Look,
    /// The deadline has come.
    TimedOut,
    /// Somebody has closed the descriptor, or cancelled the waits for it: this is the error to report.
    Ended(i32),
    /// The fiber was cancelled, or the time of a `timeout` around the wait is up.
    Interrupted(Interruption),
}

/// A descriptor that a fiber waits for.
pub(crate) struct Watch<'a> {
    worker: &'a Worker,
    fd: RawFd,
    event: Event,
    entry: &'static table::Entry,
    /// The descriptor's, when the wait began: if it changes, the number is another file's.
    generation: u32,
    waiter: OnceCell<Waiter>,
    verify_at: Cell<u64>,
    has_waited: Cell<bool>,
    /// Whether an edge has ended its last round: it may have been meant for others, too.
    has_edge: Cell<bool>,
}

/// Calls `f` with a watch of this descriptor, which is open, for the fiber that runs.
pub(crate) fn watch<R>(worker: &Worker, fd: RawFd, event: Event, f: impl FnOnce(&Watch<'_>) -> R) -> R {
    let entry = table::entry(fd);
    // In its place for good: it is lent only.
    let watch = Watch {
        worker,
        fd,
        event,
        entry,
        generation: entry.lock().generation,
        waiter: OnceCell::new(),
        verify_at: Cell::new(clock::NEVER),
        has_waited: Cell::new(false),
        has_edge: Cell::new(false),
    };
    f(&watch)
}

impl Watch<'_> {
    /// Makes sure that something which happens from now on makes an edge; and that the descriptor is still the same one.
    pub(super) fn register(&self) -> io::Result<()> {
        let mut state = self.entry.lock();
        if state.generation != self.generation {
            return Err(io::Error::from_raw_os_error(libc::EBADF)); // it was closed; the number may be another file's now
        }
        Reactor::of(self.worker).register(self.fd, &mut state, self.event)
    }

    /// Waits for a round, at most until the deadline.
    pub(crate) fn wait(&self, deadline: u64, interruptible: bool) -> io::Result<Round> {
        // Each time: while this fiber was awake, edges that found nobody may have ended the registration.
        self.register()?;
        let is_first = !self.has_waited.replace(true);
        if is_first {
            self.verify_at.set(clock::now() + VERIFY_AFTER);
        }
        let waiting = Waiting {
            reason: WaitReason::Descriptor {
                fd: self.fd,
                read: self.event.contains(Event::READ),
                write: self.event.contains(Event::WRITE),
            },
            park: false,
            interruptible,
            deadline: deadline.min(self.verify_at.get()),
        };
        let end = self.worker.wait(waiting, |task, number| {
            let mut state = self.entry.lock();
            let waiter = self
                .waiter
                .get_or_init(|| Waiter::new(task, number, self.worker.desk));
            waiter.number.set(number);
            // Whoever only looked after its registration has kept its place.
            if !waiter.is_linked() {
                // SAFETY: it stays in this watch, which is lent only and unlinks it when it is dropped.
                unsafe { state.link(NonNull::from(waiter), self.event, !is_first) };
            }
        });
        self.has_edge.set(end == WaitEnd::Woken);
        Ok(match end {
            WaitEnd::Woken => Round::Look,
            WaitEnd::Closed => Round::Ended(
                self.waiter
                    .get()
                    .map_or(libc::ECANCELED, |waiter| waiter.error.get()),
            ),
            WaitEnd::Interrupted(interruption) => Round::Interrupted(interruption),
            WaitEnd::TimedOut if clock::now() >= deadline => Round::TimedOut,
            WaitEnd::TimedOut => {
                // It has lasted a while: perhaps the descriptor was closed and opened anew without our knowledge.
                self.verify_at.set(clock::NEVER);
                Reactor::of(self.worker).verify(self.fd, &mut self.entry.lock())?;
                Round::Look
            }
        })
    }
}

impl Drop for Watch<'_> {
    /// Leaves its place. Whom an edge has woken lets the next one look: one edge may stand for several events.
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.get() else { return };
        let mut state = self.entry.lock();
        // SAFETY: it is this descriptor's.
        unsafe { state.unlink(NonNull::from(waiter)) };
        if self.has_edge.get() && state.generation == self.generation {
            for (index, direction) in DIRECTIONS {
                if self.event.contains(direction) {
                    state.wake_oldest(index, self.worker.desk);
                }
            }
        }
    }
}
