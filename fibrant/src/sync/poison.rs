//! Poisoning: a lock remembers that somebody panicked who held it exclusively.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::thread;

/// Whether a lock is poisoned.
pub(super) struct Flag(AtomicBool);

/// Whether its holder was panicking already when it locked: then its end poisons nothing.
#[derive(Clone, Copy)]
pub(super) struct WasPanicking(bool);

impl Flag {
    pub(super) const fn new() -> Flag {
        Flag(AtomicBool::new(false))
    }

    #[inline]
    pub(super) fn get(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(super) fn clear(&self) {
        self.0.store(false, Relaxed);
    }

    /// To be kept by the guard of somebody who has just locked.
    #[inline]
    pub(super) fn enter(&self) -> WasPanicking {
        WasPanicking(thread::panicking())
    }

    /// The guard goes away.
    #[inline]
    pub(super) fn leave(&self, entered: WasPanicking) {
        if !entered.0 && thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }

    /// What a lock gives: the guard, as an error if it is poisoned.
    #[inline]
    pub(super) fn wrap<G>(&self, guard: G) -> LockResult<G> {
        if self.get() {
            Err(PoisonError::new(guard))
        } else {
            Ok(guard)
        }
    }

    /// What an attempt gives.
    #[inline]
    pub(super) fn wrap_try<G>(&self, guard: Option<G>) -> TryLockResult<G> {
        match guard {
            Some(guard) => Ok(self.wrap(guard)?),
            None => Err(TryLockError::WouldBlock),
        }
    }
}
