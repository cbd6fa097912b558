//! `cargo xtask bench`: the benchmarks, with their Boost peer if it can be had.
//!
//! `main` calls it; it runs the crate `bench`.

use crate::run::{self, Outcome};
use crate::tools::{self, Supply, Tool};

/// The header that the crate's build script looks for.
const BOOST: Tool = Tool::Package {
    name: "libboost-context-dev",
    shown_by: "/usr/include/boost/context/fiber.hpp",
};

/// Runs all benchmarks, or those that match the filter.
pub fn run(filter: &[String]) -> Outcome {
    if let Supply::Lacks(needs) = tools::install(&[BOOST]) {
        println!("The rows of Boost will be missing: the peer {needs}");
    }
    let mut command = run::line("cargo bench -p bench --bench fiber --");
    command.args(filter);
    run::openly(command)
}
