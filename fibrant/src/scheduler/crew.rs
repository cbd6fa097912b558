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

use super::cancel::Cancelled;
use super::completion::ResultOwner;
use super::desk::Desk;
use super::dump::{FiberDump, FiberState};
use super::group::{Group, Locals};
use super::lock::Lock;
use super::monitor;
use super::scheduled::{Leftover, Rest, Scheduled};
use crate::clock;
use crate::fiber::{TaskRef, Thread};
use crate::primitives::yield_thread;
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
    /// Whether its workers may watch their inboxes: on one processor nobody writes a letter while another watches for it.
    pub(super) may_watch: bool,
    phase: AtomicU8,
    /// How many workers sleep.
    idle: AtomicUsize,
    /// Whether a worker has been woken to steal and has not looked yet: no second one is woken meanwhile.
    searching: AtomicBool,
    /// Work that was begun, and work that ended, on threads that are not workers.
    begun_outside: AtomicU64,
    ended_outside: AtomicU64,
    /// Work from outside that was let in, and is on no roster yet.
    arriving: AtomicUsize,
    /// Whether a shutdown has lost its patience: see `begin_cancelling`.
    is_cancelling: AtomicBool,
    /// The desks of guests: threads that are workers for a while. This lock and those below are our own: while a fiber has one, it does not
    /// wait, for the allocator's locks either, and so no worker waits for a fiber that only it could run.
    guests: Lock<Vec<&'static Desk>>,
    /// How often fibers have left one roster for another, and how often they have arrived: see `look_at_all`.
    departures: AtomicU64,
    arrivals: AtomicU64,
    /// Calls that are under way on real threads.
    offloaded: AtomicUsize,
    /// When one of those last ended: nanoseconds of the monotonic clock.
    offload_ended_at: AtomicU64,
    /// The counters of the threads that are or were its workers.
    counters: Lock<Vec<Arc<Counters>>>,
    /// The fibers that were refused because they came when everybody had been cancelled, and those that were abandoned.
    refused: Lock<Vec<FiberDump>>,
    abandoned: Lock<Vec<FiberDump>>,
    /// Whether the dump has been printed because nothing moved.
    pub(super) deadlock_reported: AtomicBool,
    /// For those who wait for the end: notified when the crew is over.
    end: (Mutex<()>, Condvar),
}

/// Work from outside on its way to a roster. It has arrived when this is dropped: until then a shutdown that only waits for fibers waits
/// for it, too.
pub(crate) struct Arrival<'a>(&'a Crew);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, SeqCst);
        fence(SeqCst);
        // It may have run and ended already, and whoever looked then has found it still arriving.
        if self.0.is_cancelling() {
            self.0.finish_if_drained();
        }
    }
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
            may_watch: workers > 0 && sys::processors() > 1,
            phase: AtomicU8::new(Phase::Open as u8),
            idle: AtomicUsize::new(0),
            searching: AtomicBool::new(false),
            begun_outside: AtomicU64::new(0),
            ended_outside: AtomicU64::new(0),
            arriving: AtomicUsize::new(0),
            is_cancelling: AtomicBool::new(false),
            guests: Lock::default(),
            departures: AtomicU64::new(0),
            arrivals: AtomicU64::new(0),
            offloaded: AtomicUsize::new(0),
            offload_ended_at: AtomicU64::new(0),
            counters: Lock::default(),
            refused: Lock::default(),
            abandoned: Lock::default(),
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

    /// Whether no worker and no guest has a fiber, and none is arriving.
    fn has_no_fibers(&self) -> bool {
        // Whoever comes next finds the crew closed, and whoever ends the last fiber or arrival, or has passed one on, looks here afterwards.
        fence(SeqCst);
        // Those on their way first: whoever has arrived is on a roster. Nobody may be on the way from one worker to another, on no roster,
        // and nobody may have gone from one that is yet to be looked at to one that was found empty.
        let arrivals = self.arrivals.load(SeqCst);
        self.departures.load(SeqCst) == arrivals
            && self.arriving.load(SeqCst) == 0
            && self.every_desk(|_, desk| desk.roster.is_empty())
            && self.departures.load(SeqCst) == arrivals
    }

    /// Whether all desks are so: those of the workers, then those of guests, whose numbers follow. Stops at the first that is not.
    pub(super) fn every_desk(&self, mut is_so: impl FnMut(usize, &'static Desk) -> bool) -> bool {
        // Under the lock no guest leaves: its desk could be that of another runtime's worker the next moment.
        let guests = self.guests.lock();
        let mut desks = self.desks.iter().chain(guests.iter()).enumerate();
        desks.all(|(index, desk)| is_so(index, desk))
    }

    /// Calls `look`, which goes through all desks, until each fiber was found once: again if fibers were passed from one worker to
    /// another meanwhile. Not for ever, for they may be passed on all the time; then some may be missing, or there twice.
    pub(super) fn look_at_all<T>(&self, mut look: impl FnMut() -> T) -> T {
        const MOST_LOOKS: usize = 20;
        for _ in 1..MOST_LOOKS {
            let departures = self.wait_until_all_have_arrived();
            let seen = look();
            if departures == Some(self.departures.load(SeqCst)) {
                return seen;
            }
        }
        look()
    }

    /// How often fibers have left one roster for another, if nobody is on the way. Waits for it, but not for ever: whoever passes
    /// fibers on may have lost its processor.
    fn wait_until_all_have_arrived(&self) -> Option<u64> {
        const MOST_TURNS: usize = 1000;
        for _ in 0..MOST_TURNS {
            // Those who have arrived first: if the numbers are equal, nobody was on the way in between.
            let arrivals = self.arrivals.load(SeqCst);
            if self.departures.load(SeqCst) == arrivals {
                return Some(arrivals);
            }
            yield_thread();
        }
        None
    }

    /// Calls `pass`, which takes fibers from one roster to another.
    pub(super) fn while_passing<T>(&self, pass: impl FnOnce() -> T) -> T {
        self.departures.fetch_add(1, SeqCst);
        let result = pass();
        self.arrivals.fetch_add(1, SeqCst);
        // Whoever has looked meanwhile, perhaps as the last one, has found it on its way.
        if self.is_cancelling() {
            self.finish_if_drained();
        }
        result
    }

    /// Ends the crew if it is closing and all work is done. For whoever has just run out of work, or ended some outside.
    pub(crate) fn finish_if_drained(&self) {
        if self.phase() == Phase::Closing
            && (self.is_drained() || (self.is_cancelling() && self.has_no_fibers()))
        {
            self.finish();
        }
    }

    /// Notes that a thread that is not one of the workers has come to run something, which has been admitted, at this desk.
    pub(crate) fn note_guest(&self, desk: &'static Desk) {
        let mut guests = self.guests.lock();
        guests.push(desk);
    }

    /// Notes that a guest has left.
    pub(crate) fn note_guest_left(&self, desk: &'static Desk) {
        let mut guests = self.guests.lock();
        guests.retain(|other| !ptr::eq(*other, desk));
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
        self.refused.lock().push(fiber);
    }

    /// The fibers that came when everybody had been cancelled.
    pub(crate) fn refused(&self) -> Vec<FiberDump> {
        self.refused.lock().clone()
    }

    /// Notes that a fiber was abandoned.
    pub(super) fn note_abandoned(&self, fiber: FiberDump) {
        self.abandoned.lock().push(fiber);
    }

    /// The fibers that were abandoned.
    pub(crate) fn abandoned(&self) -> Vec<FiberDump> {
        self.abandoned.lock().clone()
    }

    /// The fibers of workers whose threads have not come back, and of guests that have not left.
    pub(crate) fn kept_by_threads(&self) -> Vec<FiberDump> {
        let now = clock::now();
        let mut fibers = Vec::new();
        self.every_desk(|index, desk| {
            if desk.is_manned.load(Acquire) || index >= self.desks.len() {
                fibers.extend(
                    FiberDump::of_all(desk, index, now)
                        .into_iter()
                        .map(|(_, fiber)| fiber),
                );
            }
            true
        });
        fibers
    }

    /// Keeps the counters of a thread that is one of the workers.
    pub(super) fn add_counters(&self, counters: Arc<Counters>) {
        let mut all = self.counters.lock();
        if !all.iter().any(|other| Arc::ptr_eq(other, &counters)) {
            all.push(counters);
        }
    }

    /// What the threads that are or were its workers have counted.
    pub(crate) fn stats(&self) -> Stats {
        let all = self.counters.lock();
        Stats::sum(all.iter().map(|counters| counters.read()))
    }

    /// What its workers have counted of the hooks, by their numbers.
    pub(crate) fn hook_figures(&self) -> HookFigures {
        let all = self.counters.lock();
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

    /// Lets work from outside in, and notes that it has begun, unless the crew takes no more. The caller brings it to a roster and then
    /// drops what this returns.
    pub(crate) fn admit(&self) -> io::Result<Arrival<'_>> {
        if !self.is_of_this_process() {
            return Err(io::Error::other(FOREIGN));
        }
        // Noted before the look: a crew that is open then cannot find itself drained before this work has ended.
        self.arriving.fetch_add(1, SeqCst);
        let arrival = Arrival(self);
        self.note_begun_outside();
        fence(SeqCst);
        if self.phase() == Phase::Open {
            return Ok(arrival);
        }
        drop(arrival);
        self.note_ended_outside();
        Err(self.stopped())
    }

    /// What is wrong with work that comes too late.
    pub(crate) fn stopped(&self) -> io::Error {
        io::Error::other(format!(
            "the runtime '{}' has been stopped and takes no more work",
            self.name
        ))
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

    /// A worker has woken up and found something of its own to run. If it was woken to steal, another has to.
    pub(super) fn pass_search_on(&self, own: &Desk) {
        if self.searching.load(Relaxed) {
            self.searching.store(false, SeqCst);
            let mut others = self.desks.iter().filter(|desk| !ptr::eq(**desk, own));
            if own.roster.fresh() > 0 || others.any(|desk| desk.roster.fresh() > 0) {
                self.wake_thief();
            }
        }
    }

    /// Wakes everyone who sleeps.
    pub(crate) fn rouse_all(&self) {
        self.every_desk(|_, desk| {
            desk.rouse();
            true
        });
    }

    /// The manned desk with the fewest started fibers, and how many those are, about.
    pub(super) fn least_crowded(&self) -> Option<(&'static Desk, usize)> {
        self.desks
            .iter()
            .filter(|desk| desk.is_manned.load(Relaxed))
            .map(|desk| (*desk, desk.crowd.load(Relaxed)))
            .min_by_key(|(_, crowd)| *crowd)
    }

    /// Where a fiber from outside goes: to the least crowded of those who sleep, or else of all, or to the first if nobody is at
    /// work. (Where one who is awake has far fewer fibers, it is passed on there when it would start: see `Worker::relief`.)
    fn place_for_outsider(&self) -> &'static Desk {
        let manned = self.desks.iter().filter(|desk| desk.is_manned.load(Relaxed));
        manned
            .filter(|desk| desk.inbox().is_asleep())
            .min_by_key(|desk| desk.crowd.load(Relaxed))
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
        let added = unsafe {
            desk.roster
                .add(fibers, worker.is_some(), desk.stamp.load(Relaxed), own)
        };
        if let Err(fibers) = added {
            for fiber in fibers {
                // SAFETY: it is on no roster, and what it would run may be dropped here: it might start anywhere.
                drop(unsafe { self.turn_away(fiber, worker.unwrap_or(0)) });
                self.note_ended_outside();
            }
            return;
        }
        // Nobody else may take what is bound to a worker.
        if !desk.rouse() && worker.is_none() {
            self.wake_thief();
        }
    }

    /// Completes a fiber that has come to this worker, which has gone: it counts as cancelled. What is left of it is the caller's to drop.
    ///
    /// # Safety
    /// It is new, and on no roster; what it would run may be dropped here.
    pub(super) unsafe fn turn_away(&self, fiber: NonNull<Scheduled>, worker: usize) -> TurnedAway {
        // SAFETY: the scheduler's reference, which ends here with the fiber.
        let task = unsafe { TaskRef::from_raw(fiber.cast()) };
        let scheduled = Scheduled::of(&task);
        // A guest goes when its runtime goes on, and is nothing that a shutdown would report.
        if self.phase() != Phase::Open {
            let dump = FiberDump::of(fiber, FiberState::Fresh, None, worker, clock::now());
            self.note_refused(dump);
        }
        Thread::with(|thread| thread.counters.fibers_ended.increment());
        // SAFETY: it has not started, and never will: it completes once, here. What it holds is dropped afterwards, as that may wait for it.
        let (leftover, owner) = unsafe {
            let leftover = scheduled.take_work();
            scheduled.refuse(Box::new(Cancelled::new()), Rest::Forgotten);
            (leftover, scheduled.completion.complete())
        };
        if owner == ResultOwner::Completer {
            // SAFETY: nobody else wants the result.
            unsafe { scheduled.drop_result() };
        }
        if let Some(group) = scheduled.group.take() {
            // SAFETY: it is a member, and ends here, on the thread of its group. If it was the last, the stack that the group's block stands on
            // is not used again.
            let _ = unsafe { Group::leave(group) };
        }
        TurnedAway { leftover, task }
    }

    /// All fibers that fit, at about this moment.
    pub(crate) fn tasks(&self, fits: impl Fn(&Scheduled) -> bool) -> Vec<TaskRef> {
        self.look_at_all(|| {
            let mut tasks = Vec::new();
            self.every_desk(|_, desk| {
                desk.roster.for_each(|fiber, _| {
                    // SAFETY: whoever is on a roster has not ended, and cannot be removed while its lock is held.
                    if fits(unsafe { fiber.as_ref() }) {
                        // SAFETY: as above.
                        tasks.push(unsafe { TaskRef::share(fiber.cast()) });
                    }
                });
                true
            });
            tasks
        })
    }

    /// How many event callbacks are pending.
    pub(crate) fn pending_events(&self) -> usize {
        let mut pending = 0;
        self.every_desk(|_, desk| {
            pending += desk.events.load(Relaxed);
            true
        });
        pending
    }

    /// The index of one of its desks.
    pub(super) fn index_of(&self, desk: &'static Desk) -> Option<usize> {
        self.desks.iter().position(|other| ptr::eq(*other, desk))
    }
}

/// What is left of a fiber that was turned away.
pub(super) struct TurnedAway {
    leftover: Option<Leftover>,
    task: TaskRef,
}

impl Drop for TurnedAway {
    fn drop(&mut self) {
        drop(self.leftover.take());
        // Not before: what it would have run may borrow.
        if let Some(scope) = &Scheduled::of(&self.task).scope {
            scope.note_ended();
        }
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
