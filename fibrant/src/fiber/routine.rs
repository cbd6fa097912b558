//! Coroutines in libco's manner: resumed by hand, and left by hand or by a call that would have blocked.
//!
//! The scheduler's event loop ([`event_loop`](crate::scheduler::event_loop)) makes and drives them for the crate `fibrant-c`; this
//! file has what a coroutine is, and how the processor comes and goes. It calls `context` for stacks and switches.
//!
//! # A coroutine's life
//!
//! - **Init**: it has a stack, or a share in one, and has not begun.
//! - **Running**: somebody has resumed it: it is on the processor, or has resumed another in turn. `parent` leads to its resumer; at
//!   the end of that chain is the thread's *main routine*, which is the thread itself.
//! - **Suspended**: it has gone back to its resumer by [`depart_from`](Routine::depart_from).
//! - **Waiting**: it has gone back because a call of its would have blocked: its task waits. Whoever ends the wait puts it into the
//!   event loop's queue.
//! - **Term**: its function has returned. It may be renewed.
//!
//! What is saved of one that is not on the processor is its `context`, whichever of these it is in: one field for each. A switch
//! leaves the floating-point control words alone, as libco's does.
//!
//! # Shared stacks
//!
//! One that shares its stack has nothing on it that others may look at while it is suspended, and is brought back to it before it
//! runs. If the one that switches stands on that very stack, it cannot bring another there: the [`ferry`](super::ferry) does.
//!
//! Whoever waits in the runtime leaves records in its frames for others to find. In a coroutine on a shared stack these must not be
//! there: [`elsewhere`] runs such calls on a borrowed stack, to which the coroutine goes for as long as they take.

use super::ferry::{Ferry, Moving};
use super::local::Locals;
use super::task::{Task, TaskRef};
use super::thread::{Scheduler, Thread};
use crate::context::exceptions::{self, Exceptions};
use crate::context::stack::{SharedStack, Stack, Tenant};
use crate::context::{self, Context};
use crate::primitives::without_waiting;
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};

/// The size of the stack that a coroutine on a shared stack borrows for a call that leaves records: enough for any of ours.
const BORROWED_SIZE: usize = 64 << 10;

/// What a coroutine runs, as C has it.
pub type Function = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// Where a coroutine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    Init,
    Running,
    Suspended,
    Waiting,
    Term,
}

/// A coroutine, or a thread's main routine. Only its thread touches it.
#[repr(C)]
pub struct Routine {
    /// Where it goes on, while it is not on the processor.
    context: Context,
    /// Who has resumed it, while Running.
    parent: Cell<*const Routine>,
    /// What it runs.
    function: Cell<Function>,
    argument: Cell<*mut c_void>,
    place: Place,
    /// The stack to which it has gone for a call that leaves records, while that lasts.
    borrowed: Cell<Option<Box<Stack>>>,
    /// What it waits by, once it has been needed: a task of the scheduler's.
    task: Cell<Option<NonNull<Task>>>,
    /// Its thread's.
    home: Cell<*const Switching>,
    /// What its user keeps with it.
    pub(crate) extras: Cell<*mut c_void>,
    /// The values of its fiber-locals.
    pub(super) locals: Locals,
    /// Its C++ exceptions in flight, while it is not on the processor.
    exceptions: Cell<Exceptions>,
    stage: Cell<Stage>,
    /// Whether it went on from its last wait because somebody resumed it by hand.
    pub(crate) by_hand: Cell<bool>,
    /// A word of its user's.
    pub(crate) mark: Cell<u8>,
}

/// Where its frames are.
enum Place {
    /// The thread's own stack: the main routine.
    Thread,
    /// A stack of its own.
    Own(Stack),
    /// A share in one.
    Shared(Tenant),
    /// Nowhere: what it had must stay untouched, for others may still know of it.
    Lost,
}

/// Where a new coroutine gets its stack from.
pub(crate) enum Wanted {
    /// One of its own, of at least that size.
    Own(usize),
    /// A share in this one, which stays where it is until the coroutine is freed.
    Shared(NonNull<SharedStack>),
}

/// A function that is called on a coroutine whose own has returned, with that coroutine.
type AtEnd = unsafe fn(NonNull<Routine>);

/// What a thread needs to let coroutines switch; the head of its event loop.
pub(crate) struct Switching {
    /// The thread itself.
    pub(crate) main: Routine,
    /// What makes the thread a worker while a coroutine runs.
    scheduler: NonNull<dyn Scheduler>,
    /// Called on a coroutine whose function has returned.
    at_end: Cell<Option<AtEnd>>,
    /// Where this thread's C++ exceptions in flight are, if that is known.
    exceptions: Cell<*mut Exceptions>,
}

unsafe extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
    ptr::null_mut()
}

impl Switching {
    /// For the calling thread, which is that worker while a coroutine runs.
    pub(crate) fn new(scheduler: NonNull<dyn Scheduler>) -> Switching {
        let main = Routine::make(Place::Thread, nothing, ptr::null_mut(), ptr::null());
        main.stage.set(Stage::Running);
        Switching {
            main,
            scheduler,
            at_end: Cell::new(None),
            exceptions: Cell::new(ptr::null_mut()),
        }
    }

    /// Names the function that is called on a coroutine whose own has returned.
    pub(crate) fn set_at_end(&self, at_end: unsafe fn(NonNull<Routine>)) {
        self.at_end.set(Some(at_end));
    }

    /// Has the same function called.
    pub(crate) fn take_after(&self, other: &Switching) {
        self.at_end.set(other.at_end.get());
    }

    /// Where this thread's C++ exceptions in flight are: null, if it can have none.
    #[inline(always)]
    fn exceptions(&self) -> *mut Exceptions {
        let place = self.exceptions.get();
        if place.is_null() && exceptions::are_known() {
            self.find_exceptions();
        }
        self.exceptions.get()
    }

    /// C++'s library may allocate for this, in the middle of a switch.
    #[cold]
    fn find_exceptions(&self) {
        self.exceptions
            .set(without_waiting(Exceptions::place_of_this_thread));
    }

    /// Makes ready for a switch from one routine, which runs, to another: all that there is to do besides the switch itself, so that
    /// nothing is left to do after it.
    ///
    /// # Safety
    /// Both are this thread's, which this belongs to. The other's context is live, or it has not begun. The switch follows.
    #[inline(always)]
    unsafe fn depart(&self, thread: &Thread, from: &Routine, to: &Routine) -> Crossing {
        if to.is_main() {
            thread.end_routines();
        } else {
            thread.set_routine(to, self.scheduler);
        }
        // SAFETY: null, or this thread's own.
        if let Some(exceptions) = unsafe { self.exceptions().as_mut() } {
            from.exceptions.set(*exceptions);
            *exceptions = to.exceptions.get();
        }
        let mut target = &to.context;
        if let Place::Shared(tenant) = &to.place
            && !tenant.is_settled()
        {
            target = bring(thread, from, to, tenant);
        }
        Crossing {
            from: &from.context,
            to: target,
        }
    }
}

/// Brings a routine to its shared stack; or says that the ferry must, as the caller stands there.
#[inline]
fn bring<'a>(thread: &'a Thread, from: &Routine, to: &'a Routine, tenant: &Tenant) -> &'a Context {
    if from
        .stands_on()
        .is_some_and(|own| ptr::eq(own.home(), tenant.home()))
    {
        let moving = Moving {
            bring: Routine::settle,
            passenger: ptr::from_ref(to).cast(),
        };
        return Ferry::to(thread, &to.context, moving);
    }
    // SAFETY: the caller stands elsewhere.
    unsafe { Routine::settle(ptr::from_ref(to).cast()) };
    &to.context
}

/// The two ends of a switch.
#[repr(C)]
pub struct Crossing {
    from: *const Context,
    to: *const Context,
}

impl Crossing {
    /// No switch.
    pub(crate) const NONE: Crossing = Crossing {
        from: ptr::null(),
        to: ptr::null(),
    };

    /// Whether it is a switch.
    #[cfg(not(all(target_arch = "x86_64", not(fibrant_asan))))]
    #[inline(always)]
    pub(crate) fn leads_somewhere(&self) -> bool {
        !self.from.is_null()
    }

    /// Makes the switch. Returns when somebody comes back.
    ///
    /// # Safety
    /// It was made ready for just now.
    #[inline(always)]
    pub(crate) unsafe fn switch(self) {
        // SAFETY: by the caller's promise the target is live, or the ferry's, which waits; who runs has a spent context. All of them
        // are left by this kind of switch, and stay in place.
        unsafe { context::switch_sharing_float_control(&*self.from, &*self.to, 0) };
    }
}

/// Defines a function for C that switches as `depart` says, if it does.
///
/// It is written so that the processor predicts its way: a function that has been switched to and returns goes elsewhere than the
/// last call came from, which costs 8 ns a time; this one leaves by a jump.
macro_rules! define_crossing {
    ($(#[doc = $doc:literal])+ $name:ident ($($argument:ident: $type:ty)?), $depart:path) => {
        $(#[doc = $doc])+
        #[cfg(all(target_arch = "x86_64", not(fibrant_asan)))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type)?) {
            $crate::context::naked_crossing!($depart)
        }

        $(#[doc = $doc])+
        #[cfg(not(all(target_arch = "x86_64", not(fibrant_asan))))]
        pub unsafe extern "C" fn $name($($argument: $type)?) {
            // SAFETY: the caller's promise.
            let crossing = unsafe { $depart($($argument)?) };
            if crossing.leads_somewhere() {
                // SAFETY: it was just made ready for.
                unsafe { crossing.switch() };
            }
        }
    };
}
pub(crate) use define_crossing;

impl Routine {
    fn make(place: Place, function: Function, argument: *mut c_void, home: *const Switching) -> Routine {
        Routine {
            context: Context::spent(),
            parent: Cell::new(ptr::null()),
            function: Cell::new(function),
            argument: Cell::new(argument),
            place,
            borrowed: Cell::new(None),
            task: Cell::new(None),
            home: Cell::new(home),
            extras: Cell::new(ptr::null_mut()),
            locals: Locals::new(),
            exceptions: Cell::default(),
            stage: Cell::new(Stage::Init),
            by_hand: Cell::new(false),
            mark: Cell::new(0),
        }
    }

    /// A coroutine that will run `function(argument)`.
    #[inline]
    pub(crate) fn new(
        wanted: Wanted,
        function: Function,
        argument: *mut c_void,
        thread: &Thread,
        home: &Switching,
    ) -> io::Result<Box<Routine>> {
        let place = match wanted {
            Wanted::Own(size) => Place::Own(thread.stacks.take(size, false, &thread.counters)?),
            // SAFETY: whoever makes it promises that the stack stays.
            Wanted::Shared(stack) => Place::Shared(unsafe { Tenant::new(stack) }),
        };
        // Not before: one that got no stack never ends.
        thread.counters.fibers_created.increment();
        Ok(Box::new(Routine::make(place, function, argument, home)))
    }

    /// Brings what its turn needs first of its stack into the cache.
    ///
    /// # Safety
    /// It is this thread's, and has left its stack to wait.
    #[inline]
    pub(crate) unsafe fn prefetch(&self, lines: usize) {
        // SAFETY: by the caller's promise the context is live.
        unsafe { self.context.prefetch(lines) };
    }

    /// Where it is in its life.
    #[inline]
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Whether it is the thread itself.
    #[inline]
    pub(crate) fn is_main(&self) -> bool {
        matches!(self.place, Place::Thread)
    }

    /// The task that it waits by.
    #[inline]
    pub(crate) fn task(&self) -> Option<NonNull<Task>> {
        self.task.get()
    }

    /// Gives it a task to wait by, or takes it away.
    pub(crate) fn set_task(&self, task: Option<NonNull<Task>>) {
        self.task.set(task);
    }

    /// The stack that its frames are on, for the message that it was too small.
    pub(super) fn stack(&self) -> Option<&Stack> {
        match &self.place {
            Place::Own(stack) => Some(stack),
            Place::Shared(tenant) => Some(tenant.home().stack()),
            Place::Thread | Place::Lost => None,
        }
    }

    /// Its share in a stack, if it stands there, and not on a borrowed one.
    #[inline]
    fn stands_on(&self) -> Option<&Tenant> {
        match &self.place {
            Place::Shared(tenant) if ptr::eq(tenant.left_by(), &self.context) => Some(tenant),
            _ => None,
        }
    }

    /// Whether records of a wait must not be in the frames of the code that calls this, which it runs.
    #[inline]
    pub(crate) fn keeps_no_records(&self) -> bool {
        self.stands_on().is_some()
    }

    /// The head of its event loop.
    #[inline]
    pub(crate) fn home(&self) -> *const Switching {
        self.home.get()
    }

    /// Moves one that does not wait to the event loop that its thread has now.
    pub(crate) fn set_home(&self, home: &Switching) {
        self.home.set(home);
    }

    /// Brings it to the stack that it shares, and lets it begin there, if it has not.
    ///
    /// # Safety
    /// It is a routine, and the caller stands on another stack. Neither it nor the occupant is on the processor.
    unsafe fn settle(this: *const ()) {
        // SAFETY: by the caller's promise.
        let this = unsafe { &*this.cast::<Routine>() };
        if let Place::Shared(tenant) = &this.place {
            // SAFETY: as above.
            unsafe { tenant.settle() };
            if tenant.is_new() {
                tenant.set_left_by(&this.context);
                this.prepare(tenant.home().stack());
            }
        }
    }

    /// Writes the frame from which it begins.
    fn prepare(&self, stack: &Stack) {
        let data = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: nothing stands on the stack, and the context is spent.
        unsafe { self.context.prepare(stack, stack.top().as_ptr(), enter, data) };
    }

    /// Makes ready for a switch to it, by which it begins or goes on.
    ///
    /// # Safety
    /// It is this thread's, which `switching` belongs to; and in Init, Suspended, or Waiting with a wait that has ended. The switch
    /// follows.
    #[inline(always)]
    pub(crate) unsafe fn depart_to(&self, thread: &Thread, switching: &Switching) -> Crossing {
        if self.stage.get() == Stage::Init
            && let Place::Own(stack) = &self.place
        {
            self.prepare(stack);
        }
        let resumer = match thread.routine() {
            // SAFETY: a routine that runs is alive.
            Some(routine) => unsafe { &*routine.as_ptr() },
            None => &switching.main,
        };
        self.parent.set(resumer);
        self.stage.set(Stage::Running);
        thread.counters.switches.add(2);
        // SAFETY: by the caller's promise; the resumer is the one that runs.
        unsafe { switching.depart(thread, resumer, self) }
    }

    /// Makes ready for a switch back to the resumer of the routine that runs, which this is.
    ///
    /// # Safety
    /// It runs, on this thread, and is not the main routine. The switch follows.
    #[inline(always)]
    pub(crate) unsafe fn depart_from(&self, thread: &Thread, stage: Stage) -> Crossing {
        self.stage.set(stage);
        // SAFETY: its event loop is there while it runs; it has a resumer, which has left itself by a switch to it.
        unsafe { (*self.home.get()).depart(thread, self, &*self.parent.get()) }
    }

    /// Makes one that does not run as if it had not begun. Its task has no wait.
    pub(crate) fn renew(&self, thread: &Thread) {
        self.give_back_borrowed(thread);
        if let Place::Shared(tenant) = &self.place {
            tenant.forget();
        }
        self.locals.end();
        self.exceptions.set(Exceptions::default());
        self.stage.set(Stage::Init);
    }

    /// Gives its task and its own stack up without putting them back: others may still look at them. On a shared stack there is nothing that
    /// they could look at.
    pub(crate) fn lose(&mut self) {
        self.task.set(None);
        // What is on a borrowed one may be looked at, too: it is lost.
        drop(self.borrowed.take());
        if let Place::Own(_) = self.place {
            self.place = Place::Lost;
        }
    }

    /// Puts the stack back that it has borrowed, if it has: its call is over, or never goes on.
    #[inline]
    fn give_back_borrowed(&self, thread: &Thread) {
        if let Some(stack) = self.borrowed.take() {
            // To wait, as it does for the allocator, it would borrow one again.
            without_waiting(|| thread.stacks.put(*stack));
        }
    }

    /// Frees one that does not run, and puts its stack back. Its task has no wait.
    #[expect(clippy::boxed_local, reason = "its share in a stack is known by its address")]
    pub(crate) fn free(self: Box<Self>, thread: &Thread) {
        self.locals.end();
        self.give_back_borrowed(thread);
        if let Place::Shared(tenant) = &self.place {
            tenant.forget();
        }
        if let Some(task) = self.task.take() {
            // SAFETY: one counted reference was the routine's.
            drop(unsafe { TaskRef::from_raw(task) });
        }
        if self.stage.get() != Stage::Term {
            thread.counters.fibers_ended.increment();
        }
        match self.place {
            Place::Own(stack) => thread.stacks.put(stack),
            Place::Shared(tenant) => tenant.leave(&thread.stacks),
            Place::Thread | Place::Lost => {}
        }
    }
}

/// The first and last function on a coroutine's stack.
///
/// # Safety
/// `data` is the routine, which runs.
unsafe extern "C" fn enter(data: *mut (), _: usize) -> ! {
    context::started();
    // SAFETY: by the contract; a routine that runs is alive.
    let routine = unsafe { &*data.cast::<Routine>() };
    // SAFETY: its event loop is there while it runs.
    let switching = unsafe { &*routine.home.get() };
    // SAFETY: whoever made the coroutine has said that this may be called. What unwinds out of it ends the process.
    unsafe { (routine.function.get())(routine.argument.get()) };
    if let Some(at_end) = switching.at_end.get() {
        // SAFETY: it is called on the coroutine.
        unsafe { at_end(NonNull::from(routine)) };
    }
    routine.locals.end();
    if let Place::Shared(tenant) = &routine.place {
        // What it has there is of no use to anybody.
        tenant.forget();
    }
    let crossing = Thread::with(|thread| {
        thread.counters.fibers_ended.increment();
        // SAFETY: it runs, and the switch follows.
        unsafe { routine.depart_from(thread, Stage::Term) }
    });
    // SAFETY: it was just made ready for.
    unsafe { crossing.switch() };
    unreachable!("a coroutine that has ended is not resumed");
}

/// Calls `f`, which leaves records of a wait in its frames, where that is allowed: right here, unless the caller runs on a shared
/// stack.
#[inline]
pub fn elsewhere<R>(f: impl FnOnce() -> R) -> R {
    match Thread::if_any(Thread::routine) {
        // SAFETY: the routine that runs is alive.
        Some(routine) if unsafe { routine.as_ref() }.keeps_no_records() => {
            // SAFETY: as above.
            on_borrowed_stack(unsafe { &*routine.as_ptr() }, f)
        }
        _ => f(),
    }
}

/// A call that is made on a borrowed stack, in the frame of the one that makes it.
struct Call<F, R> {
    /// Where that goes on.
    back: Context,
    f: Option<F>,
    result: Option<std::thread::Result<R>>,
}

#[cold]
fn on_borrowed_stack<F: FnOnce() -> R, R>(routine: &Routine, f: F) -> R {
    let Some(tenant) = routine.stands_on() else {
        return f();
    };
    // Not in this frame, which may never be gone back to. What it takes to wait is not waited for: that would take another.
    let stack = without_waiting(|| {
        Thread::with(|thread| thread.stacks.take(BORROWED_SIZE, false, &thread.counters)).map(Box::new)
    });
    let stack = stack.unwrap_or_else(|error| panic!("no stack to wait on: {error}"));
    let mut call = Call {
        back: Context::spent(),
        f: Some(f),
        result: None,
    };
    let there = Context::spent();
    // SAFETY: the stack is new, and the context spent.
    unsafe {
        let top = stack.top().as_ptr();
        there.prepare(&stack, top, make_call::<F, R>, (&raw mut call).cast());
    }
    routine.borrowed.set(Some(stack));
    tenant.set_left_by(&call.back);
    // SAFETY: it was just prepared; this frame waits in the other.
    unsafe { context::switch_sharing_float_control(&call.back, &there, 0) };
    tenant.set_left_by(&routine.context);
    Thread::with(|thread| routine.give_back_borrowed(thread));
    match call.result.take().expect("the call has been made") {
        Ok(result) => result,
        Err(payload) => panic::resume_unwind(payload),
    }
}

/// The first and last function on a borrowed stack.
///
/// # Safety
/// `data` is such a call, whose frame is in place whenever this runs.
unsafe extern "C" fn make_call<F: FnOnce() -> R, R>(data: *mut (), _: usize) -> ! {
    context::started();
    let call = data.cast::<Call<F, R>>();
    // SAFETY: by the contract. It may have been moved out and back in between, always to the same place, so it is reached by its
    // address each time.
    unsafe {
        let f = (*call).f.take().expect("a call is made once");
        let result = panic::catch_unwind(AssertUnwindSafe(f));
        (*call).result = Some(result);
        // SAFETY: the caller waits there, left by this kind of switch.
        context::leave(&(*call).back, true, 0)
    }
}
