//! Coroutines that are resumed by hand, on corosensei.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use bench::cases::{Bench, Case, FRESH, MANY};
use bench::micro::{Args, Peer};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};

/// As large as the others' here.
const STACK: usize = 64 << 10;

/// corosensei.
struct Corosensei;

fn stack() -> DefaultStack {
    DefaultStack::new(STACK).expect("a stack")
}

fn endless() -> Coroutine<(), (), ()> {
    Coroutine::with_stack(stack(), |yielder: &Yielder<(), ()>, ()| {
        loop {
            yielder.suspend(());
        }
    })
}

/// A case that resumes `count` coroutines in turn.
fn resume(name: &'static str, count: usize) -> Case<'static> {
    let all: Vec<_> = (0..count).map(|_| endless()).collect();
    let all = RefCell::new(all);
    Case::timed(name, move |n| {
        let mut all = all.borrow_mut();
        let start = Instant::now();
        for _ in 0..n / count {
            for one in all.iter_mut() {
                one.resume(());
            }
        }
        for one in &mut all[..n % count] {
            one.resume(());
        }
        start.elapsed()
    })
}

/// Makes a coroutine on a stack that was used before, runs it to its end and drops it, `n` times.
fn create(spare: &Cell<Option<DefaultStack>>, n: usize) -> Duration {
    let mut stack = spare.take().expect("it was put back");
    let start = Instant::now();
    for _ in 0..n {
        let mut coroutine = Coroutine::with_stack(stack, |_: &Yielder<(), ()>, ()| {});
        coroutine.resume(());
        stack = coroutine.into_stack();
    }
    let time = start.elapsed();
    spare.set(Some(stack));
    time
}

/// Makes `count` coroutines with stacks of their own, and runs each to its first suspension.
fn fresh(count: usize) -> Duration {
    let mut all = Vec::with_capacity(count);
    let start = Instant::now();
    for _ in 0..count {
        let mut one = endless();
        one.resume(());
        all.push(one);
    }
    start.elapsed()
}

impl Peer for Corosensei {
    fn cases(&self, bench: Bench) -> Vec<Case<'_>> {
        match bench {
            Bench::Resume => vec![resume("1", 1), resume("1000", MANY)],
            Bench::Create => {
                let spare = Cell::new(Some(stack()));
                vec![Case::timed("-", move |n| create(&spare, n))]
            }
            Bench::Fresh => vec![Case::timed("-", |n| {
                (0..n).step_by(FRESH).map(|made| fresh(FRESH.min(n - made))).sum()
            })],
            _ => Vec::new(),
        }
    }
}

fn main() {
    let args = Args::parse("corosensei");
    if args.server().is_some() {
        args.refuse("the library has no servers");
    }
    args.run(&Corosensei);
}
