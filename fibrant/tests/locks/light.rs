//! Light fibers, which share their worker's thread-locals: the locks that work among them, and those that cannot.
//!
//! What cannot is shown in child processes: the same program runs right with isolated fibers, and hangs or goes wrong with light ones.
//! That it does is no promise; it is why there is a table in the documentation. `scoped` adds to it.

use crate::harness::*;
use crate::patience::{Watchdog, eventually};
use crate::{channels, common, crossbeam, parking_lot};
use ::parking_lot::ReentrantMutex;
use fibrant::runtime::Handle;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, Once, OnceLock, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// How often each member does it.
const ROUNDS: usize = 40;

/// How many fibers and how many threads.
const MEMBERS: [(usize, usize); 2] = [(8, 0), (5, 3)];

#[test]
fn a_mutex_works_light() {
    for (fibers, threads) in MEMBERS {
        together_as(
            Kind::Light,
            fibers,
            threads,
            || (Mutex::new(0_usize), AtomicBool::new(false)),
            |(mutex, is_taken), me| {
                for _ in 0..ROUNDS {
                    let mut count = mutex.lock().unwrap();
                    assert!(!is_taken.swap(true, SeqCst), "two have it");
                    *count += 1;
                    me.linger();
                    is_taken.store(false, SeqCst);
                    drop(count);
                    me.linger();
                }
            },
            |(mutex, _)| assert_eq!(*mutex.lock().unwrap(), (fibers + threads) * ROUNDS),
        );
    }
}

#[test]
fn a_lock_for_readers_and_writers_works_light() {
    for (fibers, threads) in MEMBERS {
        together_as(
            Kind::Light,
            fibers,
            threads,
            || (RwLock::new((0_usize, 0_usize)), AtomicUsize::new(0)),
            |(lock, writes), me| {
                for _ in 0..ROUNDS {
                    if me.below(4) == 0 {
                        let mut pair = lock.write().unwrap();
                        pair.0 += 1;
                        me.linger();
                        pair.1 += 1;
                        writes.fetch_add(1, SeqCst);
                    } else {
                        let pair = lock.read().unwrap();
                        me.linger();
                        assert_eq!(pair.0, pair.1, "somebody writes");
                    }
                    me.linger();
                }
            },
            |(lock, writes)| {
                let count = writes.load(SeqCst);
                assert_eq!(*lock.read().unwrap(), (count, count));
            },
        );
    }
}

#[test]
fn a_condition_variable_works_light() {
    const ROOM: usize = 3;
    for (fibers, threads) in [(8, 0), (5, 5)] {
        together_as(
            Kind::Light,
            fibers,
            threads,
            || {
                let items = Mutex::new(VecDeque::<usize>::new());
                (items, Condvar::new(), Condvar::new(), AtomicUsize::new(0))
            },
            |(items, has_items, has_room, sum), me| {
                for round in 0..ROUNDS {
                    let mut items = items.lock().unwrap();
                    if me.index % 2 == 0 {
                        items = has_room.wait_while(items, |items| items.len() == ROOM).unwrap();
                        items.push_back(round + 1);
                        has_items.notify_one();
                    } else {
                        while items.is_empty() {
                            items = if me.below(4) == 0 {
                                has_items.wait_timeout(items, us(300)).unwrap().0
                            } else {
                                has_items.wait(items).unwrap()
                            };
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
fn what_is_done_once_is_waited_for_light() {
    static LAZY: [LazyLock<usize>; 2] = [const {
        LazyLock::new(|| {
            thread::sleep(ms(10));
            1
        })
    }; 2];
    let next = AtomicUsize::new(0);
    together_as(
        Kind::Light,
        6,
        3,
        || {
            let lazy = &LAZY[next.fetch_add(1, SeqCst)];
            (
                Once::new(),
                OnceLock::new(),
                lazy,
                Barrier::new(9),
                AtomicUsize::new(0),
            )
        },
        |(once, cell, lazy, barrier, calls), me| {
            once.call_once(|| {
                thread::sleep(ms(10));
                calls.fetch_add(1, SeqCst);
            });
            assert_eq!(calls.load(SeqCst), 1, "it is not done, or done twice");
            let index = me.index;
            let value = cell.get_or_init(|| {
                thread::sleep(ms(10));
                index
            });
            assert_eq!(cell.get(), Some(value));
            assert_eq!(***lazy, 1);
            barrier.wait();
        },
        |(_, _, _, _, calls)| assert_eq!(calls.load(SeqCst), 1),
    );
}

#[test]
fn one_fiber_of_a_worker_can_park_light() {
    let watchdog = Watchdog::new();
    let runtime = Kind::Light.runtime(2);
    watchdog.show(&runtime);
    let is_over = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..4)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            runtime.spawn(move || {
                while !is_over.load(SeqCst) {
                    thread::sleep(us(300));
                }
            })
        })
        .collect();
    let parking: Vec<_> = (0..2)
        .map(|worker| {
            let turns = Arc::new(AtomicUsize::new(0));
            let own = Arc::clone(&turns);
            let (sender, receiver) = mpsc::channel();
            let fiber = runtime.spawn_on(worker, move || {
                sender.send(thread::current()).unwrap();
                for round in 1..=ROUNDS {
                    while own.load(SeqCst) < round {
                        thread::park();
                    }
                }
            });
            (fiber, receiver.recv().unwrap(), turns)
        })
        .collect();
    for _ in 0..ROUNDS {
        for (_, thread, turns) in &parking {
            turns.fetch_add(1, SeqCst);
            thread.unpark();
        }
        thread::sleep(us(200));
    }
    for (fiber, ..) in parking {
        fiber.join().unwrap();
    }
    is_over.store(true, SeqCst);
    others.into_iter().for_each(|fiber| fiber.join().unwrap());
    runtime.stop().unwrap();
}

/// How a program ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Outcome {
    Right,
    /// It does not.
    Hangs,
    /// It has noticed that something is not as it must be.
    Wrong,
}

impl Outcome {
    /// The status that a child process tells it by.
    fn status(self) -> i32 {
        match self {
            Outcome::Right => 0,
            Outcome::Hangs => 3,
            Outcome::Wrong => 4,
        }
    }
}

/// Ends the program of a child process at once: what has gone wrong may have left something that must not be touched.
pub fn wrong(what: &str) -> ! {
    end(Outcome::Wrong, what)
}

fn end(outcome: Outcome, words: &str) -> ! {
    // Not by std, whose locks are among what is tested here.
    // SAFETY: writes bytes, and ends the process.
    unsafe {
        libc::write(2, words.as_ptr().cast(), words.len());
        libc::_exit(outcome.status())
    }
}

/// Runs a test's program, as a child process, with light fibers and with isolated ones; with the latter it must be right.
pub fn only_isolated(test: &str, light: Outcome, program: fn(&Handle)) {
    match common::case().as_deref() {
        Some("isolated") => return run(Kind::Isolated, Duration::from_secs(50), program),
        // What hangs has nothing else to do; what does not is over at once, unless the machine is slow.
        Some("light") => {
            let limit = if light == Outcome::Hangs { 2 } else { 20 };
            return run(Kind::Light, Duration::from_secs(limit), program);
        }
        _ => {}
    }
    for (case, outcome) in [("isolated", Outcome::Right), ("light", light)] {
        let child = common::child(test, case, &[]);
        assert_eq!(
            child.0.status.code(),
            Some(outcome.status()),
            "{case}, expected {outcome:?}: {}\n{}\n{}",
            child.0.status,
            child.stdout(),
            child.stderr()
        );
    }
}

/// Runs a program on one worker, with a deadline.
fn run(kind: Kind, limit: Duration, program: fn(&Handle)) {
    let runtime = kind.runtime(1);
    let handle = runtime.handle();
    thread::spawn(move || {
        thread::sleep(limit);
        end(Outcome::Hangs, &handle.dump().to_string());
    });
    program(&runtime);
    runtime.stop().unwrap();
}

#[test]
fn only_isolated_fibers_of_a_worker_can_park_at_once() {
    only_isolated(
        "light::only_isolated_fibers_of_a_worker_can_park_at_once",
        Outcome::Hangs,
        channels::park_two,
    );
}

#[test]
fn only_isolated_fibers_of_a_worker_can_send_each_other_messages() {
    only_isolated(
        "light::only_isolated_fibers_of_a_worker_can_send_each_other_messages",
        Outcome::Hangs,
        |runtime| {
            let (sender, receiver) = mpsc::channel();
            let has_come = Arc::new(AtomicBool::new(false));
            let come = Arc::clone(&has_come);
            let receiving = runtime.spawn(move || {
                receiver.recv().unwrap();
                come.store(true, SeqCst);
            });
            eventually("the receiver waits", || waiting_for_locks(runtime) == 1);
            let sending = runtime.spawn(move || {
                sender.send(()).unwrap();
                // Its end would tell the receiver, too.
                while !has_come.load(SeqCst) {
                    thread::sleep(ms(1));
                }
            });
            receiving.join().unwrap();
            sending.join().unwrap();
        },
    );
}

#[test]
fn only_isolated_fibers_of_a_worker_can_meet_in_a_channel_without_room() {
    only_isolated(
        "light::only_isolated_fibers_of_a_worker_can_meet_in_a_channel_without_room",
        Outcome::Hangs,
        |runtime| {
            let (sender, receiver) = mpsc::sync_channel(0);
            let receiving = runtime.spawn(move || receiver.recv().unwrap());
            let sending = runtime.spawn(move || sender.send(()).unwrap());
            sending.join().unwrap();
            receiving.join().unwrap();
        },
    );
}

#[test]
fn only_isolated_fibers_of_a_worker_can_use_crossbeams_channels() {
    only_isolated(
        "light::only_isolated_fibers_of_a_worker_can_use_crossbeams_channels",
        Outcome::Hangs,
        crossbeam::hand_over,
    );
}

#[test]
fn only_isolated_fibers_of_a_worker_can_wait_for_parking_lots_mutex() {
    only_isolated(
        "light::only_isolated_fibers_of_a_worker_can_wait_for_parking_lots_mutex",
        Outcome::Hangs,
        parking_lot::wait_together,
    );
}

/// Two fibers take a lock that a thread could take twice, and hold it across a sleep.
fn take_twice(runtime: &Handle, with_lock: fn(&mut dyn FnMut())) {
    let is_taken = Arc::new(AtomicBool::new(false));
    let arrived = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = (0..2)
        .map(|_| {
            let (is_taken, arrived) = (Arc::clone(&is_taken), Arc::clone(&arrived));
            runtime.spawn(move || {
                arrived.fetch_add(1, SeqCst);
                with_lock(&mut || {
                    if is_taken.swap(true, SeqCst) {
                        wrong("two fibers have the lock");
                    }
                    let start = Instant::now();
                    while arrived.load(SeqCst) < 2 && start.elapsed() < ms(1000) {
                        thread::sleep(ms(1));
                    }
                    thread::sleep(ms(20));
                    is_taken.store(false, SeqCst);
                });
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
}

#[test]
fn only_isolated_fibers_own_the_output() {
    only_isolated(
        "light::only_isolated_fibers_own_the_output",
        Outcome::Wrong,
        |runtime| {
            take_twice(runtime, |work| {
                let _lock = std::io::stdout().lock();
                work();
            });
        },
    );
}

#[test]
fn only_isolated_fibers_own_a_reentrant_mutex() {
    static MUTEX: ReentrantMutex<()> = ReentrantMutex::new(());
    only_isolated(
        "light::only_isolated_fibers_own_a_reentrant_mutex",
        Outcome::Wrong,
        |runtime| {
            take_twice(runtime, |work| {
                let _lock = MUTEX.lock();
                work();
            });
        },
    );
}

#[test]
fn only_isolated_fibers_panic_alone() {
    only_isolated(
        "light::only_isolated_fibers_panic_alone",
        Outcome::Wrong,
        |runtime| {
            struct Lingers(Arc<AtomicBool>);
            impl Drop for Lingers {
                fn drop(&mut self) {
                    self.0.store(true, SeqCst);
                    while self.0.load(SeqCst) {
                        thread::sleep(ms(1));
                    }
                }
            }
            let is_unwinding = Arc::new(AtomicBool::new(false));
            let lingers = Lingers(Arc::clone(&is_unwinding));
            let panics = runtime.spawn(move || {
                let _lingers = lingers;
                panic!("on purpose");
            });
            let looks = runtime.spawn(move || {
                eventually("the other one unwinds", || is_unwinding.load(SeqCst));
                if thread::panicking() {
                    wrong("a fiber that does not panic is told that it does");
                }
                is_unwinding.store(false, SeqCst);
            });
            looks.join().unwrap();
            assert!(panics.join().is_err());
        },
    );
}
