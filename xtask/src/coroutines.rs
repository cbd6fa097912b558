//! The benchmarks in C: what libco's functions cost, next to Boost.Context and to bare epoll.
//!
//! `bench` calls it, for the word `c` or names that begin with `c_`. The programs in `bench/c` are compiled with the system's compilers
//! (`CC`, `CXX`) and linked with the archive that `dist` packs, as those of users are; each prints a line for each figure, as in `micro`.
//! All programs of a benchmark are run in turn, several times over, and a figure is the median.

use crate::dist;
use crate::micro;
use crate::run::{self, Outcome};
use std::path::Path;
use std::process::{Command, Stdio};

/// How often each program is run.
const RUNS: usize = 5;

/// Where the programs come from, and go to.
const SOURCES: &str = "bench/c";
const PROGRAMS: &str = "target/bench-c";

/// The programs, but for `switch`, which is in C++ for Boost's sake.
const IN_C: [&str; 7] = [
    "create",
    "shared",
    "many",
    "echo_epoll",
    "echo_libco",
    "echo_fibers",
    "echo_load",
];

/// A benchmark: the command lines that are run in turn, how often, and what is made of their figures.
struct Suite {
    bench: &'static str,
    runs: usize,
    commands: &'static [&'static str],
    judgements: &'static [Judgement],
}

/// A figure of ours, by program and variant, and what it is held against.
struct Judgement {
    program: &'static str,
    variant: &'static str,
    measure: Measure,
}

enum Measure {
    /// The ratio to another program's figure of the same variant is at most this, if that was laid down.
    Ratio(&'static str, Option<f64>),
    /// It is at most this.
    Most(f64),
}

const fn ratio(program: &'static str, variant: &'static str, peer: &'static str, budget: f64) -> Judgement {
    Judgement {
        program,
        variant,
        measure: Measure::Ratio(peer, Some(budget)),
    }
}

const fn beside(program: &'static str, variant: &'static str, peer: &'static str) -> Judgement {
    Judgement {
        program,
        variant,
        measure: Measure::Ratio(peer, None),
    }
}

const fn most(program: &'static str, variant: &'static str, limit: f64) -> Judgement {
    Judgement {
        program,
        variant,
        measure: Measure::Most(limit),
    }
}

const SUITES: [Suite; 5] = [
    Suite {
        bench: "c_switch",
        runs: RUNS,
        commands: &["switch"],
        judgements: &[
            ratio("coroutines", "one", "boost_jump", 1.5),
            ratio("coroutines", "of 1,000", "boost_jump", 1.5),
            beside("coroutines", "one", "boost_fiber"),
            beside("coroutines", "of 1,000", "boost_fiber"),
        ],
    },
    Suite {
        bench: "c_create",
        runs: RUNS,
        commands: &["create"],
        // Half of what libco takes; docs/from-libco.md has the figure.
        judgements: &[most("coroutines", "own stack", 125.0)],
    },
    Suite {
        bench: "c_shared",
        runs: RUNS,
        commands: &["shared"],
        judgements: &[most("coroutines", "512 bytes", 60.0)],
    },
    Suite {
        bench: "c_many",
        runs: 1,
        commands: &["many"],
        judgements: &[most("coroutines", "whole process", 4.0)],
    },
    Suite {
        bench: "c_echo",
        // It goes round itself.
        runs: 1,
        commands: &[
            "echo_load 100 25 echo_epoll echo_libco:poll echo_libco:read echo_fibers",
            "echo_load 1000 25 echo_epoll echo_libco:poll echo_libco:read echo_fibers",
        ],
        judgements: &[
            most("echo_libco poll", "100 connections, ratio to the first", 1.15),
            most("echo_libco read", "100 connections, ratio to the first", 1.15),
            beside("echo_fibers", "100 connections", "echo_epoll"),
            most("echo_libco poll", "1000 connections, ratio to the first", 1.15),
            most("echo_libco read", "1000 connections, ratio to the first", 1.15),
            beside("echo_fibers", "1000 connections", "echo_epoll"),
        ],
    },
];

/// The words with which benchmarks are asked for. All of these begin with `c_`, and the word `c`, which is in many names, means just them.
pub fn meant(filter: &[String]) -> Vec<String> {
    let meant = |word: &String| {
        if word == "c" {
            "c_".to_owned()
        } else {
            word.clone()
        }
    };
    filter.iter().map(meant).collect()
}

/// Whether the words ask for nothing else.
pub fn is_all(filter: &[String]) -> bool {
    !filter.is_empty() && filter.iter().all(|word| word.starts_with("c_"))
}

/// Runs the benchmarks whose names contain one of the words, or all, and prints what they measured.
pub fn run(filter: &[String], with_boost: bool) -> Outcome {
    if !SUITES.iter().any(|suite| micro::wanted(filter, suite.bench)) {
        return Ok(());
    }
    build(with_boost)?;
    for suite in SUITES.iter().filter(|suite| micro::wanted(filter, suite.bench)) {
        let figures = suite.measure();
        suite.print_figures(&figures);
        suite.print_judgements(&figures);
    }
    Ok(())
}

fn build(with_boost: bool) -> Outcome {
    dist::run(None)?;
    std::fs::create_dir_all(PROGRAMS).map_err(|error| format!("{PROGRAMS}: {error}"))?;
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
        "{compiler} {standard} -O2 -Wall -Wextra -I {folder}/include -o {PROGRAMS}/{program} {SOURCES}/{program}{ending} \
         {folder}/lib/libfibrant.a {more} {libraries}"
    ))
}

/// What a program has said of something.
#[derive(Debug)]
struct Figure {
    program: String,
    variant: String,
    unit: String,
    /// In order, once all are there.
    values: Vec<f64>,
}

impl Figure {
    fn median(&self) -> f64 {
        self.values[self.values.len() / 2]
    }

    fn shown(&self) -> String {
        let [least, median, greatest] = [self.values[0], self.median(), self.values[self.values.len() - 1]];
        if self.values.len() == 1 {
            format!("{} {}", number(median), self.unit)
        } else {
            let [least, median, greatest] = [least, median, greatest].map(number);
            format!("{median} ({least} - {greatest}) {}", self.unit)
        }
    }
}

impl Suite {
    /// Runs all programs in turn.
    fn measure(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for _ in 0..self.runs {
            for line in self.commands {
                match output(line) {
                    Ok(output) => note(&mut figures, self.bench, &output),
                    Err(problem) => println!("{problem}"),
                }
            }
        }
        for figure in &mut figures {
            figure.values.sort_by(f64::total_cmp);
        }
        figures
    }

    fn print_figures(&self, figures: &[Figure]) {
        println!("\n| {} | | median (least - greatest) |", self.bench);
        println!("|---|---|---|");
        for figure in figures {
            println!("| {} | {} | {} |", figure.program, figure.variant, figure.shown());
        }
    }

    fn print_judgements(&self, figures: &[Figure]) {
        println!("\n| {} | | ours | peer | ratio | budget | |", self.bench);
        println!("|---|---|---|---|---|---|---|");
        for one in self.judgements {
            println!("| {} | {} | {}", one.program, one.variant, one.shown(figures));
        }
    }
}

impl Judgement {
    /// The cells of its row, from the figure on.
    fn shown(&self, figures: &[Figure]) -> String {
        let median = |program| find(figures, program, self.variant).map(Figure::median);
        let Some(ours) = median(self.program) else {
            return "| | | | not measured |".to_owned();
        };
        let shown = number(ours);
        match self.measure {
            Measure::Ratio(peer, budget) => match median(peer) {
                Some(theirs) => format!(
                    "{shown} | {peer} {} | {:.2} | {} | {} |",
                    number(theirs),
                    ours / theirs,
                    budget.map_or(String::new(), |budget| format!("{budget:.2}")),
                    budget.map_or("", |budget| verdict(ours / theirs, budget)),
                ),
                None => format!("{shown} | {peer} | | | not measured |"),
            },
            Measure::Most(limit) => {
                format!("{shown} | | | at most {limit} | {} |", verdict(ours, limit))
            }
        }
    }
}

/// Three digits, if there are so many.
fn number(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    }
}

fn verdict(value: f64, budget: f64) -> &'static str {
    if value <= budget { "met" } else { "**missed**" }
}

fn find<'a>(figures: &'a [Figure], program: &str, variant: &str) -> Option<&'a Figure> {
    figures
        .iter()
        .find(|figure| figure.program == program && figure.variant == variant)
}

/// What a program prints. Words that name programs of ours stand for where they are.
fn output(line: &str) -> Outcome<String> {
    let words = line.split_whitespace().map(|word| {
        // A program may have an argument behind a colon.
        let program = word.split(':').next().unwrap_or_default();
        if Path::new(PROGRAMS).join(program).exists() {
            format!("{PROGRAMS}/{word}")
        } else {
            word.to_owned()
        }
    });
    let words: Vec<_> = words.collect();
    let output = Command::new(&words[0])
        .args(&words[1..])
        // How far it is, and what went wrong, is for whoever watches.
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{line}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{line}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Adds what a program has printed to the figures.
fn note(figures: &mut Vec<Figure>, bench: &str, output: &str) {
    for line in output.lines() {
        let [program, about, variant, value, unit] = line.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        let Ok(value) = value.parse() else { continue };
        if about != bench {
            continue;
        }
        let known = figures
            .iter_mut()
            .find(|figure| figure.program == program && figure.variant == variant);
        match known {
            Some(figure) => figure.values.push(value),
            None => figures.push(Figure {
                program: program.to_owned(),
                variant: variant.to_owned(),
                unit: unit.to_owned(),
                values: vec![value],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_the_medians() {
        let mut figures = Vec::new();
        for (ours, theirs) in [(30, 11), (12, 90), (13, 10)] {
            let output = format!(
                "coroutines\tc_switch\tone\t{ours}.00\tns\nother\tc_create\tone\t1\tns\nboost_jump\tc_switch\tone\t{theirs}.00\tns\n"
            );
            note(&mut figures, "c_switch", &output);
        }
        figures
            .iter_mut()
            .for_each(|figure| figure.values.sort_by(f64::total_cmp));
        assert_eq!(figures.len(), 2);
        assert_eq!(figures[0].shown(), "13.0 (12.0 - 30.0) ns");
        let shown = ratio("coroutines", "one", "boost_jump", 1.5).shown(&figures);
        assert_eq!(shown, "13.0 | boost_jump 11.0 | 1.18 | 1.50 | met |");
        let shown = most("coroutines", "one", 12.5).shown(&figures);
        assert_eq!(shown, "13.0 | | | at most 12.5 | **missed** |");
        let shown = most("coroutines", "two", 12.5).shown(&figures);
        assert!(shown.contains("not measured"));
    }

    #[test]
    fn the_word_c_means_these() {
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(meant(&words("c lock")), words("c_ lock"));
        assert!(is_all(&meant(&words("c c_echo"))));
        assert!(!is_all(&meant(&words("c lock"))));
        assert!(!is_all(&[]));
    }
}
