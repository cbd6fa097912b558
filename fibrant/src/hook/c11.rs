//! C11's names for threads and locks. In the C library these are the functions of pthreads under the hood, which they call past the
//! hooks; the objects are the same. So these do the same as `lock`, `condition`, `barrier` and `child`, with other results.

use super::barrier::{self, Initialiser};
use super::child;
use super::condition;
use super::lock;
use super::retry::{Answer, Caller};
use libc::{c_int, c_void, pthread_cond_t, pthread_mutex_t, pthread_once_t, pthread_t, timespec};

// What C11's functions say.
const SUCCESS: c_int = 0;
const BUSY: c_int = 1;
pub(super) const ERROR: c_int = 2;
const NO_MEMORY: c_int = 3;
const TIMED_OUT: c_int = 4;

/// An error's number in C11's terms.
fn told(result: c_int) -> c_int {
    match result {
        0 => SUCCESS,
        libc::EBUSY => BUSY,
        libc::ENOMEM => NO_MEMORY,
        libc::ETIMEDOUT => TIMED_OUT,
        _ => ERROR,
    }
}

/// # Safety
/// As `mtx_lock`.
pub(super) unsafe fn mtx_lock(caller: Option<Caller>, mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise.
    told(unsafe { lock::mutex_lock(caller, mutex) })
}

/// # Safety
/// As `mtx_timedlock`.
pub(super) unsafe fn mtx_timedlock(
    caller: Option<Caller>,
    mutex: *mut pthread_mutex_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    told(unsafe { lock::mutex_timedlock(caller, mutex, time) })
}

/// # Safety
/// As `mtx_unlock`.
pub(super) unsafe fn mtx_unlock(caller: Option<Caller>, mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise.
    told(unsafe { lock::mutex_unlock(caller, mutex) })
}

/// # Safety
/// As `cnd_wait`.
pub(super) unsafe fn cnd_wait(
    caller: Option<Caller>,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
) -> c_int {
    // SAFETY: the caller's promise.
    told(unsafe { condition::wait(caller, condition, mutex) })
}

/// # Safety
/// As `cnd_timedwait`.
pub(super) unsafe fn cnd_timedwait(
    caller: Option<Caller>,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    told(unsafe { condition::timedwait(caller, condition, mutex, time) })
}

/// # Safety
/// As `cnd_signal`.
pub(super) unsafe fn cnd_signal(caller: Option<Caller>, condition: *mut pthread_cond_t) -> c_int {
    // SAFETY: the caller's promise.
    told(unsafe { condition::signal(caller, condition) })
}

/// # Safety
/// As `cnd_broadcast`.
pub(super) unsafe fn cnd_broadcast(caller: Option<Caller>, condition: *mut pthread_cond_t) -> c_int {
    // SAFETY: the caller's promise.
    told(unsafe { condition::broadcast(caller, condition) })
}

/// # Safety
/// As `call_once`.
pub(super) unsafe fn call_once(
    caller: Option<Caller>,
    flag: *mut pthread_once_t,
    initialise: Option<Initialiser>,
) {
    // SAFETY: the caller's promise.
    unsafe { barrier::once(caller, flag, initialise) };
}

/// # Safety
/// As `thrd_join`.
pub(super) unsafe fn thrd_join(caller: Caller, thread: pthread_t, result: *mut c_int) -> Answer {
    let mut value: *mut c_void = std::ptr::null_mut();
    // SAFETY: the caller's promise; writes to a local variable.
    let error = unsafe { child::pthread_join(caller, thread, &mut value) }?;
    if error == 0 && !result.is_null() {
        // SAFETY: there is room for it.
        unsafe { *result = value.addr() as c_int };
    }
    Ok(told(error as c_int) as isize)
}
