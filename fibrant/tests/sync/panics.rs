//! Panics: they poison what is held exclusively; locks can be used while a fiber panics; and who would wait for itself panics instead.

use crate::harness::{Kind, ms};
use crate::patience::{Watchdog, text};
use crate::support::*;
use fibrant::runtime::Runtime;
use fibrant::sync::{Condvar, Mutex, RwLock, Semaphore};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, TryLockError};
use std::thread;

/// Does something when it is dropped.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Runs `test` on a plain thread, and in fibers of both kinds.
#[track_caller]
fn everywhere(test: fn()) {
    let watchdog = Watchdog::new();
    thread::spawn(test).join().unwrap();
    for kind in [Kind::Isolated, Kind::Light] {
        let runtime = kind.runtime(1);
        watchdog.show(&runtime);
        runtime.spawn(test).join().unwrap();
        runtime.stop().unwrap();
    }
}

/// Breaks off without a message.
fn break_off() -> ! {
    resume_unwind(Box::new("on purpose"));
}

#[test]
fn a_panic_poisons_what_is_held_exclusively() {
    everywhere(|| {
        let mut mutex = Mutex::new(1);
        let _ = catch_unwind(|| {
            let mut guard = mutex.lock().unwrap();
            *guard = 2;
            break_off();
        });
        assert!(mutex.is_poisoned());
        assert_eq!(**mutex.lock().unwrap_err().get_ref(), 2);
        assert!(matches!(mutex.try_lock(), Err(TryLockError::Poisoned(_))));
        assert!(mutex.get_mut().is_err());
        assert!(format!("{mutex:?}").contains("poisoned: true"));
        mutex.clear_poison();
        assert!(mutex.try_lock().is_ok());
        assert_eq!(mutex.into_inner().unwrap(), 2);

        let mut lock = RwLock::new(1);
        let _ = catch_unwind(|| {
            let _guard = lock.read().unwrap();
            break_off();
        });
        assert!(!lock.is_poisoned(), "readers break nothing");
        let _ = catch_unwind(|| {
            *lock.write().unwrap() += 1;
            let _guard = lock.write().unwrap();
            break_off();
        });
        assert!(lock.is_poisoned());
        assert!(lock.read().is_err() && lock.write().is_err());
        assert!(lock.try_read().is_err() && lock.try_write().is_err());
        assert!(lock.get_mut().is_err());
        lock.clear_poison();
        assert_eq!(*lock.read().unwrap(), 2);
        let _ = catch_unwind(|| {
            let _guard = lock.write().unwrap();
            break_off();
        });
        assert_eq!(lock.into_inner().unwrap_err().into_inner(), 2);

        let semaphore = Semaphore::new(1);
        let _ = catch_unwind(|| {
            let _permit = semaphore.acquire();
            break_off();
        });
        assert_eq!(semaphore.available(), 1, "a permit is given back by a panic");
    });
}

#[test]
fn a_guard_of_a_poisoned_mutex_comes_back_from_a_wait() {
    everywhere(|| {
        let (mutex, condvar) = (Mutex::new(1), Condvar::new());
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _guard = mutex.lock().unwrap();
            break_off();
        }));
        let guard = mutex.lock().unwrap_err().into_inner();
        let error = condvar.wait_timeout(guard, ms(1)).unwrap_err();
        let (guard, result) = error.into_inner();
        assert!(result.timed_out() && *guard == 1);
        drop(guard);
        mutex.clear_poison();
        assert!(mutex.try_lock().is_ok());
    });
}

#[test]
fn cancelling_poisons_as_a_panic_does() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let shared = Arc::new((
            Mutex::new(()),
            RwLock::new(()),
            RwLock::new(()),
            Semaphore::new(1),
        ));
        let theirs = Arc::clone(&shared);
        let (sender, receiver) = std::sync::mpsc::channel();
        let fiber = runtime.spawn(move || {
            let _mutex = theirs.0.lock().unwrap();
            let _writes = theirs.1.write().unwrap();
            let _reads = theirs.2.read().unwrap();
            let _permit = theirs.3.acquire();
            sender.send(()).unwrap();
            fibrant::fiber::park();
        });
        receiver.recv().unwrap();
        fiber.cancel();
        assert!(fiber.join().is_err());
        let (mutex, writes, reads, semaphore) = &*shared;
        assert!(mutex.is_poisoned() && writes.is_poisoned() && !reads.is_poisoned());
        assert!(reads.try_write().is_ok());
        assert_eq!(semaphore.available(), 1);
        runtime.stop().unwrap();
    }
}

#[test]
fn locks_can_be_waited_for_while_a_fiber_panics() {
    static MUTEX: Mutex<usize> = Mutex::named("while-panicking", 0);
    static SEMAPHORE: Semaphore = Semaphore::new(0);
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let guard = MUTEX.lock().unwrap();
        let panics = runtime.spawn(|| {
            let _end = AtEnd(|| {
                *MUTEX.lock().unwrap() += 1;
                SEMAPHORE.acquire().forget();
            });
            break_off();
        });
        until_waiting(&runtime, "while-panicking", 1);
        panics.cancel(); // does not unwind what unwinds already
        drop(guard);
        SEMAPHORE.release(1);
        let error = panics.join().map(|_: ()| ()).unwrap_err();
        assert_eq!(text(&*error), "on purpose");
        assert!(
            !MUTEX.is_poisoned(),
            "it was locked in the panic, and unlocked in it"
        );
        runtime.stop().unwrap();
    }
    assert_eq!(*MUTEX.lock().unwrap(), 2);
}

#[test]
fn whoever_would_wait_for_itself_panics() {
    everywhere(|| {
        let message = |f: &dyn Fn()| text(&*catch_unwind(AssertUnwindSafe(f)).unwrap_err());
        let mutex = Mutex::new(1);
        let guard = mutex.lock().unwrap();
        assert!(message(&|| drop(mutex.lock())).contains("holds this mutex already"));
        assert!(mutex.try_lock().is_err());
        drop(guard);
        assert_eq!(*mutex.lock().unwrap(), 1, "it is in order afterwards");

        let lock = RwLock::new(1);
        let guard = lock.write().unwrap();
        assert!(message(&|| drop(lock.write())).contains("holds this lock for writing already"));
        assert!(message(&|| drop(lock.read())).contains("holds this lock for writing already"));
        drop(guard);
        assert_eq!(*lock.write().unwrap(), 1);
        drop(lock.read().unwrap());
        assert!(lock.try_write().is_ok());
    });
}

#[test]
fn a_condition_has_one_mutex_at_a_time() {
    static MUTEXES: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
    static CONDVAR: Condvar = Condvar::named("two-mutexes");
    let watchdog = Watchdog::new();
    let runtime: Runtime = watchdog.runtime(1);
    let waits = runtime.spawn(|| drop(CONDVAR.wait(MUTEXES[0].lock().unwrap())));
    until_waiting(&runtime, "two-mutexes", 1);
    let wrong = || drop(CONDVAR.wait(MUTEXES[1].lock().unwrap()));
    for error in [
        runtime.spawn(wrong).join().unwrap_err(),
        thread::spawn(|| catch_unwind(|| drop(CONDVAR.wait(MUTEXES[1].lock().unwrap_err().into_inner()))))
            .join()
            .unwrap()
            .unwrap_err(),
    ] {
        assert!(text(&*error).contains("with another mutex"));
    }
    assert!(
        matches!(MUTEXES[1].try_lock(), Err(TryLockError::Poisoned(_))),
        "it was unlocked"
    );
    CONDVAR.notify_one();
    waits.join().unwrap();
    // When nobody waits, it may have another one.
    MUTEXES[1].clear_poison();
    let (_guard, result) = CONDVAR.wait_timeout(MUTEXES[1].lock().unwrap(), ms(1)).unwrap();
    assert!(result.timed_out());
    runtime.stop().unwrap();
}

#[test]
fn too_many_permits_are_refused() {
    everywhere(|| {
        const MOST: usize = usize::MAX >> 1;
        let semaphore = Semaphore::new(MOST - 1);
        semaphore.release(1);
        let error = catch_unwind(|| semaphore.release(1)).unwrap_err();
        assert!(text(&*error).contains("more permits"));
        assert_eq!(semaphore.available(), MOST);
        assert!(catch_unwind(|| semaphore.release(usize::MAX)).is_err());
        assert_eq!(semaphore.acquire_many(MOST).count(), MOST);
        assert_eq!(semaphore.acquire_many(0).count(), 0);
        assert!(semaphore.try_acquire_many(usize::MAX).is_none());
        assert!(semaphore.acquire_many_timeout(usize::MAX, ms(1)).is_none());
        assert_eq!(semaphore.available(), MOST);
        assert!(catch_unwind(|| Semaphore::new(MOST + 1)).is_err());
    });
}
