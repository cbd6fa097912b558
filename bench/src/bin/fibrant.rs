//! The micro-benchmarks on fibrant: with isolated fibers, or with light ones if `BENCH_LIGHT` is set in the environment. And its servers.
//!
//! `by_hand` has fibers that are resumed by hand, `hook` what hooked calls cost, and `isolation` what isolated fibers cost more than light
//! ones.

#[path = "fibrant/by_hand.rs"]
mod by_hand;
#[path = "fibrant/hook.rs"]
mod hook;
#[path = "fibrant/isolation.rs"]
mod isolation;

use std::array;
use std::io;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::blocking::{List, Tasks};
use bench::cases::{Bench, Case};
use bench::families::{Crossbeam, StdBounded, StdUnbounded, of_parking_lot, of_std};
use bench::micro::{self, Alarm, Args, Expired, Gauge, Outcome, Parked, Peer, Place, Token};
use bench::plain;
use bench::threads::Threads;
use fibrant::fiber;
use fibrant::runtime;
use fibrant::{Builder, JoinHandle, timer};

/// Enough for what the fibers do here.
const STACK: usize = 64 << 10;

/// fibrant; every method is called on a fiber of the runtime.
#[derive(Clone, Copy)]
struct Fibrant {
    workers: usize,
    light: bool,
}

/// Our locks and channels, as the benchmarks want them.
mod ours {
    use bench::blocking::Lock;
    use fibrant::sync;

    bench::locks!("fibrant", fibrant::sync, false, .unwrap());
    bench::meetings!("fibrant", fibrant::sync);
    bench::groups!("fibrant", fibrant::sync);
    bench::channels!(
        Channels,
        "fibrant",
        fibrant::sync::channel,
        fibrant::select,
        false
    );

    /// A semaphore with one permit.
    pub struct Semaphore(sync::Semaphore);

    impl Lock for Semaphore {
        const NAME: &'static str = "fibrant semaphore";
        const WAITS_WITH_LOCALS: bool = false;
        const EXCLUSIVE: bool = false;

        fn new() -> Semaphore {
            Semaphore(sync::Semaphore::new(1))
        }

        #[inline]
        fn pass(&self, inside: impl FnOnce()) {
            let _permit = self.0.acquire();
            inside();
        }

        fn total(&self) -> u64 {
            0
        }
    }
}

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

impl Tasks for Fibrant {
    type Handle = JoinHandle<()>;

    fn spawn(self, seat: Option<usize>, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        match seat {
            Some(worker) => Builder::new().worker(worker).spawn(body).expect("a fiber"),
            None => fibrant::spawn(body),
        }
    }

    fn join(handle: JoinHandle<()>) {
        handle.join().expect("a fiber");
    }

    fn yield_now() {
        fibrant::yield_now();
    }

    fn workers(self) -> usize {
        self.workers
    }

    fn seats(self) -> Outcome<()> {
        Ok(())
    }

    fn has_locals(self) -> bool {
        !self.light
    }
}

impl Peer for Fibrant {
    fn yields(&self, tasks: usize, n: usize) -> Outcome<Duration> {
        let yields = move || {
            for _ in 0..n {
                fibrant::yield_now();
            }
        };
        let start = Instant::now();
        // Not `spawn_local`, whose fibers share thread-locals and so switch as light ones do.
        let handles: Vec<_> = iter::repeat_with(|| spawn_at(Place::Same, false, yields))
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

    fn start(&self) -> Duration {
        Duration::from_micros(20)
    }

    fn expire(&self, alarm: Alarm) -> Outcome<Expired> {
        let alarm = Arc::new(alarm);
        let sleeper = |index| {
            let alarm = alarm.clone();
            fibrant::spawn(move || {
                micro::arrive();
                fibrant::sleep(alarm.remaining(index));
            })
        };
        let handles: Vec<_> = (0..alarm.tasks()).map(sleeper).collect();
        fibrant::sleep(alarm.eve() - Instant::now());
        let begun = alarm.begin();
        join_all(handles);
        begun.map(|()| alarm.end())
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
        gauge.arrived();
        fibrant::sleep(Gauge::SETTLE);
        gauge.settled();
        fibrant::sleep(hold);
        gauge.waking();
        for handle in &handles {
            handle.fiber().unpark();
        }
        join_all(handles);
        Ok(gauge.ended())
    }

    fn cases(&self, bench: Bench) -> Vec<Case<'_>> {
        let in_fibers = List::new(bench, *self)
            .mutex::<ours::Mutex>()
            .lock::<ours::Read>()
            .lock::<ours::Write>()
            .lock::<ours::Semaphore>()
            .select::<ours::Channels>()
            .condition::<ours::Condition>()
            .barrier::<ours::Barrier>()
            .group::<ours::Group>()
            .joins()
            .clock::<ours::Channels>()
            .mutex::<of_std::Mutex>()
            .lock::<of_std::Read>()
            .lock::<of_std::Write>()
            .mutex::<of_parking_lot::Mutex>()
            .lock::<of_parking_lot::Read>()
            .lock::<of_parking_lot::Write>()
            .channel::<StdBounded>()
            .channel::<StdUnbounded>()
            .select::<Crossbeam>()
            .condition::<of_std::Condition>()
            .barrier::<of_std::Barrier>()
            .clock::<Crossbeam>();
        let mut cases = in_fibers.cases();
        // Plain threads may use them, too; where threads wait for each other the kernel sets the pace, and one figure will do.
        if matches!(bench, Bench::Lock | Bench::Channel | Bench::Meet) {
            let threads = Threads {
                workers: self.workers,
            };
            let in_threads = List::new(bench, threads)
                .suffix(", thread")
                .lock::<ours::Mutex>()
                .lock::<ours::Read>()
                .lock::<ours::Write>()
                .lock::<ours::Semaphore>()
                .channel::<ours::Channels>()
                .condition::<ours::Condition>()
                .barrier::<ours::Barrier>()
                .group::<ours::Group>();
            cases.extend(in_threads.cases());
        }
        cases
    }
}

/// A runtime with so many workers, the calling thread among them.
fn runtime(workers: usize, light: bool) -> runtime::Builder {
    let builder = runtime::Builder::new().workers(workers).use_caller(true);
    if light {
        // SAFETY: nothing that is run then keeps state in thread-locals across a wait.
        unsafe { builder.light() }
    } else {
        builder
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse("fibrant");
    let light = std::env::var_os("BENCH_LIGHT").is_some();
    if let Some((service, port)) = args.server() {
        let runtime = runtime(args.workers, light).build()?;
        return runtime.run(|| {
            plain::serve(service, port, |connection| {
                fibrant::spawn(|| connection.serve());
            })
        });
    }
    match args.bench() {
        "resume" | "create" | "fresh" | "switch" => args.run(&by_hand::ByHand::default()),
        "hook" => hook::run(&args, light)?,
        "isolation" => isolation::run(&args, light)?,
        _ => {
            let runtime = runtime(args.workers, light).stack_size(STACK).build()?;
            let fibrant = Fibrant {
                workers: args.workers,
                light,
            };
            runtime.run(move || args.run(&fibrant));
        }
    }
    Ok(())
}
