//! Locks, unchanged, among fibers and threads: nobody deadlocks, nobody starves, and each lock keeps its promise. `standard` has those
//! of std, `channels` what it has for messages and for waiting, `parking_lot` and `crossbeam` what these crates have; `panics` has
//! fibers that wait while they panic, `scoped` crates that keep something in thread-locals while they wait; and `light` shows what
//! light fibers can use, and what they cannot.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patience.rs"]
mod patience;

mod channels;
mod crossbeam;
mod fairness;
mod harness;
mod light;
mod panics;
mod parking_lot;
mod scoped;
mod standard;
