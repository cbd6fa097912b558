//! Descriptors: what closes or replaces one must tell those who wait for it.
//!
//! This runs on every thread, hooked or not: a descriptor is the process's. What is known of one is in [`io`]'s table;
//! it is forgotten, and who waits is told, before the kernel closes the number, because at once it may be another file's.

use super::connection::try_again;
use super::real::Real;
use super::retry::{Answer, Caller, answer, would_block};
use super::table::Hook;
use crate::io;
use crate::scheduler::Worker;
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

/// Everything goes to the C library's function, with its argument as it is. But a lock that is taken is not waited for in a
/// fiber: it is asked for again and again.
///
/// # Safety
/// As `fcntl`.
pub(super) unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> Answer {
    static REAL: Real = Real::new(c"fcntl");
    let call = |command: c_int| match REAL.address() {
        // SAFETY: it is the address of the function of that name; three arguments are passed in registers whether it takes a
        // fixed number of them or not.
        Some(address) => unsafe {
            let real: unsafe extern "C" fn(c_int, c_int, usize) -> c_int = std::mem::transmute(address);
            match real(fd, command, argument) {
                -1 => -(io_error() as isize),
                result => result as isize,
            }
        },
        // SAFETY: the arguments are the caller's.
        None => unsafe { syscall!(SYS_fcntl, fd, command, argument) },
    };
    let softly = match command {
        // A connect that is under way may have changed the flags for a moment.
        libc::F_GETFL if fd >= 0 && io::is_known(fd) => {
            return answer_of(io::exclusively(fd, || call(command)));
        }
        libc::F_SETLKW => libc::F_SETLK,
        libc::F_OFD_SETLKW => libc::F_OFD_SETLK,
        _ => return answer_of(call(command)),
    };
    let Some(worker) = Worker::of_hooked_fiber() else {
        return answer_of(call(command));
    };
    let mut attempt = || match call(softly) {
        // Both mean that somebody else has it.
        result if result == -(libc::EACCES as isize) => -(libc::EAGAIN as isize),
        result => result,
    };
    let result = attempt();
    if !would_block(result) {
        return answer_of(result);
    }
    let hook = Hook::fcntl;
    try_again(Caller { worker, hook }, crate::clock::NEVER, &mut attempt)
}

/// The error that the C library has left.
fn io_error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A result of `fcntl`: numbers below -4095 are none of its errors.
fn answer_of(result: isize) -> Answer {
    if (-4095..0).contains(&result) {
        Err(-result as i32)
    } else {
        Ok(result)
    }
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
