//! What the scheduler allocates: nothing to park and wake, at most twice to spawn and join. One test alone in its binary:
//! nothing else allocates meanwhile.

#[path = "common/patience.rs"]
mod patience;

use fibrant::fiber;
use fibrant::runtime::Runtime;
use std::alloc::{GlobalAlloc, Layout, System};
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

/// How often `f` allocates, once it has run before and everything has reached its size. The least of some runs counts: other
/// threads (the test harness, the watchdog) may allocate by the way.
fn allocations(mut f: impl FnMut()) -> usize {
    f();
    let runs = (0..4).map(|_| {
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
            for _ in 0..ROUNDS {
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
        // The Rc, and a few for what grows by the way.
        assert!(number <= 2 * ROUNDS + 20, "{what}: {number} in {ROUNDS} rounds");
        assert!(number >= ROUNDS, "{what}: {number}, so this test counts nothing");
    }
    runtime.stop().unwrap();
}
