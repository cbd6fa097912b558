//! A worker: one thread's part of a runtime.
//!
//! It has what only its own thread touches (the run queue, the driver, its own context) and a [`Desk`] for the others. This
//! file is about finding work; [`turn`](super::turn) is about switching to it.
//!
//! # Whose turn it is
//!
//! First in, first out. Fibers that can go on wait in the run queue, fibers that have not started wait in the roster, and each
//! was stamped with a rising number when it came: the lower stamp goes first. What others left in the inbox is
//! queued before each choice among these. So a fiber that yields for ever stands behind everyone who was there before. Every
//! [`POLL_INTERVAL`] turns, or when nobody can run, the worker's own context polls: whoever is woken by that comes into the
//! queue, behind those who are in it, ahead of those who come later.
//!
//! The one exception is a fiber that joins a child which has not started: the child runs next, in its parent's turn, and when it
//! ends or gives way the turn goes back to the parent, which most often has nothing left to wait for. So a tree of fibers runs
//! depth-first, and few of them are alive at a time. After [`CHAIN_LIMIT`] such turns in a row somebody else has one.

use super::cancel::Cancelled;
use super::crew::{Crew, Phase, TurnedAway};
use super::desk::Desk;
use super::driver::Driver;
use super::dump::{FiberDump, FiberState};
use super::queue::Queue;
use super::scheduled::{InTable, Leftover, Making, Rest, Scheduled};
use super::vigil::{self, Vigil};
use crate::clock;
use crate::context::stack::{self, Stack};
use crate::context::{Context, tls};
use crate::fiber::{Scheduler, Task, TaskRef, Thread};
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{
    Ordering::{Relaxed, Release, SeqCst},
    fence,
};
use std::time::Duration;

/// How many turns pass between two polls while there are fibers to run.
const POLL_INTERVAL: u64 = 61;

/// How many turns in a row may pass between parents and children before somebody who has waited longer has one.
const CHAIN_LIMIT: u32 = 32;

/// How many more started fibers than the least crowded worker this one may have before it places fresh ones there.
const CROWD_TOLERANCE: usize = 16;

/// After how long a crowded worker takes it that another, whose fresh fibers do not start, is stuck: nanoseconds.
const SECOND_LOOK_AFTER: u64 = 50_000_000;

/// After how long without work a worker gives the memory of surplus stacks and ended fibers back: nanoseconds.
const TRIM_AFTER: u64 = 10_000_000;

/// How often a worker that watches its inbox looks there before it asks for the time.
const WATCHED_LOOKS: u32 = 32;

/// How long it looks there only, before it polls: nanoseconds.
const WATCHED_POLL: u64 = 10_000;

/// The worker publishes how many started fibers it has, and looks at the others' numbers, in steps of this many.
const CROWD_STEP: usize = 8;

/// One thread's part of a runtime.
pub(crate) struct Worker {
    /// What others may touch.
    pub(crate) desk: &'static Desk,
    /// The runtime's common part.
    pub(crate) crew: Arc<Crew>,
    /// Its place among the workers; a guest, which is a worker for a while, has none.
    pub(crate) index: Option<usize>,
    /// Whether it is a thread's event loop, whose fibers are coroutines: see [`event_loop`](super::event_loop).
    pub(crate) is_event_loop: bool,
    /// How many calls that did not have to wait its coroutine has made in a row, if it is one.
    pub(super) ready_calls: Cell<u32>,
    /// What it sleeps in.
    pub(crate) driver: Box<dyn Driver>,
    /// What the driver keeps for timers: see [`Driver::timers`].
    pub(crate) timers: NonNull<()>,
    /// The state of the thread that drives it, while one does.
    thread: Cell<*const Thread>,
    /// Where its own code, on the thread's own stack, goes on: live while a fiber runs.
    pub(super) context: Context,
    /// The fiber that is the thread itself: the closure given to `run`. It has no stack of its own, and goes on in `context`.
    root: Cell<Option<NonNull<Scheduled>>>,
    /// Its started fibers that can go on.
    ready: Queue,
    /// How many turns it has made.
    turn: Cell<u64>,
    /// How many fibers have been queued: the stamp of the last one. Others read it at the desk.
    stamp: Cell<u64>,
    /// The turn of its last poll.
    last_poll: Cell<u64>,
    /// How many turns have passed between parents and children since the last one that did not.
    chain: Cell<u32>,
    /// The child that is to run next, ahead of others, because its parent has joined it.
    chained: Cell<Option<NonNull<Scheduled>>>,
    /// The parents that have let a child run ahead, and go on when it ends or gives way; linked like the queue, the last one
    /// first.
    parents: Cell<*mut Scheduled>,
    /// The child that runs ahead, and whose parent has not gone on since; null if there is none. It is only compared.
    ahead: Cell<*const Scheduled>,
    /// The stack of a group that nobody is left of: the last member still runs with the block on it. It is put back by whoever
    /// runs next with another.
    retired: Cell<Option<Stack>>,
    /// Fibers that were to start and got no stack, each with the reason.
    pub(super) stackless: RefCell<Vec<(NonNull<Scheduled>, io::Error)>>,
    /// Fibers that have ended and whose results nobody wants.
    pub(super) unwanted: RefCell<Vec<TaskRef>>,
    /// Whether there may be some of either.
    pub(super) has_leftovers: Cell<bool>,
    /// What is left of fibers that were spawned here when this worker had gone.
    late: RefCell<Vec<TurnedAway>>,
    /// A fiber that is leaving for another worker.
    pub(super) moving: Cell<Option<(NonNull<Scheduled>, &'static Desk)>>,
    /// The time as of the last poll.
    now: Cell<u64>,
    /// When it last looked for a deadlock.
    pub(super) last_look: Cell<u64>,
    /// Whether there is something that may be stolen if it is still there at a second look, and what was seen at the first: whose
    /// desk, which stamp, when.
    second_look: Cell<bool>,
    doubt: Cell<((*const Desk, u64), u64)>,
    /// Whom to give fresh fibers to, and how many starts that is good for.
    relief: Cell<Option<&'static Desk>>,
    until_look: Cell<usize>,
    /// Whether it watches its inbox before it sleeps.
    vigil: Vigil,
}

/// What is to run next.
pub(super) enum Pick {
    /// A fiber that has a stack (or is the root).
    Started(NonNull<Scheduled>),
    /// A fiber that needs one.
    Fresh(NonNull<Scheduled>),
    /// The worker's own code: it is time to poll, or there is nothing to run.
    Poll,
}

impl Worker {
    /// The worker with that place in the crew.
    pub(crate) fn new(crew: Arc<Crew>, index: usize, driver: Box<dyn Driver>) -> Worker {
        Worker::make(crew.desks[index], crew, Some(index), driver)
    }

    /// A guest of the crew, at a desk of its own.
    pub(crate) fn guest(crew: Arc<Crew>, desk: &'static Desk, driver: Box<dyn Driver>) -> Worker {
        Worker::make(desk, crew, None, driver)
    }

    /// A guest whose fibers are coroutines.
    pub(crate) fn event_loop(crew: Arc<Crew>, desk: &'static Desk, driver: Box<dyn Driver>) -> Worker {
        Worker {
            is_event_loop: true,
            ..Worker::make(desk, crew, None, driver)
        }
    }

    fn make(desk: &'static Desk, crew: Arc<Crew>, index: Option<usize>, driver: Box<dyn Driver>) -> Worker {
        Worker {
            desk,
            crew,
            index,
            is_event_loop: false,
            ready_calls: Cell::new(0),
            timers: NonNull::from(driver.timers()).cast(),
            driver,
            thread: Cell::new(ptr::null()),
            context: Context::spent(),
            root: Cell::new(None),
            ready: Queue::new(),
            turn: Cell::new(0),
            stamp: Cell::new(0),
            last_poll: Cell::new(0),
            chain: Cell::new(0),
            chained: Cell::new(None),
            parents: Cell::new(ptr::null_mut()),
            ahead: Cell::new(ptr::null()),
            retired: Cell::new(None),
            stackless: RefCell::default(),
            unwanted: RefCell::default(),
            has_leftovers: Cell::new(false),
            late: RefCell::default(),
            moving: Cell::new(None),
            now: Cell::new(clock::now()),
            last_look: Cell::new(0),
            second_look: Cell::new(false),
            doubt: Cell::new(((ptr::null(), 0), 0)),
            relief: Cell::new(None),
            until_look: Cell::new(0),
            vigil: Vigil::new(),
        }
    }

    /// The worker of a runtime that the calling thread is, if it is one.
    ///
    /// The reference is good until the fiber that asked is moved to another worker, which only it itself can bring about.
    #[inline(always)]
    pub(crate) fn current() -> Option<&'static Worker> {
        Worker::here().filter(|worker| !worker.is_event_loop)
    }

    /// The same, event loops included.
    #[inline(always)]
    pub(crate) fn here() -> Option<&'static Worker> {
        Thread::if_any(Worker::of_thread)
    }

    /// The worker that a thread is, whose state this is: the calling one.
    #[inline(always)]
    pub(super) fn of_thread(thread: &Thread) -> Option<&'static Worker> {
        let scheduler = thread.scheduler()?;
        // SAFETY: `man` sets it, to a worker, and takes it back before that worker goes away. Code that asks runs on the
        // thread in between: a fiber of this worker never runs again after that.
        Some(unsafe { scheduler.cast::<Worker>().as_ref() })
    }

    /// The worker, and the fiber that runs on this thread, if what runs is the fiber's own code.
    #[inline(always)]
    pub(crate) fn and_fiber() -> Option<(&'static Worker, &'static Scheduled)> {
        Thread::if_any(|thread| {
            if thread.is_busy() {
                return None;
            }
            let fiber = thread.task()?.cast::<Scheduled>();
            let worker = thread.scheduler()?.cast::<Worker>();
            // SAFETY: the task that runs here is alive and the head of a Scheduled, while its code runs; the worker is as in `current`.
            Some(unsafe { (worker.as_ref(), fiber.as_ref()) })
        })
    }

    /// The worker, if what runs on this thread is a fiber whose blocking calls are hooked.
    #[inline(always)]
    pub(crate) fn of_hooked_fiber() -> Option<&'static Worker> {
        Worker::and_fiber()
            .filter(|(worker, fiber)| worker.crew.hooks && !fiber.is_unhooked.get())
            .map(|(worker, _)| worker)
    }

    /// Whether nobody else uses the thread-locals of the fiber that runs here.
    pub(crate) fn has_own_locals(&self) -> bool {
        self.fiber().is_some_and(Scheduled::has_own_locals)
    }

    /// Whether blocking calls of the fiber that runs here are hooked, unless they are hooked nowhere in this runtime; and changes
    /// that.
    pub(crate) fn set_hooked(&self, yes: bool) -> bool {
        self.fiber().is_some_and(|fiber| !fiber.is_unhooked.replace(!yes))
    }

    /// Notes which hooked call the fiber that runs here waits in.
    pub(crate) fn set_call(&self, name: Option<&'static &'static str>) {
        if let Some(fiber) = self.fiber() {
            let name = name.map_or(ptr::null(), ptr::from_ref);
            fiber.call.store(name.cast_mut(), Relaxed);
        }
    }

    /// The same, for code that may have changed threads since it last asked: the compiler must not reuse an address of a
    /// thread-local.
    #[inline(never)]
    pub(super) fn current_after_switch() -> &'static Worker {
        Worker::current().expect("a fiber runs on a worker")
    }

    /// Makes the calling thread this worker while `f` runs.
    pub(crate) fn man<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Leave<'a>(
            &'a Worker,
            Option<NonNull<dyn Scheduler>>,
            Option<NonNull<crate::fiber::Block>>,
            Option<NonNull<Task>>,
        );
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.desk.is_manned.store(false, Relaxed);
                self.0.desk.count_with(None);
                // SAFETY: what was there before is valid until it is replaced in turn.
                unsafe { self.0.thread().set_scheduler(self.1) };
                self.0.thread().set_current(self.2);
                self.0.thread().set_task(self.3);
                self.0.thread().stacks.set_trims(true);
                while self.0.thread().spares.has_surplus() {
                    self.0.thread().spares.trim();
                }
                self.0.thread.set(ptr::null());
            }
        }
        let scheduler: NonNull<dyn Scheduler> = NonNull::from(self);
        // SAFETY: only the lifetime is removed: it is taken back before `self` can go away.
        let scheduler =
            unsafe { std::mem::transmute::<NonNull<dyn Scheduler>, NonNull<dyn Scheduler>>(scheduler) };
        let thread: *const Thread = Thread::with(ptr::from_ref);
        self.thread.set(thread);
        // SAFETY: the worker outlives `f`, after which `Leave` takes it back.
        let before = unsafe { self.thread().set_scheduler(Some(scheduler)) };
        // Hand-driven fibers that the thread is in the middle of are none of the runtime's: nothing in it can suspend them.
        let fiber = self.thread().current();
        self.thread().set_current(None);
        // And what runs here is none of its fibers, though it may be another runtime's: whatever waits now blocks the thread.
        let task = self.thread().task();
        self.thread().set_task(None);
        let _leave = Leave(self, before, fiber, task);
        // SAFETY: asks for a number.
        self.desk.thread.store(unsafe { libc::gettid() }, Relaxed);
        self.desk.is_manned.store(true, Relaxed);
        // It is awake, and may have something to run before it ever sleeps.
        fence(SeqCst);
        super::monitor::note_awake();
        self.thread().stacks.set_trims(false);
        tls::prepare_home();
        self.crew.add_counters(self.thread().counters.share());
        self.desk.count_with(Some(self.thread().counters.share()));
        f()
    }

    /// What a worker's own thread does, from its start to the end of its runtime. `ready` is called when it is at work.
    pub(crate) fn serve(&self, ready: impl FnOnce()) {
        self.man(|| {
            ready();
            self.drive(|| true);
        });
        self.abandon_rest(true);
    }

    /// The state of the thread that drives it.
    #[inline(always)]
    pub(crate) fn thread(&self) -> &Thread {
        debug_assert!(!self.thread.get().is_null(), "nobody drives this worker");
        // SAFETY: `man` has set it to the state of its thread, on whose stack (or on those of fibers that are run from there) this
        // code runs. That state ends when the thread's locals are destroyed, and `man` has returned by then, unless it runs
        // in a destructor itself: then the state is either never freed or freed by a destructor that comes later.
        unsafe { &*self.thread.get() }
    }

    /// The fiber that runs.
    #[inline(always)]
    pub(crate) fn fiber(&self) -> Option<&Scheduled> {
        // SAFETY: the task that runs here is alive, and every task is the head of a Scheduled.
        self.thread()
            .task()
            .map(|task| unsafe { task.cast::<Scheduled>().as_ref() })
    }

    /// Notes which fiber runs.
    #[inline(always)]
    pub(super) fn set_fiber(&self, fiber: Option<NonNull<Scheduled>>) {
        self.thread().set_task(fiber.map(NonNull::cast::<Task>));
        let desk = self.desk;
        // Whoever sees that the last one does not run any more sees what it has done: whom it has told that it waits, for example.
        desk.running
            .store(fiber.map_or(ptr::null_mut(), NonNull::as_ptr), Release);
        self.publish_turn();
    }

    /// Lets others see that a new turn has begun: whoever has none for long counts as stuck.
    #[inline(always)]
    pub(super) fn publish_turn(&self) {
        self.desk.turns.store(self.turn.get(), Relaxed);
    }

    /// The fiber that is the thread itself.
    #[inline(always)]
    pub(super) fn root(&self) -> Option<NonNull<Scheduled>> {
        self.root.get()
    }

    pub(super) fn set_root(&self, root: Option<NonNull<Scheduled>>) {
        self.root.set(root);
    }

    /// Keeps a stack on which the block of thread-locals is that the caller runs with, until somebody runs with another.
    pub(super) fn retire(&self, stack: Stack) {
        if let Some(earlier) = self.retired.replace(Some(stack)) {
            self.thread().stacks.put(earlier);
        }
    }

    /// Puts back what was kept. For code that runs with the worker's own thread-locals.
    pub(super) fn put_retired(&self) {
        if let Some(stack) = self.retired.take() {
            self.thread().stacks.put(stack);
        }
    }

    /// The time as of the last poll.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    /// Queues a fiber of this worker that has waited and can go on.
    ///
    /// # Safety
    /// It is this worker's, has started and not ended, and is in no queue or inbox.
    #[inline]
    pub(super) unsafe fn enqueue(&self, fiber: NonNull<Scheduled>) {
        // SAFETY: by the caller's promise.
        unsafe { self.ready.push(fiber, self.next_stamp(), true) };
    }

    /// Queues a fiber of this worker that lets others run.
    ///
    /// # Safety
    /// As for [`enqueue`](Worker::enqueue).
    #[inline]
    pub(super) unsafe fn enqueue_again(&self, fiber: NonNull<Scheduled>) {
        // SAFETY: by the caller's promise.
        unsafe { self.ready.push(fiber, self.next_stamp(), false) };
    }

    /// Makes this an event loop of the calling thread, for good.
    pub(super) fn belong_to_this_thread(&self) {
        self.thread.set(Thread::with(ptr::from_ref));
        // SAFETY: asks for a number.
        self.desk.thread.store(unsafe { libc::gettid() }, Relaxed);
    }

    /// Queues what others have left in the inbox. Says how many are in the queue.
    #[inline]
    pub(super) fn take_inbox(&self) -> usize {
        if !self.desk.inbox().is_empty() {
            self.desk.inbox().take_all(|fiber| {
                // SAFETY: it was delivered here because it is this worker's and can go on, and it is in the inbox no more.
                unsafe { self.enqueue(fiber) }
            });
        }
        self.ready.length()
    }

    /// Takes the first fiber out of the queue.
    pub(super) fn take_ready(&self) -> Option<NonNull<Scheduled>> {
        self.ready.pop()
    }

    /// The first fiber in the queue, which stays there.
    pub(super) fn first_ready(&self) -> Option<NonNull<Scheduled>> {
        self.ready.first()
    }

    /// Takes a fiber that was woken, and is in the queue or about to be, out of it.
    pub(super) fn take_out(&self, fiber: NonNull<Scheduled>) {
        // Whoever has claimed its wait, on another thread, may not have delivered it yet.
        self.take_inbox();
        while !self.ready.remove(fiber) {
            crate::primitives::yield_thread();
            self.take_inbox();
        }
    }

    /// Whether no fiber here could have a turn now but the one that runs.
    pub(crate) fn has_nobody_else_ready(&self) -> bool {
        self.ready.first_stamp() == u64::MAX
            && self.desk.roster.first_stamp() == u64::MAX
            && self.desk.inbox().is_empty()
    }

    /// The stamp of a fiber that is queued now.
    #[inline]
    fn next_stamp(&self) -> u64 {
        let stamp = self.stamp.get() + 1;
        self.stamp.set(stamp);
        self.desk.stamp.store(stamp, Relaxed);
        stamp
    }

    /// Begins the next turn, and says what is to run.
    #[inline]
    pub(super) fn pick(&self) -> Pick {
        if self.begin_turn() {
            Pick::Poll
        } else {
            self.pick_fiber()
        }
    }

    /// Begins the next turn. Returns whether a poll is due.
    #[inline]
    pub(super) fn begin_turn(&self) -> bool {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        turn - self.last_poll.get() >= POLL_INTERVAL
    }

    /// Says which fiber is to run; `Poll` if there is none.
    #[inline]
    pub(super) fn pick_fiber(&self) -> Pick {
        if let Some(child) = self.chained.get() {
            self.chained.set(None);
            return Pick::Fresh(child);
        }
        while let Some(parent) = self.take_parent() {
            if self.chain.get() < CHAIN_LIMIT {
                self.chain.set(self.chain.get() + 1);
                return Pick::Started(parent);
            }
            // SAFETY: it can go on, and is in no queue.
            unsafe { self.enqueue(parent) };
        }
        self.chain.set(0);
        self.take_inbox();
        if self.desk.roster.first_stamp() < self.ready.first_stamp()
            && let Some(fresh) = self.start_next()
        {
            return Pick::Fresh(fresh);
        }
        self.ready.pop().map_or(Pick::Poll, Pick::Started)
    }

    /// Takes the fiber that is next to start, unless this worker is so crowded that another is to have it.
    fn start_next(&self) -> Option<NonNull<Scheduled>> {
        loop {
            let fiber = self.desk.roster.start_next()?;
            match self.relief(fiber) {
                Some(desk) if self.hand_over(fiber, desk) => {}
                _ => return Some(fiber),
            }
        }
    }

    /// Who should have a fresh fiber instead of this worker.
    fn relief(&self, fiber: NonNull<Scheduled>) -> Option<&'static Desk> {
        if self.crew.desks.len() == 1 || self.index.is_none() {
            return None;
        }
        let crowd = self.desk.roster.started();
        if self.until_look.get() == 0 {
            self.until_look.set(CROWD_STEP);
            self.publish_crowd(crowd);
            let least = self.crew.least_crowded();
            let relief = least.filter(|(_, other)| crowd > other + CROWD_TOLERANCE);
            self.relief.set(relief.map(|(desk, _)| desk));
        }
        self.until_look.set(self.until_look.get() - 1);
        // SAFETY: it was just taken off the roster, so it has not ended.
        let fiber = unsafe { fiber.as_ref() };
        self.relief
            .get()
            .filter(|_| !fiber.is_bound && !fiber.was_placed.get())
    }

    fn publish_crowd(&self, crowd: usize) {
        if self.desk.crowd.load(Relaxed).abs_diff(crowd) >= CROWD_STEP {
            self.desk.crowd.store(crowd, Relaxed);
        }
    }

    /// Gives a fiber that is about to start to another worker. Returns whether it did: not if that has gone.
    #[cold]
    fn hand_over(&self, fiber: NonNull<Scheduled>, desk: &'static Desk) -> bool {
        // SAFETY: `start_next` has just put it among the started ones of this roster. It has no stack yet and is not bound, so
        // it may start elsewhere. This worker is at work, so its own roster is open.
        let has_left = self.crew.while_passing(|| unsafe {
            fiber.as_ref().was_placed.set(true);
            self.desk.roster.remove(fiber);
            let own = |fiber: NonNull<Scheduled>| fiber.as_ref().set_owner(desk);
            let added = desk.roster.add([fiber], false, desk.stamp.load(Relaxed), own);
            added.is_ok() || !self.desk.roster.add_started(fiber, |_| {})
        });
        if has_left {
            desk.crowd.fetch_add(1, Relaxed);
            if !desk.rouse() {
                self.crew.wake_thief();
            }
        }
        has_left
    }

    /// Takes fibers that were spawned on this worker.
    ///
    /// # Safety
    /// They are new; if they are bound, they may start here, else anywhere.
    #[inline]
    pub(crate) unsafe fn launch(&self, fibers: impl IntoIterator<Item = NonNull<Scheduled>>, bound: bool) {
        if self.index.is_none() && !bound && self.crew.phase() != Phase::Over {
            // A guest's own queue is not for everybody, unless nobody else is at work.
            let fibers = fibers.into_iter().inspect(|_| self.crew.note_begun_outside());
            // SAFETY: by the caller's promise.
            return unsafe { self.crew.take(fibers, None) };
        }
        // SAFETY: they are new, so they are alive.
        let own = |fiber: NonNull<Scheduled>| unsafe { fiber.as_ref() }.set_owner(self.desk);
        // Noted before anybody can find them: they may be stolen and have ended the next moment.
        let fibers = fibers.into_iter().inspect(|_| self.desk.note_begun(1));
        // SAFETY: by the caller's promise.
        match unsafe { self.desk.roster.add(fibers, bound, self.next_stamp(), own) } {
            Ok(count) => self.thread().counters.fibers_created.add(count as u64),
            Err(fibers) => return self.turn_away(fibers),
        }
        if !bound {
            self.crew.wake_thief();
        }
    }

    /// Completes fibers that were spawned here by something that is dropped when this worker has gone.
    #[cold]
    fn turn_away(&self, fibers: impl IntoIterator<Item = NonNull<Scheduled>>) {
        let index = self.index.unwrap_or(self.crew.desks.len());
        for fiber in fibers {
            self.thread().counters.fibers_created.increment();
            // SAFETY: it is on no roster, and was made on this thread: what it would run may be dropped here. Not at once, though: whatever spawns
            // again as it is dropped would never come to an end.
            self.late
                .borrow_mut()
                .push(unsafe { self.crew.turn_away(fiber, index) });
            self.desk.note_ended();
        }
    }

    /// The desk of the worker that timers armed here belong to: this one, unless it is a guest, which will leave.
    pub(crate) fn home(&self) -> &'static Desk {
        match self.index {
            Some(_) => self.desk,
            None => self.crew.desks[0],
        }
    }

    /// Spawns a fiber here that nobody joins: a timer's or an event's function.
    pub(crate) fn spawn_detached(
        &self,
        spawned_at: &'static Location<'static>,
        f: impl FnOnce() + Send + 'static,
    ) {
        let making = Making {
            id: self.thread().next_id(),
            name: None,
            spawned_at,
            stack_size: self.crew.stack_size,
            is_bound: true,
            locals: self.crew.locals(),
            scope: None,
        };
        // SAFETY: it owns what it runs, which may be dropped anywhere.
        let (fiber, task) = unsafe { Scheduled::make(making, f) };
        Scheduled::detach(&task);
        // SAFETY: it is new.
        unsafe { self.launch([fiber], true) };
    }

    /// Lets a child that the running fiber is about to wait for run right now, ahead of all others, if it has not started and is
    /// with this worker. The running fiber goes on when the child ends or gives way: often there is nothing left to wait for.
    #[inline]
    pub(super) fn run_ahead(&self, child: &Scheduled) {
        let is_here = || child.owner().is_some_and(|owner| ptr::eq(owner, self.desk));
        if self.chain.get() < CHAIN_LIMIT
            && is_here()
            && self.desk.roster.start(NonNull::from(child), is_here)
        {
            self.chain.set(self.chain.get() + 1);
            self.chained.set(Some(NonNull::from(child)));
            let parent = self.fiber().expect("who joins here is a fiber");
            parent.next.store(self.parents.get(), Relaxed);
            self.parents.set(ptr::from_ref(parent).cast_mut());
            self.ahead.set(child);
            self.thread().set_scheduling(true);
            self.give_way(parent);
        }
    }

    /// Whether this fiber, which runs, was let ahead by the one that joins it, which has not gone on since.
    ///
    /// A child that gives way to anybody is not ahead any more: whoever is next is its own child, or its parent, or comes after that
    /// was put into the queue.
    #[inline]
    pub(super) fn is_ahead(&self, fiber: &Scheduled) -> bool {
        ptr::eq(self.ahead.get(), fiber)
    }

    /// Whether nobody else can run this fiber, which has not ended.
    pub(super) fn alone_can_run(&self, fiber: &Scheduled) -> bool {
        let is_here = || fiber.owner().is_some_and(|owner| ptr::eq(owner, self.desk));
        let has_started = || self.desk.roster.has_started(NonNull::from(fiber), is_here);
        is_here() && (fiber.is_bound || self.crew.desks.len() == 1 || has_started())
    }

    /// Takes the parent that let a child run ahead last.
    #[inline]
    fn take_parent(&self) -> Option<NonNull<Scheduled>> {
        let parent = NonNull::new(self.parents.get())?;
        self.ahead.set(ptr::null());
        // SAFETY: it has not ended, as it goes on.
        self.parents.set(unsafe { parent.as_ref() }.next.load(Relaxed));
        Some(parent)
    }

    /// Notes that a fiber came when everybody had been cancelled.
    #[cold]
    pub(super) fn note_refused(&self, fiber: &Scheduled) {
        let index = self.index.unwrap_or(self.crew.desks.len());
        let dump = FiberDump::of(NonNull::from(fiber), FiberState::Fresh, None, index, self.now());
        self.crew.note_refused(dump);
    }

    /// Gives up what is left when the crew is over: fibers that have not started never will, and those that wait are abandoned.
    /// After it has stopped running fibers, on its own thread, or on one that has it to itself. On the latter what is bound to the worker is not
    /// dropped, as it need not be `Send`: it is abandoned, too.
    pub(crate) fn abandon_rest(&self, is_own_thread: bool) {
        // From now on nobody comes, and another worker that has not noticed yet that the crew is over finds nothing to steal.
        let mut rest = Vec::new();
        self.desk.roster.close(|fiber| {
            // SAFETY: whoever is on a roster has not ended, and cannot be removed while its lock is held.
            rest.push(unsafe { TaskRef::share(fiber.cast()) });
        });
        // They are on the roster, and given up as what they are: not started.
        self.stackless.borrow_mut().clear();
        let mut leftovers = Vec::new();
        for task in &rest {
            let scheduled = Scheduled::of(task);
            if scheduled.completion.is_done() {
                continue; // it was given up before
            }
            // SAFETY: it is on this roster, and nobody runs it any more.
            let leftover = unsafe { self.abandon(scheduled, is_own_thread) };
            // What was begun never ends.
            // SAFETY: as above.
            let has_started = unsafe { scheduled.has_begun() };
            leftovers.push((leftover, scheduled.scope.as_ref().filter(|_| !has_started)));
        }
        // What is the user's to drop is dropped when all have completed: that may mean to wait for one of them. What these drop may spawn fibers,
        // which are turned away.
        self.man(|| {
            if is_own_thread {
                self.clear_up();
            }
            self.driver.expire_all(self);
            self.desk.run_errands(self);
        });
        for (leftover, scope) in leftovers {
            drop(leftover);
            // What was to run is gone, or nobody will ever touch it, and with it what it borrowed.
            if let Some(scope) = scope {
                scope.note_ended();
            }
        }
        let late = self.late.take();
        drop(late);
    }

    /// Completes a fiber that never runs again: as abandoned, if it has started, or is bound to the worker and this is not its thread. Returns
    /// what it would have run otherwise.
    ///
    /// # Safety
    /// It is on this worker's roster, has not completed, and nobody runs it from now on.
    pub(super) unsafe fn abandon(&self, scheduled: &Scheduled, is_own_thread: bool) -> Option<Leftover> {
        let fiber = NonNull::from(scheduled);
        // One that has no stack has not started, whatever the roster says.
        // SAFETY: by the caller's promise nobody runs it.
        let has_started = unsafe { scheduled.has_begun() };
        let is_dropped = !has_started && (is_own_thread || !scheduled.is_bound);
        if is_dropped {
            Thread::with(|thread| thread.counters.fibers_ended.increment());
        } else {
            let index = self.index.unwrap_or(self.crew.desks.len());
            let state = if has_started {
                FiberState::Ready
            } else {
                FiberState::Fresh
            };
            let dump = FiberDump::of(fiber, state, None, index, clock::now());
            self.crew.note_abandoned(dump);
            Thread::with(|thread| thread.counters.fibers_abandoned.increment());
        }
        if let Some(table) = scheduled.in_table.take() {
            // SAFETY: the fiber waits there, and never goes on, so that its frames stay.
            unsafe {
                let InTable { give_up, wait } = *table.as_ref();
                give_up(wait);
            }
        }
        // SAFETY: it has not started or never goes on, so nobody else touches what it runs or returns; whoever joins it gets
        // this. It completes once: a fiber that never goes on does not. What is taken out was made on this thread, or for any. What one has returned
        // that waits in a destructor of its thread-locals is forgotten, as all else that it holds.
        unsafe {
            let leftover = if is_dropped { scheduled.take_work() } else { None };
            scheduled.refuse(Box::new(Cancelled::new()), Rest::Forgotten);
            scheduled.completion.complete();
            leftover
        }
    }

    /// Polls without sleeping, and runs errands.
    pub(super) fn poll(&self) {
        self.last_poll.set(self.turn.get());
        self.desk.run_errands(self);
        if self.driver.poll(self, Some(0)) {
            self.count_poll();
        }
        self.after_poll();
    }

    fn after_poll(&self) {
        self.now.set(clock::now());
        self.publish();
    }

    /// Counts how often the kernel is asked.
    fn count_poll(&self) {
        self.desk.polls.store(self.desk.polls.load(Relaxed) + 1, Relaxed);
    }

    /// Lets others see how things are: after each poll, when deadlines have come, and before a sleep.
    fn publish(&self) {
        let desk = self.desk;
        desk.ready.store(self.ready.length(), Relaxed);
        desk.alarms.store(self.driver.alarms(), Relaxed);
        let crowd = desk.roster.started();
        self.thread().spares.expect(crowd);
        self.publish_crowd(crowd);
    }

    /// Takes fresh fibers from other workers. Returns whether there were any.
    ///
    /// A worker that has many more started fibers than the other does not take back what was placed there for that reason,
    /// unless the other is stuck: its first fresh fiber is still the same one at a second look.
    pub(super) fn steal(&self) -> bool {
        // A guest is there for its own fibers only.
        let Some(index) = self.index else { return false };
        self.second_look.set(false);
        let desks = &self.crew.desks;
        let stolen = (1..desks.len())
            .map(|distance| desks[(index + distance) % desks.len()])
            .filter(|victim| victim.roster.fresh() > 0 && self.may_steal_from(victim))
            .map(|victim| {
                // SAFETY: whoever is on a roster has not ended.
                let own = |fiber: NonNull<Scheduled>| unsafe { fiber.as_ref() }.set_owner(self.desk);
                let steal = || victim.roster.steal(&self.desk.roster, self.next_stamp(), own);
                self.crew.while_passing(steal)
            })
            .find(|stolen| *stolen > 0);
        self.crew.note_searched();
        if let Some(stolen) = stolen {
            self.desk
                .steals
                .store(self.desk.steals.load(Relaxed) + stolen as u64, Relaxed);
            if stolen > 1 {
                self.crew.wake_thief();
            }
        }
        stolen.is_some()
    }

    fn may_steal_from(&self, victim: &Desk) -> bool {
        if self.desk.roster.started() <= victim.roster.started() + CROWD_TOLERANCE {
            return true;
        }
        let (now, seen) = (clock::now(), (ptr::from_ref(victim), victim.roster.first_stamp()));
        let (last_seen, since) = self.doubt.get();
        if last_seen != seen {
            self.doubt.set((seen, now));
        } else if now - since >= SECOND_LOOK_AFTER {
            return true;
        }
        self.second_look.set(true);
        false
    }

    /// Whether there is something to steal, seen under the locks. What needs a second look is not counted: the sleep is short
    /// then.
    fn has_fresh_elsewhere(&self) -> bool {
        let others = || self.crew.desks.iter().filter(|desk| !ptr::eq(**desk, self.desk));
        self.index.is_some() && !self.second_look.get() && others().any(|desk| desk.roster.has_fresh())
    }

    /// Looks on for a moment, instead of falling asleep at once. Returns whether there may be something to do: a letter, or, as it
    /// polls now and then, anything else.
    #[cold]
    fn watch(&self) -> bool {
        let start = clock::now();
        let mut last_poll = start;
        loop {
            for _ in 0..WATCHED_LOOKS {
                if !self.desk.inbox().is_empty() {
                    self.vigil.note_found();
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = clock::now();
            if now - start >= vigil::LENGTH {
                self.vigil.note_vain();
                return false;
            }
            if now - last_poll >= WATCHED_POLL {
                last_poll = now;
                self.poll();
                let has_fresh = self.desk.roster.first_stamp() != u64::MAX;
                if has_fresh
                    || self.can_steal()
                    || self.ready.length() > 0
                    || self.crew.phase() != Phase::Open
                {
                    return true;
                }
            }
        }
    }

    /// Whether there seems to be something to steal. What needs a second look is not counted.
    fn can_steal(&self) -> bool {
        let mut desks = self.crew.desks.iter();
        self.index.is_some() && !self.second_look.get() && desks.any(|desk| desk.roster.fresh() > 0)
    }

    /// Sleeps until there is something to do. The caller has found nothing.
    pub(super) fn sleep(&self) {
        // Deadlines that have come while others ran: no need to ask the kernel. Every POLL_INTERVAL turns it is asked in any case.
        if self.driver.expire_due(self) {
            self.publish();
            return;
        }
        self.crew.finish_if_drained();
        let phase = self.crew.phase();
        if self.vigil.is_on() && self.crew.may_watch && phase == Phase::Open && self.watch() {
            return;
        }
        if !self.desk.inbox().fall_asleep() {
            return;
        }
        if self.index.is_some() {
            self.crew.note_asleep();
        }
        self.last_poll.set(self.turn.get());
        self.publish();
        // Whoever adds work from now on finds this worker asleep and rings. What was added before is found here: the looks
        // take the locks under which it was added.
        let work = self.desk.roster.has_unstarted()
            || self.desk.has_errands()
            || self.has_fresh_elsewhere()
            || self.crew.phase() != phase
            || (phase == Phase::Over && self.root().is_none()); // a root goes on, and may wait for something yet
        if !work {
            if self.desk.idle_since.load(Relaxed) == 0 {
                self.desk.idle_since.store(clock::now(), Relaxed);
            }
            let has_surplus = stack::has_surplus() || self.thread().spares.has_surplus();
            let until = super::deadlock::next_look(self);
            let until = match (has_surplus, self.second_look.get()) {
                (false, false) => until,
                (_, second_look) => {
                    let pause = if second_look {
                        SECOND_LOOK_AFTER
                    } else {
                        TRIM_AFTER
                    };
                    Some(until.unwrap_or(clock::NEVER).min(clock::now() + pause))
                }
            };
            self.count_poll(); // before: who looks at a worker that sleeps in its first one finds it counted
            let start = clock::now();
            self.driver.poll(self, until);
            self.after_poll();
            if !self.desk.inbox().is_empty() {
                self.vigil.note_letter(self.now.get() - start);
            }
            super::deadlock::look(self);
            if has_surplus && self.desk.inbox().is_asleep() && self.ready.length() == 0 {
                stack::trim_surplus();
                self.thread().spares.trim();
            }
        }
        if self.index.is_some() {
            self.crew.note_awake();
        }
        self.desk.inbox().wake_up();
        super::monitor::note_awake();
        self.desk.run_errands(self);
    }
}

/// Puts a fiber whose wait was just claimed into its worker's queue.
///
/// # Safety
/// The caller has claimed its wait, and calls this once.
pub(super) unsafe fn wake(task: NonNull<Task>) {
    let fiber = task.cast::<Scheduled>();
    // SAFETY: its wait was claimed a moment ago and it is in no queue yet, so it has not ended. Every task is the head of a
    // Scheduled.
    let owner = unsafe { fiber.as_ref() }
        .owner()
        .expect("a fiber that waits has a worker");
    match Worker::here() {
        // SAFETY: it is this worker's, waited, and was claimed once.
        Some(worker) if ptr::eq(worker.desk, owner) => unsafe { worker.enqueue(fiber) },
        // SAFETY: it was claimed by the caller.
        _ => unsafe { owner.deliver(fiber) },
    }
}

impl Scheduler for Worker {
    fn park(&self, timeout: Option<Duration>) {
        match timeout {
            // To a coroutine its thread is a thread.
            Some(timeout) if self.is_event_loop => std::thread::park_timeout(timeout),
            None if self.is_event_loop => std::thread::park(),
            timeout => super::park(self, timeout),
        }
    }
}
