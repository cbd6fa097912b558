//! The locks of the crate parking_lot, unchanged. It keeps a queue of threads that wait, each with a record in its thread-locals: two
//! fibers that wait must have two.

use crate::harness::*;
use crate::patience::{Watchdog, eventually};
use ::parking_lot::{
    Condvar, FairMutex, Mutex, MutexGuard, Once, OnceState, ReentrantMutex, RwLock, RwLockReadGuard,
    RwLockUpgradableReadGuard, RwLockWriteGuard,
};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

/// How often each member does it.
const ROUNDS: usize = 60;

/// How many fibers and how many threads.
const MEMBERS: [(usize, usize); 2] = [(8, 0), (6, 3)];

#[test]
fn a_mutex_has_one_holder_at_a_time() {
    for (fibers, threads) in MEMBERS {
        together(
            fibers,
            threads,
            || (Mutex::new(0_usize), AtomicBool::new(false)),
            |(mutex, is_taken), me| {
                for _ in 0..ROUNDS {
                    let mut count = match me.below(3) {
                        0 => mutex.lock(),
                        // With a deadline, which comes first now and then.
                        _ => loop {
                            if let Some(count) = mutex.try_lock_for(us(500)) {
                                break count;
                            }
                        },
                    };
                    assert!(!is_taken.swap(true, SeqCst), "two have it");
                    *count += 1;
                    me.linger();
                    is_taken.store(false, SeqCst);
                    match me.below(4) {
                        0 => MutexGuard::unlock_fair(count),
                        1 => MutexGuard::bump(&mut count),
                        2 => MutexGuard::unlocked(&mut count, || me.linger()),
                        _ => drop(count),
                    }
                    me.linger();
                }
            },
            |(mutex, _)| assert_eq!(*mutex.lock(), (fibers + threads) * ROUNDS),
        );
    }
}

#[test]
fn a_fair_mutex_goes_round() {
    for (fibers, threads) in MEMBERS {
        together(
            fibers,
            threads,
            || FairMutex::new(0_usize),
            |mutex, me| {
                for _ in 0..ROUNDS {
                    *mutex.lock() += 1;
                    let mut count = mutex.lock();
                    *count += 1;
                    me.linger();
                }
            },
            |mutex| assert_eq!(*mutex.lock(), 2 * (fibers + threads) * ROUNDS),
        );
    }
}

#[test]
fn a_lock_for_readers_and_writers_keeps_them_apart() {
    for (fibers, threads) in MEMBERS {
        together(
            fibers,
            threads,
            || (RwLock::new((0_usize, 0_usize)), AtomicUsize::new(0)),
            |(lock, writes), me| {
                let look = |pair: &(usize, usize)| assert_eq!(pair.0, pair.1, "somebody writes");
                let write = |pair: &mut (usize, usize), me: &mut Member| {
                    look(pair);
                    pair.0 += 1;
                    me.linger();
                    pair.1 += 1;
                    writes.fetch_add(1, SeqCst);
                };
                for _ in 0..ROUNDS {
                    match me.below(6) {
                        0 => {
                            let mut pair = lock.write();
                            write(&mut pair, me);
                            // Whoever reads on sees what was written, and nobody has written since.
                            let was = *pair;
                            let pair = RwLockWriteGuard::downgrade(pair);
                            me.linger();
                            assert_eq!(*pair, was);
                            RwLockReadGuard::unlock_fair(pair);
                        }
                        1 => {
                            let pair = lock.upgradable_read();
                            look(&pair);
                            me.linger();
                            let was = *pair;
                            let mut pair = RwLockUpgradableReadGuard::upgrade(pair);
                            assert_eq!(*pair, was, "two could upgrade");
                            write(&mut pair, me);
                            RwLockWriteGuard::unlock_fair(pair);
                        }
                        2 => {
                            if let Some(mut pair) = lock.try_write_for(us(500)) {
                                write(&mut pair, me);
                            }
                        }
                        3 => {
                            let pair = lock.upgradable_read();
                            look(&pair);
                            me.linger();
                            if let Ok(mut pair) = RwLockUpgradableReadGuard::try_upgrade_for(pair, us(200)) {
                                write(&mut pair, me);
                            }
                        }
                        4 => {
                            if let Some(pair) = lock.try_read_for(us(500)) {
                                me.linger();
                                look(&pair);
                            }
                        }
                        _ => {
                            let pair = lock.read();
                            me.linger();
                            look(&pair);
                        }
                    }
                    me.linger();
                }
            },
            |(lock, writes)| {
                let count = writes.load(SeqCst);
                assert_eq!(*lock.read(), (count, count));
            },
        );
    }
}

#[test]
fn a_wait_with_a_deadline_ends_there_and_not_before() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let shared = Arc::new((Mutex::new(()), RwLock::new(())));
        let (mutex, lock) = (shared.0.lock(), shared.1.write());
        let fibers: Vec<_> = (0..6)
            .map(|index| {
                let shared = Arc::clone(&shared);
                runtime.spawn(move || {
                    let limit = ms(5 * (index + 1));
                    let timed = |wait: &dyn Fn()| {
                        let start = Instant::now();
                        wait();
                        assert!(start.elapsed() >= limit);
                    };
                    timed(&|| assert!(shared.0.try_lock_for(limit).is_none()));
                    timed(&|| assert!(shared.1.try_read_for(limit).is_none()));
                    timed(&|| assert!(shared.1.try_write_until(Instant::now() + limit).is_none()));
                    let (own, condition) = (Mutex::new(()), Condvar::new());
                    timed(&|| assert!(condition.wait_for(&mut own.lock(), limit).timed_out()));
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        drop((mutex, lock));
        runtime.stop().unwrap();
    }
}

#[test]
fn a_condition_variable_loses_no_notice() {
    const ROOM: usize = 3;
    for (fibers, threads) in [(8, 0), (2, 4), (5, 5)] {
        together(
            fibers,
            threads,
            || {
                let items = Mutex::new(VecDeque::<usize>::new());
                (items, Condvar::new(), Condvar::new(), AtomicUsize::new(0))
            },
            |(items, has_items, has_room, sum), me| {
                for round in 0..ROUNDS {
                    let mut items = items.lock();
                    if me.index % 2 == 0 {
                        has_room.wait_while(&mut items, |items| items.len() == ROOM);
                        items.push_back(round + 1);
                        has_items.notify_one();
                    } else {
                        while items.is_empty() {
                            if me.below(4) == 0 {
                                has_items.wait_for(&mut items, us(300));
                            } else {
                                has_items.wait(&mut items);
                            }
                        }
                        sum.fetch_add(items.pop_front().unwrap(), SeqCst);
                        has_room.notify_one();
                    }
                    drop(items);
                    me.linger();
                }
            },
            |(_, _, _, sum)| {
                let senders = (fibers + threads) / 2;
                assert_eq!(sum.load(SeqCst), senders * ROUNDS * (ROUNDS + 1) / 2);
            },
        );
    }
}

#[test]
fn everybody_is_notified() {
    for (fibers, threads) in MEMBERS {
        together(
            fibers,
            threads,
            || (Mutex::new((0, 0)), Condvar::new()),
            |(mutex, condition), me| {
                // The last one to come lets all go on, again and again: one is woken, and the others move to the mutex.
                for _ in 0..20 {
                    let mut state = mutex.lock();
                    state.0 += 1;
                    let generation = state.1;
                    if state.0 == me.count {
                        *state = (0, generation + 1);
                        assert_eq!(condition.notify_all(), me.count - 1);
                    } else {
                        condition.wait_while(&mut state, |state| state.1 == generation);
                    }
                    drop(state);
                    me.linger();
                }
            },
            |(mutex, _)| assert_eq!(*mutex.lock(), (0, 20)),
        );
    }
}

#[test]
fn what_is_done_once_is_waited_for_by_all() {
    together(
        6,
        3,
        || (Once::new(), AtomicUsize::new(0)),
        |(once, calls), _| {
            once.call_once(|| {
                thread::sleep(ms(10));
                calls.fetch_add(1, SeqCst);
            });
            assert_eq!(calls.load(SeqCst), 1, "it is not done, or done twice");
        },
        |(once, _)| assert_eq!(once.state(), OnceState::Done),
    );
}

#[test]
fn a_fiber_owns_what_it_locks_twice() {
    for (fibers, threads) in MEMBERS {
        together(
            fibers,
            threads,
            || {
                (
                    ReentrantMutex::new(Cell::new(0_usize)),
                    AtomicUsize::new(usize::MAX),
                )
            },
            |(mutex, owner), me| {
                for _ in 0..ROUNDS {
                    assert!(!mutex.is_owned_by_current_thread());
                    let outer = mutex.lock();
                    assert_eq!(owner.swap(me.index, SeqCst), usize::MAX, "two own it");
                    me.linger();
                    {
                        let inner = mutex.lock();
                        inner.set(inner.get() + 1);
                        me.linger();
                        assert!(mutex.is_owned_by_current_thread());
                    }
                    me.linger();
                    assert_eq!(owner.swap(usize::MAX, SeqCst), me.index, "two own it");
                    drop(outer);
                    me.linger();
                }
            },
            |(mutex, _)| assert_eq!(mutex.lock().get(), (fibers + threads) * ROUNDS),
        );
    }
}

/// Three fibers of one worker wait for a mutex that a fourth one has, which gives it back. Shared with the tests of light fibers,
/// which cannot do that.
pub fn wait_together(runtime: &fibrant::runtime::Handle) {
    // The mutex, whether it is to be given back, and how many have come to it.
    let shared = Arc::new((Mutex::new(0), AtomicBool::new(false), AtomicUsize::new(0)));
    let (mutex, is_over, come) = &*shared;
    let spawn = |work: fn(&Mutex<i32>, &AtomicBool, &AtomicUsize)| {
        let shared = Arc::clone(&shared);
        runtime.spawn_on(0, move || work(&shared.0, &shared.1, &shared.2))
    };
    let holder = spawn(|mutex, is_over, _| {
        let _guard = mutex.lock();
        while !is_over.load(SeqCst) {
            thread::sleep(ms(1));
        }
    });
    eventually("the mutex is taken", || mutex.is_locked());
    let wait = |mutex: &Mutex<i32>, _: &_, come: &AtomicUsize| {
        come.fetch_add(1, SeqCst);
        *mutex.lock() += 1;
    };
    let waiters: Vec<_> = (0..3).map(|_| spawn(wait)).collect();
    // Light ones may never come so far; that is for their deadline to find.
    let start = Instant::now();
    while come.load(SeqCst) < 3 && start.elapsed() < ms(1000) {
        thread::sleep(ms(1));
    }
    thread::sleep(ms(20));
    is_over.store(true, SeqCst);
    holder.join().unwrap();
    waiters.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(*mutex.lock(), 3);
}

#[test]
fn fibers_of_a_worker_wait_for_the_same_mutex() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    (0..20).for_each(|_| wait_together(&runtime));
    runtime.stop().unwrap();
}
