//! Atomics and the lock of those files that models check: here std's. `tests/models.rs` compiles the same files with loom's in
//! their place.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic;
