//! One thread's event loop for coroutines that are resumed by hand: what libco calls its environment.
//!
//! The crate `fibrant-c` calls it, through [`routine`](crate::routine). It is a worker whose fibers are coroutines
//! ([`fiber::routine`](crate::fiber::routine)): hooks and locks wait in them as in any fiber, but who waits goes back to its resumer
//! instead of passing the processor on, and who can go on again is resumed by [`EventLoop::run`], in the order in which they were
//! woken. The thread is a worker only while a coroutine runs, or the loop polls; its own code, the main routine, is a plain thread's.
//!
//! All event loops of a process are guests of one crew, which has no workers of its own.

use super::crew::Crew;
use super::desk::Desk;
use super::driver::{Driver, Purpose, Timed};
use super::group::Locals;
use super::queue::LINES_READ_FIRST;
use super::scheduled::{InTable, Making, Scheduled};
use super::turn::{WaitEnd, Waiting};
use super::worker::Worker;
use crate::clock;
use crate::context::stack::MIN_SIZE;
use crate::fiber::routine::{Crossing, Function, Routine, Stage, Switching, Wanted};
use crate::fiber::{Outcome, Scheduler, Task, TaskRef, Thread, WaitNumber, WaitReason};
use crate::sys::{self, PerProcess};
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the loop sleeps at most if it has somebody to call after each turn: nanoseconds.
const TURN: u64 = 1_000_000;

/// How many calls in a row a coroutine may make that find something without waiting for it, before others have a turn. In libco each such
/// call goes back to the event loop, and programs count on it.
const READY_CALLS: u32 = 64;

/// A thread's event loop. It never moves.
#[repr(C)]
pub(crate) struct EventLoop {
    /// First: a coroutine knows its event loop by it.
    pub(crate) switching: Switching,
    worker: Worker,
    process: u32,
    /// How many coroutines there are.
    routines: Cell<usize>,
}

thread_local! {
    /// This thread's, once it has one.
    static LOOP: Cell<*const EventLoop> = const { Cell::new(ptr::null()) };

    /// Ends it when the thread ends.
    static END: End = const { End };
}

/// Why a coroutine is not resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It runs: it is the caller, or has resumed it directly or indirectly.
    Running,
    /// It has ended.
    Ended,
    /// It waits for something that a resumption cannot stand for, such as a lock.
    Waiting,
    /// It belongs to another thread.
    Elsewhere,
}

/// Why an event loop has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// What it calls after each turn has said so.
    Enough,
    /// It is the loop of the process that this one was forked from.
    Forked,
}

/// The crew that all event loops are guests of.
fn crew() -> io::Result<Arc<Crew>> {
    static CREW: PerProcess<OnceLock<Arc<Crew>>> = PerProcess::new(OnceLock::new);
    if let Some(crew) = CREW.get().get() {
        return Ok(Arc::clone(crew));
    }
    let hooks = crate::env::settings()?.hooks.unwrap_or(true);
    let crew = Crew::new(
        0,
        "coroutines".to_owned(),
        MIN_SIZE,
        hooks,
        false,
        None,
        Duration::MAX,
    )?;
    Ok(Arc::clone(CREW.get().get_or_init(|| Arc::new(crew))))
}

impl EventLoop {
    /// This thread's, if it has one.
    #[inline(always)]
    pub(crate) fn existing() -> Option<&'static EventLoop> {
        // SAFETY: null, or an event loop that `make` has leaked and `End` has not freed, which happens when the thread ends.
        unsafe { LOOP.get().as_ref() }.filter(|it| it.process == sys::process())
    }

    /// Whether this thread is a copy of one that had one in the process that this one was forked from.
    pub(crate) fn is_parents() -> bool {
        !LOOP.get().is_null() && EventLoop::existing().is_none()
    }

    /// Makes this thread's, which has none in this process, with what it is to sleep in.
    pub(crate) fn make(
        driver: impl FnOnce(&'static Desk) -> io::Result<Box<dyn Driver>>,
    ) -> io::Result<&'static EventLoop> {
        if Thread::if_any(Thread::scheduler).is_some() {
            return Err(refused_in_runtime());
        }
        let crew = crew()?;
        let desk = Desk::take()?;
        let worker = Worker::event_loop(crew, desk, driver(desk)?);
        let mut place = Box::<EventLoop>::new_uninit();
        // SAFETY: the worker is written below, before anybody uses the pointer, and stays there.
        let scheduler: NonNull<dyn Scheduler> =
            unsafe { NonNull::new_unchecked(&raw mut (*place.as_mut_ptr()).worker) };
        place.write(EventLoop {
            switching: Switching::new(scheduler),
            worker,
            process: sys::process(),
            routines: Cell::new(0),
        });
        // SAFETY: it was just written.
        let made: &'static EventLoop = Box::leak(unsafe { place.assume_init() });
        made.worker.belong_to_this_thread();
        // SAFETY: null, or the parent's, in a forked child, which has a copy of it for good.
        if let Some(parents) = unsafe { LOOP.get().as_ref() } {
            made.switching.take_after(&parents.switching);
        }
        made.switching.main.set_home(&made.switching);
        LOOP.set(made);
        // Refused if the thread is ending: then it is never freed.
        let _ = END.try_with(|_| ());
        Ok(made)
    }

    fn thread(&self) -> &Thread {
        self.worker.thread()
    }

    /// A coroutine that will run `function(argument)`, on a stack of its own of that size or on a shared one.
    pub(crate) fn create(
        &self,
        wanted: Wanted,
        function: Function,
        argument: *mut c_void,
    ) -> io::Result<NonNull<Routine>> {
        let routine = Routine::new(wanted, function, argument, self.thread(), &self.switching)?;
        self.routines.set(self.routines.get() + 1);
        Ok(NonNull::from(Box::leak(routine)))
    }

    /// The event loop of a coroutine, if it is this thread's. One that a forked child has from its parent is moved to the child's own.
    #[inline]
    fn of(routine: &Routine) -> Result<&'static EventLoop, Refusal> {
        let own = LOOP.get();
        // SAFETY: as in `existing`; a coroutine has one, so it is not null.
        if ptr::eq(own.cast(), routine.home()) && unsafe { (*own).process } == sys::process() {
            // SAFETY: as above.
            return Ok(unsafe { &*own });
        }
        EventLoop::adopt(routine)
    }

    #[cold]
    fn adopt(routine: &Routine) -> Result<&'static EventLoop, Refusal> {
        let own = EventLoop::existing().ok_or(Refusal::Elsewhere)?;
        // SAFETY: a coroutine's event loop is freed when it was the last, not before.
        let home = unsafe { &*routine.home().cast::<EventLoop>() };
        if home.process == own.process || routine.stage() == Stage::Waiting {
            return Err(Refusal::Elsewhere);
        }
        routine.set_home(&own.switching);
        own.routines.set(own.routines.get() + 1);
        if let Some(task) = routine.task() {
            // SAFETY: it is a Scheduled, and the routine keeps it alive.
            unsafe { task.cast::<Scheduled>().as_ref() }.set_owner(own.worker.desk);
        }
        Ok(own)
    }

    /// Makes ready for a switch to a coroutine, by which it begins or goes on until it comes back. One that waits in a call that may
    /// end early, such as a sleep or a poll, goes on from there.
    ///
    /// # Safety
    /// It is alive. The switch follows.
    #[inline(always)]
    pub(crate) unsafe fn depart_to(routine: NonNull<Routine>) -> Result<Crossing, Refusal> {
        // SAFETY: by the caller's promise.
        let routine = unsafe { routine.as_ref() };
        let own = EventLoop::of(routine)?;
        if own.is_in_runtime() {
            return Err(Refusal::Elsewhere);
        }
        match routine.stage() {
            Stage::Init | Stage::Suspended => {}
            Stage::Running => return Err(Refusal::Running),
            Stage::Term => return Err(Refusal::Ended),
            Stage::Waiting => own.end_wait(routine)?,
        }
        // SAFETY: it is in the right stage, and this thread's.
        Ok(unsafe { routine.depart_to(own.thread(), &own.switching) })
    }

    /// Ends the wait of a coroutine that somebody resumes by hand.
    #[cold]
    fn end_wait(&self, routine: &Routine) -> Result<(), Refusal> {
        let task = routine.task().expect("what waits has a task");
        // SAFETY: the routine keeps it alive.
        let task_ref = unsafe { task.as_ref() };
        if task_ref.wait.end_park() {
            routine.by_hand.set(true);
        } else if task_ref.wait.is_waiting() {
            return Err(Refusal::Waiting);
        } else {
            // Somebody has just woken it: it goes on ahead of its turn.
            self.worker.take_out(task.cast());
        }
        Ok(())
    }

    /// Makes ready for a switch to the resumer of the coroutine that runs here. `None` on the main routine.
    ///
    /// # Safety
    /// The switch follows.
    #[inline(always)]
    pub(crate) unsafe fn depart_from_current() -> Option<Crossing> {
        Thread::if_any(|thread| {
            let routine = thread.routine()?;
            // SAFETY: it runs, so it is alive; the switch follows, as the caller promises.
            Some(unsafe { routine.as_ref().depart_from(thread, Stage::Suspended) })
        })
    }

    /// Gives a coroutine that does not run its beginning back.
    ///
    /// # Safety
    /// It is alive.
    pub(crate) unsafe fn reset(routine: NonNull<Routine>) -> Result<(), Refusal> {
        // SAFETY: by the caller's promise; nobody else has a reference.
        let routine = unsafe { routine.as_ref() };
        let own = EventLoop::of(routine)?;
        match routine.stage() {
            Stage::Running => return Err(Refusal::Running),
            // It goes on waiting, as if nobody had asked.
            Stage::Waiting if !EventLoop::can_be_forsaken(routine) => return Err(Refusal::Waiting),
            Stage::Waiting => {
                own.forsake(routine);
            }
            _ => {}
        }
        routine.renew(own.thread());
        Ok(())
    }

    /// Frees a coroutine that does not run. What it has in its frames is forgotten.
    ///
    /// # Safety
    /// It is alive, and nobody uses it afterwards.
    pub(crate) unsafe fn release(routine: NonNull<Routine>) -> Result<(), Refusal> {
        // SAFETY: by the caller's promise.
        let own = EventLoop::of(unsafe { routine.as_ref() })?;
        // SAFETY: as above.
        let stage = unsafe { routine.as_ref() }.stage();
        if stage == Stage::Running {
            return Err(Refusal::Running);
        }
        // SAFETY: `create` has leaked it from a box.
        let mut routine = unsafe { Box::from_raw(routine.as_ptr()) };
        if stage == Stage::Waiting && !own.forsake(&routine) {
            routine.lose();
        }
        routine.free(own.thread());
        own.routines.set(own.routines.get() - 1);
        Ok(())
    }

    /// Whether what others know of a coroutine that waits can be taken back.
    fn can_be_forsaken(routine: &Routine) -> bool {
        let task = routine.task().expect("what waits has a task");
        // SAFETY: the routine keeps it alive; every task is the head of a Scheduled.
        let scheduled = unsafe { task.cast::<Scheduled>().as_ref() };
        // The last two leave nothing in their frames.
        scheduled.in_table.get().is_some()
            || matches!(
                scheduled.task.last_reason(),
                WaitReason::Sleeping | WaitReason::Parked
            )
    }

    /// Ends the wait of a coroutine that never goes on from it, and takes back what others know of it. False if that cannot be done:
    /// then its frames and its task must stay.
    fn forsake(&self, routine: &Routine) -> bool {
        let can_be_forsaken = EventLoop::can_be_forsaken(routine);
        let task = routine.task().expect("what waits has a task");
        // SAFETY: the routine keeps it alive; every task is the head of a Scheduled.
        let scheduled = unsafe { task.cast::<Scheduled>().as_ref() };
        self.worker.disarm_deadline(scheduled);
        if !scheduled.task.wait.end_any(Outcome::Closed) {
            self.worker.take_out(task.cast());
        }
        if let Some(table) = scheduled.in_table.take() {
            // SAFETY: the coroutine waits there, and never goes on; its frames are there still, or on a stack that it has borrowed.
            unsafe {
                let InTable { give_up, wait } = *table.as_ref();
                give_up(wait);
            }
        }
        can_be_forsaken
    }

    /// Makes sure that a coroutine can wait, and says by what.
    pub(crate) fn task_of(routine: &Routine) -> Option<NonNull<Task>> {
        if routine.task().is_none() && !routine.is_main() {
            let own = EventLoop::of(routine).ok()?;
            let making = Making {
                id: own.thread().next_id(),
                name: None,
                spawned_at: Location::caller(),
                stack_size: 0,
                is_bound: true,
                locals: Locals::Workers,
                scope: None,
            };
            // SAFETY: what it would run is nothing.
            let (scheduled, task) = unsafe { Scheduled::make(making, || ()) };
            Scheduled::detach(&task);
            // SAFETY: it is new. The scheduler's reference is the routine's; the other is let go here.
            let new = unsafe { scheduled.as_ref() };
            // SAFETY: it is new, and this is the thread that it waits on.
            unsafe { new.context.refer_to(routine) };
            new.set_owner(own.worker.desk);
            new.is_unhooked.set(true);
            routine.set_task(Some(scheduled.cast()));
            if own.thread().routine() == Some(NonNull::from(routine)) {
                own.thread().set_task(Some(scheduled.cast()));
            }
        }
        routine.task()
    }

    /// Turns the hooks on or off for a coroutine.
    pub(crate) fn set_hooked(routine: &Routine, yes: bool) {
        if let Some(task) = EventLoop::task_of(routine) {
            // SAFETY: the routine keeps it alive; every task is the head of a Scheduled.
            unsafe { task.cast::<Scheduled>().as_ref() }.is_unhooked.set(!yes);
        }
    }

    /// Makes the coroutine that runs here wait, at most until the deadline. `announce` gets what ends the wait.
    /// A resumption by hand ends it, too. `None` on the main routine.
    pub(crate) fn wait(deadline: u64, announce: impl FnOnce(TaskRef, WaitNumber)) -> Option<WaitEnd> {
        let routine = Thread::if_any(Thread::routine)?;
        // SAFETY: it runs, so it is alive.
        let routine = unsafe { &*routine.as_ptr() };
        EventLoop::task_of(routine)?;
        let own = EventLoop::of(routine).ok()?;
        let waiting = Waiting {
            reason: WaitReason::Parked,
            park: true,
            interruptible: false,
            deadline,
        };
        Some(own.worker.wait(waiting, |task, number| {
            // SAFETY: it is alive.
            announce(unsafe { TaskRef::share(NonNull::from(task)) }, number);
        }))
    }

    /// Whether what runs on this thread now is a runtime's: then coroutines cannot.
    #[inline(always)]
    fn is_in_runtime(&self) -> bool {
        let thread = self.thread();
        thread.routine().is_none() && thread.scheduler().is_some()
    }

    /// Resumes coroutines as they become ready, and calls `after` when it has resumed those that were, at least every millisecond;
    /// until that says that it is enough. Without it the loop sleeps until there is something to do, and does not end. An error in a
    /// fiber of a runtime.
    ///
    /// A coroutine, or `after`, may fork: the child comes back here, too, where everything is its parent's. It is sent away with
    /// [`Stopped::Forked`], to go on in a loop of its own: here it would take its parent's events.
    pub(crate) fn run(&self, after: &mut Option<impl FnMut() -> bool>) -> io::Result<Stopped> {
        if self.is_in_runtime() {
            return Err(refused_in_runtime());
        }
        let worker = &self.worker;
        let turn = Timed::new();
        while self.process == sys::process() {
            self.thread().as_worker(NonNull::from(worker), || {
                if worker.take_inbox() > 0 {
                    worker.poll();
                } else if after.is_some() {
                    // SAFETY: it is not armed, and stays here until it is disarmed or has expired.
                    unsafe {
                        worker
                            .driver
                            .arm(NonNull::from(&turn), Purpose::Nothing, clock::now() + TURN)
                    };
                    worker.sleep();
                    if turn.is_armed() {
                        // SAFETY: it is armed, here.
                        unsafe { worker.driver.disarm(NonNull::from(&turn)) };
                    }
                } else {
                    worker.sleep();
                }
            });
            // Those who are ready now; others have to wait for the next turn.
            for _ in 0..worker.take_inbox() {
                let Some(fiber) = worker.take_ready() else { break };
                // SAFETY: whoever is in the queue is alive, is a coroutine's task, and waits.
                unsafe {
                    if let Some(next) = worker.first_ready() {
                        routine_of(next).as_ref().prefetch(LINES_READ_FIRST);
                    }
                    let routine = routine_of(fiber);
                    routine.as_ref().by_hand.set(false);
                    routine
                        .as_ref()
                        .depart_to(self.thread(), &self.switching)
                        .switch();
                }
                if self.process != sys::process() {
                    break; // the others are the parent's
                }
            }
            if let Some(after) = after
                && !after()
            {
                return Ok(Stopped::Enough);
            }
        }
        Ok(Stopped::Forked)
    }
}

impl Worker {
    /// Leaves the coroutine that runs, which waits, until it is resumed.
    #[inline]
    pub(super) fn leave_routine(&self) {
        let routine = self.thread().routine().expect("what waits here is a coroutine");
        // SAFETY: it runs, so it is alive, and its event loop is this thread's.
        unsafe {
            let routine = &*routine.as_ptr();
            routine.by_hand.set(false);
            self.ready_calls.set(0);
            routine.depart_from(self.thread(), Stage::Waiting).switch();
        }
    }

    /// A hooked call of a coroutine has found something without waiting for it. Whether that was so often in a row that others should have
    /// a turn.
    #[inline]
    pub(crate) fn note_ready_call(&self) -> bool {
        let calls = self.ready_calls.get() + 1;
        self.ready_calls.set(calls % READY_CALLS);
        calls == READY_CALLS
    }

    /// Whether the fiber that runs here went on from its last wait because somebody resumed it by hand, not because of what it waited
    /// for.
    #[inline]
    pub(crate) fn was_resumed_by_hand(&self) -> bool {
        self.is_event_loop
            && self
                .thread()
                .routine()
                // SAFETY: it runs, so it is alive.
                .is_some_and(|routine| unsafe { routine.as_ref() }.by_hand.get())
    }

    /// Whether the code that runs here must leave no records of a wait in its frames: they are on a shared stack.
    #[inline]
    pub(crate) fn keeps_no_records(&self) -> bool {
        self.is_event_loop
            && self
                .thread()
                .routine()
                // SAFETY: it runs, so it is alive.
                .is_some_and(|routine| unsafe { routine.as_ref() }.keeps_no_records())
    }
}

/// The error for a fiber of a runtime.
fn refused_in_runtime() -> io::Error {
    let problem = "a fiber of a runtime has no event loop of libco's: use a thread of its own";
    io::Error::new(io::ErrorKind::Unsupported, problem)
}

/// Frees a thread's event loop when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: as in `existing`; after this nobody finds it.
        let Some(own) = (unsafe { LOOP.replace(ptr::null()).as_ref() }) else {
            return;
        };
        // Coroutines that are left may be asked for from elsewhere, and may be woken: they, and what they belong to, stay.
        if own.routines.get() == 0 && own.process == sys::process() {
            let desk = own.worker.desk;
            // SAFETY: `make` has leaked it from a box, and no coroutine knows of it.
            drop(unsafe { Box::from_raw(ptr::from_ref(own).cast_mut()) });
            desk.give_back();
        }
    }
}

/// The coroutine that a task of an event loop's stands for.
///
/// # Safety
/// It is one, and its coroutine has not ended.
#[inline]
unsafe fn routine_of(fiber: NonNull<Scheduled>) -> NonNull<Routine> {
    // SAFETY: `task_of` has made its context refer to the coroutine, which is not null.
    unsafe { NonNull::new_unchecked(fiber.as_ref().context.frame().cast()) }
}
