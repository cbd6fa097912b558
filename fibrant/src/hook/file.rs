//! Files that block: what cannot be waited for is done on a real thread, and a lock that is taken is asked for again and again,
//! because whoever has it may be a fiber that needs such a thread.

use super::real::Real;
use super::retry::{Answer, Caller, answer, try_again, try_file_again, would_block};
use super::transfer::{self, Rest, is_file};
use crate::clock;
use crate::io;
use crate::scheduler;
use crate::sys::syscall;
use libc::{c_char, c_int, c_void, iovec, mode_t, off_t, size_t};

/// Stands for the position that a file has by itself.
const OWN_POSITION: off_t = -1;

/// Makes a call on a real thread while the fiber waits for it.
///
/// # Safety
/// What the call uses may be used on another thread meanwhile.
pub(super) unsafe fn offload(caller: Caller, call: impl Fn() -> isize) -> Answer {
    caller.count().offloads.increment();
    // SAFETY: the caller's promise.
    let result = caller.parking(|| unsafe { scheduler::offload(caller.worker, &call) });
    // Without a thread to be had, it blocks the worker: late, but right.
    answer(result.unwrap_or_else(|_| call()))
}

/// The same for a call that another fiber may have to end, who may need a real thread for that: it has one of its own.
///
/// # Safety
/// As `offload`.
pub(super) unsafe fn offload_alone(caller: Caller, call: impl Fn() -> isize) -> Answer {
    caller.count().offloads.increment();
    // SAFETY: the caller's promise.
    let result = caller.parking(|| unsafe { scheduler::offload_alone(caller.worker, &call) });
    answer(result.unwrap_or_else(|_| call())) // as above
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
    let generation = io::generation(fd);
    let result = call();
    if operation & libc::LOCK_NB != 0 || result != -(libc::EWOULDBLOCK as isize) {
        return answer(result);
    }
    caller.count().would_block.increment();
    try_file_again(caller, (fd, generation), clock::NEVER, &mut call)
}

/// Goes on with a read of a file whose first try, which does not wait for the disk, has given this: only a part was in memory, or
/// nothing. Both calls read into these buffers, so many bytes after the first one.
///
/// # Safety
/// The buffers may be written to, and used on another thread meanwhile.
pub(super) unsafe fn read_on(
    caller: Caller,
    buffers: &[iovec],
    first: isize,
    softly: impl Fn(&[iovec], usize) -> isize,
    plainly: impl Fn(&[iovec], usize) -> isize,
) -> Answer {
    // SAFETY: a list of ours.
    let mut rest = unsafe { Rest::new(buffers.as_ptr(), buffers.len()) };
    let (total, mut result, mut done) = (rest.total(), first, 0);
    while result > 0 {
        done += result as usize;
        rest.advance(result as usize);
        if done == total {
            return Ok(done as isize);
        }
        result = softly(rest.list(), done);
    }
    if would_block(result) {
        // SAFETY: the caller's promise.
        let answer = unsafe { offload(caller, || plainly(rest.list(), done)) };
        result = answer.unwrap_or_else(|error| -(error as isize));
    }
    match result {
        // The end of the file, or the rest of it.
        more @ 0.. => Ok(done as isize + more),
        _ if done > 0 => Ok(done as isize),
        error => Err(-error as i32),
    }
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
    let list = [iovec {
        iov_base: buffer,
        iov_len: length,
    }];
    // SAFETY: one buffer, of that length.
    unsafe { preadv(caller, fd, list.as_ptr(), 1, offset) }
}

/// # Safety
/// As `preadv`.
pub(super) unsafe fn preadv(
    caller: Caller,
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
) -> Answer {
    if offset < 0 {
        return Err(libc::EINVAL); // for the other one it means the file's own position
    }
    // SAFETY: the caller's promise.
    unsafe { preadv2(caller, fd, list, count, offset, 0) }
}

/// # Safety
/// As `preadv2`.
pub(super) unsafe fn preadv2(
    caller: Caller,
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Answer {
    // SAFETY: the arguments are the caller's.
    let call = |list: *const iovec, count: usize, offset: off_t, flags: c_int| unsafe {
        syscall!(SYS_preadv2, fd, list, count, offset, 0, flags)
    };
    if flags & libc::RWF_NOWAIT != 0 {
        return answer(call(list, count as usize, offset, flags));
    }
    if offset == OWN_POSITION && flags == 0 {
        // SAFETY: the caller's promise.
        return unsafe { super::transfer::readv(caller, fd, list, count) };
    }
    // The file's own position moves by itself.
    let position = |done: usize| match offset {
        OWN_POSITION => OWN_POSITION,
        offset => offset + done as off_t,
    };
    let softly = |list: &[iovec], done: usize| {
        call(
            list.as_ptr(),
            list.len(),
            position(done),
            flags | libc::RWF_NOWAIT,
        )
    };
    let plainly = |list: &[iovec], done: usize| {
        if flags == 0 {
            // Old kernels know this one.
            // SAFETY: as above.
            return unsafe { syscall!(SYS_preadv, fd, list.as_ptr(), list.len(), position(done), 0) };
        }
        call(list.as_ptr(), list.len(), position(done), flags)
    };
    if list.is_null() || !(1..=libc::UIO_MAXIOV).contains(&count) {
        return answer(call(list, count as usize, offset, flags));
    }
    // SAFETY: there are so many, as the caller promises.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let result = softly(list, 0);
    if matches!(-result as i32, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) {
        return answer(plainly(list, 0));
    }
    let total = transfer::total(list);
    // What is no file on a disk has no more than it gave.
    let is_complete = result > 0 && offset == OWN_POSITION && !is_file(fd);
    if result == total as isize || result == 0 || is_complete {
        return Ok(result);
    }
    // SAFETY: the buffers are the caller's, who waits.
    unsafe { read_on(caller, list, result, softly, plainly) }
}

/// A lock that is taken is asked for again and again.
///
/// # Safety
/// As `lockf`.
pub(super) unsafe fn lockf(caller: Caller, fd: c_int, command: c_int, length: off_t) -> Answer {
    // SAFETY: it is of this type.
    static REAL: Real<unsafe extern "C" fn(c_int, c_int, off_t) -> c_int> = unsafe { Real::new(c"lockf") };
    let call = |command: c_int| match REAL.get() {
        // SAFETY: the arguments are the caller's.
        Some(real) => with_error(unsafe { real(fd, command, length) }),
        None => -(libc::ENOSYS as isize),
    };
    if command != libc::F_LOCK {
        return answer(call(command));
    }
    let mut attempt = || match call(libc::F_TLOCK) {
        // Both mean that somebody else has it.
        result if result == -(libc::EACCES as isize) => -(libc::EAGAIN as isize),
        result => result,
    };
    let generation = io::generation(fd);
    let result = attempt();
    if !would_block(result) {
        return answer(result);
    }
    caller.count().would_block.increment();
    try_file_again(caller, (fd, generation), clock::NEVER, &mut attempt)
}

/// Opens a named pipe: that waits for somebody at the other end. Everything else is opened as it is.
///
/// # Safety
/// As `openat`.
pub(super) unsafe fn openat(
    caller: Caller,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> Answer {
    // SAFETY: the arguments are the caller's.
    let open = |flags: c_int| unsafe { syscall!(SYS_openat, directory, path, flags, mode) };
    let never_waits = libc::O_NONBLOCK | libc::O_PATH | libc::O_DIRECTORY | libc::O_RDWR | libc::O_EXCL;
    // SAFETY: as above.
    if flags & never_waits != 0 || !unsafe { is_named_pipe(directory, path) } {
        return answer(open(flags));
    }
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        // SAFETY: the path is the caller's, who waits.
        return unsafe { offload_alone(caller, || open(flags)) };
    }
    // A writer can ask whether there is a reader. Nobody knows of the descriptor yet, so its flag may be put right afterwards.
    let mut attempt = || match open(flags | libc::O_NONBLOCK) {
        result if result == -(libc::ENXIO as isize) => -(libc::EAGAIN as isize),
        result => result,
    };
    let mut result = answer(attempt());
    if result == Err(libc::EAGAIN) {
        caller.count().would_block.increment();
        result = try_again(caller, clock::NEVER, &mut attempt);
    }
    let fd = result?;
    // SAFETY: sets the flags as the caller wants them.
    answer(unsafe { syscall!(SYS_fcntl, fd, libc::F_SETFL, flags) })?;
    Ok(fd)
}

/// # Safety
/// As `open`.
pub(super) unsafe fn open(caller: Caller, path: *const c_char, flags: c_int, mode: mode_t) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { openat(caller, libc::AT_FDCWD, path, flags, mode) }
}

/// What a compiler makes of `open` that cannot make a file.
///
/// # Safety
/// As `open`.
pub(super) unsafe fn open_without_mode(caller: Caller, path: *const c_char, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { open(caller, path, flags, 0) }
}

/// The same of `openat`.
///
/// # Safety
/// As `openat`.
pub(super) unsafe fn openat_without_mode(
    caller: Caller,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { openat(caller, directory, path, flags, 0) }
}

/// # Safety
/// It is a path.
unsafe fn is_named_pipe(directory: c_int, path: *const c_char) -> bool {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the caller's promise; writes to a local variable, if it succeeds.
    let result = unsafe { syscall!(SYS_newfstatat, directory, path, status.as_mut_ptr(), 0) };
    // SAFETY: it has succeeded.
    result >= 0 && unsafe { status.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFIFO
}

/// The error that the C library has left.
pub(super) fn last_error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What a function of the C library's has given, as the kernel would.
pub(super) fn with_error(result: c_int) -> isize {
    match result {
        -1 => -(last_error() as isize),
        result => result as isize,
    }
}
