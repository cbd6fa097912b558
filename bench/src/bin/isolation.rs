//! What thread-locals of its own cost a fiber: isolated against light, in one process, turn about.
//!
//! `cargo xtask bench isolation` runs it. Figures are the medians of several rounds; memory is what the process has more of with many
//! parked fibers, fresh and after each has done 100 requests.

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fibrant::runtime::{Builder, Runtime};

/// How often each measurement is made; the median counts.
const ROUNDS: usize = 9;

/// How many fibers memory is measured with.
const PARKED: usize = 100_000;

/// How many of them make requests: each needs two descriptors.
const REQUESTERS: usize = 2_000;

/// A runtime with one worker, of the calling thread's.
fn runtime(light: bool) -> Runtime {
    let builder = Builder::new().workers(1).use_caller(true).stack_size(64 << 10);
    let builder = if light {
        // SAFETY: what runs here keeps nothing in thread-locals across a wait.
        unsafe { builder.light() }
    } else {
        builder
    };
    builder.build().expect("a runtime")
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

/// Bytes of memory that this process has.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let kilobytes = |name: &str| {
        let line = status
            .lines()
            .find(|line| line.starts_with(name))
            .expect("a line");
        let number = line.split_whitespace().nth(1).expect("a number");
        number.parse::<usize>().expect("a number")
    };
    // Page tables are memory, too.
    (kilobytes("VmRSS:") + kilobytes("VmPTE:")) << 10
}

/// Bytes for each of many fibers that have just been started and parked.
fn fresh(light: bool) -> f64 {
    runtime(light).run(|| {
        let before = memory();
        let fibers: Vec<_> = (0..PARKED)
            .map(|_| fibrant::spawn(fibrant::fiber::park))
            .collect();
        // All have run once they have been passed by.
        fibrant::yield_now();
        let each = (memory() - before) as f64 / PARKED as f64;
        for fiber in fibers {
            fiber.fiber().unpark();
            fiber.join().expect("a fiber");
        }
        each
    })
}

/// Bytes for each of fibers that have answered 100 requests, with an allocation, a formatted line and a thread's handle for each.
fn after_requests(light: bool) -> f64 {
    runtime(light).run(|| {
        let before = memory();
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
        for _ in 0..100 {
            for client in &mut clients {
                client.write_all(&[1; 64]).expect("room");
                client.read_exact(&mut [0; 50]).expect("an answer");
            }
        }
        let each = (memory() - before) as f64 / REQUESTERS as f64;
        drop(clients);
        fibers
            .into_iter()
            .for_each(|fiber| fiber.join().expect("a fiber"));
        assert_eq!(answered.load(SeqCst), 100 * REQUESTERS);
        each
    })
}

/// One figure of memory, in a process of its own: what an earlier one has touched is not counted again.
fn in_a_process(figure: &str, light: bool) -> f64 {
    let program = std::env::current_exe().expect("a path");
    let output = std::process::Command::new(program)
        .args([figure, if light { "light" } else { "isolated" }])
        .output()
        .expect("a process");
    let text = String::from_utf8(output.stdout).expect("text");
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [figure, kind] = &arguments[..] {
        let measure = if figure == "fresh" { fresh } else { after_requests };
        return println!("{}", measure(kind == "light"));
    }
    let row = |name: &str, [isolated, light]: [f64; 2], unit: &str| {
        println!(
            "| {name} | {isolated:.1} {unit} | {light:.1} {unit} | {:+.1} {unit} |",
            isolated - light
        );
    };
    println!("| | isolated | light | difference |\n|---|---|---|---|");
    row("switch", medians(switch), "ns");
    row("spawn and join, one by one", medians(spawn), "ns");
    row("spawn and join, 1,000 at once", medians(spawn_batch), "ns");
    for (name, figure) in [
        ("memory, parked", "fresh"),
        ("memory, after 100 requests", "requests"),
    ] {
        row(
            name,
            [false, true].map(|light| in_a_process(figure, light)),
            "bytes",
        );
    }
}
