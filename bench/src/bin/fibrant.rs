//! The micro-benchmarks on fibrant: with isolated fibers, or with light ones if `BENCH_LIGHT` is set in the environment.

use std::array;
use std::io;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::micro::{self, Alarm, Args, Expired, Gauge, Outcome, Parked, Peer, Place, Token};
use fibrant::fiber;
use fibrant::runtime;
use fibrant::{Builder, JoinHandle, timer};

/// Enough for what the fibers do here.
const STACK: usize = 64 << 10;

/// fibrant; every method is called on a fiber of the runtime.
struct Fibrant;

fn join_all(handles: impl IntoIterator<Item = JoinHandle<()>>) {
    for handle in handles {
        handle.join().expect("a fiber");
    }
}

/// Spawns ping or pong as `place` says.
fn spawn_at<T: Send + 'static>(
    place: Place,
    pong: bool,
    body: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let worker = match place {
        Place::Free => return fibrant::spawn(body),
        Place::Same => 0,
        Place::Across => pong.into(),
    };
    Builder::new().worker(worker).spawn(body).expect("a fiber")
}

/// A node that sums `size` leaves from number `first` on.
fn node(first: u64, size: u64) -> JoinHandle<u64> {
    fibrant::spawn(move || {
        if size == 1 {
            return first;
        }
        let part = size / 10;
        let children: [_; 10] = array::from_fn(|index| node(first + index as u64 * part, part));
        children
            .into_iter()
            .map(|child| child.join().expect("a node"))
            .sum()
    })
}

impl Peer for Fibrant {
    fn yields(&self, tasks: usize, n: usize) -> Outcome<Duration> {
        let yields = move || {
            for _ in 0..n {
                fibrant::yield_now();
            }
        };
        let start = Instant::now();
        let handles: Vec<_> = iter::repeat_with(|| fibrant::spawn_local(yields))
            .take(tasks)
            .collect();
        join_all(handles);
        Ok(start.elapsed())
    }

    fn spawn(&self, batch: usize, batches: usize) -> Outcome<Duration> {
        let mut handles = Vec::with_capacity(batch);
        let start = Instant::now();
        for _ in 0..batches {
            handles.extend(iter::repeat_with(|| fibrant::spawn(|| ())).take(batch));
            join_all(handles.drain(..));
        }
        Ok(start.elapsed())
    }

    fn skynet(&self, leaves: u64) -> Outcome<(Duration, u64)> {
        let start = Instant::now();
        let sum = node(0, leaves).join().expect("the root");
        Ok((start.elapsed(), sum))
    }

    fn pingpong(&self, place: Place, n: usize) -> Outcome<Duration> {
        let both = spawn_at(place, false, move || {
            let ping = fiber::current().expect("a fiber");
            let token = Arc::new(Token::default());
            let same = token.clone();
            let start = Instant::now();
            let pong = spawn_at(place, true, move || {
                same.play(true, n, fiber::park, || ping.unpark())
            });
            token.play(false, n, fiber::park, || pong.fiber().unpark());
            pong.join().expect("pong");
            start.elapsed()
        });
        Ok(both.join().expect("ping"))
    }

    fn timers(&self, n: usize) -> Outcome<(Duration, Duration)> {
        let mut timers = Vec::with_capacity(n);
        let start = Instant::now();
        timers.extend((0..n).map(|index| timer::after(micro::timer(index), || ())));
        let insert = start.elapsed();
        let start = Instant::now();
        for timer in timers {
            assert!(timer.cancel());
        }
        Ok((insert, start.elapsed()))
    }

    fn expire(&self, n: usize) -> Outcome<Expired> {
        let alarm = Arc::new(Alarm::new(n));
        let sleeper = |index| {
            let alarm = alarm.clone();
            fibrant::spawn(move || {
                micro::arrive();
                fibrant::sleep(alarm.remaining(index));
            })
        };
        let handles: Vec<_> = (0..n).map(sleeper).collect();
        fibrant::sleep(alarm.eve() - Instant::now());
        alarm.begin()?;
        join_all(handles);
        Ok(alarm.end())
    }

    fn parked(&self, n: usize, hold: Duration) -> Outcome<Parked> {
        let mut handles = Vec::with_capacity(n);
        let mut gauge = Gauge::new();
        for _ in 0..n {
            handles.push(fibrant::spawn(|| {
                micro::arrive();
                fiber::park();
            }));
        }
        while micro::arrived() < n {
            fibrant::yield_now();
        }
        fibrant::sleep(Gauge::SETTLE);
        gauge.begin();
        fibrant::sleep(hold);
        let parked = gauge.read();
        for handle in &handles {
            handle.fiber().unpark();
        }
        join_all(handles);
        Ok(parked)
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse("fibrant");
    let builder = runtime::Builder::new()
        .workers(args.workers)
        .use_caller(true)
        .stack_size(STACK);
    let builder = if std::env::var_os("BENCH_LIGHT").is_some() {
        // SAFETY: nothing here keeps state in thread-locals across a wait.
        unsafe { builder.light() }
    } else {
        builder
    };
    let runtime = builder.build()?;
    runtime.run(move || args.run(&Fibrant));
    Ok(())
}
