//! System calls by number: `syscall`.
//!
//! Rust's std calls futexes this way, and so do most libraries of locks. What blocks by number is treated as by name; everything else
//! goes to the kernel as it is. The number decides how many arguments there are: those that were not given are whatever
//! happens to be in their places, as with the C library's own function.

use super::futex;
use super::retry::{Answer, Caller};
use super::signal;
use super::table::{self, Hook};
use crate::fiber::Thread;
use crate::scheduler::Worker;
use crate::sys;
use libc::{c_int, c_long};

// The second kind of futexes, numbered alike on all architectures.
const FUTEX_WAITV: c_long = 449;
pub(super) const FUTEX_WAKE: c_long = 454;
pub(super) const FUTEX_WAIT: c_long = 455;
pub(super) const FUTEX_REQUEUE: c_long = 456;

/// Calls the kernel. Unlike other calls some of these may give a negative number that is no error's.
///
/// # Safety
/// As the call of that number.
#[inline(always)]
pub(super) unsafe fn in_kernel(number: c_long, arguments: [usize; 6]) -> Answer {
    // SAFETY: the caller's promise.
    let result = unsafe { sys::call(number, arguments) };
    if (-4095..0).contains(&result) {
        Err(-result as i32)
    } else {
        Ok(result)
    }
}

/// # Safety
/// As `syscall`.
#[inline(always)]
pub(super) unsafe fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> Answer {
    let arguments = [a, b, c, d, e, f];
    // SAFETY: the arguments are the caller's.
    unsafe {
        // A handler may have interrupted whoever holds what the others need.
        if Thread::in_signal_handler() {
            return in_kernel(number, arguments);
        }
        match number {
            libc::SYS_futex => futex::futex(arguments),
            FUTEX_WAKE => futex::wake(arguments),
            FUTEX_WAIT => futex::wait(arguments),
            FUTEX_REQUEUE => futex::requeue(arguments),
            FUTEX_WAITV => futex::wait_for_several(arguments),
            _ => by_name(number, arguments),
        }
    }
}

/// Calls the functions that are known by name, with the same arguments. They set `errno` themselves.
macro_rules! routes {
    ($number:expr, $arguments:expr; $($(#[$meta:meta])? $call:ident => $name:ident ($($index:literal),*);)*) => {
        match $number {
            $($(#[$meta])? libc::$call => return Ok(unsafe {
                // SAFETY: the arguments are the caller's: the call takes the same as the function.
                table::$name($($arguments[$index] as _),*)
            } as isize),)*
            _ => {}
        }
    };
}

/// # Safety
/// As `syscall`.
#[inline(never)]
unsafe fn by_name(number: c_long, arguments: [usize; 6]) -> Answer {
    // These keep the books, wherever they are called.
    routes! { number, arguments;
        SYS_close => close(0);
        SYS_close_range => close_range(0, 1, 2);
        SYS_dup => dup(0);
        #[cfg(target_arch = "x86_64")] SYS_dup2 => dup2(0, 1);
        SYS_dup3 => dup3(0, 1, 2);
        SYS_fcntl => fcntl(0, 1, 2);
        SYS_ioctl => ioctl(0, 1, 2);
        SYS_socket => socket(0, 1, 2);
        SYS_socketpair => socketpair(0, 1, 2, 3);
        SYS_shutdown => shutdown(0, 1);
        SYS_getsockopt => getsockopt(0, 1, 2, 3, 4);
        SYS_setsockopt => setsockopt(0, 1, 2, 3, 4);
    }
    let Some(worker) = Worker::of_hooked_fiber() else {
        // SAFETY: the arguments are the caller's.
        return unsafe { in_kernel(number, arguments) };
    };
    routes! { number, arguments;
        SYS_read => read(0, 1, 2);
        SYS_readv => readv(0, 1, 2);
        SYS_pread64 => pread(0, 1, 2, 3);
        SYS_preadv => preadv(0, 1, 2, 3);
        SYS_preadv2 => preadv2(0, 1, 2, 3, 5);
        SYS_recvfrom => recvfrom(0, 1, 2, 3, 4, 5);
        SYS_recvmsg => recvmsg(0, 1, 2);
        SYS_recvmmsg => recvmmsg(0, 1, 2, 3, 4);
        SYS_write => write(0, 1, 2);
        SYS_writev => writev(0, 1, 2);
        SYS_sendto => sendto(0, 1, 2, 3, 4, 5);
        SYS_sendmsg => sendmsg(0, 1, 2);
        SYS_sendmmsg => sendmmsg(0, 1, 2, 3);
        SYS_sendfile => sendfile(0, 1, 2, 3);
        SYS_splice => splice(0, 1, 2, 3, 4, 5);
        SYS_tee => tee(0, 1, 2, 3);
        SYS_connect => connect(0, 1, 2);
        SYS_accept => accept(0, 1, 2);
        SYS_accept4 => accept4(0, 1, 2, 3);
        #[cfg(target_arch = "x86_64")] SYS_poll => poll(0, 1, 2);
        SYS_ppoll => ppoll(0, 1, 2, 3);
        #[cfg(target_arch = "x86_64")] SYS_select => select(0, 1, 2, 3, 4);
        #[cfg(target_arch = "x86_64")] SYS_epoll_wait => epoll_wait(0, 1, 2, 3);
        SYS_epoll_pwait => epoll_pwait(0, 1, 2, 3, 4);
        SYS_epoll_pwait2 => epoll_pwait2(0, 1, 2, 3, 4);
        SYS_wait4 => wait4(0, 1, 2, 3);
        SYS_nanosleep => nanosleep(0, 1);
        SYS_sched_yield => sched_yield();
        #[cfg(target_arch = "x86_64")] SYS_pause => pause();
        SYS_rt_sigsuspend => sigsuspend(0);
        #[cfg(target_arch = "x86_64")] SYS_open => open(0, 1, 2);
        SYS_openat => openat(0, 1, 2, 3);
        SYS_fsync => fsync(0);
        SYS_fdatasync => fdatasync(0);
        SYS_flock => flock(0, 1);
    }
    let [a, b, c, d, e, _] = arguments;
    // SAFETY: the arguments are the caller's.
    unsafe {
        match number {
            // The mask comes in another form, and is not looked at.
            libc::SYS_pselect6 => {
                let mask = std::ptr::null();
                Ok(table::pselect(a as c_int, b as _, c as _, d as _, e as _, mask) as isize)
            }
            // What the function does not ask for, the kernel alone can tell.
            libc::SYS_waitid if e == 0 => Ok(table::waitid(a as _, b as _, c as _, d as c_int) as isize),
            // The function does not tell everything that the kernel does.
            libc::SYS_rt_sigtimedwait => {
                let caller = Caller {
                    worker,
                    hook: Hook::sigtimedwait,
                };
                caller.count().calls.increment();
                signal::wait_for_signal(caller, a as _, b as _, c as _)
            }
            // The function gives the error's number.
            libc::SYS_clock_nanosleep => match table::clock_nanosleep(a as _, b as c_int, c as _, d as _) {
                0 => Ok(0),
                error => Err(error),
            },
            _ => in_kernel(number, arguments),
        }
    }
}
