//! Descriptors: what closes or replaces one must tell those who wait for it.
//!
//! This runs on every thread, hooked or not: a descriptor is the process's. What is known of one is in [`io`]'s table;
//! it is forgotten, and who waits is told, before the kernel closes the number, because at once it may be another file's.

use super::file::{last_error, with_error};
use super::real::Real;
use super::retry::{Answer, Caller, answer, try_file_again, would_block};
use super::stream::TCP_ULP;
use super::table::Hook;
use crate::io::{self, Event, Kind, Options, Stream};
use crate::scheduler::Worker;
use crate::sys::{self, syscall};
use libc::{FILE, c_int, c_uint, c_ulong};

/// The names that the options of time have where times of 64 bits are not the usual ones; here they mean the same.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;

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
    answer(if is_open && old != new && flags & !libc::O_CLOEXEC == 0 {
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
    // With a flag it closes nothing, or only for the one thread that leaves the others.
    if flags != 0 || first > last {
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
    // SAFETY: three arguments are passed in registers whether it takes a fixed number of them or not.
    static REAL: Real<unsafe extern "C" fn(c_int, c_int, usize) -> c_int> = unsafe { Real::new(c"fcntl") };
    let call = |command: c_int| match REAL.get() {
        // SAFETY: the arguments are the caller's.
        Some(real) => with_error(unsafe { real(fd, command, argument) }),
        // SAFETY: the arguments are the caller's.
        None => unsafe { syscall!(SYS_fcntl, fd, command, argument) },
    };
    let softly = match command {
        // A connect that is under way may have changed the flags for a moment.
        libc::F_GETFL | libc::F_SETFL => {
            let call = || {
                if fd >= 0 && io::is_known(fd) {
                    io::exclusively(fd, || call(command))
                } else {
                    call(command)
                }
            };
            return answer_of(if command == libc::F_SETFL {
                Options::changing(call)
            } else {
                call()
            });
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let copy = answer_of(call(command))?;
            io::note_new(copy as c_int, Kind::Unknown);
            return Ok(copy);
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
    let generation = io::generation(fd);
    let result = attempt();
    if !would_block(result) {
        return answer_of(result);
    }
    let hook = Hook::fcntl;
    let caller = Caller { worker, hook };
    try_file_again(caller, (fd, generation), crate::clock::NEVER, &mut attempt)
}

/// A result of `fcntl`: numbers below -4095 are none of its errors.
fn answer_of(result: isize) -> Answer {
    if (-4095..0).contains(&result) {
        Err(-result as i32)
    } else {
        Ok(result)
    }
}

/// Everything goes to the kernel, with its argument as it is.
///
/// # Safety
/// As `ioctl`.
pub(super) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> Answer {
    // SAFETY: the arguments are the caller's.
    let call = || answer(unsafe { syscall!(SYS_ioctl, fd, request, argument) });
    if request != libc::FIONBIO {
        return call();
    }
    Options::changing(|| {
        if fd >= 0 && io::is_known(fd) {
            // A connect that is under way may have changed the flag for a moment.
            io::exclusively(fd, call)
        } else {
            call()
        }
    })
}

/// # Safety
/// As `closefrom`.
pub(super) unsafe fn closefrom(first: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) }
}

/// What is written is written before the descriptor is forgotten: that may take a while.
///
/// # Safety
/// As `fclose`.
pub(super) unsafe fn fclose(stream: *mut FILE) -> Answer {
    // SAFETY: it is of this type.
    static REAL: Real<unsafe extern "C" fn(*mut FILE) -> c_int> = unsafe { Real::new(c"fclose") };
    let real = REAL.get().ok_or(libc::ENOSYS)?;
    // SAFETY: the stream is the caller's to close.
    let result = unsafe {
        let before = *libc::__errno_location();
        let fd = libc::fileno(stream);
        *libc::__errno_location() = before; // a stream in memory has none
        if fd < 0 {
            real(stream)
        } else {
            libc::fflush(stream);
            io::closing(fd..=fd, || real(stream))
        }
    };
    match result {
        0 => Ok(0),
        _ => Err(last_error()),
    }
}

/// # Safety
/// As `socket`.
pub(super) unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Answer {
    // SAFETY: makes a descriptor.
    let fd = answer(unsafe { syscall!(SYS_socket, domain, kind, protocol) })?;
    io::note_new(fd as c_int, Kind::Socket);
    Ok(fd)
}

/// # Safety
/// As `socketpair`.
pub(super) unsafe fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> Answer {
    // SAFETY: the arguments are the caller's.
    answer(unsafe { syscall!(SYS_socketpair, domain, kind, protocol, pair) })?;
    // SAFETY: two descriptors have been written there.
    unsafe {
        io::note_new(*pair, Kind::Socket);
        io::note_new(*pair.add(1), Kind::Socket);
    }
    Ok(0)
}

/// The kernel wakes those who wait.
///
/// # Safety
/// As `shutdown`.
pub(super) unsafe fn shutdown(fd: c_int, how: c_int) -> Answer {
    // SAFETY: numbers.
    answer(unsafe { syscall!(SYS_shutdown, fd, how) })
}

/// The kernel knows every option as the user has set it.
///
/// # Safety
/// As `getsockopt`.
pub(super) unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut libc::c_void,
    size: *mut libc::socklen_t,
) -> Answer {
    // SAFETY: the arguments are the caller's.
    answer(unsafe { syscall!(SYS_getsockopt, fd, level, name, value, size) })
}

/// A copy shares flags and timeouts, which the kernel has.
///
/// # Safety
/// As `dup`.
pub(super) unsafe fn dup(fd: c_int) -> Answer {
    // SAFETY: makes a descriptor.
    let copy = answer(unsafe { syscall!(SYS_dup, fd) })?;
    io::note_new(copy as c_int, Kind::Unknown);
    Ok(copy)
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
    let call = || answer(unsafe { syscall!(SYS_setsockopt, fd, level, name, value, size) });
    let event = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => Event::READ,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW) => Event::WRITE,
        (libc::IPPROTO_TCP, TCP_ULP) => {
            let generation = io::generation(fd);
            let result = call()?;
            if io::is_known(fd) {
                Stream::introduce(fd, generation, false); // another protocol divides it from now on
            }
            return Ok(result);
        }
        _ => return call(),
    };
    Options::changing(|| {
        let result = call()?;
        // SAFETY: the kernel has taken it for a time.
        let is_negative = unsafe { value.cast::<libc::timeval>().read_unaligned() }.tv_sec < 0;
        io::note_impatient(fd, event, is_negative);
        Ok(result)
    })
}
