//! Proof of the hooks: client libraries that know nothing of fibers run in them, unchanged, against real servers.
//!
//! Here is what the tests share: [`Server`] starts a server of the machine's on the loopback and ends it, [`command`] has the
//! command lines of some, [`crowd`] lets two hundred fibers of one worker use a client. The tests themselves, one module for each
//! server, are in `tests/clients`. They need the Debian packages that `cargo xtask test` installs.

pub mod command;
mod crowd;
mod server;

pub use crowd::{Client, FIBERS, TIMEOUT, WAIT, crowd, impatient, runtime};
pub use server::{PATIENCE, Server};
