//! What the scheduler allocates: nothing to park and wake, at most twice to spawn, and nothing where others have ended. One test alone in its binary:
//! nothing else allocates meanwhile.

#[path = "common/patience.rs"]
mod patience;

use fibrant::fiber;
use fibrant::io::Event;
use fibrant::runtime::Runtime;
use fibrant::sync::{Condvar, Mutex, Semaphore, channel};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: usize = 1000;

/// The same between workers, where a round may take milliseconds on a busy machine.
const FEW_ROUNDS: usize = 100;

/// How often `allocations` calls what it is given.
const RUNS: usize = 12;

/// How many rounds there are with a fiber on that worker.
fn rounds(worker: usize) -> usize {
    if worker == 0 { ROUNDS } else { FEW_ROUNDS }
}

/// How often `f` allocates, once it has run before and everything has reached its size. The least of some runs counts: other
/// threads (the test harness, the watchdog) may allocate by the way.
fn allocations(mut f: impl FnMut()) -> usize {
    f();
    let runs = (1..RUNS).map(|_| {
        let before = ALLOCATIONS.load(SeqCst);
        f();
        ALLOCATIONS.load(SeqCst) - before
    });
    runs.min().expect("there are some")
}

/// Parks until the next call of `unpark` on the other side, so many times.
fn answer(caller: &fiber::Handle, turn: &AtomicUsize, over: &AtomicBool) {
    while !over.load(SeqCst) {
        if turn.load(SeqCst) == 1 {
            turn.store(0, SeqCst);
            caller.unpark();
        } else {
            fiber::park();
        }
    }
}

/// Hands over to a fiber on that worker and back, again and again.
fn round_trips(runtime: &Runtime, worker: usize) -> usize {
    let (count, counted) = mpsc::channel();
    let handle = runtime.handle();
    let caller = runtime.spawn_on(0, move || {
        let (turn, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (its_turn, its_end) = (Arc::clone(&turn), Arc::clone(&over));
        let myself = fiber::current().unwrap();
        let other = handle.spawn_on(worker, move || answer(&myself, &its_turn, &its_end));
        let number = allocations(|| {
            for _ in 0..rounds(worker) {
                turn.store(1, SeqCst);
                other.fiber().unpark();
                while turn.load(SeqCst) == 1 {
                    fiber::park();
                }
            }
        });
        over.store(true, SeqCst);
        other.fiber().unpark();
        other.join().unwrap();
        count.send(number).unwrap();
    });
    caller.join().unwrap();
    counted.recv().unwrap()
}

/// What a fiber allocates that waits for another, on that worker, by each thing that one can wait for.
fn waits_for_another(runtime: &Runtime, worker: usize) -> Vec<(&'static str, usize)> {
    let handle = runtime.handle();
    let fiber = runtime.spawn_on(0, move || {
        let mut numbers = Vec::new();
        let mut count = |what, wait: &dyn Fn(), answer: Box<dyn Fn() + Send>| {
            let other = handle.spawn_on(worker, move || (0..RUNS * rounds(worker)).for_each(|_| answer()));
            numbers.push((what, allocations(|| (0..rounds(worker)).for_each(|_| wait()))));
            other.join().unwrap();
        };

        let semaphores = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let [ask, answer] = semaphores.clone();
        count(
            "a semaphore",
            &move || {
                ask.release(1);
                answer.acquire().forget();
            },
            Box::new(move || {
                semaphores[0].acquire().forget();
                semaphores[1].release(1);
            }),
        );

        for (what, (ask, asked), (answer, answered)) in [
            ("a bounded channel", channel::bounded(1), channel::bounded(1)),
            ("a rendezvous", channel::bounded(0), channel::bounded(0)),
        ] {
            let wait = move || {
                ask.send(1).unwrap();
                answered.recv().unwrap();
            };
            let reply = move || {
                asked.recv().unwrap();
                answer.send(2).unwrap();
            };
            count(what, &wait, Box::new(reply));
        }

        let (ask, asked) = channel::bounded(1);
        let (answer, answered) = channel::bounded(1);
        let (_silent, never) = channel::bounded::<i32>(1);
        count(
            "select",
            &move || {
                ask.send(1).unwrap();
                fibrant::select! {
                    recv(answered) -> message => assert_eq!(message, Ok(2)),
                    recv(never) -> _ => unreachable!("nobody sends"),
                }
            },
            Box::new(move || {
                asked.recv().unwrap();
                answer.send(2).unwrap();
            }),
        );

        let state = Arc::new((Mutex::new(0), Condvar::new()));
        let theirs = Arc::clone(&state);
        let pass = |state: &(Mutex<i32>, Condvar), mine: i32| {
            let (mutex, changed) = state;
            let mut turn = changed
                .wait_while(mutex.lock().unwrap(), |turn| *turn != mine)
                .unwrap();
            *turn = 1 - mine;
            changed.notify_one();
        };
        count(
            "a mutex and a condition",
            &move || pass(&state, 0),
            Box::new(move || pass(&theirs, 1)),
        );

        let (ours, theirs) = UnixStream::pair().unwrap();
        let exchange = |stream: &UnixStream, begins: bool| {
            let send = || assert_eq!((&*stream).write(b"x").unwrap(), 1);
            if begins {
                send();
            }
            fibrant::io::wait(stream.as_raw_fd(), Event::READ, None).unwrap();
            assert_eq!((&*stream).read(&mut [0; 8]).unwrap(), 1);
            if !begins {
                send();
            }
        };
        count(
            "io::wait",
            &move || exchange(&ours, true),
            Box::new(move || exchange(&theirs, false)),
        );
        numbers
    });
    fiber.join().unwrap()
}

#[test]
fn waiting_allocates_nothing_and_spawning_at_most_twice() {
    let watchdog = patience::Watchdog::new();
    let runtime = watchdog.runtime(2);
    assert_eq!(round_trips(&runtime, 0), 0, "park and unpark on one worker");
    assert_eq!(round_trips(&runtime, 1), 0, "park and unpark across workers");

    let numbers = runtime.spawn_on(0, || {
        let repeat = |f: &dyn Fn()| allocations(|| (0..ROUNDS).for_each(|_| f()));
        [
            ("yield_now", repeat(&fibrant::yield_now)),
            ("sleep of nothing", repeat(&|| fibrant::sleep(Duration::ZERO))),
            ("sleep", repeat(&|| fibrant::sleep(Duration::from_nanos(1)))),
            (
                "park_timeout",
                repeat(&|| fiber::park_timeout(Duration::from_nanos(1))),
            ),
            (
                "timeout",
                repeat(&|| assert!(fibrant::timeout(Duration::from_secs(60), fibrant::yield_now).is_ok())),
            ),
        ]
    });
    for (what, number) in numbers.join().unwrap() {
        assert_eq!(number, 0, "{what}");
    }
    for worker in [0, 1] {
        for (what, number) in waits_for_another(&runtime, worker) {
            assert_eq!(number, 0, "{what}, the other one on worker {worker}");
        }
    }

    let numbers = runtime.spawn_on(0, || {
        let data = [1_u64; 10];
        [
            (
                "spawn and join",
                allocations(|| {
                    for _ in 0..ROUNDS {
                        fibrant::spawn(move || data.iter().sum::<u64>()).join().unwrap();
                    }
                }),
            ),
            (
                "spawn_local and join",
                allocations(|| {
                    let shared = Rc::new(());
                    for _ in 0..ROUNDS {
                        let shared = Rc::clone(&shared);
                        fibrant::spawn_local(move || drop(shared)).join().unwrap();
                    }
                }),
            ),
            (
                "spawn, wait and join",
                allocations(|| {
                    for _ in 0..ROUNDS {
                        fibrant::spawn_local(|| fibrant::sleep(Duration::ZERO))
                            .join()
                            .unwrap();
                    }
                }),
            ),
        ]
    });
    for (what, number) in numbers.join().unwrap() {
        // The memory of one that has ended is the next one's. A few are for what grows by the way.
        assert!(number <= 20, "{what}: {number} in {ROUNDS} rounds");
    }
    // The first ones need memory of their own, one block each.
    let first = runtime.spawn_on(0, || {
        const MANY: usize = 5000; // more than a thread keeps
        let before = ALLOCATIONS.load(SeqCst);
        let fibers: Vec<_> = (0..MANY).map(|_| fibrant::spawn(|| ())).collect();
        let number = ALLOCATIONS.load(SeqCst) - before;
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(number >= MANY / 10, "{number}, so this test counts nothing");
        assert!(number <= 2 * MANY + 20, "{number} for {MANY} fibers");
    });
    first.join().unwrap();
    runtime.stop().unwrap();
}
