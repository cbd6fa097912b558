//! Waits that end early: by their own time limit, by `timeout`, by `cancel`. Nothing is left behind, and nothing that was given is lost.

use crate::harness::ms;
use crate::patience::{Watchdog, eventually};
use crate::support::*;
use fibrant::runtime::Runtime;
use fibrant::sync::{Barrier, Condvar, Mutex, RwLock, Semaphore, WaitGroup};
use fibrant::{Cancelled, JoinHandle};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

#[track_caller]
fn is_cancelled<T>(fiber: JoinHandle<T>) {
    let result = fiber.join().map(|_| ());
    assert!(result.unwrap_err().is::<Cancelled>());
}

/// Runs `test` with runtimes of one worker and of two.
#[track_caller]
fn with_workers(test: impl Fn(&Runtime)) {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        test(&runtime);
        runtime.stop().unwrap();
    }
}

#[test]
fn a_time_limit_is_not_too_short() {
    let limits = || {
        let semaphore = Semaphore::new(1);
        let permit = semaphore.acquire();
        let start = Instant::now();
        assert!(semaphore.acquire_timeout(ms(20)).is_none());
        assert!(start.elapsed() >= ms(20));
        drop(permit);
        assert!(semaphore.acquire_timeout(ms(20)).is_some());
        let start = Instant::now();
        assert!(semaphore.acquire_many_timeout(2, ms(20)).is_none());
        assert!(start.elapsed() >= ms(20));
        assert_eq!(semaphore.available(), 1);

        let (mutex, condvar) = (Mutex::new(0), Condvar::new());
        let start = Instant::now();
        let (guard, result) = condvar.wait_timeout(mutex.lock().unwrap(), ms(20)).unwrap();
        assert!(result.timed_out() && start.elapsed() >= ms(20));
        let start = Instant::now();
        let mut asked = 0;
        let (guard, result) = condvar
            .wait_timeout_while(guard, ms(20), |_| {
                asked += 1;
                true
            })
            .unwrap();
        assert!(result.timed_out() && start.elapsed() >= ms(20));
        assert!(
            asked >= 2,
            "the condition is looked at once more when the time is up"
        );
        assert!(mutex.try_lock().is_err());
        drop(guard);
        assert!(mutex.try_lock().is_ok());
    };
    limits();
    with_workers(|runtime| runtime.spawn(limits).join().unwrap());
}

#[test]
fn a_notification_comes_before_the_limit() {
    static STATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::named("before-the-limit"));
    with_workers(|runtime| {
        *STATE.0.lock().unwrap() = false;
        let waits = runtime.spawn(|| {
            let guard = STATE.0.lock().unwrap();
            let (_guard, result) = STATE
                .1
                .wait_timeout_while(guard, ms(30_000), |done| !*done)
                .unwrap();
            result.timed_out()
        });
        until_waiting(runtime, "before-the-limit", 1);
        *STATE.0.lock().unwrap() = true;
        STATE.1.notify_all();
        assert!(!waits.join().unwrap());
    });
}

#[test]
fn whoever_is_cancelled_leaves_its_place_in_every_kind_of_lock() {
    static MUTEX: Mutex<()> = Mutex::named("left-mutex", ());
    static LOCK: RwLock<()> = RwLock::named("left-rwlock", ());
    static SEMAPHORE: Semaphore = Semaphore::named("left-semaphore", 0);
    static CONDITION: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::named("left-condvar"));
    static BARRIER: Barrier = Barrier::named("left-barrier", 2);
    with_workers(|runtime| {
        let group = WaitGroup::named("left-group");
        let (one, other) = (group.clone(), group.clone());
        let guards = (MUTEX.lock().unwrap(), LOCK.read().unwrap());
        let fibers = [
            runtime.spawn(|| drop(MUTEX.lock())),
            runtime.spawn(|| drop(LOCK.write())),
            runtime.spawn(|| drop(SEMAPHORE.acquire())),
            runtime.spawn(|| drop(CONDITION.1.wait(CONDITION.0.lock().unwrap()))),
            runtime.spawn(|| {
                BARRIER.wait();
            }),
            runtime.spawn(move || one.wait()),
        ];
        eventually("all wait", || waiting(runtime) == fibers.len());
        fibers.iter().for_each(|fiber| fiber.cancel());
        fibers.into_iter().for_each(is_cancelled);
        // Nobody is in anybody's way.
        assert!(
            CONDITION.0.try_lock().is_ok(),
            "it was unlocked, and is not poisoned"
        );
        CONDITION.1.notify_all();
        SEMAPHORE.release(1);
        SEMAPHORE.try_acquire().expect("nobody takes it").forget();
        assert!(LOCK.try_read().is_ok(), "no writer waits any more");
        drop(guards);
        assert!(MUTEX.try_lock().is_ok() && LOCK.try_write().is_ok());
        // Who was cancelled is not counted.
        let waits = runtime.spawn(|| BARRIER.wait().is_leader());
        until_waiting(runtime, "left-barrier", 1);
        assert!(subject(runtime, "left-barrier").unwrap().contains("1 of 2"));
        assert!(BARRIER.wait().is_leader());
        assert!(!waits.join().unwrap());
        let waits = runtime.spawn(move || other.wait());
        until_waiting(runtime, "left-group", 1);
        drop(group);
        waits.join().unwrap();
    });
}

#[test]
fn whoever_was_cancelled_before_does_not_even_begin_to_wait() {
    with_workers(|runtime| {
        let shared = Arc::new((Mutex::new(()), Condvar::new(), AtomicUsize::new(0)));
        let other = Arc::clone(&shared);
        let fiber = runtime.spawn(move || {
            let (mutex, condvar, step) = &*other;
            let guard = mutex.lock().unwrap();
            step.store(1, SeqCst);
            while step.load(SeqCst) == 1 {
                thread::yield_now();
            }
            let _never = condvar.wait(guard);
            step.store(3, SeqCst);
        });
        eventually("it has the mutex", || shared.2.load(SeqCst) == 1);
        fiber.cancel();
        shared.2.store(2, SeqCst);
        is_cancelled(fiber);
        assert_eq!(shared.2.load(SeqCst), 2);
        assert!(shared.0.try_lock().is_ok(), "unlocked, and not poisoned");
    });
}

#[test]
fn the_next_is_served_when_the_first_gives_up() {
    static SEMAPHORE: Semaphore = Semaphore::named("gives-up", 1);
    static LOCK: RwLock<()> = RwLock::named("gives-up-writing", ());
    with_workers(|runtime| {
        // A large request keeps a small one from what is free, until it gives up.
        let large = runtime.spawn(|| SEMAPHORE.acquire_many(2).count());
        until_waiting(runtime, "gives-up", 1);
        thread::sleep(ms(2));
        let small = runtime.spawn(|| SEMAPHORE.acquire().count());
        until_waiting(runtime, "gives-up", 2);
        large.cancel();
        is_cancelled(large);
        assert_eq!(small.join().unwrap(), 1);
        // So does one whose time is up.
        let large = loop {
            let large = runtime.spawn(|| {
                let is_late = SEMAPHORE.acquire_many_timeout(2, ms(60)).is_none();
                assert!(is_late);
            });
            // On a busy machine it may have given up before anybody has looked.
            eventually("it waits, or has waited", || {
                waiters(runtime, "gives-up") == 1 || large.is_finished()
            });
            if !large.is_finished() {
                break large;
            }
            large.join().unwrap();
        };
        thread::sleep(ms(2));
        let (sender, receiver) = mpsc::channel();
        let in_thread = thread::spawn(move || {
            sender.send(()).unwrap();
            SEMAPHORE.acquire().count()
        });
        receiver.recv().unwrap();
        large.join().unwrap();
        assert_eq!(in_thread.join().unwrap(), 1);
        // A writer that gives up lets readers in.
        let reads = LOCK.read().unwrap();
        let writer = runtime.spawn(|| drop(LOCK.write()));
        until_waiting(runtime, "gives-up-writing", 1);
        thread::sleep(ms(2));
        let reader = runtime.spawn(|| drop(LOCK.read().unwrap()));
        until_waiting(runtime, "gives-up-writing", 2);
        writer.cancel();
        is_cancelled(writer);
        reader.join().unwrap();
        drop(reads);
    });
}

/// Cancels the first of two fibers that wait, in the moment in which it is woken: either it goes on with what it was given, or the other
/// one gets it.
#[test]
fn what_a_cancelled_fiber_was_given_is_not_lost() {
    static MUTEX: Mutex<usize> = Mutex::named("given-mutex", 0);
    static SEMAPHORE: Semaphore = Semaphore::named("given-semaphore", 0);
    static LOCK: RwLock<usize> = RwLock::named("given-rwlock", 0);
    with_workers(|runtime| {
        for round in 0..100 {
            let waits_long = round % 4 == 0;
            let guard = MUTEX.lock().unwrap_or_else(|error| error.into_inner());
            let writer = LOCK.write().unwrap_or_else(|error| error.into_inner());
            let in_mutex = [(); 2].map(|()| runtime.spawn(|| *MUTEX.lock().unwrap() += 1));
            let in_semaphore = [(); 2].map(|()| runtime.spawn(|| SEMAPHORE.acquire().forget()));
            let in_lock = [(); 2].map(|()| runtime.spawn(|| *LOCK.write().unwrap() += 1));
            until_waiting(runtime, "given-mutex", 2);
            until_waiting(runtime, "given-semaphore", 2);
            until_waiting(runtime, "given-rwlock", 2);
            if waits_long {
                thread::sleep(ms(2));
            }
            drop(guard);
            in_mutex[0].cancel();
            SEMAPHORE.release(1);
            in_semaphore[0].cancel();
            drop(writer);
            in_lock[0].cancel();
            let [first, second] = in_mutex;
            second.join().unwrap();
            let _ = first.join();
            let [first, second] = in_lock;
            second.join().unwrap();
            let _ = first.join();
            let [first, second] = in_semaphore;
            if first.join().is_ok() {
                SEMAPHORE.release(1);
            }
            second.join().unwrap();
            assert_eq!(SEMAPHORE.available(), 0);
        }
    });
}

#[test]
fn a_notification_for_a_cancelled_fiber_goes_to_the_next() {
    static STATE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::named("goes-on"));
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let handle = runtime.handle();
    let all = runtime.spawn(move || {
        let notified = Arc::new(AtomicUsize::new(0));
        let spawn = || {
            let notified = Arc::clone(&notified);
            let fiber = fibrant::spawn_local(move || {
                drop(STATE.1.wait(STATE.0.lock().unwrap()));
                notified.fetch_add(1, SeqCst);
            });
            fibrant::yield_now();
            fiber
        };
        let [first, second, third] = [(); 3].map(|()| spawn());
        until_waiting(&handle, "goes-on", 3);
        // It is cancelled, but has not run since: it is still in the list.
        first.cancel();
        STATE.1.notify_one();
        eventually("the second was told", || second.is_finished());
        is_cancelled(first);
        second.join().unwrap();
        assert_eq!(notified.load(SeqCst), 1);
        // It is told, and then cancelled: it returns, and the mutex is free afterwards.
        STATE.1.notify_one();
        third.cancel();
        third.join().unwrap();
        assert_eq!(notified.load(SeqCst), 2);
        assert!(STATE.0.try_lock().is_ok());
    });
    all.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn whoever_was_notified_gets_the_mutex_back_before_it_is_cancelled() {
    static STATE: (Mutex<u32>, Condvar) = (Mutex::named("back", 0), Condvar::named("told"));
    with_workers(|runtime| {
        let fiber = runtime.spawn(|| {
            let mut guard = STATE.1.wait(STATE.0.lock().unwrap()).unwrap();
            *guard += 1;
            drop(guard);
            fibrant::fiber::park(); // unwinds
        });
        until_waiting(runtime, "told", 1);
        let guard = STATE.0.lock().unwrap();
        let before = *guard;
        STATE.1.notify_one();
        until_waiting(runtime, "back", 1);
        fiber.cancel();
        thread::sleep(ms(5));
        assert!(!fiber.is_finished(), "it waits for the mutex");
        drop(guard);
        is_cancelled(fiber);
        assert_eq!(*STATE.0.lock().unwrap(), before + 1);
    });
}

#[test]
fn a_timeout_ends_the_wait_for_each_lock() {
    with_workers(|runtime| {
        let fiber = runtime.spawn(|| {
            let (mutex, lock, semaphore) = (Mutex::new(()), RwLock::new(()), Semaphore::new(0));
            let (condvar, barrier, group) = (Condvar::new(), Barrier::new(2), WaitGroup::new());
            let (held, read) = (mutex.lock().unwrap(), lock.read().unwrap());
            fibrant::scope(|scope| {
                let other = scope.spawn(|| {
                    assert!(fibrant::timeout(ms(2), || drop(mutex.lock())).is_err());
                    assert!(fibrant::timeout(ms(2), || drop(lock.write())).is_err());
                    assert!(fibrant::timeout(ms(2), || drop(semaphore.acquire())).is_err());
                    let free = Mutex::new(());
                    let wait = || drop(condvar.wait(free.lock().unwrap()));
                    assert!(fibrant::timeout(ms(2), wait).is_err());
                    assert!(free.try_lock().is_ok());
                    assert!(fibrant::timeout(ms(2), || barrier.wait()).is_err());
                    let clone = group.clone();
                    assert!(fibrant::timeout(ms(2), || clone.wait()).is_err());
                });
                other.join().unwrap();
            });
            drop((held, read));
            assert!(mutex.try_lock().is_ok() && lock.try_write().is_ok());
        });
        fiber.join().unwrap();
    });
}
