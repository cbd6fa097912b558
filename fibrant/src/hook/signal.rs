//! Signals: waiting for one, and knowing that one is being handled.
//!
//! A handler interrupts whatever its thread does, perhaps the scheduler itself. So no call that is made in a handler may wait: each
//! handler that the program installs is put behind one of ours, [`on_signal`], which notes on the thread that one runs. Whoever asks
//! for the present handler is told the program's own.
//!
//! A fiber waits for signals as a thread does, with `sigwait` and its relatives: they must be blocked in every thread, which is best
//! done before the runtime starts, because its threads inherit that. The kernel tells with a descriptor when one is pending. `pause`
//! and `sigsuspend` return when a handler has run, on whatever thread: handlers ring a bell, if somebody listens.

use super::file::with_error;
use super::real::Real;
use super::retry::{Answer, Caller, Limit, answer, wait_and_retry};
use crate::clock;
use crate::fiber::Thread;
use crate::io::{self, Event};
use crate::sys::{self, syscall};
use libc::{c_int, c_void, sighandler_t, siginfo_t, sigset_t, timespec};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

/// One more than the highest signal.
const SIGNALS: usize = 65;

/// The size of the kernel's sets of signals.
const SET_SIZE: usize = 8;

/// The program's own handlers, and whether each asked for `SA_SIGINFO`.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];

/// The signals whose handlers, if `signal` installs them, end the calls that they interrupt: a bit for each.
static ENDING_CALLS: AtomicU64 = AtomicU64::new(0);

/// How many handlers have run to their end.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// How many fibers wait for one to do so, and the descriptor that tells them, or 0.
static LISTENERS: AtomicUsize = AtomicUsize::new(0);
static BELL: AtomicI32 = AtomicI32::new(0);

unsafe extern "C" {
    /// The C library's function, by the name that its other parts use.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Runs the program's handler.
unsafe extern "C" fn on_signal(signal: c_int, information: *mut siginfo_t, context: *mut c_void) {
    let handler = HANDLERS[signal as usize].load(Relaxed);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return; // it was taken away a moment ago
    }
    Thread::handling_signal(|| {
        // SAFETY: the program has said that this is its handler. One that takes a single argument ignores the others.
        unsafe {
            let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                std::mem::transmute(handler as *const c_void);
            handler(signal, information, context);
        }
    });
    HANDLED.fetch_add(1, SeqCst);
    if LISTENERS.load(SeqCst) > 0 {
        let one = 1_u64;
        // SAFETY: adds to the bell's counter, which is a system call like any other in a handler.
        unsafe { syscall!(SYS_write, BELL.load(Relaxed), &raw const one, size_of::<u64>()) };
    }
}

/// # Safety
/// As `sigaction`.
pub(super) unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> Answer {
    let index = signal as usize;
    let own = on_signal as *const () as usize;
    let set = |new: *const libc::sigaction, old: *mut libc::sigaction| {
        // SAFETY: the arguments are the caller's, or local variables.
        match unsafe { __sigaction(signal, new, old) } {
            0 => Ok(0),
            _ => Err(std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EINVAL)),
        }
    };
    if !(1..SIGNALS).contains(&index) {
        return set(new, old);
    }
    let before = (HANDLERS[index].load(Relaxed), FLAGS[index].load(Relaxed));
    // SAFETY: null or an action, as the caller promises.
    let result = match unsafe { new.as_ref() } {
        Some(new) if !matches!(new.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN | libc::SIG_ERR) => {
            // First the handler, then the action that calls it.
            HANDLERS[index].store(new.sa_sigaction, Relaxed);
            FLAGS[index].store(new.sa_flags & libc::SA_SIGINFO, Relaxed);
            let mut action = *new;
            action.sa_sigaction = own;
            action.sa_flags |= libc::SA_SIGINFO;
            let result = set(&action, old);
            if result.is_err() {
                HANDLERS[index].store(before.0, Relaxed);
                FLAGS[index].store(before.1, Relaxed);
            }
            result
        }
        _ => set(new, old),
    };
    // SAFETY: null or room for an action, as the caller promises.
    if let Some(old) = unsafe { old.as_mut() }
        && result.is_ok()
        && old.sa_sigaction == own
    {
        old.sa_sigaction = before.0;
        old.sa_flags = old.sa_flags & !libc::SA_SIGINFO | before.1;
    }
    result
}

/// # Safety
/// As `signal`.
pub(super) unsafe fn signal(signal: c_int, handler: sighandler_t) -> Answer {
    if handler == libc::SIG_ERR {
        return Err(libc::EINVAL); // the kernel would take it for a handler
    }
    // SAFETY: all zero is a value of both.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = match ENDING_CALLS.load(Relaxed) & bit(signal) {
        0 => libc::SA_RESTART,
        _ => 0,
    };
    // The signal itself is blocked while it is handled, as the C library has it.
    // SAFETY: changes a local variable, if the number is a signal's.
    unsafe { libc::sigaddset(&mut new.sa_mask, signal) };
    // SAFETY: local variables.
    unsafe { sigaction(signal, &new, &mut old) }.map(|_| old.sa_sigaction as isize)
}

/// Notes what `signal` has to know from then on: the C library keeps it to itself.
///
/// # Safety
/// As `siginterrupt`.
pub(super) unsafe fn siginterrupt(signal: c_int, ends_calls: c_int) -> Answer {
    // SAFETY: it is of this type.
    static REAL: Real<unsafe extern "C" fn(c_int, c_int) -> c_int> = unsafe { Real::new(c"siginterrupt") };
    let real = REAL.get().ok_or(libc::ENOSYS)?;
    // SAFETY: numbers.
    let result = answer(with_error(unsafe { real(signal, ends_calls) }))?;
    if ends_calls != 0 {
        ENDING_CALLS.fetch_or(bit(signal), Relaxed);
    } else {
        ENDING_CALLS.fetch_and(!bit(signal), Relaxed);
    }
    Ok(result)
}

/// A signal's bit, if it is one.
fn bit(signal: c_int) -> u64 {
    1_u64.checked_shl(signal.wrapping_sub(1) as u32).unwrap_or(0)
}

/// Calls `f` with a descriptor that is ready when one of these signals is pending.
///
/// # Safety
/// It is a set of signals.
unsafe fn with_descriptor(set: *const sigset_t, f: impl FnOnce(RawFd) -> Answer) -> Answer {
    // SAFETY: the caller's promise; makes a descriptor, which is closed below.
    let fd = answer(unsafe {
        syscall!(
            SYS_signalfd4,
            -1_isize,
            set,
            SET_SIZE,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK
        )
    })? as RawFd;
    let result = f(fd);
    // SAFETY: it was made above.
    io::closing(fd..=fd, || unsafe { sys::close(fd) });
    result
}

/// The kernel's call, of which the functions are made.
///
/// # Safety
/// As `sigtimedwait`.
pub(super) unsafe fn wait_for_signal(
    caller: Caller,
    set: *const sigset_t,
    information: *mut siginfo_t,
    time: *const timespec,
) -> Answer {
    // SAFETY: null or a time, as the caller promises.
    let deadline = unsafe { super::readiness::deadline(time) }?;
    let now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the arguments are the caller's.
    let mut attempt = || unsafe { syscall!(SYS_rt_sigtimedwait, set, information, &raw const now, SET_SIZE) };
    let result = attempt();
    if !super::retry::would_block(result) || clock::now() >= deadline {
        return answer(result);
    }
    // SAFETY: the kernel has just read the set.
    unsafe {
        with_descriptor(set, |fd| {
            wait_and_retry(caller, fd, Event::READ, Limit::Until(deadline), &mut attempt)
        })
    }
}

/// # Safety
/// As `sigtimedwait`.
pub(super) unsafe fn sigtimedwait(
    caller: Caller,
    set: *const sigset_t,
    information: *mut siginfo_t,
    time: *const timespec,
) -> Answer {
    // SAFETY: the caller's promise.
    let result = unsafe { wait_for_signal(caller, set, information, time) };
    // The C library does not tell that it was sent to one thread.
    // SAFETY: null or room for it, as the caller promises.
    if let Some(information) = unsafe { information.as_mut() }
        && result.is_ok()
        && information.si_code == libc::SI_TKILL
    {
        information.si_code = libc::SI_USER;
    }
    result
}

/// # Safety
/// As `sigwaitinfo`.
pub(super) unsafe fn sigwaitinfo(
    caller: Caller,
    set: *const sigset_t,
    information: *mut siginfo_t,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { sigtimedwait(caller, set, information, ptr::null()) }
}

/// Gives the error's number, as the function does.
///
/// # Safety
/// As `sigwait`.
pub(super) unsafe fn sigwait(caller: Caller, set: *const sigset_t, signal: *mut c_int) -> Answer {
    // SAFETY: the caller's promise.
    match unsafe { sigwaitinfo(caller, set, ptr::null_mut()) } {
        Ok(found) => {
            // SAFETY: there is room for it.
            unsafe { *signal = found as c_int };
            Ok(0)
        }
        Err(error) => Ok(error as isize),
    }
}

/// Forgets the bell of the process that this one was forked from.
pub(super) fn forget_parents() {
    LISTENERS.store(0, Relaxed);
    BELL.store(0, Relaxed);
}

/// Calls `f` with the bell's descriptor, while handlers ring it.
fn listening<R>(f: impl FnOnce(RawFd) -> R) -> R {
    if BELL.load(Relaxed) == 0 {
        // SAFETY: makes a descriptor.
        let made = unsafe { syscall!(SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } as c_int;
        if made > 0 && BELL.compare_exchange(0, made, Relaxed, Relaxed).is_err() {
            // SAFETY: nobody knows of it: another one was faster.
            unsafe { sys::close(made) };
        }
    }
    LISTENERS.fetch_add(1, SeqCst);
    let result = f(BELL.load(Relaxed));
    LISTENERS.fetch_sub(1, SeqCst);
    result
}

/// # Safety
/// None is needed: it has no arguments.
pub(super) unsafe fn pause(caller: Caller) -> Answer {
    let before = HANDLED.load(SeqCst);
    listening(|bell| {
        wait_and_retry(caller, bell, Event::READ, Limit::Until(clock::NEVER), &mut || {
            if HANDLED.load(SeqCst) == before {
                -(libc::EAGAIN as isize)
            } else {
                -(libc::EINTR as isize)
            }
        })
    })
}

/// Lets those signals in that the mask does not block, while the fiber waits for one to be handled. The thread's mask is changed
/// only for the moment in which one is taken: other fibers run meanwhile.
///
/// # Safety
/// As `sigsuspend`.
pub(super) unsafe fn sigsuspend(caller: Caller, mask: *const sigset_t) -> Answer {
    let set_mask = |new: *const u64, old: *mut u64| {
        // SAFETY: sets of the size that the kernel knows.
        unsafe { syscall!(SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, SET_SIZE) }
    };
    // SAFETY: null or a set, as the caller promises; its first word is all that the kernel reads.
    let mask = unsafe { mask.cast::<u64>().as_ref() }
        .copied()
        .ok_or(libc::EFAULT)?;
    let mut blocked = 0_u64;
    answer(set_mask(ptr::null(), &mut blocked))?;
    let let_in = blocked & !mask;
    let before = HANDLED.load(SeqCst);
    let take = || {
        let mut pending = 0_u64;
        // SAFETY: writes to a local variable.
        unsafe { syscall!(SYS_rt_sigpending, &raw mut pending, SET_SIZE) };
        if pending & let_in != 0 {
            // They are handled before the first of these calls returns.
            set_mask(&mask, ptr::null_mut());
            set_mask(&blocked, ptr::null_mut());
        }
        HANDLED.load(SeqCst) != before
    };
    if take() {
        return Err(libc::EINTR);
    }
    // SAFETY: a set of the size that the kernel knows.
    unsafe {
        with_descriptor((&raw const let_in).cast(), |pending| {
            listening(|bell| {
                let targets = [(pending, Event::READ), (bell, Event::READ)];
                io::watch(caller.worker, &targets, |watch| {
                    loop {
                        caller.wait(watch, clock::NEVER)?;
                        if take() {
                            return Err(libc::EINTR);
                        }
                    }
                })
            })
        })
    }
}
