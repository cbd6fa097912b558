//! What thread-locals of its own cost a fiber: isolated against light, in one process, turn about.
//!
//! `main` calls it. Memory is what the process has more of with many parked fibers, fresh and after each has done some requests; it takes
//! a process of its own for each figure.

use std::env;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bench::micro::{self, Args};
use fibrant::runtime::Runtime;

use super::STACK;

/// How often each measurement is made; the median counts.
const ROUNDS: usize = 3;

/// The environment variable that asks for one figure of memory, and its values.
const FIGURE: &str = "BENCH_ISOLATION";
const FRESH: &str = "fresh";
const REQUESTS: &str = "requests";

/// How many fibers memory is measured with, unless the command line says so.
const PARKED: usize = 20_000;

/// How many of them make requests: each needs two descriptors.
const REQUESTERS: usize = 1_000;

/// And how many each.
const REQUESTS_EACH: usize = 20;

/// A runtime with one worker, of the calling thread's.
fn runtime(light: bool) -> Runtime {
    super::runtime(1, light)
        .stack_size(STACK)
        .build()
        .expect("a runtime")
}

/// Nanoseconds a switch takes between two fibers that yield.
fn switch(light: bool) -> f64 {
    const YIELDS: u32 = 200_000;
    runtime(light).run(|| {
        let yields = || (0..YIELDS).for_each(|_| fibrant::yield_now());
        let start = Instant::now();
        let fibers = [fibrant::spawn(yields), fibrant::spawn(yields)];
        fibers
            .into_iter()
            .for_each(|fiber| fiber.join().expect("a fiber"));
        nanoseconds(start.elapsed(), 2 * YIELDS)
    })
}

/// Nanoseconds from a spawn to its join, one by one, with warm pools.
fn spawn(light: bool) -> f64 {
    const SPAWNS: u32 = 100_000;
    runtime(light).run(|| {
        let spawns =
            |count| (0..count).for_each(|_| fibrant::spawn(|| black_box(())).join().expect("a fiber"));
        spawns(1000);
        let start = Instant::now();
        spawns(SPAWNS);
        nanoseconds(start.elapsed(), SPAWNS)
    })
}

/// Nanoseconds a fiber takes if a thousand are spawned before they are joined.
fn spawn_batch(light: bool) -> f64 {
    const BATCH: u32 = 1000;
    const BATCHES: u32 = 100;
    runtime(light).run(|| {
        let mut fibers = Vec::with_capacity(BATCH as usize);
        let mut batch = || {
            fibers.extend((0..BATCH).map(|_| fibrant::spawn(|| black_box(()))));
            fibers.drain(..).for_each(|fiber| fiber.join().expect("a fiber"));
        };
        batch();
        let start = Instant::now();
        (0..BATCHES).for_each(|_| batch());
        nanoseconds(start.elapsed(), BATCH * BATCHES)
    })
}

fn nanoseconds(time: Duration, count: u32) -> f64 {
    time.as_nanos() as f64 / f64::from(count)
}

/// The median of `ROUNDS` measurements of either kind, isolated first, made turn about.
fn medians(measure: fn(bool) -> f64) -> [f64; 2] {
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (index, light) in [false, true].into_iter().enumerate() {
            figures[index].push(measure(light));
        }
    }
    figures.map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures[ROUNDS / 2]
    })
}

/// Bytes for each of many fibers that have just been started and parked.
fn fresh(light: bool, count: usize) -> f64 {
    runtime(light).run(|| {
        let before = micro::resident();
        let fibers: Vec<_> = (0..count).map(|_| fibrant::spawn(fibrant::fiber::park)).collect();
        // All have run once they have been passed by.
        fibrant::yield_now();
        let each = (micro::resident() - before) as f64 / count as f64;
        for fiber in fibers {
            fiber.fiber().unpark();
            fiber.join().expect("a fiber");
        }
        each
    })
}

/// Bytes for each of fibers that have answered requests, with an allocation, a formatted line and a thread's handle for each.
fn after_requests(light: bool) -> f64 {
    runtime(light).run(|| {
        let before = micro::resident();
        let answered = Arc::new(AtomicUsize::new(0));
        let (fibers, mut clients): (Vec<_>, Vec<_>) = (0..REQUESTERS)
            .map(|_| {
                let (mut ours, theirs) = UnixStream::pair().expect("two sockets");
                let answered = Arc::clone(&answered);
                let fiber = fibrant::spawn(move || {
                    let mut request = vec![0; 64];
                    while ours.read_exact(&mut request).is_ok() {
                        let line = format!("{:?} {:<50}", std::thread::current().id(), request.len());
                        ours.write_all(&line.as_bytes()[..50]).expect("room");
                        answered.fetch_add(1, SeqCst);
                    }
                });
                (fiber, theirs)
            })
            .unzip();
        for _ in 0..REQUESTS_EACH {
            for client in &mut clients {
                client.write_all(&[1; 64]).expect("room");
                client.read_exact(&mut [0; 50]).expect("an answer");
            }
        }
        let each = (micro::resident() - before) as f64 / REQUESTERS as f64;
        drop(clients);
        fibers
            .into_iter()
            .for_each(|fiber| fiber.join().expect("a fiber"));
        assert_eq!(answered.load(SeqCst), REQUESTS_EACH * REQUESTERS);
        each
    })
}

/// One figure of memory, in a process of its own: what an earlier one has touched is not counted again.
fn in_a_process(args: &Args, figure: &str, light: bool) -> io::Result<f64> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["isolation", "1", &args.n(PARKED).to_string()])
        .env(FIGURE, figure);
    if light {
        command.env("BENCH_LIGHT", "1");
    } else {
        command.env_remove("BENCH_LIGHT");
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let problem = |_| io::Error::other(format!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    text.trim().parse().map_err(problem)
}

/// Measures all and prints it.
pub fn run(args: &Args, light: bool) -> io::Result<()> {
    if let Ok(figure) = env::var(FIGURE) {
        let bytes = if figure == FRESH {
            fresh(light, args.n(PARKED))
        } else {
            after_requests(light)
        };
        println!("{bytes}");
        return Ok(());
    }
    let print = |name: &str, figures: [f64; 2], unit: &str| {
        for (kind, figure) in ["isolated", "light"].into_iter().zip(figures) {
            args.line("isolation", format!("{name}, {kind}"), Ok(figure), unit);
        }
    };
    print("switch", medians(switch), "ns");
    print("spawn and join, one by one", medians(spawn), "ns");
    print("spawn and join, 1000 at once", medians(spawn_batch), "ns");
    for (name, figure) in [("memory, parked", FRESH), ("memory, after 20 requests", REQUESTS)] {
        let isolated = in_a_process(args, figure, false)?;
        let light = in_a_process(args, figure, true)?;
        print(name, [isolated, light], "B");
    }
    Ok(())
}
