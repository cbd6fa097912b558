//! The C library's locks: point 29.

use crate::support::*;
use libc::{
    pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_mutexattr_t, pthread_rwlock_t, sem_t,
    timespec,
};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::thread;

unsafe extern "C" {
    fn pthread_mutex_clocklock(mutex: *mut pthread_mutex_t, clock: i32, time: *const timespec) -> i32;
    fn pthread_mutex_consistent(mutex: *mut pthread_mutex_t) -> i32;
    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t,
        mutex: *mut pthread_mutex_t,
        clock: i32,
        time: *const timespec,
    ) -> i32;
    fn pthread_once(control: *mut libc::pthread_once_t, initialise: extern "C" fn()) -> i32;
    fn pthread_mutexattr_setprotocol(attributes: *mut pthread_mutexattr_t, protocol: i32) -> i32;
}

/// An object of the C library's, which several may use at once.
struct Object<T>(UnsafeCell<T>);

// SAFETY: that is what these objects are for.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    fn new(value: T) -> Arc<Object<T>> {
        Arc::new(Object(UnsafeCell::new(value)))
    }

    fn made(make: impl FnOnce(*mut T)) -> Arc<Object<T>> {
        let mut value = MaybeUninit::zeroed();
        make(value.as_mut_ptr());
        // SAFETY: it was just made; all zero is a value of these types, too.
        Object::new(unsafe { value.assume_init() })
    }

    fn at(&self) -> *mut T {
        self.0.get()
    }
}

fn mutex() -> Arc<Object<pthread_mutex_t>> {
    Object::new(libc::PTHREAD_MUTEX_INITIALIZER)
}

fn mutex_with(set: impl FnOnce(*mut pthread_mutexattr_t)) -> Arc<Object<pthread_mutex_t>> {
    // SAFETY: local variables, made by the functions for that.
    Object::made(|mutex| unsafe {
        let mut attributes = MaybeUninit::uninit();
        libc::pthread_mutexattr_init(attributes.as_mut_ptr());
        set(attributes.as_mut_ptr());
        libc::pthread_mutex_init(mutex, attributes.as_ptr());
    })
}

fn typed(kind: i32) -> Arc<Object<pthread_mutex_t>> {
    // SAFETY: they are attributes.
    mutex_with(|attributes| unsafe {
        libc::pthread_mutexattr_settype(attributes, kind);
    })
}

fn lock(mutex: &Object<pthread_mutex_t>) -> i32 {
    // SAFETY: it is one.
    unsafe { libc::pthread_mutex_lock(mutex.at()) }
}

fn unlock(mutex: &Object<pthread_mutex_t>) -> i32 {
    // SAFETY: it is one.
    unsafe { libc::pthread_mutex_unlock(mutex.at()) }
}

/// The time so many milliseconds from now.
fn soon(clock: i32, milliseconds: i64) -> timespec {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a local variable.
    unsafe { libc::clock_gettime(clock, &mut time) };
    let nanoseconds = time.tv_nsec + milliseconds * 1_000_000;
    timespec {
        tv_sec: time.tv_sec + nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    }
}

const NO_TIME: timespec = timespec {
    tv_sec: 0,
    tv_nsec: -1,
};

fn sem_told(result: i32) -> (isize, i32) {
    told(result as isize)
}

static INITIALISED: AtomicI32 = AtomicI32::new(0);

extern "C" fn initialise() {
    thread::sleep(ms(5));
    INITIALISED.fetch_add(1, SeqCst);
}

bodies! {
    p29_a_mutex_is_handed_over, true, || {
        let mutex = mutex();
        let first = lock(&mutex);
        let other = Arc::clone(&mutex);
        let waiter = go(move || (lock(&other), unlock(&other))).waiting();
        let is_over = waiter.is_over();
        (first, is_over, unlock(&mutex), waiter.join())
    };
    p29_a_mutex_is_handed_over_to_a_thread, false, || {
        let mutex = mutex();
        let first = lock(&mutex);
        let other = Arc::clone(&mutex);
        let waiter = go_in_a_thread(move || (lock(&other), unlock(&other)));
        let is_over = waiter.is_over();
        let result = (first, is_over, unlock(&mutex));
        // In a fiber this join would be a wait.
        while !waiter.is_over() {
            std::hint::spin_loop();
        }
        result
    };
    p29_a_taken_mutex_is_not_taken_by_trying, false, || {
        let mutex = mutex();
        // SAFETY: it is one.
        unsafe {
            let attempt = || libc::pthread_mutex_trylock(mutex.at());
            (attempt(), attempt(), unlock(&mutex), attempt())
        }
    };
    p29_a_recursive_mutex_counts, false, || {
        let mutex = typed(libc::PTHREAD_MUTEX_RECURSIVE);
        [lock(&mutex), lock(&mutex), unlock(&mutex), unlock(&mutex), unlock(&mutex)]
    };
    p29_a_checked_mutex_knows_its_owner, false, || {
        let mutex = typed(libc::PTHREAD_MUTEX_ERRORCHECK);
        [unlock(&mutex), lock(&mutex), lock(&mutex), unlock(&mutex), unlock(&mutex)]
    };
    p29_a_checked_mutex_belongs_to_one, true, || {
        let mutex = typed(libc::PTHREAD_MUTEX_ERRORCHECK);
        let first = lock(&mutex);
        let other = Arc::clone(&mutex);
        let waiter = go(move || (unlock(&other), lock(&other), unlock(&other))).waiting();
        (first, unlock(&mutex), waiter.join())
    };
    p29_a_mutex_with_inherited_priority_is_taken, false, || {
        // SAFETY: they are attributes.
        let mutex = mutex_with(|attributes| unsafe {
            pthread_mutexattr_setprotocol(attributes, 1);
        });
        [lock(&mutex), unlock(&mutex), lock(&mutex), unlock(&mutex)]
    };
    p29_a_mutexs_time_limit_is_kept, true, || {
        let mutex = mutex();
        let first = lock(&mutex);
        let (wall, monotonic) = (soon(libc::CLOCK_REALTIME, 5), soon(libc::CLOCK_MONOTONIC, 10));
        // SAFETY: it is one, and times.
        unsafe {
            (
                first,
                libc::pthread_mutex_timedlock(mutex.at(), &wall),
                pthread_mutex_clocklock(mutex.at(), libc::CLOCK_MONOTONIC, &monotonic),
                unlock(&mutex),
                libc::pthread_mutex_timedlock(mutex.at(), &wall),
            )
        }
    };
    p29_a_time_that_is_none_is_refused, false, || {
        let mutex = mutex();
        // SAFETY: it is one, and times.
        unsafe {
            [
                libc::pthread_mutex_timedlock(mutex.at(), &NO_TIME),
                libc::pthread_mutex_timedlock(mutex.at(), &NO_TIME),
                pthread_mutex_clocklock(mutex.at(), libc::CLOCK_BOOTTIME, &NO_TIME),
            ]
        }
    };
    p29_the_death_of_an_owner_is_told, false, || {
        // SAFETY: they are attributes.
        let mutex = mutex_with(|attributes| unsafe {
            libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST);
        });
        let other = Arc::clone(&mutex);
        let owner = go_in_a_thread(move || lock(&other));
        while !owner.is_over() {
            std::hint::spin_loop();
        }
        // Its closure is over, its thread perhaps not yet.
        while {
            // SAFETY: it is one.
            let result = unsafe { libc::pthread_mutex_trylock(mutex.at()) };
            result == libc::EBUSY
        } {}
        // SAFETY: as above.
        [unsafe { pthread_mutex_consistent(mutex.at()) }, unlock(&mutex), lock(&mutex), unlock(&mutex)]
    };
    p29_a_mutex_is_shared_with_another_process, true alone, || {
        struct Shared {
            mutex: pthread_mutex_t,
            turns: AtomicI32,
        }
        // SAFETY: shared memory for both, which is zero at first; the child only uses what is in it, and ends.
        unsafe {
            let memory = libc::mmap(
                ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            let shared = memory.cast::<Shared>();
            let mut attributes = MaybeUninit::uninit();
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutex_init(&raw mut (*shared).mutex, attributes.as_ptr());
            let (mutex, turns) = (&raw mut (*shared).mutex, &(*shared).turns);
            let first = libc::pthread_mutex_lock(mutex);
            let child = libc::fork();
            if child == 0 {
                libc::alarm(30); // ends it if it hangs
                libc::pthread_mutex_lock(mutex);
                turns.fetch_add(1, SeqCst);
                // The parent waits meanwhile.
                libc::usleep(20_000);
                libc::pthread_mutex_unlock(mutex);
                libc::_exit(0);
            }
            let early = turns.load(SeqCst);
            libc::pthread_mutex_unlock(mutex);
            while turns.load(SeqCst) == 0 {
                thread::sleep(ms(1));
            }
            let second = libc::pthread_mutex_lock(mutex);
            let mut status = 1;
            libc::waitpid(child, &mut status, 0);
            (first, early, second, status)
        }
    };
    p29_a_signal_wakes_one_who_waits_for_a_condition, true, || {
        let (mutex, condition) = (mutex(), Object::new(libc::PTHREAD_COND_INITIALIZER));
        let (theirs, other) = (Arc::clone(&mutex), Arc::clone(&condition));
        let waiter = go(move || {
            lock(&theirs);
            // SAFETY: they are what they should be.
            (unsafe { libc::pthread_cond_wait(other.at(), theirs.at()) }, unlock(&theirs))
        })
        .waiting();
        // SAFETY: it is one.
        let signal = unsafe {
            lock(&mutex);
            libc::pthread_cond_signal(condition.at())
        };
        let is_over = waiter.is_over();
        (signal, is_over, unlock(&mutex), waiter.join())
    };
    p29_a_conditions_time_limit_is_kept, true, || {
        let mutex = mutex();
        let condition = Object::new(libc::PTHREAD_COND_INITIALIZER);
        // SAFETY: local variables, made by the functions for that.
        let monotonic = Object::made(|condition| unsafe {
            let mut attributes = MaybeUninit::uninit();
            libc::pthread_condattr_init(attributes.as_mut_ptr());
            libc::pthread_condattr_setclock(attributes.as_mut_ptr(), libc::CLOCK_MONOTONIC);
            libc::pthread_cond_init(condition, attributes.as_ptr());
        });
        lock(&mutex);
        // SAFETY: they are what they should be.
        unsafe {
            let wait = |condition: &Object<pthread_cond_t>, time| {
                libc::pthread_cond_timedwait(condition.at(), mutex.at(), &time)
            };
            (
                wait(&condition, soon(libc::CLOCK_REALTIME, 3)),
                wait(&monotonic, soon(libc::CLOCK_MONOTONIC, 3)),
                wait(&condition, NO_TIME),
                // It still has the mutex.
                libc::pthread_mutex_trylock(mutex.at()),
                pthread_cond_clockwait(
                    condition.at(),
                    mutex.at(),
                    libc::CLOCK_MONOTONIC,
                    &soon(libc::CLOCK_MONOTONIC, 3),
                ),
                unlock(&mutex),
            )
        }
    };
    p29_who_does_not_have_the_mutex_may_not_wait, false, || {
        let mutex = typed(libc::PTHREAD_MUTEX_ERRORCHECK);
        let condition = Object::new(libc::PTHREAD_COND_INITIALIZER);
        // SAFETY: they are what they should be.
        unsafe { libc::pthread_cond_wait(condition.at(), mutex.at()) }
    };
    p29_readers_share_and_a_writer_waits, true, || {
        let rw = Object::new(libc::PTHREAD_RWLOCK_INITIALIZER);
        let of = |f: unsafe extern "C" fn(*mut pthread_rwlock_t) -> i32, rw: &Object<pthread_rwlock_t>| {
            // SAFETY: it is one.
            unsafe { f(rw.at()) }
        };
        let readers = [of(libc::pthread_rwlock_rdlock, &rw), of(libc::pthread_rwlock_rdlock, &rw)];
        let other = Arc::clone(&rw);
        let writer = go(move || {
            (of(libc::pthread_rwlock_wrlock, &other), of(libc::pthread_rwlock_unlock, &other))
        })
        .waiting();
        let first = of(libc::pthread_rwlock_unlock, &rw);
        let attempts = [of(libc::pthread_rwlock_trywrlock, &rw), of(libc::pthread_rwlock_tryrdlock, &rw)];
        let is_over = writer.is_over();
        of(libc::pthread_rwlock_unlock, &rw);
        of(libc::pthread_rwlock_unlock, &rw);
        (readers, first, attempts, is_over, writer.join())
    };
    p29_a_writer_does_not_wait_for_itself, false, || {
        let rw = Object::new(libc::PTHREAD_RWLOCK_INITIALIZER);
        // SAFETY: it is one.
        unsafe {
            [
                libc::pthread_rwlock_wrlock(rw.at()),
                libc::pthread_rwlock_wrlock(rw.at()),
                libc::pthread_rwlock_rdlock(rw.at()),
                libc::pthread_rwlock_unlock(rw.at()),
            ]
        }
    };
    p29_a_semaphore_gives_what_it_was_given, true, || {
        // SAFETY: made by the function for that.
        let semaphore = Object::made(|semaphore: *mut sem_t| unsafe {
            libc::sem_init(semaphore, 0, 1);
        });
        set_errno(77);
        // SAFETY: it is one.
        let first = unsafe { libc::sem_wait(semaphore.at()) };
        let other = Arc::clone(&semaphore);
        let waiter = go(move || {
            set_errno(78);
            // SAFETY: it is one.
            (unsafe { libc::sem_wait(other.at()) }, errno())
        })
        .waiting();
        // SAFETY: it is one.
        let post = unsafe { libc::sem_post(semaphore.at()) };
        (first, post, waiter.join())
    };
    p29_a_semaphores_time_limit_is_kept, true, || {
        // SAFETY: made by the function for that.
        let semaphore = Object::made(|semaphore: *mut sem_t| unsafe {
            libc::sem_init(semaphore, 0, 0);
        });
        // SAFETY: it is one, and times.
        unsafe {
            let limited = sem_told(libc::sem_timedwait(semaphore.at(), &soon(libc::CLOCK_REALTIME, 3)));
            let refused = sem_told(libc::sem_timedwait(semaphore.at(), &NO_TIME));
            libc::sem_post(semaphore.at());
            // A time that is none is refused even if there is no need to wait.
            (limited, refused, sem_told(libc::sem_timedwait(semaphore.at(), &NO_TIME)))
        }
    };
    p29_a_barrier_lets_all_go_on, true, || {
        // SAFETY: made by the function for that.
        let barrier = Object::made(|barrier: *mut pthread_barrier_t| unsafe {
            libc::pthread_barrier_init(barrier, ptr::null(), 3);
        });
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let barrier = Arc::clone(&barrier);
                // SAFETY: it is one.
                go(move || unsafe { libc::pthread_barrier_wait(barrier.at()) }).waiting()
            })
            .collect();
        let are_over = waiters.iter().any(Activity::is_over);
        // SAFETY: it is one.
        let mut results = vec![unsafe { libc::pthread_barrier_wait(barrier.at()) }];
        results.extend(waiters.into_iter().map(Activity::join));
        results.sort_unstable();
        (are_over, results)
    };
    p29_what_is_done_once_is_waited_for, true, || {
        let once = Object::new(libc::PTHREAD_ONCE_INIT);
        let before = INITIALISED.load(SeqCst);
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let once = Arc::clone(&once);
                // SAFETY: it is one.
                go(move || (unsafe { pthread_once(once.at(), initialise) }, INITIALISED.load(SeqCst) - before))
            })
            .collect();
        callers.into_iter().map(Activity::join).collect::<Vec<_>>()
    };
}
