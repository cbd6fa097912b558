//! Mutexes and condition variables: the first part of the section "Locks" of `fibrant.h`.
//!
//! C has no guards: one is made when the mutex is locked, and forgotten; whoever unlocks gets it back. The mutex itself knows who
//! has locked it. Poisoning means nothing here, as no panic gets past a function of the header.

use super::argument::{LockName, Releasing, behind, limit, place};
use super::error::{Answer, Errno, INVALID, answer, interruption};
use fibrant::defer_cancel;
use fibrant::sync::{Condvar, Mutex, MutexGuard};
use libc::{c_char, c_int};
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire},
};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

/// `fb_mutex`. The name is freed last.
pub struct FbMutex {
    mutex: Mutex<()>,
    unlocking: Releasing,
    _name: LockName,
}

/// `fb_cond`. The name is freed last.
pub struct FbCond {
    condvar: Condvar,
    telling: Releasing,
    /// How many are in a wait.
    waiting: AtomicUsize,
    _name: LockName,
}

/// Locks a mutex, if it is free.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks a mutex that the caller has not locked. Being cancelled does not end the wait: as with pthread's, whoever cleans up must be able to
/// lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    try_lock(mutex).unwrap_or_else(|| {
        let _guard = defer_cancel();
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    })
}

impl FbMutex {
    /// The guard that was forgotten, if the caller is the one that has locked the mutex.
    fn guard(&self) -> Result<MutexGuard<'_, ()>, Errno> {
        match self.mutex.is_mine() {
            // SAFETY: the caller has locked it by a function of this file, all of which forget the guard.
            true => Ok(unsafe { self.mutex.guard() }),
            false => Err(Errno(libc::EPERM)),
        }
    }
}

/// One who waits for a condition: counted.
struct Waiting<'a>(&'a FbCond);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, AcqRel);
    }
}

impl FbCond {
    fn wait(&self, mutex: &FbMutex, timeout: Option<Duration>) -> Answer {
        let guard = mutex.guard()?;
        self.waiting.fetch_add(1, AcqRel);
        let _waiting = Waiting(self);
        let waited = panic::catch_unwind(AssertUnwindSafe(|| self.condvar.try_wait(guard, timeout)));
        let (guard, result) = match waited {
            Ok(Ok((guard, false))) => (guard, Ok(0)),
            Ok(Ok((guard, true))) => (guard, Err(Errno(libc::ETIMEDOUT))),
            Ok(Err(guard)) => (guard, Err(INVALID)),
            // A wait that unwinds does so without the mutex. Who is cancelled has to clean up, and needs it.
            Err(payload) => (lock(&mutex.mutex), Err(interruption(&*payload))),
        };
        mem::forget(guard);
        result
    }
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_mutex_create(mutex: *mut *mut FbMutex, name: *const c_char) -> c_int {
    answer(|| {
        let place = place(mutex)?;
        // SAFETY: the program's promise.
        let name = unsafe { LockName::new(name) };
        // SAFETY: the name is freed after the mutex.
        let mutex = match unsafe { name.get() } {
            Some(name) => Mutex::named(name, ()),
            None => Mutex::new(()),
        };
        let new = FbMutex {
            mutex,
            unlocking: Releasing::default(),
            _name: name,
        };
        // SAFETY: the program's promise.
        unsafe { place.write(Box::into_raw(Box::new(new))) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_mutex_destroy(mutex: *mut FbMutex) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let unused = unsafe { behind(mutex)? };
        drop(try_lock(&unused.mutex).ok_or(Errno(libc::EBUSY))?);
        unused.unlocking.settle();
        // SAFETY: it was made by `fb_mutex_create`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(mutex) });
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_mutex_lock(mutex: *mut FbMutex) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let mutex = unsafe { &behind(mutex)?.mutex };
        let guard = match try_lock(mutex) {
            Some(guard) => guard,
            None if mutex.is_mine() => return Err(Errno(libc::EDEADLK)),
            None => lock(mutex),
        };
        mem::forget(guard);
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_mutex_trylock(mutex: *mut FbMutex) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let guard = try_lock(unsafe { &behind(mutex)?.mutex });
        mem::forget(guard.ok_or(Errno(libc::EBUSY))?);
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_mutex_unlock(mutex: *mut FbMutex) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let mutex = unsafe { behind(mutex)? };
        let guard = mutex.guard()?;
        mutex.unlocking.during(|| drop(guard));
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_cond_create(cond: *mut *mut FbCond, name: *const c_char) -> c_int {
    answer(|| {
        let place = place(cond)?;
        // SAFETY: the program's promise.
        let name = unsafe { LockName::new(name) };
        let new = FbCond {
            // SAFETY: the name is freed after the condition variable.
            condvar: unsafe { name.get() }.map_or_else(Condvar::new, Condvar::named),
            telling: Releasing::default(),
            waiting: AtomicUsize::new(0),
            _name: name,
        };
        // SAFETY: the program's promise.
        unsafe { place.write(Box::into_raw(Box::new(new))) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_cond_destroy(cond: *mut FbCond) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let unused = unsafe { behind(cond)? };
        if unused.waiting.load(Acquire) != 0 {
            return Err(Errno(libc::EBUSY));
        }
        unused.telling.settle();
        // SAFETY: it was made by `fb_cond_create`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(cond) });
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_cond_wait(cond: *mut FbCond, mutex: *mut FbMutex) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { behind(cond)?.wait(behind(mutex)?, None) })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_cond_wait_timeout(cond: *mut FbCond, mutex: *mut FbMutex, timeout: i64) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { behind(cond)?.wait(behind(mutex)?, limit(timeout)) })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_cond_signal(cond: *mut FbCond) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let cond = unsafe { behind(cond)? };
        cond.telling.during(|| cond.condvar.notify_one());
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_cond_broadcast(cond: *mut FbCond) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let cond = unsafe { behind(cond)? };
        cond.telling.during(|| cond.condvar.notify_all());
        Ok(0)
    })
}
