//! Fibers that wait for locks while they panic: their worker goes on, and nobody else panics.

use crate::harness::*;
use crate::patience::{Watchdog, text};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Does something when it is dropped.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn a_fiber_that_waits_while_it_panics_lets_others_run() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    // How long the worker was kept. The system may do so, too, but not every time.
    let gap = || -> Duration {
        let state = Arc::new((Mutex::new(()), OnceLock::new(), AtomicBool::new(false)));
        let [first, second, third] = [(); 3].map(|()| Arc::clone(&state));
        let holds = runtime.spawn(move || {
            let _guard = first.0.lock().unwrap();
            while !first.2.load(SeqCst) {
                thread::sleep(ms(1));
            }
        });
        while state.0.try_lock().is_ok() {
            thread::yield_now();
        }
        let runs_next = runtime.spawn(move || {
            loop {
                if let Some(start) = second.1.get() {
                    let gap = Instant::elapsed(start);
                    second.2.store(true, SeqCst);
                    return gap;
                }
                thread::yield_now();
            }
        });
        let panics = runtime.spawn(move || {
            let _end = AtEnd(|| {
                third.1.set(Instant::now()).unwrap();
                drop(third.0.lock());
            });
            resume_unwind(Box::new("on purpose"));
        });
        assert!(panics.join().is_err());
        holds.join().unwrap();
        runs_next.join().unwrap()
    };
    let gaps: Vec<_> = (0..20).map(|_| gap()).collect();
    assert!(gaps.iter().min() < Some(&ms(15)), "{gaps:?}");
    runtime.stop().unwrap();
}

#[test]
fn fibers_of_a_worker_panic_at_the_same_time() {
    const COUNT: usize = 8;
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let state = Arc::new((Mutex::new(0), AtomicUsize::new(0)));
        let panicking: Vec<_> = (0..COUNT)
            .map(|_| {
                let state = Arc::clone(&state);
                runtime.spawn(move || {
                    let _end = AtEnd(|| {
                        // Each is in the middle of its panic until all are.
                        state.1.fetch_add(1, SeqCst);
                        while state.1.load(SeqCst) < COUNT {
                            thread::sleep(ms(1));
                        }
                        // Poisoned by the first one, as it is dropped in a panic: that is the program's affair.
                        let mut count = state.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                        thread::sleep(ms(1));
                        *count += 1;
                        assert!(thread::panicking());
                    });
                    resume_unwind(Box::new("on purpose"));
                })
            })
            .collect();
        let watching = {
            let state = Arc::clone(&state);
            runtime.spawn(move || {
                while state.1.load(SeqCst) < COUNT {
                    assert!(!thread::panicking());
                    thread::sleep(ms(1));
                }
                // A panic of its own, in the middle of all of theirs, is caught.
                let result = std::panic::catch_unwind(|| resume_unwind(Box::new("another")));
                assert_eq!(text(&*result.unwrap_err()), "another");
                assert!(!thread::panicking());
            })
        };
        for fiber in panicking {
            assert_eq!(text(&*fiber.join().unwrap_err()), "on purpose");
        }
        watching.join().unwrap();
        let count = state.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        assert_eq!(*count, COUNT);
        runtime.stop().unwrap();
    }
}
