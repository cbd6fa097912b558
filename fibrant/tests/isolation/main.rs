//! Isolated fibers: what a program calls its thread is the fiber, whatever language asks. `locals` has thread-locals and their
//! destructors, `libraries` those of C libraries that are linked or loaded, `keys` pthread's keys, `identity` what asks who the
//! thread is, `groups` fibers that share a block, `processes` forks and changes of the user, `memory` what it costs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/worker.rs"]
mod worker;

mod groups;
mod identity;
mod keys;
mod libraries;
mod locals;
mod memory;
mod processes;
mod support;
