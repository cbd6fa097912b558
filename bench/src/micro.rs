//! The harness of the micro-benchmarks in src/bin/: which there are, how often each is run and what is printed.
//!
//! Each binary there is one [`Peer`], called as `<binary> <bench> <workers> [n]`. A process runs one benchmark, so that
//! none finds the memory, caches and threads that another left. A line is `peer bench variant value unit`, separated by
//! tabs; where there is no variant, or no unit, `-`. The value is a median, or `FAIL: ` and the reason.

use std::env;
use std::fmt::Display;
use std::fs;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::sync::{self, Bench, Case};

/// How often a measurement is repeated after a first run that does not count.
const ROUNDS: usize = 5;
/// A slow measurement is repeated less often: not after this time.
pub(crate) const ENOUGH: Duration = Duration::from_secs(30);
/// How many tasks `spawn` starts before it joins them.
const BATCH: usize = 1_000;
/// Over how long `idle` looks at parked tasks.
const IDLE: Duration = Duration::from_secs(5);

/// A result, or why there is none.
pub type Outcome<T> = Result<T, String>;

/// Where the two tasks of a round trip run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Both on one worker.
    Same,
    /// Where the library puts them, with all its workers.
    Free,
    /// On two workers, for good.
    Across,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Same => "same",
            Place::Free => "free",
            Place::Across => "across",
        }
    }
}

/// What parked tasks cost.
pub struct Parked {
    /// The growth of resident memory and page tables.
    pub bytes: f64,
    /// The processor time over the real time.
    pub load: f64,
}

/// A library under test. A time that it gives is taken within its runtime, without the start of that.
pub trait Peer {
    /// `tasks` tasks, on one worker if there is a way to say so, yield `n` times each.
    fn yields(&self, tasks: usize, n: usize) -> Outcome<Duration>;

    /// `batches` times: spawn `batch` trivial tasks, then join them.
    fn spawn(&self, batch: usize, batches: usize) -> Outcome<Duration>;

    /// A tree of tasks, ten children each, down to `leaves` leaves, that sums the leaves' numbers by joining. Also gives the
    /// sum.
    fn skynet(&self, leaves: u64) -> Outcome<(Duration, u64)>;

    /// Two tasks hand a token to and fro, `n` round trips, each waiting in the way that suits the library best.
    fn pingpong(&self, place: Place, n: usize) -> Outcome<Duration>;

    /// The same with two eventfds, for the bare cost of the system calls.
    fn eventfd(&self, _place: Place, _n: usize) -> Outcome<Duration> {
        Err("for threads only".into())
    }

    /// Inserts `n` timers with the deadlines of [`timer`], then cancels them: the time for each of the two.
    fn timers(&self, _n: usize) -> Outcome<(Duration, Duration)> {
        Err("the library has no timers apart from sleeping tasks".into())
    }

    /// `n` tasks sleep until their [`Alarm::deadline`]s, having called [`arrive`].
    fn expire(&self, n: usize) -> Outcome<Expired>;

    /// `n` tasks call [`arrive`] and park; figures taken with a [`Gauge`] over `hold`.
    fn parked(&self, n: usize, hold: Duration) -> Outcome<Parked>;

    /// What there is to measure of its locks and channels, and of others' that its tasks can use.
    fn sync(&self, _bench: Bench) -> Vec<Case<'_>> {
        Vec::new()
    }

    /// How many tasks the library can have at once on this machine, and what limits it.
    fn room(&self) -> (usize, &'static str) {
        (usize::MAX, "nothing")
    }
}

/// The command line.
pub struct Args {
    /// The number of workers to run.
    pub workers: usize,
    peer: &'static str,
    bench: String,
    n: Option<usize>,
}

impl Args {
    /// Reads the command line of `peer`; a wrong one ends the process.
    pub fn parse(peer: &'static str) -> Args {
        let words: Vec<String> = env::args().skip(1).collect();
        Args::from_words(peer, &words).unwrap_or_else(|| {
            eprintln!("usage: {peer} <bench> <workers> [n]");
            process::exit(2);
        })
    }

    fn from_words(peer: &'static str, words: &[String]) -> Option<Args> {
        let (bench, workers, n) = match words {
            [bench, workers] => (bench, workers, None),
            [bench, workers, n] => (bench, workers, Some(n.parse().ok().filter(|&n| n > 0)?)),
            _ => return None,
        };
        Some(Args {
            workers: workers.parse().ok().filter(|&w| w > 0)?,
            peer,
            bench: bench.clone(),
            n,
        })
    }

    /// Prints that the benchmark cannot run.
    pub fn fail(&self, reason: &str) {
        self.line(&self.bench, "-", Err(reason.into()), "-");
    }

    fn n(&self, default: usize) -> usize {
        self.n.unwrap_or(default)
    }

    /// `n`, and the variant to print: if the machine has no room for `need` tasks, says so and goes on with `fallback`.
    fn fit(&self, peer: &impl Peer, n: usize, need: usize, fallback: usize) -> (usize, String) {
        let (room, limit) = peer.room();
        if need <= room {
            return (n, "-".into());
        }
        self.fail(&format!("{need} tasks at once, {limit} allows about {room}"));
        (fallback, format!("n={fallback}"))
    }

    fn line(&self, bench: &str, variant: impl Display, value: Outcome<f64>, unit: &str) {
        match value {
            Ok(value) => println!("{}\t{bench}\t{variant}\t{value:.2}\t{unit}", self.peer),
            Err(reason) => println!("{}\t{bench}\t{variant}\tFAIL: {reason}\t-", self.peer),
        }
    }

    /// Runs the benchmark that the command line names.
    pub fn run(&self, peer: &impl Peer) {
        match self.bench.as_str() {
            "yield2" => self.yields(peer, 2, 1_000_000),
            "yield1000" => self.yields(peer, 1_000, 1_000),
            "spawn" => self.spawn(peer, BATCH, 1_000_000),
            "spawn1" => self.spawn(peer, 1, 300_000),
            "skynet" => self.skynet(peer),
            "pingpong" => self.round_trips(|place, n| peer.pingpong(place, n)),
            "eventfd" => self.round_trips(|place, n| peer.eventfd(place, n)),
            "timers" => self.timers(peer),
            "expire" => self.expire(peer),
            "mem" => self.mem(peer),
            "idle" => self.idle(peer),
            other => match Bench::named(other) {
                Some(bench) => self.sync(peer, bench),
                None => self.fail("no such benchmark"),
            },
        }
    }

    fn sync(&self, peer: &impl Peer, bench: Bench) {
        let cases = peer.sync(bench);
        if cases.is_empty() {
            return self.fail("the library has nothing of the kind");
        }
        for (case, time) in cases.iter().zip(sync::measure(bench, &cases, self.n)) {
            self.line(&self.bench, &case.name, time, "ns");
        }
    }

    fn yields(&self, peer: &impl Peer, tasks: usize, default: usize) {
        let n = self.n(default);
        let time = median(|| peer.yields(tasks, n).map(each(tasks * n)));
        self.line(&self.bench, "-", time, "ns");
    }

    fn spawn(&self, peer: &impl Peer, batch: usize, default: usize) {
        let batches = self.n(default).div_ceil(batch);
        let time = median(|| peer.spawn(batch, batches).map(each(batch * batches)));
        self.line(&self.bench, "-", time, "ns");
    }

    fn skynet(&self, peer: &impl Peer) {
        let n = self.n(1_000_000);
        if 10_usize.pow(n.ilog10()) != n {
            return self.fail("n is no power of ten");
        }
        let (n, variant) = self.fit(peer, n, n + n / 9, n.min(10_000));
        let leaves = n as u64;
        let time = median(|| {
            let (time, sum) = peer.skynet(leaves)?;
            assert_eq!(sum, leaves * (leaves - 1) / 2);
            Ok(millis(time))
        });
        self.line(&self.bench, variant, time, "ms");
    }

    fn round_trips(&self, trip: impl Fn(Place, usize) -> Outcome<Duration>) {
        let n = self.n(200_000);
        let places: &[Place] = if self.workers == 1 {
            &[Place::Same]
        } else {
            &[Place::Same, Place::Free, Place::Across]
        };
        for &place in places {
            let time = median(|| trip(place, n).map(each(n)));
            self.line(&self.bench, place.name(), time, "ns");
        }
    }

    fn timers(&self, peer: &impl Peer) {
        let n = self.n(1_000_000);
        let mut cancels = Vec::new();
        let insert = median(|| {
            let (insert, cancel) = peer.timers(n)?;
            cancels.push(each(n)(cancel));
            Ok(each(n)(insert))
        });
        let cancel = insert
            .as_ref()
            .map_err(String::clone)
            .map(|_| middle(&mut cancels[1..]));
        self.line("timer_insert", "-", insert, "ns");
        self.line("timer_cancel", "-", cancel, "ns");
    }

    fn expire(&self, peer: &impl Peer) {
        let n = self.n(1_000_000);
        let (n, variant) = self.fit(peer, n, n, n.min(10_000));
        match peer.expire(n) {
            Ok(expired) => {
                self.line(&self.bench, &variant, Ok(millis(expired.cpu)), "ms");
                let wall = if variant == "-" {
                    "wall".into()
                } else {
                    format!("wall {variant}")
                };
                self.line(&self.bench, wall, Ok(millis(expired.wall)), "ms");
            }
            Err(reason) => self.line(&self.bench, variant, Err(reason), "-"),
        }
    }

    fn mem(&self, peer: &impl Peer) {
        let n = self.n(100_000);
        let (n, variant) = self.fit(peer, n, n, n.min(10_000));
        let bytes = peer
            .parked(n, Duration::ZERO)
            .map(|parked| parked.bytes / n as f64);
        self.line(&self.bench, variant, bytes, "B");
    }

    fn idle(&self, peer: &impl Peer) {
        let n = self.n(10_000);
        let (n, variant) = self.fit(peer, n, n, n.min(10_000));
        let load = peer.parked(n, IDLE).map(|parked| parked.load * 100.0);
        self.line(&self.bench, variant, load, "%");
    }
}

/// The median over some rounds, after one to warm up.
fn median(mut measure: impl FnMut() -> Outcome<f64>) -> Outcome<f64> {
    let start = Instant::now();
    measure()?;
    let mut values = Vec::with_capacity(ROUNDS);
    while values.is_empty() || (values.len() < ROUNDS && start.elapsed() < ENOUGH) {
        values.push(measure()?);
    }
    Ok(middle(&mut values))
}

pub(crate) fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds for each of `count` things.
pub(crate) fn each(count: usize) -> impl Fn(Duration) -> f64 {
    move |time| time.as_nanos() as f64 / count as f64
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// How far ahead timer `index` of [`Peer::timers`] is: from 1 s to 1000 s, in no order.
pub fn timer(index: usize) -> Duration {
    let scattered = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    Duration::from_secs(1) + Duration::from_nanos(999_000_000_000 / (1 << 16) * (scattered >> 16))
}

/// The processor time of the process, in all its threads.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on Linux, and `time` is there to be written to.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The bytes of memory that the process and its page tables have now.
pub fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let kilobytes = |name: &str| -> usize {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect(name);
        line.trim().trim_end_matches(" kB").parse().expect(name)
    };
    (kilobytes("VmRSS:") + kilobytes("VmPTE:")) << 10
}

/// A number in a file of /proc/sys, such as `vm/max_map_count`.
pub fn system_limit(name: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).expect(name);
    text.trim().parse().expect(name)
}

/// How many tasks are about to park or sleep. One process runs one benchmark, so one count will do.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);

/// Counts the calling task in.
pub fn arrive() {
    ARRIVED.fetch_add(1, Ordering::Relaxed);
}

/// How many tasks have called [`arrive`].
pub fn arrived() -> usize {
    ARRIVED.load(Ordering::Relaxed)
}

/// Measures what parked tasks cost: made before they are, then told when they have arrived, then read.
pub struct Gauge {
    empty: usize,
    full: usize,
    start: Instant,
    cpu: Duration,
}

impl Gauge {
    /// How long to wait from the last [`arrive`] to [`Gauge::begin`].
    pub const SETTLE: Duration = Duration::from_millis(200);

    /// Notes the memory without the tasks.
    pub fn new() -> Gauge {
        let empty = resident();
        Gauge {
            empty,
            full: empty,
            start: Instant::now(),
            cpu: cpu_time(),
        }
    }

    /// Notes the memory with the tasks, and starts to watch the processor.
    pub fn begin(&mut self) {
        *self = Gauge {
            empty: self.empty,
            full: resident(),
            start: Instant::now(),
            cpu: cpu_time(),
        };
    }

    /// The figures since then.
    pub fn read(&self) -> Parked {
        let cpu = cpu_time() - self.cpu;
        Parked {
            bytes: self.full as f64 - self.empty as f64,
            load: cpu.as_secs_f64() / self.start.elapsed().as_secs_f64(),
        }
    }
}

impl Default for Gauge {
    fn default() -> Gauge {
        Gauge::new()
    }
}

/// When the tasks of [`Peer::expire`] wake: evenly over one second, which begins when all have gone to sleep.
pub struct Alarm {
    n: usize,
    first: Instant,
    cpu: OnceLock<Duration>,
}

/// What it took to wake them.
pub struct Expired {
    /// The processor time from the first deadline to the last join.
    pub cpu: Duration,
    /// The time from the first deadline to the last join.
    pub wall: Duration,
}

impl Alarm {
    /// Chooses the times for `n` tasks.
    pub fn new(n: usize) -> Alarm {
        let first = Instant::now() + Duration::from_secs(1) + Duration::from_micros(25) * n as u32;
        Alarm {
            n,
            first,
            cpu: OnceLock::new(),
        }
    }

    /// When task `index` is to wake.
    pub fn deadline(&self, index: usize) -> Instant {
        self.first + Duration::from_secs(1).mul_f64(index as f64 / self.n as f64)
    }

    /// How long task `index` has to sleep from now on.
    pub fn remaining(&self, index: usize) -> Duration {
        self.deadline(index).saturating_duration_since(Instant::now())
    }

    /// When to call [`Alarm::begin`]: right before the first deadline.
    pub fn eve(&self) -> Instant {
        self.first - Duration::from_millis(50)
    }

    /// Starts to watch the processor. By now all tasks must sleep.
    pub fn begin(&self) -> Outcome<()> {
        self.cpu.get_or_init(cpu_time);
        if arrived() < self.n || Instant::now() > self.first {
            return Err(format!("only {} of {} tasks slept in time", arrived(), self.n));
        }
        Ok(())
    }

    /// The figures since then, when the last task has been joined.
    pub fn end(&self) -> Expired {
        let began = *self.cpu.get().expect("begun");
        Expired {
            cpu: cpu_time() - began,
            wall: self.first.elapsed(),
        }
    }
}

/// A token that two tasks hand to and fro, for libraries whose tasks can park and unpark each other.
#[derive(Default)]
pub struct Token {
    with_pong: AtomicBool,
}

impl Token {
    /// Plays one side, pong or ping, for `n` round trips: waits for the token, passes it on and wakes the other side. Ping has
    /// it first.
    pub fn play(&self, pong: bool, n: usize, park: impl Fn(), wake: impl Fn()) {
        for _ in 0..n {
            while self.with_pong.load(Ordering::Acquire) != pong {
                park();
            }
            self.with_pong.store(!pong, Ordering::Release);
            wake();
        }
    }
}
