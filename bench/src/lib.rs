//! What the programs in src/bin/ share: the harnesses of the benchmarks, and what several libraries are measured with.
//!
//! Nothing here uses our library: a program that contains it has its hooks, and the peers' must not.

pub mod bare;
pub mod blocking;
pub mod cases;
pub mod families;
pub mod load;
pub mod meeting;
pub mod micro;
pub mod on_tokio;
pub mod plain;
pub mod serve;
pub mod threads;

/// Boost.Context, where it is installed.
#[cfg(boost)]
pub mod boost {
    use std::time::Duration;

    unsafe extern "C" {
        fn boost_round_trips(n: u64, count: usize);
        fn boost_create(n: u64);
        fn boost_fresh(count: usize) -> u64;
    }

    /// `n` rounds of resume and suspend over each of `count` fibers.
    pub fn round_trips(n: u64, count: usize) {
        // SAFETY: the function takes any numbers; its fibers are static, and only the benchmark's one thread calls it.
        unsafe { boost_round_trips(n, count) }
    }

    /// `n` times: make a fiber on a pooled stack, run it to its end, drop it.
    pub fn create(n: u64) {
        // SAFETY: as above.
        unsafe { boost_create(n) }
    }

    /// The time to make `count` fibers on guarded stacks of their own, and to run each to its first suspension.
    pub fn fresh(count: usize) -> Duration {
        // SAFETY: as above.
        Duration::from_nanos(unsafe { boost_fresh(count) })
    }
}
