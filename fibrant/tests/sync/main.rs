//! The locks of `fibrant::sync`, among fibers of all kinds and plain threads: each keeps its promise under load (`hammer`), those who have
//! waited are served in their order (`order`), waits end by time and by cancelling without a trace (`interrupted`), fibers that never go on
//! keep nothing from others (`abandoned`), panics poison as std's do (`panics`), dumps tell who holds what (`dumps`), conditions are as
//! libco's (`conditions`); and `kinds` has what is special about some fibers, and what the types promise.

#[allow(dead_code)]
#[path = "../locks/harness.rs"]
mod harness;
#[path = "../common/patience.rs"]
mod patience;

mod abandoned;
mod conditions;
mod dumps;
mod hammer;
mod interrupted;
mod kinds;
mod order;
mod panics;
mod support;
