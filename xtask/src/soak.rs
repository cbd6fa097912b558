//! `cargo xtask soak`: every test many times on a busy machine, to find what fails only now and then.
//!
//! `main` calls it. It builds the tests once, keeps all cores busy from threads of this process and runs the tests through
//! `run`.

use crate::run::{self, Outcome, TestProgram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often each test runs if the command line does not say.
const TIMES: u32 = 20;

/// The whole must not take longer: who soaks wants an answer before lunch.
const WHOLE_LIMIT: Duration = Duration::from_secs(60 * 60);

/// A test that takes longer hangs.
const RUN_LIMIT: Duration = Duration::from_secs(5 * 60);

/// What the tests that last as long as they are told are told: twenty rounds are long enough.
const SHORT: (&str, &str) = ("FIBRANT_TEST_SECONDS", "4");

/// Runs in the first round only: a million fibers take many seconds and gigabytes, and chance plays no part in them.
const ONCE: &str = "million";

/// The tests as built in one way.
struct Build {
    profile: &'static str,
    programs: Vec<TestProgram>,
}

/// The number of rounds that the command line asks for, and the files of tests; all, if it names none.
pub fn asked(arguments: &[String]) -> Outcome<(u32, Vec<String>)> {
    let (number, names) = match arguments.split_first() {
        None => return Ok((TIMES, Vec::new())),
        Some(split) => split,
    };
    match number.parse() {
        Ok(times) if times > 0 => Ok((times, names.to_vec())),
        _ => Err(format!("'{number}' is not a number of times")),
    }
}

/// Runs the tests in these files, or all, `times` times, or until one fails.
pub fn run(times: u32, names: &[String]) -> Outcome {
    let builds = [
        build("debug", "-p fibrant", names)?,
        build("release", "-p fibrant --release", names)?,
    ];
    let _hog = Hog::start();
    let start = Instant::now();
    for build in &builds {
        run_those(build, 1, |name| name == ONCE)?;
    }
    let rounds_start = Instant::now();
    for round in 1..=times {
        for (build, nth) in builds.iter().zip(1..) {
            run_those(build, round, |name| name != ONCE)?;
            let rest = rest(rounds_start.elapsed(), 2 * (round - 1) + nth, 2 * times);
            let (elapsed, rest) = (minutes(start.elapsed()), minutes(rest));
            println!(
                "round {round}/{times} {}: {elapsed} elapsed, about {rest} to go",
                build.profile
            );
        }
        let whole = start.elapsed() + rest(rounds_start.elapsed(), round, times);
        if round == 1 {
            println!("the whole will take about {}", minutes(whole));
        }
        check_forecast(whole)?;
    }
    println!("no test failed in {times} rounds");
    Ok(())
}

fn build(profile: &'static str, arguments: &str, names: &[String]) -> Outcome<Build> {
    let mut programs = run::test_programs(arguments)?;
    if let Some(unknown) = names
        .iter()
        .find(|name| !programs.iter().any(|program| program.name == **name))
    {
        return Err(format!("there is no file of tests called '{unknown}'"));
    }
    programs.retain(|program| names.is_empty() || names.contains(&program.name));
    Ok(Build { profile, programs })
}

/// Runs each program of a build whose name qualifies.
fn run_those(build: &Build, round: u32, qualifies: impl Fn(&str) -> bool) -> Outcome {
    for program in build.programs.iter().filter(|program| qualifies(&program.name)) {
        let mut command = program.command("");
        command.env(SHORT.0, SHORT.1);
        let ending = run::quietly(command, RUN_LIMIT)?;
        if !ending.success {
            println!("{}", ending.output);
            return Err(format!(
                "{} ({}) failed in round {round}: {}",
                program.name, build.profile, ending.how
            ));
        }
    }
    Ok(())
}

/// How long the remaining rounds take if they are like those that are done.
fn rest(spent: Duration, done: u32, all: u32) -> Duration {
    spent * (all - done) / done
}

fn check_forecast(whole: Duration) -> Outcome {
    if whole <= WHOLE_LIMIT {
        return Ok(());
    }
    Err(format!(
        "this would take {}, more than the {} allowed: ask for fewer rounds, or name files of tests",
        minutes(whole),
        minutes(WHOLE_LIMIT)
    ))
}

/// A duration as minutes and seconds.
fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

/// Keeps every core busy until it is dropped, so that the tests' threads are interrupted anywhere.
struct Hog {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hog {
    fn start() -> Hog {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let busy = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..cores).map(busy).collect();
        Hog { stop, threads }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a busy loop does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_number_of_rounds() {
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let parsed = |line: &[&str]| asked(&words(line));
        assert_eq!(parsed(&[]), Ok((20, Vec::new())));
        assert_eq!(parsed(&["7"]), Ok((7, Vec::new())));
        assert_eq!(parsed(&["7", "io", "hooks"]), Ok((7, words(&["io", "hooks"]))));
        assert!(parsed(&["0"]).is_err());
        assert!(parsed(&["many"]).unwrap_err().contains("'many'"));
    }

    #[test]
    fn forecasts_and_refuses_what_takes_too_long() {
        assert_eq!(rest(Duration::from_secs(30), 1, 20), Duration::from_secs(570));
        assert_eq!(rest(Duration::from_secs(90), 3, 3), Duration::ZERO);
        assert!(check_forecast(WHOLE_LIMIT).is_ok());
        let problem = check_forecast(Duration::from_secs(3661)).unwrap_err();
        assert!(
            problem.contains("61:01 min") && problem.contains("60:00 min"),
            "{problem}"
        );
    }
}
