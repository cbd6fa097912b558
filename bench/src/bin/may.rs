//! The micro-benchmarks on may.

use std::array;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::blocking::{List, Tasks};
use bench::families::{MayMpmc, MayMpsc, MaySemaphore, MaySpsc, of_may};
use bench::micro::{self, Alarm, Args, Expired, Gauge, Outcome, Parked, Peer, Place};
use bench::sync::{Bench, CROWDS, Case};
use may::coroutine::{self, JoinHandle};
use may::go;
use may::sync::mpsc;

const UNBOUND: &str = "coroutines cannot be bound to workers";

/// may, whose one scheduler starts when it is first used.
struct May {
    workers: usize,
}

impl May {
    fn new(workers: usize) -> May {
        may::config().set_workers(workers);
        May { workers }
    }

    /// The result of `body`, run as a coroutine. The pool, made with the first one, gets a stack for it and `tasks` more: if
    /// it had more, each would be colder; if fewer, some would be mapped and unmapped all the time.
    fn inside<T: Send + 'static>(&self, tasks: usize, body: impl FnOnce() -> T + Send + 'static) -> T {
        may::config().set_pool_capacity(tasks + 1);
        go!(body).join().expect("a benchmark's coroutine")
    }
}

fn join_all(handles: impl IntoIterator<Item = JoinHandle<()>>) {
    for handle in handles {
        handle.join().expect("a coroutine");
    }
}

/// A node that sums `size` leaves from number `first` on.
fn node(first: u64, size: u64) -> JoinHandle<u64> {
    go!(move || {
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

/// Coroutines as tasks of the benchmarks of locks and channels.
#[derive(Clone, Copy)]
struct Coroutines {
    workers: usize,
}

impl Tasks for Coroutines {
    type Handle = JoinHandle<()>;

    fn spawn(self, _seat: Option<usize>, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        go!(body)
    }

    fn join(handle: JoinHandle<()>) {
        handle.join().expect("a coroutine");
    }

    fn yield_now() {
        coroutine::yield_now();
    }

    fn workers(self) -> usize {
        self.workers
    }

    fn seats(self) -> Outcome<()> {
        Err(UNBOUND.into())
    }

    fn has_locals(self) -> bool {
        false
    }
}

impl Peer for May {
    fn yields(&self, tasks: usize, n: usize) -> Outcome<Duration> {
        Ok(self.inside(tasks, move || {
            let yields = move || {
                for _ in 0..n {
                    coroutine::yield_now();
                }
            };
            let start = Instant::now();
            let handles: Vec<_> = iter::repeat_with(|| go!(yields)).take(tasks).collect();
            join_all(handles);
            start.elapsed()
        }))
    }

    fn spawn(&self, batch: usize, batches: usize) -> Outcome<Duration> {
        Ok(self.inside(batch, move || {
            let mut handles = Vec::with_capacity(batch);
            let start = Instant::now();
            for _ in 0..batches {
                handles.extend(iter::repeat_with(|| go!(|| ())).take(batch));
                join_all(handles.drain(..));
            }
            start.elapsed()
        }))
    }

    fn skynet(&self, leaves: u64) -> Outcome<(Duration, u64)> {
        Ok(self.inside((leaves + leaves / 9) as usize + 1, move || {
            let start = Instant::now();
            let sum = node(0, leaves).join().expect("the root");
            (start.elapsed(), sum)
        }))
    }

    fn pingpong(&self, place: Place, n: usize) -> Outcome<Duration> {
        if place == Place::Across || (place == Place::Same && self.workers > 1) {
            return Err(UNBOUND.into());
        }
        Ok(self.inside(1, move || {
            let (to_pong, from_ping) = mpsc::channel();
            let (to_ping, from_pong) = mpsc::channel();
            let pong = go!(move || {
                for token in from_ping.iter() {
                    to_ping.send(token).expect("ping");
                }
            });
            let start = Instant::now();
            for _ in 0..n {
                to_pong.send(()).expect("pong");
                from_pong.recv().expect("pong");
            }
            let time = start.elapsed();
            drop(to_pong);
            pong.join().expect("pong");
            time
        }))
    }

    fn expire(&self, n: usize) -> Outcome<Expired> {
        self.inside(n, move || {
            let alarm = Arc::new(Alarm::new(n));
            let sleeper = |index| {
                let alarm = alarm.clone();
                go!(move || {
                    micro::arrive();
                    coroutine::sleep(alarm.remaining(index));
                })
            };
            let handles: Vec<_> = (0..n).map(sleeper).collect();
            coroutine::sleep(alarm.eve() - Instant::now());
            alarm.begin()?;
            join_all(handles);
            Ok(alarm.end())
        })
    }

    fn parked(&self, n: usize, hold: Duration) -> Outcome<Parked> {
        // A pool would be there before the tasks, and their memory go uncounted.
        Ok(self.inside(0, move || {
            let mut handles = Vec::with_capacity(n);
            let mut gauge = Gauge::new();
            for _ in 0..n {
                handles.push(go!(|| {
                    micro::arrive();
                    coroutine::park();
                }));
            }
            while micro::arrived() < n {
                // Not a yield: a worker with a coroutine at hand does not look for newly spawned ones.
                coroutine::sleep(Duration::from_millis(1));
            }
            coroutine::sleep(Gauge::SETTLE);
            gauge.begin();
            coroutine::sleep(hold);
            let parked = gauge.read();
            for handle in &handles {
                handle.coroutine().unpark();
            }
            join_all(handles);
            parked
        }))
    }

    fn sync(&self, bench: Bench) -> Vec<Case<'_>> {
        may::config().set_pool_capacity(CROWDS[1] + 1);
        let coroutines = Coroutines {
            workers: self.workers,
        };
        List::new(bench, coroutines)
            .mutex::<of_may::Mutex>()
            .lock::<of_may::Read>()
            .lock::<of_may::Write>()
            .lock::<MaySemaphore>()
            .channel::<MaySpsc>()
            .channel::<MayMpsc>()
            .shared::<MayMpmc>()
            .cases()
    }

    /// A stack and its guard are two mappings, and the kernel limits those. A coroutine has its stack from its spawning on.
    fn room(&self) -> (usize, &'static str) {
        let others = 1_000;
        (
            (micro::system_limit("vm/max_map_count") / 2).saturating_sub(others),
            "vm.max_map_count",
        )
    }
}

fn main() {
    let args = Args::parse("may");
    args.run(&May::new(args.workers));
}
