//! A fiber as the scheduler keeps it: one block of memory from spawn until the last handle is gone.
//!
//! ```text
//!    Job<F, T>   | Scheduled                          | what it will run, or what it returned |
//!                | Task (fiber::task) | queue, roster, ... |
//! ```
//!
//! The pointers that the scheduler passes around are to the [`Scheduled`]; `Task` is its head, so the same address serves
//! for both. Who may touch what:
//!
//! | part | who |
//! |---|---|
//! | the `Task` | anyone with a reference |
//! | `next` | whoever has claimed the fiber's wait, then its worker: it is in one queue at a time |
//! | `station` | whoever holds the lock of the owner's roster; the stamp in it, once the fiber has started, its worker |
//! | `owner` | written under that lock or by the fiber's own thread, read by anyone |
//! | `context`, `thread_pointer`, `timed`, `group`, `deadline`, `deferrals`, `is_unhooked`, `heard`, `in_table`, `row` | the thread that the fiber runs on; when its worker has gone, whoever gives that up |
//! | `completion` | see [`completion`](super::completion) |
//! | the stage | before the start and while it runs: its worker; afterwards whoever `completion` says |
//!
//! One reference belongs to the scheduler from the spawn to the fiber's end. So a fiber that has not ended is alive, and
//! queues and rosters hold plain pointers.

use super::cancel::Cancelled;
use super::cancel::Interruption;
use super::completion::Completion;
use super::desk::Desk;
use super::driver::Timed;
use super::group::{Group, Locals};
use super::inbox::Item;
use super::roster::{Member, Station};
use super::scope::ScopeData;
use crate::context::Context;
use crate::context::tls::{self, Layout};
use crate::fiber::{Kind, Payload, Task, TaskRef, contain, spare};
use crate::primitives::atomic::{AtomicPtr, Ordering::Relaxed};
use crate::sys;
use std::cell::{Cell, UnsafeCell};
use std::mem::{ManuallyDrop, offset_of};
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// What the scheduler knows of a fiber. What every wait needs comes first: with many fibers each cache line counts, and where nothing
/// else is in the way so do the bytes.
#[repr(C)]
pub(crate) struct Scheduled {
    /// Who it is and how it waits. First, so that its address is this one's.
    pub(crate) task: Task,
    /// Where it goes on. Here and not on its stack: a turn of another one, which asks for the stack of the next, finds it without a look at that.
    /// The root's refers to its worker's, and that of a coroutine's task to its routine.
    pub(super) context: Context,
    /// The thread pointer that it runs with, once it has started; null if that is its worker's own.
    pub(super) thread_pointer: Cell<*mut u8>,
    /// The next one in the queue or inbox that it is in.
    pub(super) next: AtomicPtr<Scheduled>,
    /// What the deadline of its wait is known by. Here and not in the frame that waits, which is on another page for each fiber: to expire very
    /// many deadlines takes no look at any stack.
    pub(super) timed: Timed,
    /// The size of stack it wants, in units of [`STACK_UNIT`].
    stack_units: u32,
    /// How many guards keep it from being cancelled.
    pub(super) deferrals: Cell<u16>,
    /// Whether it does not want its blocking calls to be hooked.
    pub(super) is_unhooked: Cell<bool>,
    /// What a hooked call has been told of: a cancel, once; or that the time of a [`timeout`](crate::timeout) is up, once in each.
    pub(super) heard: Cell<Option<Interruption>>,
    /// Whether it has thread-locals of its own.
    pub(super) is_isolated: bool,
    /// Whether it must run on the worker that it was given to.
    pub(super) is_bound: bool,
    /// Whether it has been handed to a less loaded worker: that happens once at most.
    pub(super) was_placed: Cell<bool>,
    /// What the rest of its memory holds.
    held: Cell<Held>,
    /// Its place in its worker's roster.
    station: Station<Scheduled>,
    /// The worker that it is with.
    owner: AtomicPtr<Desk>,
    /// The deadline of the innermost [`timeout`](crate::timeout) that it runs in: nanoseconds of the monotonic clock.
    pub(super) deadline: Cell<u64>,
    /// The hooked call that it waits in, if it does.
    pub(super) call: AtomicPtr<&'static str>,
    /// The group with which it shares its thread-locals, or another's.
    pub(super) group: Cell<Option<NonNull<Group>>>,
    /// What is to be told if it never goes on: with the records of its wait, as long as that lasts.
    pub(crate) in_table: Cell<Option<NonNull<InTable>>>,
    /// Which address it has waited for last, and how often in a row: see [`address`](crate::sync).
    pub(crate) row: Cell<u64>,
    /// Whether it has ended, and who waits for that.
    pub(super) completion: Completion,
    /// The scope that it was spawned in, until it ends.
    pub(super) scope: Option<Arc<ScopeData>>,
}

/// Sizes of stacks are multiples of this.
const STACK_UNIT: usize = 4096;

/// A function to be called if a fiber that waits is abandoned, and what it is called with.
#[derive(Clone, Copy)]
pub(crate) struct InTable {
    /// # Safety
    /// Called with `wait`, once, on the fiber's worker, after which the fiber never goes on.
    pub(crate) give_up: unsafe fn(wait: NonNull<()>),
    pub(crate) wait: NonNull<()>,
}

/// What can be done with a job's memory without knowing its types. Every fiber's task leads to one.
#[repr(C)]
struct Work {
    /// What the task knows. First, so that its address is this one's.
    kind: Kind,
    /// Runs it and keeps its result.
    ///
    /// # Safety
    /// Called once, on the fiber itself.
    run: unsafe fn(NonNull<Scheduled>),
    /// Keeps this panic as its result, and drops what it would have run, or forgets it.
    ///
    /// # Safety
    /// Called once, instead of `run`; to drop it, on a thread where that may be dropped.
    refuse: unsafe fn(NonNull<Scheduled>, Payload, Rest),
    /// Takes out what it would have run, if it is there.
    ///
    /// # Safety
    /// It will not run.
    take_work: unsafe fn(NonNull<Scheduled>) -> Option<Leftover>,
    /// Drops its result, which nobody wants, if it has not been taken. Returns whether it was a panic.
    ///
    /// # Safety
    /// It has run or was refused, and the result is the caller's.
    drop_result: unsafe fn(NonNull<Scheduled>) -> bool,
    /// Moves its result to an `Option<std::thread::Result<T>>` at this address.
    ///
    /// # Safety
    /// As `drop_result`; and `T` is the type that it returns.
    take_result: unsafe fn(NonNull<Scheduled>, *mut ()),
}

/// What becomes of a function that will not be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Dropped,
    Forgotten,
}

/// What a fiber would have run, taken out of it. To drop it is the user's code, and so is a panic of that.
pub(super) struct Leftover {
    /// A box of a type that the function knows.
    place: NonNull<()>,
    free: unsafe fn(NonNull<()>),
}

impl Drop for Leftover {
    fn drop(&mut self) {
        // SAFETY: it was made of that box, and is dropped once.
        contain(|| unsafe { (self.free)(self.place) });
    }
}

/// A fiber with what it runs.
#[repr(C)]
struct Job<F, T> {
    head: Scheduled,
    /// Which of these it is, the head knows: there is room for that.
    contents: UnsafeCell<Contents<F, T>>,
}

/// What a job's memory has room for.
union Contents<F, T> {
    work: ManuallyDrop<F>,
    result: ManuallyDrop<std::thread::Result<T>>,
    nothing: (),
}

/// Which of the contents are there.
#[derive(Clone, Copy, Debug)]
enum Held {
    Work,
    Result,
    Nothing,
}

/// What is in a job's memory.
enum Stage<F, T> {
    /// What it will run.
    Work(F),
    /// What came of it.
    Result(std::thread::Result<T>),
    /// Nothing: it runs, or the result has been taken.
    Empty,
}

/// What a fiber is made with.
pub(crate) struct Making {
    pub(crate) id: u64,
    pub(crate) name: Option<Arc<String>>,
    pub(crate) spawned_at: &'static Location<'static>,
    pub(crate) stack_size: usize,
    pub(crate) is_bound: bool,
    pub(crate) locals: Locals,
    pub(crate) scope: Option<Arc<ScopeData>>,
}

impl Scheduled {
    /// A fiber that will run `f`, with two references: the scheduler's, which the first result stands for, and its handle's.
    ///
    /// # Safety
    /// The memory has no lifetime: the caller sees to it that `f` has run (or been refused) and its result been taken or
    /// dropped before anything they borrow ends, and that they are dropped on a thread that they may be dropped on.
    pub(crate) unsafe fn make<F, T>(making: Making, f: F) -> (NonNull<Scheduled>, TaskRef)
    where
        F: FnOnce() -> T,
    {
        debug_assert!(making.stack_size.is_multiple_of(STACK_UNIT));
        let place = spare::allocate::<Job<F, T>>();
        // Written in place: it is large enough for a copy to show.
        let job = Job {
            head: Scheduled {
                task: Task::new(
                    &Job::<F, T>::WORK.kind,
                    making.id,
                    making.name,
                    making.spawned_at,
                    2,
                ),
                next: AtomicPtr::new(ptr::null_mut()),
                owner: AtomicPtr::new(ptr::null_mut()),
                station: Station::nowhere(),
                is_bound: making.is_bound,
                is_isolated: matches!(making.locals, Locals::Own),
                group: Cell::new(match making.locals {
                    Locals::Groups(group) => Some(group),
                    Locals::Own | Locals::Workers => None,
                }),
                was_placed: Cell::new(false),
                held: Cell::new(Held::Work),
                context: Context::spent(),
                thread_pointer: Cell::new(ptr::null_mut()),
                timed: Timed::new(),
                stack_units: (making.stack_size / STACK_UNIT) as u32,
                deadline: Cell::new(u64::MAX),
                deferrals: Cell::new(0),
                is_unhooked: Cell::new(false),
                in_table: Cell::new(None),
                row: Cell::new(0),
                heard: Cell::new(None),
                call: AtomicPtr::new(ptr::null_mut()),
                completion: Completion::new(),
                scope: making.scope,
            },
            contents: UnsafeCell::new(Contents {
                work: ManuallyDrop::new(f),
            }),
        };
        // SAFETY: it is memory for one, and nobody else's.
        unsafe { place.write(job) };
        let head = place.cast::<Scheduled>();
        // SAFETY: it was made with two references; this is one of them.
        (head, unsafe { TaskRef::from_raw(head.cast()) })
    }

    /// Whether it has had a stack, or never needs one: it is a root, or a coroutine's task.
    ///
    /// # Safety
    /// The caller is its worker, or has taken that over from its thread.
    pub(super) unsafe fn has_begun(&self) -> bool {
        // SAFETY: only its worker writes it, so by the caller's promise that has happened before.
        unsafe { !self.context.frame().is_null() }
    }

    /// The size of stack it wants.
    #[inline]
    pub(super) fn stack_size(&self) -> usize {
        self.stack_units as usize * STACK_UNIT
    }

    /// What the deadline of its wait is known by, as an address from which the whole can be found again.
    #[inline]
    pub(super) fn timed(&self) -> NonNull<Timed> {
        // SAFETY: a field of what is referred to.
        unsafe { NonNull::from(self).byte_add(offset_of!(Scheduled, timed)).cast() }
    }

    /// The fiber that this is in. The address need not be good, but then the result is not either.
    #[inline]
    pub(super) fn of_timed(timed: NonNull<Timed>) -> *const Scheduled {
        timed
            .as_ptr()
            .wrapping_byte_sub(offset_of!(Scheduled, timed))
            .cast()
    }

    /// The scheduler's part of a task.
    #[inline]
    pub(crate) fn of(task: &TaskRef) -> &Scheduled {
        // SAFETY: every task is made by `make`, as the head of a Scheduled; the reference keeps it alive.
        unsafe { task.as_ptr().cast::<Scheduled>().as_ref() }
    }

    /// Lets a new fiber go without a join handle.
    pub(crate) fn detach(task: &TaskRef) {
        // SAFETY: the caller has just made it and is the only one who could join it.
        unsafe { Scheduled::of(task).completion.detach() };
    }

    /// What can be done with what it runs.
    #[inline]
    fn work(&self) -> &'static Work {
        // SAFETY: `make` gives every task the head of one.
        unsafe { &*ptr::from_ref(self.task.kind).cast::<Work>() }
    }

    /// The worker that it is with, if it was given to one.
    #[inline]
    pub(crate) fn owner(&self) -> Option<&'static Desk> {
        // SAFETY: it is null or the address of a desk, and desks are never freed.
        unsafe { self.owner.load(Relaxed).as_ref() }
    }

    /// Gives it to a worker.
    #[inline]
    pub(super) fn set_owner(&self, desk: &'static Desk) {
        self.owner.store(ptr::from_ref(desk).cast_mut(), Relaxed);
    }

    /// Whether nobody else uses its thread-locals.
    #[inline]
    pub(super) fn has_own_locals(&self) -> bool {
        self.is_isolated && self.group.get().is_none()
    }

    /// The block of thread-locals of its own, if it has started and is isolated.
    pub(super) fn own_locals(&self) -> Option<(&'static Layout, *mut u8)> {
        let layout = self.is_isolated.then(|| tls::layout().ok()).flatten()?;
        Some((layout, self.thread_pointer.get()))
    }

    /// Runs it and keeps its result, or its panic.
    ///
    /// # Safety
    /// Called once, on the fiber itself, or on a real thread for a job that is not a fiber.
    pub(super) unsafe fn run(&self) {
        // SAFETY: by the caller's promise.
        unsafe { (self.work().run)(NonNull::from(self)) }
    }

    /// Whether it was spawned in a scope that has been cancelled.
    pub(super) fn is_of_cancelled_scope(&self) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.is_cancelled())
    }

    /// Drops what it would have run, or forgets it; its result is this panic.
    ///
    /// # Safety
    /// Called once, instead of `run`; to drop it, on a thread where that may be dropped.
    pub(super) unsafe fn refuse(&self, payload: Payload, rest: Rest) {
        // SAFETY: by the caller's promise.
        unsafe { (self.work().refuse)(NonNull::from(self), payload, rest) }
    }

    /// Takes out what it would have run, if it has not started.
    ///
    /// # Safety
    /// It will not run; and what is taken out is dropped before anything that it borrows ends, where it may be dropped.
    pub(super) unsafe fn take_work(&self) -> Option<Leftover> {
        // SAFETY: by the caller's promise.
        unsafe { (self.work().take_work)(NonNull::from(self)) }
    }

    /// Drops its result.
    ///
    /// # Safety
    /// It has run or was refused, and the result has not been taken and is the caller's.
    pub(super) unsafe fn drop_result(&self) {
        // SAFETY: by the caller's promise.
        let panicked = unsafe { (self.work().drop_result)(NonNull::from(self)) };
        if panicked && let Some(scope) = &self.scope {
            scope.note_panicked();
        }
    }

    /// Takes its result.
    ///
    /// # Safety
    /// It was made with a function that returns `T`, has ended, and its result is the caller's to take, once.
    pub(super) unsafe fn take_result<T>(&self) -> std::thread::Result<T> {
        let mut result: Option<std::thread::Result<T>> = None;
        // SAFETY: the caller names the type that it was made with, and the result is there and theirs.
        unsafe { (self.work().take_result)(NonNull::from(self), (&raw mut result).cast()) };
        result.expect("a fiber that has ended has a result")
    }
}

// SAFETY: a fiber is in one queue or inbox at a time, and its link is used there only.
unsafe impl Item for Scheduled {
    fn link(&self) -> &AtomicPtr<Scheduled> {
        &self.next
    }
}

// SAFETY: nothing else uses the station.
unsafe impl Member for Scheduled {
    fn station(&self) -> &Station<Scheduled> {
        &self.station
    }
}

// Scheduled is neither Send nor Sync: the table above says who touches what, and each place that passes a pointer to another
// thread argues for itself.

impl<F: FnOnce() -> T, T> Job<F, T> {
    const WORK: &'static Work = &Work {
        kind: Kind {
            wake: super::worker::wake,
            free: Job::<F, T>::free,
        },
        run: Job::<F, T>::run,
        refuse: Job::<F, T>::refuse,
        take_work: Job::<F, T>::take_work,
        drop_result: Job::<F, T>::drop_result,
        take_result: Job::<F, T>::take_result,
    };

    /// Puts something into the job's stage, and returns what was there.
    ///
    /// # Safety
    /// The address is that of such a job, and its stage is the caller's now: see the table above.
    unsafe fn replace(job: NonNull<Scheduled>, stage: Stage<F, T>) -> Stage<F, T> {
        // SAFETY: the head is the first field of its job, and `held` says which of the contents are there; nobody else touches them
        // meanwhile.
        unsafe {
            let job = job.cast::<Job<F, T>>().as_ptr();
            let (held, contents) = (&(*job).head.held, (*job).contents.get());
            let before = match held.get() {
                Held::Work => Stage::Work(ManuallyDrop::take(&mut (*contents).work)),
                Held::Result => Stage::Result(ManuallyDrop::take(&mut (*contents).result)),
                Held::Nothing => Stage::Empty,
            };
            let (now, new) = match stage {
                Stage::Work(f) => (
                    Held::Work,
                    Contents {
                        work: ManuallyDrop::new(f),
                    },
                ),
                Stage::Result(result) => (
                    Held::Result,
                    Contents {
                        result: ManuallyDrop::new(result),
                    },
                ),
                Stage::Empty => (Held::Nothing, Contents { nothing: () }),
            };
            contents.write(new);
            held.set(now);
            before
        }
    }

    unsafe fn run(job: NonNull<Scheduled>) {
        // SAFETY: the contract of `Work::run`; the stage is the fiber's until it completes.
        let Stage::Work(f) = (unsafe { Self::replace(job, Stage::Empty) }) else {
            unreachable!("a fiber runs once");
        };
        let process = sys::process();
        let result = panic::catch_unwind(AssertUnwindSafe(f));
        if sys::process() != process {
            end_child(&result);
        }
        // SAFETY: as above.
        drop(unsafe { Self::replace(job, Stage::Result(result)) });
    }

    unsafe fn refuse(job: NonNull<Scheduled>, payload: Payload, rest: Rest) {
        // SAFETY: the contract of `Work::refuse`.
        let work = unsafe { Self::replace(job, Stage::Result(Err(payload))) };
        match rest {
            // It is the user's, and so is a panic of its destructor.
            Rest::Dropped => drop(contain(|| drop(work))),
            Rest::Forgotten => std::mem::forget(work),
        }
    }

    unsafe fn take_work(job: NonNull<Scheduled>) -> Option<Leftover> {
        unsafe fn free<F>(place: NonNull<()>) {
            // SAFETY: it was made below, of such a box.
            drop(unsafe { Box::from_raw(place.cast::<F>().as_ptr()) });
        }
        // SAFETY: the contract of `Work::take_work`.
        match unsafe { Self::replace(job, Stage::Empty) } {
            Stage::Work(f) => Some(Leftover {
                place: NonNull::from(Box::leak(Box::new(f))).cast(),
                free: free::<F>,
            }),
            Stage::Result(_) | Stage::Empty => None,
        }
    }

    unsafe fn drop_result(job: NonNull<Scheduled>) -> bool {
        // SAFETY: the contract of `Work::drop_result`.
        let result = unsafe { Self::replace(job, Stage::Empty) };
        let panicked = matches!(&result, Stage::Result(Err(payload)) if !payload.is::<Cancelled>());
        contain(|| drop(result));
        panicked
    }

    unsafe fn take_result(job: NonNull<Scheduled>, place: *mut ()) {
        // SAFETY: the contract of `Work::take_result`.
        if let Stage::Result(result) = unsafe { Self::replace(job, Stage::Empty) } {
            // SAFETY: by the contract this is where such an option lies.
            unsafe { *place.cast::<Option<std::thread::Result<T>>>() = Some(result) };
        }
    }

    unsafe fn free(task: NonNull<Task>) {
        // SAFETY: there are no more references, so it is the caller's alone.
        drop(unsafe { Self::replace(task.cast(), Stage::Empty) });
        let job = task.cast::<Job<F, T>>();
        // SAFETY: `make` has made it, in memory for such a job, and there are no more references. What it ran is gone: it was run or
        // refused by its worker, and its result was taken or dropped; if the fiber was abandoned, it was forgotten with its
        // scheduler's reference, and this is not called.
        unsafe {
            job.drop_in_place();
            spare::free(job);
        }
    }
}

/// Ends a forked child whose function has returned, which its parent runs as a fiber: there is nobody to return to.
pub(super) fn end_child<T>(result: &std::thread::Result<T>) -> ! {
    let status = if result.is_ok() { 0 } else { 101 };
    // SAFETY: ends the process. What runs at its exit is the parent's to run.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million fibers are a million of these: with what the allocator adds, 240 bytes for one that runs and returns nothing much.
    #[test]
    fn a_fiber_takes_232_bytes() {
        assert_eq!((size_of::<Task>(), size_of::<Scheduled>()), (72, 216));
        assert_eq!(size_of::<Job<fn(), ()>>(), 232);
    }
}
