//! One million guarded stacks at once: how much memory each takes, and how few mappings all of them need.

mod common;
#[path = "common/patience.rs"]
mod patience;

use common::{case, child};
use fibrant::fiber::{self, Fiber};
use patience::within;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const COUNT: usize = 1_000_000;

static ALONE: Mutex<()> = Mutex::new(());

/// A figure of /proc/self/status, in bytes.
fn status(name: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Suspends a million fibers, each on its own stack, and measures.
fn measure(size: usize) {
    let mut fibers = Vec::with_capacity(COUNT);
    let before = status("VmRSS") + status("VmPTE");
    for _ in 0..COUNT {
        let fiber = Fiber::with_stack_size(size, fiber::suspend);
        fiber.resume().unwrap();
        fibers.push(fiber);
    }
    let each = (status("VmRSS") + status("VmPTE") - before) as f64 / COUNT as f64;
    let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    println!("RESULT {each} {mappings}");
    // All of them still work.
    for fiber in fibers.iter().step_by(1000) {
        fiber.resume().unwrap();
    }
    // Dropping the others would take longer than everything else.
    std::process::exit(0);
}

/// The bytes of memory that a program could have.
fn available() -> usize {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let line = meminfo
        .lines()
        .find(|line| line.starts_with("MemAvailable"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn check(test: &str, size: usize, most_bytes: f64) {
    if case().is_some() {
        measure(size);
    }
    // One after the other: each takes more than 4 GiB.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Programs that have just ended may still be giving theirs back.
    within(
        Duration::from_secs(300),
        "6 GiB of free memory, which this test needs",
        || available() > 6 << 30,
    );

    let child = child(test, "measure", &[]).succeeded();
    let stdout = child.stdout();
    let result = stdout
        .lines()
        .find_map(|line| line.split_once("RESULT "))
        .expect("a result")
        .1;
    let (each, mappings) = result.split_once(' ').unwrap();
    let (each, mappings): (f64, usize) = (each.parse().unwrap(), mappings.parse().unwrap());
    println!(
        "{COUNT} stacks of {} KiB: {each:.0} bytes each, {mappings} mappings",
        size >> 10
    );
    assert!(each < most_bytes, "{each} bytes per stack");
    assert!(mappings < 100, "{mappings} mappings");
}

#[test]
fn of_64_kib() {
    check("of_64_kib", 64 << 10, 4.4 * 1024.0);
}

#[test]
fn of_the_default_size() {
    check("of_the_default_size", fiber::DEFAULT_STACK_SIZE, 4.8 * 1024.0);
}
