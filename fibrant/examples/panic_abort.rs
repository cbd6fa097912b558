//! fibrant in a program that is built with `panic = "abort"`: a suspended fiber cannot be unwound there, so dropping it
//! abandons it. `cargo run --profile panic-abort --example panic_abort` checks that; in other builds it is unwound.

use fibrant::fiber::{self, Fiber, State};
use fibrant::stats;
use std::sync::atomic::{AtomicBool, Ordering};

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
}
