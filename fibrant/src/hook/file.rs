//! Files that block: what cannot be waited for is done on a real thread, and a lock that is taken is asked for again and again,
//! because whoever has it may be a fiber that needs such a thread.

use super::connection::try_again;
use super::retry::{Answer, Caller, answer};
use crate::clock;
use crate::scheduler;
use crate::sys::syscall;
use libc::{c_int, c_void, off_t, size_t};

/// Makes a call on a real thread while the fiber waits for it.
///
/// # Safety
/// What the call uses may be used on another thread meanwhile.
pub(super) unsafe fn offload(caller: Caller, call: impl Fn() -> isize) -> Answer {
    caller.count().offloads.increment();
    // SAFETY: the caller's promise.
    let result = unsafe { scheduler::offload(caller.worker, &call) };
    // Without a thread to be had, it blocks the worker: late, but right.
    answer(result.unwrap_or_else(|_| call()))
}

pub(super) unsafe fn fsync(caller: Caller, fd: c_int) -> Answer {
    // SAFETY: a number may be used anywhere.
    unsafe { offload(caller, || syscall!(SYS_fsync, fd)) }
}

pub(super) unsafe fn fdatasync(caller: Caller, fd: c_int) -> Answer {
    // SAFETY: a number may be used anywhere.
    unsafe { offload(caller, || syscall!(SYS_fdatasync, fd)) }
}

pub(super) unsafe fn flock(caller: Caller, fd: c_int, operation: c_int) -> Answer {
    // SAFETY: numbers.
    let mut call = || unsafe { syscall!(SYS_flock, fd, operation | libc::LOCK_NB) };
    let result = call();
    if operation & libc::LOCK_NB != 0 || result != -(libc::EWOULDBLOCK as isize) {
        return answer(result);
    }
    caller.count().would_block.increment();
    try_again(caller, clock::NEVER, &mut call)
}

/// # Safety
/// As `pread`.
pub(super) unsafe fn pread(
    caller: Caller,
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    offset: off_t,
) -> Answer {
    let list = libc::iovec {
        iov_base: buffer,
        iov_len: length,
    };
    // SAFETY: the arguments are the caller's.
    let softly = unsafe { syscall!(SYS_preadv2, fd, &raw const list, 1, offset, 0, libc::RWF_NOWAIT) };
    // SAFETY: as above.
    let plainly = || unsafe { syscall!(SYS_pread64, fd, buffer, length, offset) };
    match -softly as i32 {
        _ if offset < 0 => answer(plainly()),
        libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS => answer(plainly()),
        // SAFETY: as above; the caller waits.
        libc::EAGAIN => unsafe { offload(caller, plainly) },
        _ => answer(softly),
    }
}
