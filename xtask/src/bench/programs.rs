//! The programs that are run: where they are, how they are built, and which cannot be had here.
//!
//! `run` has them built; `plan` asks for command lines. It runs cargo, compilers and go through `run`, and gets Boost, strace and wrk from
//! `tools`. The programs in `bench/c` are linked with the archive that `dist` packs, as those of users are.

use crate::dist;
use crate::run::{self, Outcome};
use crate::tools::{self, Tool};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Where cargo puts programs; the one in Go goes there, too.
const FOLDER: &str = "target/release";

/// Where the programs in C come from, and go to.
const SOURCES_IN_C: &str = "bench/c";
const FOLDER_IN_C: &str = "target/bench-c";

/// Where the program in Go comes from.
const SOURCES_IN_GO: &str = "bench/go";

/// The programs in C, but for `switch`, which is in C++ for Boost's sake.
const IN_C: [&str; 7] = [
    "create",
    "shared",
    "many",
    "echo_epoll",
    "echo_libco",
    "echo_fibers",
    "echo_load",
];

/// Programs that are built by cargo.
const BY_CARGO: [&str; 10] = [
    "fibrant",
    "may",
    "tokio_mt",
    "tokio_ct",
    "monoio",
    "std_thread",
    "corosensei",
    "boost",
    "epoll",
    "load",
];

/// What comes from elsewhere: the peer or tool that is missing without it, and the package.
const PACKAGES: [(&str, Tool); 3] = [
    (
        "boost",
        Tool::Package {
            name: "libboost-context-dev",
            shown_by: "/usr/include/boost/context/fiber.hpp",
        },
    ),
    (
        "strace",
        Tool::Package {
            name: "strace",
            shown_by: "strace",
        },
    ),
    (
        "wrk",
        Tool::Package {
            name: "wrk",
            shown_by: "wrk",
        },
    ),
];

/// What there is to run: all that is not known to be missing.
pub struct Supply {
    missing: BTreeMap<String, String>,
}

impl Supply {
    pub fn everything() -> Supply {
        Supply {
            missing: BTreeMap::new(),
        }
    }

    /// Whether a peer or tool can be had. Some labels are other ways to run the same program.
    pub fn has(&self, label: &str) -> bool {
        !self.missing.contains_key(program(label))
    }

    pub fn lack(&mut self, program: &str, reason: &str) {
        self.missing
            .entry(program.to_owned())
            .or_insert_with(|| reason.to_owned());
    }

    /// What is missing, in a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let note = |(program, reason): (&String, &String)| format!("Without {program}: {reason}.");
        self.missing.iter().map(note).collect()
    }
}

/// The program that stands behind a label.
fn program(label: &str) -> &str {
    match label {
        "light" => "fibrant",
        "eventfd" | "eventfd_epoll" | "least" => "std_thread",
        other => other,
    }
}

/// The words that run the program of a label.
pub fn words(label: &str) -> Vec<String> {
    let path = format!("{FOLDER}/{}", program(label));
    if label == "light" {
        vec!["env".to_owned(), "BENCH_LIGHT=1".to_owned(), path]
    } else {
        vec![path]
    }
}

/// The words of a command line of programs in C.
pub fn words_in_c(line: &str) -> Vec<String> {
    let is_one = |word: &str| {
        // One may have an argument behind a colon.
        let program = word.split(':').next().unwrap_or_default();
        program == "switch" || IN_C.contains(&program)
    };
    line.split_whitespace()
        .map(|word| match is_one(word) {
            true => format!("{FOLDER_IN_C}/{word}"),
            false => word.to_owned(),
        })
        .collect()
}

/// Which programs are needed.
pub struct Needs {
    /// Those in C.
    pub in_c: bool,
    /// All others.
    pub others: bool,
}

/// Builds what is needed, and says what cannot be had.
pub fn build(needs: &Needs) -> Outcome<Supply> {
    let mut supply = Supply::everything();
    for (label, package) in PACKAGES {
        if let tools::Supply::Lacks(problem) = tools::install(&[package]) {
            supply.lack(label, &format!("it {problem}"));
        }
    }
    if needs.others {
        run::openly(run::line("cargo build --release -p bench --bins"))?;
        for program in BY_CARGO {
            if !Path::new(FOLDER).join(program).exists() {
                supply.lack(program, "the crate bench has no such program");
            }
        }
        if let Err(problem) = build_go() {
            supply.lack("go", &problem);
        }
    }
    if needs.in_c {
        build_in_c(supply.has("boost"))?;
    }
    Ok(supply)
}

fn build_go() -> Outcome {
    if !Path::new(SOURCES_IN_GO).exists() {
        return Err(format!("there is no {SOURCES_IN_GO}"));
    }
    if !tools::is_program("go") {
        return Err("there is no command of this name; Debian has it in the package golang-go".to_owned());
    }
    let mut command = run::line(&format!("go build -o ../../{FOLDER}/go ."));
    command.current_dir(SOURCES_IN_GO);
    run::openly(command)
}

fn build_in_c(with_boost: bool) -> Outcome {
    dist::run(None)?;
    std::fs::create_dir_all(FOLDER_IN_C).map_err(|error| format!("{FOLDER_IN_C}: {error}"))?;
    for program in IN_C {
        run::openly(compile(&[("CC", "cc"), ("-std=gnu11", ".c")], program, ""))?;
    }
    let boost = if with_boost {
        "-lboost_context"
    } else {
        "-DBOOST=0"
    };
    run::openly(compile(
        &[("CXX", "c++"), ("-std=c++17", ".cpp")],
        "switch",
        boost,
    ))
}

/// The command that compiles and links a program: the variable that names the compiler, or the usual one; the standard, and what the names of
/// sources end with.
fn compile(
    [(variable, usual), (standard, ending)]: &[(&str, &str); 2],
    program: &str,
    more: &str,
) -> Command {
    let compiler = std::env::var(variable).unwrap_or_else(|_| (*usual).to_owned());
    let (folder, libraries) = (dist::FOLDER, dist::SYSTEM_LIBRARIES);
    run::line(&format!(
        "{compiler} {standard} -O2 -Wall -Wextra -I {folder}/include -o {FOLDER_IN_C}/{program} {SOURCES_IN_C}/{program}{ending} \
         {folder}/lib/libfibrant.a {more} {libraries}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stands_for_a_program() {
        assert_eq!(words("light"), ["env", "BENCH_LIGHT=1", "target/release/fibrant"]);
        assert_eq!(words("tokio_mt"), ["target/release/tokio_mt"]);
        assert_eq!(
            words_in_c("echo_load 100 echo_libco:poll").join(" "),
            "target/bench-c/echo_load 100 target/bench-c/echo_libco:poll"
        );
    }

    #[test]
    fn what_is_missing_is_told_with_the_reason() {
        let mut supply = Supply::everything();
        assert!(supply.has("light"));
        supply.lack("fibrant", "it does not build");
        assert!(!supply.has("light"));
        assert_eq!(supply.notes(), ["Without fibrant: it does not build."]);
    }
}
