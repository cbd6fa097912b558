//! Waiting for a fiber to end.

use super::caller::{Ended, own_worker_of};
use super::scheduled::Scheduled;
use super::turn::{WaitEnd, Waiting};
use super::waker::Waker;
use super::worker::Worker;
use crate::clock;
use crate::fiber::{Handle, Task, TaskRef, WaitNumber, WaitReason};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::Duration;

/// A fiber that somebody may wait for: [`join`](JoinHandle::join) gives what it returned. Dropping it detaches the fiber,
/// which goes on by itself.
///
/// It mirrors [`std::thread::JoinHandle`] and works from fibers and from plain threads.
///
/// ```
/// fibrant::run(|| {
///     let fiber = fibrant::spawn(|| 6 * 7);
///     assert_eq!(fiber.join().unwrap(), 42);
/// });
/// ```
pub struct JoinHandle<T> {
    handle: Handle,
    /// What the fiber returns is reachable through this handle, which is why it is `Send` only if that is.
    _result: PhantomData<T>,
}

// SAFETY: what a shared handle gives access to (the task, whether it has ended) is atomic; the result takes the handle itself.
unsafe impl<T> Sync for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// The handle of a fiber.
    ///
    /// # Safety
    /// The fiber returns a `T`, and this is its only join handle.
    pub(crate) unsafe fn new(task: TaskRef) -> JoinHandle<T> {
        JoinHandle {
            handle: Handle::of_task(task),
            _result: PhantomData,
        }
    }

    fn task(&self) -> &TaskRef {
        self.handle
            .task()
            .expect("a join handle is that of a scheduled fiber")
    }

    fn scheduled(&self) -> &Scheduled {
        Scheduled::of(self.task())
    }

    /// Waits for the fiber to end, and returns what it returned.
    ///
    /// A fiber that joins a child which has not started yet, on its own worker, runs it next.
    ///
    /// # Errors
    ///
    /// What the fiber panicked with, as [`std::thread::JoinHandle::join`] does; [`Cancelled`](crate::Cancelled) if it was
    /// cancelled.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let fiber = fibrant::spawn(|| std::panic::resume_unwind(Box::new("no")));
    ///     let payload = fiber.join().map(|()| ()).unwrap_err();
    ///     assert_eq!(payload.downcast_ref(), Some(&"no"));
    /// });
    /// ```
    pub fn join(self) -> thread::Result<T> {
        self.wait(clock::NEVER);
        self.into_result()
    }

    /// Like [`join`](JoinHandle::join), for somebody whose own things the fiber uses. In a fiber the caller has put off its cancel.
    pub(crate) fn join_to_the_end(self) -> thread::Result<T> {
        self.wait_as(clock::NEVER, true);
        self.into_result()
    }

    /// Like [`join`](JoinHandle::join), for at most `timeout`.
    ///
    /// # Errors
    ///
    /// The handle itself, if the fiber has not ended by then.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// fibrant::run(|| {
    ///     let fiber = fibrant::spawn(fibrant::fiber::park);
    ///     let fiber = fiber.join_timeout(Duration::from_millis(1)).unwrap_err();
    ///     fiber.fiber().unpark();
    ///     fiber.join_timeout(Duration::from_secs(60)).unwrap().unwrap();
    /// });
    /// ```
    pub fn join_timeout(self, timeout: Duration) -> Result<thread::Result<T>, JoinHandle<T>> {
        if !self.wait(clock::after(timeout)) {
            return Err(self);
        }
        Ok(self.into_result())
    }

    /// Waits for the fiber to end, for at most that long, if it is limited, and says whether it has. The handle stays, also if this
    /// unwinds.
    ///
    /// # Safety
    /// Nobody else waits by means of this handle meanwhile.
    #[cfg(feature = "c-api")]
    #[doc(hidden)]
    pub unsafe fn wait_for_end(&self, timeout: Option<Duration>) -> bool {
        self.wait(timeout.map_or(clock::NEVER, clock::after))
    }

    /// Whether the fiber has ended.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let fiber = fibrant::spawn(|| ());
    ///     while !fiber.is_finished() {
    ///         fibrant::yield_now();
    ///     }
    /// });
    /// ```
    pub fn is_finished(&self) -> bool {
        self.scheduled().completion.is_done()
    }

    /// Asks the fiber to end: it unwinds from its present or next wait in a fibrant function (`sleep`, `park`, `join`,
    /// `io::wait`, ...), so that its destructors run, and [`join`](JoinHandle::join) gives [`Cancelled`](crate::Cancelled). One
    /// that has not started never does.
    ///
    /// A fiber that does not wait goes on until it does. The unwinding is put off while the fiber is panicking, in
    /// destructors of fiber-locals, while it waits for the fibers of a [`scope`](crate::scope) (they are cancelled with it),
    /// and under [`defer_cancel`](crate::defer_cancel). [`catch_unwind`](std::panic::catch_unwind) sees it and should let it go on.
    /// In programs built with `panic = "abort"` nothing unwinds, and a fiber that has started is not cancelled.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// fibrant::run(|| {
    ///     let fiber = fibrant::spawn(|| fibrant::sleep(Duration::from_secs(60)));
    ///     fibrant::yield_now();
    ///     fiber.cancel();
    ///     assert!(fiber.join().unwrap_err().is::<fibrant::Cancelled>());
    /// });
    /// ```
    pub fn cancel(&self) {
        self.task().cancel();
    }

    /// The fiber's number: no other fiber of this process has or had it.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let fiber = fibrant::spawn(|| fibrant::fiber::current().unwrap().id());
    ///     let id = fiber.id();
    ///     assert_eq!(fiber.join().unwrap(), id);
    /// });
    /// ```
    pub fn id(&self) -> u64 {
        self.handle.id()
    }

    /// The fiber's name, if it was given one.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let fiber = fibrant::Builder::new().name("parser").spawn(|| ()).unwrap();
    ///     assert_eq!(fiber.name(), Some("parser"));
    /// });
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.handle.name()
    }

    /// The fiber, to [unpark](Handle::unpark) it or to remember who it was.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let fiber = fibrant::spawn(fibrant::fiber::park);
    ///     fiber.fiber().unpark();
    ///     fiber.join().unwrap();
    /// });
    /// ```
    pub fn fiber(&self) -> &Handle {
        &self.handle
    }

    /// What the fiber, which has ended, returned.
    #[inline]
    fn into_result(self) -> thread::Result<T> {
        // SAFETY: it returns a T, has ended, and the result is this handle's.
        let result = unsafe { self.scheduled().take_result() };
        // There is nothing left to detach or drop but the reference to the fiber.
        let this = ManuallyDrop::new(self);
        // SAFETY: it is moved out once, and the rest of the handle has no destructor.
        drop(unsafe { ptr::read(&this.handle) });
        result
    }

    /// Waits for the end, at most until then. Returns whether it has come.
    fn wait(&self, deadline: u64) -> bool {
        self.wait_as(deadline, false)
    }

    /// The same. If it is to be waited for to the end, not even a shutdown ends the wait of a thread that drives the fiber's worker for that.
    fn wait_as(&self, deadline: u64, to_the_end: bool) -> bool {
        let child = self.scheduled();
        if child.completion.is_done() {
            return true;
        }
        match Worker::here() {
            Some(worker) if worker.fiber().is_some() => {
                worker.run_ahead(child);
                if child.completion.is_done() {
                    worker.thread().counters.joins.increment();
                    return true;
                }
                let end = worker.wait(
                    Waiting {
                        reason: WaitReason::Joining { fiber: self.id() },
                        park: false,
                        interruptible: true,
                        deadline,
                    },
                    |task, number| announce(&child.completion, task, number),
                );
                // SAFETY: this handle is the joiner.
                unsafe { child.completion.forget(end == WaitEnd::Woken) };
                if let WaitEnd::Interrupted(interruption) = end {
                    interruption.unwind();
                }
                child.completion.is_done()
            }
            // What runs is a destructor of the user's that the worker itself has called: of a timer's function, for example.
            Some(worker) if worker.alone_can_run(child) => panic!(
                "fiber {} is joined by something that is dropped on its own worker, outside fibers: it would never end",
                self.id()
            ),
            _ => match own_worker_of(child) {
                // The fiber is with a worker that nobody drives unless this thread does.
                Some(caller) => {
                    // Work that a shutdown waits for, as what is given to `run` is: it goes on for a moment when the fiber has ended.
                    caller.crew().note_begun_outside();
                    let entered = caller.try_enter(|| {
                        let _guard = to_the_end.then(super::cancel::defer_cancel);
                        self.wait_as(deadline, to_the_end)
                    });
                    caller.crew().note_ended_outside();
                    // If that was the last of it, nobody else does.
                    caller.give_up();
                    match entered {
                        Ok(has_ended) => has_ended,
                        // Whoever has given it up completes the fiber; or it is another worker's.
                        Err(Ended::TooLate) => wait_on_thread(&child.completion, deadline),
                        Err(ended) => ended.pass_on(caller.runtime()),
                    }
                }
                None => wait_on_thread(&child.completion, deadline),
            },
        }
    }
}

/// Asks to be woken when somebody completes, from a wait that has just begun.
pub(super) fn announce(completion: &super::completion::Completion, task: &Task, number: WaitNumber) {
    let waiter = || Waker::Fiber(NonNull::from(task), number);
    // SAFETY: the caller is the joiner and has no other waiter.
    if !unsafe { completion.wait(waiter()) } {
        // It is done already: the wait ends before it has really begun.
        // SAFETY: the fiber that is about to wait is the one that runs here.
        unsafe { waiter().wake() };
    }
}

/// Blocks a plain thread until the completion, at most until then. Returns whether it has come.
pub(super) fn wait_on_thread(completion: &super::completion::Completion, deadline: u64) -> bool {
    loop {
        // SAFETY: the caller is the joiner, and takes its waiter back each time.
        if !unsafe { completion.wait(Waker::Thread(thread::current())) } {
            return true;
        }
        if deadline == clock::NEVER {
            thread::park();
        } else {
            let rest = deadline.saturating_sub(clock::now());
            if rest > 0 {
                thread::park_timeout(Duration::from_nanos(rest));
            }
        }
        // SAFETY: as above.
        unsafe { completion.forget(false) };
        if completion.is_done() {
            return true;
        }
        if clock::now() >= deadline {
            return false;
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let fiber = self.scheduled();
        // SAFETY: this handle is the joiner, does not wait, and goes away.
        if unsafe { fiber.completion.detach() } {
            // SAFETY: the result is this handle's; if it has been taken, this finds nothing.
            unsafe { fiber.drop_result() };
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("finished", &self.is_finished())
            .finish()
    }
}
