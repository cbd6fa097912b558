//! Semaphores and groups: the second part of the section "Locks" of `fibrant.h`.

use super::argument::{LockName, Releasing, behind, limit, place};
use super::error::{Answer, Errno, INVALID, answer};
use super::mutex::lock;
use fibrant::sync::{Condvar, Mutex, Permit, Semaphore};
use libc::{c_char, c_int};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// `fb_sem`. The name is freed last.
pub struct FbSem {
    semaphore: Semaphore,
    posting: Releasing,
    _name: LockName,
}

/// `fb_group`: Go's, rather than the crate's, which counts its clones. The name is freed last.
pub struct FbGroup {
    counts: Mutex<Counts>,
    is_done: Condvar,
    /// Also those who add, or have waited: any of them may be the last but one to use it.
    using: Releasing,
    _name: LockName,
}

#[derive(Default)]
struct Counts {
    /// How much is to be done.
    left: usize,
    /// How many wait for that, and how often there was nothing left: those who wait began in one of these rounds.
    waiting: usize,
    rounds: u64,
}

const MOST: usize = c_int::MAX as usize;

/// Keeps a permit for the program, if there is one.
fn taken(permit: Option<Permit<'_>>, otherwise: c_int) -> Answer {
    permit.ok_or(Errno(otherwise))?.forget();
    Ok(0)
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sem_create(sem: *mut *mut FbSem, permits: usize, name: *const c_char) -> c_int {
    answer(|| {
        let place = place(sem)?;
        if permits > MOST {
            return Err(INVALID);
        }
        // SAFETY: the program's promise.
        let name = unsafe { LockName::new(name) };
        // SAFETY: the name is freed after the semaphore.
        let semaphore = match unsafe { name.get() } {
            Some(name) => Semaphore::named(name, permits),
            None => Semaphore::new(permits),
        };
        let new = FbSem {
            semaphore,
            posting: Releasing::default(),
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
pub unsafe extern "C" fn fb_sem_destroy(sem: *mut FbSem) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        unsafe { behind(sem)? }.posting.settle();
        // SAFETY: it was made by `fb_sem_create`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(sem) });
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sem_wait(sem: *mut FbSem) -> c_int {
    // SAFETY: the program's promise.
    answer(|| taken(Some(unsafe { behind(sem)? }.semaphore.acquire()), 0))
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sem_trywait(sem: *mut FbSem) -> c_int {
    // SAFETY: the program's promise.
    answer(|| taken(unsafe { behind(sem)? }.semaphore.try_acquire(), libc::EAGAIN))
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sem_wait_timeout(sem: *mut FbSem, timeout: i64) -> c_int {
    let Some(time) = limit(timeout) else {
        // SAFETY: the program's promise.
        return unsafe { fb_sem_wait(sem) };
    };
    answer(|| {
        // SAFETY: the program's promise.
        let semaphore = unsafe { &behind(sem)?.semaphore };
        taken(semaphore.acquire_timeout(time), libc::ETIMEDOUT)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sem_post(sem: *mut FbSem) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let FbSem {
            semaphore, posting, ..
        } = unsafe { behind(sem)? };
        // A few too many, of those who post at the same moment, do no harm: it can have far more.
        if semaphore.available() >= MOST {
            return Err(Errno(libc::EOVERFLOW));
        }
        posting.during(|| semaphore.release(1));
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_sem_value(sem: *const FbSem) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let permits = unsafe { behind(sem)? }.semaphore.available();
        Ok(c_int::try_from(permits).unwrap_or(c_int::MAX))
    })
}

impl FbGroup {
    fn wait(&self, timeout: Option<Duration>) -> Answer {
        /// One who waits: counted.
        struct Waiting<'a>(&'a FbGroup);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.using.during(|| lock(&self.0.counts).waiting -= 1);
            }
        }
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        let mut counts = lock(&self.counts);
        if counts.left == 0 {
            return Ok(0);
        }
        let round = counts.rounds;
        counts.waiting += 1;
        // Dropped after the guard, on every way out.
        let _waiting = Waiting(self);
        let mut counts = counts;
        while counts.rounds == round {
            counts = match deadline {
                None => self.is_done.wait(counts).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Errno(libc::ETIMEDOUT));
                    }
                    let waited = self.is_done.wait_timeout(counts, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(0)
    }
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_group_create(group: *mut *mut FbGroup, name: *const c_char) -> c_int {
    answer(|| {
        let place = place(group)?;
        // SAFETY: the program's promise.
        let name = unsafe { LockName::new(name) };
        let new = FbGroup {
            counts: Mutex::default(),
            // SAFETY: the name is freed after it.
            is_done: unsafe { name.get() }.map_or_else(Condvar::new, Condvar::named),
            using: Releasing::default(),
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
pub unsafe extern "C" fn fb_group_destroy(group: *mut FbGroup) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let unused = unsafe { behind(group)? };
        if lock(&unused.counts).waiting != 0 {
            return Err(Errno(libc::EBUSY));
        }
        unused.using.settle();
        // SAFETY: it was made by `fb_group_create`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(group) });
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_group_add(group: *mut FbGroup, count: usize) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let group = unsafe { behind(group)? };
        group.using.during(|| {
            let mut counts = lock(&group.counts);
            counts.left = counts.left.checked_add(count).ok_or(Errno(libc::EOVERFLOW))?;
            Ok(0)
        })
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_group_done(group: *mut FbGroup) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let group = unsafe { behind(group)? };
        group.using.during(|| {
            let mut counts = lock(&group.counts);
            counts.left = counts.left.checked_sub(1).ok_or(INVALID)?;
            if counts.left == 0 {
                counts.rounds += 1;
                group.is_done.notify_all();
            }
            Ok(0)
        })
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_group_wait(group: *mut FbGroup) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { behind(group)? }.wait(None))
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_group_wait_timeout(group: *mut FbGroup, timeout: i64) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { behind(group)? }.wait(limit(timeout)))
}
