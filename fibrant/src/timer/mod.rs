//! Timers: functions that run later, once or again and again.
//!
//! A timer belongs to the worker that armed it, and its function runs there, as a fiber: it may sleep, spawn and wait like any
//! other. (A guest, see [`Runtime::run`](crate::runtime::Runtime::run), leaves its timers to worker 0.) Deadlines are kept on the
//! monotonic clock, so setting the wall clock changes nothing; a timer never fires early, and late only as far as its worker is
//! busy, or, among thousands of deadlines, as far as it pays to wake for several at once: half a millisecond at most.
//!
//! ```
//! use fibrant::timer;
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! fibrant::run(|| {
//!     let (sender, receiver) = mpsc::channel();
//!     timer::after(Duration::from_millis(5), move || sender.send("rings").unwrap());
//!     fibrant::sleep(Duration::from_millis(50));
//!     assert_eq!(receiver.try_recv(), Ok("rings"));
//! });
//! ```

// Inside: `handle` is the timer itself and its states; `records` is where timers are kept; `wheel` is where deadlines are kept,
// those of sleeps and timeouts, too; `kept` is a worker's share of both, which `io` owns. The module calls `scheduler` to spawn the
// fibers.

mod handle;
mod kept;
mod records;
mod wheel;

pub use handle::Timer;
pub(crate) use handle::expire;
pub(crate) use kept::Kept;
pub(crate) use wheel::NONE;

use crate::clock;
use crate::scheduler::Worker;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// Runs `f` once, after `delay`, as a fiber on this worker. Dropping the [`Timer`] detaches it.
///
/// # Panics
///
/// Outside a runtime: there is no worker to run it.
///
/// ```
/// use fibrant::timer;
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let timer = timer::after(Duration::from_secs(3600), || println!("never printed"));
///     assert!(timer.cancel());
///     assert!(!timer.cancel()); // it was already
/// });
/// ```
#[track_caller]
pub fn after(delay: Duration, f: impl FnOnce() + Send + 'static) -> Timer {
    Timer::once(delay, f)
}

/// Runs `f` again and again, every `period`, as a fiber on this worker, until the timer is cancelled or the runtime is
/// stopped. While one call has not returned, the next is left out: calls do not pile up.
///
/// # Panics
///
/// Outside a runtime; and if `period` is zero.
///
/// ```
/// use fibrant::timer;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// static TICKS: AtomicU32 = AtomicU32::new(0);
/// fibrant::run(|| {
///     let ticker = timer::every(Duration::from_millis(1), || {
///         TICKS.fetch_add(1, Ordering::Relaxed);
///     });
///     while TICKS.load(Ordering::Relaxed) < 3 {
///         fibrant::sleep(Duration::from_millis(1));
///     }
///     assert!(ticker.cancel());
/// });
/// ```
#[track_caller]
pub fn every(period: Duration, mut f: impl FnMut() + Send + 'static) -> Timer {
    assert!(
        !period.is_zero(),
        "a timer cannot repeat every 0 ns: give it a period"
    );
    Timer::repeating(period, move || {
        f();
        true
    })
}

/// Like [`after`], if `condition` is still alive then: it is upgraded before `f` is called and held until it returns.
///
/// # Panics
///
/// Outside a runtime.
///
/// ```
/// use fibrant::timer;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let connection = Arc::new("connection");
///     timer::after_if(Duration::from_millis(1), Arc::downgrade(&connection), || unreachable!());
///     drop(connection);
///     fibrant::sleep(Duration::from_millis(20));
/// });
/// ```
#[track_caller]
pub fn after_if<C>(delay: Duration, condition: Weak<C>, f: impl FnOnce() + Send + 'static) -> Timer
where
    C: ?Sized + Send + Sync + 'static,
{
    after(delay, move || {
        if let Some(_alive) = condition.upgrade() {
            f();
        }
    })
}

/// Like [`every`], as long as `condition` is alive: it is upgraded before each call and held until it returns. Once it is
/// dead the timer ends.
///
/// # Panics
///
/// Outside a runtime; and if `period` is zero.
///
/// ```
/// use fibrant::timer;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let session = Arc::new("session");
///     let heartbeat = timer::every_if(Duration::from_millis(1), Arc::downgrade(&session), || println!("still there"));
///     fibrant::sleep(Duration::from_millis(5));
///     drop(session); // and the heartbeat stops
///     # heartbeat.cancel();
/// });
/// ```
#[track_caller]
pub fn every_if<C>(period: Duration, condition: Weak<C>, mut f: impl FnMut() + Send + 'static) -> Timer
where
    C: ?Sized + Send + Sync + 'static,
{
    assert!(
        !period.is_zero(),
        "a timer cannot repeat every 0 ns: give it a period"
    );
    Timer::repeating(period, move || {
        let alive = condition.upgrade();
        if alive.is_some() {
            f();
        }
        alive.is_some()
    })
}

/// When the next deadline of this worker comes: that of a timer, or of a sleep or other wait. `None` if there is none, and
/// outside a runtime.
///
/// ```
/// use fibrant::timer;
/// use std::time::{Duration, Instant};
///
/// fibrant::run(|| {
///     assert_eq!(timer::next_deadline(), None);
///     let timer = timer::after(Duration::from_secs(60), || ());
///     assert!(timer::next_deadline().unwrap() > Instant::now());
///     timer.cancel();
/// });
/// ```
pub fn next_deadline() -> Option<Instant> {
    Worker::current()?.driver.next_deadline().map(clock::instant)
}

/// Whether any deadline is pending on this worker: see [`next_deadline`].
///
/// ```
/// fibrant::run(|| assert!(!fibrant::timer::has_timers()));
/// ```
pub fn has_timers() -> bool {
    Worker::current().is_some_and(|worker| worker.driver.alarms() > 0)
}
