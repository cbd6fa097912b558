//! What tests of waiting need: a watchdog, patience with a limit, and runtimes of several sizes.

#![allow(dead_code)] // each test binary uses its part

use fibrant::runtime::Builder;
use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// After how long a test is hung.
const HUNG: Duration = Duration::from_secs(60);

/// A delay that does not end while a test runs.
pub const FAR: Duration = Duration::from_secs(3600);

/// Runs a test's body. If that hangs, the process ends with a message: a thread that blocks cannot be made to fail.
pub fn watched<R>(body: impl FnOnce() -> R) -> R {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let (sender, receiver) = mpsc::channel::<()>();
    let dog = thread::spawn(move || {
        if receiver.recv_timeout(HUNG) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not eprintln: the harness would keep that for a report that never comes.
            let _ = writeln!(
                std::io::stderr(),
                "{name} hangs: it has not ended within {HUNG:?}"
            );
            std::process::abort();
        }
    });
    let result = body();
    drop(sender);
    dog.join().unwrap();
    result
}

/// Runs a test's body as a fiber on worker 0 of runtimes with 1, 2 and 4 workers, and stops each: whatever the body leaves
/// behind must end by itself.
pub fn in_runtimes(body: impl Fn(usize) + Sync) {
    watched(|| {
        for workers in [1, 2, 4] {
            let runtime = Builder::new().workers(workers).build().unwrap();
            runtime.run_on(0, || body(workers));
            runtime.stop().unwrap();
        }
    });
}

/// Runs a test's body as a fiber of a runtime with so many workers, and stops it.
pub fn in_runtime(workers: usize, body: impl FnOnce() + Send) {
    watched(|| {
        let runtime = Builder::new().workers(workers).build().unwrap();
        runtime.run_on(0, body);
        runtime.stop().unwrap();
    });
}

/// Waits until `condition` gives something: other fibers run meanwhile.
#[track_caller]
pub fn eventually_some<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "it did not happen within {PATIENCE:?}");
        fibrant::sleep(Duration::from_micros(200));
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub fn eventually(mut condition: impl FnMut() -> bool) {
    eventually_some(|| condition().then_some(()));
}

/// Tries something that a stalled machine can spoil, which `attempt` notices and then gives `None`, until it works.
#[track_caller]
pub fn undisturbed<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..50 {
        if let Some(value) = attempt() {
            return value;
        }
    }
    panic!("something went wrong 50 times: that is no disturbance");
}

/// The message of a panic.
pub fn message(payload: Box<dyn std::any::Any + Send>) -> String {
    payload
        .downcast::<String>()
        .map(|text| *text)
        .or_else(|payload| payload.downcast::<&str>().map(|text| text.to_string()))
        .expect("a panic with a message")
}

/// Small numbers that look random and are the same in every run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
