//! `thread_local!` in fibers: whose values they are, and when they are dropped.

use crate::patience::{Census, Counted, PATIENCE, Watchdog, eventually};
use crate::support::*;
use crate::worker::thread_number;
use fibrant::runtime::Builder;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Longer than any test.
const FAR: Duration = Duration::from_secs(3600);

/// Calls a function when it is dropped.
struct AtTheEnd(Option<Box<dyn FnOnce()>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

thread_local! {
    static CONSTANT: Cell<usize> = const { Cell::new(7) };
    static LAZY: RefCell<Vec<usize>> = RefCell::new(vec![1, 2, 3]);
    static KEPT: RefCell<Vec<Counted>> = const { RefCell::new(Vec::new()) };
    static END: RefCell<Vec<AtTheEnd>> = const { RefCell::new(Vec::new()) };
    static OTHER_END: RefCell<Vec<AtTheEnd>> = const { RefCell::new(Vec::new()) };
}

/// Leaves something to be done when the fiber's thread-locals are destroyed.
fn at_the_end(f: impl FnOnce() + 'static) {
    END.with_borrow_mut(|end| end.push(AtTheEnd(Some(Box::new(f)))));
}

/// Finds the initial values and leaves others.
#[track_caller]
fn find_and_soil(number: usize) {
    assert_eq!(CONSTANT.replace(number), 7);
    LAZY.with_borrow_mut(|values| {
        assert_eq!(*values, [1, 2, 3]);
        values.push(number);
    });
    KEPT.with_borrow(|kept| assert!(kept.is_empty()));
}

#[track_caller]
fn find_own(number: usize) {
    assert_eq!(CONSTANT.get(), number);
    LAZY.with_borrow(|values| assert_eq!(*values, [1, 2, 3, number]));
}

#[test]
fn each_fiber_has_its_own() {
    on_workers(|runtime| {
        let census = Census::default();
        let counted = census.clone();
        together(runtime, 50, move |number| {
            find_and_soil(number);
            KEPT.with_borrow_mut(|kept| kept.push(counted.count()));
            for round in 0..10 {
                wait(round);
                find_own(number);
            }
        });
        assert_eq!((census.made(), census.dropped()), (50, 50));
    });
}

#[test]
fn values_are_dropped_before_join_returns() {
    on_workers(|runtime| {
        for _ in 0..100 {
            let census = Census::default();
            let counted = census.clone();
            runtime
                .spawn(move || KEPT.with_borrow_mut(|kept| kept.push(counted.count())))
                .join()
                .unwrap();
            assert_eq!(census.dropped(), 1);
        }
    });
}

#[test]
fn values_of_a_fiber_that_panics_are_dropped() {
    on_workers(|runtime| {
        let census = Census::default();
        let counted = census.clone();
        let result = runtime
            .spawn(move || {
                KEPT.with_borrow_mut(|kept| kept.push(counted.count()));
                panic::resume_unwind(Box::new("quietly"));
            })
            .join();
        assert!(result.is_err());
        assert_eq!(census.dropped(), 1);
    });
}

#[test]
fn values_of_a_cancelled_fiber_are_dropped() {
    on_workers(|runtime| {
        let census = Census::default();
        let counted = census.clone();
        let fiber = runtime.spawn(move || {
            KEPT.with_borrow_mut(|kept| kept.push(counted.count()));
            fibrant::sleep(FAR);
        });
        eventually("it has begun", || census.made() == 1);
        fiber.cancel();
        assert!(fiber.join().unwrap_err().is::<fibrant::Cancelled>());
        assert_eq!(census.dropped(), 1);
    });
}

#[test]
fn a_fiber_that_never_starts_has_none() {
    on_workers(|runtime| {
        let census = Census::default();
        let counted = census.clone();
        let result = runtime.run_on(0, move || {
            let fiber = fibrant::Builder::new()
                .worker(0)
                .spawn(move || KEPT.with_borrow_mut(|kept| kept.push(counted.count())));
            let fiber = fiber.unwrap();
            fiber.cancel();
            fiber.join()
        });
        assert!(result.unwrap_err().is::<fibrant::Cancelled>());
        assert_eq!(census.made(), 0);
    });
}

#[test]
fn destructors_may_wait_and_spawn() {
    on_workers(|runtime| {
        let done = Arc::new(AtomicUsize::new(0));
        let together = 10;
        let fibers: Vec<_> = (0..together)
            .map(|_| {
                let done = Arc::clone(&done);
                runtime.spawn(move || {
                    at_the_end(move || {
                        let start = Instant::now();
                        std::thread::sleep(Duration::from_millis(5));
                        assert!(start.elapsed() >= Duration::from_millis(5));
                        let (mut reader, mut writer) = UnixStream::pair().unwrap();
                        let other = fibrant::spawn(move || writer.write_all(b"word").unwrap());
                        let mut word = String::new();
                        reader.read_to_string(&mut word).unwrap();
                        other.join().unwrap();
                        assert_eq!(word, "word");
                        done.fetch_add(1, SeqCst);
                    });
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(done.load(SeqCst), together);
    });
}

#[test]
fn destructors_may_register_others_and_see_other_values() {
    on_workers(|runtime| {
        let (sender, receiver) = mpsc::channel();
        runtime
            .spawn(move || {
                CONSTANT.set(99);
                at_the_end(move || {
                    sender.send(CONSTANT.get()).unwrap();
                    let last = AtTheEnd(Some(Box::new(move || sender.send(1).unwrap())));
                    OTHER_END.with_borrow_mut(|end| end.push(last));
                });
            })
            .join()
            .unwrap();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [99, 1]);
    });
}

/// Nobody else sees anything of a fiber on whose stack the next one begins; there is but one stack in turn.
#[test]
fn nothing_of_the_last_fiber_is_left() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let (dynamic, fixed) = (
        Compiled::new("locals.c", DYNAMIC),
        Compiled::new("locals.c", STATIC),
    );
    let libraries = [dynamic.load(), fixed.load()];
    let mut key = 0;
    // SAFETY: makes a key.
    unsafe { assert_eq!(libc::pthread_key_create(&mut key, None), 0) };
    runtime.run_on(0, move || {
        let mut places = HashMap::<usize, usize>::new();
        for number in 1..=10_000 {
            let fiber = fibrant::spawn(move || {
                assert_eq!(errno(), 0);
                set_errno(number as i32);
                find_and_soil(number);
                for library in libraries.map(Loaded::locals) {
                    assert!(library.are_initial());
                    library.soil(number);
                }
                // SAFETY: a key that was made above.
                unsafe {
                    assert!(libc::pthread_getspecific(key).is_null());
                    libc::pthread_setspecific(key, std::ptr::without_provenance(number));
                }
                pthread_self()
            });
            *places.entry(fiber.join().unwrap()).or_default() += 1;
        }
        assert!(places.len() < 100, "stacks were used again: {}", places.len());
    });
    runtime.stop().unwrap();
    libraries.into_iter().for_each(Loaded::unload);
    // SAFETY: the key was made above.
    unsafe { assert_eq!(libc::pthread_key_delete(key), 0) };
}

#[test]
fn errno_stays_across_waits() {
    on_workers(|runtime| {
        together(runtime, 20, |number| {
            assert_eq!(errno(), 0);
            for round in 0..20 {
                let error = (number * 20 + round) as i32;
                set_errno(error);
                fibrant::yield_now();
                assert_eq!(errno(), error);
            }
        });
    });
}

#[test]
fn panics_do_not_mix() {
    on_workers(|runtime| {
        together(runtime, 20, |number| {
            struct Waits(usize);
            impl Drop for Waits {
                fn drop(&mut self) {
                    assert!(std::thread::panicking());
                    wait(self.0);
                    assert!(std::thread::panicking());
                }
            }
            for round in 0..10 {
                assert!(!std::thread::panicking());
                let caught = panic::catch_unwind(AssertUnwindSafe(|| {
                    let _waits = Waits(round);
                    panic::resume_unwind(Box::new(number * 100 + round));
                }));
                assert_eq!(
                    *caught.unwrap_err().downcast::<usize>().unwrap(),
                    number * 100 + round
                );
                assert!(!std::thread::panicking());
                wait(round + 1);
            }
        });
    });
}

/// Standard output is locked by a fiber, not by its worker.
#[test]
fn standard_output_is_locked_by_one_fiber() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let locked = Arc::new(AtomicBool::new(false));
    let (here, there) = (Arc::clone(&locked), Arc::clone(&locked));
    let first = runtime.spawn(move || {
        let lock = std::io::stdout().lock();
        let _again = std::io::stdout().lock();
        here.store(true, SeqCst);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        here.store(false, SeqCst);
        drop(lock);
    });
    eventually("it is locked", || locked.load(SeqCst));
    let second = runtime.spawn(move || {
        let _lock = std::io::stdout().lock();
        assert!(!there.load(SeqCst), "two fibers have it");
    });
    first.join().unwrap();
    second.join().unwrap();
    runtime.stop().unwrap();
}

#[test]
fn what_is_run_shares_its_threads() {
    let _watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).use_caller(true).build().unwrap();
        CONSTANT.set(11);
        set_errno(libc::EDOM);
        let thread = std::thread::current().id();
        runtime.run(|| {
            assert_eq!(CONSTANT.get(), 11);
            assert_eq!(std::thread::current().id(), thread);
            let own = pthread_self();
            let fiber = fibrant::Builder::new().worker(0).spawn(move || {
                assert_ne!(pthread_self(), own);
                find_and_soil(1);
            });
            fiber.unwrap().join().unwrap();
            assert_eq!(CONSTANT.replace(12), 11);
            wait(0);
        });
        assert_eq!(CONSTANT.get(), 12);
        runtime.stop().unwrap();
    }
}

/// The thread-locals of light fibers are their worker's; others, in the same runtime, have their own.
#[test]
fn light_fibers_share_their_workers() {
    on_workers(|runtime| {
        let handle = runtime.handle();
        runtime.run_on(0, move || {
            let light = |f: fn() -> (usize, usize, i32)| {
                // SAFETY: what it does with thread-locals is what is to be seen.
                let fiber = unsafe { fibrant::Builder::new().light() }.worker(0).spawn(f);
                fiber.unwrap().join().unwrap()
            };
            let look = || (CONSTANT.get(), pthread_self(), thread_number());
            let first = light(|| {
                CONSTANT.set(50);
                (0, pthread_self(), thread_number())
            });
            assert_eq!(light(look), (50, first.1, first.2));
            let own = handle.spawn_on(0, look).join().unwrap();
            assert_eq!((own.0, own.2), (7, first.2));
            assert_ne!(own.1, first.1);
            assert_eq!(light(look), (50, first.1, first.2));
        });
    });
    let _watchdog = Watchdog::new();
    // SAFETY: what it does with thread-locals is what is to be seen.
    let runtime = unsafe { Builder::new().workers(1).light() }.build().unwrap();
    runtime.spawn(|| CONSTANT.set(60)).join().unwrap();
    assert_eq!(runtime.spawn(|| CONSTANT.get()).join().unwrap(), 60);
    runtime.stop().unwrap();
}

/// A fiber that moves keeps its thread-locals, and both workers go on allocating.
#[test]
fn a_fiber_that_moves_keeps_them() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(2);
    let start = Instant::now();
    let hammer = move |seed: usize| {
        let mut kept = Vec::new();
        for round in 0..10_000_usize {
            let size = (seed * 31 + round * 17) % 3000 + 1;
            kept.push(vec![(size % 251) as u8; size]);
            if kept.len() > 64 {
                let old = kept.swap_remove(round % 64);
                let expected = (old.len() % 251) as u8;
                assert_eq!([old[0], old[old.len() - 1]], [expected; 2]);
            }
            if round % 256 == 0 {
                fibrant::yield_now();
            }
        }
    };
    let movers: Vec<_> = (0..8)
        .map(|number| {
            runtime.spawn_on(number % 2, move || {
                find_and_soil(number);
                let (thread, id) = (pthread_self(), std::thread::current().id());
                let mut carried: Vec<Vec<u8>> = Vec::new();
                for round in 0..200 {
                    carried.push(vec![1; round * 7]);
                    let before = thread_number();
                    // SAFETY: nothing here is bound to the thread.
                    unsafe { fibrant::switch_to((number + round + 1) % 2) };
                    assert_ne!(thread_number(), before);
                    carried.truncate(50);
                    find_own(number);
                    assert_eq!((pthread_self(), std::thread::current().id()), (thread, id));
                }
                hammer(number);
            })
        })
        .collect();
    let hammers: Vec<_> = (0..4)
        .map(|number| runtime.spawn_on(number % 2, move || hammer(number)))
        .collect();
    movers.into_iter().for_each(|fiber| fiber.join().unwrap());
    hammers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert!(start.elapsed() < PATIENCE * 5);
    runtime.stop().unwrap();
}
