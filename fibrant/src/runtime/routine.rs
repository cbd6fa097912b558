//! Coroutines that are resumed by hand, with an event loop per thread: what libco's functions in the crate `fibrant-c` are made of.
//!
//! It wires the scheduler's event loop to the I/O manager, and gives it names. It is public for that crate only: no promise is made
//! about it. A coroutine is a `NonNull<Routine>` here, as C has it; whoever holds one sees to it that it has not been released, and
//! uses it on the thread that has made it.

use crate::clock;
use crate::fiber::routine::{Crossing, Stage, Wanted, define_crossing};
use crate::fiber::{Outcome, TaskRef, Thread, WaitNumber};
use crate::io::Reactor;
use crate::scheduler::WaitEnd;
use crate::scheduler::event_loop::{EventLoop, Stopped};
use crate::{hook, scheduler, sync, sys};
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;

pub use crate::fiber::SharedStacks;
pub use crate::fiber::routine::{Function, Routine, elsewhere};
pub use crate::scheduler::event_loop::Refusal;

/// This thread's event loop; made, if it has none yet.
fn event_loop() -> io::Result<&'static EventLoop> {
    if let Some(existing) = EventLoop::existing() {
        return Ok(existing);
    }
    // A forked child has its own things from now on.
    sys::begin_anew(|| {
        scheduler::forget_parents();
        crate::io::forget_parents();
        hook::forget_parents();
    });
    sync::address::prepare();
    hook::prepare();
    EventLoop::make(|desk| Ok(Box::new(Reactor::new(desk)?)))
}

/// Makes this thread's event loop, if it has none yet, and gives its main routine. `at_end` is called on each coroutine whose
/// function has returned.
pub fn prepare(at_end: unsafe fn(NonNull<Routine>)) -> io::Result<NonNull<Routine>> {
    let event_loop = event_loop()?;
    event_loop.switching.set_at_end(at_end);
    Ok(NonNull::from(&event_loop.switching.main))
}

/// This thread's main routine, if it has an event loop.
pub fn main() -> Option<NonNull<Routine>> {
    EventLoop::existing().map(|event_loop| NonNull::from(&event_loop.switching.main))
}

/// The coroutine that runs on this thread, if one does.
#[inline]
pub fn current() -> Option<NonNull<Routine>> {
    Thread::if_any(Thread::routine)
}

/// A coroutine that will run `function(argument)`, on a stack of its own of that size.
///
/// # Safety
/// The function may be called so, on this thread, again after each reset; what it runs keeps no state in thread-locals across a
/// wait, unless it is meant to be shared by the thread's coroutines.
pub unsafe fn create(
    stack_size: usize,
    function: Function,
    argument: *mut c_void,
) -> io::Result<NonNull<Routine>> {
    event_loop()?.create(Wanted::Own(stack_size), function, argument)
}

/// The same, on one of several shared stacks. They may go before the coroutine does.
///
/// # Safety
/// As for [`create`]; and nobody has a pointer to something on its stack while it is suspended.
pub unsafe fn create_shared(
    stacks: &SharedStacks,
    function: Function,
    argument: *mut c_void,
) -> io::Result<NonNull<Routine>> {
    if !stacks.are_this_threads() {
        let problem = "shared stacks are for coroutines of the thread that has made them";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    event_loop()?.create(Wanted::Shared(stacks.next()), function, argument)
}

define_crossing! {
    /// Makes a coroutine begin or go on until it comes back: by [`suspend`], by a call that would have blocked, or by its end. One that
    /// has ended, that runs, or that is another thread's is left alone.
    ///
    /// # Safety
    /// It is null or has not been released.
    resume(routine: *mut Routine), depart_to
}

/// # Safety
/// As for [`resume`]; the switch follows.
unsafe extern "C" fn depart_to(routine: *mut Routine) -> Crossing {
    let Some(routine) = NonNull::new(routine) else {
        return Crossing::NONE;
    };
    // SAFETY: by the caller's promise.
    match unsafe { EventLoop::depart_to(routine) } {
        Ok(crossing) => crossing,
        Err(Refusal::Elsewhere) => depart_in_child(routine),
        Err(_) => Crossing::NONE,
    }
}

/// The same for a coroutine that a forked child has from its parent, if it is one.
#[cold]
fn depart_in_child(routine: NonNull<Routine>) -> Crossing {
    if !adopt_parents() {
        return Crossing::NONE;
    }
    // SAFETY: it has not been released: the promise of `depart_to`, which this is a part of.
    unsafe { EventLoop::depart_to(routine) }.unwrap_or(Crossing::NONE)
}

/// In a forked child that has coroutines from its parent there must be an event loop for them first. Whether there is one now that was
/// not there before.
fn adopt_parents() -> bool {
    EventLoop::is_parents() && event_loop().is_ok()
}

define_crossing! {
    /// Goes back to the resumer of the coroutine that runs here. Nothing happens on the main routine.
    ///
    /// # Safety
    /// None is needed: C calls it.
    suspend(), depart_from_current
}

/// # Safety
/// The switch follows.
unsafe extern "C" fn depart_from_current() -> Crossing {
    // SAFETY: by the caller's promise.
    unsafe { EventLoop::depart_from_current() }.unwrap_or(Crossing::NONE)
}

/// Makes a coroutine that does not run as it was when it was made.
///
/// # Safety
/// It has not been released. Whatever it has in its frames is forgotten.
pub unsafe fn reset(routine: NonNull<Routine>) -> Result<(), Refusal> {
    adopt_parents();
    // SAFETY: by the caller's promise.
    unsafe { EventLoop::reset(routine) }
}

/// Frees a coroutine that does not run.
///
/// # Safety
/// It has not been released. Whatever it has in its frames is forgotten.
pub unsafe fn release(routine: NonNull<Routine>) -> Result<(), Refusal> {
    adopt_parents();
    // SAFETY: by the caller's promise.
    unsafe { EventLoop::release(routine) }
}

/// Turns the hooks on or off for a coroutine that has had them on.
///
/// # Safety
/// It has not been released, and is this thread's.
pub unsafe fn set_hooked_of(routine: NonNull<Routine>, yes: bool) {
    // SAFETY: by the caller's promise.
    let routine = unsafe { routine.as_ref() };
    if routine.task().is_some() {
        EventLoop::set_hooked(routine, yes);
    }
}

/// Makes the coroutine that runs here somebody to locks, which is what one becomes as soon as it can wait. Without it they would take it for
/// its thread, and then for another when it has waited.
pub fn become_somebody() {
    if let Some(routine) = current() {
        // SAFETY: it runs, so it is there.
        EventLoop::task_of(unsafe { routine.as_ref() });
    }
}

/// Turns the hooks on or off for the coroutine that runs here. They have no effect on the main routine.
pub fn set_hooked(yes: bool) {
    if let Some(routine) = current() {
        // SAFETY: it runs, so it is there.
        EventLoop::set_hooked(unsafe { routine.as_ref() }, yes);
    }
}

impl Routine {
    /// What its user keeps with it.
    #[inline]
    pub fn extras(&self) -> &Cell<*mut c_void> {
        &self.extras
    }

    /// Some bits of its user's.
    #[inline]
    pub fn mark(&self) -> &Cell<u8> {
        &self.mark
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.stage() == Stage::Term
    }

    /// Whether it is a thread's main routine.
    pub fn is_threads_own(&self) -> bool {
        self.is_main()
    }
}

/// The destructor of a key of pthread's, if it has one.
pub fn key_destructor(key: libc::pthread_key_t) -> Option<unsafe extern "C" fn(*mut c_void)> {
    crate::context::tls::keys::destructor(key)
}

/// Resumes coroutines of this thread as they become ready. If there is an `after`, it is called after each turn, at least every
/// millisecond, until it says that it is enough; otherwise this does not return.
pub fn run(mut after: Option<impl FnMut() -> bool>) -> io::Result<()> {
    // A child that was forked meanwhile goes on in an event loop of its own.
    while event_loop()?.run(&mut after)? == Stopped::Forked {}
    Ok(())
}

/// What ends a coroutine's [`wait`]. May be used on any thread.
pub struct Waker(TaskRef, WaitNumber);

impl Waker {
    /// Ends the wait: its event loop will resume the coroutine. Says whether it had not ended yet.
    pub fn wake(&self) -> bool {
        let claimed = self.0.wait.claim(self.1, Outcome::Woken);
        if claimed {
            // SAFETY: its wait was just claimed.
            unsafe { self.0.wake() };
        }
        claimed
    }
}

/// How a [`wait`] has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// By its [`Waker`], or by a resumption by hand.
    Woken,
    /// The time was up.
    TimedOut,
    /// It did not begin: there is no coroutine to wait on the main routine.
    OnMain,
}

/// Makes the coroutine that runs here wait, at most for that time. `announce` gets what ends the wait, and does not wait itself.
pub fn wait(timeout: Option<Duration>, announce: impl FnOnce(Waker)) -> Waited {
    let deadline = timeout.map_or(clock::NEVER, clock::after);
    match EventLoop::wait(deadline, |task, number| announce(Waker(task, number))) {
        None => Waited::OnMain,
        Some(WaitEnd::TimedOut) => Waited::TimedOut,
        Some(_) => Waited::Woken,
    }
}
