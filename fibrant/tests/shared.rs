//! Fibers on shared stacks: what each has there is its own, whoever runs in between.

#![cfg(not(fibrant_asan))] // AddressSanitizer does not know of frames that move

use fibrant::fiber::{self, Fiber, ResumeError, SharedStacks, State};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SIZE: usize = 64 << 10;

fn stacks(count: usize) -> SharedStacks {
    SharedStacks::new(count, SIZE).unwrap()
}

/// A fiber that shares one of these stacks.
fn sharing(stacks: &SharedStacks, f: impl FnOnce() + 'static) -> Fiber {
    // SAFETY: nothing in these tests refers to what is on the fibers' stacks while they are suspended.
    unsafe { Fiber::new(f).sharing_stack(stacks) }
}

/// Fills a part of the stack with a pattern, suspends that often, and looks after each time whether it is still there.
fn keep_pattern(pattern: u8, size: usize, times: usize) {
    fn fill<const N: usize>(pattern: u8, times: usize) {
        let mut frame = [pattern; N];
        for time in 0..times {
            let frame = std::hint::black_box(&mut frame);
            frame[time % N] = pattern;
            fiber::suspend();
            assert!(std::hint::black_box(&frame).iter().all(|&byte| byte == pattern));
        }
    }
    match size {
        0..64 => fill::<16>(pattern, times),
        64..1024 => fill::<300>(pattern, times),
        _ => fill::<5000>(pattern, times),
    }
}

#[test]
fn frames_survive_whoever_runs_in_between() {
    for count in [1, 2, 3] {
        let stacks = stacks(count);
        let fibers: Vec<Fiber> = (0..20_u8)
            .map(|n| sharing(&stacks, move || keep_pattern(n, 400 * usize::from(n), 5)))
            .collect();
        for _ in 0..5 {
            for fiber in &fibers {
                assert_eq!(fiber.resume().unwrap(), State::Ready);
            }
        }
        for fiber in &fibers {
            assert_eq!(fiber.resume().unwrap(), State::Term);
        }
    }
}

#[test]
fn they_nest_on_the_same_stack() {
    fn nest(stacks: &SharedStacks, depth: u8, log: &Rc<RefCell<Vec<u8>>>) -> Fiber {
        let (own, log) = (stacks.clone(), Rc::clone(log));
        sharing(stacks, move || {
            let frame = [depth; 500];
            let child = (depth < 6).then(|| nest(&own, depth + 1, &log));
            if let Some(child) = &child {
                assert_eq!(child.resume().unwrap(), State::Ready);
            }
            log.borrow_mut().push(depth);
            fiber::suspend();
            assert!(std::hint::black_box(&frame).iter().all(|&byte| byte == depth));
            if let Some(child) = &child {
                assert_eq!(child.resume().unwrap(), State::Term);
            }
            log.borrow_mut().push(depth);
        })
    }
    for count in [1, 2] {
        let log = Rc::default();
        let stacks = stacks(count);
        let outermost = nest(&stacks, 0, &log);
        assert_eq!(outermost.resume().unwrap(), State::Ready);
        assert_eq!(outermost.resume().unwrap(), State::Term);
        assert_eq!(*log.borrow(), [6, 5, 4, 3, 2, 1, 0, 6, 5, 4, 3, 2, 1, 0]);
    }
}

#[test]
fn they_mix_with_fibers_that_have_their_own() {
    let stacks = stacks(1);
    let own = stacks.clone();
    let outer = sharing(&stacks, move || {
        let frame = [1_u8; 700];
        let middle = Fiber::new(move || {
            // On a stack of its own, between two that share one: the outer is moved away under it.
            let inner = sharing(&own, || keep_pattern(3, 600, 2));
            assert_eq!(inner.resume().unwrap(), State::Ready);
            fiber::suspend();
            assert_eq!(inner.resume().unwrap(), State::Ready);
            assert_eq!(inner.resume().unwrap(), State::Term);
        });
        assert_eq!(middle.resume().unwrap(), State::Ready);
        assert!(std::hint::black_box(&frame).iter().all(|&byte| byte == 1));
        fiber::suspend();
        assert_eq!(middle.resume().unwrap(), State::Term);
        assert!(std::hint::black_box(&frame).iter().all(|&byte| byte == 1));
    });
    let other = sharing(&stacks, || keep_pattern(9, 900, 3));
    for _ in 0..1 {
        assert_eq!(outer.resume().unwrap(), State::Ready);
        assert_eq!(other.resume().unwrap(), State::Ready);
    }
    assert_eq!(outer.resume().unwrap(), State::Term);
    assert_eq!(other.resume().unwrap(), State::Ready);
}

/// Counts when it is dropped.
struct Counted(Rc<Cell<u32>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn a_suspended_one_is_unwound_when_it_is_dropped() {
    let stacks = stacks(1);
    let dropped = Rc::new(Cell::new(0));
    let fibers: Vec<Fiber> = (0..10)
        .map(|_| {
            let counted = Counted(Rc::clone(&dropped));
            sharing(&stacks, move || {
                let _counted = counted;
                fiber::suspend();
            })
        })
        .collect();
    for fiber in &fibers {
        fiber.resume().unwrap();
    }
    drop(fibers);
    assert_eq!(dropped.get(), 10);
}

#[test]
fn a_panic_goes_on_in_the_resumer() {
    let stacks = stacks(1);
    let bystander = sharing(&stacks, || keep_pattern(5, 100, 2));
    bystander.resume().unwrap();
    let own = stacks.clone();
    let outer = sharing(&stacks, move || {
        let inner = sharing(&own, || panic!("inner"));
        let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inner.resume())).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"inner"));
        assert_eq!(inner.state(), State::Term);
        panic!("outer");
    });
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| outer.resume())).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"outer"));
    assert_eq!(bystander.resume().unwrap(), State::Ready);
    assert_eq!(bystander.resume().unwrap(), State::Term);
}

#[test]
fn it_can_be_reset() {
    let stacks = stacks(1);
    let fiber = sharing(&stacks, || keep_pattern(1, 100, 1));
    for pattern in 2..5 {
        assert_eq!(fiber.resume().unwrap(), State::Ready);
        assert_eq!(fiber.resume().unwrap(), State::Term);
        fiber.reset(move || keep_pattern(pattern, 300, 1)).unwrap();
    }
}

#[test]
fn the_stacks_may_go_first() {
    let stacks = stacks(1);
    let fibers: Vec<Fiber> = (0..3)
        .map(|n| sharing(&stacks, move || keep_pattern(n, 200, 1)))
        .collect();
    drop(stacks);
    for state in [State::Ready, State::Term] {
        for fiber in &fibers {
            assert_eq!(fiber.resume().unwrap(), state);
        }
    }
}

#[test]
fn one_that_is_too_large_to_be_copied_is_refused() {
    for size in [(2 << 30) + 1, (4 << 30) + 100, usize::MAX] {
        let error = SharedStacks::new(1, size).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("2 GiB"), "{error}");
    }
    assert!(SharedStacks::new(1, 256 << 20).is_ok()); // address space only
}

#[test]
fn who_waits_in_a_runtime_keeps_the_stack() {
    fibrant::run(|| {
        let stacks = stacks(1);
        let waits = Rc::new(Cell::new(false));
        let other = fibrant::spawn_local({
            let (stacks, waits) = (stacks.clone(), Rc::clone(&waits));
            move || {
                let fiber = sharing(&stacks, move || {
                    waits.set(true);
                    fiber::park(); // and with it the one that drives it
                    waits.set(false);
                });
                assert_eq!(fiber.resume().unwrap(), State::Term);
            }
        });
        while !waits.get() {
            fibrant::yield_now();
        }
        let fiber = sharing(&stacks, || keep_pattern(7, 100, 1));
        let Err(ResumeError::Stack(error)) = fiber.resume() else {
            panic!("somebody waits there");
        };
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        other.fiber().unpark();
        other.join().unwrap();
        assert_eq!(fiber.resume().unwrap(), State::Ready);
        assert_eq!(fiber.resume().unwrap(), State::Term);
    });
}

#[test]
fn who_waits_in_a_runtime_and_was_moved_out_keeps_the_stack() {
    for ends in [false, true] {
        fibrant::run(|| {
            let stacks = stacks(1);
            let waits = Rc::new(Cell::new(false));
            let other = fibrant::spawn_local({
                let (stacks, waits) = (stacks.clone(), Rc::clone(&waits));
                move || {
                    let own = stacks.clone();
                    let outer = sharing(&stacks, move || {
                        let frame = [1_u8; 700];
                        let middle = Fiber::new(move || {
                            // The outer one is moved out; whoever is on the stack instead can be moved, or has ended.
                            let inner = sharing(&own, move || keep_pattern(3, 600, usize::from(!ends)));
                            let expected = if ends { State::Term } else { State::Ready };
                            assert_eq!(inner.resume().unwrap(), expected);
                            waits.set(true);
                            fiber::park(); // and with it the outer one, which will want its frames back
                        });
                        assert_eq!(middle.resume().unwrap(), State::Term);
                        assert!(std::hint::black_box(&frame).iter().all(|&byte| byte == 1));
                    });
                    assert_eq!(outer.resume().unwrap(), State::Term);
                }
            });
            while !waits.get() {
                fibrant::yield_now();
            }
            let fiber = sharing(&stacks, || keep_pattern(7, 900, 1));
            let Err(ResumeError::Stack(error)) = fiber.resume() else {
                panic!("somebody comes back there");
            };
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            other.fiber().unpark();
            other.join().unwrap();
            assert_eq!(fiber.resume().unwrap(), State::Ready);
            assert_eq!(fiber.resume().unwrap(), State::Term);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Resumed in any order, on any number of stacks, each fiber finds its own.
    #[test]
    fn any_order_will_do(count in 1_usize..4, order in prop::collection::vec(0_usize..12, 0..200)) {
        let stacks = stacks(count);
        let fibers: Vec<Fiber> = (0..12_u8)
            .map(|n| sharing(&stacks, move || keep_pattern(n, 150 * usize::from(n), usize::MAX)))
            .collect();
        for index in order {
            prop_assert_eq!(fibers[index].resume().unwrap(), State::Ready);
        }
    }
}
