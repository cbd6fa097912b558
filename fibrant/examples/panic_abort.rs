//! fibrant in a program that is built with `panic = "abort"`: a suspended fiber cannot be unwound there, so dropping it
//! abandons it. `cargo run --profile panic-abort --example panic_abort` checks that; in other builds it is unwound.

use fibrant::fiber::{self, Fiber, State};
use fibrant::runtime::Builder;
use fibrant::stats;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

static DROPPED: AtomicBool = AtomicBool::new(false);

struct Held;

impl Drop for Held {
    fn drop(&mut self) {
        DROPPED.store(true, Ordering::Relaxed);
    }
}

fn main() {
    let fiber = Fiber::new(|| {
        let _held = Held;
        fiber::suspend();
    });
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    drop(fiber);

    let aborts = cfg!(panic = "abort");
    let abandoned = stats::process().fibers_abandoned;
    println!(
        "panics {}: {abandoned} fiber abandoned",
        if aborts { "abort" } else { "unwind" }
    );
    assert_eq!(abandoned, u64::from(aborts));
    assert_eq!(DROPPED.load(Ordering::Relaxed), !aborts);

    // Everything else works as ever.
    let fiber = Fiber::new(fiber::suspend);
    assert_eq!(fiber.resume().unwrap(), State::Ready);
    assert_eq!(fiber.resume().unwrap(), State::Term);
    // So does the runtime. What cannot be unwound when it ends is abandoned.
    let runtime = Builder::new().workers(2).build().unwrap();
    assert_eq!(runtime.spawn(|| 6 * 7).join().unwrap(), 42);
    drop(runtime.spawn(|| fibrant::sleep(Duration::from_secs(3600))));
    while runtime.dump().fibers.iter().all(|fiber| fiber.wait.is_none()) {
        thread::sleep(Duration::from_millis(1));
    }
    let report = runtime.shutdown(Duration::ZERO);
    println!("{} fiber of the runtime abandoned", report.abandoned.len());
    assert_eq!(report.abandoned.len(), usize::from(aborts));
}
