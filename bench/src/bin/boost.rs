//! Fibers that are resumed by hand, on Boost.Context, where it is installed.

use bench::micro::{Args, Peer};

/// Boost.Context.
struct Boost;

#[cfg(boost)]
impl Peer for Boost {
    fn cases(&self, bench: bench::cases::Bench) -> Vec<bench::cases::Case<'_>> {
        use bench::boost::{create, fresh, round_trips};
        use bench::cases::{Bench, Case, FRESH, MANY};
        use std::time::Instant;

        let timed = |name: &'static str, run: fn(usize)| {
            Case::timed(name, move |n| {
                let start = Instant::now();
                run(n);
                start.elapsed()
            })
        };
        match bench {
            Bench::Resume => vec![
                timed("1", |n| round_trips(n as u64, 1)),
                timed("1000", |n| {
                    round_trips((n / MANY) as u64, MANY);
                    round_trips(1, n % MANY);
                }),
            ],
            Bench::Create => vec![timed("-", |n| create(n as u64))],
            Bench::Fresh => vec![Case::timed("-", |n| {
                (0..n).step_by(FRESH).map(|made| fresh(FRESH.min(n - made))).sum()
            })],
            _ => Vec::new(),
        }
    }
}

#[cfg(not(boost))]
impl Peer for Boost {}

fn main() {
    let args = Args::parse("boost");
    if args.server().is_some() {
        args.refuse("the library has no servers");
    }
    if cfg!(not(boost)) {
        return args.fail("Boost.Context is not installed");
    }
    args.run(&Boost);
}
