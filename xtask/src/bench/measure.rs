//! Measuring: all command lines of a benchmark in turn, round after round, and the figures that come of it.
//!
//! `run` calls it with the plan; it runs programs through `run` and tells `progress` how far it is.

use super::figures::{self, Figure, Place};
use super::plan::{Benchmark, Run};
use super::progress::Progress;
use super::results::{Measured, Shape};
use crate::run;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a program may take at least; what takes much longer than planned hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// On a slow machine there are fewer rounds: none begins that would make a benchmark take so many times as long as planned.
const OVERTIME: f64 = 1.6;

/// Runs the benchmarks, one after the other.
pub fn measure(plan: &[Benchmark]) -> Vec<Measured> {
    let progress = Progress::new(plan.iter().map(Benchmark::seconds).sum(), plan.len());
    plan.iter().map(|one| measure_one(one, &progress)).collect()
}

fn measure_one(one: &Benchmark, progress: &Progress) -> Measured {
    progress.begin(&one.name, one.seconds());
    let start = Instant::now();
    let mut figures = Vec::new();
    let mut runs: Vec<&Run> = one.runs.iter().collect();
    for round in 0..one.rounds {
        let used = start.elapsed().as_secs_f64();
        if round > 0 && used * (1.0 + 1.0 / round as f64) > one.seconds() * OVERTIME {
            break;
        }
        runs.retain(|run| {
            let goes_on = carry_out(run, &mut figures);
            progress.advance(run.seconds);
            goes_on
        });
    }
    if one.shape == Shape::Server {
        figures::add_up_calls(&mut figures);
    }
    progress.end();
    Measured {
        name: one.name.clone(),
        title: one.title.clone(),
        about: one.about.clone(),
        section: one.section,
        shape: one.shape,
        peers: one
            .runs
            .iter()
            .flat_map(|run| run.peers.iter().map(|peer| (peer.clone(), run.at)))
            .collect(),
        commands: one.runs.iter().map(Run::typed).collect(),
        figures,
    }
}

/// Runs a program and notes what it says. Returns whether it makes sense to run it again.
fn carry_out(run: &Run, figures: &mut Vec<Figure>) -> bool {
    let place = Place {
        bench: &run.bench,
        label: run.label.as_deref(),
        at: run.at,
    };
    let limit = PATIENCE.max(Duration::from_secs_f64(run.seconds * 10.0));
    let reason = match run::quietly(command(run), limit) {
        Ok(ending) => {
            let count = figures::note(figures, place, &ending.output);
            if ending.success && count > 0 {
                return true;
            }
            // A program that has said why it cannot has said enough.
            if count > 0 && place.label.is_some() {
                return false;
            }
            let last = ending.output.lines().rfind(|line| !line.trim().is_empty());
            last.map_or_else(|| ending.how.clone(), |last| format!("{}, {last}", ending.how))
        }
        Err(problem) => problem,
    };
    figures::note_failure(figures, place, &reason);
    false
}

fn command(run: &Run) -> Command {
    let mut command = Command::new(&run.words[0]);
    command.args(&run.words[1..]);
    command
}

#[cfg(test)]
mod tests {
    use super::super::results::Section;
    use super::*;

    fn shell(label: Option<&str>, script: &str) -> Run {
        Run {
            words: ["sh", "-c", script].map(String::from).to_vec(),
            bench: "some".to_owned(),
            label: label.map(String::from),
            at: None,
            peers: label.map(String::from).into_iter().collect(),
            seconds: 1.0,
        }
    }

    fn measured(runs: Vec<Run>, rounds: usize) -> Measured {
        let one = Benchmark {
            name: "some".to_owned(),
            title: String::new(),
            about: String::new(),
            section: Section::Tasks,
            shape: Shape::Server,
            runs,
            rounds,
        };
        measure_one(&one, &Progress::new(1.0, 1))
    }

    #[test]
    fn programs_take_turns() {
        let file = std::env::temp_dir().join(format!("xtask-turns-{}", std::process::id()));
        let script = |name: &str| {
            let path = file.display();
            format!("echo {name} >> {path}; printf 'x\\tsome\\tcpu\\t1\\tns\\n'")
        };
        let runs = vec![shell(Some("one"), &script("a")), shell(Some("two"), &script("b"))];
        let measured = measured(runs, 3);
        let order = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(order.split_whitespace().collect::<String>(), "ababab");
        assert_eq!(measured.figures[1].values, [1.0; 3]);
        assert!(measured.asked("two", None) && !measured.asked("three", None));
    }

    #[test]
    fn what_fails_is_told_and_not_run_again() {
        let runs = vec![
            shell(Some("one"), "echo no luck >&2; exit 3"),
            shell(
                Some("two"),
                "printf 'x\\tsome\\t-\\tFAIL: no ring\\t-\\n'; exit 1",
            ),
            shell(
                None,
                "printf 'a\\tsome\\tsyscalls read\\t1\\t-\\na\\tsome\\tsyscalls recvfrom\\t0.5\\t-\\n'",
            ),
        ];
        let figures = measured(runs, 2).figures;
        let failure = |label| {
            figures::find(&figures, label, "", None)
                .unwrap()
                .failure
                .clone()
                .unwrap()
        };
        assert!(failure("one").contains("no luck"), "{}", failure("one"));
        assert_eq!(failure("two"), "no ring");
        let sum = figures::find(&figures, "a", figures::RECEIVING, None).unwrap();
        assert_eq!(sum.values, [1.5]);
    }
}
