//! A fiber as the scheduler keeps it: one block of memory from spawn until the last handle is gone.
//!
//! ```text
//!    Job<F, T>   | Scheduled                          | stage: what it will run, or what it returned |
//!                | Task (fiber::task) | queue, roster, ... |
//! ```
//!
//! The pointers that the scheduler passes around are to the [`Scheduled`]; `Task` is its head, so the same address serves
//! for both. Who may touch what:
//!
//! | part | who |
//! |---|---|
//! | the `Task` | anyone with a reference |
//! | `next`, `stamp` | whoever has claimed the fiber's wait, then its worker: it is in one queue at a time |
//! | `station` | whoever holds the lock of the owner's roster |
//! | `owner` | written under that lock or by the fiber's own thread, read by anyone |
//! | `context`, `thread_pointer`, `group`, `deadline`, `deferrals`, `is_unhooked`, `heard`, `in_table`, `row` | the thread that the fiber runs on |
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
use crate::fiber::{Kind, Payload, Task, TaskRef};
use crate::primitives::atomic::{AtomicPtr, Ordering::Relaxed};
use crate::sys;
use std::cell::{Cell, UnsafeCell};
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// What the scheduler knows of a fiber.
#[repr(C)]
pub(crate) struct Scheduled {
    /// Who it is and how it waits. First, so that its address is this one's.
    pub(crate) task: Task,
    /// Where it goes on; null before it starts.
    pub(super) context: Cell<*const Context>,
    /// The thread pointer that it runs with, once it has started; null if that is its worker's own.
    pub(super) thread_pointer: Cell<*mut u8>,
    /// The next one in the queue or inbox that it is in.
    pub(super) next: AtomicPtr<Scheduled>,
    /// When it was queued: a rising number of its worker's.
    pub(super) stamp: Cell<u64>,
    /// What it runs.
    work: &'static Work,
    /// The worker that it is with.
    owner: AtomicPtr<Desk>,
    /// Its place in that worker's roster.
    station: Station<Scheduled>,
    /// Whether it must run on the worker that it was given to.
    pub(super) is_bound: bool,
    /// Whether it has thread-locals of its own.
    pub(super) is_isolated: bool,
    /// The group with which it shares its thread-locals, or another's.
    pub(super) group: Cell<Option<NonNull<Group>>>,
    /// Whether it has been handed to a less loaded worker: that happens once at most.
    pub(super) was_placed: Cell<bool>,
    /// The size of stack it wants.
    pub(super) stack_size: usize,
    /// The deadline of the innermost [`timeout`](crate::timeout) that it runs in: nanoseconds of the monotonic clock.
    pub(super) deadline: Cell<u64>,
    /// How many guards keep it from being cancelled.
    pub(super) deferrals: Cell<u16>,
    /// Whether it does not want its blocking calls to be hooked.
    pub(super) is_unhooked: Cell<bool>,
    /// What is to be told if it never goes on: it waits in the wait table.
    pub(crate) in_table: Cell<Option<InTable>>,
    /// The deadline of its wait, if that is not in its frames.
    pub(super) alarm: Cell<*const Timed>,
    /// Which address it has waited for last, and how often in a row.
    pub(crate) row: Cell<(usize, u32)>,
    /// What a hooked call has been told of: a cancel, once; or that the time of a [`timeout`](crate::timeout) is up, once in each.
    pub(super) heard: Cell<Option<Interruption>>,
    /// The hooked call that it waits in, if it does.
    pub(super) call: AtomicPtr<&'static str>,
    /// Whether it has ended, and who waits for that.
    pub(super) completion: Completion,
    /// The scope that it was spawned in, until it ends.
    pub(super) scope: Option<Arc<ScopeData>>,
}

/// A function to be called if a fiber that waits is abandoned, and what it is called with.
#[derive(Clone, Copy)]
pub(crate) struct InTable {
    /// # Safety
    /// Called with `wait`, once, on the fiber's worker, after which the fiber never goes on.
    pub(crate) give_up: unsafe fn(wait: NonNull<()>),
    pub(crate) wait: NonNull<()>,
}

/// What can be done with the rest of a job's memory without knowing its types.
struct Work {
    /// Runs it and keeps its result.
    ///
    /// # Safety
    /// Called once, on the fiber itself.
    run: unsafe fn(NonNull<Scheduled>),
    /// Drops what it would have run, and keeps this panic as its result.
    ///
    /// # Safety
    /// Called once, instead of `run`.
    refuse: unsafe fn(NonNull<Scheduled>, Payload),
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

/// A fiber with what it runs.
#[repr(C)]
struct Job<F, T> {
    head: Scheduled,
    stage: UnsafeCell<Stage<F, T>>,
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
    pub(crate) name: Option<Arc<str>>,
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
        let mut place = Box::<Job<F, T>>::new_uninit();
        // Written in place: it is large enough for a copy to show.
        place.write(Job {
            head: Scheduled {
                task: Task::new(&Job::<F, T>::KIND, making.id, making.name, making.spawned_at, 2),
                work: &Job::<F, T>::WORK,
                next: AtomicPtr::new(ptr::null_mut()),
                stamp: Cell::new(0),
                owner: AtomicPtr::new(ptr::null_mut()),
                station: Station::nowhere(),
                is_bound: making.is_bound,
                is_isolated: matches!(making.locals, Locals::Own),
                group: Cell::new(match making.locals {
                    Locals::Groups(group) => Some(group),
                    Locals::Own | Locals::Workers => None,
                }),
                was_placed: Cell::new(false),
                context: Cell::new(ptr::null()),
                thread_pointer: Cell::new(ptr::null_mut()),
                stack_size: making.stack_size,
                deadline: Cell::new(u64::MAX),
                deferrals: Cell::new(0),
                is_unhooked: Cell::new(false),
                in_table: Cell::new(None),
                alarm: Cell::new(ptr::null()),
                row: Cell::new((0, 0)),
                heard: Cell::new(None),
                call: AtomicPtr::new(ptr::null_mut()),
                completion: Completion::new(),
                scope: making.scope,
            },
            stage: UnsafeCell::new(Stage::Work(f)),
        });
        // SAFETY: it was just written.
        let job = unsafe { place.assume_init() };
        let head = NonNull::from(Box::leak(job)).cast::<Scheduled>();
        // SAFETY: it was made with two references; this is one of them.
        (head, unsafe { TaskRef::from_raw(head.cast()) })
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
        unsafe { (self.work.run)(NonNull::from(self)) }
    }

    /// Drops what it would have run; its result is this panic.
    ///
    /// # Safety
    /// Called once, instead of `run`.
    pub(super) unsafe fn refuse(&self, payload: Payload) {
        // SAFETY: by the caller's promise.
        unsafe { (self.work.refuse)(NonNull::from(self), payload) }
    }

    /// Drops its result.
    ///
    /// # Safety
    /// It has run or was refused, and the result has not been taken and is the caller's.
    pub(super) unsafe fn drop_result(&self) {
        // SAFETY: by the caller's promise.
        let panicked = unsafe { (self.work.drop_result)(NonNull::from(self)) };
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
        unsafe { (self.work.take_result)(NonNull::from(self), (&raw mut result).cast()) };
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
    const KIND: Kind = Kind {
        wake: super::worker::wake,
        free: Job::<F, T>::free,
    };

    const WORK: Work = Work {
        run: Job::<F, T>::run,
        refuse: Job::<F, T>::refuse,
        drop_result: Job::<F, T>::drop_result,
        take_result: Job::<F, T>::take_result,
    };

    /// Puts something into the job's stage, and returns what was there.
    ///
    /// # Safety
    /// The address is that of such a job, and its stage is the caller's now: see the table above.
    unsafe fn replace(job: NonNull<Scheduled>, stage: Stage<F, T>) -> Stage<F, T> {
        // SAFETY: the head is the first field of its job; nobody else touches the stage meanwhile.
        unsafe { ptr::replace((*job.cast::<Job<F, T>>().as_ptr()).stage.get(), stage) }
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

    unsafe fn refuse(job: NonNull<Scheduled>, payload: Payload) {
        // SAFETY: the contract of `Work::refuse`.
        let work = unsafe { Self::replace(job, Stage::Result(Err(payload))) };
        // It is the user's, and so is a panic of its destructor.
        drop(panic::catch_unwind(AssertUnwindSafe(|| drop(work))));
    }

    unsafe fn drop_result(job: NonNull<Scheduled>) -> bool {
        // SAFETY: the contract of `Work::drop_result`.
        let result = unsafe { Self::replace(job, Stage::Empty) };
        let panicked = matches!(&result, Stage::Result(Err(payload)) if !payload.is::<Cancelled>());
        drop(panic::catch_unwind(AssertUnwindSafe(|| drop(result))));
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
        // SAFETY: `make` has leaked it from such a box, and there are no more references. What it ran is gone: it was run or
        // refused by its worker, and its result was taken or dropped; if the fiber was abandoned, it was forgotten with its
        // scheduler's reference, and this is not called.
        drop(unsafe { Box::from_raw(task.cast::<Job<F, T>>().as_ptr()) });
    }
}

/// Ends a forked child whose function has returned, which its parent runs as a fiber: there is nobody to return to.
pub(super) fn end_child<T>(result: &std::thread::Result<T>) -> ! {
    let status = if result.is_ok() { 0 } else { 101 };
    // SAFETY: ends the process. What runs at its exit is the parent's to run.
    unsafe { libc::_exit(status) }
}
