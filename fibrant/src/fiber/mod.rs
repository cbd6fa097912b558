//! Fibers that you drive by hand: each has its own stack, runs until it suspends, and goes on when it is resumed.
//!
//! A [`Fiber`] is an asymmetric, stackful coroutine. [`Fiber::resume`] runs it on the calling thread until it calls
//! [`suspend`], from however deep in its calls, or ends. Fibers nest: a fiber may resume another, to any depth, and
//! [`suspend`] always returns to whoever resumed. [`Coroutine`] is its typed sibling, which passes values in and out and
//! is an [`Iterator`]. [`fiber_local!`](crate::fiber_local) is `thread_local!` for fibers.
//!
//! ```
//! use fibrant::fiber::{self, Fiber, State};
//!
//! let fiber = Fiber::new(|| {
//!     println!("one");
//!     fiber::suspend();
//!     println!("three");
//! });
//! assert_eq!(fiber.resume().unwrap(), State::Ready);
//! println!("two");
//! assert_eq!(fiber.resume().unwrap(), State::Term);
//! ```

// Inside: this module calls `context` for stacks and switches and writes to `stats`.
//
// - `hand`: Fiber, the owner's side: when a stack is taken, what may be resumed, how a fiber is dropped;
// - `block`: the control block at the top of each fiber's stack, its life told in words; entry, suspension, end;
// - `thread`: what a thread knows of its fibers;
// - `local`: fiber-locals; `coroutine`: values in and out; `overflow`: the message when a stack is too small;
// - `status`: where a hand-driven fiber is in its life; `reason`: what a fiber waits for; `error`: what can go wrong;
// - `routine`: coroutines in libco's manner, for the crate fibrant-c; `shared`: hand-driven fibers on
//   shared stacks; `ferry`: what moves fibers in and out of those;
// - `task`: the head of a scheduled fiber, and `wait`, the word by which its waits begin and end; `handle`: who a fiber is;
// - `contain`: where a panic of the user's code ends that is nobody's.

mod block;
mod contain;
mod coroutine;
mod error;
mod ferry;
mod hand;
mod handle;
mod local;
mod overflow;
mod reason;
pub(crate) mod routine;
mod shared;
pub(crate) mod spare;
mod status;
mod task;
mod thread;
mod wait;

pub use coroutine::{Coroutine, Progress, Yielder};
pub use error::{ResetError, ResumeError};
pub use hand::Fiber;
pub use handle::Handle;
pub use local::{AccessError, FiberLocal};
pub(crate) use reason::Subject;
pub use reason::WaitReason;
pub use shared::SharedStacks;
pub use status::State;

pub(crate) use crate::context::stack::rounded as rounded_stack_size;
pub(crate) use block::{Block, Payload};
pub(crate) use contain::contain;
pub(crate) use hand::default_stack_size;
pub(crate) use task::{Kind, Task, TaskRef};
pub(crate) use thread::{Scheduler, Thread};
pub(crate) use wait::{NoWait, Outcome, WaitKind, WaitNumber};

use crate::{context, primitives, stats};
use std::io;
use std::time::Duration;

/// An error if fibers cannot have thread-locals of their own here, with the reason and the way out.
pub(crate) fn can_be_isolated() -> io::Result<()> {
    match context::tls::layout() {
        Ok(_) => Ok(()),
        Err(reason) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{reason}. Builder::light makes fibers that share their worker's; mind what it asks for"),
        )),
    }
}

/// The stack size of a fiber for which none is named, in bytes: 256 KiB. `FIBRANT=stack=512k` in the environment changes
/// it for one run of a program.
///
/// ```
/// assert_eq!(fibrant::fiber::DEFAULT_STACK_SIZE, 256 * 1024);
/// ```
pub const DEFAULT_STACK_SIZE: usize = context::stack::DEFAULT_SIZE;

/// The smallest stack size, in bytes: 16 KiB. Who asks for less gets this. It is enough for a panic and its message; one
/// that prints a backtrace (`RUST_BACKTRACE=1`) needs about 24 KiB.
///
/// ```
/// use fibrant::fiber::{Fiber, MIN_STACK_SIZE};
///
/// let fiber = Fiber::with_stack_size(1, || {});
/// assert!(fiber.stack_size() >= MIN_STACK_SIZE);
/// ```
pub const MIN_STACK_SIZE: usize = context::stack::MIN_SIZE;

/// Suspends the fiber that calls it: the [`resume`](Fiber::resume) that runs it returns, and this call returns when the
/// fiber is resumed next.
///
/// If the fiber is dropped instead, this call unwinds, so that the destructors of everything the fiber holds run. The
/// unwinding is a panic without a message: [`catch_unwind`](std::panic::catch_unwind) sees it and should let it go on.
///
/// # Panics
///
/// Outside a [`Fiber`].
///
/// ```
/// use fibrant::fiber::{self, Fiber};
///
/// fn deep(levels: u32) {
///     if levels > 0 { deep(levels - 1) } else { fiber::suspend() }
/// }
/// let fiber = Fiber::new(|| deep(100));
/// fiber.resume().unwrap(); // returns from the hundredth level of calls
/// fiber.resume().unwrap(); // and goes on there
/// ```
#[inline]
pub fn suspend() {
    // No reference to the thread's state is kept across the suspension: see `Thread::with`.
    match Thread::with(Thread::current) {
        // SAFETY: the thread's current fiber is the one whose code runs now: this one's. Its block lives as long as its
        // stack is in use, which it is while this call stands on it.
        Some(block) if !unsafe { block.as_ref() }.is_scheduled => unsafe { block.as_ref() }.suspend(),
        _ => suspended_outside(),
    }
}

#[cold]
fn suspended_outside() -> ! {
    panic!(
        "fiber::suspend() was called outside a Fiber: only code that Fiber::resume runs can suspend itself"
    )
}

/// The fiber that calls it, or `None` outside fibers.
///
/// ```
/// use fibrant::fiber::{self, Fiber};
///
/// assert!(fiber::current().is_none());
/// let fiber = Fiber::new(|| {
///     let me = fiber::current().unwrap();
///     assert_eq!(me.name(), Some("worker"));
/// })
/// .named("worker");
/// fiber.resume().unwrap();
/// ```
pub fn current() -> Option<Handle> {
    Thread::with(|thread| {
        // SAFETY: the scheduled fiber that runs here is alive while it does.
        let task = thread.task().map(|task| unsafe { TaskRef::share(task) });
        match thread.current() {
            // SAFETY: as in `suspend`: the current fiber's block is in use while its code runs.
            Some(block) => Some(unsafe { block.as_ref() }.identity.handle(task)),
            None => task.map(Handle::of_task),
        }
    })
}

/// Waits until somebody calls [`Handle::unpark`] on the fiber that calls this, or returns at once if somebody has since
/// its last park. Like [`std::thread::park`], and on a thread that runs no fibers it is that. A cancelled fiber unwinds.
///
/// ```
/// use fibrant::fiber;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static READY: AtomicBool = AtomicBool::new(false);
/// fibrant::run(|| {
///     let waiter = fibrant::spawn(|| {
///         while !READY.load(Ordering::Acquire) {
///             fiber::park();
///         }
///     });
///     READY.store(true, Ordering::Release);
///     waiter.fiber().unpark();
///     waiter.join().unwrap();
/// });
/// ```
pub fn park() {
    match Thread::with(Thread::scheduler) {
        // SAFETY: it is this thread's worker, which is valid while it is set; the fiber that calls this runs on it.
        Some(scheduler) => unsafe { scheduler.as_ref() }.park(None),
        None => std::thread::park(),
    }
}

/// Like [`park`], for at most `timeout`. As with [`std::thread::park_timeout`], the caller finds out by itself which it was.
///
/// ```
/// use fibrant::fiber;
/// use std::time::{Duration, Instant};
///
/// fibrant::run(|| {
///     let start = Instant::now();
///     fiber::park_timeout(Duration::from_millis(5)); // nobody unparks it
///     assert!(start.elapsed() >= Duration::from_millis(5));
/// });
/// ```
pub fn park_timeout(timeout: Duration) {
    match Thread::with(Thread::scheduler) {
        // SAFETY: as in `park`.
        Some(scheduler) => unsafe { scheduler.as_ref() }.park(Some(timeout)),
        None => std::thread::park_timeout(timeout),
    }
}

/// How many fibers there are in the process that have not ended: made, perhaps started, neither returned nor dropped.
/// Abandoned ones (see [`Fiber`]) are not among them; [`stats::process`] counts those.
///
/// ```
/// use fibrant::fiber::{Fiber, live_count};
///
/// let before = live_count();
/// let fiber = Fiber::new(|| {});
/// assert_eq!(live_count(), before + 1);
/// fiber.resume().unwrap();
/// assert_eq!(live_count(), before);
/// ```
pub fn live_count() -> usize {
    let stats = stats::process();
    let gone = stats.fibers_ended + stats.fibers_abandoned;
    // Fibers of other threads may end between two reads, hence not a plain subtraction.
    usize::try_from(stats.fibers_created.saturating_sub(gone)).unwrap_or(usize::MAX)
}

/// Gives the memory of idle stacks back to the system and returns how many stacks that were.
///
/// An ended fiber's stack keeps its memory so that the next fiber starts fast; when very many are idle the oldest are
/// given back by themselves. This does it for all of them, except for the few that other threads keep at hand.
///
/// ```
/// use fibrant::fiber::{self, Fiber};
///
/// Fiber::new(|| {}).resume().unwrap(); // dropped, so its stack is idle
/// assert!(fiber::trim_stacks() >= 1);
/// ```
pub fn trim_stacks() -> usize {
    primitives::without_waiting(|| {
        Thread::with(|thread| thread.stacks.flush());
        context::stack::trim()
    })
}
