//! An allocator behind a lock that fibers wait for: what the runtime itself allocates, in the middle of a switch or under one of its own
//! locks, must not make the fiber wait a second time, or keep others from ever going on.

#[path = "common/patience.rs"]
mod patience;

use fibrant::fiber::{self, Fiber, SharedStacks, State};
use fibrant::runtime::{Builder, Runtime};
use fibrant::timer;
use patience::Watchdog;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The system's, one call at a time.
struct Slow;

static LOCK: Mutex<()> = Mutex::new(());
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Calls `f` with the lock held, now and then for longer.
fn locked<T>(f: impl FnOnce() -> T) -> T {
    let _guard = LOCK.lock().unwrap();
    if CALLS.fetch_add(1, Relaxed).is_multiple_of(16) {
        for _ in 0..2000 {
            std::hint::spin_loop();
        }
    }
    f()
}

// SAFETY: the system's allocator does it.
unsafe impl GlobalAlloc for Slow {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        locked(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        locked(|| unsafe { System.dealloc(place, layout) });
    }
}

#[global_allocator]
static ALLOCATOR: Slow = Slow;

/// Somebody else who allocates, until it is dropped.
struct Busy(Arc<AtomicBool>, Option<thread::JoinHandle<()>>);

impl Busy {
    fn new() -> Busy {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !over.load(Relaxed) {
                drop(vec![0_u8; 64]);
                thread::sleep(Duration::from_micros(10));
            }
        });
        Busy(is_over, Some(thread))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        if let Some(thread) = self.1.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn the_runtime_waits_for_no_lock_of_the_allocators_as_a_fiber_does() {
    let watchdog = Watchdog::new();
    let _busy = Busy::new();
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).build().unwrap();
        watchdog.show(&runtime);
        let fibers: Vec<_> = (0..40)
            .map(|index| {
                runtime.spawn(move || {
                    for round in 0..5 {
                        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
                        let reader = fibrant::spawn(move || {
                            let mut word = [0; 4];
                            ours.read_exact(&mut word).unwrap();
                            word.to_vec()
                        });
                        thread::sleep(Duration::from_micros(index * 7 % 50));
                        theirs.write_all(b"word").unwrap();
                        assert_eq!(reader.join().unwrap(), b"word", "round {round}");
                        drop(fibrant::spawn(|| drop(vec![1; 1000])));
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        runtime.stop().unwrap();
    }
}

#[test]
fn timers_are_armed_and_cancelled_while_others_allocate() {
    const FIBERS: usize = 40;
    const TIMERS: usize = 100;
    let watchdog = Watchdog::new();
    let _busy = Busy::new();
    // Several times: whether an allocation has to wait is a matter of luck.
    for workers in [1, 2].repeat(8) {
        let runtime = Builder::new().workers(workers).build().unwrap();
        watchdog.show(&runtime);
        let fired = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..FIBERS)
            .map(|_| {
                let fired = Arc::clone(&fired);
                runtime.spawn(move || {
                    // Each takes more than there were, so that room for them is made again and again.
                    let timers: Vec<_> = (0..TIMERS)
                        .map(|index| {
                            let fired = Arc::clone(&fired);
                            let delay = match index % 2 {
                                0 => Duration::from_secs(3600),
                                _ => Duration::from_micros(index as u64),
                            };
                            timer::after(delay, move || {
                                fired.fetch_add(1, Relaxed);
                            })
                        })
                        .collect();
                    fibrant::yield_now();
                    timers.iter().step_by(2).filter(|timer| timer.cancel()).count()
                })
            })
            .collect();
        for fiber in fibers {
            assert_eq!(fiber.join().unwrap(), TIMERS / 2);
        }
        runtime.stop().unwrap();
        assert_eq!(fired.load(Relaxed), FIBERS * TIMERS / 2);
    }
}

#[test]
fn a_shutdown_waits_for_no_fiber_that_waits_for_the_allocator() {
    let watchdog = Watchdog::new();
    let _busy = Busy::new();
    for round in 0..20 {
        let runtime = Builder::new().workers(1).build().unwrap();
        watchdog.show(&runtime);
        for _ in 0..8 {
            runtime.spawn(|| {
                loop {
                    drop(Runtime::current().unwrap().dump());
                    fibrant::sleep(Duration::from_micros(10));
                }
            });
        }
        thread::sleep(Duration::from_millis(5));
        let report = runtime.shutdown(Duration::ZERO);
        assert!(report.abandoned.is_empty(), "round {round}: {report:?}");
    }
}

/// Suspends from within so many frames, and looks whether they are the same afterwards.
fn suspend_below(levels: usize) {
    let frame = std::hint::black_box([levels as u8; 200]);
    match levels {
        0 => fiber::suspend(),
        _ => suspend_below(levels - 1),
    }
    assert!(
        std::hint::black_box(&frame)
            .iter()
            .all(|&byte| byte == levels as u8)
    );
}

/// A fiber that shares one of these stacks.
fn sharing(stacks: &SharedStacks, f: impl FnOnce() + 'static) -> Fiber {
    // SAFETY: nothing refers to what is on the stacks of these fibers while they are suspended.
    unsafe { Fiber::new(f).sharing_stack(stacks) }
}

/// Drives a fiber that drives another on the very stack that it stands on, so that somebody else has to move them. How much that is
/// changes each time, and so do the copies.
fn share(stacks: &SharedStacks, seed: usize) {
    let own = stacks.clone();
    let outer = sharing(stacks, move || {
        let inner = sharing(&own, move || {
            (0..200).for_each(|step| suspend_below((seed + step) * 7 % 8));
        });
        while inner.resume().unwrap() == State::Ready {
            drop(vec![0_u8; 32]); // as it runs, it may wait
        }
    });
    assert_eq!(outer.resume().unwrap(), State::Term);
}

#[test]
#[cfg(not(fibrant_asan))] // AddressSanitizer does not know of frames that move
fn stacks_are_shared_while_others_allocate() {
    const FIBERS: usize = 20;
    let watchdog = Watchdog::new();
    let _busy = Busy::new();
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).build().unwrap();
        watchdog.show(&runtime);
        let fibers: Vec<_> = (0..FIBERS)
            .map(|index| {
                runtime.spawn(move || {
                    for round in 0..5 {
                        // Of a new size, so that nothing is at hand.
                        let size = (64 + 4 * (index + FIBERS * round)) << 10;
                        share(&SharedStacks::new(1, size).unwrap(), index);
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        runtime.stop().unwrap();
    }
}
