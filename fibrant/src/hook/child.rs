//! Children and threads: waiting for one to end.
//!
//! A child has a descriptor that says when it ends, so a fiber waits for that. For any child, for a group, and for a child that
//! stops or goes on there is none: those are asked again and again, after longer and longer pauses. So are threads. No pool of
//! threads is used: whoever ends the wait may need it.

use super::connection::try_again;
use super::real::Real;
use super::retry::{self, Answer, Caller, Limit, answer};
use crate::clock;
use crate::io::{self, Event};
use crate::sys::{self, syscall};
use libc::{c_int, c_void, id_t, idtype_t, pid_t, pthread_t, rusage, siginfo_t};
use std::os::fd::RawFd;

const AGAIN: isize = -(libc::EAGAIN as isize);

/// Waits, with a descriptor of the child's if it has one, until `attempt` does not ask to be made again.
fn wait_for(caller: Caller, child: Option<pid_t>, attempt: &mut dyn FnMut() -> isize) -> Answer {
    let result = attempt();
    if !retry::would_block(result) {
        return answer(result);
    }
    caller.count().would_block.increment();
    let descriptor = child.and_then(|child| {
        // SAFETY: makes a descriptor, which is closed below.
        sys::check(unsafe { syscall!(SYS_pidfd_open, child, 0) }).ok()
    });
    match descriptor {
        Some(descriptor) => {
            let fd = descriptor as RawFd;
            let result = retry::wait_and_retry(caller, fd, Event::READ, Limit::Until(clock::NEVER), attempt);
            // SAFETY: it was made above.
            io::closing(fd..=fd, || unsafe { sys::close(fd) });
            result
        }
        None => try_again(caller, clock::NEVER, attempt),
    }
}

/// # Safety
/// As `wait4`.
pub(super) unsafe fn wait4(
    caller: Caller,
    child: pid_t,
    status: *mut c_int,
    options: c_int,
    usage: *mut rusage,
) -> Answer {
    // SAFETY: the arguments are the caller's.
    let call = || unsafe { syscall!(SYS_wait4, child, status, options | libc::WNOHANG, usage) };
    if options & libc::WNOHANG != 0 {
        return answer(call());
    }
    let ends_only = options & (libc::WUNTRACED | libc::WCONTINUED) == 0;
    let one = (child > 0 && ends_only).then_some(child);
    wait_for(caller, one, &mut || match call() {
        0 => AGAIN,
        result => result,
    })
}

/// # Safety
/// As `waitpid`.
pub(super) unsafe fn waitpid(caller: Caller, child: pid_t, status: *mut c_int, options: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { wait4(caller, child, status, options, std::ptr::null_mut()) }
}

/// # Safety
/// As `wait`.
pub(super) unsafe fn wait(caller: Caller, status: *mut c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { wait4(caller, -1, status, 0, std::ptr::null_mut()) }
}

/// # Safety
/// As `wait3`.
pub(super) unsafe fn wait3(caller: Caller, status: *mut c_int, options: c_int, usage: *mut rusage) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { wait4(caller, -1, status, options, usage) }
}

/// # Safety
/// As `waitid`.
pub(super) unsafe fn waitid(
    caller: Caller,
    kind: idtype_t,
    id: id_t,
    found: *mut siginfo_t,
    options: c_int,
) -> Answer {
    // SAFETY: all zero is a value of it.
    let mut own: siginfo_t = unsafe { std::mem::zeroed() };
    let place = if found.is_null() { &raw mut own } else { found };
    let call = || {
        // Says whether there was one.
        // SAFETY: there is room for it.
        unsafe { (*place).si_signo = 0 };
        // SAFETY: the arguments are the caller's.
        unsafe { syscall!(SYS_waitid, kind, id, place, options | libc::WNOHANG, 0) }
    };
    if options & libc::WNOHANG != 0 {
        return answer(call());
    }
    let one =
        (kind == libc::P_PID && options & (libc::WSTOPPED | libc::WCONTINUED) == 0).then_some(id as pid_t);
    wait_for(caller, one, &mut || match call() {
        // SAFETY: it was written to.
        0 if unsafe { (*place).si_signo } == 0 => AGAIN,
        result => result,
    })
}

/// Gives the error's number, as the function does.
///
/// # Safety
/// As `pthread_join`.
pub(super) unsafe fn pthread_join(caller: Caller, thread: pthread_t, result: *mut *mut c_void) -> Answer {
    type Join = unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;
    static TRY: Real = Real::new(c"pthread_tryjoin_np");
    static REAL: Real = Real::new(c"pthread_join");
    let join = |real: &Real| {
        let address = real.address()?;
        // SAFETY: it is the address of the function of that name, which has this type.
        Some(unsafe { std::mem::transmute::<*mut c_void, Join>(address) })
    };
    let Some(attempt) = join(&TRY) else {
        // SAFETY: the arguments are the caller's.
        return Ok(join(&REAL).map_or(libc::ENOSYS, |real| unsafe { real(thread, result) }) as isize);
    };
    wait_for(caller, None, &mut || {
        // SAFETY: the arguments are the caller's.
        match unsafe { attempt(thread, result) } {
            libc::EBUSY => AGAIN,
            error => error as isize,
        }
    })
}
