//! The harness of the micro-benchmarks in src/bin/: which there are, how much each does and what is printed.
//!
//! Each binary there is one [`Peer`], called as `<binary> <bench> <workers> [n]`. A process makes one short measurement after one to warm
//! up, so that none finds the memory, caches and threads that another left; `cargo xtask bench` is who repeats processes. A line is
//! `peer bench variant value unit`, separated by tabs; where there is no variant, or no unit, `-`. Instead of a value there may be
//! `FAIL: ` and the reason.

use std::env;
use std::fmt::Display;
use std::fs;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::cases::{self, Bench, Case};
use crate::serve::Service;

/// How long a measurement takes if the command line does not say how much to do.
const LENGTH: Duration = Duration::from_millis(150);
/// It consists of rounds of about this length, of which the median counts: so a short disturbance does not.
const ROUND: Duration = Duration::from_millis(10);
/// How long the last run of its warm-up takes at least.
const WARM: Duration = Duration::from_millis(50);
/// How many tasks `spawn` starts before it joins them.
const BATCH: usize = 1_000;
/// Over how long `idle` looks at parked tasks.
const IDLE: Duration = Duration::from_secs(1);
/// The reason why most libraries fail at something.
const LACKING: &str = "the library has nothing of the kind";

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

/// What tasks cost that park and are woken.
pub struct Parked {
    /// The growth of resident memory and page tables.
    pub bytes: f64,
    /// The processor time over the real time, while they were parked.
    pub load: f64,
    /// From the first spawn until all have arrived.
    pub spawn: Duration,
    /// From the first wake-up until all have ended.
    pub wake: Duration,
}

/// A library under test. A time that it gives is taken within its runtime, without the start of that.
pub trait Peer {
    /// `tasks` tasks, on one worker if there is a way to say so, yield `n` times each.
    fn yields(&self, _tasks: usize, _n: usize) -> Outcome<Duration> {
        Err(LACKING.into())
    }

    /// `batches` times: spawn `batch` trivial tasks, then join them.
    fn spawn(&self, _batch: usize, _batches: usize) -> Outcome<Duration> {
        Err(LACKING.into())
    }

    /// A tree of tasks, ten children each, down to `leaves` leaves, that sums the leaves' numbers by joining. Also gives the
    /// sum.
    fn skynet(&self, _leaves: u64) -> Outcome<(Duration, u64)> {
        Err(LACKING.into())
    }

    /// Two tasks hand a token to and fro, `n` round trips, each waiting in the way that suits the library best.
    fn pingpong(&self, _place: Place, _n: usize) -> Outcome<Duration> {
        Err(LACKING.into())
    }

    /// The same with two eventfds, for the bare cost of the system calls.
    fn eventfd(&self, _place: Place, _n: usize) -> Outcome<Duration> {
        Err("for threads only".into())
    }

    /// The same with two eventfds that are waited for by an epoll each, as whoever waits for other things, too, has to.
    fn eventfd_epoll(&self, _place: Place, _n: usize) -> Outcome<Duration> {
        Err("for threads only".into())
    }

    /// Inserts `n` timers with the deadlines of [`timer`], then cancels them: the time for each of the two.
    fn timers(&self, _n: usize) -> Outcome<(Duration, Duration)> {
        Err("the library has no timers apart from sleeping tasks".into())
    }

    /// A task for each of the `n` times of an alarm calls [`arrive`] and sleeps until then. Right before the first one somebody calls
    /// [`Alarm::begin`], and when all tasks are joined [`Alarm::end`].
    fn expire(&self, _alarm: Alarm) -> Outcome<Expired> {
        Err(LACKING.into())
    }

    /// How long it takes at most to start a task that sleeps.
    fn start(&self) -> Duration {
        Duration::from_micros(5)
    }

    /// `n` tasks call [`arrive`] and park, and are woken after `hold`; a [`Gauge`] is told what happens.
    fn parked(&self, _n: usize, _hold: Duration) -> Outcome<Parked> {
        Err(LACKING.into())
    }

    /// What there is to measure of its coroutines, locks and channels, and of others' that its tasks can use.
    fn cases(&self, _bench: Bench) -> Vec<Case<'_>> {
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
    /// How much to do; or the port, if a server is asked for.
    n: Option<usize>,
}

impl Args {
    /// Reads the command line of `peer`; a wrong one ends the process.
    pub fn parse(peer: &'static str) -> Args {
        let words: Vec<String> = env::args().skip(1).collect();
        Args::from_words(peer, &words).unwrap_or_else(|| {
            eprintln!(
                "usage: {peer} <bench> <workers> [n]\n       {peer} <echo|stream|http> <workers> <port>"
            );
            process::exit(2);
        })
    }

    fn from_words(peer: &'static str, words: &[String]) -> Option<Args> {
        let (bench, workers, n) = match words {
            [bench, workers] => (bench, workers, None),
            [bench, workers, n] => (bench, workers, Some(n.parse().ok()?)),
            _ => return None,
        };
        let makes_sense = match Service::named(bench) {
            Some(_) => n.is_some_and(|port| port <= usize::from(u16::MAX)),
            None => n != Some(0),
        };
        makes_sense.then_some(Args {
            workers: workers.parse().ok().filter(|&w| w > 0)?,
            peer,
            bench: bench.clone(),
            n,
        })
    }

    /// The benchmark that the command line names.
    pub fn bench(&self) -> &str {
        &self.bench
    }

    /// The server that it asks for instead, and the port.
    pub fn server(&self) -> Option<(Service, u16)> {
        let service = Service::named(&self.bench)?;
        Some((service, self.n? as u16))
    }

    /// Prints that the benchmark cannot run.
    pub fn fail(&self, reason: &str) {
        self.line(&self.bench, "-", Err(reason.into()), "-");
    }

    /// Prints that the server cannot run, and ends the process.
    pub fn refuse(&self, reason: &str) -> ! {
        self.fail(reason);
        process::exit(1);
    }

    /// How much the benchmark is to do.
    pub fn n(&self, default: usize) -> usize {
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

    /// Prints a figure.
    pub fn line(&self, bench: &str, variant: impl Display, value: Outcome<f64>, unit: &str) {
        match value {
            Ok(value) => println!("{}\t{bench}\t{variant}\t{value:.2}\t{unit}", self.peer),
            Err(reason) => println!("{}\t{bench}\t{variant}\tFAIL: {reason}\t-", self.peer),
        }
    }

    /// Runs the benchmark that the command line names.
    pub fn run(&self, peer: &impl Peer) {
        match self.bench.as_str() {
            "yield2" => self.yields(peer, 2),
            "yield1000" => self.yields(peer, 1_000),
            "spawn" => self.spawn(peer, BATCH),
            "spawn1" => self.spawn(peer, 1),
            "skynet" => self.skynet(peer),
            "pingpong" => self.round_trips(|place, n| peer.pingpong(place, n)),
            "eventfd" => self.round_trips(|place, n| peer.eventfd(place, n)),
            "eventfd_epoll" => self.round_trips(|place, n| peer.eventfd_epoll(place, n)),
            "timer_insert" => self.timers(peer, |(insert, _)| insert),
            "timer_cancel" => self.timers(peer, |(_, cancel)| cancel),
            "timer_expire" => self.expire(peer),
            "mem" => self.mem(peer),
            "idle" => self.idle(peer),
            "many" => self.many(peer),
            other => match Bench::named(other) {
                Some(bench) => self.cases(peer, bench),
                None => self.fail("no such benchmark"),
            },
        }
    }

    fn cases(&self, peer: &impl Peer, bench: Bench) {
        let cases = peer.cases(bench);
        if cases.is_empty() {
            return self.fail(LACKING);
        }
        for (case, time) in cases.iter().zip(cases::measure(bench, &cases, self.n)) {
            self.line(&self.bench, &case.name, time, "ns");
        }
    }

    fn yields(&self, peer: &impl Peer, tasks: usize) {
        let time = self.each(tasks, |n| peer.yields(tasks, n / tasks));
        self.line(&self.bench, "-", time, "ns");
    }

    fn spawn(&self, peer: &impl Peer, batch: usize) {
        let time = self.each(batch, |n| peer.spawn(batch, n / batch));
        self.line(&self.bench, "-", time, "ns");
    }

    /// The nanoseconds for each thing, of which `run` does so many: a multiple of `step`.
    fn each(&self, step: usize, run: impl Fn(usize) -> Outcome<Duration>) -> Outcome<f64> {
        if let Some(n) = self.n {
            let n = n.next_multiple_of(step);
            run(n)?;
            return run(n).map(each(n));
        }
        let n = fitting(step, WARM, ROUND, &run)?;
        let mut times = Vec::new();
        let start = Instant::now();
        while times.is_empty() || start.elapsed() < LENGTH {
            times.push(each(n)(run(n)?));
        }
        Ok(middle(&mut times))
    }

    fn skynet(&self, peer: &impl Peer) {
        let n = self.n(1_000_000);
        if 10_usize.pow(n.ilog10()) != n {
            return self.fail("n is no power of ten");
        }
        let (n, variant) = self.fit(peer, n, n + n / 9, n.min(10_000));
        let leaves = n as u64;
        let run = |leaves| {
            let (time, sum) = peer.skynet(leaves)?;
            assert_eq!(sum, leaves * (leaves - 1) / 2);
            Ok(millis(time))
        };
        let time = run(leaves).and_then(|_| run(leaves));
        self.line(&self.bench, variant, time, "ms");
    }

    fn round_trips(&self, trip: impl Fn(Place, usize) -> Outcome<Duration>) {
        let places: &[Place] = if self.workers == 1 {
            &[Place::Same]
        } else {
            &[Place::Same, Place::Free, Place::Across]
        };
        for &place in places {
            let time = self.each(1, |n| trip(place, n));
            self.line(&self.bench, place.name(), time, "ns");
        }
    }

    fn timers(&self, peer: &impl Peer, which: fn((Duration, Duration)) -> Duration) {
        let n = self.n(1_000_000);
        // First in a new process, which has to touch memory for the first time, then where it is there already.
        let first = peer.timers(n).map(which).map(each(n));
        let again = first.clone().and_then(|_| peer.timers(n).map(which).map(each(n)));
        self.line(&self.bench, "first", first, "ns");
        self.line(&self.bench, "-", again, "ns");
    }

    fn expire(&self, peer: &impl Peer) {
        let n = self.n(100_000);
        let (n, variant) = self.fit(peer, n, n, n.min(10_000));
        let with = |name: &str| match variant.as_str() {
            "-" => name.to_owned(),
            variant => format!("{name} {variant}"),
        };
        let attempt = |start| peer.expire(Alarm::new(n, start));
        // First in a new process, which has to touch memory for the first time; that may take long, and even too long. Then where it is there
        // already.
        let first = attempt(peer.start());
        let again = attempt((peer.start() / 4).max(Duration::from_micros(3)));
        self.line(
            &self.bench,
            with("first"),
            first.map(|expired| each(n)(expired.cpu)),
            "ns",
        );
        match again {
            Ok(expired) => {
                self.line(&self.bench, &variant, Ok(each(n)(expired.cpu)), "ns");
                self.line(&self.bench, with("wall"), Ok(millis(expired.wall)), "ms");
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

    /// Without a warm-up: that stacks are fresh is part of it.
    fn many(&self, peer: &impl Peer) {
        let n = self.n(10_000);
        let (room, limit) = peer.room();
        if n > room {
            return self.fail(&format!("{n} tasks at once, {limit} allows about {room}"));
        }
        match peer.parked(n, Duration::ZERO) {
            Ok(parked) => {
                self.line(&self.bench, "spawn", Ok(each(n)(parked.spawn)), "ns");
                self.line(&self.bench, "wake", Ok(each(n)(parked.wake)), "ns");
                self.line(&self.bench, "memory", Ok(parked.bytes / n as f64), "B");
            }
            Err(reason) => self.fail(&reason),
        }
    }
}

/// How many things, a multiple of `step`, fit into such a time. Finding out warms up: the last run for it takes at least `warm`.
pub(crate) fn fitting(
    step: usize,
    warm: Duration,
    length: Duration,
    run: impl Fn(usize) -> Outcome<Duration>,
) -> Outcome<usize> {
    let mut n = step;
    loop {
        let time = run(n)?;
        if time >= warm {
            let fitting = n as f64 * length.as_secs_f64() / time.as_secs_f64();
            return Ok((fitting as usize).max(1).next_multiple_of(step));
        }
        n *= 4;
    }
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

/// How far ahead timer `index` of [`Peer::timers`] is: from 10 s to 1000 s, in no order.
pub fn timer(index: usize) -> Duration {
    let scattered = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    Duration::from_secs(10) + Duration::from_nanos(990_000_000_000 / (1 << 16) * (scattered >> 16))
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

/// Measures what parked tasks cost. It is made before they are, and told step by step what has happened to them.
pub struct Gauge {
    start: Instant,
    cpu: Duration,
    empty: usize,
    parked: Parked,
}

impl Gauge {
    /// How long to wait from [`Gauge::arrived`] to [`Gauge::settled`].
    pub const SETTLE: Duration = Duration::from_millis(200);

    /// Notes the memory without the tasks.
    pub fn new() -> Gauge {
        Gauge {
            empty: resident(),
            cpu: Duration::ZERO,
            parked: Parked {
                bytes: 0.0,
                load: 0.0,
                spawn: Duration::ZERO,
                wake: Duration::ZERO,
            },
            start: Instant::now(),
        }
    }

    /// All tasks have arrived.
    pub fn arrived(&mut self) {
        self.parked.spawn = self.start.elapsed();
    }

    /// They are parked: notes the memory with them, and starts to watch the processor.
    pub fn settled(&mut self) {
        self.parked.bytes = resident() as f64 - self.empty as f64;
        self.cpu = cpu_time();
        self.start = Instant::now();
    }

    /// They are about to be woken.
    pub fn waking(&mut self) {
        let cpu = cpu_time() - self.cpu;
        self.parked.load = cpu.as_secs_f64() / self.start.elapsed().as_secs_f64();
        self.start = Instant::now();
    }

    /// They have ended: the figures.
    pub fn ended(mut self) -> Parked {
        self.parked.wake = self.start.elapsed();
        self.parked
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
    /// Chooses the times for `n` tasks, each of which takes at most `start` to be started.
    fn new(n: usize, start: Duration) -> Alarm {
        ARRIVED.store(0, Ordering::Relaxed);
        let first = Instant::now() + Duration::from_millis(200) + start * n as u32;
        Alarm {
            n,
            first,
            cpu: OnceLock::new(),
        }
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        self.n
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

    /// Starts to watch the processor. By now all tasks must sleep; they are joined even if they do not.
    pub fn begin(&self) -> Outcome<()> {
        self.cpu.get_or_init(cpu_time);
        if arrived() < self.n || Instant::now() > self.first {
            return Err(format!(
                "{} of {} tasks fell asleep, and that took too long",
                arrived(),
                self.n
            ));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Args> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Args::from_words("peer", &words)
    }

    #[test]
    fn reads_benchmarks() {
        let args = parsed("yield2 3").unwrap();
        assert_eq!((args.bench(), args.workers, args.n(7)), ("yield2", 3, 7));
        assert_eq!(parsed("mem 1 5").unwrap().n(7), 5);
        assert!(parsed("mem 1 5").unwrap().server().is_none());
        for wrong in ["", "mem", "mem 0", "mem 1 0", "mem 1 x", "mem one", "mem 1 2 3"] {
            assert!(parsed(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn reads_servers() {
        assert!(matches!(
            parsed("echo 1 0").unwrap().server(),
            Some((Service::Echo, 0))
        ));
        assert!(matches!(
            parsed("http 2 65535").unwrap().server(),
            Some((Service::Http, 65535))
        ));
        for wrong in ["echo 1", "echo 0 0", "http 1 65536", "http 1 -1"] {
            assert!(parsed(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn finds_how_much_fits() {
        let each = |n: usize| Ok(Duration::from_micros(n as u64));
        let millis = Duration::from_millis;
        assert_eq!(fitting(1, millis(50), millis(150), each), Ok(150_000));
        assert_eq!(fitting(1_000, millis(1), millis(2), each), Ok(2_000));
        // Less than one thing fits.
        assert_eq!(fitting(100, millis(1), Duration::from_micros(1), each), Ok(100));
        assert!(fitting(1, millis(1), millis(1), |_| Err("no".into())).is_err());
    }

    #[test]
    fn takes_the_middle() {
        assert_eq!(middle(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(middle(&mut [5.0]), 5.0);
    }
}
