//! Locks, unchanged, among fibers and threads: nobody deadlocks, nobody starves, and each lock keeps its promise. `standard` has those
//! of std.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patience.rs"]
mod patience;

mod fairness;
mod harness;
mod standard;
