//! The primitives of those files that models check: here std's. `tests/models.rs` compiles the same files with loom's in their
//! place.

pub(crate) use std::hint::spin_loop as spin;
pub(crate) use std::sync::atomic;
pub(crate) use std::thread::yield_now as yield_thread;
