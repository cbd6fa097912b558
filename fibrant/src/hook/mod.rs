//! The hooks: ordinary blocking code runs in fibers, unchanged.
//!
//! In a fiber of a runtime the C library's blocking calls make the fiber wait, not its worker: what std, or a library written in
//! C, calls a read, a connect, a sleep or a lock is tried without blocking, and if it would block another fiber runs meanwhile.
//! Results, `errno`, partial transfers and timeouts are those of the blocking call in a thread. Nobody's flags are changed.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::os::unix::net::UnixStream;
//! use std::thread;
//! use std::time::Duration;
//!
//! fibrant::run(|| {
//!     let (mut ours, mut theirs) = UnixStream::pair().unwrap();
//!     let reader = fibrant::spawn(move || {
//!         let mut word = [0; 5];
//!         ours.read_exact(&mut word).unwrap(); // the fiber waits
//!         word
//!     });
//!     thread::sleep(Duration::from_millis(1)); // and so does this one
//!     theirs.write_all(b"hello").unwrap();
//!     assert_eq!(&reader.join().unwrap(), b"hello");
//! });
//! ```
//!
//! They are on in fibers and have no effect elsewhere. [`set_enabled`] and [`disabled`] turn them off for a fiber,
//! [`Builder::hooks`](crate::runtime::Builder::hooks) for a runtime, and `FIBRANT=hooks=off` for the process.

// Inside: `table` has every name once; `real` finds the functions behind them; `retry` is the one loop that waits; the others
// emulate: `transfer` (bytes; `stream`: from a TCP stream, with the fewest calls), `batch` (several messages), `copy` (from one descriptor to another), `connection` (with `ring`, which
// accepts without blocking), `readiness`, `descriptor` (who closes tells those who wait), `time`, `file`, `names`, `child`, `signal`
// (which also knows whether a handler runs), `thread` (what takes a fiber for a thread), `raw` (calls by number), `futex`, and the C
// library's locks: `lock`, `condition`, `barrier` (and what is done once), `c11`, with `layout`, which knows what they look like. The
// module calls `io`, `sync` and `scheduler` to wait, and `sys` for the kernel.

mod barrier;
mod batch;
mod c11;
mod child;
mod condition;
mod connection;
mod copy;
mod descriptor;
mod file;
mod futex;
mod layout;
mod lock;
mod names;
mod raw;
mod readiness;
mod real;
mod retry;
mod ring;
mod signal;
mod stream;
mod table;
mod thread;
mod time;
mod transfer;

pub(crate) use thread::prepare;

use crate::clock;
use crate::scheduler::{Crew, Worker};
use crate::stats::{self, HookStats};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Whether blocking calls made right here are hooked: in a fiber, unless they were turned off for it, its runtime or the process.
///
/// ```
/// assert!(!fibrant::hook::is_enabled()); // no fiber
/// fibrant::run(|| assert!(fibrant::hook::is_enabled()));
/// ```
pub fn is_enabled() -> bool {
    Worker::of_hooked_fiber().is_some()
}

/// Forgets what belongs to the process that this one was forked from.
pub(crate) fn forget_parents() {
    ring::forget_parents();
    signal::forget_parents();
}

/// The names of all functions that are hooked, other names for the same function included.
///
/// ```
/// assert!(fibrant::hook::names().any(|name| name == "read"));
/// assert!(!fibrant::hook::names().any(|name| name == "malloc"));
/// ```
pub fn names() -> impl Iterator<Item = &'static str> {
    let tables = [table::SYMBOLS, table::CHECKED, table::OTHERS, thread::NAMES];
    tables.into_iter().flatten().copied()
}

/// What was counted of each function that fibers have called, in the whole process.
///
/// ```
/// fibrant::run(|| std::thread::yield_now());
/// assert!(fibrant::hook::stats().iter().any(|one| one.name == "sched_yield" && one.calls >= 1));
/// ```
pub fn stats() -> Vec<HookStats> {
    stats::hook_figures().named(table::NAMES)
}

/// The same, of a runtime.
pub(crate) fn stats_of(crew: &Crew) -> Vec<HookStats> {
    crew.hook_figures().named(table::NAMES)
}

/// Turns the hooks on or off for the fiber that calls this. In a fiber whose hooks are off a blocking call blocks the worker. On a
/// thread that runs no fibers there is nothing to turn on or off.
///
/// ```
/// fibrant::run(|| {
///     fibrant::hook::set_enabled(false);
///     assert!(!fibrant::hook::is_enabled());
///     fibrant::hook::set_enabled(true);
/// });
/// ```
pub fn set_enabled(yes: bool) {
    if let Some(worker) = Worker::current() {
        worker.set_hooked(yes);
    }
}

/// Runs `f` with the hooks off, for what must not let other fibers run.
///
/// ```
/// fibrant::run(|| {
///     fibrant::hook::disabled(|| assert!(!fibrant::hook::is_enabled()));
///     assert!(fibrant::hook::is_enabled());
/// });
/// ```
pub fn disabled<T>(f: impl FnOnce() -> T) -> T {
    /// Puts back what was, even if `f` panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            set_enabled(self.0);
        }
    }
    let were_on = Worker::current().is_some_and(|worker| worker.set_hooked(false));
    let _restore = Restore(were_on);
    f()
}

/// Limits how long a hooked `connect` may take, in the whole process: then it fails with `ETIMEDOUT`. A socket's own
/// `SO_SNDTIMEO` counts if it is shorter. Without a limit, which is the default, the kernel decides.
///
/// ```
/// use std::time::Duration;
///
/// fibrant::hook::set_connect_timeout(Some(Duration::from_secs(5)));
/// # fibrant::hook::set_connect_timeout(None);
/// ```
pub fn set_connect_timeout(timeout: Option<Duration>) {
    let nanoseconds = timeout.map_or(clock::NEVER, clock::nanoseconds);
    connection::CONNECT_TIMEOUT.store(nanoseconds, Relaxed);
}
