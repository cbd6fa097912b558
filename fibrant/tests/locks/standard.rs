//! The locks of std, held across sleeps and reads.

use crate::common;
use crate::harness::*;
use crate::patience::{Watchdog, eventually};
use fibrant::fiber::WaitReason;
use fibrant::runtime::{FiberDump, Runtime};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, Once, OnceLock, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// How often each member does it.
const ROUNDS: usize = 60;

#[test]
fn a_mutex_has_one_holder_at_a_time() {
    for (fibers, threads) in [(8, 0), (6, 3)] {
        together(
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
fn fibers_of_one_worker_take_turns_with_a_mutex_held_across_a_sleep() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let mutex = Arc::new(Mutex::new(0));
    let fibers: Vec<_> = (0..2)
        .map(|_| {
            let mutex = Arc::clone(&mutex);
            runtime.spawn(move || {
                let mut guard = mutex.lock().unwrap();
                thread::sleep(ms(20));
                *guard += 1;
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(*mutex.lock().unwrap(), 2);
    runtime.stop().unwrap();
}

#[test]
fn a_lock_for_readers_and_writers_keeps_them_apart() {
    for (fibers, threads) in [(8, 0), (6, 3)] {
        together(
            fibers,
            threads,
            || (RwLock::new((0_usize, 0_usize)), AtomicUsize::new(0)),
            |(lock, readers), me| {
                for _ in 0..ROUNDS {
                    if me.below(4) == 0 {
                        let mut pair = lock.write().unwrap();
                        assert_eq!(readers.load(SeqCst), 0, "somebody reads");
                        pair.0 += 1;
                        me.linger();
                        pair.1 += 1;
                    } else {
                        let pair = lock.read().unwrap();
                        readers.fetch_add(1, SeqCst);
                        assert_eq!(pair.0, pair.1, "somebody writes");
                        me.linger();
                        readers.fetch_sub(1, SeqCst);
                    }
                    me.linger();
                }
            },
            |(lock, _)| {
                let pair = lock.read().unwrap();
                assert_eq!(pair.0, pair.1);
            },
        );
    }
}

/// A queue of limited length.
struct Channel {
    items: Mutex<VecDeque<usize>>,
    has_items: Condvar,
    has_room: Condvar,
    sum: AtomicUsize,
}

impl Channel {
    const ROOM: usize = 3;

    fn send(&self, item: usize) {
        let mut items = self.items.lock().unwrap();
        while items.len() == Channel::ROOM {
            items = self.has_room.wait(items).unwrap();
        }
        items.push_back(item);
        self.has_items.notify_one();
    }

    fn receive(&self, me: &mut Member) -> usize {
        let mut items = self.items.lock().unwrap();
        loop {
            if let Some(item) = items.pop_front() {
                self.has_room.notify_one();
                return item;
            }
            // Now and then with a deadline, which may come first.
            items = if me.below(4) == 0 {
                self.has_items.wait_timeout(items, us(300)).unwrap().0
            } else {
                self.has_items.wait(items).unwrap()
            };
        }
    }
}

#[test]
fn a_condition_variable_loses_no_notice() {
    for (fibers, threads) in [(8, 0), (2, 4), (5, 5)] {
        together(
            fibers,
            threads,
            || Channel {
                items: Mutex::default(),
                has_items: Condvar::new(),
                has_room: Condvar::new(),
                sum: AtomicUsize::new(0),
            },
            |channel, me| {
                for round in 0..ROUNDS {
                    if me.index % 2 == 0 {
                        channel.send(round + 1);
                    } else {
                        let item = channel.receive(me);
                        channel.sum.fetch_add(item, SeqCst);
                    }
                    me.linger();
                }
            },
            |channel| {
                let senders = (fibers + threads) / 2;
                assert_eq!(channel.sum.load(SeqCst), senders * ROUNDS * (ROUNDS + 1) / 2);
            },
        );
    }
}

#[test]
fn everybody_is_notified() {
    for (fibers, threads) in [(8, 0), (5, 4)] {
        together(
            fibers,
            threads,
            || (Mutex::new((0, 0)), Condvar::new()),
            |(mutex, condition), me| {
                // The last one to come lets all go on, again and again.
                for _ in 0..20 {
                    let mut state = mutex.lock().unwrap();
                    state.0 += 1;
                    let generation = state.1;
                    if state.0 == me.count {
                        *state = (0, generation + 1);
                        condition.notify_all();
                    } else {
                        while state.1 == generation {
                            state = condition.wait(state).unwrap();
                        }
                    }
                    drop(state);
                    me.linger();
                }
            },
            |(mutex, _)| assert_eq!(*mutex.lock().unwrap(), (0, 20)),
        );
    }
}

#[test]
fn a_wait_with_a_deadline_ends_there_and_not_before() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let state = Arc::new((Mutex::new(()), Condvar::new()));
        let fibers: Vec<_> = (0..10)
            .map(|index| {
                let state = Arc::clone(&state);
                runtime.spawn(move || {
                    let start = Instant::now();
                    let limit = ms(5 * (index + 1));
                    let guard = state.0.lock().unwrap();
                    let (_guard, result) = state.1.wait_timeout_while(guard, limit, |()| true).unwrap();
                    assert!(result.timed_out());
                    assert!(start.elapsed() >= limit);
                    // The mutex, too, was free for others meanwhile, and is taken again.
                    assert!(state.0.try_lock().is_err());
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        runtime.stop().unwrap();
    }
}

#[test]
fn what_is_done_once_is_waited_for_by_all() {
    static LAZY: [LazyLock<usize>; 2] = [const { LazyLock::new(initialize) }; 2];
    static MADE: AtomicUsize = AtomicUsize::new(0);
    fn initialize() -> usize {
        thread::sleep(ms(10));
        MADE.fetch_add(1, SeqCst)
    }
    let next = AtomicUsize::new(0);
    together(
        6,
        3,
        || {
            let lazy = &LAZY[next.fetch_add(1, SeqCst)];
            (Once::new(), OnceLock::new(), lazy, AtomicUsize::new(0))
        },
        |(once, cell, lazy, calls), me| {
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
            assert!(***lazy < 2);
        },
        |(_, _, _, calls)| assert_eq!(calls.load(SeqCst), 1),
    );
    assert_eq!(MADE.load(SeqCst), 2);
}

#[test]
fn a_barrier_lets_all_go_on_together() {
    for (fibers, threads) in [(7, 0), (4, 3)] {
        together(
            fibers,
            threads,
            || (Barrier::new(7), AtomicUsize::new(0), AtomicUsize::new(0)),
            |(barrier, arrived, leaders), me| {
                for round in 1..=20 {
                    me.linger();
                    arrived.fetch_add(1, SeqCst);
                    if barrier.wait().is_leader() {
                        leaders.fetch_add(1, SeqCst);
                    }
                    assert!(arrived.load(SeqCst) >= round * me.count, "some are not there yet");
                    barrier.wait();
                }
            },
            |(_, _, leaders)| assert_eq!(leaders.load(SeqCst), 20),
        );
    }
}

/// Calls `f` in a forked child, and gives the status that it ended with.
fn forked(f: impl FnOnce()) -> i32 {
    // SAFETY: the child does what `f` does, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(30); // ends it if it hangs
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            libc::_exit(i32::from(result.is_err()));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    }
}

#[test]
fn a_forked_child_wakes_nobody_of_its_parents() {
    // In a process of its own: std has a lock while a thread begins or ends, and a child that is forked at that moment can never
    // start any. The threads of other tests come and go.
    if common::case().is_none() {
        common::child(
            "standard::a_forked_child_wakes_nobody_of_its_parents",
            "alone",
            &[],
        )
        .succeeded();
        return;
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let state = Arc::new((Mutex::new(false), Condvar::new()));
    let waiter = {
        let state = Arc::clone(&state);
        runtime.spawn(move || {
            let mut is_over = state.0.lock().unwrap();
            while !*is_over {
                is_over = state.1.wait(is_over).unwrap();
            }
        })
    };
    let waits = || runtime.dump().fibers.iter().any(|fiber| fiber.wait.is_some());
    eventually("the fiber waits", waits);
    let status = forked(|| {
        state.1.notify_all();
        // And it can have a runtime of its own, with waits of its own.
        let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
        let other = Arc::clone(&state);
        let fiber = runtime.spawn(move || {
            let guard = other.0.lock().unwrap();
            assert!(
                !other
                    .1
                    .wait_timeout(guard, Duration::from_secs(20))
                    .unwrap()
                    .1
                    .timed_out()
            );
        });
        while !runtime.dump().fibers.iter().any(|fiber| fiber.wait.is_some()) {
            thread::sleep(ms(1));
        }
        drop(state.0.lock().unwrap());
        state.1.notify_all();
        fiber.join().unwrap();
    });
    assert_eq!(status, 0);
    *state.0.lock().unwrap() = true;
    state.1.notify_one();
    waiter.join().unwrap();
    runtime.stop().unwrap();
}

/// A count of notices, and who waits for one.
#[derive(Default)]
struct Notices(Mutex<usize>, Condvar);

impl Notices {
    fn wait(&self) {
        let mut count = self.0.lock().unwrap();
        while *count == 0 {
            count = self.1.wait(count).unwrap();
        }
        *count -= 1;
    }

    fn give_one(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }
}

/// How many fibers of a runtime wait for such a thing.
fn waiting(runtime: &Runtime) -> usize {
    let waits = |fiber: &FiberDump| matches!(fiber.wait, Some(WaitReason::Futex { .. }));
    runtime.dump().fibers.iter().filter(|fiber| waits(fiber)).count()
}

#[test]
fn an_abandoned_fiber_is_not_woken_in_place_of_another() {
    let watchdog = Watchdog::new();
    let notices = Arc::new(Notices::default());
    let (lost, kept) = (watchdog.runtime(1), watchdog.runtime(1));
    let wait = |runtime: &Runtime| {
        let notices = Arc::clone(&notices);
        runtime.spawn(move || notices.wait())
    };
    // These wait first, and would be woken first.
    for _ in 0..3 {
        drop(wait(&lost));
    }
    eventually("they wait", || waiting(&lost) == 3);
    let report = lost.shutdown(ms(1));
    assert_eq!(report.abandoned.len(), 3, "{report:?}");
    let waiter = wait(&kept);
    eventually("the other one waits", || waiting(&kept) == 1);
    notices.give_one();
    waiter.join().unwrap();
    kept.stop().unwrap();
}

/// Wakes a fiber whose worker is stuck, and ends that worker's runtime before it can run. Returns whether it did not run; then the
/// wake must go to another fiber, which waits as well.
fn is_passed_on(watchdog: &Watchdog, turns: usize) -> bool {
    let notices = Arc::new(Notices::default());
    let (lost, kept) = (watchdog.runtime(1), watchdog.runtime(1));
    let (has_run, is_stuck, is_over) = <(Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (first, ran) = (Arc::clone(&notices), Arc::clone(&has_run));
    drop(lost.spawn(move || {
        first.wait();
        ran.store(true, SeqCst);
    }));
    eventually("it waits", || waiting(&lost) == 1);
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
    let second = Arc::clone(&notices);
    let waiter = kept.spawn(move || second.wait());
    eventually("the other one waits", || waiting(&kept) == 1);
    notices.give_one();
    lost.shutdown(ms(1));
    assert!(!waiter.is_finished());
    is_over.store(true, SeqCst);
    eventually("somebody was woken", || {
        waiter.is_finished() || has_run.load(SeqCst)
    });
    let is_passed_on = !has_run.load(SeqCst);
    if !is_passed_on {
        notices.give_one();
    }
    waiter.join().unwrap();
    kept.stop().unwrap();
    is_passed_on
}

#[test]
fn a_wake_that_an_abandoned_fiber_never_sees_goes_to_another() {
    let watchdog = Watchdog::new();
    // 59 where nothing disturbs it. A worker that slept once more than usual looks at another turn; each try takes two seconds.
    let mut tries = [59; 5].into_iter().chain(57..=63);
    assert!(
        tries.any(|turns| is_passed_on(&watchdog, turns)),
        "it always runs in time"
    );
}
