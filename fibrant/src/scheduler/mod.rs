//! The scheduler: workers that run fibers, and everything that makes a fiber wait or go on.
//!
//! The runtime, the I/O manager and the timers call it; it calls [`fiber`](crate::fiber) and [`context`](crate::context). The
//! files, from the outside in:
//!
//! - [`join`], [`scope`], [`cancel`], [`dump`]: what users see of it;
//! - [`caller`]: threads of the user's that are workers for a while, in whose [`hands`] they are; [`blocking`]: real threads for what blocks;
//! - [`crew`]: what the workers of a runtime share; [`worker`]: one of them, and whose turn it is; [`turn`]: switching, and
//!   the one function that waits;
//! - [`desk`]: the part of a worker that others may touch: its [`inbox`] and its [`roster`], behind a [`lock`]; [`queue`]: its
//!   run queue; [`vigil`]: whether it watches the inbox before it sleeps;
//! - [`scheduled`]: a fiber as it is kept here; [`completion`] and [`waker`]: how its end is announced;
//! - [`driver`]: what a worker sleeps in, and deadlines, as the layer above provides them;
//! - [`event_loop`]: a thread's own worker, whose fibers are coroutines that are resumed by hand;
//! - [`deadlock`] and [`monitor`]: help for those who ask why nothing moves.
//!
//! # How a fiber waits
//!
//! One protocol for everything: the fiber begins a wait, which has a number, tells somebody that number, and gives way. Events,
//! deadlines, unparks and cancels race to claim the wait; who wins puts the fiber into the queue of the one worker that it
//! belongs to, by way of the inbox if that is another thread's. Only that worker ever switches to it: a fiber cannot be resumed
//! before it has left its stack, because the worker that would do it is the one that it runs on.

mod blocking;
mod caller;
mod cancel;
mod completion;
mod crew;
mod deadlock;
mod desk;
mod driver;
mod dump;
pub(crate) mod event_loop;
mod group;
mod hands;
mod inbox;
mod join;
mod lock;
mod monitor;
mod queue;
mod roster;
mod scheduled;
mod scope;
mod turn;
mod vigil;
mod waker;
mod worker;

#[cfg(feature = "c-api")]
pub use cancel::is_time_up;
pub use cancel::{Cancelled, DeferCancel, Elapsed, defer_cancel, timeout};
pub use dump::{Dump, FiberDump, FiberState, WorkerDump};
pub use join::JoinHandle;

pub(crate) use blocking::{offload, offload_alone, submit};
pub(crate) use caller::Caller;
pub(crate) use cancel::Interruption;
pub(crate) use crew::{Crew, FOREIGN, Phase};
pub(crate) use desk::Desk;
pub(crate) use driver::{Armed, Driver, Purpose, Timed};
pub(crate) use group::{Group, Locals};
pub(crate) use lock::{Guard, Lock};
pub(crate) use scheduled::{InTable, Making, Scheduled};
pub(crate) use scope::ScopeData;
pub(crate) use turn::{WaitEnd, Waiting, expire_wait, prefetch_sleeper, prefetch_stack_of_sleeper};
pub(crate) use worker::Worker;

use crate::clock;
use crate::fiber::WaitReason;
use std::time::Duration;

/// Lets every other fiber of this worker that can run have a turn first. On a thread that runs no fibers it is
/// [`std::thread::yield_now`].
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// fibrant::run(|| {
///     let done = Rc::new(Cell::new(false));
///     let other = fibrant::spawn_local({
///         let done = Rc::clone(&done);
///         move || done.set(true)
///     });
///     while !done.get() {
///         fibrant::yield_now();
///     }
///     other.join().unwrap();
/// });
/// ```
#[inline]
pub fn yield_now() {
    match Worker::current() {
        Some(worker) if worker.fiber().is_some() => worker.yield_now(),
        _ => std::thread::yield_now(),
    }
}

/// Sleeps at least that long, and lets other fibers run. On a thread that runs no fibers it is [`std::thread::sleep`]. A
/// cancelled fiber unwinds.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// fibrant::run(|| {
///     let start = Instant::now();
///     let sleepers: Vec<_> = (0..1000)
///         .map(|_| fibrant::spawn(|| fibrant::sleep(Duration::from_millis(20))))
///         .collect();
///     sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
///     assert!(start.elapsed() >= Duration::from_millis(20)); // not 1,000 times that
/// });
/// ```
pub fn sleep(duration: Duration) {
    match Worker::current() {
        Some(worker) if worker.fiber().is_some() => {
            let waiting = Waiting {
                reason: WaitReason::Sleeping,
                park: false,
                interruptible: true,
                deadline: clock::after(duration),
            };
            if let WaitEnd::Interrupted(interruption) = worker.wait(waiting, |_, _| {}) {
                interruption.unwind();
            }
        }
        _ => std::thread::sleep(duration),
    }
}

/// Parks the fiber that runs on this worker.
fn park(worker: &Worker, timeout: Option<Duration>) {
    let waiting = Waiting {
        reason: WaitReason::Parked,
        park: true,
        interruptible: true,
        deadline: timeout.map_or(clock::NEVER, clock::after),
    };
    if let WaitEnd::Interrupted(interruption) = worker.wait(waiting, |_, _| {}) {
        interruption.unwind();
    }
}

/// Forgets what belongs to the process that this one was forked from.
pub(crate) fn forget_parents() {
    monitor::forget_parents();
}
