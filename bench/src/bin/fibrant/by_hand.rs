//! Fibers that are resumed by hand, on a thread without a runtime. `main` calls it.
//!
//! corosensei's switch does not keep the floating-point control words, so the fair comparison with it is "shared float control".

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bench::bare;
use bench::cases::{Bench, Case, FRESH, MANY};
use bench::micro::Peer;
use fibrant::fiber::{self, Fiber};
use fibrant::internals::PingPong;

use super::STACK;

/// Fibers by hand.
#[derive(Default)]
pub struct ByHand {
    /// How many sizes of stacks have been used.
    sizes: Cell<usize>,
}

fn endless() -> Fiber {
    Fiber::with_stack_size(STACK, || {
        loop {
            fiber::suspend();
        }
    })
}

#[inline(always)]
fn resume(fiber: &Fiber) {
    fiber.resume().expect("a fiber");
}

/// Resumes one fiber `n` times.
fn resume_one(fiber: &Fiber, n: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..n {
        resume(fiber);
    }
    start.elapsed()
}

/// Resumes one fiber after the other, `n` times in all.
fn resume_many(fibers: &[Fiber], n: usize) -> Duration {
    let start = Instant::now();
    for _ in 0..n / fibers.len() {
        fibers.iter().for_each(resume);
    }
    fibers[..n % fibers.len()].iter().for_each(resume);
    start.elapsed()
}

fn repeat(n: usize, once: impl Fn()) -> Duration {
    let start = Instant::now();
    for _ in 0..n {
        once();
    }
    start.elapsed()
}

impl ByHand {
    /// A size that no batch before has used, so that all its stacks are fresh.
    fn fresh_size(&self) -> usize {
        self.sizes.update(|sizes| sizes + 1);
        STACK + self.sizes.get() * bare::page_size()
    }

    /// Calls `batch` with a number of stacks and their size until `n` are made, and adds up the times.
    fn in_batches(&self, n: usize, batch: fn(usize, usize) -> Duration) -> Duration {
        let batches = (0..n).step_by(FRESH);
        batches
            .map(|made| batch(FRESH.min(n - made), self.fresh_size()))
            .sum()
    }
}

fn make_fresh(count: usize, size: usize) -> Duration {
    let mut fibers = Vec::with_capacity(count);
    let start = Instant::now();
    for _ in 0..count {
        let fiber = Fiber::with_stack_size(size, fiber::suspend);
        resume(&fiber);
        fibers.push(fiber);
    }
    let time = start.elapsed();
    drop(fibers);
    fiber::trim_stacks();
    time
}

impl Peer for ByHand {
    fn cases(&self, bench: Bench) -> Vec<Case<'_>> {
        match bench {
            Bench::Resume => {
                let one = endless();
                let one_sharing = endless().sharing_float_control();
                let many: Vec<_> = (0..MANY).map(|_| endless()).collect();
                let many_sharing: Vec<_> = (0..MANY).map(|_| endless().sharing_float_control()).collect();
                vec![
                    Case::timed("1", move |n| resume_one(&one, n)),
                    Case::timed("1000", move |n| resume_many(&many, n)),
                    Case::timed("1, shared float control", move |n| resume_one(&one_sharing, n)),
                    Case::timed("1000, shared float control", move |n| {
                        resume_many(&many_sharing, n)
                    }),
                ]
            }
            Bench::Create => {
                let count = Rc::new(Cell::new(0_u64));
                vec![
                    Case::timed("-", |n| {
                        repeat(n, || resume(&Fiber::with_stack_size(STACK, || {})))
                    }),
                    Case::timed("shared float control", |n| {
                        repeat(n, || {
                            resume(&Fiber::with_stack_size(STACK, || {}).sharing_float_control());
                        })
                    }),
                    Case::timed("closure with a capture", move |n| {
                        repeat(n, || {
                            let count = Rc::clone(&count);
                            resume(&Fiber::with_stack_size(STACK, move || count.set(count.get() + 1)));
                        })
                    }),
                ]
            }
            Bench::Fresh => vec![
                Case::timed("-", |n| self.in_batches(n, make_fresh)),
                Case::timed("bare guard and first touch", |n| {
                    self.in_batches(n, bare::guard_and_touch)
                }),
            ],
            Bench::Switch => {
                let pair = PingPong::new(false);
                let mut cases = vec![Case::timed("-", move |n| repeat(n, || pair.round_trip()))];
                if PingPong::thread_pointer_can_change() {
                    let pair = PingPong::new(true);
                    cases.push(Case::timed("with thread pointer", move |n| {
                        repeat(n, || pair.round_trip_with_thread_pointer())
                    }));
                }
                cases
            }
            _ => Vec::new(),
        }
    }
}
