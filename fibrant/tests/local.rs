//! Fiber-locals: one value per fiber, dropped at its end.

mod common;

use fibrant::fiber::{self, Fiber, State};
use fibrant::{fiber_local, stats};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

fiber_local! {
    static NUMBER: Cell<u32> = const { Cell::new(7) };
    /// With an attribute and a value that is computed.
    static WORDS: RefCell<Vec<String>> = RefCell::new(vec!["first".to_owned()]);
    static EVENTS: RefCell<Option<Events>> = const { RefCell::new(None) }
}

type Events = Rc<RefCell<Vec<&'static str>>>;

struct Noisy(Events, &'static str);

impl Drop for Noisy {
    fn drop(&mut self) {
        self.0.borrow_mut().push(self.1);
    }
}

#[test]
fn each_fiber_and_the_thread_have_their_own() {
    NUMBER.set(1);
    let fibers: Vec<_> = (0..3_u32)
        .map(|i| {
            Fiber::new(move || {
                assert_eq!(NUMBER.get(), 7);
                NUMBER.set(100 + i);
                WORDS.with_borrow_mut(|words| words.push(i.to_string()));
                fiber::suspend();
                assert_eq!(NUMBER.get(), 100 + i);
                assert_eq!(WORDS.take(), ["first".to_owned(), i.to_string()]);
                // A fiber inside has its own as well.
                Fiber::new(|| assert_eq!(NUMBER.replace(0), 7)).resume().unwrap();
                assert_eq!(NUMBER.get(), 100 + i);
            })
        })
        .collect();
    for _ in 0..2 {
        for fiber in &fibers {
            fiber.resume().unwrap();
        }
    }
    assert_eq!(NUMBER.get(), 1);
}

#[test]
fn values_are_dropped_when_their_fiber_ends_and_are_new_after_a_reset() {
    thread_local!(static EVENTS_OF_TEST: Events = Rc::default());
    fiber_local! {
        static NOISY: Noisy = Noisy(EVENTS_OF_TEST.with(Rc::clone), "dropped");
    }
    let events = EVENTS_OF_TEST.with(Rc::clone);
    let fiber = Fiber::new(|| {
        NOISY.with(|noisy| noisy.0.borrow_mut().push("used"));
        fiber::suspend();
    });
    fiber.resume().unwrap();
    assert_eq!(*events.borrow(), ["used"]);
    fiber.resume().unwrap();
    assert_eq!(*events.borrow(), ["used", "dropped"]);
    fiber
        .reset(|| NOISY.with(|noisy| noisy.0.borrow_mut().push("used again")))
        .unwrap();
    fiber.resume().unwrap();
    assert_eq!(*events.borrow(), ["used", "dropped", "used again", "dropped"]);

    // A fiber that is unwound, or that panics, ends as well.
    let fiber = Fiber::new(|| {
        NOISY.with(|_| ());
        fiber::suspend();
    });
    fiber.resume().unwrap();
    drop(fiber);
    let fiber = Fiber::new(|| NOISY.with(|_| panic!("expected")));
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fiber.resume()));
    assert_eq!(events.borrow().len(), 6);
}

#[test]
fn a_destructor_may_use_other_locals_but_not_its_own() {
    struct First(Events);
    struct Second(Events);
    impl Drop for First {
        fn drop(&mut self) {
            assert!(FIRST.try_with(|_| ()).is_err());
            SECOND.with(|_| self.0.borrow_mut().push("first found second"));
        }
    }
    impl Drop for Second {
        fn drop(&mut self) {
            assert!(FIRST.try_with(|_| ()).is_err());
            self.0.borrow_mut().push("second dropped");
        }
    }
    thread_local!(static EVENTS_OF_TEST: Events = Rc::default());
    fiber_local! {
        static FIRST: First = First(EVENTS_OF_TEST.with(Rc::clone));
        static SECOND: Second = Second(EVENTS_OF_TEST.with(Rc::clone));
    }
    // SECOND is first used by FIRST's destructor, so it is made while the locals are being dropped.
    Fiber::new(|| FIRST.with(|_| ())).resume().unwrap();
    assert_eq!(
        *EVENTS_OF_TEST.with(Rc::clone).borrow(),
        ["first found second", "second dropped"]
    );
}

#[test]
fn an_initialiser_may_ask_for_its_own_value() {
    fiber_local! {
        static RECURSIVE: u32 = {
            if NUMBER.replace(0) == 7 { RECURSIVE.with(|inner| inner + 1) } else { 1 }
        };
    }
    // The inner value was there first, so it counts.
    Fiber::new(|| assert_eq!(RECURSIVE.with(|value| *value), 1))
        .resume()
        .unwrap();
}

#[test]
fn a_value_stays_where_it_is_across_suspensions() {
    let fiber = Fiber::new(|| {
        WORDS.with(|words| {
            let before: *const _ = words;
            fiber::suspend();
            NUMBER.set(1);
            assert!(std::ptr::eq(before, words));
            assert_eq!(words.borrow().len(), 1);
        });
    });
    fiber.resume().unwrap();
    WORDS.with_borrow_mut(|words| words.clear());
    fiber.resume().unwrap();
}

#[test]
fn a_fiber_suspended_in_a_destructor_of_a_local_is_abandoned() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            fiber::suspend();
        }
    }
    fiber_local!(static SLOW: Slow = Slow);
    let fiber = Fiber::new(|| SLOW.with(|_| ()));
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    let before = stats::current_thread().fibers_abandoned;
    drop(fiber);
    assert_eq!(stats::current_thread().fibers_abandoned, before + 1);

    let fiber = Fiber::new(|| SLOW.with(|_| ()));
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    assert_eq!(fiber.resume().unwrap(), State::Term);
}

#[test]
fn the_values_of_a_thread_are_dropped_when_it_ends() {
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    static DROPPED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    fiber_local!(static COUNTED: Counted = Counted);
    std::thread::spawn(|| {
        COUNTED.with(|_| ());
        Fiber::new(|| COUNTED.with(|_| ())).resume().unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(DROPPED.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[test]
fn a_destructor_that_panics_ends_the_program() {
    if common::case().is_some() {
        struct Bad;
        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("bad destructor");
            }
        }
        fiber_local!(static BAD: Bad = Bad);
        let _ = Fiber::new(|| BAD.with(|_| ())).resume();
        unreachable!("the program has ended");
    }
    let child = common::child("a_destructor_that_panics_ends_the_program", "panic", &[]);
    assert_eq!(child.signal(), Some(libc::SIGABRT), "{}", child.stderr());
    assert!(
        child.stderr().contains("a destructor of a fiber-local panicked"),
        "{}",
        child.stderr()
    );
}

#[test]
fn declares_without_a_final_semicolon() {
    let fiber = Fiber::new(|| {
        EVENTS.set(Some(Rc::default()));
        assert!(EVENTS.with_borrow(Option::is_some));
    });
    fiber.resume().unwrap();
    assert!(EVENTS.take().is_none());
}
