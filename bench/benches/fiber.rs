//! What a hand-driven fiber costs, next to its peers: `cargo xtask bench` runs this and prints the ratios.
//!
//! Peers: corosensei (whose switch does not keep the floating-point control words, so the fair comparison is with
//! "fibrant, shared float control"), and Boost.Context where it is installed. All use stacks of 64 KiB.

use bench::bare;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use fibrant::fiber::{self, Fiber};
use fibrant::internals::PingPong;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const STACK: usize = 64 << 10;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    round_trip(&mut criterion);
    round_robin(&mut criterion);
    create(&mut criterion);
    create_fresh(&mut criterion);
    switch(&mut criterion);
    criterion.final_summary();
}

fn endless() -> Fiber {
    Fiber::with_stack_size(STACK, || {
        loop {
            fiber::suspend()
        }
    })
}

fn endless_peer() -> Coroutine<(), (), ()> {
    let stack = DefaultStack::new(STACK).expect("a stack");
    Coroutine::with_stack(stack, |yielder: &Yielder<(), ()>, ()| {
        loop {
            yielder.suspend(())
        }
    })
}

/// Resume and suspend, one fiber.
fn round_trip(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round trip");
    let ours = endless();
    group.bench_function("fibrant", |bencher| bencher.iter(|| ours.resume().unwrap()));
    let ours = endless().sharing_float_control();
    group.bench_function("fibrant, shared float control", |bencher| {
        bencher.iter(|| ours.resume().unwrap())
    });
    let mut peer = endless_peer();
    group.bench_function("corosensei", |bencher| bencher.iter(|| peer.resume(())));
    boost(&mut group, |n| boost_round_trips(n, 1));
    group.finish();
}

/// Resume and suspend, 1,000 fibers in turn; the figure is for all of them.
fn round_robin(criterion: &mut Criterion) {
    const COUNT: usize = 1000;
    let mut group = criterion.benchmark_group("round robin over 1000");
    let ours: Vec<_> = (0..COUNT).map(|_| endless()).collect();
    group.bench_function("fibrant", |bencher| bencher.iter(|| ours.iter().for_each(resume)));
    drop(ours);
    let ours: Vec<_> = (0..COUNT).map(|_| endless().sharing_float_control()).collect();
    group.bench_function("fibrant, shared float control", |bencher| {
        bencher.iter(|| ours.iter().for_each(resume));
    });
    drop(ours);
    let mut peers: Vec<_> = (0..COUNT).map(|_| endless_peer()).collect();
    group.bench_function("corosensei", |bencher| {
        bencher.iter(|| {
            for peer in &mut peers {
                peer.resume(());
            }
        });
    });
    boost(&mut group, |n| boost_round_trips(n, COUNT));
    group.finish();
}

#[inline(always)]
fn resume(fiber: &Fiber) {
    fiber.resume().unwrap();
}

/// Make a fiber on a stack that was used before, run it to its end, drop it.
fn create(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("create, run, drop");
    group.bench_function("fibrant", |bencher| {
        bencher.iter(|| Fiber::with_stack_size(STACK, || {}).resume().unwrap());
    });
    group.bench_function("fibrant, shared float control", |bencher| {
        bencher.iter(|| {
            Fiber::with_stack_size(STACK, || {})
                .sharing_float_control()
                .resume()
                .unwrap()
        });
    });
    let count = Rc::new(Cell::new(0_u64));
    group.bench_function("fibrant, closure with a capture", |bencher| {
        bencher.iter(|| {
            let count = Rc::clone(&count);
            Fiber::with_stack_size(STACK, move || count.set(count.get() + 1))
                .resume()
                .unwrap()
        });
    });
    let mut stack = Some(DefaultStack::new(STACK).expect("a stack"));
    group.bench_function("corosensei", |bencher| {
        bencher.iter(|| {
            let taken = stack.take().expect("it was put back");
            let mut peer = Coroutine::with_stack(taken, |_: &Yielder<(), ()>, ()| {});
            peer.resume(());
            stack = Some(peer.into_stack());
        });
    });
    boost(&mut group, boost_create);
    group.finish();
}

/// How many fresh stacks are made before all of them are dropped, which is not timed. A process has room for about 32,000
/// of corosensei's; a larger batch means fewer different sizes for ours.
const BATCH: u64 = 30_000;

/// Calls `batch(count, nth)` until `n` stacks are made, and adds up the times that it returns.
fn in_batches(n: u64, nth: &mut usize, batch: impl Fn(usize, usize) -> Duration) -> Duration {
    let mut time = Duration::ZERO;
    let mut left = n;
    while left > 0 {
        let count = left.min(BATCH);
        *nth += 1;
        time += batch(count as usize, *nth);
        left -= count;
    }
    time
}

/// A size that no batch before has used, so that all its stacks are fresh.
fn fresh_size(nth: usize) -> usize {
    STACK + nth * bare::page_size()
}

/// Make a fiber on a stack that was never used, and run it to its first suspension.
fn create_fresh(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("create on a fresh stack");
    group.sample_size(20);
    let mut nth = 0;
    group.bench_function("fibrant", |bencher| {
        bencher.iter_custom(|n| {
            in_batches(n, &mut nth, |count, nth| {
                let mut fibers = Vec::with_capacity(count);
                let start = Instant::now();
                for _ in 0..count {
                    let fiber = Fiber::with_stack_size(fresh_size(nth), fiber::suspend);
                    fiber.resume().unwrap();
                    fibers.push(fiber);
                }
                let time = start.elapsed();
                drop(fibers);
                fiber::trim_stacks();
                time
            })
        });
    });
    let mut nth = 0;
    group.bench_function("a bare guard and a first touch", |bencher| {
        bencher.iter_custom(|n| {
            in_batches(n, &mut nth, |count, nth| {
                bare::guard_and_touch(count, fresh_size(nth))
            })
        });
    });
    let mut nth = 0;
    group.bench_function("corosensei", |bencher| {
        bencher.iter_custom(|n| {
            in_batches(n, &mut nth, |count, _| {
                let mut peers = Vec::with_capacity(count);
                let start = Instant::now();
                for _ in 0..count {
                    let mut peer = endless_peer();
                    peer.resume(());
                    peers.push(peer);
                }
                start.elapsed()
            })
        });
    });
    group.finish();
}

/// The switch alone, there and back, in its variants.
fn switch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bare switch");
    let pair = PingPong::new(false);
    group.bench_function("switch", |bencher| bencher.iter(|| pair.round_trip()));
    if PingPong::thread_pointer_can_change() {
        let pair = PingPong::new(true);
        group.bench_function("switch with thread pointer", |bencher| {
            bencher.iter(|| pair.round_trip_with_thread_pointer());
        });
    }
    group.finish();
}

/// Adds Boost.Context's figure, where it is installed: `rounds(n)` does n rounds.
#[cfg(boost)]
fn boost(group: &mut BenchmarkGroup<'_, WallTime>, rounds: impl Fn(u64)) {
    group.bench_function("Boost.Context", |bencher| {
        bencher.iter_custom(|n| {
            let start = Instant::now();
            rounds(n);
            start.elapsed()
        });
    });
}

#[cfg(boost)]
use bench::boost::{create as boost_create, round_trips as boost_round_trips};

#[cfg(not(boost))]
fn boost(_: &mut BenchmarkGroup<'_, WallTime>, _: impl Fn(u64)) {}

#[cfg(not(boost))]
fn boost_create(_: u64) {}

#[cfg(not(boost))]
fn boost_round_trips(_: u64, _: usize) {}
