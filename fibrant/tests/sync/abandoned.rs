//! Fibers that never go on, because their runtime was given up: what they wait for, and what they were just given, goes to others.

use crate::harness::ms;
use crate::patience::{Watchdog, eventually};
use crate::support::*;
use fibrant::runtime::Runtime;
use fibrant::sync::{Barrier, Condvar, Mutex, RwLock, Semaphore, WaitGroup};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// One of each.
struct Locks {
    mutex: Mutex<()>,
    rwlock: RwLock<()>,
    semaphore: Semaphore,
    state: Mutex<()>,
    condvar: Condvar,
    barrier: Barrier,
    group: WaitGroup,
}

impl Locks {
    fn new() -> Arc<Locks> {
        Arc::new(Locks {
            mutex: Mutex::new(()),
            rwlock: RwLock::new(()),
            semaphore: Semaphore::new(0),
            state: Mutex::new(()),
            condvar: Condvar::new(),
            barrier: Barrier::new(2),
            group: WaitGroup::new(),
        })
    }

    /// Lets a fiber do this that cannot be cancelled.
    fn spawn(self: &Arc<Locks>, runtime: &Runtime, f: impl FnOnce(&Locks) + Send + 'static) {
        let locks = Arc::clone(self);
        drop(runtime.spawn(move || {
            let _guard = fibrant::defer_cancel();
            f(&locks);
        }));
    }
}

#[test]
fn abandoned_fibers_wait_no_more() {
    let watchdog = Watchdog::new();
    let locks = Locks::new();
    let lost = watchdog.runtime(1);
    let guards = (locks.mutex.lock().unwrap(), locks.rwlock.write().unwrap());
    locks.spawn(&lost, |locks| drop(locks.mutex.lock()));
    locks.spawn(&lost, |locks| drop(locks.rwlock.read()));
    locks.spawn(&lost, |locks| drop(locks.rwlock.write()));
    locks.spawn(&lost, |locks| drop(locks.semaphore.acquire()));
    locks.spawn(&lost, |locks| {
        drop(locks.condvar.wait(locks.state.lock().unwrap()));
    });
    locks.spawn(&lost, |locks| {
        locks.barrier.wait();
    });
    locks.spawn(&lost, |locks| locks.group.clone().wait());
    eventually("they wait", || waiting(&lost) == 7);
    assert_eq!(lost.shutdown(Duration::ZERO).abandoned.len(), 7);
    // Others come after them.
    let other = Arc::clone(&locks);
    let notified = Arc::new(AtomicUsize::new(0));
    let was_notified = Arc::clone(&notified);
    let thread = thread::spawn(move || {
        drop(other.mutex.lock().unwrap());
        drop(other.rwlock.write().unwrap());
        other.semaphore.acquire().forget();
        let guard = other.state.lock().unwrap();
        was_notified.store(1, SeqCst);
        drop(other.condvar.wait(guard));
        was_notified.store(2, SeqCst);
    });
    drop(guards);
    locks.semaphore.release(1);
    eventually("the thread has the mutex of the condition", || {
        notified.load(SeqCst) == 1
    });
    // It holds the mutex until it can be notified.
    drop(locks.state.lock().unwrap());
    locks.condvar.notify_one();
    thread.join().unwrap();
    assert_eq!(notified.load(SeqCst), 2);
    let second = Arc::clone(&locks);
    let thread = thread::spawn(move || second.barrier.wait().is_leader());
    // If who was abandoned counted, the thread would not wait for this one, and this one would wait for ever.
    let is_leader = locks.barrier.wait().is_leader();
    assert_ne!(is_leader, thread.join().unwrap());
}

/// Its name, and how it is waited for.
type Wait = (&'static str, fn(&Locks));

/// What each of them waits for.
const WAITS: [Wait; 4] = [
    ("mutex", |locks| drop(locks.mutex.lock().unwrap())),
    ("rwlock", |locks| drop(locks.rwlock.write().unwrap())),
    ("semaphore", |locks| locks.semaphore.acquire().forget()),
    ("condvar", |locks| {
        drop(locks.condvar.wait(locks.state.lock().unwrap()));
    }),
];

/// Gives each of some fibers what it waits for while their worker is stuck, and ends that worker's runtime before they can run. Returns
/// which of them did not run; then a plain thread that waits as well gets what was given.
fn are_passed_on(watchdog: &Watchdog, turns: usize) -> [bool; 4] {
    let locks = Locks::new();
    let lost = watchdog.runtime(1);
    let ran: Arc<[AtomicBool; 4]> = Arc::default();
    let (is_stuck, is_over) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let mutex = locks.mutex.lock().unwrap();
    let rwlock = locks.rwlock.write().unwrap();
    for (index, (_, wait)) in WAITS.into_iter().enumerate() {
        let ran = Arc::clone(&ran);
        locks.spawn(&lost, move |locks| {
            wait(locks);
            ran[index].store(true, SeqCst);
        });
    }
    eventually("they wait", || waiting(&lost) == 4);
    let (stuck, over) = (Arc::clone(&is_stuck), Arc::clone(&is_over));
    drop(lost.spawn(move || {
        // When this fiber ends, its worker is to look at the world before it runs another one: so many turns after its last sleep.
        thread::sleep(ms(2));
        (0..turns).for_each(|_| fibrant::yield_now());
        stuck.store(true, SeqCst);
        fibrant::hook::disabled(|| {
            while !over.load(SeqCst) {
                thread::sleep(ms(1));
            }
        });
    }));
    eventually("the worker is stuck", || is_stuck.load(SeqCst));
    let threads = WAITS.map(|(_, wait)| {
        let locks = Arc::clone(&locks);
        thread::spawn(move || wait(&locks))
    });
    // Nothing shows when they have begun to wait. If that is later, they find what was passed on; but for the condition.
    thread::sleep(ms(20));
    drop((mutex, rwlock));
    locks.semaphore.release(1);
    locks.condvar.notify_one();
    lost.shutdown(Duration::ZERO);
    is_over.store(true, SeqCst);
    let mut index = 0;
    threads.map(|thread| {
        let what = WAITS[index].0;
        let has_run = || ran[index].load(SeqCst);
        eventually(what, || has_run() || thread.is_finished());
        let is_passed_on = !has_run();
        if !is_passed_on {
            match what {
                "semaphore" => locks.semaphore.release(1),
                "condvar" => locks.condvar.notify_one(),
                _ => {}
            }
        }
        eventually(what, || thread.is_finished());
        thread.join().unwrap();
        index += 1;
        is_passed_on
    })
}

#[test]
fn what_an_abandoned_fiber_was_just_given_goes_to_another() {
    let watchdog = Watchdog::new();
    let mut passed_on = [false; 4];
    // With 59 the moment is the one that is meant, unless somebody is interrupted; the others are for another interval of polls.
    for turns in [59; 5].into_iter().chain(57..=63) {
        let now = are_passed_on(&watchdog, turns);
        passed_on = std::array::from_fn(|index| passed_on[index] || now[index]);
        if passed_on == [true; 4] {
            return;
        }
    }
    panic!("some always run in time: {passed_on:?}");
}
