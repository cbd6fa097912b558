//! The load generator of the benchmarks of servers; src/bin/load.rs is its program, and says how it is called.
//!
//! What a request takes depends on what else the machine does, and changes within seconds. So the servers take turns of a fraction of a
//! second, in which the others are stopped; each turn gives one figure of each kind, and it is for the reader of the lines to take their
//! median. Only the split of the processor time into the server's own and the kernel's is taken over all turns: the kernel finds it by
//! looking at each tick of its clock, too seldom for one turn.
//!
//! The generator is one thread. Whether it or the server sets the pace is told by `client idle`, the share of the time in which it had
//! nothing to do: near zero, rate and latencies are its own limit more than the server's; the processor time is the server's in any
//! case.
//!
//! `options` is the command line, `server` a server's process, `client` the connections to it, `talk` what is said on them;
//! `strace` and `wrk` run those programs.

mod client;
mod options;
mod server;
mod strace;
mod talk;
mod wrk;

use std::fmt::Display;
use std::time::Duration;

use client::{Client, Turn};
use hdrhistogram::Histogram;
use options::Options;
pub use options::USAGE;
use server::{Seats, Server};
use strace::Strace;
use talk::Talk;

use crate::serve;

/// A result, or the reason why there is none.
type Outcome<T> = Result<T, String>;

/// Descriptors that are not connections.
const SPARE: usize = 100;

/// Which shares of the latencies are printed.
const PERCENTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

/// Does what the command line says; the error is one of the command line. A server that fails has a line that says so, and no turns
/// any more.
pub fn run(arguments: impl Iterator<Item = String>) -> Outcome<()> {
    let options = Options::parse(arguments)?;
    serve::allow_many_connections();
    let seats = if options.workers == 1 {
        Seats::apart()
    } else {
        Seats::default()
    };
    let room = options.connections * options.servers.len() + SPARE <= descriptors();
    let mut peers: Vec<Peer> = options
        .servers
        .iter()
        .filter_map(|(label, command)| {
            let peer = Peer::start(label, command, &options, seats);
            peer.map_err(|reason| fail(label, &options, "-", &reason)).ok()
        })
        .collect();
    seats.take();
    for peer in &mut peers {
        // wrk would find the server with twice the connections.
        peer.stays_connected = room && !options.wrk;
    }
    for _ in 0..options.rounds {
        give_turns(&mut peers, Peer::turn);
        if options.wrk {
            give_turns(&mut peers, Peer::wrk);
        }
    }
    for peer in &peers {
        peer.print_split();
    }
    if options.syscalls {
        give_turns(&mut peers, Peer::syscalls);
    }
    Ok(())
}

/// Each server has a turn while the others are stopped; those that fail have no more.
fn give_turns<'a>(peers: &mut Vec<Peer<'a>>, turn: fn(&mut Peer<'a>) -> Outcome<()>) {
    peers.retain_mut(|peer| {
        peer.server.go_on();
        let outcome = turn(peer).and_then(|()| {
            if !peer.stays_connected && peer.client.take().is_some() {
                peer.server.let_settle()?;
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {
                peer.server.stop();
                true
            }
            Err(reason) => {
                let end = peer.server.end().map(|end| format!(" ({end})"));
                let reason = reason + &end.unwrap_or_default();
                fail(peer.label, peer.options, "-", &reason);
                false
            }
        }
    });
}

/// A server, and what is known of it.
struct Peer<'a> {
    label: &'a str,
    options: &'a Options,
    // Before the connections: when all is dropped, it ends first, and need not see them close.
    server: Server,
    client: Option<Client>,
    stays_connected: bool,
    /// Over all turns: the processor time that is counted, the answers for it, and the ticks of the server's own and the kernel's.
    time: Duration,
    answers: u64,
    ticks: (u64, u64),
}

impl<'a> Peer<'a> {
    fn start(label: &'a str, command: &str, options: &'a Options, seats: Seats) -> Outcome<Self> {
        let server = Server::start(command, seats)?;
        server.stop();
        Ok(Self {
            label,
            options,
            server,
            client: None,
            stays_connected: false,
            time: Duration::ZERO,
            answers: 0,
            ticks: (0, 0),
        })
    }

    fn print(&self, variant: impl Display, value: impl Display, unit: &str) {
        let service = self.options.service.name();
        println!("{}\t{service}\t{variant}\t{value}\t{unit}", self.label);
    }

    /// The connections, which are made if there are none.
    fn connect(&mut self) -> Outcome<&mut Client> {
        if self.client.is_none() {
            let Options {
                service,
                size,
                connections,
                ..
            } = *self.options;
            let port = self.server.port;
            let client = Client::connect(port, connections, Talk::new(service, size, port))?;
            self.client = Some(client);
        }
        Ok(self.client.as_mut().expect("there are now"))
    }

    /// Measures once.
    fn turn(&mut self) -> Outcome<()> {
        self.connect()?;
        let (server, client) = (&self.server, self.client.as_mut().expect("just made"));
        let mut marks = Vec::with_capacity(2);
        let ticks = server.ticks()?;
        let turn = client.turn(self.options.warm_up(), self.options.counted(), || {
            marks.push(server.processor_time()?);
            Ok(())
        })?;
        let ticks_now = server.ticks()?;
        let time = marks[1] - marks[0];
        self.time += time;
        self.answers += turn.answers;
        self.ticks.0 += ticks_now.0 - ticks.0;
        self.ticks.1 += ticks_now.1 - ticks.1;
        self.print_turn(time, &turn);
        Ok(())
    }

    fn print_turn(&self, time: Duration, turn: &Turn) {
        let seconds = turn.time.as_secs_f64();
        self.print("cpu", format_args!("{:.2}", each(time, turn.answers)), "us");
        self.print(
            "rate",
            format_args!("{:.0}", turn.answers as f64 / seconds),
            "req/s",
        );
        let latencies = self.client.as_ref().expect("connected").latencies();
        for (name, value) in percentiles(latencies) {
            self.print(name, format_args!("{value:.1}"), "us");
        }
        let idle = 100.0 * turn.idle.as_secs_f64() / seconds;
        self.print("client idle", format_args!("{idle:.1}"), "%");
    }

    /// What of the processor time was the server's own and what the kernel's.
    fn print_split(&self) {
        let (own, system) = self.ticks;
        if own + system == 0 {
            return;
        }
        let all = each(self.time, self.answers);
        let own = all * own as f64 / (own + system) as f64;
        self.print("cpu user", format_args!("{own:.2}"), "us");
        self.print("cpu system", format_args!("{:.2}", all - own), "us");
    }

    /// Counts the system calls for each request. It is no fault of the server's if that cannot be.
    fn syscalls(&mut self) -> Outcome<()> {
        let time = self.options.counted();
        self.connect()?;
        let strace = match Strace::attach(self.server.id()) {
            Ok(strace) => strace,
            Err(reason) => {
                fail(self.label, self.options, "syscalls all", &reason);
                return Ok(());
            }
        };
        let answers = self.connect()?.requests(time)? as f64;
        match strace.detach() {
            Ok(calls) => {
                for (name, count) in &calls {
                    let each = *count as f64 / answers;
                    // What is done once, for all.
                    if each >= 0.005 {
                        self.print(format_args!("syscalls {name}"), format_args!("{each:.2}"), "-");
                    }
                }
                let all: u64 = calls.iter().map(|(_, count)| count).sum();
                let each = all as f64 / answers;
                self.print("syscalls all", format_args!("{each:.2}"), "-");
            }
            Err(reason) => fail(self.label, self.options, "syscalls all", &reason),
        }
        Ok(())
    }

    /// A turn of wrk's.
    fn wrk(&mut self) -> Outcome<()> {
        match wrk::run(self.server.port, self.options.connections, self.options.counted()) {
            Ok(figures) => {
                self.print("wrk rate", format_args!("{:.0}", figures.rate), "req/s");
                self.print("wrk p50", format_args!("{:.1}", figures.p50), "us");
                self.print("wrk p99", format_args!("{:.1}", figures.p99), "us");
            }
            Err(reason) => fail(self.label, self.options, "wrk rate", &reason),
        }
        self.server.let_settle()
    }
}

fn fail(label: &str, options: &Options, variant: &str, reason: &str) {
    println!(
        "{label}\t{}\t{variant}\tFAIL: {reason}\t-",
        options.service.name()
    );
}

/// Microseconds of some time for each of so many.
fn each(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

/// The percentiles of latencies in nanoseconds, in microseconds.
fn percentiles(latencies: &Histogram<u64>) -> impl Iterator<Item = (&'static str, f64)> {
    PERCENTILES
        .map(|(name, quantile)| (name, latencies.value_at_quantile(quantile) as f64 / 1e3))
        .into_iter()
}

/// How many descriptors the process may have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is there to be written to.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut latencies = client::histogram();
        (1..=1000).for_each(|value| latencies.saturating_record(value * 1000));
        let found: Vec<_> = percentiles(&latencies).collect();
        assert_eq!(found.len(), PERCENTILES.len());
        for ((name, value), (expected_name, expected)) in found.iter().zip([
            ("p50", 500.0),
            ("p90", 900.0),
            ("p99", 990.0),
            ("p99.9", 999.0),
            ("p99.99", 1000.0),
            ("max", 1000.0),
        ]) {
            assert_eq!(*name, expected_name);
            assert!((value / expected - 1.0).abs() < 0.002, "{name}: {value}");
        }
    }

    #[test]
    fn time_for_each_is_in_microseconds() {
        assert_eq!(each(Duration::from_millis(300), 50_000), 6.0);
    }
}
