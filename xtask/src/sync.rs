//! The benchmarks of locks and channels: all programs in turn, several times over, and what they come to.
//!
//! `bench` calls it. As in `micro`, a program of the crate `bench` prints a line for each figure; here one run of it prints those of
//! every lock or channel that it can measure. A figure is the median over the runs, shown with the least and the greatest.

use crate::micro;
use crate::run::{self, Outcome};

/// How often each program is run.
const RUNS: usize = 5;

/// A benchmark, with how many workers, and the peers' programs that it is run with besides ours.
struct Suite {
    bench: &'static str,
    workers: u32,
    peers: &'static [&'static str],
    ratios: &'static [Ratio],
}

/// A figure of ours next to another, and how large the ratio may be, if that was laid down.
struct Ratio {
    ours: &'static str,
    /// The program, ours for another lock or channel in the same kind of fiber, and what it measured.
    peer: &'static str,
    theirs: &'static str,
    budget: Option<f64>,
}

const fn ratio(ours: &'static str, peer: &'static str, theirs: &'static str) -> Ratio {
    Ratio {
        ours,
        peer,
        theirs,
        budget: None,
    }
}

const fn within(budget: f64, ours: &'static str, peer: &'static str, theirs: &'static str) -> Ratio {
    Ratio {
        budget: Some(budget),
        ..ratio(ours, peer, theirs)
    }
}

/// At least 1.5 times the throughput.
const FASTER: f64 = 1.0 / 1.5;

const STREAMS: &[Ratio] = &[
    within(FASTER, "fibrant 1:1", "std_thread", "crossbeam 1:1"),
    within(FASTER, "fibrant 4:4", "std_thread", "crossbeam 4:4"),
    ratio("fibrant 1:1", OURS, "crossbeam 1:1"),
    ratio("fibrant 4:4", OURS, "crossbeam 4:4"),
];

const CONTENTION: &[Ratio] = &[
    ratio("fibrant mutex, 4 short", OURS, "std mutex, 4 short"),
    ratio("fibrant mutex, 4 yielding", OURS, "std mutex, 4 yielding"),
    ratio("fibrant mutex, 100 short", OURS, "std mutex, 100 short"),
    ratio("fibrant mutex, 100 yielding", OURS, "std mutex, 100 yielding"),
];

const SELECTS: &[Ratio] = &[
    ratio("fibrant ready", "std_thread", "crossbeam ready"),
    ratio("fibrant waiting", "std_thread", "crossbeam waiting"),
];

const SUITES: [Suite; 9] = [
    Suite {
        bench: "lock",
        workers: 1,
        peers: &["std_thread", "tokio_ct", "may"],
        ratios: &[
            within(1.2, "fibrant mutex", OURS, "std mutex"),
            within(1.2, "fibrant mutex", "std_thread", "std mutex"),
            within(1.2, "fibrant mutex, thread", "std_thread", "std mutex"),
            ratio("fibrant read", OURS, "std read"),
            ratio("fibrant write", OURS, "std write"),
            ratio("fibrant semaphore", "tokio_ct", "tokio semaphore"),
        ],
    },
    Suite {
        bench: "channel",
        workers: 1,
        peers: &["std_thread", "tokio_ct", "tokio_mt", "may"],
        ratios: &[
            within(0.4, "fibrant bounded(1)", "tokio_ct", "tokio bounded(1)"),
            within(0.4, "fibrant bounded(1)", "tokio_mt", "tokio bounded(1)"),
            ratio("fibrant bounded(0)", "tokio_ct", "tokio bounded(1)"),
            within(0.4, "fibrant unbounded", "tokio_ct", "tokio unbounded"),
        ],
    },
    Suite {
        bench: "channel",
        workers: 2,
        peers: &["std_thread", "tokio_mt"],
        ratios: &[ratio("fibrant bounded(1)", "tokio_mt", "tokio bounded(1)")],
    },
    Suite {
        bench: "throughput",
        workers: 1,
        peers: &["std_thread", "tokio_ct", "tokio_mt", "may"],
        ratios: STREAMS,
    },
    Suite {
        bench: "throughput",
        workers: 2,
        peers: &["std_thread", "tokio_mt", "may"],
        ratios: STREAMS,
    },
    Suite {
        bench: "contend",
        workers: 1,
        peers: &["std_thread", "tokio_ct", "may"],
        ratios: CONTENTION,
    },
    Suite {
        bench: "contend",
        workers: 2,
        peers: &["std_thread", "tokio_mt", "may"],
        ratios: CONTENTION,
    },
    Suite {
        bench: "select",
        workers: 1,
        peers: &["std_thread", "tokio_ct"],
        ratios: SELECTS,
    },
    Suite {
        bench: "select",
        workers: 2,
        peers: &["std_thread", "tokio_mt"],
        ratios: SELECTS,
    },
];

/// Our program, which is run with fibers of both kinds.
const OURS: &str = "fibrant";
const LIGHT: &str = "light";
const ISOLATED: &str = "isolated";

/// Runs the benchmarks whose names contain one of the words, or all, and prints what they measured and the ratios.
pub fn run(filter: &[String]) -> Outcome {
    if !SUITES.iter().any(|suite| micro::wanted(filter, suite.bench)) {
        return Ok(());
    }
    run::openly(run::line("cargo build --release -p bench --bins"))?;
    for suite in SUITES.iter().filter(|suite| micro::wanted(filter, suite.bench)) {
        let figures = suite.measure();
        suite.print_figures(&figures);
        suite.print_ratios(&figures);
    }
    Ok(())
}

/// What a program, in one of the columns, has said of something.
struct Figure {
    column: &'static str,
    variant: String,
    /// In nanoseconds, in order; none if it cannot be measured there.
    values: Vec<f64>,
}

impl Figure {
    fn median(&self) -> Option<f64> {
        self.values.get(self.values.len() / 2).copied()
    }

    fn shown(&self) -> String {
        match (self.values.first(), self.median(), self.values.last()) {
            (Some(least), Some(median), Some(greatest)) => {
                format!("{median:.1} ({least:.1} - {greatest:.1})")
            }
            _ => "cannot".to_owned(),
        }
    }
}

impl Suite {
    /// The columns of the table: ours for both kinds of fibers, and the peers.
    fn columns(&self) -> impl Iterator<Item = &'static str> {
        [LIGHT, ISOLATED].into_iter().chain(self.peers.iter().copied())
    }

    /// Runs all programs in turn.
    fn measure(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for _ in 0..RUNS {
            for column in self.columns() {
                let program = if [LIGHT, ISOLATED].contains(&column) {
                    OURS
                } else {
                    column
                };
                match micro::output(program, self.bench, self.workers, None, column == LIGHT) {
                    Ok(output) => note(&mut figures, column, self.bench, &output),
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
        let mut variants: Vec<&str> = Vec::new();
        for figure in figures {
            if !variants.contains(&figure.variant.as_str()) {
                variants.push(&figure.variant);
            }
        }
        let columns: Vec<&str> = self.columns().collect();
        let workers = if self.workers == 1 { "worker" } else { "workers" };
        println!(
            "\n| {}, {} {workers} (ns) | {} |",
            self.bench,
            self.workers,
            columns.join(" | ")
        );
        println!("|---|{}", "---|".repeat(columns.len()));
        for variant in variants {
            let cells: Vec<String> = columns
                .iter()
                .map(|column| find(figures, column, variant).map_or(String::new(), Figure::shown))
                .collect();
            println!("| {variant} | {} |", cells.join(" | "));
        }
    }

    fn print_ratios(&self, figures: &[Figure]) {
        println!(
            "\n| {} | workers | light | peer | ratio | budget | | isolated | ratio |",
            self.bench
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for one in self.ratios {
            let [light, isolated] = [LIGHT, ISOLATED].map(|column| one.quotient(figures, column));
            let budget = one.budget.map_or(String::new(), |budget| format!("{budget:.2}"));
            let (name, workers, peer) = (one.ours, self.workers, one.peer);
            match (&light, &isolated) {
                (None, None) => println!("| {name} | {workers} | | {peer} | | {budget} | not measured | | |"),
                _ => println!(
                    "| {name} | {workers} | {} | {peer}: {} {} | {} | {budget} | {} | {} | {} |",
                    number(light.as_ref().map(|one| one.ours)),
                    one.theirs,
                    number(light.as_ref().or(isolated.as_ref()).map(|one| one.theirs)),
                    quotient(&light),
                    verdict(&light, one.budget),
                    number(isolated.as_ref().map(|one| one.ours)),
                    quotient(&isolated),
                ),
            }
        }
    }
}

/// Two figures to compare.
struct Quotient {
    ours: f64,
    theirs: f64,
}

impl Ratio {
    /// The two figures for one kind of fibers, if both were measured. What others' locks and channels take in our fibers is of the same
    /// kind, or of isolated ones if they cannot do with light ones.
    fn quotient(&self, figures: &[Figure], column: &'static str) -> Option<Quotient> {
        let median = |column, variant| find(figures, column, variant).and_then(Figure::median);
        let theirs = if self.peer == OURS {
            median(column, self.theirs).or_else(|| median(ISOLATED, self.theirs))
        } else {
            median(self.peer, self.theirs)
        };
        Some(Quotient {
            ours: median(column, self.ours)?,
            theirs: theirs?,
        })
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{value:.1}"))
}

fn quotient(one: &Option<Quotient>) -> String {
    one.as_ref()
        .map_or(String::new(), |one| format!("{:.2}", one.ours / one.theirs))
}

fn verdict(light: &Option<Quotient>, budget: Option<f64>) -> &'static str {
    match (light, budget) {
        (Some(one), Some(budget)) if one.ours / one.theirs <= budget => "met",
        (Some(_), Some(_)) => "**missed**",
        _ => "",
    }
}

fn find<'a>(figures: &'a [Figure], column: &str, variant: &str) -> Option<&'a Figure> {
    figures
        .iter()
        .find(|figure| figure.column == column && figure.variant == variant)
}

/// Adds what a program has printed to the figures.
fn note(figures: &mut Vec<Figure>, column: &'static str, bench: &str, output: &str) {
    for line in output.lines() {
        let [_, about, variant, value, _] = line.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        if about != bench || variant == "-" {
            continue;
        }
        let known = figures
            .iter()
            .position(|figure| figure.column == column && figure.variant == variant);
        let known = known.unwrap_or_else(|| {
            figures.push(Figure {
                column,
                variant: variant.to_owned(),
                values: Vec::new(),
            });
            figures.len() - 1
        });
        figures[known].values.extend(value.parse::<f64>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_median_of_the_runs_and_compares() {
        let mut figures = Vec::new();
        for (ours, theirs) in [("8.00", "20.00"), ("30.00", "10.00"), ("9.00", "90.00")] {
            let fibers =
                format!("fibrant\tlock\tfibrant mutex\t{ours}\tns\nfibrant\tlock\tstd mutex\tFAIL: no\t-\n");
            note(&mut figures, LIGHT, "lock", &fibers);
            let fibers = format!("fibrant\tlock\tstd mutex\t{theirs}\tns\n");
            note(&mut figures, ISOLATED, "lock", &fibers);
        }
        figures
            .iter_mut()
            .for_each(|figure| figure.values.sort_by(f64::total_cmp));
        assert_eq!(figures[0].shown(), "9.0 (8.0 - 30.0)");
        assert_eq!(figures[1].shown(), "cannot");
        let one = within(0.4, "fibrant mutex", OURS, "std mutex");
        let light = one.quotient(&figures, LIGHT);
        assert_eq!(quotient(&light), "0.45");
        assert_eq!(verdict(&light, one.budget), "**missed**");
        assert_eq!(verdict(&light, Some(0.5)), "met");
        assert!(one.quotient(&figures, ISOLATED).is_none());
    }
}
