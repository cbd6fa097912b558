//! What a thread knows of its fibers.
//!
//! [`hand`](super::hand), [`block`](super::block) and [`local`](super::local) come here for the current fiber, the thread's
//! idle stacks and its counters. A thread gets this state when it first has to do with fibers and loses it when it ends.
//!
//! The only thread-local variable is a pointer to it, so that fibers with thread-locals of their own can be given the same
//! pointer.

use super::block::Block;
use super::ferry::Ferry;
use super::local::Locals;
use super::overflow;
use super::routine::Routine;
use super::spare::Spares;
use super::task::Task;
use crate::context::stack::Cache;
use crate::stats::ThreadCounters;
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How many fiber ids a thread reserves at once.
const ID_BATCH: u64 = 1024;

/// The scheduler's code runs on a fiber's stack: the fiber waits or has ended, and another has not gone on yet.
const SCHEDULING: u32 = 1;

/// One signal handler.
const HANDLER: u32 = 2;

/// A thread's state. Its fields are for its own thread only.
pub(crate) struct Thread {
    /// The innermost fiber that runs on this thread; its resumers follow through [`Block::parent`].
    current: Cell<Option<NonNull<Block>>>,
    /// The scheduled fiber that runs on this thread, if it is a worker. Hand-driven ones that it resumes come on top.
    task: Cell<Option<NonNull<Task>>>,
    /// The coroutine that runs on this thread, if one does: see [`routine`](super::routine).
    routine: Cell<Option<NonNull<Routine>>>,
    /// What moves fibers in and out of shared stacks, once it is needed.
    pub(super) ferry: Cell<Option<NonNull<Ferry>>>,
    /// The worker that this thread is, while it is one.
    scheduler: Cell<Option<NonNull<dyn Scheduler>>>,
    /// Why nothing that runs on this thread may wait, if so: how many signal handlers of the program's run, one in the other, times
    /// [`HANDLER`]; and [`SCHEDULING`] while the code that runs is the scheduler's.
    busy: Cell<u32>,
    /// The thread pointer of the thread itself.
    home: Cell<*mut u8>,
    /// What this thread counts.
    pub(crate) counters: ThreadCounters,
    /// The stacks it keeps at hand.
    pub(crate) stacks: Cache,
    /// The memory of fibers it keeps at hand.
    pub(crate) spares: Spares,
    /// The values of fiber-locals outside fibers.
    pub(super) locals: Locals,
    /// The next fiber id, and the first one that is not this thread's to give.
    ids: Cell<(u64, u64)>,
    /// Where the overflow handler runs, if the thread had no such place yet.
    _signal_stack: Option<overflow::SignalStack>,
}

thread_local! {
    /// This thread's state, null before its first use and after its end.
    static THREAD: Cell<*const Thread> = const { Cell::new(ptr::null()) };

    /// Ends this thread's state when the thread ends.
    static END: End = const { End };
}

impl Thread {
    /// Calls `f` with this thread's state.
    ///
    /// `f` must not suspend the fiber that it runs on: when the fiber goes on, in the destructor of some thread-local, the
    /// thread's state may have ended and been made anew.
    #[inline(always)]
    pub(crate) fn with<R>(f: impl FnOnce(&Thread) -> R) -> R {
        let mut thread = THREAD.get();
        if thread.is_null() {
            thread = Thread::make();
        }
        // SAFETY: the pointer is null unless it is that of a state that `make` has leaked and `End` has not freed. `End` runs
        // on this thread when its thread-locals are destroyed, one after the other, so not while `f` does: `f` would have to
        // be suspended in the meantime, which it does not do.
        f(unsafe { &*thread })
    }

    /// Calls `f` with this thread's state, unless it has none. The same holds for `f`.
    #[inline(always)]
    pub(crate) fn if_any<R>(f: impl FnOnce(&Thread) -> Option<R>) -> Option<R> {
        // SAFETY: as in `with`.
        unsafe { THREAD.get().as_ref() }.and_then(f)
    }

    #[cold]
    fn make() -> *const Thread {
        // Refused if the thread's locals are being destroyed and ours has been: this state is then never freed, so it must
        // not keep stacks. It happens at most once per thread.
        let ends = END.try_with(|_| ()).is_ok();
        let thread: *const Thread = Box::into_raw(Box::new(Thread {
            current: Cell::new(None),
            task: Cell::new(None),
            routine: Cell::new(None),
            ferry: Cell::new(None),
            scheduler: Cell::new(None),
            busy: Cell::new(0),
            home: Cell::new(crate::context::thread_pointer()),
            counters: ThreadCounters::register(),
            stacks: Cache::new(ends),
            spares: Spares::new(ends),
            locals: Locals::new(),
            ids: Cell::new((0, 0)),
            // A thread that is ending has given back its own, and would keep another for ever.
            _signal_stack: if ends { overflow::prepare_thread() } else { None },
        }));
        THREAD.set(thread);
        thread
    }

    /// The innermost fiber that runs on this thread.
    #[inline(always)]
    pub(crate) fn current(&self) -> Option<NonNull<Block>> {
        self.current.get()
    }

    /// Makes another fiber the innermost one that runs here.
    #[inline(always)]
    pub(crate) fn set_current(&self, block: Option<NonNull<Block>>) {
        self.current.set(block);
    }

    /// The scheduled fiber that runs on this thread.
    #[inline(always)]
    pub(crate) fn task(&self) -> Option<NonNull<Task>> {
        self.task.get()
    }

    /// Makes another scheduled fiber the one that runs here.
    #[inline(always)]
    pub(crate) fn set_task(&self, task: Option<NonNull<Task>>) {
        self.task.set(task);
    }

    /// The coroutine that runs on this thread.
    #[inline(always)]
    pub(crate) fn routine(&self) -> Option<NonNull<Routine>> {
        self.routine.get()
    }

    /// Makes a coroutine the one that runs here, and the thread its worker. What follows is not the scheduler's code.
    #[inline(always)]
    pub(super) fn set_routine(&self, routine: &Routine, scheduler: NonNull<dyn Scheduler>) {
        self.routine.set(Some(NonNull::from(routine)));
        self.task.set(routine.task());
        self.scheduler.set(Some(scheduler));
        self.busy.set(0);
    }

    /// Makes the thread one that runs no coroutine.
    #[inline(always)]
    pub(super) fn end_routines(&self) {
        self.routine.set(None);
        self.task.set(None);
        self.scheduler.set(None);
        self.busy.set(0);
    }

    /// Makes this thread that worker while `f` runs, which does not wait.
    pub(crate) fn as_worker(&self, worker: NonNull<impl Scheduler + 'static>, f: impl FnOnce()) {
        let former = self.scheduler.replace(Some(worker));
        f();
        self.scheduler.set(former);
    }

    /// The coroutine that runs, for the overflow handler.
    pub(super) fn routine_in_signal_handler() -> Option<NonNull<Routine>> {
        // SAFETY: as in `current_in_signal_handler`.
        unsafe { THREAD.get().as_ref() }?.routine.get()
    }

    /// The worker that this thread is.
    #[inline(always)]
    pub(crate) fn scheduler(&self) -> Option<NonNull<dyn Scheduler>> {
        self.scheduler.get()
    }

    /// Makes this thread a worker, or an ordinary thread again. Returns what it was.
    ///
    /// # Safety
    /// The worker is valid until it is replaced.
    pub(crate) unsafe fn set_scheduler(
        &self,
        scheduler: Option<NonNull<dyn Scheduler>>,
    ) -> Option<NonNull<dyn Scheduler>> {
        self.scheduler.replace(scheduler)
    }

    /// The current fiber, for the overflow handler: `None` also if the thread has nothing to do with fibers.
    pub(super) fn current_in_signal_handler() -> Option<NonNull<Block>> {
        let thread = THREAD.get();
        // SAFETY: as in `with`; the handler interrupts this thread and reads one cell.
        unsafe { thread.as_ref() }?.current.get()
    }

    /// Makes the calling thread, the only one of a forked child, an ordinary one: its worker and its scheduled fibers are the parent's. Those that
    /// are driven by hand are the child's, too, which goes on in them: they stay, down to the scheduled one that drives them, if there is one. It
    /// only stores.
    pub(crate) extern "C" fn forget_fibers() {
        // SAFETY: as in `with`.
        if let Some(thread) = unsafe { THREAD.get().as_ref() } {
            thread.scheduler.set(None);
            thread.task.set(None);
            let mut innermost = &thread.current;
            while let Some(block) = innermost.get() {
                // SAFETY: the current fiber and its resumers have their blocks.
                let block = unsafe { &*block.as_ptr() };
                if block.is_scheduled {
                    innermost.set(None); // what drives the one before is an ordinary thread now
                    break;
                }
                innermost = &block.parent;
            }
            thread.stacks.forget();
            // The C library takes the block that has forked for the thread's, and gives the worker's to the next thread.
            thread.home.set(crate::context::thread_pointer());
            crate::context::tls::stay_here();
        }
    }

    /// Calls `f`, a signal handler of the program's that has interrupted this thread.
    pub(crate) fn handling_signal(f: impl FnOnce()) {
        let thread = THREAD.get();
        // SAFETY: as in `with`; a handler runs to its end before the thread goes on.
        let busy = unsafe { thread.as_ref() }.map(|thread| &thread.busy);
        if let Some(busy) = busy {
            busy.set(busy.get() + HANDLER);
        }
        f();
        if let Some(busy) = busy {
            busy.set(busy.get() - HANDLER);
        }
    }

    /// Whether a signal handler of the program's has interrupted this thread: then nothing may wait, and what belongs to the
    /// thread may be in the middle of a change.
    #[inline(always)]
    pub(crate) fn is_handling_signal(&self) -> bool {
        self.busy.get() >= HANDLER
    }

    /// Whether nothing that runs on this thread may wait.
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get() != 0
    }

    /// Notes whether the code that runs on this thread is the scheduler's. Only outside signal handlers.
    #[inline(always)]
    pub(crate) fn set_scheduling(&self, yes: bool) {
        self.busy.set(if yes { SCHEDULING } else { 0 });
    }

    /// Where the stack of the fiber that runs here begins, and its size; the innermost one's, if one has resumed another.
    pub(crate) fn current_stack(&self) -> Option<(*mut u8, usize)> {
        // SAFETY: the fiber that runs has its block.
        let stack = unsafe { self.current.get()?.as_ref() }.stack();
        Some((
            stack.bottom(),
            stack.top().as_ptr() as usize - stack.bottom() as usize,
        ))
    }

    /// The thread pointer of the thread itself, which is not that of an isolated fiber.
    #[inline(always)]
    pub(crate) fn home(&self) -> *mut u8 {
        self.home.get()
    }

    /// Makes the block of thread-locals that the caller runs with, which is new here, belong to the thread with that state.
    ///
    /// # Safety
    /// The caller runs on that thread, in a fiber that never runs once the thread's state has ended.
    #[inline]
    pub(crate) unsafe fn adopt(thread: *const Thread) {
        THREAD.set(thread);
        // SAFETY: by the caller's promise it has not ended.
        unsafe { (*thread).counters.adopt() };
    }

    /// The same, for a thread that may have nothing to do with fibers.
    pub(crate) fn in_signal_handler() -> bool {
        Thread::if_any(|thread| thread.is_handling_signal().then_some(())).is_some()
    }

    /// A number that no other fiber has.
    #[inline(always)]
    pub(crate) fn next_id(&self) -> u64 {
        let (next, end) = self.ids.get();
        if next == end {
            return self.reserve_ids();
        }
        self.ids.set((next + 1, end));
        next
    }

    #[cold]
    fn reserve_ids(&self) -> u64 {
        /// The first id that no thread has reserved.
        static UNUSED: AtomicU64 = AtomicU64::new(1);
        let first = UNUSED.fetch_add(ID_BATCH, Relaxed);
        self.ids.set((first + 1, first + ID_BATCH));
        first
    }
}

/// What a worker does for this module, which is below the scheduler and does not know it.
pub(crate) trait Scheduler {
    /// Parks the fiber that runs, at most that long.
    fn park(&self, timeout: Option<Duration>);
}

/// Frees a thread's state when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        // Destructors of fiber-locals are the user's code and may use fibers, so the state is still in place for them.
        if !THREAD.get().is_null() {
            Thread::with(|thread| {
                thread.locals.end();
                Ferry::end(thread);
            });
        }
        let thread = THREAD.replace(ptr::null()).cast_mut();
        if !thread.is_null() {
            // SAFETY: it came from a box in `make`, and as the pointer was just cleared nobody finds it any more. Whoever had
            // it from `with` has returned: this is a destructor of the thread's, which begins after everything else.
            drop(unsafe { Box::from_raw(thread) });
        }
    }
}
