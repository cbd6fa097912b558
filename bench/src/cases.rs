//! The harness of the benchmarks of several cases, such as those of locks and channels: which there are, and how cases take turns.
//!
//! `micro` calls it. A case is one kind of lock or channel, or one way to make a coroutine; a process measures all that a peer has of a
//! benchmark, in rounds in which each has its turn, so that what the machine does meanwhile hits all of them.

use std::time::{Duration, Instant};

use crate::micro::{self, Outcome};

/// How long a first try must take at least to say how many things fit into a round.
const TRY: Duration = Duration::from_millis(10);
/// How long all rounds of a case are to take.
const CASE: Duration = Duration::from_millis(60);
/// Counts are multiples of this, so that four tasks share one evenly, and a hundred, too.
const SHARES: usize = 100;

/// A benchmark of several cases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bench {
    /// Resume a coroutine, which suspends itself; over one, and over [`MANY`] in turn.
    Resume,
    /// Make a coroutine on a stack that was used before, run it to its end, drop it.
    Create,
    /// Make a coroutine on a stack that was never used, and run it to its first suspension.
    Fresh,
    /// The switch alone, there and back.
    Switch,
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
    /// Wait for each other: by a condition, at a barrier, for a group.
    Meet,
    /// Receive from channels that a clock fills.
    Moment,
}

/// How many coroutines are resumed in turn.
pub const MANY: usize = 1_000;

/// How many fresh stacks are made at most before all of them are dropped, which is not timed. A process has room for about 32,000 of
/// those that take two mappings each.
pub const FRESH: usize = 30_000;

/// The room of the channels of [`Bench::Throughput`].
pub const CAPACITY: usize = 1_000;

/// How many tasks there are of [`Bench::Contend`].
pub const CROWDS: [usize; 2] = [4, 100];

/// How many tasks meet at a barrier, or are waited for as a group, of [`Bench::Meet`].
pub const PARTY: usize = 4;

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
    /// How long a round of one case is to take. Where nothing has to be started first, short ones: most of them fit into the time that a
    /// busy machine leaves a thread undisturbed.
    fn round(self) -> Duration {
        match self {
            Bench::Resume | Bench::Create | Bench::Switch | Bench::Lock | Bench::Channel | Bench::Moment => {
                Duration::from_millis(1)
            }
            Bench::Fresh | Bench::Throughput | Bench::Select | Bench::Contend | Bench::Meet => {
                Duration::from_millis(20)
            }
        }
    }

    /// The one that the command line calls so.
    pub fn named(name: &str) -> Option<Bench> {
        Some(match name {
            "resume" => Bench::Resume,
            "create" => Bench::Create,
            "fresh" => Bench::Fresh,
            "switch" => Bench::Switch,
            "lock" => Bench::Lock,
            "channel" => Bench::Channel,
            "throughput" => Bench::Throughput,
            "contend" => Bench::Contend,
            "select" => Bench::Select,
            "meet" => Bench::Meet,
            "moment" => Bench::Moment,
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

    /// The same for something that cannot fail.
    pub fn timed(name: impl Into<String>, run: impl Fn(usize) -> Duration + 'a) -> Case<'a> {
        Case::new(name, move |n| Ok(run(n)))
    }
}

/// The nanoseconds for one thing of each case: the median over rounds of as many as fit, or over one round of `n`.
pub fn measure(bench: Bench, cases: &[Case], n: Option<usize>) -> Vec<Outcome<f64>> {
    let warm_up = |case: &Case| match n.map(|n| n.next_multiple_of(SHARES)) {
        Some(n) => (case.run)(n).map(|_| n),
        None => micro::fitting(SHARES, TRY, bench.round(), &case.run),
    };
    let counts: Vec<Outcome<usize>> = cases.iter().map(warm_up).collect();
    let mut times: Vec<Outcome<Vec<f64>>> = counts
        .iter()
        .map(|count| count.as_ref().map(|_| Vec::new()).map_err(String::clone))
        .collect();
    let measured = counts.iter().filter(|count| count.is_ok()).count();
    let enough = CASE * measured as u32;
    let start = Instant::now();
    let mut backwards = false;
    loop {
        for turn in 0..cases.len() {
            // Nobody always follows the same one.
            let which = if backwards { cases.len() - 1 - turn } else { turn };
            let (Ok(count), Ok(values)) = (&counts[which], &mut times[which]) else {
                continue;
            };
            match (cases[which].run)(*count) {
                Ok(time) => values.push(micro::each(*count)(time)),
                Err(reason) => times[which] = Err(reason),
            }
        }
        if n.is_some() || start.elapsed() >= enough {
            break;
        }
        backwards = !backwards;
    }
    times
        .into_iter()
        .map(|values| values.map(|mut values| micro::middle(&mut values)))
        .collect()
}
