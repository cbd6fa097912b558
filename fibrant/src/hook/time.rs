//! Sleeping and yielding.
//!
//! A sleep of a fiber ends at its deadline and not before: signals do not end it, so there is never a rest to report, and it is no
//! place where a cancelled fiber unwinds.

use super::retry::{Answer, Caller};
use crate::clock;
use crate::primitives::yield_thread;
use crate::sys::syscall;
use libc::{c_int, c_uint, clockid_t, timespec};
use std::time::Duration;

/// How long a sleep until some time of a clock that can be set lasts at most before the clock is looked at again.
const LOOK_AT_CLOCK_AFTER: u64 = 1_000_000_000;

/// The nanoseconds of a time, if it is one that the kernel takes.
pub(super) fn nanoseconds(time: &timespec) -> Result<u64, i32> {
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(libc::EINVAL);
    }
    Ok((time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec as u64))
}

pub(super) unsafe fn sleep(caller: Caller, seconds: c_uint) -> Answer {
    caller.sleep_until(clock::after(Duration::from_secs(seconds.into())));
    Ok(0)
}

pub(super) unsafe fn usleep(caller: Caller, microseconds: c_uint) -> Answer {
    caller.sleep_until(clock::after(Duration::from_micros(microseconds.into())));
    Ok(0)
}

/// The kernel's sleep, for a program that has no other.
pub(super) unsafe fn sleep_in_kernel(microseconds: u64) -> isize {
    let time = timespec {
        tv_sec: (microseconds / 1_000_000) as i64,
        tv_nsec: (microseconds % 1_000_000 * 1000) as i64,
    };
    // SAFETY: reads a local variable.
    unsafe { syscall!(SYS_nanosleep, &raw const time, 0) }
}

/// # Safety
/// As `nanosleep`.
pub(super) unsafe fn nanosleep(caller: Caller, time: *const timespec, _rest: *mut timespec) -> Answer {
    // SAFETY: null or a time, as the caller of the hook promises.
    let time = unsafe { time.as_ref() }.ok_or(libc::EFAULT)?;
    caller.sleep_until(clock::now().saturating_add(nanoseconds(time)?));
    Ok(0)
}

/// Gives the error's number, as the function does.
///
/// # Safety
/// As `clock_nanosleep`.
pub(super) unsafe fn clock_nanosleep(
    caller: Caller,
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
) -> Answer {
    let is_settable = match clock {
        libc::CLOCK_MONOTONIC => false,
        libc::CLOCK_REALTIME | libc::CLOCK_TAI | libc::CLOCK_BOOTTIME => true,
        // The C library says this, not the kernel.
        libc::CLOCK_THREAD_CPUTIME_ID => return Ok(libc::EINVAL as isize),
        _ => {
            // Clocks that do not tell the time of day or since the start, or do not exist: rare, and the kernel's business.
            // SAFETY: the arguments are the caller's.
            let result = unsafe { syscall!(SYS_clock_nanosleep, clock, flags, time, rest) };
            return Ok(-result);
        }
    };
    // SAFETY: null or a time, as the caller of the hook promises.
    let nanoseconds = match unsafe { time.as_ref() }.ok_or(libc::EFAULT).and_then(nanoseconds) {
        Ok(nanoseconds) => nanoseconds,
        Err(error) => return Ok(error as isize),
    };
    if flags & libc::TIMER_ABSTIME == 0 {
        caller.sleep_until(clock::now().saturating_add(nanoseconds));
    } else if !is_settable {
        caller.sleep_until(nanoseconds);
    } else {
        loop {
            let rest = nanoseconds.saturating_sub(reading(clock));
            if rest == 0 {
                break;
            }
            caller.sleep_until(clock::now().saturating_add(rest.min(LOOK_AT_CLOCK_AFTER)));
        }
    }
    Ok(0)
}

/// What a clock says.
pub(super) fn reading(clock: clockid_t) -> u64 {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a local variable.
    unsafe { libc::clock_gettime(clock, &mut time) };
    nanoseconds(&time).unwrap_or(0)
}

pub(super) unsafe fn sched_yield(caller: Caller) -> Answer {
    give_way(caller);
    Ok(0)
}

/// Lets other fibers run. If there are none, other threads: whoever calls this in a loop waits for one of them, perhaps, and that may need
/// this processor.
fn give_way(caller: Caller) {
    if caller.worker.has_nobody_else_ready() {
        yield_thread();
    }
    crate::scheduler::yield_now();
}

/// # Safety
/// As `thrd_sleep`.
pub(super) unsafe fn thrd_sleep(caller: Caller, time: *const timespec, _rest: *mut timespec) -> Answer {
    // SAFETY: null or a time, as the caller of the hook promises.
    match unsafe { time.as_ref() }.ok_or(libc::EFAULT).and_then(nanoseconds) {
        Ok(nanoseconds) => caller.sleep_until(clock::now().saturating_add(nanoseconds)),
        Err(_) => return Ok(-2),
    }
    Ok(0)
}

/// Returns nothing, so that nothing is to be told.
pub(super) unsafe fn thrd_yield(caller: Caller) -> Answer {
    give_way(caller);
    Ok(0)
}
