//! The life of a hand-driven fiber: states, nesting, errors, panics, reset, drop.

use fibrant::fiber::{self, Fiber, ResumeError, State};
use fibrant::stats;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// A place for what happens, in order.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<&'static str>>>);

impl Log {
    fn note(&self, what: &'static str) {
        self.0.borrow_mut().push(what);
    }
    fn all(&self) -> Vec<&'static str> {
        self.0.borrow().clone()
    }
}

/// Notes its own end.
struct Guard(Log, &'static str);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

#[test]
fn runs_in_turns_with_its_resumer() {
    let log = Log::default();
    let fiber = Fiber::new({
        let log = log.clone();
        move || {
            log.note("fiber 1");
            fiber::suspend();
            log.note("fiber 2");
            fiber::suspend();
            log.note("fiber 3");
        }
    });
    assert_eq!(fiber.state(), State::Init);
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    log.note("main 1");
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    log.note("main 2");
    assert_eq!(fiber.resume().unwrap(), State::Term);
    assert_eq!(fiber.state(), State::Term);
    assert_eq!(log.all(), ["fiber 1", "main 1", "fiber 2", "main 2", "fiber 3"]);
}

#[test]
fn nests_to_any_depth_and_each_suspension_returns_to_its_resumer() {
    fn nested(depth: usize, reached: Rc<Cell<usize>>) -> Fiber {
        Fiber::with_stack_size(fiber::MIN_STACK_SIZE, move || {
            reached.set(reached.get() + 1);
            if depth > 1 {
                let inner = nested(depth - 1, Rc::clone(&reached));
                while inner.resume().unwrap() == State::Ready {
                    fiber::suspend();
                }
            } else {
                fiber::suspend();
            }
        })
    }
    const DEPTH: usize = 5_000; // libco ends at 128
    let reached = Rc::new(Cell::new(0));
    let outer = nested(DEPTH, Rc::clone(&reached));
    assert_eq!(outer.resume().unwrap(), State::Ready);
    assert_eq!(reached.get(), DEPTH);
    assert_eq!(outer.resume().unwrap(), State::Term);
}

#[test]
fn a_running_fiber_cannot_be_resumed() {
    let own: Rc<RefCell<Option<Rc<Fiber>>>> = Rc::default();
    let error = Rc::new(Cell::new(None));
    let fiber = Rc::new(Fiber::new({
        let (own, error) = (Rc::clone(&own), Rc::clone(&error));
        move || {
            let myself = own.borrow_mut().take().unwrap();
            assert_eq!(myself.state(), State::Running);
            error.set(Some(myself.resume().unwrap_err()));
            // A fiber that it resumes finds it running, too.
            let inner = Fiber::new(move || {
                assert!(matches!(myself.resume(), Err(ResumeError::State(State::Running))));
                assert_eq!(myself.reset(|| {}).unwrap_err().state(), State::Running);
            });
            inner.resume().unwrap();
        }
    }));
    *own.borrow_mut() = Some(Rc::clone(&fiber));
    fiber.resume().unwrap();
    let error = error.take().unwrap();
    assert!(matches!(error, ResumeError::State(State::Running)));
    assert!(error.to_string().contains("Running"), "{error}");
}

#[test]
fn an_ended_fiber_cannot_be_resumed() {
    let fiber = Fiber::new(|| {});
    fiber.resume().unwrap();
    let error = fiber.resume().unwrap_err();
    assert!(matches!(error, ResumeError::State(State::Term)));
    assert!(error.to_string().contains("Term"), "{error}");
}

#[test]
fn suspending_outside_a_fiber_panics_with_a_message() {
    let payload = catch_unwind(fiber::suspend).unwrap_err();
    let message = payload.downcast_ref::<&str>().unwrap();
    assert!(message.contains("outside a Fiber"), "{message}");
}

#[test]
fn making_a_fiber_takes_no_stack() {
    let before = stats::current_thread();
    let fibers: Vec<_> = (0..1000)
        .map(|_| Fiber::with_stack_size(usize::MAX, || {}))
        .collect();
    let after = stats::current_thread();
    assert_eq!(after.fibers_created - before.fibers_created, 1000);
    assert_eq!(
        after.stacks_fresh + after.stacks_reused,
        before.stacks_fresh + before.stacks_reused
    );
    drop(fibers);
}

#[test]
fn a_stack_that_cannot_be_had_is_an_error_and_the_fiber_stays_as_it_was() {
    let ran = Rc::new(Cell::new(false));
    let fiber = Fiber::with_stack_size(usize::MAX, {
        let ran = Rc::clone(&ran);
        move || ran.set(true)
    });
    for _ in 0..2 {
        let Err(ResumeError::Stack(error)) = fiber.resume() else {
            panic!("a stack of usize::MAX bytes")
        };
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("18446744073709551615"), "{error}");
        assert_eq!(fiber.state(), State::Init);
    }
    assert!(!ran.get());
}

#[test]
fn a_panic_goes_on_in_the_resumer() {
    let fiber = Fiber::new(|| {
        fiber::suspend();
        std::panic::panic_any(42_i32);
    });
    fiber.resume().unwrap();
    let payload = catch_unwind(AssertUnwindSafe(|| fiber.resume())).unwrap_err();
    assert_eq!(payload.downcast_ref::<i32>(), Some(&42));
    assert_eq!(fiber.state(), State::Term);
    assert!(matches!(fiber.resume(), Err(ResumeError::State(State::Term))));
}

#[test]
fn a_panic_goes_through_nested_resumers() {
    let log = Log::default();
    let outer = Fiber::new({
        let log = log.clone();
        move || {
            let _guard = Guard(log.clone(), "outer unwound");
            let inner = Fiber::new(move || {
                let _guard = Guard(log.clone(), "inner unwound");
                panic!("from the inside");
            });
            inner.resume().unwrap();
        }
    });
    let payload = catch_unwind(AssertUnwindSafe(|| outer.resume())).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"from the inside"));
    assert_eq!(log.all(), ["inner unwound", "outer unwound"]);
    assert_eq!(outer.state(), State::Term);
}

#[test]
fn a_panic_caught_inside_stays_inside() {
    let fiber = Fiber::new(|| {
        for _ in 0..3 {
            assert!(catch_unwind(|| panic!("caught")).is_err());
            fiber::suspend();
        }
    });
    for _ in 0..3 {
        assert_eq!(fiber.resume().unwrap(), State::Ready);
        assert!(!std::thread::panicking());
    }
    assert_eq!(fiber.resume().unwrap(), State::Term);
}

#[test]
fn reset_runs_something_new_on_the_same_stack() {
    let address = Rc::new(Cell::new(0_usize));
    let note_address = || {
        let address = Rc::clone(&address);
        move || {
            let local = 0_u8;
            address.set(&raw const local as usize);
        }
    };
    let fiber = Fiber::new(note_address()).named("kept");
    let id = fiber.id();
    fiber.resume().unwrap();
    let first = address.get();
    fiber.reset(note_address()).unwrap();
    // Whoever takes a stack now gets another one.
    let other = Fiber::new(fiber::suspend);
    other.resume().unwrap();
    assert_eq!(fiber.state(), State::Init);
    assert_eq!(fiber.resume().unwrap(), State::Term);
    assert_eq!(address.get(), first);
    assert_eq!((fiber.id(), fiber.name()), (id, Some("kept")));
}

#[test]
fn reset_before_the_start_replaces_what_would_run() {
    let log = Log::default();
    let fiber = Fiber::new({
        let guard = Guard(log.clone(), "first dropped");
        move || guard.0.note("first ran")
    });
    fiber
        .reset({
            let log = log.clone();
            move || log.note("second ran")
        })
        .unwrap();
    assert_eq!(log.all(), ["first dropped"]);
    fiber.resume().unwrap();
    assert_eq!(log.all(), ["first dropped", "second ran"]);
}

#[test]
fn reset_after_a_panic_works() {
    let fiber = Fiber::new(|| panic!("expected"));
    assert!(catch_unwind(AssertUnwindSafe(|| fiber.resume())).is_err());
    fiber.reset(fiber::suspend).unwrap();
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    assert_eq!(fiber.reset(|| {}).unwrap_err().state(), State::Ready);
    assert_eq!(fiber.resume().unwrap(), State::Term);
}

#[test]
fn dropping_a_suspended_fiber_runs_its_destructors() {
    let log = Log::default();
    let fiber = Fiber::new({
        let log = log.clone();
        move || {
            let _outer = Guard(log.clone(), "outer");
            let inner = Fiber::new({
                let log = log.clone();
                move || {
                    let _guard = Guard(log.clone(), "fiber inside");
                    fiber::suspend();
                    log.note("never");
                }
            });
            inner.resume().unwrap();
            let _last = Guard(log.clone(), "last");
            fiber::suspend();
            log.note("never");
        }
    });
    fiber.resume().unwrap();
    drop(fiber);
    assert_eq!(log.all(), ["last", "fiber inside", "outer"]);
    assert!(!std::thread::panicking());
}

#[test]
fn dropping_a_fiber_that_never_started_drops_what_it_would_have_run() {
    let log = Log::default();
    let guard = Guard(log.clone(), "dropped");
    drop(Fiber::new(move || guard.0.note("ran")));
    assert_eq!(log.all(), ["dropped"]);
}

#[test]
fn a_fiber_may_suspend_in_a_destructor_of_a_normal_return() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            fiber::suspend();
        }
    }
    let fiber = Fiber::new(|| drop(Slow));
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    assert_eq!(fiber.resume().unwrap(), State::Term);
}

#[test]
fn a_fiber_that_swallows_the_unwinding_and_ends_has_ended() {
    let abandoned = stats::current_thread().fibers_abandoned;
    let log = Log::default();
    let fiber = Fiber::new({
        let log = log.clone();
        move || {
            assert!(catch_unwind(fiber::suspend).is_err());
            log.note("went on");
        }
    });
    fiber.resume().unwrap();
    drop(fiber);
    assert_eq!(log.all(), ["went on"]);
    assert_eq!(stats::current_thread().fibers_abandoned, abandoned);
}

#[test]
fn a_panic_instead_of_the_unwinding_goes_on_in_whoever_drops() {
    let fiber = Fiber::new(|| {
        let _ = catch_unwind(fiber::suspend);
        std::panic::panic_any("instead");
    });
    fiber.resume().unwrap();
    let payload = catch_unwind(AssertUnwindSafe(|| drop(fiber))).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"instead"));
}

#[test]
fn what_cannot_be_unwound_is_abandoned_and_its_stack_is_never_used_again() {
    const SIZE: usize = 200 << 10; // no other test uses this size, so its stacks can be told apart
    let address = Rc::new(Cell::new(0_usize));
    let note_address = |address: &Rc<Cell<usize>>| {
        let local = 0_u8;
        address.set(&raw const local as usize & !0xffff);
    };
    let before = stats::current_thread().fibers_abandoned;

    // It catches the unwinding and suspends again.
    let stubborn = Fiber::with_stack_size(SIZE, {
        let address = Rc::clone(&address);
        move || {
            note_address(&address);
            loop {
                let _ = catch_unwind(fiber::suspend);
            }
        }
    });
    stubborn.resume().unwrap();
    let lost = address.get();
    drop(stubborn);
    assert_eq!(stats::current_thread().fibers_abandoned, before + 1);

    // It is suspended in the middle of its own panic.
    struct SuspendsInDrop;
    impl Drop for SuspendsInDrop {
        fn drop(&mut self) {
            fiber::suspend();
        }
    }
    let panicking = Fiber::with_stack_size(SIZE, || {
        let _guard = SuspendsInDrop;
        panic!("expected");
    });
    panicking.resume().unwrap();
    drop(panicking);
    assert_eq!(stats::current_thread().fibers_abandoned, before + 2);

    for _ in 0..100 {
        let fiber = Fiber::with_stack_size(SIZE, {
            let address = Rc::clone(&address);
            move || note_address(&address)
        });
        fiber.resume().unwrap();
        assert_ne!(address.get(), lost);
    }
}

#[test]
fn a_fiber_that_is_dropped_by_a_panic_is_unwound_too() {
    let log = Log::default();
    let fiber = Fiber::new({
        let log = log.clone();
        move || {
            let _guard = Guard(log, "unwound");
            fiber::suspend();
        }
    });
    fiber.resume().unwrap();
    let result = catch_unwind(AssertUnwindSafe(move || {
        let _fiber = fiber;
        panic!("expected");
    }));
    assert_eq!(result.unwrap_err().downcast_ref::<&str>(), Some(&"expected"));
    assert_eq!(log.all(), ["unwound"]);
    assert!(!std::thread::panicking());
}

#[test]
fn ids_are_unique_across_threads_and_names_are_kept() {
    let ids = |count: usize| (0..count).map(|_| Fiber::new(|| {}).id()).collect::<Vec<_>>();
    let mut all = ids(3000);
    for thread in [(); 3].map(|()| std::thread::spawn(move || ids(3000))) {
        all.extend(thread.join().unwrap());
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);

    let fiber = Fiber::new(|| {
        let me = fiber::current().unwrap();
        assert_eq!(me.name(), Some("named"));
        let inner = Fiber::new(move || assert_ne!(fiber::current().unwrap().id(), me.id()));
        inner.resume().unwrap();
        assert_eq!(fiber::current().unwrap().name(), Some("named"));
    })
    .named("named");
    fiber.resume().unwrap();
    assert!(fiber::current().is_none());
}

#[test]
fn works_in_destructors_of_thread_locals() {
    struct OnExit(Option<Fiber>);
    impl Drop for OnExit {
        fn drop(&mut self) {
            // The suspended one is unwound, and new ones run, although fibrant's own thread-locals may be gone.
            drop(self.0.take());
            let fiber = Fiber::new(fiber::suspend);
            assert_eq!(fiber.resume().unwrap(), State::Ready);
            assert_eq!(fiber.resume().unwrap(), State::Term);
            DONE.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    static DONE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    thread_local! {
        static EARLY: RefCell<OnExit> = const { RefCell::new(OnExit(None)) };
        static LATE: RefCell<OnExit> = const { RefCell::new(OnExit(None)) };
    }
    std::thread::spawn(|| {
        EARLY.with(|_| ()); // registered before fibrant's, so one of the two is destroyed after it
        let suspended = || {
            let fiber = Fiber::new(fiber::suspend);
            fiber.resume().unwrap();
            OnExit(Some(fiber))
        };
        EARLY.set(suspended());
        LATE.set(suspended());
        DONE.store(0, std::sync::atomic::Ordering::SeqCst);
    })
    .join()
    .unwrap();
    assert_eq!(DONE.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[test]
fn a_forgotten_suspended_fiber_is_harmless() {
    std::thread::spawn(|| {
        let fiber = Fiber::new(|| {
            loop {
                fiber::suspend();
            }
        });
        fiber.resume().unwrap();
        std::mem::forget(fiber);
    })
    .join()
    .unwrap();
}
