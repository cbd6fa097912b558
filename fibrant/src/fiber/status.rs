//! Where a hand-driven fiber is in its life: one byte of its control block.
//!
//! [`block`](super::block) writes it at each switch; the owner, dumps and counters read it, later from other threads, too.

use super::WaitReason;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Where a fiber is in its life.
///
/// ```
/// use fibrant::fiber::{self, Fiber, State};
///
/// let fiber = Fiber::new(fiber::suspend);
/// assert_eq!(fiber.state(), State::Init);
/// assert_eq!(fiber.resume().unwrap(), State::Ready);
/// assert_eq!(fiber.resume().unwrap(), State::Term);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not started, or reset.
    Init,
    /// Suspended: it can be resumed.
    Ready,
    /// Running, or waiting for a fiber that it has resumed.
    Running,
    /// Ended: it returned, panicked, or was unwound.
    Term,
}

/// A fiber's state and, in Ready, whether its thread was panicking: written by the fiber's thread, read by
/// any. One byte, because a switch is so short that a second store shows.
pub(super) struct Status(AtomicU8);

impl Status {
    const INIT: u8 = 0;
    const RUNNING: u8 = 1;
    const TERM: u8 = 2;
    const READY: u8 = 3;
    /// Added to that if the thread was panicking.
    const PANICKING: u8 = 0x80;

    pub(super) const fn init() -> Status {
        Status(AtomicU8::new(Status::INIT))
    }

    #[inline(always)]
    pub(super) fn set_init(&self) {
        self.0.store(Status::INIT, Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_running(&self) {
        self.0.store(Status::RUNNING, Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_term(&self) {
        self.0.store(Status::TERM, Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_ready(&self, panicking: bool) {
        let panicking = u8::from(panicking) * Status::PANICKING;
        self.0.store(Status::READY | panicking, Relaxed);
    }

    /// Whether it was suspended while its thread was panicking.
    pub(super) fn was_panicking(&self) -> bool {
        self.0.load(Relaxed) & Status::PANICKING != 0
    }

    #[inline(always)]
    pub(super) fn state(&self) -> State {
        match self.0.load(Relaxed) {
            Status::INIT => State::Init,
            Status::RUNNING => State::Running,
            Status::TERM => State::Term,
            _ => State::Ready,
        }
    }

    /// What it waits for: a fiber that is driven by hand can only have suspended itself.
    pub(super) fn reason(&self) -> Option<WaitReason> {
        (self.state() == State::Ready).then_some(WaitReason::Suspended)
    }
}
