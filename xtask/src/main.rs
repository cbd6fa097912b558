//! `cargo xtask`: what is done with this workspace besides building it.
//!
//! People and `.ci/run` call it, by the alias in `.cargo/config.toml`. This file understands the command line and hands
//! over to `test`, `soak`, `glibc`, `red`, `bench` or `dist`, which run everything through `run` and get what they need from `tools`.
//! It ends with 0 if all is well, 1 if something failed and 2 if it was not understood.

mod ahead;
mod bench;
mod c;
mod dist;
mod glibc;
mod red;
mod run;
mod soak;
mod test;
mod tools;

use run::Outcome;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask test [--without NAME,NAME...]   every check there is; --without leaves steps out
cargo xtask soak [TIMES [NAME...]]          every test, or those in these files, TIMES times (20) on a busy machine
cargo xtask glibc [RELEASE]                 every test with the C library of another Debian (trixie); takes root
cargo xtask red [NAME...]                   each break in tests/red must make its test fail
cargo xtask bench [--quick] [NAME...]       the benchmarks (10 minutes; --quick: 90 seconds), or those whose name contains one of
                                            these (c: those in C); the report is in target/bench; --list: the command lines
cargo xtask bench --publish                 the same, and docs/benchmarks and the README get the results
cargo xtask bench --report FILE             the report again, from a file of results (and --publish)
cargo xtask dist [TARGET]                   the library for C and C++, packed: target/dist and a tarball beside it";

/// What the command line asks for.
#[derive(Debug, PartialEq)]
enum Job {
    Test { without: Vec<String> },
    Soak { times: u32, names: Vec<String> },
    Glibc { release: String },
    Red { names: Vec<String> },
    Bench(bench::Options),
    Dist { target: Option<String> },
    Help,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match understand(&arguments) {
        Ok(job) => finish(carry_out(job)),
        Err(problem) => {
            eprintln!("error: {problem}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn understand(arguments: &[String]) -> Outcome<Job> {
    let Some((job, rest)) = arguments.split_first() else {
        return Err("what is to be done?".to_owned());
    };
    match job.as_str() {
        "test" => Ok(Job::Test {
            without: test::left_out(rest)?,
        }),
        "soak" => {
            let (times, names) = soak::asked(rest)?;
            Ok(Job::Soak { times, names })
        }
        "glibc" => Ok(Job::Glibc {
            release: glibc::asked(rest)?,
        }),
        "red" => Ok(Job::Red { names: rest.to_vec() }),
        "bench" => Ok(Job::Bench(bench::Options::of(rest)?)),
        "dist" => match rest {
            [] => Ok(Job::Dist { target: None }),
            [target] => Ok(Job::Dist {
                target: Some(target.clone()),
            }),
            _ => Err("dist is for one machine".to_owned()),
        },
        "help" | "--help" | "-h" => Ok(Job::Help),
        other => Err(format!(
            "'{other}' is none of test, soak, glibc, red, bench and dist"
        )),
    }
}

/// Every job runs in the workspace's folder, wherever it was started.
fn carry_out(job: Job) -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace");
    std::env::set_current_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
    match job {
        Job::Test { without } => test::run(&without),
        Job::Soak { times, names } => soak::run(times, &names),
        Job::Glibc { release } => glibc::run(&release),
        Job::Red { names } => red::run(&names),
        Job::Bench(options) => bench::run(&options),
        Job::Dist { target } => dist::run(target.as_deref()),
        Job::Help => {
            println!("{USAGE}");
            Ok(())
        }
    }
}

fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(line: &str) -> Outcome<Job> {
        understand(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn understands_each_job() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(understood("test"), Ok(Job::Test { without: names(&[]) }));
        assert_eq!(
            understood("test --without asan,msrv"),
            Ok(Job::Test {
                without: names(&["asan", "msrv"])
            })
        );
        let soak = |times, files: &[&str]| Job::Soak {
            times,
            names: names(files),
        };
        assert_eq!(understood("soak"), Ok(soak(20, &[])));
        assert_eq!(understood("soak 3 io"), Ok(soak(3, &["io"])));
        assert_eq!(
            understood("glibc sid"),
            Ok(Job::Glibc {
                release: "sid".to_owned()
            })
        );
        assert_eq!(
            understood("red one two"),
            Ok(Job::Red {
                names: names(&["one", "two"])
            })
        );
        let options = bench::Options::of(&names(&["switch"])).unwrap();
        assert_eq!(understood("bench switch"), Ok(Job::Bench(options)));
        assert_eq!(understood("dist"), Ok(Job::Dist { target: None }));
        assert_eq!(
            understood("dist aarch64-unknown-linux-gnu"),
            Ok(Job::Dist {
                target: Some("aarch64-unknown-linux-gnu".to_owned())
            })
        );
        assert_eq!(understood("--help"), Ok(Job::Help));
    }

    #[test]
    fn names_what_it_does_not_understand() {
        assert!(understood("").is_err());
        assert!(understood("dist one two").is_err());
        assert!(understood("tset").unwrap_err().contains("'tset'"));
    }
}
