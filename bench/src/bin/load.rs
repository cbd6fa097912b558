//! Starts servers and makes requests of one after the other:
//!
//! `load <echo|http> [--connections N=100] [--size BYTES=64] [--rounds N=9] [--turn SECONDS=0.3] [--workers N=1] [--syscalls] [--wrk]
//! LABEL=COMMAND...`
//!
//! Commands are run by the shell; the servers are to say `READY` and their port, as src/serve.rs does. With one worker each server has
//! the first processor, and the load generator the last one. `cargo xtask bench` calls it; how it measures and what it prints is in
//! src/load/.

use std::env;
use std::process::ExitCode;

use bench::load;

fn main() -> ExitCode {
    match load::run(env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("load: {problem}\n{}", load::USAGE);
            ExitCode::from(2)
        }
    }
}
