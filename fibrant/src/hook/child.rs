//! Children and threads: making them, and waiting for one to end.
//!
//! A child has a descriptor that says when it ends, so a fiber waits for that. For any child, for a group, and for a child that
//! stops or goes on there is none: a real thread waits until there is something to tell, and the fiber then takes it. Threads are
//! asked again and again, after longer and longer pauses.

use super::file::{offload_alone, with_error};
use super::real::Real;
use super::retry::{self, Answer, Caller, Limit, answer, try_again};
use crate::clock;
use crate::io::{self, Event};
use crate::scheduler::{Interruption, Worker};
use crate::sys::{self, syscall};
use libc::{
    FILE, c_char, c_int, c_void, clockid_t, id_t, idtype_t, pid_t, pthread_t, rusage, siginfo_t, timespec,
};
use std::os::fd::RawFd;

const AGAIN: isize = -(libc::EAGAIN as isize);

/// Which children a call waits for, and for what to happen to them.
struct Wanted {
    kind: idtype_t,
    id: id_t,
    options: c_int,
}

/// Waits until `attempt` does not ask to be made again.
fn wait_for(caller: Caller, wanted: &Wanted, attempt: &mut dyn FnMut() -> isize) -> Answer {
    let result = attempt();
    if !retry::would_block(result) {
        return answer(result);
    }
    caller.count().would_block.increment();
    let changes = libc::WSTOPPED | libc::WCONTINUED;
    let descriptor = (wanted.kind == libc::P_PID && wanted.options & changes == 0).then(|| {
        // SAFETY: makes a descriptor, which is closed below.
        sys::check(unsafe { syscall!(SYS_pidfd_open, wanted.id, 0) }).ok()
    });
    if let Some(descriptor) = descriptor.flatten() {
        let fd = descriptor as RawFd;
        let result = retry::wait_and_retry(caller, fd, Event::READ, Limit::Until(clock::NEVER), attempt);
        // SAFETY: it was made above.
        io::closing(fd..=fd, || unsafe { sys::close(fd) });
        return result;
    }
    loop {
        let (kind, id, options) = (wanted.kind, wanted.id, wanted.options | libc::WNOWAIT);
        // It leaves the child as it is: the attempt takes it, unless somebody else is faster.
        // SAFETY: numbers, and no place to write to.
        unsafe { offload_alone(caller, || syscall!(SYS_waitid, kind, id, 0, options, 0))? };
        let result = attempt();
        if !retry::would_block(result) {
            return answer(result);
        }
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
    let (kind, id) = match child {
        1.. => (libc::P_PID, child as id_t),
        -1 => (libc::P_ALL, 0),
        group => (libc::P_PGID, group.unsigned_abs()), // 0 is its own
    };
    let wanted = Wanted {
        kind,
        id,
        options: options | libc::WEXITED,
    };
    wait_for(caller, &wanted, &mut || match call() {
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
    let wanted = Wanted { kind, id, options };
    wait_for(caller, &wanted, &mut || match call() {
        // SAFETY: it was written to.
        0 if unsafe { (*place).si_signo } == 0 => AGAIN,
        result => result,
    })
}

/// Joins a thread, or gives up then: at once, if there is an error instead of a time. Gives the error's number, as the functions do.
///
/// # Safety
/// As `pthread_join`.
unsafe fn join_until(
    caller: Caller,
    thread: pthread_t,
    result: *mut *mut c_void,
    deadline: Result<u64, c_int>,
) -> Answer {
    type Join = unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;
    // SAFETY: both are of this type.
    static TRY: Real<Join> = unsafe { Real::new(c"pthread_tryjoin_np") };
    // SAFETY: as above.
    static REAL: Real<Join> = unsafe { Real::new(c"pthread_join") };
    // SAFETY: compares numbers.
    let is_self = unsafe { libc::pthread_equal(thread, libc::pthread_self()) } != 0;
    let softly = TRY.get().filter(|_| !is_self); // which is an error at once
    let Some(attempt) = softly else {
        // SAFETY: the arguments are the caller's.
        return Ok(REAL
            .get()
            .map_or(libc::ENOSYS, |real| unsafe { real(thread, result) }) as isize);
    };
    let mut call = || {
        // SAFETY: the arguments are the caller's.
        match unsafe { attempt(thread, result) } {
            libc::EBUSY => AGAIN,
            error => error as isize,
        }
    };
    let result = call();
    if !retry::would_block(result) {
        return Ok(result);
    }
    let deadline = match deadline {
        Ok(deadline) => deadline,
        Err(error) => return Ok(error as isize),
    };
    caller.count().would_block.increment();
    match try_again(caller, deadline, &mut call) {
        Err(libc::EAGAIN) => Ok(libc::ETIMEDOUT as isize),
        result => result,
    }
}

/// # Safety
/// As `pthread_join`.
pub(super) unsafe fn pthread_join(caller: Caller, thread: pthread_t, result: *mut *mut c_void) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { join_until(caller, thread, result, Ok(clock::NEVER)) }
}

/// # Safety
/// As `pthread_clockjoin_np`.
pub(super) unsafe fn pthread_clockjoin_np(
    caller: Caller,
    thread: pthread_t,
    result: *mut *mut c_void,
    clock: clockid_t,
    time: *const timespec,
) -> Answer {
    // SAFETY: null or a time, as the caller promises.
    let deadline = match unsafe { time.as_ref() } {
        None => Ok(clock::NEVER),
        // Newer versions of the C library look at this first; older ones join a thread that is over, and never return if it is not.
        Some(time) if !(0..1_000_000_000).contains(&time.tv_nsec) => return Ok(libc::EINVAL as isize),
        // Before the beginning of time, which the kernel would not understand.
        Some(time) if time.tv_sec < 0 => Err(libc::ETIMEDOUT),
        Some(time) => super::time::nanoseconds(time).map(|nanoseconds| {
            let rest = nanoseconds.saturating_sub(super::time::reading(clock));
            clock::now().saturating_add(rest)
        }),
    };
    // SAFETY: the caller's promise.
    unsafe { join_until(caller, thread, result, deadline) }
}

/// # Safety
/// As `pthread_timedjoin_np`.
pub(super) unsafe fn pthread_timedjoin_np(
    caller: Caller,
    thread: pthread_t,
    result: *mut *mut c_void,
    time: *const timespec,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { pthread_clockjoin_np(caller, thread, result, libc::CLOCK_REALTIME, time) }
}

/// A real thread runs the command and waits for it: the function blocks signals of its thread meanwhile.
///
/// # Safety
/// As `system`.
pub(super) unsafe fn system(caller: Caller, command: *const c_char) -> Answer {
    // SAFETY: it is of this type.
    static REAL: Real<unsafe extern "C" fn(*const c_char) -> c_int> = unsafe { Real::new(c"system") };
    let real = REAL.get().ok_or(libc::ENOSYS)?;
    // SAFETY: the command is the caller's, who waits.
    unsafe { offload_alone(caller, || with_error(real(command))) }
}

/// Starting a command does not wait. It is here with its other half.
///
/// # Safety
/// As `popen`.
pub(super) unsafe fn popen(_: Caller, command: *const c_char, mode: *const c_char) -> Answer {
    type Open = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
    // SAFETY: it is of this type.
    static REAL: Real<Open> = unsafe { Real::new(c"popen") };
    let Some(real) = REAL.get() else {
        return refused(libc::ENOSYS);
    };
    // SAFETY: the arguments are the caller's.
    Ok(unsafe { real(command, mode) } as isize)
}

/// A function that gives a pointer says with a null one that it has failed.
fn refused(error: c_int) -> Answer {
    // SAFETY: the address is that of this thread's variable.
    unsafe { *libc::__errno_location() = error };
    Ok(0)
}

/// A real thread waits for the command's end.
///
/// # Safety
/// As `pclose`.
pub(super) unsafe fn pclose(caller: Caller, stream: *mut FILE) -> Answer {
    // SAFETY: it is of this type.
    static REAL: Real<unsafe extern "C" fn(*mut FILE) -> c_int> = unsafe { Real::new(c"pclose") };
    let real = REAL.get().ok_or(libc::ENOSYS)?;
    // SAFETY: the stream is the caller's to close, who waits.
    unsafe {
        let fd = libc::fileno(stream);
        io::closing(fd..=fd, || offload_alone(caller, || with_error(real(stream))))
    }
}

/// Ends the fiber, as the function ends a thread: what it has on its stack is unwound, and whoever joins it is told that it was
/// cancelled. On a thread it ends the thread.
///
/// # Safety
/// As `pthread_exit`.
pub(super) unsafe fn pthread_exit(value: *mut c_void) -> ! {
    // SAFETY: it is of this type.
    static REAL: Real<unsafe extern "C-unwind" fn(*mut c_void) -> !> = unsafe { Real::new(c"pthread_exit") };
    if Worker::of_hooked_fiber().is_some() {
        Interruption::Cancel.unwind();
    }
    let Some(real) = REAL.get() else {
        // SAFETY: ends this thread, and nothing else.
        unsafe { syscall!(SYS_exit, 0) };
        std::process::abort();
    };
    // SAFETY: the caller's promise.
    unsafe { real(value) }
}
