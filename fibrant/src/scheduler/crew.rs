//! The crew: what the workers of one runtime have in common.
//!
//! - who they are, and which of them sleep, so that a spawner can wake one when there is something to steal;
//! - where a fiber is placed;
//! - the runtime's phase, and whether all work is done.
//!
//! # Phases
//!
//! **Open**: outside work is taken. **Closing**: it is not; fibers go on, and spawn others. When nothing is left, or a shutdown
//! has lost its patience, the crew is **Over**: workers return as soon as they come to look, and whatever is left never runs
//! again.

use super::desk::Desk;
use super::dump::FiberDump;
use super::group::Locals;
use super::monitor;
use super::scheduled::Scheduled;
use crate::clock;
use crate::fiber::{TaskRef, Thread};
use crate::stats::{Counters, HookFigures, Stats};
use crate::sys;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::*, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where a runtime is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(crate) enum Phase {
    Open,
    Closing,
    Over,
}

/// What the workers of a runtime share.
pub(crate) struct Crew {
    /// Their desks, by index.
    pub(crate) desks: Box<[&'static Desk]>,
    /// The process that it was made in.
    process: u32,
    /// The runtime's name, after which threads are named.
    pub(crate) name: String,
    /// The stack size of fibers for which none is named.
    pub(crate) stack_size: usize,
    /// Whether blocking calls are hooked in its fibers.
    pub(super) hooks: bool,
    /// Whether its fibers are isolated, unless they are asked to be light.
    pub(crate) isolated: bool,
    /// After how long without a runnable fiber the dump is printed, if at all.
    pub(crate) deadlock_after: Option<Duration>,
    phase: AtomicU8,
    /// How many workers sleep.
    idle: AtomicUsize,
    /// Whether a worker has been woken to steal and has not looked yet: no second one is woken meanwhile.
    searching: AtomicBool,
    /// Work that was begun, and work that ended, on threads that are not workers.
    begun_outside: AtomicU64,
    ended_outside: AtomicU64,
    /// Whether a shutdown has lost its patience: see `begin_cancelling`.
    is_cancelling: AtomicBool,
    /// Calls that are under way on real threads, and guests.
    offloaded: AtomicUsize,
    /// When one of those last ended: nanoseconds of the monotonic clock.
    offload_ended_at: AtomicU64,
    /// The counters of the threads that are or were its workers.
    counters: Mutex<Vec<Arc<Counters>>>,
    /// The fibers that were refused because they came when everybody had been cancelled, and those that were abandoned.
    refused: Mutex<Vec<FiberDump>>,
    abandoned: Mutex<Vec<FiberDump>>,
    /// Whether the dump has been printed because nothing moved.
    pub(super) deadlock_reported: AtomicBool,
    /// For those who wait for the end: notified when the crew is over.
    end: (Mutex<()>, Condvar),
}

/// What is wrong with a runtime that a child has from its parent.
pub(crate) const FOREIGN: &str = "the runtime belongs to the process that this one was forked from: nobody is at work here; make one of \
                                  this process's own";

impl Crew {
    pub(crate) fn new(
        workers: usize,
        name: String,
        stack_size: usize,
        hooks: bool,
        isolated: bool,
        deadlock_after: Option<Duration>,
        stuck_after: Duration,
    ) -> io::Result<Crew> {
        sys::notice_forks(Thread::forget_fibers);
        let desks: Box<[_]> = (0..workers).map(|_| Desk::take()).collect::<Result<_, _>>()?;
        monitor::watch(&desks, stuck_after);
        Ok(Crew {
            process: sys::process(),
            desks,
            name,
            stack_size,
            hooks,
            isolated,
            deadlock_after,
            phase: AtomicU8::new(Phase::Open as u8),
            idle: AtomicUsize::new(0),
            searching: AtomicBool::new(false),
            begun_outside: AtomicU64::new(0),
            ended_outside: AtomicU64::new(0),
            is_cancelling: AtomicBool::new(false),
            offloaded: AtomicUsize::new(0),
            offload_ended_at: AtomicU64::new(0),
            counters: Mutex::default(),
            refused: Mutex::default(),
            abandoned: Mutex::default(),
            deadlock_reported: AtomicBool::new(false),
            end: (Mutex::new(()), Condvar::new()),
        })
    }

    /// Whose thread-locals its fibers use, unless they ask for others.
    #[inline]
    pub(crate) fn locals(&self) -> Locals {
        if self.isolated {
            Locals::Own
        } else {
            Locals::Workers
        }
    }

    /// Whether it was made in this process, and not in one that this one was forked from: nobody is at work there.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == sys::process()
    }

    /// The phase.
    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Open,
            1 => Phase::Closing,
            _ => Phase::Over,
        }
    }

    /// Takes no more outside work.
    pub(crate) fn close(&self) {
        let _ = self
            .phase
            .compare_exchange(Phase::Open as u8, Phase::Closing as u8, AcqRel, Relaxed);
        self.rouse_all();
    }

    /// Ends it: workers return as soon as they look.
    pub(crate) fn finish(&self) {
        self.phase.store(Phase::Over as u8, Release);
        self.rouse_all();
        let _guard = self.end.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.end.1.notify_all();
    }

    /// Blocks the calling thread until the crew is over or the moment has come. Returns whether it is over.
    pub(crate) fn wait_until_over(&self, until: Option<Instant>) -> bool {
        let mut guard = self.end.0.lock().unwrap_or_else(PoisonError::into_inner);
        while self.phase() != Phase::Over {
            guard = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.end.1.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return false,
                Some(rest) => {
                    let waited = self.end.1.wait_timeout(guard, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// Whether all work that was ever begun has ended.
    ///
    /// What has ended is counted before what has begun. Both only grow, and what has ended was begun before: if the numbers
    /// are equal, they were equal at the moment between the two counts. New work comes from work in progress, or from outside,
    /// which is refused by then.
    pub(crate) fn is_drained(&self) -> bool {
        // Two workers that end the last two pieces at the same time and then count: one of them must see both ends.
        fence(SeqCst);
        let ended: u64 = self.desks.iter().map(|desk| desk.ended.load(Acquire)).sum();
        let ended = ended + self.ended_outside.load(Acquire);
        fence(SeqCst);
        let begun: u64 = self.desks.iter().map(|desk| desk.begun.load(Acquire)).sum();
        ended == begun + self.begun_outside.load(Acquire)
    }

    /// From now on only fibers are waited for: timers, events and calls on real threads are not; and fibers that have not
    /// started must not. The caller cancels the others.
    pub(crate) fn begin_cancelling(&self) {
        self.is_cancelling.store(true, Release);
        self.rouse_all();
    }

    /// Whether a shutdown has lost its patience.
    pub(super) fn is_cancelling(&self) -> bool {
        self.is_cancelling.load(Acquire)
    }

    /// Whether no worker has a fiber.
    fn has_no_fibers(&self) -> bool {
        self.desks.iter().all(|desk| desk.roster.is_empty())
    }

    /// Ends the crew if it is closing and all work is done. For whoever has just run out of work, or ended some outside.
    pub(crate) fn finish_if_drained(&self) {
        if self.phase() == Phase::Closing
            && (self.is_drained() || (self.is_cancelling() && self.has_no_fibers()))
        {
            self.finish();
        }
    }

    /// Notes that a thread that is not one of the workers has come to run something, which has been admitted.
    pub(crate) fn note_guest(&self) {
        self.offloaded.fetch_add(1, Relaxed);
    }

    /// Notes that a guest has left.
    pub(crate) fn note_guest_left(&self) {
        self.offload_ended_at.store(clock::now(), Relaxed);
        self.offloaded.fetch_sub(1, Relaxed);
    }

    /// Notes that a call has gone to a real thread.
    pub(super) fn note_offloaded(&self) {
        self.offloaded.fetch_add(1, Relaxed);
        self.note_begun_outside();
    }

    /// Notes that such a call has ended.
    pub(super) fn note_offload_ended(&self) {
        self.offload_ended_at.store(clock::now(), Relaxed);
        self.offloaded.fetch_sub(1, Relaxed);
        self.note_ended_outside();
    }

    /// Notes that a fiber came when everybody had been cancelled.
    pub(super) fn note_refused(&self, fiber: FiberDump) {
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(fiber);
    }

    /// The fibers that came when everybody had been cancelled.
    pub(crate) fn refused(&self) -> Vec<FiberDump> {
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes that a fiber was abandoned.
    pub(super) fn note_abandoned(&self, fiber: FiberDump) {
        self.abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(fiber);
    }

    /// The fibers that were abandoned.
    pub(crate) fn abandoned(&self) -> Vec<FiberDump> {
        self.abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The fibers of workers whose threads have not come back.
    pub(crate) fn kept_by_threads(&self) -> Vec<FiberDump> {
        let now = clock::now();
        let mut fibers = Vec::new();
        for (index, desk) in self.desks.iter().enumerate() {
            if desk.is_manned.load(Acquire) {
                desk.roster
                    .for_each(|fiber, place| fibers.push(FiberDump::of(fiber, place, index, now)));
            }
        }
        fibers
    }

    /// Keeps the counters of a thread that is one of the workers.
    pub(super) fn add_counters(&self, counters: Arc<Counters>) {
        let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|other| Arc::ptr_eq(other, &counters)) {
            all.push(counters);
        }
    }

    /// What the threads that are or were its workers have counted.
    pub(crate) fn stats(&self) -> Stats {
        let all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        Stats::sum(all.iter().map(|counters| counters.read()))
    }

    /// What its workers have counted of the hooks, by their numbers.
    pub(crate) fn hook_figures(&self) -> HookFigures {
        let all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = HookFigures::default();
        for counters in all.iter() {
            sum.add(&counters.hooks);
        }
        sum
    }

    /// Notes that work has begun on a thread that is not a worker.
    pub(crate) fn note_begun_outside(&self) {
        self.begun_outside.fetch_add(1, AcqRel);
    }

    /// Lets work from outside in, and notes that it has begun, unless the crew takes no more.
    pub(crate) fn admit(&self) -> io::Result<()> {
        if !self.is_of_this_process() {
            return Err(io::Error::other(FOREIGN));
        }
        // Noted before the look: a crew that is open then cannot find itself drained before this work has ended.
        self.note_begun_outside();
        if self.phase() == Phase::Open {
            return Ok(());
        }
        self.note_ended_outside();
        Err(io::Error::other(format!(
            "the runtime '{}' has been stopped and takes no more work",
            self.name
        )))
    }

    /// Notes that work has ended on a thread that is not a worker.
    pub(crate) fn note_ended_outside(&self) {
        self.ended_outside.fetch_add(1, AcqRel);
        self.finish_if_drained();
    }

    /// Whether something is under way on threads that are not workers, or was after that moment.
    pub(super) fn had_outside_work_since(&self, moment: u64) -> bool {
        self.offloaded.load(Relaxed) > 0 || self.offload_ended_at.load(Relaxed) > moment
    }

    /// Notes that a worker sleeps.
    pub(super) fn note_asleep(&self) {
        self.idle.fetch_add(1, SeqCst);
    }

    /// Notes that it does not any more.
    pub(super) fn note_awake(&self) {
        self.idle.fetch_sub(1, SeqCst);
    }

    /// Wakes one sleeping worker to steal, unless one has been woken and has not looked yet. The caller has added something
    /// to a roster; a worker that is about to sleep looks at each roster under its lock after it was counted as idle, so one
    /// of the two sees the other.
    #[inline]
    pub(super) fn wake_thief(&self) {
        if self.idle.load(Relaxed) > 0 && !self.searching.load(Relaxed) {
            self.wake_one();
        }
    }

    #[cold]
    fn wake_one(&self) {
        // Twice: somebody may have fallen asleep after this has passed its desk, while another spawner relied on this search.
        for _ in 0..2 {
            if self.searching.swap(true, SeqCst) {
                return;
            }
            let mut manned = self.desks.iter().filter(|desk| desk.is_manned.load(Relaxed));
            if manned.any(|desk| desk.rouse()) {
                return;
            }
            self.searching.store(false, SeqCst);
            if self.idle.load(SeqCst) == 0 {
                return;
            }
        }
    }

    /// Notes that the worker that was woken to steal has looked.
    pub(super) fn note_searched(&self) {
        if self.searching.load(Relaxed) {
            self.searching.store(false, SeqCst);
        }
    }

    /// Wakes everyone who sleeps.
    pub(crate) fn rouse_all(&self) {
        for desk in &self.desks {
            desk.rouse();
        }
    }

    /// The manned desk with the fewest started fibers, and how many those are, about.
    pub(super) fn least_crowded(&self) -> Option<(&'static Desk, usize)> {
        self.desks
            .iter()
            .filter(|desk| desk.is_manned.load(Relaxed))
            .map(|desk| (*desk, desk.crowd.load(Relaxed)))
            .min_by_key(|(_, crowd)| *crowd)
    }

    /// Where a fiber from outside goes: to a sleeping worker, or else to the least crowded, or to the first if nobody is at
    /// work.
    fn place_for_outsider(&self) -> &'static Desk {
        let manned = || self.desks.iter().filter(|desk| desk.is_manned.load(Relaxed));
        manned()
            .find(|desk| desk.inbox().is_asleep())
            .copied()
            .or_else(|| self.least_crowded().map(|(desk, _)| desk))
            .unwrap_or(self.desks[0])
    }

    /// Takes fibers, whose beginning has been noted, to this worker, or wherever there is room.
    ///
    /// # Safety
    /// The fibers are new, and may start on another thread.
    pub(crate) unsafe fn take(
        &self,
        fibers: impl IntoIterator<Item = NonNull<Scheduled>>,
        worker: Option<usize>,
    ) {
        let desk = worker.map_or_else(|| self.place_for_outsider(), |index| self.desks[index]);
        // SAFETY: they are new, so they are alive.
        let own = |fiber: NonNull<Scheduled>| unsafe { fiber.as_ref() }.set_owner(desk);
        // SAFETY: by the caller's promise.
        unsafe {
            desk.roster
                .add(fibers, worker.is_some(), desk.stamp.load(Relaxed), own)
        };
        if !desk.rouse() {
            self.wake_thief();
        }
    }

    /// All fibers that fit, at about this moment. One that is just being passed from one worker to another may be missed.
    pub(crate) fn tasks(&self, fits: impl Fn(&Scheduled) -> bool) -> Vec<TaskRef> {
        let mut tasks = Vec::new();
        for desk in &self.desks {
            desk.roster.for_each(|fiber, _| {
                // SAFETY: whoever is on a roster has not ended, and cannot be removed while its lock is held.
                if fits(unsafe { fiber.as_ref() }) {
                    // SAFETY: as above.
                    tasks.push(unsafe { TaskRef::share(fiber.cast()) });
                }
            });
        }
        tasks
    }

    /// How many event callbacks are pending.
    pub(crate) fn pending_events(&self) -> usize {
        self.desks.iter().map(|desk| desk.events.load(Relaxed)).sum()
    }

    /// The index of one of its desks.
    pub(super) fn index_of(&self, desk: &'static Desk) -> Option<usize> {
        self.desks.iter().position(|other| ptr::eq(*other, desk))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            return; // the desks are the parent's, and so are their bells
        }
        monitor::forget(&self.desks);
        for desk in &self.desks {
            desk.give_back();
        }
    }
}
