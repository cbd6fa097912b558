//! x
use corosensei::Coroutine;
use criterion::Criterion;
use fibrant::fiber::{self, Fiber};
use fibrant::internals::PingPong;

fn one(c: &mut Criterion) {
    let mut g = c.benchmark_group("resume1");
    g.bench_function("fibrant", |b| {
        let f = Fiber::new(|| {
            loop {
                fiber::suspend()
            }
        });
        b.iter(|| f.resume().unwrap());
        std::mem::forget(f);
    });
    g.bench_function("corosensei", |b| {
        let mut f = Coroutine::new(|y, ()| -> () {
            loop {
                y.suspend(())
            }
        });
        b.iter(|| f.resume(()));
    });
    g.bench_function("boost", |b| {
        b.iter_custom(|n| {
            let t = std::time::Instant::now();
            bench::boost::round_trips(n, 1);
            t.elapsed()
        })
    });
    g.bench_function("raw", |b| {
        let p = PingPong::new(false);
        b.iter(|| p.round_trip());
    });
    g.bench_function("raw_tp", |b| {
        let p = PingPong::new(true);
        b.iter(|| p.round_trip_with_thread_pointer());
    });
    g.finish();
    let mut g = c.benchmark_group("resume1000");
    g.throughput(criterion::Throughput::Elements(1000));
    g.bench_function("fibrant", |b| {
        let fs: Vec<_> = (0..1000)
            .map(|_| {
                Fiber::with_stack_size(64 << 10, || {
                    loop {
                        fiber::suspend()
                    }
                })
            })
            .collect();
        b.iter(|| {
            for f in &fs {
                f.resume().unwrap();
            }
        });
    });
    g.bench_function("corosensei", |b| {
        let mut fs: Vec<_> = (0..1000)
            .map(|_| {
                Coroutine::with_stack(
                    corosensei::stack::DefaultStack::new(64 << 10).unwrap(),
                    |y, ()| -> () {
                        loop {
                            y.suspend(())
                        }
                    },
                )
            })
            .collect();
        b.iter(|| {
            for f in &mut fs {
                f.resume(());
            }
        });
    });
    g.finish();
    let mut g = c.benchmark_group("boost1000");
    g.bench_function("boost", |b| {
        b.iter_custom(|n| {
            let t = std::time::Instant::now();
            bench::boost::round_trips(n, 1000);
            t.elapsed()
        })
    });
    g.finish();
    let mut g = c.benchmark_group("create");
    g.bench_function("boost", |b| {
        b.iter_custom(|n| {
            let t = std::time::Instant::now();
            bench::boost::create(n);
            t.elapsed()
        })
    });

    g.bench_function("fibrant", |b| {
        b.iter(|| Fiber::new(|| {}).resume().unwrap());
    });
    g.bench_function("fibrant_capture", |b| {
        let x = std::rc::Rc::new(std::cell::Cell::new(0));
        b.iter(|| {
            let x = x.clone();
            Fiber::new(move || x.set(x.get() + 1)).resume().unwrap()
        });
    });
    g.bench_function("corosensei_reused", |b| {
        let mut stack = Some(corosensei::stack::DefaultStack::new(64 << 10).unwrap());
        b.iter(|| {
            let mut c =
                Coroutine::with_stack(stack.take().unwrap(), |_: &corosensei::Yielder<(), ()>, ()| {});
            c.resume(());
            stack = Some(c.into_stack());
        });
    });
    g.finish();
}
fn main() {
    let mut c = Criterion::default().configure_from_args();
    one(&mut c);
}
