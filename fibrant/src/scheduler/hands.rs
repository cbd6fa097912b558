//! In whose hands a worker is that a thread of the user's drives: `caller` asks, `tests/models.rs` checks it in all orders.
//!
//! **Away**: in nobody's; its thread does something else. **Manned**: its thread drives it. When its runtime is over, somebody has to complete
//! the fibers that are left, for whoever joins them: its thread, when it leaves, or whoever shuts the runtime down, if that finds it away.
//! That one is **giving up** meanwhile, and then it is **given up**: its thread does not enter it again. As late errands may still come, it may
//! be given up once more.
//!
//! One of the two always does it: its thread says that it is away before it asks whether the runtime is over, and whoever shuts the runtime down
//! says that it is over before it asks whether the thread is away.

use crate::primitives::atomic::{
    AtomicU8,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

const AWAY: u8 = 0;
const MANNED: u8 = 1;
const GIVING_UP: u8 = 2;
const GIVEN_UP: u8 = 3;

/// In whose hands a worker is. Whoever was told `true` here may touch it until it says that it has done so.
pub(crate) struct Hands(AtomicU8);

impl Hands {
    /// Those of nobody.
    pub(crate) fn new() -> Hands {
        Hands(AtomicU8::new(AWAY))
    }

    /// Its thread comes to drive it. Returns whether it may: not if it has been given up, nor a second time, in a destructor that the worker
    /// itself runs.
    pub(crate) fn man(&self) -> bool {
        self.0.compare_exchange(AWAY, MANNED, Acquire, Relaxed).is_ok()
    }

    /// Its thread leaves, and then gives it up if the runtime is over.
    pub(crate) fn leave(&self) {
        self.0.store(AWAY, Release);
    }

    /// Somebody, who has left it or has ended the runtime, wants to give it up, if the runtime `is_over`. Returns whether it is to do so, and say
    /// when it has.
    pub(crate) fn give_up(&self, is_over: impl FnOnce() -> bool) -> bool {
        // Between what the caller has said and what it asks: see above.
        fence(SeqCst);
        let seize = |from| self.0.compare_exchange(from, GIVING_UP, Acquire, Relaxed).is_ok();
        is_over() && (seize(AWAY) || seize(GIVEN_UP))
    }

    /// It has been given up.
    pub(crate) fn note_given_up(&self) {
        self.0.store(GIVEN_UP, Release);
    }
}
