//! Where a runtime meets what is outside of it: threads that own a worker, fibers that are driven by hand across the end of a run, errands that
//! come when nobody is at work, fibers that get no stack, guests whose runtime is over. Each of these has once hung, or used what was gone.

#[path = "common/patience.rs"]
mod patience;

use fibrant::fiber::{self, Fiber, State};
use fibrant::io::Event;
use fibrant::runtime::{Builder, Runtime};
use fibrant::{Cancelled, fiber_local};
use patience::{PATIENCE, Watchdog, eventually, text};
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

fn build(workers: usize, use_caller: bool) -> Runtime {
    Builder::new()
        .workers(workers)
        .use_caller(use_caller)
        .build()
        .unwrap()
}

#[test]
fn what_run_on_has_lent_is_not_used_when_it_has_returned() {
    let watchdog = Watchdog::new();
    let runtime = build(2, true);
    watchdog.show(&runtime);
    runtime.run(|| ()); // worker 0 is this thread's from now on
    let (has_begun, is_in_use) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| {
            eventually("it has begun", || has_begun.load(SeqCst));
            runtime.shutdown(Duration::ZERO);
        });
        let result = catch_unwind(AssertUnwindSafe(|| {
            runtime.run_on(1, || {
                is_in_use.store(true, SeqCst);
                has_begun.store(true, SeqCst);
                let _guard = fibrant::defer_cancel();
                // Less than the shutdown waits for it, and more than it takes to print a panic's backtrace.
                fibrant::sleep(Duration::from_millis(700));
                is_in_use.store(false, SeqCst);
            });
        }));
        assert!(!is_in_use.load(SeqCst), "it goes on: {result:?}");
    });
}

#[test]
fn a_timeout_ends_after_the_fiber_that_it_began_in() {
    let _watchdog = Watchdog::new();
    let slot = RefCell::new(None);
    fibrant::run(|| {
        let by_hand = Fiber::new(|| {
            let result = fibrant::timeout(Duration::from_secs(60), || {
                fiber::suspend();
                7
            });
            assert_eq!(result, Ok(7));
        });
        assert_eq!(by_hand.resume().unwrap(), State::Ready);
        *slot.borrow_mut() = Some(by_hand);
    });
    // Somebody else has its memory by now.
    fibrant::run(|| {
        let others: Vec<_> = (0..10).map(|_| fibrant::spawn(fiber::park)).collect();
        fibrant::yield_now();
        others.iter().for_each(|fiber| fiber.fiber().unpark());
        others.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
    assert_eq!(slot.into_inner().unwrap().resume().unwrap(), State::Term);
}

#[test]
fn many_are_spawned_by_an_iterator_that_outlives_its_runtime() {
    let _watchdog = Watchdog::new();
    let slot = RefCell::new(None);
    let refused = Rc::new(Cell::new(false));
    let was_refused = Rc::clone(&refused);
    fibrant::run(|| {
        let handle = Runtime::current().unwrap();
        let by_hand = Fiber::new(move || {
            let functions = (0..3).map(|number| {
                fiber::suspend();
                move || number
            });
            let spawned = catch_unwind(AssertUnwindSafe(|| handle.spawn_all(functions)));
            was_refused.set(spawned.is_err());
        });
        assert_eq!(by_hand.resume().unwrap(), State::Ready);
        *slot.borrow_mut() = Some(by_hand);
    });
    let by_hand = slot.into_inner().unwrap();
    while by_hand.resume().unwrap() == State::Ready {}
    assert!(refused.get());
}

#[test]
fn an_errand_that_comes_when_nobody_is_at_work_is_done() {
    let _watchdog = Watchdog::new();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let fd = ours.as_raw_fd();
    let runtime = build(1, true);
    runtime.run(|| fibrant::io::add_event(fd, Event::READ, || ()).unwrap());
    assert!(fibrant::io::cancel_event(fd, Event::READ));
    // It makes a fiber of the function, which comes too late.
    let report = runtime.shutdown(Duration::ZERO);
    assert_eq!(report.cancelled.len(), 1, "{report:?}");
}

/// Waits as it is dropped.
struct Yields(Arc<AtomicUsize>);

impl Drop for Yields {
    fn drop(&mut self) {
        fibrant::yield_now();
        fibrant::sleep(Duration::from_micros(1));
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_a_fiber_without_a_stack_was_to_run_may_wait_as_it_is_dropped() {
    thread_local! {
        /// It has no place on the smallest stack, on which a fiber's own thread-locals are.
        static LARGE: [Cell<u8>; 64 << 10] = const { [const { Cell::new(0) }; 64 << 10] };
    }
    let watchdog = Watchdog::new();
    LARGE.with(|large| std::hint::black_box(large)[0].set(1)); // or there would be none in the end
    for workers in [1, 2] {
        let runtime = build(workers, false);
        watchdog.show(&runtime);
        let dropped = Arc::new(AtomicUsize::new(0));
        let (goes_on, counted) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&dropped));
        let times = Arc::clone(&goes_on);
        let parent = runtime.spawn(move || {
            for _ in 0..10 {
                let yields = Yields(Arc::clone(&counted));
                let child = fibrant::Builder::new()
                    .stack_size(fiber::MIN_STACK_SIZE)
                    .spawn(move || drop(yields))
                    .unwrap();
                let payload = child.join().unwrap_err();
                assert!(text(&*payload).contains("could not start"), "{}", text(&*payload));
                times.fetch_add(1, SeqCst);
            }
        });
        parent.join().unwrap();
        assert_eq!((goes_on.load(SeqCst), dropped.load(SeqCst)), (10, 10));
        runtime.stop().unwrap();
    }
}

#[test]
fn a_second_run_on_a_thread_is_hooked_from_the_beginning() {
    let _watchdog = Watchdog::new();
    let runtime = build(1, true);
    runtime.run(|| {
        drop(fibrant::spawn(|| fibrant::sleep(Duration::from_millis(5))));
        fibrant::yield_now();
    });
    // What ran here last was a fiber that ended.
    let received = runtime.run(|| {
        let (sender, receiver) = mpsc::channel();
        fibrant::spawn(move || sender.send(1).unwrap());
        receiver.recv_timeout(PATIENCE)
    });
    assert_eq!(received, Ok(1));
}

#[test]
fn a_guest_whose_runtime_is_over_still_hears_of_what_it_waits_for() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(1, use_caller);
        watchdog.show(&runtime);
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let waits = AtomicBool::new(false);
        let received = thread::scope(|s| {
            let guest = s.spawn(|| {
                runtime.run(|| {
                    let _guard = fibrant::defer_cancel();
                    waits.store(true, SeqCst);
                    let mut byte = [0];
                    // The first may be told that it was cancelled.
                    let count = ours.read(&mut byte).or_else(|_| ours.read(&mut byte));
                    (count.unwrap(), byte)
                })
            });
            eventually("it waits", || waits.load(SeqCst));
            let report = runtime.shutdown(Duration::ZERO);
            assert_eq!(report.abandoned.len(), 1, "{report:?}");
            theirs.write_all(b"x").unwrap();
            guest.join().unwrap()
        });
        assert_eq!(received, (1, *b"x"));
    }
}

/// Nobody else is at work, and what comes so late is cancelled; but whoever waits for it must hear of that.
#[test]
fn what_a_guest_spawns_when_its_runtime_is_over_has_an_end() {
    let watchdog = Watchdog::new();
    for use_caller in [false, true] {
        let runtime = build(2, use_caller);
        watchdog.show(&runtime);
        let (runs, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            let guest = s.spawn(|| {
                runtime.run(|| {
                    let _guard = fibrant::defer_cancel();
                    runs.store(true, SeqCst);
                    while !is_over.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    let scoped = fibrant::scope(|s| s.spawn(|| ()).join().is_err());
                    let spawned = fibrant::spawn(|| ()).join().is_err();
                    let all = Runtime::current().unwrap().spawn_all([|| (), || ()]);
                    let all = all.into_iter().map(|fiber| fiber.join().is_err());
                    let elsewhere = fibrant::Builder::new().worker(1).spawn(|| ()).unwrap_err();
                    assert!(elsewhere.to_string().contains("has been stopped"), "{elsewhere}");
                    (scoped, spawned, all.collect::<Vec<_>>())
                })
            });
            eventually("it runs", || runs.load(SeqCst));
            runtime.shutdown(Duration::ZERO);
            is_over.store(true, SeqCst);
            assert_eq!(guest.join().unwrap(), (true, true, vec![true; 2]));
        });
    }
}

#[test]
fn a_worker_that_wakes_for_its_own_work_leaves_the_stealing_to_another() {
    let watchdog = Watchdog::new();
    for round in 0..50 {
        let runtime = build(3, false);
        watchdog.show(&runtime);
        let over = Arc::new(AtomicBool::new(false));
        let (began, ended) = (Arc::clone(&over), Arc::clone(&over));
        let busy = runtime.spawn_on(1, move || {
            fiber::park();
            while !ended.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        let id = busy.id();
        let is_parked = || {
            let dump = runtime.dump();
            dump.workers.iter().filter(|worker| worker.idle).count() == 3
                && dump
                    .fibers
                    .iter()
                    .any(|fiber| fiber.id == id && fiber.wait.is_some())
        };
        eventually("everybody sleeps", is_parked);
        let spawner = runtime.spawn_on(0, move || {
            // Whoever is woken to steal it may be the one that is unparked.
            let stolen = fibrant::spawn(move || began.store(true, SeqCst));
            busy.fiber().unpark();
            while !stolen.is_finished() {
                std::hint::spin_loop();
            }
            busy
        });
        let busy = spawner
            .join_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("round {round}: nobody has stolen it"));
        busy.unwrap().join().unwrap();
        assert!(over.load(SeqCst));
        runtime.stop().unwrap();
    }
}

#[test]
fn a_guests_fiber_that_goes_to_a_worker_is_counted_once() {
    let watchdog = Watchdog::new();
    let runtime = build(2, false);
    watchdog.show(&runtime);
    for _ in 0..3 {
        runtime.run(|| {
            let goes = fibrant::spawn_local(|| {
                // SAFETY: nothing here belongs to a thread.
                catch_unwind(|| unsafe { fibrant::switch_to(1) }).is_ok()
            });
            goes.join().unwrap()
        });
        runtime.run(|| {
            let goes = fibrant::Builder::new().spawn(|| {
                // SAFETY: as above.
                unsafe { fibrant::switch_to(1) }
            });
            goes.unwrap().join().unwrap();
        });
    }
    runtime.stop().unwrap();
}

#[test]
fn a_cancel_does_not_unwind_a_fiber_that_a_destructor_of_locals_drives() {
    struct Drives;
    impl Drop for Drives {
        fn drop(&mut self) {
            let by_hand = Fiber::new(|| fibrant::sleep(Duration::from_millis(20)));
            assert_eq!(by_hand.resume().unwrap(), State::Term);
            DONE.store(true, SeqCst);
        }
    }
    static DONE: AtomicBool = AtomicBool::new(false);
    static BEGUN: AtomicBool = AtomicBool::new(false);
    fiber_local! {
        static LOCAL: Drives = {
            BEGUN.store(true, SeqCst);
            Drives
        };
    }
    let _watchdog = Watchdog::new();
    fibrant::run(|| {
        let fiber = fibrant::spawn(|| LOCAL.with(|_| ()));
        eventually("it ends", || {
            fibrant::yield_now();
            BEGUN.load(SeqCst)
        });
        fiber.cancel();
        let _ = fiber.join().map_err(|payload| assert!(payload.is::<Cancelled>()));
    });
    assert!(DONE.load(SeqCst));
}
