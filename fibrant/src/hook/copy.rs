//! From one descriptor to another: sendfile, splice and tee.
//!
//! The kernel's own calls block on a socket even when they are told not to. So what goes to a socket is read and sent, with the same
//! emulations that `read` and `send` have. Between pipes and files the kernel does it, when `poll` says that both sides are ready.

use super::file::pread;
use super::retry::{self, Answer, Caller, Limit, answer, is_nonblocking, is_ready, would_block};
use super::transfer::{self, is_file, socket_option};
use crate::clock;
use crate::io::Event;
use crate::sys::syscall;
use libc::{c_int, c_uint, off_t, size_t};
use std::os::fd::RawFd;

/// How much is read at a time.
const PIECE: usize = 64 << 10;

/// How much the kernel moves at most in one call.
const MOST: usize = 0x7fff_f000;

/// # Safety
/// As `sendfile`.
pub(super) unsafe fn sendfile(
    caller: Caller,
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Answer {
    if is_file(to) || !is_file(from) || is_nonblocking(to) {
        // SAFETY: the arguments are the caller's.
        return answer(unsafe { syscall!(SYS_sendfile, to, from, offset, count) });
    }
    let seek = |position: off_t, whence: c_int| {
        // SAFETY: numbers.
        answer(unsafe { syscall!(SYS_lseek, from, position, whence) })
    };
    // SAFETY: null or a position, as the caller promises.
    let start = match unsafe { offset.as_ref() } {
        Some(&offset) => offset,
        None => seek(0, libc::SEEK_CUR)? as off_t,
    };
    let count = count.min(MOST);
    let mut piece = vec![0_u8; PIECE.min(count)];
    let mut moved = 0;
    let error = loop {
        let length = piece.len().min(count - moved);
        let position = start + moved as off_t;
        // SAFETY: the piece is that long.
        let read = match unsafe { pread(caller, from, piece.as_mut_ptr().cast(), length, position) } {
            Ok(0) => break None,
            Ok(read) => read,
            Err(error) => break Some(error),
        };
        // SAFETY: so much of it has been read.
        match unsafe { transfer::write(caller, to, piece.as_ptr().cast(), read as usize) } {
            Ok(written) => {
                moved += written as usize;
                if written < read || moved == count {
                    break None;
                }
            }
            Err(error) => break Some(error),
        }
    };
    match error {
        Some(error) if moved == 0 => return Err(error),
        _ => {}
    }
    // SAFETY: as above.
    match unsafe { offset.as_mut() } {
        Some(offset) => *offset = start + moved as off_t,
        None => drop(seek(start + moved as off_t, libc::SEEK_SET)),
    }
    Ok(moved as isize)
}

/// # Safety
/// As `splice`.
pub(super) unsafe fn splice(
    caller: Caller,
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    length: size_t,
    flags: c_uint,
) -> Answer {
    let softly = flags & libc::SPLICE_F_NONBLOCK != 0;
    let is_socket = socket_option(to, libc::SO_TYPE).is_some();
    if is_socket && is_pipe(from) && from_offset.is_null() && to_offset.is_null() && length > 0 {
        if softly && !is_ready(from, Event::READ) {
            return Err(libc::EAGAIN);
        }
        let mut piece = vec![0_u8; PIECE.min(length)];
        // SAFETY: the piece is that long.
        let read = unsafe { transfer::read(caller, from, piece.as_mut_ptr().cast(), piece.len()) }?;
        // What cannot be sent is lost: then the stream is broken, or a timeout has left it in no known state.
        // SAFETY: so much of it has been read.
        return unsafe { transfer::send(caller, to, piece.as_ptr().cast(), read as usize, 0) };
    }
    move_when_ready(caller, from, to, softly, || {
        // SAFETY: the arguments are the caller's.
        unsafe {
            syscall!(
                SYS_splice,
                from,
                from_offset,
                to,
                to_offset,
                length,
                flags | libc::SPLICE_F_NONBLOCK
            )
        }
    })
}

/// # Safety
/// As `tee`.
pub(super) unsafe fn tee(caller: Caller, from: c_int, to: c_int, length: size_t, flags: c_uint) -> Answer {
    let softly = flags & libc::SPLICE_F_NONBLOCK != 0;
    move_when_ready(caller, from, to, softly, || {
        // SAFETY: the arguments are the caller's.
        unsafe { syscall!(SYS_tee, from, to, length, flags | libc::SPLICE_F_NONBLOCK) }
    })
}

/// Makes a call that moves bytes when there are some and there is room for them.
fn move_when_ready(caller: Caller, from: RawFd, to: RawFd, softly: bool, call: impl Fn() -> isize) -> Answer {
    let softly = softly || is_nonblocking(from) || is_nonblocking(to);
    loop {
        for (fd, event) in [(from, Event::READ), (to, Event::WRITE)] {
            if is_ready(fd, event) {
                continue;
            }
            if softly {
                return Err(libc::EAGAIN);
            }
            retry::wait_and_retry(caller, fd, event, Limit::Until(clock::NEVER), &mut || {
                if is_ready(fd, event) {
                    0
                } else {
                    -(libc::EAGAIN as isize)
                }
            })?;
        }
        let result = call();
        if softly || !would_block(result) {
            return answer(result);
        }
        // Somebody else was faster.
        crate::scheduler::yield_now();
    }
}

/// Whether it is a pipe, named or not.
fn is_pipe(fd: RawFd) -> bool {
    transfer::file_type(fd) == Some(libc::S_IFIFO)
}
