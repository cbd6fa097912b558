#![doc = include_str!("../README.md")]

pub mod fiber;
pub mod hook;
pub mod io;
pub mod runtime;
pub mod stats;
pub mod sync;
pub mod timer;

pub use runtime::scope::{Scope, ScopedJoinHandle, scope};
pub use runtime::spawn::{Builder, run, run_on, spawn, spawn_blocking, spawn_local, switch_to};
pub use scheduler::{Cancelled, DeferCancel, Elapsed, JoinHandle, defer_cancel, sleep, timeout, yield_now};

/// What the crate fibrant-c is made of. No promise is made about it.
#[doc(hidden)]
pub use runtime::routine;
#[cfg(feature = "c-api")]
#[doc(hidden)]
pub use scheduler::is_time_up;

mod clock;
mod context;
mod env;
mod primitives;
mod scheduler;
mod sys;

/// The raw switch, for this workspace's benchmarks only.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;

/// The examples of the page for those who come from sylar are tested with ours.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-sylar.md")]
struct FromSylar;

/// And those of the page about hooks.
#[cfg(doctest)]
#[doc = include_str!("../../docs/hooks.md")]
struct Hooks;

/// And those of the page about threads and fibers.
#[cfg(doctest)]
#[doc = include_str!("../../docs/threads-or-fibers.md")]
struct ThreadsOrFibers;

/// And those of the page about locks and channels.
#[cfg(doctest)]
#[doc = include_str!("../../docs/sync.md")]
struct Sync;
