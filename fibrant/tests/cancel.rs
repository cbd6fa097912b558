//! Cancelling fibers, and `fibrant::timeout`: what unwinds, when, and what does not.

#[path = "common/patience.rs"]
mod patience;

use fibrant::fiber::{self, Fiber, State, WaitReason};
use fibrant::io::Event;
use fibrant::runtime::Handle;
use fibrant::{Cancelled, fiber_local};
use patience::{Census, PATIENCE, Watchdog, eventually};
use std::cell::{Cell, RefCell};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// What the fiber with that number waits for.
fn wait_of(runtime: &Handle, id: u64) -> Option<WaitReason> {
    let dump = runtime.dump();
    dump.fibers.iter().find(|fiber| fiber.id == id)?.wait
}

#[track_caller]
fn wait_until_it_waits(runtime: &Handle, id: u64) {
    eventually("it waits", || wait_of(runtime, id).is_some());
}

#[track_caller]
fn assert_cancelled<T>(result: thread::Result<T>) {
    match result {
        Ok(_) => panic!("it was not cancelled"),
        Err(payload) => assert!(payload.is::<Cancelled>(), "{}", patience::text(&*payload)),
    }
}

#[test]
fn every_kind_of_wait_ends_at_once_and_unwinds() {
    let watchdog = Watchdog::new();
    for workers in [1, 2, 4] {
        let runtime = watchdog.runtime(workers);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let fd = ours.as_raw_fd();
        let endless = runtime.spawn(fiber::park);
        let target = Arc::new(std::sync::Mutex::new(Some(endless)));
        type Wait<'a> = (&'a str, Box<dyn Fn() + Send + Sync>);
        let waits: [Wait; 9] = [
            ("sleep", Box::new(|| fibrant::sleep(LONG))),
            ("sleep", Box::new(|| fibrant::sleep(Duration::MAX))),
            ("park", Box::new(fiber::park)),
            ("park_timeout", Box::new(|| fiber::park_timeout(LONG))),
            (
                "io::wait",
                Box::new(move || drop(fibrant::io::wait(fd, Event::READ, None))),
            ),
            (
                "io::wait with a deadline",
                Box::new(move || drop(fibrant::io::wait(fd, Event::READ, Some(LONG)))),
            ),
            ("join", Box::new(|| drop(fibrant::spawn(fiber::park).join()))),
            (
                "join_timeout",
                Box::new(|| drop(fibrant::spawn(fiber::park).join_timeout(LONG))),
            ),
            (
                "join of another's child",
                Box::new(move || {
                    let target = target.lock().unwrap().take();
                    drop(target.unwrap().join());
                }),
            ),
        ];
        for (name, wait) in waits {
            let held = Census::default();
            let (in_closure, on_stack) = (held.count(), held.clone());
            let went_on = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&went_on);
            let fiber = runtime.spawn(move || {
                let _in_closure = in_closure;
                let _on_stack = on_stack.count();
                wait();
                flag.store(true, SeqCst);
            });
            wait_until_it_waits(&runtime, fiber.id());
            let start = Instant::now();
            fiber.cancel();
            assert_cancelled(fiber.join());
            assert!(start.elapsed() < PATIENCE, "{name}");
            assert!(!went_on.load(SeqCst), "{name}: it went on");
            assert_eq!((held.made(), held.dropped()), (2, 2), "{name}");
        }
    }
}

#[test]
fn a_fiber_that_has_not_started_never_does() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let (held, ran) = (Census::default(), Arc::new(AtomicUsize::new(0)));
    let (inside_held, inside_ran) = (held.clone(), Arc::clone(&ran));
    runtime
        .spawn(move || {
            let fibers: Vec<_> = (0..100)
                .map(|_| {
                    let (counted, ran) = (inside_held.count(), Arc::clone(&inside_ran));
                    fibrant::spawn(move || {
                        let _counted = counted;
                        ran.fetch_add(1, SeqCst);
                    })
                })
                .collect();
            fibers.iter().for_each(|fiber| fiber.cancel());
            fibers
                .into_iter()
                .for_each(|fiber| assert_cancelled(fiber.join()));
            assert_eq!(inside_held.dropped(), 100);
            // Detached: what it would have run is dropped, too.
            let counted = inside_held.count();
            let detached = fibrant::spawn(move || drop(counted));
            detached.cancel();
            drop(detached);
        })
        .join()
        .unwrap();
    runtime.stop().unwrap();
    assert_eq!(ran.load(SeqCst), 0);
    assert_eq!((held.made(), held.dropped()), (101, 101));
}

#[test]
fn a_fiber_that_computes_unwinds_at_its_next_wait() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let (begun, has_begun) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let (flag, computed) = (Arc::clone(&cancelled), Arc::new(AtomicBool::new(false)));
        let done = Arc::clone(&computed);
        let fiber = runtime.spawn(move || {
            begun.send(()).unwrap();
            while !flag.load(SeqCst) {
                std::hint::spin_loop();
            }
            done.store(true, SeqCst);
            fibrant::sleep(Duration::ZERO); // however short
            unreachable!("it unwinds from the sleep");
        });
        has_begun.recv().unwrap();
        fiber.cancel();
        assert!(!fiber.is_finished());
        cancelled.store(true, SeqCst);
        assert_cancelled::<()>(fiber.join());
        assert!(computed.load(SeqCst));
        // Without another wait it returns what it returns.
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let fiber = runtime.spawn(move || {
            begun.send(()).unwrap();
            may_go.recv().unwrap();
            "in the end"
        });
        has_begun.recv().unwrap();
        fiber.cancel();
        go.send(()).unwrap();
        assert_eq!(fiber.join().unwrap(), "in the end");
    }
}

#[test]
fn one_that_swallows_the_unwinding_is_unwound_again_at_the_next_wait() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let caught = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&caught);
    let fiber = runtime.spawn(move || {
        for _ in 0..3 {
            let payload = catch_unwind(fiber::park).unwrap_err();
            assert!(payload.is::<Cancelled>());
            count.fetch_add(1, SeqCst);
        }
        fibrant::sleep(LONG);
    });
    wait_until_it_waits(&runtime, fiber.id());
    fiber.cancel();
    assert_cancelled(fiber.join());
    assert_eq!(caught.load(SeqCst), 3);
}

#[test]
fn a_guard_puts_it_off() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let steps = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&steps);
        let fiber = runtime.spawn(move || {
            let outer = fibrant::defer_cancel();
            let inner = fibrant::defer_cancel();
            fiber::park(); // cancelled during this one, which goes on until it is unparked
            count.fetch_add(1, SeqCst);
            fibrant::sleep(ms(1));
            drop(inner);
            fibrant::spawn(|| fibrant::sleep(ms(1))).join().unwrap(); // there is still the outer one
            count.fetch_add(1, SeqCst);
            drop(outer);
            count.fetch_add(1, SeqCst);
            fiber::park();
            count.fetch_add(1, SeqCst);
        });
        wait_until_it_waits(&runtime, fiber.id());
        fiber.cancel();
        let fiber = fiber.join_timeout(ms(10)).unwrap_err();
        assert_eq!(steps.load(SeqCst), 0);
        fiber.fiber().unpark();
        assert_cancelled(fiber.join());
        assert_eq!(steps.load(SeqCst), 3);
    }
}

/// Sleeps when it is dropped, until it is told to go on, and says so afterwards.
struct Slow(Arc<Sleep>);

#[derive(Default)]
struct Sleep {
    may_end: AtomicBool,
    has_ended: AtomicBool,
}

impl Drop for Slow {
    fn drop(&mut self) {
        while !self.0.may_end.load(SeqCst) {
            let start = Instant::now();
            fibrant::sleep(ms(20));
            assert!(start.elapsed() >= ms(20));
        }
        self.0.has_ended.store(true, SeqCst);
    }
}

#[test]
fn a_fiber_that_is_panicking_is_left_alone() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let sleep = Arc::new(Sleep::default());
        let slow = Slow(Arc::clone(&sleep));
        let fiber = runtime.spawn(move || {
            let _slow = slow;
            resume_unwind(Box::new("the panic"))
        });
        eventually("it sleeps", || {
            wait_of(&runtime, fiber.id()) == Some(WaitReason::Sleeping)
        });
        fiber.cancel();
        sleep.may_end.store(true, SeqCst);
        let payload = fiber.join().unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"the panic"));
        assert!(sleep.has_ended.load(SeqCst));
    }
}

#[test]
fn waits_of_destructors_that_a_cancel_runs_go_to_their_end() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let sleep = Arc::new(Sleep::default());
    let slow = Slow(Arc::clone(&sleep));
    let fiber = runtime.spawn(move || {
        let _slow = slow;
        fiber::park();
    });
    eventually("it parks", || {
        wait_of(&runtime, fiber.id()) == Some(WaitReason::Parked)
    });
    fiber.cancel();
    eventually("it sleeps", || {
        wait_of(&runtime, fiber.id()) == Some(WaitReason::Sleeping)
    });
    fiber.cancel(); // a second time has no effect
    sleep.may_end.store(true, SeqCst);
    assert_cancelled(fiber.join());
    assert!(sleep.has_ended.load(SeqCst));
}

#[test]
fn one_fibers_panic_does_not_keep_others_from_being_cancelled() {
    /// Parks when it is dropped, until it is told to go on.
    struct Stays(Arc<AtomicBool>);
    impl Drop for Stays {
        fn drop(&mut self) {
            while !self.0.load(SeqCst) {
                fiber::park();
            }
        }
    }
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let go_on = Arc::new(AtomicBool::new(false));
    let stays = Stays(Arc::clone(&go_on));
    let panicking = runtime.spawn(move || {
        let _stays = stays;
        resume_unwind(Box::new("the panic"))
    });
    wait_until_it_waits(&runtime, panicking.id());
    // Its worker is in the middle of that unwinding when this one begins to wait.
    let other = runtime.spawn(fiber::park);
    wait_until_it_waits(&runtime, other.id());
    other.cancel();
    let ended = other.join_timeout(PATIENCE);
    go_on.store(true, SeqCst);
    panicking.fiber().unpark();
    assert!(panicking.join().is_err());
    match ended {
        Ok(result) => assert_cancelled(result),
        Err(other) => {
            other.fiber().unpark();
            panic!("a fiber could not be cancelled while another one was panicking");
        }
    }
}

#[test]
fn the_destructors_of_fiber_locals_are_left_alone() {
    fiber_local! {
        static SLOW: RefCell<Option<Slow>> = const { RefCell::new(None) };
    }
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let sleep = Arc::new(Sleep::default());
        let slow = Slow(Arc::clone(&sleep));
        let fiber = runtime.spawn(move || {
            SLOW.set(Some(slow));
            "returned"
        });
        eventually("it sleeps", || {
            wait_of(&runtime, fiber.id()) == Some(WaitReason::Sleeping)
        });
        fiber.cancel();
        sleep.may_end.store(true, SeqCst);
        assert_eq!(fiber.join().unwrap(), "returned");
        assert!(sleep.has_ended.load(SeqCst));
    }
}

// Scopes.

/// Borrows, and looks at what it has borrowed when it is dropped.
struct Looks<'a>(&'a String, &'a AtomicUsize);

impl Drop for Looks<'_> {
    fn drop(&mut self) {
        assert_eq!(self.0, "borrowed");
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn cancelling_the_owner_of_a_scope_cancels_its_fibers_and_waits_for_them() {
    let watchdog = Watchdog::new();
    for workers in [1, 2, 4] {
        for place in [
            "the scope's end",
            "a sleep in the scope",
            "a join in the scope",
            "a nested scope",
        ] {
            let runtime = watchdog.runtime(workers);
            let ended = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&ended);
            let (ready, is_ready) = mpsc::channel();
            let owner = runtime.spawn(move || {
                let text = String::from("borrowed");
                let (looked, parked) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let result = catch_unwind(AssertUnwindSafe(|| {
                    fibrant::scope(|s| {
                        let child = || {
                            let _looks = Looks(&text, &looked);
                            parked.fetch_add(1, SeqCst);
                            fiber::park();
                        };
                        let handles: Vec<_> = (0..10).map(|_| s.spawn(child)).collect();
                        while parked.load(SeqCst) < 10 {
                            fibrant::yield_now();
                        }
                        ready.send(()).unwrap();
                        match place {
                            "the scope's end" => {}
                            "a sleep in the scope" => fibrant::sleep(LONG),
                            "a join in the scope" => {
                                drop(handles.into_iter().next().unwrap().join());
                            }
                            _ => fibrant::scope(|inner| {
                                drop(inner.spawn(child));
                                // One that has not started when the cancel comes never does.
                                while parked.load(SeqCst) < 11 {
                                    fibrant::yield_now();
                                }
                            }),
                        }
                    })
                }));
                // They have all ended, and what they borrowed was there until then.
                let expected = if place == "a nested scope" { 11 } else { 10 };
                assert_eq!(looked.load(SeqCst), expected);
                count.store(looked.into_inner(), SeqCst);
                drop(text);
                resume_unwind(result.unwrap_err())
            });
            is_ready.recv().unwrap();
            eventually("it waits", || wait_of(&runtime, owner.id()).is_some());
            owner.cancel();
            assert_cancelled::<()>(owner.join());
            assert!(ended.load(SeqCst) >= 10, "{place}");
            runtime.stop().unwrap();
        }
    }
}

#[test]
fn a_cancelled_owner_waits_for_a_fiber_that_puts_it_off() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(2);
    let (owned, woken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (flag, wake) = (Arc::clone(&owned), Arc::clone(&woken));
    let (sender, receiver) = mpsc::channel();
    let owner = runtime.spawn(move || {
        let text = String::from("borrowed");
        fibrant::scope(|s| {
            s.spawn(|| {
                let _guard = fibrant::defer_cancel();
                sender.send(fiber::current().unwrap()).unwrap();
                while !wake.load(SeqCst) {
                    fiber::park();
                }
                assert_eq!(text, "borrowed");
                flag.store(true, SeqCst);
            });
        });
    });
    let child = receiver.recv().unwrap();
    wait_until_it_waits(&runtime, owner.id());
    owner.cancel();
    let owner = owner.join_timeout(ms(10)).unwrap_err();
    woken.store(true, SeqCst);
    child.unpark();
    assert_cancelled(owner.join());
    assert!(owned.load(SeqCst));
}

#[test]
fn fibers_of_a_cancelled_scope_that_have_not_started_never_do() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let owner = runtime.spawn(move || {
        fibrant::scope(|s| {
            begun.send(()).unwrap();
            may_go.recv().unwrap(); // keeps the worker
            for _ in 0..10 {
                s.spawn(|| count.fetch_add(1, SeqCst));
            }
            fibrant::sleep(LONG); // unwinds before any of them has had a turn
        });
    });
    has_begun.recv().unwrap();
    owner.cancel();
    go.send(()).unwrap();
    assert_cancelled(owner.join());
    assert_eq!(ran.load(SeqCst), 0);
    runtime.stop().unwrap();
}

// Joiners.

#[test]
fn a_join_in_progress_learns_that_the_fiber_was_cancelled() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        // The child belongs to a scope whose owner is cancelled while somebody else joins the child.
        let (sender, receiver) = mpsc::channel();
        let owner = runtime.spawn(move || {
            fibrant::scope(|s| {
                let child = s.spawn(fiber::park);
                let joiner = s.spawn(move || {
                    let _guard = fibrant::defer_cancel(); // it is of the same scope
                    child.join()
                });
                sender.send(joiner.id()).unwrap();
                let result = catch_unwind(|| fibrant::sleep(LONG));
                (joiner, result.unwrap_err()).1
            })
        });
        let joiner = receiver.recv().unwrap();
        eventually("the join begins", || {
            matches!(wait_of(&runtime, joiner), Some(WaitReason::Joining { .. }))
        });
        owner.cancel();
        // The scope's body has swallowed it, so the final wait passes it on: the joiner gets Cancelled and ends.
        assert_cancelled(owner.join());
        // A plain thread that waits in the join, while a fiber that shares the handle's runtime is shut down.
        let child = runtime.spawn(fiber::park);
        wait_until_it_waits(&runtime, child.id());
        let joining = thread::spawn(move || child.join());
        runtime.shutdown(Duration::ZERO);
        assert_cancelled(joining.join().unwrap());
    }
}

#[test]
fn a_cancelled_joiner_leaves_the_fiber_running() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let (sender, receiver) = mpsc::channel();
        let joiner = runtime.spawn(move || {
            let child = fibrant::spawn(move || {
                fiber::park();
                flag.store(true, SeqCst);
            });
            sender.send(child.fiber().clone()).unwrap();
            child.join().unwrap();
        });
        let child = receiver.recv().unwrap();
        eventually(
            "it joins",
            || matches!(wait_of(&runtime, joiner.id()), Some(WaitReason::Joining { fiber }) if fiber == child.id()),
        );
        joiner.cancel();
        assert_cancelled(joiner.join());
        assert!(!ended.load(SeqCst));
        child.unpark();
        eventually("the child ends by itself", || ended.load(SeqCst));
        runtime.stop().unwrap();
    }
}

#[test]
fn cancelling_a_fiber_that_has_ended_does_nothing() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let fiber = runtime.spawn(|| 7);
    eventually("it ends", || fiber.is_finished());
    fiber.cancel();
    fiber.cancel();
    assert_eq!(fiber.join().unwrap(), 7);
    assert_eq!(runtime.spawn(|| 8).join().unwrap(), 8);
}

#[test]
fn a_yield_does_not_unwind() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    let yields = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&yields);
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let fiber = runtime.spawn(move || {
        begun.send(()).unwrap();
        may_go.recv().unwrap(); // keeps the worker
        for _ in 0..5 {
            fibrant::yield_now(); // not a wait
            count.fetch_add(1, SeqCst);
        }
        fibrant::sleep(LONG);
    });
    has_begun.recv().unwrap();
    fiber.cancel();
    go.send(()).unwrap();
    assert_cancelled(fiber.join());
    assert_eq!(yields.load(SeqCst), 5);
}

// Races.

#[test]
fn a_cancel_that_races_with_a_wake_ends_the_fiber_once() {
    const ROUNDS: usize = 10_000;
    const BATCH: usize = 100;
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let (mut woken, mut cancelled) = (0, 0);
        let ended = Census::default();
        for round in 0..ROUNDS / BATCH / 2 {
            let fibers: Vec<_> = (0..BATCH)
                .map(|n| {
                    let counted = ended.count();
                    let sleeps = n % 3 == 0;
                    runtime.spawn(move || {
                        let _counted = counted;
                        if sleeps {
                            fibrant::sleep(Duration::from_micros(50));
                        } else {
                            fiber::park();
                        }
                    })
                })
                .collect();
            thread::scope(|s| {
                s.spawn(|| fibers.iter().for_each(|fiber| fiber.fiber().unpark()));
                if round % 2 == 0 {
                    s.spawn(|| fibers.iter().for_each(|fiber| fiber.cancel()));
                } else {
                    // Towards each other: they meet somewhere in the middle.
                    s.spawn(|| fibers.iter().rev().for_each(|fiber| fiber.cancel()));
                }
            });
            for fiber in fibers {
                match fiber.join() {
                    Ok(()) => woken += 1,
                    Err(payload) => {
                        assert!(payload.is::<Cancelled>());
                        cancelled += 1;
                    }
                }
            }
        }
        assert_eq!(woken + cancelled, ROUNDS / 2);
        assert_eq!((ended.made(), ended.dropped()), (ROUNDS / 2, ROUNDS / 2));
        runtime.stop().unwrap();
        let stats = runtime.stats();
        assert_eq!(stats.fibers_ended, (ROUNDS / 2) as u64);
    }
}

// Hand-driven fibers.

#[test]
fn a_fiber_cancelled_inside_hand_driven_ones_unwinds_the_whole_chain() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        let held = Census::default();
        let (outer, middle, inner) = (held.count(), held.count(), held.count());
        let fiber = runtime.spawn(move || {
            let _outer = outer;
            let chain = Fiber::new(move || {
                let _middle = middle;
                let innermost = Fiber::new(move || {
                    let _inner = inner;
                    fiber::park();
                });
                innermost.resume().unwrap();
                unreachable!("the resume unwinds");
            });
            chain.resume().unwrap();
            unreachable!("the resume unwinds");
        });
        wait_until_it_waits(&runtime, fiber.id());
        fiber.cancel();
        assert_cancelled::<()>(fiber.join());
        assert_eq!(held.dropped(), 3);
        // The same with one that the scheduler drives.
        let counted = held.count();
        let fiber = runtime.spawn(move || {
            let hand = Fiber::new(move || {
                let _counted = counted;
                fiber::park();
            });
            let spawned = hand.spawn();
            fibrant::sleep(ms(1));
            spawned.cancel();
            assert_cancelled(spawned.join());
        });
        fiber.join().unwrap();
        assert_eq!(held.dropped(), 4);
        // And a suspended one that a cancelled fiber holds is unwound with it.
        let counted = held.count();
        let fiber = runtime.spawn(move || {
            let hand = Fiber::new(move || {
                let _counted = counted;
                fiber::suspend();
            });
            assert_eq!(hand.resume().unwrap(), State::Ready);
            fiber::park();
        });
        wait_until_it_waits(&runtime, fiber.id());
        fiber.cancel();
        assert_cancelled(fiber.join());
        assert_eq!(held.dropped(), 5);
    }
}

// Timeouts.

#[test]
fn a_timeout_unwinds_the_wait_in_progress() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = watchdog.runtime(workers);
        runtime
            .spawn(|| {
                let (ours, _theirs) = UnixStream::pair().unwrap();
                let fd = ours.as_raw_fd();
                let endless = fibrant::spawn(fiber::park);
                let handle = endless.fiber().clone();
                let held = Census::default();
                let waits: [Box<dyn FnOnce()>; 5] = [
                    Box::new(|| fibrant::sleep(LONG)),
                    Box::new(fiber::park),
                    Box::new(|| fiber::park_timeout(LONG)),
                    Box::new(move || drop(fibrant::io::wait(fd, Event::READ, None))),
                    Box::new(|| drop(endless.join())),
                ];
                for wait in waits {
                    let start = Instant::now();
                    let result = fibrant::timeout(ms(5), || {
                        let _counted = held.count();
                        wait();
                        unreachable!("the wait unwinds");
                    });
                    let result: Result<(), _> = result;
                    assert_eq!(result.unwrap_err().to_string(), "the time was up");
                    assert!(start.elapsed() >= ms(5));
                    assert!(start.elapsed() < PATIENCE);
                }
                assert_eq!((held.made(), held.dropped()), (5, 5));
                handle.unpark();
                // Afterwards there is no limit any more.
                let start = Instant::now();
                fibrant::sleep(ms(10));
                assert!(start.elapsed() >= ms(10));
            })
            .join()
            .unwrap();
    }
}

#[test]
fn a_timeout_returns_the_value_that_comes_in_time() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    runtime
        .spawn(|| {
            assert_eq!(fibrant::timeout(LONG, || 1), Ok(1));
            let slept = fibrant::timeout(LONG, || {
                fibrant::sleep(ms(2));
                2
            });
            assert_eq!(slept, Ok(2));
            // Without a wait nothing is interrupted, however late it is.
            let late = fibrant::timeout(Duration::ZERO, || {
                fibrant::hook::disabled(|| thread::sleep(ms(1)));
                3
            });
            assert_eq!(late, Ok(3));
            // The wait's own deadline is its own business.
            let own = fibrant::timeout(LONG, || {
                fiber::park_timeout(ms(1));
                let child = fibrant::spawn(fiber::park);
                let child = child.join_timeout(ms(1)).unwrap_err();
                child.cancel();
                assert_cancelled(child.join());
                4
            });
            assert_eq!(own, Ok(4));
            // A panic passes through.
            let panicked = catch_unwind(|| fibrant::timeout(LONG, || resume_unwind(Box::new("through"))));
            assert_eq!(panicked.map(drop).unwrap_err().downcast_ref(), Some(&"through"));
        })
        .join()
        .unwrap();
}

#[test]
fn all_waits_inside_share_the_deadline() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    runtime
        .spawn(|| {
            let (start, rounds) = (Instant::now(), Cell::new(0));
            let result = fibrant::timeout(ms(30), || {
                loop {
                    fibrant::sleep(ms(1));
                    rounds.set(rounds.get() + 1);
                    fiber::park_timeout(ms(1));
                    fibrant::spawn(|| ()).join().unwrap();
                }
            });
            let _: Result<(), _> = result;
            assert!(result.is_err());
            assert!(start.elapsed() >= ms(30));
            assert!(rounds.get() < 30, "{rounds:?} rounds");
            assert!(start.elapsed() < PATIENCE);
            // It is this fiber's alone: those that it spawns have none.
            let child = fibrant::timeout(ms(2), || {
                fibrant::spawn(|| {
                    fibrant::sleep(ms(10));
                    "no limit"
                })
            });
            assert_eq!(child.unwrap().join().unwrap(), "no limit");
        })
        .join()
        .unwrap();
}

#[test]
fn timeouts_nest_and_the_earliest_counts() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    runtime
        .spawn(|| {
            // The inner one is earlier: the outer one goes on, with its own deadline.
            let start = Instant::now();
            let outer = fibrant::timeout(ms(40), || {
                let inner = fibrant::timeout(ms(5), || fibrant::sleep(LONG));
                assert!(inner.is_err());
                assert!(start.elapsed() >= ms(5));
                fibrant::sleep(LONG);
            });
            assert!(outer.is_err());
            assert!(start.elapsed() >= ms(40));
            // The outer one is earlier: it passes through the inner one.
            let start = Instant::now();
            let mut inner_returned = false;
            let outer = fibrant::timeout(ms(5), || {
                let _inner = fibrant::timeout(LONG, || fibrant::sleep(LONG));
                inner_returned = true;
            });
            assert!(outer.is_err());
            assert!(!inner_returned);
            assert!(start.elapsed() < PATIENCE);
            // Both in time.
            assert_eq!(fibrant::timeout(LONG, || fibrant::timeout(LONG, || 1)), Ok(Ok(1)));
            // One that was swallowed unwinds the next wait, too: its time is still up.
            let mut caught = 0;
            let result = fibrant::timeout(ms(1), || {
                while caught < 3 {
                    assert!(catch_unwind(|| fibrant::sleep(LONG)).is_err());
                    caught += 1;
                }
            });
            assert_eq!((result, caught), (Ok(()), 3));
            fibrant::sleep(ms(1)); // and not afterwards
        })
        .join()
        .unwrap();
}

#[test]
fn a_guard_puts_off_a_timeout_and_a_cancel_goes_through_it() {
    let watchdog = Watchdog::new();
    let runtime = watchdog.runtime(1);
    runtime
        .spawn(|| {
            let result = fibrant::timeout(ms(1), || {
                let guard = fibrant::defer_cancel();
                let start = Instant::now();
                fibrant::sleep(ms(10));
                assert!(start.elapsed() >= ms(10));
                drop(guard);
                fibrant::sleep(LONG);
            });
            assert!(result.is_err());
        })
        .join()
        .unwrap();
    let fiber = runtime.spawn(|| fibrant::timeout(LONG, || fibrant::sleep(LONG)));
    wait_until_it_waits(&runtime, fiber.id());
    fiber.cancel();
    assert_cancelled(fiber.join());
}

#[test]
fn a_timeout_around_a_scope_cancels_its_fibers_and_waits_for_them() {
    let watchdog = Watchdog::new();
    for workers in [1, 2] {
        for in_the_body in [false, true] {
            let runtime = watchdog.runtime(workers);
            runtime
                .spawn(move || {
                    let text = String::from("borrowed");
                    let (begun, looked) = (AtomicUsize::new(0), AtomicUsize::new(0));
                    let result = fibrant::timeout(ms(10), || {
                        fibrant::scope(|s| {
                            for _ in 0..5 {
                                s.spawn(|| {
                                    begun.fetch_add(1, SeqCst);
                                    let _looks = Looks(&text, &looked);
                                    fiber::park();
                                });
                            }
                            if in_the_body {
                                fibrant::sleep(LONG);
                            }
                        });
                    });
                    assert!(result.is_err());
                    let (begun, looked) = (begun.load(SeqCst), looked.load(SeqCst));
                    assert_eq!(looked, begun);
                    // Another worker may have taken one away and not have come to start it in time.
                    assert!(begun == 5 || workers > 1, "{begun} have begun");
                    // A timeout inside a scope ends there.
                    fibrant::scope(|s| {
                        let child = s.spawn(|| fibrant::timeout(ms(1), || fibrant::sleep(LONG)));
                        assert!(child.join().unwrap().is_err());
                        assert!(fibrant::timeout(ms(1), || fibrant::sleep(LONG)).is_err());
                    });
                })
                .join()
                .unwrap();
        }
    }
}
