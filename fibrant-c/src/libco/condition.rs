//! Condition variables: first come, first served; a signal does not switch.

use super::set_error;
use fibrant::routine::{Waited, Waker, wait};
use libc::c_int;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A condition variable. Those who wait keep what is in it, so that it may go while they do.
pub struct Condition(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    /// In the order in which they came, each with a number.
    line: VecDeque<(u64, Waker)>,
    next: u64,
}

fn locked(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // Nothing panics halfway through a change.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new condition variable.
#[unsafe(no_mangle)]
pub extern "C" fn co_cond_alloc() -> *mut Condition {
    Box::into_raw(Box::new(Condition(Arc::default())))
}

/// Frees one. Those who wait for it go on when their time is up, if they have one.
///
/// # Safety
/// It is null or came from `co_cond_alloc`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_cond_free(condition: *mut Condition) -> c_int {
    if !condition.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(condition) });
    }
    0
}

/// Lets the one that has waited longest go on, if there is one: the event loop will resume it.
///
/// # Safety
/// The condition variable has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_cond_signal(condition: *mut Condition) -> c_int {
    // SAFETY: the caller's promise.
    let mut waiting = locked(unsafe { &(*condition).0 });
    while let Some((_, waker)) = waiting.line.pop_front() {
        if waker.wake() {
            break;
        }
    }
    0
}

/// Lets all who wait go on.
///
/// # Safety
/// The condition variable has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_cond_broadcast(condition: *mut Condition) -> c_int {
    // SAFETY: the caller's promise.
    for (_, waker) in locked(unsafe { &(*condition).0 }).line.drain(..) {
        waker.wake();
    }
    0
}

/// Waits to be signalled, at most so many milliseconds; for ever, if that is not positive.
///
/// # Safety
/// The condition variable has not been freed.
unsafe fn wait_for(condition: *mut Condition, milliseconds: c_int) -> Waited {
    // SAFETY: the caller's promise.
    let waiting = Arc::clone(unsafe { &(*condition).0 });
    let limit = u64::try_from(milliseconds).ok().filter(|&limit| limit > 0);
    let mut number = None;
    let end = wait(limit.map(Duration::from_millis), |waker| {
        let mut waiting = locked(&waiting);
        let next = waiting.next;
        number = Some(next);
        waiting.next += 1;
        waiting.line.push_back((next, waker));
    });
    // Whoever was not signalled is still in the line; on the main routine, which cannot wait, nobody ever was.
    if let Some(number) = number {
        let mut waiting = locked(&waiting);
        if let Ok(place) = waiting.line.binary_search_by_key(&number, |one| one.0) {
            waiting.line.remove(place);
        }
    }
    end
}

/// Waits to be signalled, at most so many milliseconds; for ever, if that is not positive. Always 0, as in libco; but -1, with `EPERM`,
/// on the main routine, which cannot wait.
///
/// # Safety
/// The condition variable has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_cond_timedwait(condition: *mut Condition, milliseconds: c_int) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { wait_for(condition, milliseconds) } {
        Waited::Woken | Waited::TimedOut => 0,
        Waited::OnMain => {
            set_error(libc::EPERM);
            -1
        }
    }
}

/// The same, and says how it has ended: 0 if it was signalled, `ETIMEDOUT` if the time was up, `EPERM` on the main routine.
///
/// # Safety
/// The condition variable has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_cond_wait_result(condition: *mut Condition, milliseconds: c_int) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { wait_for(condition, milliseconds) } {
        Waited::Woken => 0,
        Waited::TimedOut => libc::ETIMEDOUT,
        Waited::OnMain => libc::EPERM,
    }
}

/// libco's C++ lock `clsCoMutex`, as its header lays it out.
#[repr(C)]
pub struct CoMutex {
    condition: *mut Condition,
    /// Who has it, and who wants it.
    count: c_int,
}

impl CoMutex {
    /// Makes one there.
    ///
    /// # Safety
    /// There is room for one.
    pub unsafe fn construct(place: *mut CoMutex) {
        // SAFETY: the caller's promise.
        unsafe {
            place.write(CoMutex {
                condition: co_cond_alloc(),
                count: 0,
            });
        }
    }

    /// Frees what it has.
    ///
    /// # Safety
    /// It was made, and nobody has or wants it.
    pub unsafe fn destroy(place: *mut CoMutex) {
        // SAFETY: the caller's promise.
        unsafe { co_cond_free((*place).condition) };
    }

    /// Takes it, after those who came before.
    ///
    /// # Safety
    /// It was made.
    pub unsafe fn lock(place: *mut CoMutex) {
        // SAFETY: the caller's promise.
        unsafe {
            (*place).count += 1;
            if (*place).count > 1 {
                co_cond_timedwait((*place).condition, -1);
            }
        }
    }

    /// Passes it on.
    ///
    /// # Safety
    /// It was made, and the caller has it.
    pub unsafe fn unlock(place: *mut CoMutex) {
        // SAFETY: the caller's promise.
        unsafe {
            (*place).count -= 1;
            co_cond_signal((*place).condition);
        }
    }
}
