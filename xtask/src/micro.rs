//! The benchmarks of the runtime: ours and the peers' programs, one after the other, and what they come to.
//!
//! `bench` calls it. Each program of the crate `bench` is called as `PROGRAM BENCH WORKERS [N]` and prints a line for each figure:
//! peer, bench, variant, value, unit, separated by tabs.
//!
//! Peers have no thread-locals of their own for each task, so the budgets are for light fibers, which have none either. What isolated
//! ones take is shown next to it.

use crate::run::{self, Outcome};
use std::process::{Command, Stdio};

/// A figure of ours next to one of a peer's, and how large the ratio may be.
struct Comparison {
    bench: &'static str,
    workers: u32,
    n: Option<u32>,
    /// The line to take from our program: its bench and variant.
    ours: (&'static str, &'static str),
    peer: &'static str,
    /// The peer's bench, if it is another one, and the line to take.
    peer_bench: &'static str,
    theirs: (&'static str, &'static str),
    budget: f64,
}

const fn compare(bench: &'static str, workers: u32, peer: &'static str, budget: f64) -> Comparison {
    Comparison {
        bench,
        workers,
        n: None,
        ours: (bench, "-"),
        peer,
        peer_bench: bench,
        theirs: (bench, "-"),
        budget,
    }
}

const COMPARISONS: [Comparison; 11] = [
    compare("yield2", 1, "may", 0.5),
    compare("yield1000", 1, "may", 0.35),
    compare("spawn", 1, "tokio_mt", 0.25),
    compare("spawn1", 1, "tokio_mt", 0.4),
    compare("skynet", 1, "tokio_mt", 0.4),
    compare("skynet", 2, "tokio_mt", 0.4),
    Comparison {
        ours: ("pingpong", "same"),
        theirs: ("pingpong", "same"),
        ..compare("pingpong", 1, "tokio_ct", 0.35)
    },
    Comparison {
        ours: ("pingpong", "across"),
        peer_bench: "eventfd",
        theirs: ("eventfd", "across"),
        ..compare("pingpong", 2, "std_thread", 1.2)
    },
    Comparison {
        ours: ("timer_insert", "-"),
        theirs: ("timer_insert", "-"),
        ..compare("timers", 1, "tokio_mt", 0.2)
    },
    Comparison {
        ours: ("timer_cancel", "-"),
        theirs: ("timer_cancel", "-"),
        ..compare("timers", 1, "tokio_mt", 0.2)
    },
    compare("expire", 1, "tokio_mt", 0.5),
];

/// Figures of ours that stand for themselves: bench, how many fibers, and the most that it may be.
const ALONE: [(&str, Option<u32>, f64); 2] = [("mem", Some(1_000_000), 4505.0), ("idle", None, 0.1)];

/// The programs that print tables of their own: what hooked calls cost, and what thread-locals of its own cost a fiber.
const TABLES: [&str; 2] = ["hooks", "isolation"];

/// Whether the words ask for a benchmark.
pub fn wanted(filter: &[String], bench: &str) -> bool {
    filter.is_empty() || filter.iter().any(|word| bench.contains(word.as_str()))
}

/// Runs the benchmarks whose names contain one of the words, or all, and prints a table.
pub fn run(filter: &[String]) -> Outcome {
    let wanted = |bench: &str| wanted(filter, bench);
    for table in TABLES.into_iter().filter(|table| wanted(table)) {
        run::openly(run::line(&format!("cargo run --release -p bench --bin {table}")))?;
    }
    if !COMPARISONS
        .iter()
        .map(|one| one.bench)
        .chain(ALONE.map(|one| one.0))
        .any(wanted)
    {
        return Ok(());
    }
    run::openly(run::line("cargo build --release -p bench --bins"))?;
    println!("\n| benchmark | workers | light | peer | ratio | budget | | isolated | ratio |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for one in COMPARISONS.iter().filter(|one| wanted(one.bench)) {
        let [ours, isolated] =
            [true, false].map(|light| figure("fibrant", one.bench, one.workers, one.n, one.ours, light));
        let theirs = figure(one.peer, one.peer_bench, one.workers, one.n, one.theirs, false);
        let name = one.ours.0;
        let (peer, workers, budget) = (one.peer, one.workers, one.budget);
        match (ours, isolated, theirs) {
            (Ok((ours, unit)), Ok((isolated, _)), Ok((theirs, _))) => {
                let ratio = ours / theirs;
                let verdict = if ratio <= budget { "met" } else { "**missed**" };
                println!(
                    "| {name} | {workers} | {ours:.1} {unit} | {peer} {theirs:.1} | {ratio:.2} | {budget} | {verdict} | \
                     {isolated:.1} | {:.2} |",
                    isolated / theirs
                );
            }
            (Err(problem), ..) | (_, Err(problem), _) | (.., Err(problem)) => {
                println!("| {name} | {workers} | | {peer} | | {budget} | {problem} | | |");
            }
        }
    }
    for (bench, n, most) in ALONE.into_iter().filter(|one| wanted(one.0)) {
        let [ours, isolated] = [true, false].map(|light| figure("fibrant", bench, 1, n, (bench, "-"), light));
        match (ours, isolated) {
            (Ok((ours, unit)), Ok((isolated, _))) => {
                let verdict = if ours <= most { "met" } else { "**missed**" };
                println!(
                    "| {bench} | 1 | {ours:.2} {unit} | | | at most {most} | {verdict} | {isolated:.2} | |"
                );
            }
            (Err(problem), _) | (_, Err(problem)) => {
                println!("| {bench} | 1 | | | | at most {most} | {problem} | | |");
            }
        }
    }
    Ok(())
}

/// One figure of a program's, with light fibers if it is ours and asked to: its value and unit, or why there is none.
fn figure(
    program: &str,
    bench: &str,
    workers: u32,
    n: Option<u32>,
    line: (&str, &str),
    light: bool,
) -> Result<(f64, String), String> {
    let output = output(program, bench, workers, n, light)?;
    find(&output, line).ok_or_else(|| format!("{program} printed no {} {}", line.0, line.1))?
}

/// What a program prints, with light fibers if it is ours and asked to.
pub fn output(
    program: &str,
    bench: &str,
    workers: u32,
    n: Option<u32>,
    light: bool,
) -> Result<String, String> {
    let mut command = Command::new(format!("target/release/{program}"));
    if light {
        command.env("BENCH_LIGHT", "1");
    }
    command.arg(bench).arg(workers.to_string());
    command.args(n.map(|n| n.to_string()));
    // A panic's message is for whoever watches.
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The value and unit of the line for a bench and variant, or why it failed.
fn find(output: &str, (bench, variant): (&str, &str)) -> Option<Result<(f64, String), String>> {
    let fields = output
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .find(|fields| fields.len() == 5 && fields[1] == bench && fields[2] == variant)?;
    Some(match fields[3].parse() {
        Ok(value) => Ok((value, fields[4].to_owned())),
        Err(_) => Err(fields[3].to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_line_that_was_asked_for() {
        let output =
            "fibrant\tpingpong\tsame\t62.19\tns\nfibrant\tpingpong\tacross\tFAIL: no second core\t-\n";
        assert_eq!(
            find(output, ("pingpong", "same")),
            Some(Ok((62.19, "ns".to_owned())))
        );
        assert_eq!(
            find(output, ("pingpong", "across")),
            Some(Err("FAIL: no second core".to_owned()))
        );
        assert_eq!(find(output, ("pingpong", "free")), None);
    }
}
