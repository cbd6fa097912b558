//! `cargo xtask bench`: what everything costs, next to peers in the same run.
//!
//! `main` calls it. `plan` says what there is to run, `programs` builds it, `measure` runs it and collects `figures`, `budgets` judges them,
//! and `reasons` tells why they are missed; `results` is what is kept of that, with what `machine` tells. `terminal` shows it, and `publish` writes it, with a page by `html` and
//! pictures by `charts`.

mod budgets;
mod charts;
mod figures;
mod html;
mod machine;
mod measure;
mod plan;
mod programs;
mod progress;
mod publish;
mod reasons;
mod results;
mod terminal;

use crate::run::Outcome;
use machine::Machine;
use plan::{Benchmark, Scale};
use programs::{Needs, Supply};
use results::{Results, Section};
use std::path::{Path, PathBuf};

/// What is asked for.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    quick: bool,
    publish: bool,
    /// Nothing is run: it is told what would be.
    list: bool,
    /// Nothing is run: the report is made again from these results.
    report: Option<PathBuf>,
    /// Benchmarks whose names contain one of these; none ask for all.
    filter: Vec<String>,
}

impl Options {
    pub fn of(words: &[String]) -> Outcome<Options> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => options.quick = true,
                "--publish" => options.publish = true,
                "--list" => options.list = true,
                "--report" => {
                    let file = words.next().ok_or("--report needs a file of results")?;
                    options.report = Some(file.into());
                }
                other if other.starts_with('-') => return Err(format!("bench knows no {other}")),
                _ => options.filter.push(word.clone()),
            }
        }
        let is_part = options.quick || !options.filter.is_empty();
        if options.report.is_some() && is_part {
            return Err("a report is made of all that is in its file".to_owned());
        }
        if options.publish && is_part {
            return Err("only all of it is published".to_owned());
        }
        Ok(options)
    }

    /// As one would type it.
    fn typed(&self) -> String {
        let mut words = vec!["cargo xtask bench"];
        if self.quick {
            words.push("--quick");
        }
        words.extend(self.filter.iter().map(String::as_str));
        words.join(" ")
    }
}

/// Runs the benchmarks, or makes the report of an earlier run again.
pub fn run(options: &Options) -> Outcome {
    if options.list {
        list(&wanted(options, &Supply::everything())?);
        return Ok(());
    }
    let results = match &options.report {
        Some(file) => Results::read(file)?,
        None => measured(options)?,
    };
    // A part would take the place of what was published of the rest.
    if options.publish && results.command != Options::default().typed() {
        return Err(format!(
            "only all of it is published, and this was {}",
            results.command
        ));
    }
    print!("{}", terminal::shown(&results));
    publish::write(&results, publish::FOLDER)?;
    if options.publish {
        publish::publish(&results)?;
    }
    println!(
        "\nthe report: {}",
        Path::new(publish::FOLDER).join("index.html").display()
    );
    Ok(())
}

/// What there is to run, of what is asked for.
fn wanted(options: &Options, supply: &Supply) -> Outcome<Vec<Benchmark>> {
    let scale = Scale {
        quick: options.quick,
        cores: machine::cores() as u64,
        memory: machine::memory(),
    };
    let mut plan = plan::benchmarks(&scale, supply);
    plan.retain(|one| plan::wanted(&options.filter, &one.name));
    if plan.is_empty() {
        return Err(format!("no benchmark is called {}", options.filter.join(" or ")));
    }
    Ok(plan)
}

/// Prints the command lines of a plan.
fn list(plan: &[Benchmark]) {
    for one in plan {
        println!(
            "{} ({} rounds, about {:.0} s)",
            one.name,
            one.rounds,
            one.seconds()
        );
        for run in &one.runs {
            println!("  {}", run.typed());
        }
    }
    let seconds: f64 = plan.iter().map(Benchmark::seconds).sum();
    println!("about {:.0} s in all", seconds);
}

fn measured(options: &Options) -> Outcome<Results> {
    let everything = wanted(options, &Supply::everything())?;
    let supply = programs::build(&Needs {
        in_c: everything.iter().any(|one| one.section == Section::InC),
        others: everything.iter().any(|one| one.section != Section::InC),
    })?;
    for note in supply.notes() {
        println!("{note}");
    }
    let plan = wanted(options, &supply)?;
    let benchmarks = measure::measure(&plan);
    Ok(Results {
        date: machine::told("date -u +%Y-%m-%dT%H:%M:%SZ"),
        commit: machine::told("git describe --always --dirty"),
        command: options.typed(),
        quick: options.quick,
        machine: Machine::this(),
        notes: supply.notes(),
        verdicts: budgets::judge(&plan::budgets(), &benchmarks, options.quick),
        benchmarks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Outcome<Options> {
        Options::of(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn understands_what_is_asked_for() {
        assert_eq!(of(""), Ok(Options::default()));
        let quick = of("--quick echo c").unwrap();
        assert!(quick.quick && quick.filter == ["echo", "c"]);
        assert_eq!(quick.typed(), "cargo xtask bench --quick echo c");
        let again = of("--report some.json --publish").unwrap();
        assert_eq!(again.report.as_deref(), Some(Path::new("some.json")));
        assert!(again.publish);
    }

    #[test]
    fn only_what_is_whole_is_published() {
        assert!(of("--publish echo").is_err());
        assert!(of("--publish --quick").is_err());
        assert!(of("--report").is_err());
        assert!(of("--report a.json echo").is_err());
        assert!(of("--fast").unwrap_err().contains("--fast"));
    }
}
