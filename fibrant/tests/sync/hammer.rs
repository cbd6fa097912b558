//! Fibers and threads that use a lock as hard as they can, on one worker and on two: what it promises holds at every moment.

use crate::harness::*;
use fibrant::sync::{Barrier, Condvar, Mutex, RwLock, Semaphore, WaitGroup};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex as StdMutex, TryLockError};

const KINDS: [Kind; 2] = [Kind::Isolated, Kind::Light];
const ROUNDS: usize = 100;

#[test]
fn one_at_a_time_has_a_mutex() {
    for kind in KINDS {
        together_as(
            kind,
            6,
            3,
            || Mutex::new((0, 0)),
            |mutex, member| {
                for _ in 0..ROUNDS {
                    let mut guard = match member.below(4) {
                        0 => match mutex.try_lock() {
                            Ok(guard) => guard,
                            Err(TryLockError::WouldBlock) => mutex.lock().unwrap(),
                            Err(error) => panic!("{error}"),
                        },
                        _ => mutex.lock().unwrap(),
                    };
                    let before = *guard;
                    assert_eq!(before.0, before.1, "somebody is in the middle");
                    guard.0 += 1;
                    member.linger();
                    assert_eq!(*guard, (before.0 + 1, before.1), "somebody else is here");
                    guard.1 += 1;
                }
            },
            |mutex| assert_eq!(*mutex.lock().unwrap(), (9 * ROUNDS, 9 * ROUNDS)),
        );
    }
}

#[test]
fn a_mutex_held_for_a_moment_is_passed_about_quickly() {
    together(
        4,
        2,
        || Mutex::new(0_usize),
        |mutex, _| (0..20_000).for_each(|_| *mutex.lock().unwrap() += 1),
        |mutex| assert_eq!(*mutex.lock().unwrap(), 6 * 20_000),
    );
}

#[test]
fn some_give_up_waiting_for_a_mutex_and_leave_no_trace() {
    for kind in KINDS {
        together_as(
            kind,
            6,
            2,
            || (Mutex::new(0), AtomicUsize::new(0)),
            |(mutex, locked), member| {
                for _ in 0..ROUNDS {
                    let patience = us(member.below(2000));
                    // Outside a fiber this simply waits.
                    let result = fibrant::timeout(patience, || {
                        let mut guard = mutex.lock().unwrap_or_else(|error| error.into_inner());
                        *guard += 1;
                        locked.fetch_add(1, SeqCst);
                        drop(guard);
                    });
                    if result.is_ok() && member.below(3) == 0 {
                        let _guard = mutex.lock().unwrap_or_else(|error| error.into_inner());
                        member.linger();
                    }
                }
            },
            |(mutex, locked)| {
                let guard = mutex
                    .try_lock()
                    .expect("nobody is left, and nothing was interrupted in it");
                assert_eq!(*guard, locked.load(SeqCst));
            },
        );
    }
}

/// A value of two halves, and who is at it.
#[derive(Default)]
struct Book {
    halves: RwLock<(usize, usize)>,
    readers: AtomicUsize,
    writers: AtomicUsize,
    most_readers: AtomicUsize,
    written: AtomicUsize,
}

#[test]
fn many_read_or_one_writes() {
    for kind in KINDS {
        together_as(
            kind,
            8,
            3,
            Book::default,
            |book, member| {
                for _ in 0..ROUNDS {
                    if member.below(4) == 0 {
                        let mut halves = match member.below(3) {
                            0 => match book.halves.try_write() {
                                Ok(guard) => guard,
                                Err(_) => continue,
                            },
                            _ => book.halves.write().unwrap(),
                        };
                        assert_eq!(book.writers.fetch_add(1, SeqCst), 0);
                        assert_eq!(book.readers.load(SeqCst), 0);
                        halves.0 += 1;
                        member.linger();
                        halves.1 += 1;
                        assert_eq!(book.readers.load(SeqCst), 0);
                        book.written.fetch_add(1, SeqCst);
                        book.writers.fetch_sub(1, SeqCst);
                    } else {
                        let halves = match member.below(3) {
                            0 => match book.halves.try_read() {
                                Ok(guard) => guard,
                                Err(_) => continue,
                            },
                            _ => book.halves.read().unwrap(),
                        };
                        let readers = book.readers.fetch_add(1, SeqCst) + 1;
                        book.most_readers.fetch_max(readers, SeqCst);
                        assert_eq!(book.writers.load(SeqCst), 0);
                        let before = *halves;
                        assert_eq!(before.0, before.1);
                        member.linger();
                        assert_eq!(*halves, before);
                        book.readers.fetch_sub(1, SeqCst);
                    }
                }
            },
            |book| {
                let halves = *book.halves.try_write().expect("nobody is left");
                assert_eq!(halves.0, book.written.load(SeqCst));
                assert!(
                    book.most_readers.load(SeqCst) > 1,
                    "they have never read together"
                );
            },
        );
    }
}

#[test]
fn some_give_up_waiting_to_read_or_write() {
    together(
        8,
        2,
        || (RwLock::new(0), AtomicUsize::new(0)),
        |(lock, written), member| {
            for _ in 0..ROUNDS {
                let patience = us(member.below(1500));
                let writes = member.below(2) == 0;
                let _ = fibrant::timeout(patience, || {
                    if writes {
                        *lock.write().unwrap() += 1;
                        written.fetch_add(1, SeqCst);
                    } else {
                        drop(lock.read().unwrap());
                    }
                });
                if member.below(4) == 0 {
                    let _guard = lock.read().unwrap();
                    member.linger();
                }
            }
        },
        |(lock, written)| assert_eq!(*lock.try_write().expect("nobody is left"), written.load(SeqCst)),
    );
}

#[test]
fn no_more_than_the_permits_are_taken_and_none_is_lost() {
    const PERMITS: usize = 3;
    for kind in KINDS {
        together_as(
            kind,
            8,
            3,
            || (Semaphore::new(PERMITS), AtomicUsize::new(0)),
            |(semaphore, taken), member| {
                for _ in 0..ROUNDS {
                    let wanted = 1 + member.below(PERMITS as u64) as usize;
                    let patience = us(member.below(1500));
                    let permit = match member.below(5) {
                        0 => semaphore.try_acquire_many(wanted),
                        1 => semaphore.acquire_many_timeout(wanted, patience),
                        2 => fibrant::timeout(patience, || semaphore.acquire_many(wanted)).ok(),
                        _ => Some(semaphore.acquire_many(wanted)),
                    };
                    let Some(permit) = permit else { continue };
                    assert_eq!(permit.count(), wanted);
                    let now = taken.fetch_add(wanted, SeqCst) + wanted;
                    assert!(now <= PERMITS, "{now} are taken");
                    member.linger();
                    taken.fetch_sub(wanted, SeqCst);
                    if member.below(4) == 0 {
                        permit.forget();
                        semaphore.release(wanted);
                    }
                }
            },
            |(semaphore, _)| {
                assert_eq!(semaphore.available(), PERMITS);
                assert!(semaphore.try_acquire_many(PERMITS).is_some());
            },
        );
    }
}

/// A queue with room for a few numbers.
struct Queue {
    numbers: Mutex<Vec<u64>>,
    has_some: Condvar,
    has_room: Condvar,
    received: StdMutex<Vec<u64>>,
}

const ROOM: usize = 4;

#[test]
fn a_queue_with_two_conditions_loses_nothing() {
    for kind in KINDS {
        together_as(
            kind,
            6,
            4,
            || Queue {
                numbers: Mutex::default(),
                has_some: Condvar::new(),
                has_room: Condvar::new(),
                received: StdMutex::default(),
            },
            |queue, member| {
                for round in 0..ROUNDS {
                    if member.index % 2 == 0 {
                        let numbers = queue.numbers.lock().unwrap();
                        let mut numbers = queue
                            .has_room
                            .wait_while(numbers, |numbers| numbers.len() >= ROOM)
                            .unwrap();
                        numbers.push((member.index * ROUNDS + round) as u64);
                        assert!(numbers.len() <= ROOM);
                        drop(numbers);
                        queue.has_some.notify_one();
                    } else {
                        let mut numbers = queue.numbers.lock().unwrap();
                        while numbers.is_empty() {
                            let patience = us(member.below(3000));
                            numbers = match member.below(3) {
                                0 => queue.has_some.wait_timeout(numbers, patience).unwrap().0,
                                _ => queue.has_some.wait(numbers).unwrap(),
                            };
                        }
                        let number = numbers.pop().unwrap();
                        drop(numbers);
                        queue.has_room.notify_one();
                        queue.received.lock().unwrap().push(number);
                    }
                    if round % 8 == 0 {
                        member.linger();
                    }
                }
            },
            |queue| {
                let mut received = queue.received.lock().unwrap().clone();
                received.sort_unstable();
                let sent = (0..10)
                    .step_by(2)
                    .flat_map(|index| index * ROUNDS..(index + 1) * ROUNDS);
                assert!(received.into_iter().eq(sent.map(|number| number as u64)));
            },
        );
    }
}

#[test]
fn a_barrier_lets_all_through_together_and_names_one_leader() {
    const MEMBERS: usize = 7;
    together(
        5,
        2,
        || {
            let numbers = || (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
            (Barrier::new(MEMBERS), numbers(), numbers())
        },
        |(barrier, came, leaders), member| {
            for round in 0..ROUNDS {
                if round % 10 == 0 {
                    member.linger();
                }
                came[round].fetch_add(1, SeqCst);
                let result = barrier.wait();
                assert_eq!(came[round].load(SeqCst), MEMBERS);
                leaders[round].fetch_add(usize::from(result.is_leader()), SeqCst);
            }
        },
        |(_, _, leaders)| assert!(leaders.iter().all(|leaders| leaders.load(SeqCst) == 1)),
    );
}

#[test]
fn a_wait_group_is_over_when_all_are_done() {
    together(
        4,
        2,
        || (),
        |(), member| {
            for _ in 0..20 {
                let group = WaitGroup::new();
                let done = std::sync::Arc::new(AtomicUsize::new(0));
                let mut threads = Vec::new();
                for index in 0..4 {
                    let (group, done) = (group.clone(), std::sync::Arc::clone(&done));
                    let work = move || {
                        fibrant::sleep(us(10 * index));
                        done.fetch_add(1, SeqCst);
                        drop(group);
                    };
                    if index == 0 || fibrant::runtime::Runtime::current().is_none() {
                        threads.push(std::thread::spawn(work));
                    } else {
                        drop(fibrant::spawn(work));
                    }
                }
                member.linger();
                let watches = group.clone();
                let others = std::thread::spawn(move || watches.wait());
                group.wait();
                assert_eq!(done.load(SeqCst), 4);
                others.join().unwrap();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            }
        },
        |()| {},
    );
}
