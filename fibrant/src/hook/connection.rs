//! Connecting and accepting.
//!
//! Neither can be told not to block for one call, so these are the two places where something else is done. `connect` makes its
//! socket non-blocking around the one system call that begins the connection. `accept` leaves its listener alone, which other
//! processes may share: the kernel's [`ring`] accepts without blocking.

use super::retry::{self, Answer, Caller, Limit, answer, is_nonblocking, is_ready, try_file_again};
use super::ring;
use super::transfer::socket_option;
use crate::clock;
use crate::io::{self, Event, Kind};
use crate::sys::{self, syscall};
use libc::{c_int, sockaddr, socklen_t};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long a connect may take if its socket has no limit of its own: nanoseconds, or never.
pub(super) static CONNECT_TIMEOUT: AtomicU64 = AtomicU64::new(clock::NEVER);

/// # Safety
/// As `connect`.
pub(super) unsafe fn connect(caller: Caller, fd: c_int, address: *const sockaddr, size: socklen_t) -> Answer {
    // SAFETY: the arguments are the caller's.
    let begin = || unsafe { syscall!(SYS_connect, fd, address, size) };
    // SAFETY: asks for a number.
    let flags = unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFL) };
    if flags < 0 || flags & libc::O_NONBLOCK as isize != 0 {
        return answer(begin());
    }
    // To be called while nobody else sets them.
    let softly = || {
        // SAFETY: asks for a number.
        let flags = unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFL) };
        // SAFETY: sets the flags as they were, and one more; and back.
        unsafe { syscall!(SYS_fcntl, fd, libc::F_SETFL, flags | libc::O_NONBLOCK as isize) };
        let result = begin();
        // SAFETY: as above.
        unsafe { syscall!(SYS_fcntl, fd, libc::F_SETFL, flags) };
        result
    };
    let file = io::identify(fd);
    let result = io::exclusively(fd, softly);
    let own = retry::deadline(fd, libc::SO_SNDTIMEO);
    let common = clock::now().saturating_add(CONNECT_TIMEOUT.load(Relaxed));
    let deadline = own.min(common);
    let verdict = match -result as i32 {
        libc::EINPROGRESS | libc::EALREADY => {
            retry::wait_and_retry(caller, fd, Event::WRITE, Limit::Until(deadline), &mut || {
                if !is_ready(fd, Event::WRITE) {
                    return -(libc::EAGAIN as isize);
                }
                if !is_tcp(fd) {
                    return -(error_of(fd) as isize);
                }
                // Asked once more, the kernel tells the verdict and knows that it has: the next call is a new one.
                match softly() {
                    result if result == -(libc::EALREADY as isize) => -(libc::EAGAIN as isize),
                    result if result == -(libc::EISCONN as isize) => 0, // another one has asked
                    result => result,
                }
            })
        }
        // The queue of a local socket is full, and nothing will say when it is not.
        libc::EAGAIN => return try_file_again(caller, file, deadline, &mut { softly }),
        _ => return answer(result),
    };
    match verdict {
        // That it had begun already, if that is what the kernel has said.
        Err(libc::EAGAIN) if own <= common => Err(-result as i32),
        Err(libc::EAGAIN) => Err(libc::ETIMEDOUT),
        verdict => verdict,
    }
}

fn is_tcp(fd: RawFd) -> bool {
    socket_option(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// What a connection has come to.
fn error_of(fd: RawFd) -> c_int {
    let mut error: c_int = 0;
    let mut size = size_of::<c_int>() as socklen_t;
    // SAFETY: writes to local variables.
    let result = unsafe {
        syscall!(
            SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            &raw mut error,
            &raw mut size
        )
    };
    if result < 0 { -result as c_int } else { error }
}

/// Whether nothing more will come to a listener.
fn is_shut_down(fd: RawFd) -> bool {
    let mut asked = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one element, a local variable.
    unsafe { sys::poll(&mut asked, 1, 0) };
    asked.revents & (libc::POLLRDHUP | libc::POLLHUP) != 0
}

/// # Safety
/// As `accept4`.
pub(super) unsafe fn accept4(
    caller: Caller,
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
    flags: c_int,
) -> Answer {
    // SAFETY: the size is the caller's, or null.
    let room = unsafe { size.as_ref() }.copied();
    // A try in vain may have changed it.
    let restore = || {
        if let Some(room) = room {
            // SAFETY: as above.
            unsafe { *size = room };
        }
    };
    // Asks first, which is not enough if others accept here at the same moment: whoever is too late blocks.
    let ask_first = || {
        // SAFETY: asks for a number.
        let own = unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFL) };
        let cannot_wait = own < 0 || own & libc::O_NONBLOCK as isize != 0;
        // On what is no listener it fails, at once.
        if cannot_wait || is_ready(fd, Event::READ) || socket_option(fd, libc::SO_ACCEPTCONN) != Some(1) {
            // SAFETY: the arguments are the caller's.
            unsafe { syscall!(SYS_accept4, fd, address, size, flags) }
        } else {
            -(libc::EAGAIN as isize)
        }
    };
    let attempt = || {
        restore();
        // SAFETY: the arguments are the caller's.
        match unsafe { ring::accept(fd, address, size, flags) } {
            // Of a local listener that was shut down the kernel says for ever that it would block, and accepts at once, or fails.
            Some(result) if retry::would_block(result) && is_shut_down(fd) => {
                // SAFETY: as above.
                unsafe { syscall!(SYS_accept4, fd, address, size, flags) }
            }
            Some(result) => result,
            None => ask_first(),
        }
    };
    // SAFETY: the arguments are the caller's.
    let first = unsafe { ring::accept(fd, address, size, flags) }.unwrap_or_else(|| {
        // While no other fiber asks here: during the attempts below none does, either.
        // SAFETY: asks for a number.
        match unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFL) } {
            error @ ..0 => error,
            _ => io::exclusively(fd, ask_first),
        }
    });
    let result = match retry::would_block(first) && !is_nonblocking(fd) {
        true => {
            let limit = Limit::Option(libc::SO_RCVTIMEO);
            retry::wait_and_retry(caller, fd, Event::READ, limit, &mut { attempt })
        }
        false => answer(first),
    };
    if let Ok(accepted) = result {
        io::note_new(accepted as RawFd, Kind::Socket);
    }
    result
}

/// # Safety
/// As `accept`.
pub(super) unsafe fn accept(
    caller: Caller,
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { accept4(caller, fd, address, size, 0) }
}
