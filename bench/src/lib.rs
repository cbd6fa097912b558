//! What the benchmarks in benches/ compare with, where it needs more than a crate.

pub mod bare;
pub mod blocking;
pub mod families;
pub mod micro;
pub mod on_tokio;
pub mod sync;
pub mod threads;

/// Boost.Context, where it is installed.
#[cfg(boost)]
pub mod boost {
    unsafe extern "C" {
        fn boost_round_trips(n: u64, count: usize);
        fn boost_create(n: u64);
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
}
