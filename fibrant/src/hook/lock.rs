//! Mutexes, locks for readers and writers, and semaphores: whoever finds one taken waits in user space.
//!
//! The C library's objects stay the truth: they are taken and released by its own functions, so that initialisers, attributes and
//! ownership are as ever. Only the waiting is ours. To take a lock is to *try*; whoever fails waits in the table of
//! [`address`], where the last look, under the table's lock, is one more try. To release it is to release the
//! real one and then to look into the table; this is done for everyone, fiber or thread, as nothing in the lock says who waits.
//!
//! Threads wait in the table, too, if it is there: so all stand in one line, and neither fibers nor threads are passed over. For
//! semaphores they do not, because a signal may end that wait of a thread.
//!
//! What other processes use as well is never waited for in the table, which is this process's; nor are robust mutexes, which the
//! kernel releases if their owner dies. A fiber tries such a lock again and again. A mutex with a priority protocol is the C library's
//! and the kernel's business: there a fiber blocks its worker.

use super::layout;
use super::retry::{Caller, try_again};
use super::thread::at_home;
use crate::clock;
use crate::fiber::Thread;
use crate::scheduler::event_loop::EventLoop;
use crate::sync::address::{self, ALL_BITS, End, Key, Space, Who};
use crate::sys;
use libc::{c_int, clockid_t, pthread_mutex_t, pthread_rwlock_t, sem_t, timespec};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// How long a wait until some time of a clock that can be set lasts at most before the clock is looked at again.
const LOOK_AT_CLOCK_AFTER: u64 = 1_000_000_000;

/// How long a reader lets writers go first that it knows nothing about: nanoseconds.
const READERS_PATIENCE: u64 = 5_000_000;

/// When a call gives up.
#[derive(Clone, Copy)]
pub(super) enum Until {
    Never,
    /// When that clock shows so many nanoseconds.
    At(clockid_t, u64),
}

impl Until {
    /// The time that a caller has given.
    ///
    /// # Safety
    /// It is a time.
    pub(super) unsafe fn at(clock: clockid_t, time: *const timespec) -> Result<Until, c_int> {
        if !is_clock(clock) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        let time = unsafe { *time };
        if !(0..1_000_000_000).contains(&time.tv_nsec) {
            return Err(libc::EINVAL);
        }
        let nanoseconds = match u64::try_from(time.tv_sec) {
            Ok(seconds) => seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(time.tv_nsec as u64),
            Err(_) => 0, // long ago
        };
        Ok(Until::At(clock, nanoseconds))
    }

    /// How long to wait before it is asked again whether the time is up: a moment of the monotonic clock.
    fn deadline(self) -> u64 {
        self.deadline_within(LOOK_AT_CLOCK_AFTER)
    }

    /// The same, with a limit for clocks that can be set.
    pub(super) fn deadline_within(self, limit: u64) -> u64 {
        match self {
            Until::Never => clock::NEVER,
            Until::At(libc::CLOCK_MONOTONIC, time) => time,
            Until::At(clock, time) => {
                let rest = time.saturating_sub(super::time::reading(clock));
                clock::now().saturating_add(rest.min(limit))
            }
        }
    }

    pub(super) fn is_over(self) -> bool {
        match self {
            Until::Never => false,
            Until::At(clock, time) => super::time::reading(clock) >= time,
        }
    }
}

/// Whether the C library takes times of this clock.
pub(super) fn is_clock(clock: clockid_t) -> bool {
    matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC)
}

/// Who calls, for the table.
pub(super) fn who(caller: Option<Caller>) -> Who<'static> {
    caller.map_or(Who::Thread, |caller| Who::Fiber(caller.worker))
}

/// Calls `wait`, in which the caller waits: if it is a fiber, dumps show the call meanwhile.
pub(super) fn parking<R>(caller: Option<Caller>, wait: impl FnOnce() -> R) -> R {
    match caller {
        Some(caller) => {
            caller.count().parks.increment();
            caller.parking(wait)
        }
        None => wait(),
    }
}

/// Whoever has waited got it: it did not wait in vain.
pub(super) fn note_fed(caller: Option<Caller>, address: usize) {
    address::note_fed(caller.map(|caller| caller.worker), address);
}

/// After how long a thread that has an event loop looks again for what it waits for: nanoseconds.
const LOOK_AGAIN_AFTER: u64 = 1_000_000;

/// Waits until `attempt`, which has just failed, does not say `EBUSY` any more; `ETIMEDOUT` if the time is up first.
pub(super) fn acquire(
    caller: Option<Caller>,
    key: Key,
    bits: u32,
    until: Until,
    attempt: &dyn Fn() -> c_int,
) -> c_int {
    if let Some(caller) = caller {
        caller.count().would_block.increment();
    }
    let last = Cell::new(libc::EBUSY);
    let fails = || {
        last.set(attempt());
        last.get() == libc::EBUSY
    };
    loop {
        // Whoever was woken, or gave up, tries once more before it waits again.
        let deadline = match caller {
            // Whoever is woken in its stead may be a coroutine that only this thread can resume: it looks again, soon.
            None if EventLoop::existing().is_some() => until.deadline().min(clock::now() + LOOK_AGAIN_AFTER),
            _ => until.deadline(),
        };
        let end = parking(caller, || address::wait(who(caller), key, bits, deadline, fails));
        if end == End::Unexpected || !fails() {
            note_fed(caller, key.address);
            return last.get();
        }
        if until.is_over() {
            return libc::ETIMEDOUT;
        }
    }
}

/// The same for what is never waited for in the table: it is tried again and again.
fn try_until(caller: Caller, until: Until, attempt: &dyn Fn() -> c_int) -> c_int {
    caller.count().would_block.increment();
    loop {
        let answer = try_again(caller, until.deadline(), &mut || match attempt() {
            libc::EBUSY => -(libc::EAGAIN as isize),
            result => result as isize,
        });
        match answer {
            Ok(result) => return result as c_int,
            Err(_) if until.is_over() => return libc::ETIMEDOUT,
            Err(_) => {}
        }
    }
}

/// Wakes one of those who wait for what was just released.
#[inline]
fn release(key: Key) {
    if address::may_have_waiters(key) && !sys::is_forked() {
        let woken = address::wake(key, 1, ALL_BITS);
        address::give_way_after(woken);
    }
}

/// A function of the C library's with one argument.
type Of<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// Functions of the C library's.
macro_rules! reals {
    ($($name:ident: $type:ty = $real:literal $($version:literal)?;)*) => {
        $(
            static $name: super::real::Real<$type> =
                // SAFETY: it is of this type.
                unsafe { $crate::hook::lock::reals!(@new $real $($version)?) };
        )*
    };
    (@new $real:literal) => {
        super::real::Real::new($real)
    };
    (@new $real:literal $version:literal) => {
        super::real::Real::versioned($real, $version)
    };
}
pub(super) use reals;

/// Calls one of them.
macro_rules! real {
    ($name:ident($($argument:expr),*)) => {
        match $name.get() {
            Some(real) => real($($argument),*),
            None => libc::ENOSYS,
        }
    };
}
pub(super) use real;

type OfTime<T> = unsafe extern "C" fn(*mut T, *const timespec) -> c_int;
type OfClock<T> = unsafe extern "C" fn(*mut T, clockid_t, *const timespec) -> c_int;

reals! {
    MUTEX_LOCK: Of<pthread_mutex_t> = c"pthread_mutex_lock";
    MUTEX_TRYLOCK: Of<pthread_mutex_t> = c"pthread_mutex_trylock";
    MUTEX_TIMEDLOCK: OfTime<pthread_mutex_t> = c"pthread_mutex_timedlock";
    MUTEX_CLOCKLOCK: OfClock<pthread_mutex_t> = c"pthread_mutex_clocklock";
    MUTEX_UNLOCK: Of<pthread_mutex_t> = c"pthread_mutex_unlock";
    RWLOCK_RDLOCK: Of<pthread_rwlock_t> = c"pthread_rwlock_rdlock";
    RWLOCK_TRYRDLOCK: Of<pthread_rwlock_t> = c"pthread_rwlock_tryrdlock";
    RWLOCK_TIMEDRDLOCK: OfTime<pthread_rwlock_t> = c"pthread_rwlock_timedrdlock";
    RWLOCK_CLOCKRDLOCK: OfClock<pthread_rwlock_t> = c"pthread_rwlock_clockrdlock";
    RWLOCK_WRLOCK: Of<pthread_rwlock_t> = c"pthread_rwlock_wrlock";
    RWLOCK_TRYWRLOCK: Of<pthread_rwlock_t> = c"pthread_rwlock_trywrlock";
    RWLOCK_TIMEDWRLOCK: OfTime<pthread_rwlock_t> = c"pthread_rwlock_timedwrlock";
    RWLOCK_CLOCKWRLOCK: OfClock<pthread_rwlock_t> = c"pthread_rwlock_clockwrlock";
    RWLOCK_UNLOCK: Of<pthread_rwlock_t> = c"pthread_rwlock_unlock";
    SEM_WAIT: Of<sem_t> = c"sem_wait";
    SEM_TRYWAIT: Of<sem_t> = c"sem_trywait";
    SEM_TIMEDWAIT: OfTime<sem_t> = c"sem_timedwait";
    SEM_CLOCKWAIT: OfClock<sem_t> = c"sem_clockwait";
    SEM_POST: Of<sem_t> = c"sem_post";
}

/// Locks a mutex. `pass` calls the C library's function instead.
///
/// # Safety
/// It is a mutex.
#[inline]
unsafe fn lock_mutex(
    caller: Option<Caller>,
    mutex: *mut pthread_mutex_t,
    until: impl FnOnce() -> Result<Until, c_int>,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let kind = unsafe { layout::kind(mutex) };
    if has_protocol(kind) {
        return at_home(pass);
    }
    if MUTEX_TRYLOCK.get().is_none() || sys::is_forked() {
        return pass();
    }
    // SAFETY: the caller's promise.
    match unsafe { try_lock(mutex, kind) } {
        // SAFETY: as above.
        libc::EBUSY => unsafe { lock_taken_mutex(caller, mutex, kind, until, pass) },
        result => result,
    }
}

/// # Safety
/// It is a mutex of that kind.
#[cold]
unsafe fn lock_taken_mutex(
    caller: Option<Caller>,
    mutex: *mut pthread_mutex_t,
    kind: u32,
    until: impl FnOnce() -> Result<Until, c_int>,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    let is_foreign = kind & (layout::SHARED | layout::ROBUST) != 0;
    // A thread does not make the table: it may be in the middle of an allocation.
    if !layout::knows_mutexes() || caller.is_none() && (is_foreign || !address::is_made()) {
        return pass();
    }
    // SAFETY: the caller's promise.
    if layout::type_of(kind) == layout::CHECKED && unsafe { layout::owner(mutex) } == own_number(kind) {
        return libc::EDEADLK;
    }
    let until = match until() {
        Ok(until) => until,
        Err(error) => return error,
    };
    // SAFETY: the caller's promise.
    let attempt = || unsafe { try_lock(mutex, kind) };
    match caller {
        Some(caller) if is_foreign => try_until(caller, until, &attempt),
        _ => acquire(
            caller,
            Key::new(Space::Mutex, mutex.addr()),
            ALL_BITS,
            until,
            &attempt,
        ),
    }
}

/// # Safety
/// As `pthread_mutex_lock`.
pub(super) unsafe fn mutex_lock(caller: Option<Caller>, mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { lock_mutex(caller, mutex, || Ok(Until::Never), || real!(MUTEX_LOCK(mutex))) }
}

/// # Safety
/// As `pthread_mutex_timedlock`.
pub(super) unsafe fn mutex_timedlock(
    caller: Option<Caller>,
    mutex: *mut pthread_mutex_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = || Until::at(libc::CLOCK_REALTIME, time);
        lock_mutex(caller, mutex, until, || real!(MUTEX_TIMEDLOCK(mutex, time)))
    }
}

/// # Safety
/// As `pthread_mutex_clocklock`.
pub(super) unsafe fn mutex_clocklock(
    caller: Option<Caller>,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    time: *const timespec,
) -> c_int {
    if !is_clock(clock) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let until = || Until::at(clock, time);
        lock_mutex(caller, mutex, until, || {
            real!(MUTEX_CLOCKLOCK(mutex, clock, time))
        })
    }
}

/// Whether a mutex of this kind has a priority protocol.
fn has_protocol(kind: u32) -> bool {
    kind & (layout::INHERITS_PRIORITY | layout::PROTECTS_PRIORITY) != 0
}

/// Whether the kernel has to do with the owner of a mutex of this kind: lends it priority, or releases the mutex if it dies. It knows
/// threads only. So a fiber takes and releases such a mutex as its worker.
fn is_kernels(kind: u32) -> bool {
    has_protocol(kind) || kind & layout::ROBUST != 0
}

/// The number by which a mutex of this kind knows the caller.
pub(super) fn own_number(kind: u32) -> u32 {
    if is_kernels(kind) {
        at_home(layout::own_number)
    } else {
        layout::own_number()
    }
}

/// Tries to take a mutex of that kind.
///
/// # Safety
/// It is one.
#[inline]
unsafe fn try_lock(mutex: *mut pthread_mutex_t, kind: u32) -> c_int {
    // SAFETY: the caller's promise.
    let attempt = || unsafe { real!(MUTEX_TRYLOCK(mutex)) };
    if is_kernels(kind) {
        at_home(attempt)
    } else {
        attempt()
    }
}

/// # Safety
/// As `pthread_mutex_trylock`.
pub(super) unsafe fn mutex_trylock(_: Option<Caller>, mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { try_lock(mutex, layout::kind(mutex)) }
}

/// # Safety
/// As `pthread_mutex_unlock`.
unsafe fn unlock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let is_kernels = is_kernels(layout::kind(mutex));
        let release = || real!(MUTEX_UNLOCK(mutex));
        if is_kernels { at_home(release) } else { release() }
    }
}

/// # Safety
/// As `pthread_mutex_unlock`.
pub(super) unsafe fn mutex_unlock(_: Option<Caller>, mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { unlock(mutex) };
    if result == 0 {
        // From here on the mutex may be gone: its address is only a name.
        release(Key::new(Space::Mutex, mutex.addr()));
    }
    result
}

/// The same for whoever is about to wait: it does not let others run.
///
/// # Safety
/// As `pthread_mutex_unlock`.
pub(super) unsafe fn mutex_unlock_and_stay(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { unlock(mutex) };
    if result == 0 {
        let _ = address::wake(Key::new(Space::Mutex, mutex.addr()), 1, ALL_BITS);
    }
    result
}

// Who waits for a lock for readers and writers.
const READER: u32 = 1;
const WRITER: u32 = 2;

/// How many writers wait for locks that let writers go first, by address.
static WRITERS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

fn writers_of(lock: *const pthread_rwlock_t) -> &'static AtomicU32 {
    &WRITERS[lock.addr() / align_of::<pthread_rwlock_t>() % WRITERS.len()]
}

/// Locks it, for a reader or a writer. `pass` calls the C library's function instead.
///
/// # Safety
/// It is such a lock.
#[inline]
unsafe fn lock_rwlock(
    caller: Option<Caller>,
    lock: *mut pthread_rwlock_t,
    role: u32,
    until: Result<Until, c_int>,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // It is looked at first, as by the C library.
    let until = match until {
        Ok(until) => until,
        Err(error) => return error,
    };
    if sys::is_forked() {
        return pass();
    }
    let attempt = || {
        // SAFETY: the caller's promise.
        unsafe {
            match role {
                READER => real!(RWLOCK_TRYRDLOCK(lock)),
                _ => real!(RWLOCK_TRYWRLOCK(lock)),
            }
        }
    };
    let goes_second = role == READER && writers_of(lock).load(Relaxed) > 0;
    if !goes_second {
        match attempt() {
            libc::EBUSY => {}
            result => return result,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { lock_taken_rwlock(caller, lock, role, until, &attempt, pass) }
}

/// # Safety
/// It is such a lock.
#[cold]
unsafe fn lock_taken_rwlock(
    caller: Option<Caller>,
    lock: *mut pthread_rwlock_t,
    role: u32,
    until: Until,
    attempt: &dyn Fn() -> c_int,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let is_shared = unsafe { layout::RWLOCK_SHARED.of(lock) };
    let is_foreign = is_shared != Some(0);
    if is_shared.is_none() || caller.is_none() && (is_foreign || !address::is_made()) {
        return pass();
    }
    // SAFETY: the caller's promise.
    let (kind, writer) = unsafe { (layout::RWLOCK_KIND.of(lock), layout::RWLOCK_WRITER.of(lock)) };
    if writer.is_some_and(|writer| writer != 0 && writer == layout::own_number() && owns_alone(writer)) {
        return libc::EDEADLK;
    }
    if let Some(caller) = caller.filter(|_| is_foreign) {
        return match attempt() {
            libc::EBUSY => try_until(caller, until, attempt),
            result => result,
        };
    }
    let key = Key::new(Space::RwLock, lock.addr());
    let writers = writers_of(lock);
    let writers_first = kind == Some(layout::WRITERS_FIRST);
    if role == WRITER {
        writers.fetch_add(u32::from(writers_first), Relaxed);
        let result = acquire(caller, key, role, until, attempt);
        writers.fetch_sub(u32::from(writers_first), Relaxed);
        if result != 0 && writers_first {
            // Readers may have let it go first.
            let _ = address::wake(key, usize::MAX, READER);
        }
        return result;
    }
    let mut result = libc::EBUSY;
    if writers_first {
        // It knows of no particular writer, so it is patient for a while only.
        let patience = clock::now().saturating_add(READERS_PATIENCE);
        let politely = || match writers.load(Relaxed) {
            0 => attempt(),
            _ => libc::EBUSY,
        };
        let limit = match until {
            Until::At(libc::CLOCK_MONOTONIC, time) => patience.min(time),
            _ => patience,
        };
        result = acquire(
            caller,
            key,
            role,
            Until::At(libc::CLOCK_MONOTONIC, limit),
            &politely,
        );
    }
    if matches!(result, libc::EBUSY | libc::ETIMEDOUT) {
        result = match attempt() {
            libc::EBUSY => acquire(caller, key, role, until, attempt),
            result => result,
        };
    }
    if result == 0 {
        // What lets in one reader lets in all.
        let _ = address::wake(key, usize::MAX, READER);
    }
    result
}

/// Whether the owner of that number is whoever calls this, and nobody else: all fibers that share their thread's thread-locals have
/// its number.
fn owns_alone(number: u32) -> bool {
    let thread = sys::thread_id() as u32;
    number != thread || crate::scheduler::Worker::here().is_none()
}

/// # Safety
/// As `pthread_rwlock_rdlock`.
pub(super) unsafe fn rwlock_rdlock(caller: Option<Caller>, lock: *mut pthread_rwlock_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        lock_rwlock(caller, lock, READER, Ok(Until::Never), || {
            real!(RWLOCK_RDLOCK(lock))
        })
    }
}

/// # Safety
/// As `pthread_rwlock_wrlock`.
pub(super) unsafe fn rwlock_wrlock(caller: Option<Caller>, lock: *mut pthread_rwlock_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        lock_rwlock(caller, lock, WRITER, Ok(Until::Never), || {
            real!(RWLOCK_WRLOCK(lock))
        })
    }
}

/// # Safety
/// As `pthread_rwlock_timedrdlock`.
pub(super) unsafe fn rwlock_timedrdlock(
    caller: Option<Caller>,
    lock: *mut pthread_rwlock_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = Until::at(libc::CLOCK_REALTIME, time);
        lock_rwlock(caller, lock, READER, until, || {
            real!(RWLOCK_TIMEDRDLOCK(lock, time))
        })
    }
}

/// # Safety
/// As `pthread_rwlock_timedwrlock`.
pub(super) unsafe fn rwlock_timedwrlock(
    caller: Option<Caller>,
    lock: *mut pthread_rwlock_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = Until::at(libc::CLOCK_REALTIME, time);
        lock_rwlock(caller, lock, WRITER, until, || {
            real!(RWLOCK_TIMEDWRLOCK(lock, time))
        })
    }
}

/// # Safety
/// As `pthread_rwlock_clockrdlock`.
pub(super) unsafe fn rwlock_clockrdlock(
    caller: Option<Caller>,
    lock: *mut pthread_rwlock_t,
    clock: clockid_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = Until::at(clock, time);
        lock_rwlock(caller, lock, READER, until, || {
            real!(RWLOCK_CLOCKRDLOCK(lock, clock, time))
        })
    }
}

/// # Safety
/// As `pthread_rwlock_clockwrlock`.
pub(super) unsafe fn rwlock_clockwrlock(
    caller: Option<Caller>,
    lock: *mut pthread_rwlock_t,
    clock: clockid_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let until = Until::at(clock, time);
        lock_rwlock(caller, lock, WRITER, until, || {
            real!(RWLOCK_CLOCKWRLOCK(lock, clock, time))
        })
    }
}

/// # Safety
/// As `pthread_rwlock_unlock`.
pub(super) unsafe fn rwlock_unlock(_: Option<Caller>, lock: *mut pthread_rwlock_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { real!(RWLOCK_UNLOCK(lock)) };
    if result == 0 {
        release(Key::new(Space::RwLock, lock.addr()));
    }
    result
}

/// The thread's `errno`.
fn errno() -> c_int {
    // SAFETY: the address is that of this thread's variable.
    unsafe { *libc::__errno_location() }
}

fn set_errno(error: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
}

/// Takes one of a semaphore, in a fiber.
///
/// # Safety
/// It is a semaphore.
unsafe fn take(
    caller: Caller,
    semaphore: *mut sem_t,
    until: Result<Until, c_int>,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    let before = errno();
    let attempt = || {
        // SAFETY: the caller's promise.
        match unsafe { real!(SEM_TRYWAIT(semaphore)) } {
            -1 if errno() == libc::EAGAIN => libc::EBUSY,
            -1 => errno(),
            _ => 0,
        }
    };
    let result = match until {
        Err(error) => error,
        Ok(until) => match attempt() {
            libc::EBUSY => {
                // SAFETY: the caller's promise.
                match unsafe { layout::SEMAPHORE_SHARED.of(semaphore) } {
                    None => return pass(),
                    Some(0) => {
                        messenger::be_there();
                        let key = Key::new(Space::Semaphore, semaphore.addr());
                        acquire(Some(caller), key, ALL_BITS, until, &attempt)
                    }
                    Some(_) => try_until(caller, until, &attempt),
                }
            }
            result => result,
        },
    };
    if result == 0 {
        set_errno(before);
        return 0;
    }
    set_errno(result);
    -1
}

/// # Safety
/// As `sem_wait`.
pub(super) unsafe fn sem_wait(caller: Option<Caller>, semaphore: *mut sem_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let pass = || real!(SEM_WAIT(semaphore));
        match caller {
            Some(caller) => take(caller, semaphore, Ok(Until::Never), pass),
            None => pass(),
        }
    }
}

/// # Safety
/// As `sem_timedwait`.
pub(super) unsafe fn sem_timedwait(
    caller: Option<Caller>,
    semaphore: *mut sem_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let pass = || real!(SEM_TIMEDWAIT(semaphore, time));
        match caller {
            Some(caller) => take(caller, semaphore, Until::at(libc::CLOCK_REALTIME, time), pass),
            None => pass(),
        }
    }
}

/// # Safety
/// As `sem_clockwait`.
pub(super) unsafe fn sem_clockwait(
    caller: Option<Caller>,
    semaphore: *mut sem_t,
    clock: clockid_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let pass = || real!(SEM_CLOCKWAIT(semaphore, clock, time));
        match caller {
            Some(caller) => take(caller, semaphore, Until::at(clock, time), pass),
            None => pass(),
        }
    }
}

/// It may be called in a signal handler, which may have interrupted whoever has the table's lock: then somebody else looks into the
/// table.
///
/// # Safety
/// As `sem_post`.
pub(super) unsafe fn sem_post(_: Option<Caller>, semaphore: *mut sem_t) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { real!(SEM_POST(semaphore)) };
    let key = Key::new(Space::Semaphore, semaphore.addr());
    if result == 0 && address::may_have_waiters(key) {
        if Thread::in_signal_handler() {
            messenger::send(semaphore.addr());
        } else {
            release(key);
        }
    }
    result
}

/// A thread that wakes those who wait for a semaphore to which a signal handler has added.
mod messenger {
    use super::*;

    /// Semaphores that somebody is to be woken for, or 0.
    static LETTERS: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];

    /// Counts the letters.
    static BELL: AtomicU32 = AtomicU32::new(0);

    /// The process that has a messenger, plus one.
    static PROCESS: AtomicU32 = AtomicU32::new(0);

    /// Makes sure that there is one, before anybody waits who may need it.
    pub(super) fn be_there() {
        let process = sys::process() + 1;
        if PROCESS.load(Relaxed) != process && PROCESS.swap(process, Relaxed) != process {
            let made = std::thread::Builder::new()
                .name("fibrant-messenger".to_owned())
                .spawn(serve);
            if made.is_err() {
                PROCESS.store(0, Relaxed); // the next one tries again
            }
        }
    }

    /// Leaves a letter. Nothing but atomics and system calls, as this runs in a signal handler.
    pub(super) fn send(address: usize) {
        let put = |letter: &AtomicUsize| {
            // If it is there already, it will be read after what the caller has done.
            letter.load(SeqCst) == address || letter.compare_exchange(0, address, SeqCst, SeqCst).is_ok()
        };
        while !LETTERS.iter().any(put) {
            crate::primitives::yield_thread(); // the messenger is about to take one
        }
        BELL.fetch_add(1, SeqCst);
        sys::unblock(&BELL);
    }

    fn serve() {
        loop {
            let seen = BELL.load(SeqCst);
            for letter in &LETTERS {
                let address = letter.swap(0, SeqCst);
                if address != 0 {
                    // Several posts may have left one letter.
                    let _ = address::wake_all(Key::new(Space::Semaphore, address));
                }
            }
            sys::block_while(&BELL, seen, clock::NEVER);
        }
    }
}
