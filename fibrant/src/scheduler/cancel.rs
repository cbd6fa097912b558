//! Interruption: cancelling a fiber, and the deadline of [`timeout`].
//!
//! Both end a wait of the fiber's from outside, and then the fiber unwinds from that wait, so that its destructors run. Only
//! waits in fibrant's own functions do that; it is a panic without a message, with a payload of its own. It does not happen
//! while the fiber is panicking (a second panic would abort), in destructors of fiber-locals, under a [`DeferCancel`]
//! guard, or in programs built with `panic = "abort"`, where there is no unwinding.

use super::scheduled::Scheduled;
use super::worker::Worker;
use crate::clock;
use crate::fiber::{TaskRef, Thread};
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;
use std::time::Duration;

/// What [`JoinHandle::join`](crate::JoinHandle::join) gives as its `Err` for a fiber that was cancelled.
///
/// ```
/// fibrant::run(|| {
///     let fiber = fibrant::spawn(fibrant::fiber::park);
///     fiber.cancel();
///     let error = fiber.join().unwrap_err();
///     assert!(error.is::<fibrant::Cancelled>());
/// });
/// ```
#[derive(Debug)]
pub struct Cancelled(());

impl Cancelled {
    pub(super) fn new() -> Cancelled {
        Cancelled(())
    }
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fiber was cancelled")
    }
}

impl Error for Cancelled {}

/// The error of [`timeout`]: the time was up before the function had returned.
///
/// ```
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let result = fibrant::timeout(Duration::from_millis(1), || fibrant::sleep(Duration::from_secs(60)));
///     assert_eq!(result.unwrap_err().to_string(), "the time was up");
/// });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time was up")
    }
}

impl Error for Elapsed {}

/// The payload that unwinds to a [`timeout`].
struct TimeUp;

/// Whether what a wait has unwound with says that the time of a [`timeout`] is up.
#[cfg(feature = "c-api")]
#[doc(hidden)]
pub fn is_time_up(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<TimeUp>()
}

/// Why a wait was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// The fiber was cancelled.
    Cancel,
    /// The time of a `timeout` around the wait is up.
    TimeUp,
}

impl Interruption {
    /// Unwinds the fiber.
    #[cold]
    pub(crate) fn unwind(self) -> ! {
        // Not panic!: nothing went wrong, so nothing is printed.
        match self {
            Interruption::Cancel => panic::resume_unwind(Box::new(Cancelled(()))),
            Interruption::TimeUp => panic::resume_unwind(Box::new(TimeUp)),
        }
    }
}

impl Worker {
    /// Whether a hooked call of the fiber that runs here may end because the fiber was cancelled, or its time is up: that happens
    /// once.
    pub(crate) fn hears_interruption(&self) -> bool {
        self.fiber().is_some_and(|fiber| fiber.heard.get().is_none())
    }

    /// Whether the fiber that runs here has been cancelled, or runs in a [`timeout`].
    #[inline]
    pub(crate) fn may_be_interrupted(&self) -> bool {
        self.fiber()
            .is_some_and(|fiber| fiber.deadline.get() != clock::NEVER || fiber.task.wait.is_cancelled())
    }

    /// Notes that a hooked call has ended because of this.
    pub(crate) fn note_heard(&self, interruption: Interruption) {
        if let Some(fiber) = self.fiber() {
            fiber.heard.set(Some(interruption));
        }
    }
}

impl Scheduled {
    /// Whether a wait of this fiber, which runs on that thread, may be interrupted now.
    #[inline]
    pub(super) fn can_be_interrupted(&self, thread: &Thread) -> bool {
        !cfg!(panic = "abort")
            && self.deferrals.get() == 0
            && !std::thread::panicking()
            // SAFETY: the current fiber's block is in use while its code runs.
            && !thread.current().is_some_and(|block| unsafe { block.as_ref() }.is_ending_locals())
    }

    /// Puts off its cancel once more.
    pub(super) fn defer_cancel(&self) {
        // Guards can be forgotten, but not so many of them: if the count began anew, what borrows would not be waited for.
        let Some(more) = self.deferrals.get().checked_add(1) else {
            std::process::abort();
        };
        self.deferrals.set(more);
    }
}

/// Runs `f` with a time limit: when it is up, the fiber's wait in a fibrant function (`sleep`, `park`, `join`, `io::wait`, ...)
/// inside `f` unwinds, and this returns an error. All waits inside `f` share the one deadline; timeouts nest, and the earliest
/// counts.
///
/// A function that does not wait is not interrupted: if it returns late, its value is returned all the same. Outside a
/// runtime `f` simply runs. Destructors run as in a panic; see [`JoinHandle::cancel`](crate::JoinHandle::cancel) for when
/// unwinding is put off.
///
/// # Errors
///
/// If the time was up.
///
/// ```
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     assert_eq!(fibrant::timeout(Duration::from_secs(60), || 1 + 1), Ok(2));
///     let slow = || (0..60).for_each(|_| fibrant::sleep(Duration::from_secs(1)));
///     assert!(fibrant::timeout(Duration::from_millis(5), slow).is_err());
/// });
/// ```
pub fn timeout<T>(duration: Duration, f: impl FnOnce() -> T) -> Result<T, Elapsed> {
    let Some(fiber) = Worker::current().and_then(Worker::fiber) else {
        return Ok(f());
    };
    // Kept for as long as this takes: in a fiber that is driven by hand, `f` may be suspended, and go on when this fiber has ended.
    // SAFETY: it runs, so it is alive.
    let task = unsafe { TaskRef::share(NonNull::from(&fiber.task)) };
    let fiber = Scheduled::of(&task);
    let outer = fiber.deadline.get();
    let own = clock::after(duration);
    fiber.deadline.set(own.min(outer));
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    fiber.deadline.set(outer);
    if own < outer && fiber.heard.get() == Some(Interruption::TimeUp) {
        fiber.heard.set(None); // the time that was up was this one
    }
    match result {
        Ok(value) => Ok(value),
        // If an outer one is earlier, its time was up, too, and it goes on there.
        Err(payload) if payload.is::<TimeUp>() && own < outer => Err(Elapsed(())),
        Err(payload) => panic::resume_unwind(payload),
    }
}

/// Puts off [`cancel`](crate::JoinHandle::cancel) and the end of a [`timeout`] for the fiber that calls it, until the guard is
/// dropped: its waits go on until what they wait for happens. The next wait after that unwinds.
///
/// ```
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let fiber = fibrant::spawn(|| {
///         let guard = fibrant::defer_cancel();
///         fibrant::sleep(Duration::from_millis(5)); // is slept to its end
///         println!("the transaction is complete");
///         drop(guard);
///         fibrant::sleep(Duration::from_secs(60)); // unwinds at once
///     });
///     fibrant::sleep(Duration::from_millis(1));
///     fiber.cancel();
///     assert!(fiber.join().is_err());
/// });
/// ```
#[must_use = "it is put off only as long as the guard lives"]
pub fn defer_cancel() -> DeferCancel {
    let fiber = Worker::current().and_then(Worker::fiber).map(|fiber| {
        fiber.defer_cancel();
        // SAFETY: it runs, so it is alive.
        unsafe { TaskRef::share(NonNull::from(&fiber.task)) }
    });
    DeferCancel {
        fiber,
        _thread: PhantomData,
    }
}

/// Puts off cancelling while it lives: see [`defer_cancel`].
///
/// ```compile_fail,E0277
/// let guard = fibrant::defer_cancel();
/// std::thread::spawn(move || drop(guard)); // it belongs to its fiber
/// ```
#[derive(Debug)]
pub struct DeferCancel {
    /// The fiber that is protected; none outside a runtime.
    fiber: Option<TaskRef>,
    /// Neither Send nor Sync: the fiber's count belongs to its thread.
    _thread: PhantomData<*mut ()>,
}

impl Drop for DeferCancel {
    fn drop(&mut self) {
        if let Some(task) = &self.fiber {
            let fiber = Scheduled::of(task);
            fiber.deferrals.set(fiber.deferrals.get() - 1);
        }
    }
}
