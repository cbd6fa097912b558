//! Locks, channels and select, made for fibers.
//!
//! They are for fibers of any worker, light or isolated, and for plain threads, mixed at will. std's own work between fibers, too; these
//! are faster there, can be cancelled, and [dumps](crate::runtime::Handle::dump) tell who holds them and who waits for them. Signatures
//! and poisoning are as those of [`std::sync`].

// Inside the library: `someone` is whoever waits; `list` is where they stand, an own one for each lock or channel; `table` and `address` are
// where the hooks of futexes and of the C library's locks let them stand, by address.

pub(crate) mod address;
mod barrier;
pub mod channel;
#[cfg(test)]
mod choice_tests;
mod condvar;
mod holder;
mod list;
mod mutex;
mod poison;
mod raw_mutex;
mod raw_rwlock;
mod raw_semaphore;
mod rwlock;
mod semaphore;
mod someone;
mod subject;
mod table;
mod wait_group;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use wait_group::WaitGroup;
