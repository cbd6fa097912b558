//! The monotonic clock, as nanoseconds in one number. A leaf: schedulers, timers and waits reckon in it.
//!
//! A step of the wall clock changes nothing here. `u64::MAX`, 584 years after boot, stands for never.

use std::time::{Duration, Instant};

/// A moment that does not come.
pub(crate) const NEVER: u64 = u64::MAX;

/// The present moment.
#[inline]
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// How long this thread has had a processor. To ask takes a system call.
pub(crate) fn thread_cpu_time() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a local variable. These clocks exist everywhere, so it cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The moment that lies this far ahead; never, if that is centuries.
#[inline]
pub(crate) fn after(duration: Duration) -> u64 {
    now().saturating_add(nanoseconds(duration))
}

/// A duration in nanoseconds, at most [`NEVER`].
#[inline]
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// A moment in std's terms.
pub(crate) fn instant(moment: u64) -> Instant {
    let (now, instant) = (now(), Instant::now());
    if moment >= now {
        instant + Duration::from_nanos(moment - now)
    } else {
        instant
            .checked_sub(Duration::from_nanos(now - moment))
            .unwrap_or(instant)
    }
}
