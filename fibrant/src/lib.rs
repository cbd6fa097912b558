#![doc = include_str!("../README.md")]

pub mod fiber;
pub mod stats;

mod context;
mod env;

/// The raw switch, for this workspace's benchmarks only.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
