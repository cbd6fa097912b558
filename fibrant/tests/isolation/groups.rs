//! Fibers that share their creator's thread-locals: by `spawn_local`, driven by hand, and by `Fiber::spawn`.

use crate::patience::{Census, Counted};
use crate::support::*;
use fibrant::fiber::{self, Fiber};
use fibrant::spawn_local;
use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

thread_local! {
    static VALUE: Cell<usize> = const { Cell::new(7) };
    static KEPT: RefCell<Option<Counted>> = const { RefCell::new(None) };
}

/// What the last fiber of a group finds when its values are dropped.
static LAST: AtomicUsize = AtomicUsize::new(0);

fn keep(census: &Census) {
    KEPT.set(Some(census.count()));
}

#[test]
fn local_fibers_share_their_creators() {
    on_workers(|runtime| {
        together(runtime, 10, |number| {
            let own = pthread_self();
            VALUE.set(number);
            let fibers: Vec<_> = (0..5)
                .map(|_| {
                    spawn_local(move || {
                        assert_eq!(pthread_self(), own);
                        VALUE.set(VALUE.get() + 100);
                        wait(number);
                        assert_eq!(VALUE.get(), number + 500);
                        // Those that they spawn are of the same group.
                        spawn_local(move || assert_eq!((pthread_self(), VALUE.get()), (own, number + 500)))
                            .join()
                            .unwrap();
                        // A fiber that is not local has its own.
                        fibrant::spawn(|| assert_eq!(VALUE.replace(1), 7)).join().unwrap();
                    })
                })
                .collect();
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            assert_eq!(VALUE.get(), number + 500);
        });
    });
}

#[test]
fn fibers_driven_by_hand_share_their_resumers() {
    on_workers(|runtime| {
        together(runtime, 10, |number| {
            let own = pthread_self();
            VALUE.set(number);
            let fiber = Fiber::new(move || {
                for _ in 0..5 {
                    assert_eq!((pthread_self(), VALUE.get()), (own, number));
                    fiber::suspend();
                }
                VALUE.set(99);
            });
            while fiber.state() != fiber::State::Term {
                fiber.resume().unwrap();
                fibrant::yield_now();
            }
            assert_eq!(VALUE.get(), 99);
            let scheduled = Fiber::new(move || {
                assert_eq!((pthread_self(), VALUE.get()), (own, 99));
                fiber::suspend();
                fibrant::yield_now();
                assert_eq!((pthread_self(), VALUE.get()), (own, 99));
            });
            scheduled.resume().unwrap();
            scheduled.spawn().join().unwrap();
        });
    });
}

/// The creator ends first: its values stay until the last has ended, and are dropped once.
#[test]
fn the_last_one_drops_the_values() {
    on_workers(|runtime| {
        let census = Census::default();
        let right = Arc::new(AtomicUsize::new(0));
        let fibers: Vec<_> = (0..20)
            .map(|number| {
                let (census, right) = (census.clone(), Arc::clone(&right));
                runtime.spawn(move || {
                    VALUE.set(number);
                    keep(&census);
                    for member in 0..3 {
                        let right = Arc::clone(&right);
                        spawn_local(move || {
                            for round in 1..5 + member {
                                wait(round);
                                assert_eq!(VALUE.get(), number);
                                KEPT.with_borrow(|kept| assert!(kept.is_some()));
                            }
                            right.fetch_add(1, SeqCst);
                        });
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        crate::patience::eventually("all have ended", || census.dropped() == 20);
        assert_eq!((census.made(), right.load(SeqCst)), (20, 60));
        // Their stacks are used again, by fibers that find nothing of theirs.
        together(runtime, 60, |_| {
            assert_eq!(VALUE.get(), 7);
            KEPT.with_borrow(|kept| assert!(kept.is_none()));
        });
    });
}

/// Whoever joins the last one finds the values dropped; whoever joins the others does not.
#[test]
fn join_of_the_last_one_waits_for_the_destructors() {
    on_workers(|runtime| {
        for panics in [false, true] {
            let census = Census::default();
            let counted = census.clone();
            let gone = Arc::new(AtomicUsize::new(0));
            runtime.run_on(0, move || {
                let (sender, receiver) = std::sync::mpsc::channel();
                let watched = counted.clone();
                let creator = fibrant::Builder::new()
                    .worker(0)
                    .spawn(move || {
                        keep(&counted);
                        let gone = Arc::clone(&gone);
                        let last = spawn_local(move || {
                            fiber::park();
                            KEPT.with_borrow(|kept| assert!(kept.is_some()));
                            gone.store(1, SeqCst);
                            if panics {
                                panic::resume_unwind(Box::new("quietly"));
                            }
                        });
                        sender.send(last).unwrap();
                    })
                    .unwrap();
                creator.join().unwrap();
                assert_eq!(watched.dropped(), 0, "the creator has ended, but not the last");
                let last = receiver.recv().unwrap();
                last.fiber().unpark();
                assert_eq!(last.join().is_err(), panics);
                assert_eq!(watched.dropped(), 1);
            });
            assert_eq!(census.dropped(), 1);
        }
    });
}

/// A member that never runs counts, too.
#[test]
fn members_may_be_cancelled() {
    on_workers(|runtime| {
        let census = Census::default();
        let counted = census.clone();
        runtime
            .spawn(move || {
                keep(&counted);
                let never = spawn_local(|| unreachable!("it is cancelled before"));
                never.cancel();
                let begun = spawn_local(|| fibrant::sleep(std::time::Duration::from_secs(3600)));
                fibrant::yield_now();
                fibrant::yield_now();
                begun.cancel();
            })
            .join()
            .unwrap();
        crate::patience::eventually("all have ended", || census.dropped() == 1);
    });
}

/// A destructor makes its fiber's block a group's.
#[test]
fn a_destructor_may_spawn_a_local_fiber() {
    struct Spawns;
    impl Drop for Spawns {
        fn drop(&mut self) {
            let own = pthread_self();
            spawn_local(move || {
                for round in 0..5 {
                    wait(round);
                    assert_eq!((pthread_self(), VALUE.get()), (own, 70));
                }
                LAST.fetch_add(1, SeqCst);
            });
        }
    }
    thread_local! {
        static SPAWNS: RefCell<Option<Spawns>> = const { RefCell::new(None) };
    }
    on_workers(|runtime| {
        LAST.store(0, SeqCst);
        together(runtime, 10, |_| {
            VALUE.set(70);
            SPAWNS.set(Some(Spawns));
        });
        together(runtime, 10, |_| assert_eq!(VALUE.get(), 7));
        crate::patience::eventually("all have ended", || LAST.load(SeqCst) == 10);
    });
}

/// Many groups in turn do not use up anything, and never see each other.
#[test]
fn many_groups_in_turn() {
    on_workers(|runtime| {
        let census = Census::default();
        let right = Arc::new(AtomicUsize::new(0));
        for round in 0..200 {
            let (census, right) = (census.clone(), Arc::clone(&right));
            together(runtime, 10, move |number| {
                assert_eq!(VALUE.get(), 7);
                KEPT.with_borrow(|kept| assert!(kept.is_none()));
                VALUE.set(number);
                keep(&census);
                for member in 0..3 {
                    let right = Arc::clone(&right);
                    spawn_local(move || {
                        assert_eq!(VALUE.get(), number);
                        if (member + round) % 3 == 0 {
                            fibrant::yield_now();
                        }
                        assert_eq!(VALUE.get(), number);
                        right.fetch_add(1, SeqCst);
                    });
                }
            });
        }
        crate::patience::eventually("all have ended", || census.dropped() == 2000);
        assert_eq!(right.load(SeqCst), 6000);
    });
}
