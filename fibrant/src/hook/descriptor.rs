//! Descriptors: what closes or replaces one must tell those who wait for it.
//!
//! This runs on every thread, hooked or not: a descriptor is the process's. What is known of one is in [`io`]'s table;
//! it is forgotten, and who waits is told, before the kernel closes the number, because at once it may be another file's.

use super::retry::{Answer, answer};
use crate::io;
use crate::sys::{self, syscall};
use libc::{c_int, c_uint};

/// # Safety
/// As `close`.
pub(super) unsafe fn close(fd: c_int) -> Answer {
    // SAFETY: the caller's promise.
    answer(io::closing(fd..=fd, || unsafe { sys::close(fd) }))
}

/// # Safety
/// As `dup2`.
pub(super) unsafe fn dup2(old: c_int, new: c_int) -> Answer {
    if old == new {
        // It only says whether it is open.
        // SAFETY: asks for a number.
        return answer(unsafe { syscall!(SYS_fcntl, old, libc::F_GETFD) }).map(|_| new as isize);
    }
    // SAFETY: the caller's promise.
    unsafe { dup3(old, new, 0) }
}

/// # Safety
/// As `dup3`.
pub(super) unsafe fn dup3(old: c_int, new: c_int, flags: c_int) -> Answer {
    // SAFETY: asks for a number.
    let is_open = unsafe { syscall!(SYS_fcntl, old, libc::F_GETFD) } >= 0;
    // SAFETY: the caller's promise.
    let replace = || unsafe { syscall!(SYS_dup3, old, new, flags) };
    answer(if is_open && old != new {
        io::closing(new..=new, replace)
    } else {
        replace() // which fails
    })
}

/// # Safety
/// As `close_range`.
pub(super) unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    let close = || unsafe { syscall!(SYS_close_range, first, last, flags) };
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
        return answer(close());
    }
    let number = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    answer(io::closing(number(first)..=number(last), close))
}

/// # Safety
/// As `setsockopt`.
pub(super) unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const libc::c_void,
    size: libc::socklen_t,
) -> Answer {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        super::transfer::HAS_LOW_WATER_MARKS.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    // SAFETY: the arguments are the caller's.
    answer(unsafe { syscall!(SYS_setsockopt, fd, level, name, value, size) })
}
