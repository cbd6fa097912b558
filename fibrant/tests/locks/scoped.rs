//! Crates that keep something in thread-locals for as long as a function runs or a value lives, which may wait meanwhile: scoped-tls,
//! tracing and rand. Each isolated fiber finds its own.

use crate::harness::*;
use crate::light::{Outcome, only_isolated, wrong};
use crate::patience::eventually;
use fibrant::runtime::Handle;
use rand::Rng;
use scoped_tls::scoped_thread_local;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tracing::Span;
use tracing_subscriber::Registry;

scoped_thread_local!(static PLACE: usize);

#[test]
fn a_scoped_value_is_its_fibers() {
    together(
        8,
        2,
        || (),
        |(), me| {
            for round in 0..20 {
                assert!(!PLACE.is_set());
                // It lives on this fiber's stack, and in this round only.
                let outer = me.index * 100 + round;
                PLACE.set(&outer, || {
                    me.linger();
                    PLACE.with(|value| assert_eq!(*value, outer));
                    let inner = outer + 10_000;
                    PLACE.set(&inner, || {
                        me.linger();
                        PLACE.with(|value| assert_eq!(*value, inner));
                    });
                    me.linger();
                    PLACE.with(|value| assert_eq!(*value, outer));
                });
                me.linger();
            }
        },
        |()| {},
    );
}

/// Two fibers of a worker are within something that is a thread's at the same time; each must find its own.
fn overlap(runtime: &Handle, within: fn(usize, &mut dyn FnMut(), &dyn Fn())) {
    // How far they are: the first is in, the second is in, the first has looked.
    let step = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = (0..2)
        .map(|index| {
            let step = Arc::clone(&step);
            runtime.spawn(move || {
                let reach = |wanted| eventually("the other one goes on", || step.load(SeqCst) >= wanted);
                reach(index);
                let mut go_on = || {
                    step.fetch_add(1, SeqCst);
                    reach(2 + index);
                };
                within(index, &mut go_on, &|| {
                    step.fetch_add(1, SeqCst);
                });
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
}

#[test]
fn only_isolated_fibers_have_their_own_scoped_value() {
    only_isolated(
        "scoped::only_isolated_fibers_have_their_own_scoped_value",
        Outcome::Wrong,
        |runtime| {
            overlap(runtime, |index, wait, done| {
                let own = index;
                PLACE.set(&own, || {
                    wait();
                    // Safe code, and yet: had the other one ended, this would be a reference into its stack.
                    PLACE.with(|value| {
                        if *value != own {
                            wrong("a fiber finds a reference to another one's stack");
                        }
                    });
                    done();
                });
            });
        },
    );
}

/// Has spans recorded in this process.
fn record_spans() {
    // Somebody else may have done it already.
    let _ = tracing::subscriber::set_global_default(Registry::default());
}

#[test]
fn a_span_that_is_held_across_a_wait_is_its_fibers() {
    record_spans();
    together(
        8,
        2,
        || (),
        |(), me| {
            let is_in = |span: &Span| {
                assert!(span.id().is_some(), "it is not recorded");
                assert_eq!(
                    Span::current().id(),
                    span.id(),
                    "another one's span is the current one"
                );
            };
            for _ in 0..20 {
                assert!(Span::current().id().is_none());
                let outer = tracing::info_span!("outer", index = me.index);
                let entered = outer.enter();
                me.linger();
                is_in(&outer);
                let inner = tracing::info_span!("inner");
                inner.in_scope(|| {
                    me.linger();
                    is_in(&inner);
                });
                me.linger();
                is_in(&outer);
                drop(entered);
                me.linger();
            }
        },
        |()| {},
    );
}

#[test]
fn only_isolated_fibers_have_their_own_current_span() {
    only_isolated(
        "scoped::only_isolated_fibers_have_their_own_current_span",
        Outcome::Wrong,
        |runtime| {
            record_spans();
            overlap(runtime, |index, wait, done| {
                let span = tracing::info_span!("of a fiber", index);
                let _entered = span.enter();
                wait();
                if Span::current().id() != span.id() {
                    wrong("another one's span is the current one");
                }
                done();
            });
        },
    );
}

#[test]
fn a_generator_is_used_across_waits() {
    const NUMBERS: usize = 200;
    together(
        8,
        2,
        || Mutex::new(HashSet::new()),
        |seen, me| {
            let mut generator = rand::rng();
            let mut own = Vec::new();
            for _ in 0..NUMBERS / 2 {
                own.push(generator.next_u64());
                me.linger();
                own.push(rand::rng().next_u64());
            }
            seen.lock().unwrap().extend(own);
        },
        // Two with the same state, or a piece used twice, would show.
        |seen| assert_eq!(seen.lock().unwrap().len(), 10 * NUMBERS, "numbers repeat"),
    );
}
