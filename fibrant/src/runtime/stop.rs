//! Ending a runtime.
//!
//! [`stop`](Runtime::stop) waits until all work is done; [`shutdown`](Runtime::shutdown) waits for a while, then cancels, then
//! gives up. Both make the runtime refuse outside work first. Where the caller's thread is worker 0, it drives it meanwhile.

use super::{FiberDump, Runtime};
use crate::clock;
use crate::fiber::TaskRef;
use crate::scheduler::{Caller, Phase, Worker};
use std::io;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a shutdown waits for fibers that it has cancelled, and then for threads that do not come back.
const GRACE: Duration = Duration::from_secs(1);

/// What a [`shutdown`](Runtime::shutdown) had to do.
///
/// ```
/// use fibrant::runtime::Builder;
/// use std::time::Duration;
///
/// let runtime = Builder::new().workers(1).build().unwrap();
/// let _parked = runtime.spawn(fibrant::fiber::park);
/// let report = runtime.shutdown(Duration::ZERO);
/// assert_eq!(report.cancelled.len(), 1);
/// assert!(report.abandoned.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The fibers that had not ended when the time was up, as they were then, and those that came later. They were cancelled.
    pub cancelled: Vec<FiberDump>,
    /// Those among them that did not end even so: they never run again, and nothing that they hold is dropped. (A function that was
    /// given to [`Runtime::run`] goes on if it can: it is a thread of the program's own.)
    pub abandoned: Vec<FiberDump>,
}

impl Runtime {
    /// Takes no more work from outside, waits until all fibers have ended, all one-shot timers have fired and all event
    /// functions have been called, and ends the threads. Repeating timers end at once. A fiber may still spawn others.
    ///
    /// It waits for ever if a fiber does not end, such as one that accepts connections in an endless loop: cancel that one
    /// first, or use [`shutdown`](Runtime::shutdown). So it does if worker 0 has fibers and belongs to another thread, which does not drive it.
    ///
    /// # Errors
    ///
    /// If it is called from a fiber, which would wait for itself; or in a process that was forked from the one whose runtime it is.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use std::time::Duration;
    ///
    /// static ENDED: AtomicU32 = AtomicU32::new(0);
    /// let runtime = Builder::new().workers(2).build().unwrap();
    /// for _ in 0..100 {
    ///     runtime.spawn(|| {
    ///         fibrant::sleep(Duration::from_millis(1));
    ///         ENDED.fetch_add(1, Ordering::Relaxed);
    ///     });
    /// }
    /// runtime.stop().unwrap();
    /// assert_eq!(ENDED.load(Ordering::Relaxed), 100);
    /// ```
    pub fn stop(&self) -> io::Result<()> {
        if Worker::current().is_some() {
            return Err(io::Error::other(
                "stop was called from a fiber, which would wait for itself: call it from a plain thread",
            ));
        }
        if !self.handle.crew.is_of_this_process() {
            return Err(io::Error::other(crate::scheduler::FOREIGN));
        }
        self.close();
        self.wait_until_over(None);
        self.join_threads(None);
        Ok(())
    }

    /// Takes no more work from outside, waits for at most `patience` until all work is done, then cancels the fibers that are
    /// left, and after another second at most abandons those that do not end. Never hangs, except on a fiber of the calling
    /// thread's own worker that computes without end.
    ///
    /// If worker 0 belongs to another thread ([`use_caller`](super::Builder::use_caller)) that is not in [`run`](Runtime::run) now, nobody lets its
    /// fibers unwind: those that have started, or are bound to it, are abandoned, the others dropped. Whoever joins them gets
    /// [`Cancelled`](crate::Cancelled) all the same.
    ///
    /// On one of the runtime's own workers it cannot wait: it cancels everything and returns, and the workers end by
    /// themselves when all fibers have.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    /// use std::time::Duration;
    ///
    /// let runtime = Builder::new().workers(2).build().unwrap();
    /// let endless = runtime.spawn(|| loop { fibrant::sleep(Duration::from_secs(1)) });
    /// let report = runtime.shutdown(Duration::from_millis(10));
    /// assert_eq!(report.cancelled.len(), 1);
    /// assert!(endless.join().map(|()| ()).unwrap_err().is::<fibrant::Cancelled>());
    /// ```
    pub fn shutdown(&self, patience: Duration) -> Report {
        if !self.handle.crew.is_of_this_process() {
            return Report::default();
        }
        self.close();
        if self.handle.is_inside() {
            return Report {
                cancelled: self.cancel_all(),
                abandoned: Vec::new(),
            };
        }
        let mut report = Report::default();
        if !self.wait_until_over(Some(patience)) {
            report.cancelled = self.cancel_all();
            self.handle.crew.finish_if_drained();
            if !self.wait_until_over(Some(GRACE)) {
                self.handle.crew.finish();
            }
        }
        self.join_threads(Some(GRACE));
        if let Some(caller) = &self.caller {
            caller.give_up();
        }
        // One that was about to start when everybody was cancelled may have been refused as well.
        for late in self.handle.crew.refused() {
            if report.cancelled.iter().all(|fiber| fiber.id != late.id) {
                report.cancelled.push(late);
            }
        }
        // Those that a thread keeps first: when it comes back it notes them among the others.
        report.abandoned = self.handle.crew.kept_by_threads();
        for fiber in self.handle.crew.abandoned() {
            if report.abandoned.iter().all(|other| other.id != fiber.id) {
                report.abandoned.push(fiber);
            }
        }
        report
    }

    fn close(&self) {
        self.handle.crew.close();
        self.handle.crew.finish_if_drained();
    }

    /// Worker 0, if it is the calling thread's to drive.
    fn own_caller(&self) -> Option<&Arc<Caller>> {
        self.caller.as_ref().filter(|caller| caller.claim())
    }

    /// Waits until the crew is over, at most that long; drives worker 0 meanwhile, if it is this thread's. Returns whether it
    /// is.
    fn wait_until_over(&self, patience: Option<Duration>) -> bool {
        let crew = &self.handle.crew;
        match self.own_caller() {
            // A thread that is a worker of another runtime blocks: it cannot be two workers at once.
            Some(caller) if Worker::current().is_none() => {
                let deadline = patience.map_or(clock::NEVER, clock::after);
                caller.drive(deadline, |_| crew.phase() != Phase::Over);
                crew.phase() == Phase::Over
            }
            // A moment that is too far away never comes.
            _ => crew.wait_until_over(patience.and_then(|patience| Instant::now().checked_add(patience))),
        }
    }

    /// Cancels all fibers, and says which.
    fn cancel_all(&self) -> Vec<FiberDump> {
        self.handle.crew.begin_cancelling();
        let fibers = self.handle.dump().fibers;
        let own = crate::fiber::current().map(|fiber| fiber.id());
        self.handle
            .crew
            .tasks(|fiber| Some(fiber.task.id()) != own)
            .iter()
            .for_each(|task: &TaskRef| task.cancel());
        fibers.into_iter().filter(|fiber| Some(fiber.id) != own).collect()
    }

    /// Joins the workers' threads; gives up those that do not come back in time.
    fn join_threads(&self, patience: Option<Duration>) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let deadline = patience.map(|patience| Instant::now() + patience);
        for thread in threads {
            while let Some(deadline) = deadline
                && !thread.is_finished()
                && Instant::now() < deadline
            {
                thread::sleep(Duration::from_micros(200));
            }
            if deadline.is_none() || thread.is_finished() {
                // A worker's own code does not panic; if it did, it has been printed.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.handle.crew.is_of_this_process() {
            // Its threads are the parent's.
            let threads = self.threads.get_mut().map(std::mem::take);
            std::mem::forget((threads, self.caller.take(), Arc::clone(&self.handle.crew)));
            return;
        }
        self.shutdown(Duration::ZERO);
    }
}
