//! Condition variables: everybody, fiber or thread, waits for them in user space.
//!
//! Whoever waits enters the table of [`address`] while it still has the mutex, and then releases that the way everybody does: so a signal
//! that is given after that finds it, and those who wait for the mutex are told. Threads must wait there, too: inside the C library
//! they would release the mutex without telling anybody.
//!
//! A signal wakes one of those in the table. Only if there is none, or every other time if somebody waits inside the C library as well
//! (who came there past the hooks), does it go to the C library.
//!
//! A condition that other processes use is the C library's own: there a thread waits in the fiber's place. It waits with a mutex of its
//! own, and the fiber releases the real one as soon as that thread waits, so that the mutex is always released and taken by its owner.

use super::layout;
use super::lock::{self, Until, note_fed, parking, real, reals, who};
use super::retry::Caller;
use crate::clock;
use crate::sync::address::{self, End, Key, Space};
use crate::sys;
use libc::{c_int, clockid_t, pthread_cond_t, pthread_mutex_t, pthread_t, timespec};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};

/// How long a wait until some time of a clock that can be set lasts at most: nanoseconds.
const LOOK_AT_CLOCK_AFTER: u64 = 30_000_000_000;

type Wait = unsafe extern "C-unwind" fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
type TimedWait =
    unsafe extern "C-unwind" fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
type ClockWait = unsafe extern "C-unwind" fn(
    *mut pthread_cond_t,
    *mut pthread_mutex_t,
    clockid_t,
    *const timespec,
) -> c_int;
type OfCondition = unsafe extern "C" fn(*mut pthread_cond_t) -> c_int;
type OfMutex = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;

unsafe extern "C-unwind" {
    /// Ends the calling thread, by unwinding, if it was told to end.
    fn pthread_testcancel();
}

reals! {
    WAIT: Wait = c"pthread_cond_wait" c"GLIBC_2.3.2";
    TIMEDWAIT: TimedWait = c"pthread_cond_timedwait" c"GLIBC_2.3.2";
    CLOCKWAIT: ClockWait = c"pthread_cond_clockwait";
    SIGNAL: OfCondition = c"pthread_cond_signal" c"GLIBC_2.3.2";
    BROADCAST: OfCondition = c"pthread_cond_broadcast" c"GLIBC_2.3.2";
    CANCEL: unsafe extern "C" fn(pthread_t) -> c_int = c"pthread_cancel";
    MUTEX_LOCK: OfMutex = c"pthread_mutex_lock";
    MUTEX_TRYLOCK: OfMutex = c"pthread_mutex_trylock";
    MUTEX_UNLOCK: OfMutex = c"pthread_mutex_unlock";
}

/// Waits for a condition. `pass` calls the C library's function, with that mutex.
///
/// # Safety
/// They are a condition and a mutex that the caller has locked.
unsafe fn wait_for(
    caller: Option<Caller>,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: impl FnOnce(u32) -> Result<Until, c_int>,
    pass: impl Fn(*mut pthread_mutex_t) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(word) = (unsafe { layout::CONDITION.of(condition) }) else {
        return pass(mutex);
    };
    let is_shared = word & layout::CONDITION_SHARED != 0;
    if sys::is_forked() || !layout::knows_mutexes() || is_shared && caller.is_none() {
        return pass(mutex);
    }
    let until = match until(word) {
        Ok(until) => until,
        Err(error) => return error,
    };
    // SAFETY: the caller's promise.
    unsafe {
        // The C library finds this out when it releases the mutex; then it would be too late here.
        let kind = layout::kind(mutex);
        let has_owner = matches!(layout::type_of(kind), layout::RECURSIVE | layout::CHECKED);
        if has_owner && layout::owner(mutex) != lock::own_number(kind) {
            return libc::EPERM;
        }
        if let Some(caller) = caller.filter(|_| is_shared) {
            let result = wait_by_thread(caller, mutex, &pass);
            return result_with(result, lock::mutex_lock(Some(caller), mutex));
        }
        wait_in_table(caller, condition, mutex, until)
    }
}

/// What a wait gives: what came of the mutex, if that is worse.
fn result_with(result: c_int, of_mutex: c_int) -> c_int {
    if of_mutex == 0 { result } else { of_mutex }
}

/// Releases the mutex, waits, and takes it again. A thread that is told to end meanwhile does so here, with the mutex, as its handlers
/// expect.
///
/// # Safety
/// They are a condition and a mutex that the caller has locked.
unsafe fn wait_in_table(
    caller: Option<Caller>,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: Until,
) -> c_int {
    let key = Key::new(Space::Condition, condition.addr());
    let interruptions = address::interruptions();
    match caller {
        Some(caller) => caller.count().would_block.increment(),
        // SAFETY: nothing is to be cleaned up here.
        None => unsafe { pthread_testcancel() },
    }
    let deadline = until.deadline_within(LOOK_AT_CLOCK_AFTER);
    let mut is_released = false;
    let end = parking(caller, || {
        address::wait_entered(who(caller), key, deadline, interruptions, || {
            is_released = true;
            // SAFETY: the caller has locked it.
            unsafe { lock::mutex_unlock_and_stay(mutex) };
        })
    });
    note_fed(caller, key.address);
    let result = match end {
        // Whoever was woken must not say that its time is up: the signal would be lost.
        End::TimedOut if until.is_over() => libc::ETIMEDOUT,
        // If its clock was set, it is a wake for no reason, which a condition may always give.
        _ => 0,
    };
    let of_mutex = if is_released {
        // SAFETY: it is a mutex.
        unsafe { lock::mutex_lock(caller, mutex) }
    } else {
        0
    };
    if end == End::Unexpected && caller.is_none() {
        // SAFETY: nothing is to be cleaned up here.
        unsafe { pthread_testcancel() };
    }
    result_with(result, of_mutex)
}

/// Tells a thread to end, and ends its wait for a condition: inside the C library it would notice.
///
/// # Safety
/// As `pthread_cancel`.
pub(super) unsafe fn cancel(_: Option<Caller>, thread: pthread_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { real!(CANCEL(thread)) };
    if result == 0 && !sys::is_forked() {
        address::interrupt(thread);
    }
    result
}

/// What a thread that waits in a fiber's place shares with it: in the fiber's frame.
struct Errand {
    /// Locked by the thread until it waits.
    mutex: UnsafeCell<pthread_mutex_t>,
    is_locked: AtomicBool,
}

// SAFETY: the mutex is made for being used by several threads.
unsafe impl Sync for Errand {}

/// The result of what is not over yet.
const PENDING: c_int = -1;

/// Waits in the C library, on a thread, and releases the mutex.
///
/// # Safety
/// It is a mutex that the caller has locked, and a condition is waited for by `pass`.
unsafe fn wait_by_thread(
    caller: Caller,
    mutex: *mut pthread_mutex_t,
    pass: &dyn Fn(*mut pthread_mutex_t) -> c_int,
) -> c_int {
    let errand = Errand {
        mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
        is_locked: AtomicBool::new(false),
    };
    let own = errand.mutex.get();
    let work = || {
        // SAFETY: it is the errand's own, which stays until this is over.
        unsafe {
            real!(MUTEX_LOCK(own));
            errand.is_locked.store(true, Release);
            let result = pass(own);
            real!(MUTEX_UNLOCK(own));
            result
        }
    };
    // SAFETY: what it uses is here until it is over, and is made for several threads.
    let result = unsafe {
        on_a_thread(caller, &work, || {
            let mut pause = 20_000;
            // When it has let go of its own mutex, it waits.
            while !errand.is_locked.load(Acquire) || real!(MUTEX_TRYLOCK(own)) != 0 {
                caller.sleep_until(clock::now() + pause);
                pause = (2 * pause).min(1_000_000);
            }
            real!(MUTEX_UNLOCK(own));
            lock::mutex_unlock(Some(caller), mutex);
        })
    };
    // Without a thread to be had it is a wake for no reason, which a condition may always give.
    result.unwrap_or_else(|| {
        // SAFETY: the caller has locked it.
        unsafe { lock::mutex_unlock(Some(caller), mutex) };
        caller.sleep_until(clock::now() + 1_000_000);
        0
    })
}

/// Makes a call on a thread of its own, while the fiber does `meanwhile` and then waits for its result. Not on one of the pool's: these
/// calls wait for each other, and the pool has an end. `None`, if there is no thread to be had.
///
/// # Safety
/// What `call` uses may be used on another thread while the fiber waits.
pub(super) unsafe fn on_a_thread(
    caller: Caller,
    call: &dyn Fn() -> c_int,
    meanwhile: impl FnOnce(),
) -> Option<c_int> {
    /// May go to the thread: see above.
    struct Parcel(*const dyn Fn() -> c_int, *const AtomicI32);
    // SAFETY: the caller's promise.
    unsafe impl Send for Parcel {}
    impl Parcel {
        /// # Safety
        /// Both are there until the result is.
        unsafe fn deliver(self) {
            // SAFETY: the caller's promise. With the result the fiber may be gone: then its address is only a name.
            unsafe {
                let (result, place) = ((*self.0)(), self.1);
                (*place).store(result, SeqCst);
                let _ = address::wake_all(Key::new(Space::Condition, place.addr()));
            }
        }
    }
    let result = AtomicI32::new(PENDING);
    // SAFETY: only the lifetime is removed: this waits until the thread has used it for the last time.
    let call = unsafe {
        std::mem::transmute::<*const dyn Fn() -> c_int, *const (dyn Fn() -> c_int + 'static)>(call)
    };
    let parcel = Parcel(call, &raw const result);
    let made = std::thread::Builder::new()
        .name("fibrant-waiter".to_owned())
        // SAFETY: this frame stays until there is a result.
        .spawn(move || unsafe { parcel.deliver() });
    if made.is_err() {
        return None;
    }
    caller.count().offloads.increment();
    meanwhile();
    let key = Key::new(Space::Condition, (&raw const result).addr());
    caller.parking(|| {
        while result.load(SeqCst) == PENDING {
            let is_pending = || result.load(SeqCst) == PENDING;
            address::wait(
                who(Some(caller)),
                key,
                address::ALL_BITS,
                clock::NEVER,
                is_pending,
            );
        }
    });
    Some(result.load(SeqCst))
}

/// # Safety
/// As `pthread_cond_wait`.
pub(super) unsafe fn wait(
    caller: Option<Caller>,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = |_| Ok(Until::Never);
        wait_for(caller, condition, mutex, until, |mutex| {
            real!(WAIT(condition, mutex))
        })
    }
}

/// # Safety
/// As `pthread_cond_timedwait`.
pub(super) unsafe fn timedwait(
    caller: Option<Caller>,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = |word| {
            let clock = match word & layout::CONDITION_MONOTONIC {
                0 => libc::CLOCK_REALTIME,
                _ => libc::CLOCK_MONOTONIC,
            };
            Until::at(clock, time)
        };
        wait_for(caller, condition, mutex, until, |mutex| {
            real!(TIMEDWAIT(condition, mutex, time))
        })
    }
}

/// # Safety
/// As `pthread_cond_clockwait`.
pub(super) unsafe fn clockwait(
    caller: Option<Caller>,
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = |_| Until::at(clock, time);
        wait_for(caller, condition, mutex, until, |mutex| {
            real!(CLOCKWAIT(condition, mutex, clock, time))
        })
    }
}

/// # Safety
/// As `pthread_cond_signal`.
pub(super) unsafe fn signal(_: Option<Caller>, condition: *mut pthread_cond_t) -> c_int {
    /// Whose turn it is, if both could be woken.
    static TURN: AtomicBool = AtomicBool::new(false);
    let key = Key::new(Space::Condition, condition.addr());
    if !address::may_have_waiters(key) {
        // SAFETY: the caller's promise.
        return unsafe { real!(SIGNAL(condition)) };
    }
    // SAFETY: the caller's promise.
    let inside = unsafe { layout::CONDITION.of(condition) }.map_or(0, layout::waiters_inside);
    if inside == 0 || TURN.fetch_xor(true, Relaxed) {
        let woken = address::wake(key, 1, address::ALL_BITS);
        if woken.count > 0 {
            return 0;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { real!(SIGNAL(condition)) }
}

/// # Safety
/// As `pthread_cond_broadcast`.
pub(super) unsafe fn broadcast(_: Option<Caller>, condition: *mut pthread_cond_t) -> c_int {
    let key = Key::new(Space::Condition, condition.addr());
    if address::may_have_waiters(key) {
        let _ = address::wake_all(key);
    }
    // SAFETY: the caller's promise.
    unsafe { real!(BROADCAST(condition)) }
}
