//! The harness of the benchmarks of locks and channels: which there are, and how their cases take turns.
//!
//! `micro` calls it. A case is one kind of lock or channel; a process measures all that a peer has of a benchmark, in rounds in
//! which each has its turn, so that what the machine does meanwhile hits all of them.

use std::time::{Duration, Instant};

use crate::micro::{self, Outcome};

/// How long a first try must take at least to say how many things fit into a round.
const TRY: Duration = Duration::from_millis(10);
/// Counts are multiples of this, so that four tasks share one evenly, and a hundred, too.
const SHARES: usize = 100;

/// A benchmark of locks or channels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bench {
    /// Lock and unlock what nobody else wants.
    Lock,
    /// Two tasks send a number to and fro over two channels: on one worker if there is only one, else on two for good.
    Channel,
    /// One sender and one receiver, or four and four, and a channel between them with room for [`CAPACITY`].
    Throughput,
    /// Many tasks want one lock.
    Contend,
    /// Receive from whichever of two channels has something.
    Select,
}

/// The room of the channels of [`Bench::Throughput`].
pub const CAPACITY: usize = 1_000;

/// How many tasks there are of [`Bench::Contend`].
pub const CROWDS: [usize; 2] = [4, 100];

/// How long the tasks of [`Bench::Contend`] hold the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// For a few instructions, with as many between two locks. On a single worker, where a fiber runs until it waits, there is
    /// hardly ever contention.
    Short,
    /// Across a yield: whoever runs then finds the lock taken.
    Yield,
}

impl Hold {
    /// Both, with each number of tasks.
    pub(crate) fn crowds() -> impl Iterator<Item = (usize, Hold)> {
        CROWDS
            .into_iter()
            .flat_map(|crowd| [Hold::Short, Hold::Yield].map(|hold| (crowd, hold)))
    }

    /// What lines call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Hold::Short => "short",
            Hold::Yield => "yielding",
        }
    }
}

impl Bench {
    /// How long a round of one case is to take, and how many there are. Where nothing has to be started first, many short ones: most
    /// of them fit into the time that a busy machine leaves a thread undisturbed.
    fn rounds(self) -> (Duration, usize) {
        match self {
            Bench::Lock | Bench::Channel => (Duration::from_millis(1), 151),
            Bench::Throughput | Bench::Select => (Duration::from_millis(20), 15),
            Bench::Contend => (Duration::from_millis(50), 7),
        }
    }

    /// The one that the command line calls so.
    pub fn named(name: &str) -> Option<Bench> {
        Some(match name {
            "lock" => Bench::Lock,
            "channel" => Bench::Channel,
            "throughput" => Bench::Throughput,
            "contend" => Bench::Contend,
            "select" => Bench::Select,
            _ => return None,
        })
    }
}

/// Something to measure.
pub struct Case<'a> {
    /// The variant to print.
    pub name: String,
    run: Box<dyn Fn(usize) -> Outcome<Duration> + 'a>,
}

impl<'a> Case<'a> {
    /// `run` does so many things and gives the time for all.
    pub fn new(name: impl Into<String>, run: impl Fn(usize) -> Outcome<Duration> + 'a) -> Case<'a> {
        Case {
            name: name.into(),
            run: Box::new(run),
        }
    }

    /// Something that cannot be measured, and why.
    pub fn lacking(name: impl Into<String>, reason: &'static str) -> Case<'a> {
        Case::new(name, move |_| Err(reason.into()))
    }

    /// How many things fit into such a time; finding out warms up, too.
    fn fitting(&self, round: Duration) -> Outcome<usize> {
        let mut n = SHARES;
        loop {
            let time = (self.run)(n)?;
            if time >= TRY {
                let fitting = n as f64 * round.as_secs_f64() / time.as_secs_f64();
                return Ok((fitting as usize).max(1).next_multiple_of(SHARES));
            }
            n *= 4;
        }
    }
}

/// The nanoseconds for one thing of each case: the median over rounds of `n`, or of as many as fit.
pub fn measure(bench: Bench, cases: &[Case], n: Option<usize>) -> Vec<Outcome<f64>> {
    let (length, rounds) = bench.rounds();
    let start = Instant::now();
    let warm_up = |case: &Case| match n.map(|n| n.next_multiple_of(SHARES)) {
        Some(n) => (case.run)(n).map(|_| n),
        None => case.fitting(length),
    };
    let counts: Vec<Outcome<usize>> = cases.iter().map(warm_up).collect();
    let mut times: Vec<Outcome<Vec<f64>>> = counts
        .iter()
        .map(|count| count.as_ref().map(|_| Vec::new()).map_err(String::clone))
        .collect();
    for round in 0..rounds {
        if round > 0 && start.elapsed() > micro::ENOUGH * 2 {
            break;
        }
        for turn in 0..cases.len() {
            // Nobody always follows the same one.
            let which = if round % 2 == 0 {
                turn
            } else {
                cases.len() - 1 - turn
            };
            let (Ok(count), Ok(values)) = (&counts[which], &mut times[which]) else {
                continue;
            };
            match (cases[which].run)(*count) {
                Ok(time) => values.push(micro::each(*count)(time)),
                Err(reason) => times[which] = Err(reason),
            }
        }
    }
    times
        .into_iter()
        .map(|values| values.map(|mut values| micro::middle(&mut values)))
        .collect()
}
