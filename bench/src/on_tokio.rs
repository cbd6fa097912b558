//! The micro-benchmarks and the servers on tokio, with either of its runtimes.

use std::array;
use std::future::Future;
use std::io;
use std::iter;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tokio::task::{self, JoinHandle};
use tokio::time;

use crate::cases::{Bench, Case};
use crate::micro::{self, Alarm, Expired, Gauge, Outcome, Parked, Peer, Place};

mod cases;
mod server;

pub use server::serve;

/// What the parked tasks wait for.
static RELEASE: Notify = Notify::const_new();

/// A tokio runtime, and how to build another.
pub struct Tokio {
    runtime: Runtime,
    build: fn(usize) -> io::Result<Runtime>,
}

impl Tokio {
    /// Builds a runtime with `workers` workers.
    pub fn new(workers: usize, build: fn(usize) -> io::Result<Runtime>) -> io::Result<Tokio> {
        Ok(Tokio {
            runtime: build(workers)?,
            build,
        })
    }

    /// The result of `body`, run as a task: a worker's, where there are workers.
    fn inside<T: Send + 'static>(&self, body: impl Future<Output = T> + Send + 'static) -> T {
        spawned(&self.runtime, body)
    }

    fn one_worker(&self) -> Outcome<Runtime> {
        (self.build)(1).map_err(|error| error.to_string())
    }
}

fn spawned<T: Send + 'static>(runtime: &Runtime, body: impl Future<Output = T> + Send + 'static) -> T {
    runtime.block_on(runtime.spawn(body)).expect("a benchmark's task")
}

async fn join_all(handles: impl IntoIterator<Item = JoinHandle<()>>) {
    for handle in handles {
        handle.await.expect("a task");
    }
}

/// A node that sums `size` leaves from number `first` on.
fn node(first: u64, size: u64) -> JoinHandle<u64> {
    task::spawn(async move {
        if size == 1 {
            return first;
        }
        let part = size / 10;
        let children: [_; 10] = array::from_fn(|index| node(first + index as u64 * part, part));
        let mut sum = 0;
        for child in children {
            sum += child.await.expect("a node");
        }
        sum
    })
}

async fn pingpong(n: usize) -> Duration {
    let (to_pong, mut from_ping) = mpsc::channel::<()>(1);
    let (to_ping, mut from_pong) = mpsc::channel::<()>(1);
    let pong = task::spawn(async move {
        while let Some(token) = from_ping.recv().await {
            to_ping.send(token).await.expect("ping");
        }
    });
    let start = Instant::now();
    for _ in 0..n {
        to_pong.send(()).await.expect("pong");
        from_pong.recv().await.expect("pong");
    }
    let time = start.elapsed();
    drop(to_pong);
    pong.await.expect("pong");
    time
}

impl Peer for Tokio {
    fn yields(&self, tasks: usize, n: usize) -> Outcome<Duration> {
        Ok(self.inside(async move {
            let yields = move || async move {
                for _ in 0..n {
                    task::yield_now().await;
                }
            };
            let start = Instant::now();
            let handles: Vec<_> = iter::repeat_with(|| task::spawn(yields())).take(tasks).collect();
            join_all(handles).await;
            start.elapsed()
        }))
    }

    fn spawn(&self, batch: usize, batches: usize) -> Outcome<Duration> {
        Ok(self.inside(async move {
            let mut handles = Vec::with_capacity(batch);
            let start = Instant::now();
            for _ in 0..batches {
                handles.extend(iter::repeat_with(|| task::spawn(async {})).take(batch));
                join_all(handles.drain(..)).await;
            }
            start.elapsed()
        }))
    }

    fn skynet(&self, leaves: u64) -> Outcome<(Duration, u64)> {
        Ok(self.inside(async move {
            let start = Instant::now();
            let sum = node(0, leaves).await.expect("the root");
            (start.elapsed(), sum)
        }))
    }

    /// A task cannot be bound to a worker. But the future that `block_on` runs never leaves its thread, so that one and a task
    /// on the only worker are two threads for good.
    fn pingpong(&self, place: Place, n: usize) -> Outcome<Duration> {
        Ok(match place {
            Place::Same => spawned(&self.one_worker()?, pingpong(n)),
            Place::Free => self.inside(pingpong(n)),
            Place::Across => self.one_worker()?.block_on(pingpong(n)),
        })
    }

    fn timers(&self, n: usize) -> Outcome<(Duration, Duration)> {
        Ok(self.inside(async move {
            let mut context = Context::from_waker(Waker::noop());
            let mut timers = Vec::with_capacity(n);
            let start = Instant::now();
            for index in 0..n {
                // The first poll is what registers it.
                let mut timer = Box::pin(time::sleep(micro::timer(index)));
                assert!(timer.as_mut().poll(&mut context).is_pending());
                timers.push(timer);
            }
            let insert = start.elapsed();
            let start = Instant::now();
            drop(timers);
            (insert, start.elapsed())
        }))
    }

    fn expire(&self, alarm: Alarm) -> Outcome<Expired> {
        self.inside(async move {
            let sleeper = |index| {
                let deadline = alarm.deadline(index).into();
                task::spawn(async move {
                    micro::arrive();
                    time::sleep_until(deadline).await;
                })
            };
            let handles: Vec<_> = (0..alarm.tasks()).map(sleeper).collect();
            time::sleep_until(alarm.eve().into()).await;
            let begun = alarm.begin();
            join_all(handles).await;
            begun.map(|()| alarm.end())
        })
    }

    fn parked(&self, n: usize, hold: Duration) -> Outcome<Parked> {
        Ok(self.inside(async move {
            let mut handles = Vec::with_capacity(n);
            let mut gauge = Gauge::new();
            for _ in 0..n {
                handles.push(task::spawn(async {
                    // Made before the task is counted, so that the release cannot be missed.
                    let release = RELEASE.notified();
                    micro::arrive();
                    release.await;
                }));
            }
            while micro::arrived() < n {
                task::yield_now().await;
            }
            gauge.arrived();
            time::sleep(Gauge::SETTLE).await;
            gauge.settled();
            time::sleep(hold).await;
            gauge.waking();
            RELEASE.notify_waiters();
            join_all(handles).await;
            gauge.ended()
        }))
    }

    fn cases(&self, bench: Bench) -> Vec<Case<'_>> {
        cases::cases(self, bench)
    }
}
