//! A worker's desk: the part of a worker that other threads may touch.
//!
//! Fibers that can go on are left in its inbox, new ones are entered in its roster, errands are left for it to run, and its
//! bell is rung when it sleeps. Whoever wakes a fiber comes here with nothing but a pointer that the fiber held, and may be
//! late: the fiber may have run and ended, and its runtime with it, before the bell is rung. So desks are never freed.
//! One whose worker has ended is used again by the next ([`Desk::take`]), with the same bell: a late ring wakes somebody
//! for nothing, which does no harm.

use super::inbox::{Inbox, Pushed};
use super::lock::{Guard, Lock};
use super::roster::Roster;
use super::scheduled::Scheduled;
use super::worker::Worker;
use crate::fiber::contain;
use crate::stats::Counters;
use crate::sys::{self, PerProcess};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

/// Something that another thread wants the worker to do, between two fibers.
pub(crate) type Errand = Box<dyn FnOnce(&Worker) + Send>;

/// Where others leave things for a worker.
pub(crate) struct Desk {
    /// Fibers of this worker whose waits others have ended.
    inbox: Inbox<Scheduled>,
    /// All fibers that are with this worker.
    pub(super) roster: Roster<Scheduled>,
    /// What others want done here. Seldom used, and looked at when the worker polls.
    errands: Lock<Vec<Errand>>,
    has_errands: AtomicBool,
    /// Wakes the worker out of its poll.
    bell: OwnedFd,
    /// The stamp of the fiber that the worker queued last. It alone writes.
    pub(super) stamp: AtomicU64,
    /// Work that was begun from this worker (fibers spawned, timers and events armed), and work that ended on it. It alone
    /// writes; see [`Crew::is_drained`](super::crew::Crew::is_drained).
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
    /// How many started fibers live here, about: others look at it when they place a fiber, and it is only written when it has
    /// changed by some, so that their copies stay good.
    pub(super) crowd: AtomicUsize,
    /// Whether somebody is at work here: a thread that is not the runtime's own comes and goes.
    pub(super) is_manned: AtomicBool,
    /// What dumps and the monitor look at: the worker's thread, the fiber that runs, the length of the run queue, turns, polls and steals,
    /// pending alarms and events. The worker alone writes.
    pub(super) thread: AtomicI32,
    pub(super) running: AtomicPtr<Scheduled>,
    pub(super) ready: AtomicUsize,
    pub(super) turns: AtomicU64,
    pub(super) polls: AtomicU64,
    pub(super) steals: AtomicU64,
    /// How many switches it has made.
    tally: Lock<Tally>,
    /// How often the bell was rung. Whoever rings counts.
    pub(super) wakes: AtomicU64,
    pub(super) alarms: AtomicUsize,
    pub(crate) events: AtomicUsize,
    /// Since when it has been stuck in one fiber, as the monitor sees it: nanoseconds of the monotonic clock, 0 if it is not.
    pub(super) stuck_since: AtomicU64,
    /// Since when it has had nothing to do: nanoseconds of the monotonic clock, 0 while it works.
    pub(super) idle_since: AtomicU64,
}

/// The switches of a worker, which its thread counts among its own: those that it has made before, for other workers, are not the worker's.
#[derive(Default)]
struct Tally {
    /// Those made with threads that have left.
    before: u64,
    /// The counters of the thread that is at work, and how many it had when it came.
    present: Option<(Arc<Counters>, u64)>,
}

impl Tally {
    fn sum(&self) -> u64 {
        let present = self.present.as_ref();
        self.before + present.map_or(0, |(counters, first)| counters.switches.get() - first)
    }
}

// SAFETY: the inbox, the roster and the errands pass on only what may be passed to the worker's thread: see `deliver` and
// `Roster::add`. Everything else is atomic, or behind a lock and anybody's.
unsafe impl Send for Desk {}
// SAFETY: as above.
unsafe impl Sync for Desk {}

/// Desks without a worker.
static FREE: PerProcess<Mutex<Vec<&'static Desk>>> = PerProcess::new(Mutex::default);

impl Desk {
    /// A desk for a new worker.
    pub(crate) fn take() -> io::Result<&'static Desk> {
        let free = FREE.get().lock().unwrap_or_else(PoisonError::into_inner).pop();
        match free {
            Some(desk) => Ok(desk),
            None => Ok(Box::leak(Box::new(Desk::new()?))),
        }
    }

    fn new() -> io::Result<Desk> {
        // SAFETY: makes a descriptor; nothing is borrowed.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Desk {
            inbox: Inbox::new(),
            roster: Roster::new(),
            errands: Lock::default(),
            has_errands: AtomicBool::new(false),
            // SAFETY: it was just made and is nobody else's.
            bell: unsafe { OwnedFd::from_raw_fd(bell) },
            stamp: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            crowd: AtomicUsize::new(0),
            is_manned: AtomicBool::new(false),
            thread: AtomicI32::new(0),
            running: AtomicPtr::new(ptr::null_mut()),
            ready: AtomicUsize::new(0),
            turns: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            steals: AtomicU64::new(0),
            tally: Lock::default(),
            wakes: AtomicU64::new(0),
            alarms: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            stuck_since: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
        })
    }

    /// Gives a desk back, for the next worker. One that still has fibers, which were abandoned, is never used again: somebody
    /// may still want to wake them.
    pub(crate) fn give_back(&'static self) {
        let mut is_empty = self.inbox.is_empty();
        self.roster.for_each(|_, _| is_empty = false);
        if !is_empty {
            return;
        }
        self.errands().clear();
        self.roster.open();
        for number in [
            &self.stamp,
            &self.turns,
            &self.begun,
            &self.ended,
            &self.polls,
            &self.steals,
            &self.wakes,
            &self.idle_since,
        ] {
            number.store(0, Relaxed);
        }
        self.crowd.store(0, Relaxed);
        *self.tally.lock() = Tally::default();
        FREE.get()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self);
    }

    /// Leaves a fiber whose wait the caller has ended.
    ///
    /// # Safety
    /// The caller has claimed its wait, or it is on its way here by its own will; it belongs to this worker.
    #[inline]
    pub(super) unsafe fn deliver(&self, fiber: NonNull<Scheduled>) {
        // SAFETY: a fiber that has not ended is alive, and its worker is where it may be given to. A claim wins once, so it is
        // in no other queue.
        if unsafe { self.inbox.push(fiber) } == Pushed::MustRing {
            self.ring();
        }
    }

    /// Leaves an errand.
    pub(crate) fn send(&self, errand: Errand) {
        self.errands().push(errand);
        self.has_errands.store(true, Release);
        self.rouse();
    }

    /// Runs the errands.
    pub(super) fn run_errands(&self, worker: &Worker) {
        if self.has_errands.load(Relaxed) {
            let errands = {
                let mut errands = self.errands();
                self.has_errands.store(false, Relaxed);
                std::mem::take(&mut *errands)
            };
            for errand in errands {
                // It may drop something of the user's, which may panic.
                contain(|| errand(worker));
            }
        }
    }

    /// Whether there are errands, seen under the lock: whoever leaves one afterwards sees what the caller did before.
    pub(super) fn has_errands(&self) -> bool {
        !self.errands().is_empty()
    }

    fn errands(&self) -> Guard<'_, Vec<Errand>> {
        self.errands.lock()
    }

    /// Wakes the worker if it sleeps. Returns whether it did.
    pub(super) fn rouse(&self) -> bool {
        let asleep = self.inbox.rouse();
        if asleep {
            self.ring();
        }
        asleep
    }

    /// The inbox.
    #[inline]
    pub(super) fn inbox(&self) -> &Inbox<Scheduled> {
        &self.inbox
    }

    /// The descriptor of the bell: it becomes readable when it is rung.
    pub(crate) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn ring(&self) {
        self.wakes.fetch_add(1, Relaxed);
        // SAFETY: writes eight bytes of a local variable to a descriptor that is open for good. It can only fail if the number
        // in it would overflow, which takes longer than anything lasts.
        unsafe { sys::syscall!(SYS_write, self.bell(), &raw const ONE, 8) };
    }

    /// How many switches the worker has made.
    pub(super) fn switches(&self) -> u64 {
        self.tally.lock().sum()
    }

    /// Notes whose counters count the worker's switches from now on: nobody's if its thread leaves.
    pub(super) fn count_with(&self, counters: Option<Arc<Counters>>) {
        let present = counters.map(|counters| {
            let first = counters.switches.get();
            (counters, first)
        });
        let former = {
            let mut tally = self.tally.lock();
            tally.before = tally.sum();
            std::mem::replace(&mut tally.present, present)
        };
        drop(former);
    }

    /// Notes that a piece of work has begun. Only the worker calls it.
    #[inline]
    pub(crate) fn note_begun(&self, pieces: u64) {
        self.begun.store(self.begun.load(Relaxed) + pieces, Release);
    }

    /// Notes that a piece of work has ended. Only the worker calls it.
    #[inline]
    pub(crate) fn note_ended(&self) {
        self.ended.store(self.ended.load(Relaxed) + 1, Release);
    }
}

/// What ringing adds to the bell's counter.
static ONE: u64 = 1;
