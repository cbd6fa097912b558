//! `cargo xtask bench`: the benchmarks, with their Boost peer if it can be had, and what they come to: bars, and our figures as
//! ratios to those of the peers.
//!
//! `main` calls it; it runs the crate `bench`, whose harness (criterion) leaves its estimates below `target/criterion`, and
//! reads those; `micro` runs the benchmarks of the runtime, `sync` those of locks and channels, and `coroutines` those in C.

use crate::coroutines;
use crate::run::{self, Outcome};
use crate::tools::{self, Supply, Tool};
use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// The library that the crate's build script looks for.
const BOOST: Tool = Tool::Package {
    name: "libboost-context-dev",
    shown_by: "/usr/include/boost/context/fiber.hpp",
};

/// What it was where it could be had.
const BOOST_ONCE: &str = "Boost.Context 1.74 on an AMD EPYC (Zen 3), 2026-11-15: round trip 13.2 ns, over 1,000 fibers \
                          14.1 ns, create, run, drop 45.6 ns";

/// Where criterion puts what it has found.
const ESTIMATES: &str = "target/criterion";

const ROUND_TRIP: &str = "round trip";
const ROUND_ROBIN: &str = "round robin over 1000";
const CREATE: &str = "create, run, drop";
const FRESH: &str = "create on a fresh stack";
const SWITCH: &str = "bare switch";

const OURS: &str = "fibrant";
const OURS_SHARED: &str = "fibrant, shared float control";

/// The benchmarks in the order in which they are shown, each with the number of things that one figure is for.
const GROUPS: [(&str, f64); 5] = [
    (ROUND_TRIP, 1.0),
    (ROUND_ROBIN, 1000.0),
    (CREATE, 1.0),
    (FRESH, 1.0),
    (SWITCH, 1.0),
];

/// One figure next to another, and how large the ratio may be.
struct Comparison {
    group: &'static str,
    ours: &'static str,
    peer: &'static str,
    budget: Option<f64>,
}

const fn compare(group: &'static str, ours: &'static str, peer: &'static str, budget: f64) -> Comparison {
    Comparison {
        group,
        ours,
        peer,
        budget: Some(budget),
    }
}

const COMPARISONS: [Comparison; 9] = [
    compare(ROUND_TRIP, OURS, "corosensei", 1.5),
    compare(ROUND_TRIP, OURS_SHARED, "corosensei", 1.5),
    compare(ROUND_ROBIN, OURS, "corosensei", 0.7),
    compare(ROUND_ROBIN, OURS_SHARED, "corosensei", 0.7),
    compare(CREATE, OURS, "Boost.Context", 0.5),
    compare(CREATE, OURS_SHARED, "Boost.Context", 0.5),
    compare(FRESH, OURS, "a bare guard and a first touch", 1.3),
    compare(FRESH, OURS, "corosensei", 0.4),
    Comparison {
        group: SWITCH,
        ours: "switch with thread pointer",
        peer: "switch",
        budget: None,
    },
];

/// A median that this run has found, in nanoseconds.
struct Figure {
    group: &'static str,
    name: String,
    nanoseconds: f64,
}

/// Runs all benchmarks, or those that match the filter.
pub fn run(filter: &[String]) -> Outcome {
    let boost = tools::install(&[BOOST]);
    if let Supply::Lacks(needs) = &boost {
        println!("The rows of Boost will be missing: the peer {needs}");
        println!("For orientation: {BOOST_ONCE}");
    }
    let filter = &coroutines::meant(filter)[..];
    coroutines::run(filter, matches!(boost, Supply::Complete))?;
    if coroutines::is_all(filter) {
        return Ok(());
    }
    let start = SystemTime::now();
    let mut command = run::line("cargo bench -p bench --bench fiber --");
    if !filter.is_empty() {
        // It takes one expression.
        command.arg(filter.join("|"));
    }
    run::openly(command)?;
    let figures = figures_since(start);
    print_bars(&figures);
    print_ratios(&figures);
    crate::micro::run(filter)?;
    crate::sync::run(filter)
}

/// What criterion has written since then.
fn figures_since(start: SystemTime) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (group, each) in GROUPS {
        let Ok(entries) = fs::read_dir(Path::new(ESTIMATES).join(group)) else {
            continue;
        };
        for entry in entries.flatten() {
            let file = entry.path().join("new/estimates.json");
            let fresh = fs::metadata(&file).and_then(|file| file.modified());
            if fresh.is_ok_and(|written| written >= start)
                && let Some(median) = fs::read_to_string(&file).ok().as_deref().and_then(median)
            {
                figures.push(Figure {
                    group,
                    name: entry.file_name().display().to_string(),
                    nanoseconds: median / each,
                });
            }
        }
    }
    figures
}

/// The median in a file of criterion's estimates.
fn median(json: &str) -> Option<f64> {
    let (_, estimate) = json.split_once("\"median\":")?;
    let (_, number) = estimate.split_once("\"point_estimate\":")?;
    number[..number.find([',', '}'])?].trim().parse().ok()
}

/// A bar for each figure, the longest of its group being the worst.
fn print_bars(figures: &[Figure]) {
    const WIDTH: f64 = 40.0;
    for (group, _) in GROUPS {
        let mut members: Vec<&Figure> = figures.iter().filter(|figure| figure.group == group).collect();
        members.sort_by(|a, b| a.nanoseconds.total_cmp(&b.nanoseconds));
        let Some(worst) = members.last() else { continue };
        println!("\n{group} (ns, median)");
        for figure in &members {
            let length = (figure.nanoseconds / worst.nanoseconds * WIDTH).round() as usize;
            println!(
                "  {:<32} {:>9.1} {}",
                figure.name,
                figure.nanoseconds,
                "#".repeat(length)
            );
        }
    }
}

fn print_ratios(figures: &[Figure]) {
    let find = |group: &str, name: &str| {
        let figure = figures
            .iter()
            .find(|figure| figure.group == group && figure.name == name)?;
        Some(figure.nanoseconds)
    };
    println!("\n| benchmark | ours (ns) | peer (ns) | ratio | budget | |");
    println!("|---|---|---|---|---|---|");
    for Comparison {
        group,
        ours,
        peer,
        budget,
    } in COMPARISONS
    {
        let (Some(own), Some(other)) = (find(group, ours), find(group, peer)) else {
            continue;
        };
        let ratio = own / other;
        let (budget, verdict) = match budget {
            Some(budget) if ratio <= budget => (format!("{budget}"), "met"),
            Some(budget) => (format!("{budget}"), "**missed**"),
            None => (String::new(), ""),
        };
        println!("| {group}: {ours} | {own:.1} | {peer} {other:.1} | {ratio:.2} | {budget} | {verdict} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_median() {
        let json = r#"{"mean":{"confidence_interval":{"upper_bound":9.0},"point_estimate":8.0,"standard_error":0.1},"median":{"confidence_interval":{"confidence_level":0.95,"lower_bound":1.0},"point_estimate":17.25,"standard_error":0.2}}"#;
        assert_eq!(median(json), Some(17.25));
        assert_eq!(median("{}"), None);
    }
}
