//! The wait word: how a scheduled fiber's waits begin and end, in one atomic number.
//!
//! Everything that blocks a scheduled fiber goes through it ([`scheduler`](crate::scheduler) begins waits; events, alarms,
//! unparks, closes and cancels end them). Whoever wants to end a wait *claims* it; exactly one claim wins, and only the
//! winner puts the fiber back into a queue. A wait has a number, and a claim names it: one that comes late, for a wait that
//! is over, fails and cannot touch the next.
//!
//! # The phases
//!
//! - **Awake**: no wait has begun, or the last one was claimed. The fiber runs, or is on its way to run.
//! - **Waiting**: a wait has begun and nobody has claimed it. The fiber has left its stack, or is about to: it may be claimed
//!   before it has. That does no harm, as its own worker alone puts it on the processor again.
//!
//! [`begin`](Wait::begin) leads from Awake to Waiting, on the fiber itself. A claim leads back: [`claim`](Wait::claim) by
//! number, [`unpark`](Wait::unpark) if the wait is a park, [`cancel`](Wait::cancel) if it may be cancelled. Two marks
//! outlast the phases: the *token*, left by an unpark that found no park, which the next park takes instead of waiting; and
//! the *cancel request*, which stays for good.
//!
//! A third mark, the *pin*, is set by somebody who looks at what a waiting fiber waits for ([`pin`](Wait::pin)). A claim does not
//! remove it, and the fiber does not go on from its wait until it is gone ([`outcome`](Wait::outcome)): what it has in its frame, and
//! what it waits for, stays as long as it is looked at.
//!
//! ```text
//!    63          16 15       8   6    5     4      3      2       1..0
//!    +-------------+---------+----+------+-----+--------+------+-------+
//!    | wait number | outcome |pin |cancel|token|cancell.| park | phase |
//!    +-------------+---------+----+------+-----+--------+------+-------+
//! ```

use crate::primitives::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::primitives::{spin, yield_thread};
use std::num::NonZeroU64;

const WAITING: u64 = 1;
/// The wait is a park: an unpark ends it.
const PARK: u64 = 1 << 2;
/// The wait ends when the fiber is cancelled.
const CANCELLABLE: u64 = 1 << 3;
/// An unpark came before the park.
const TOKEN: u64 = 1 << 4;
/// Somebody wants the fiber to end.
const CANCEL: u64 = 1 << 5;
/// Somebody looks at what the fiber waits for.
const PIN: u64 = 1 << 6;
const OUTCOME_SHIFT: u32 = 8;
const NUMBER_SHIFT: u32 = 16;
/// What one wait leaves behind for the next.
const LASTING: u64 = TOKEN | CANCEL | PIN;

/// A fiber's wait word.
pub(crate) struct Wait(AtomicU64);

/// Which wait of a fiber: claims for another one fail. Never zero, so that a place for one that may be empty takes no more room: the
/// number in its place in the word, and a one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitNumber(NonZeroU64);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    /// What the fiber waited for has happened.
    Woken = 1,
    /// The deadline came first.
    TimedOut = 2,
    /// The fiber was cancelled.
    Cancelled = 3,
    /// What it waited on was closed or cancelled by somebody else.
    Closed = 4,
}

/// Who may end a wait, besides those who are told its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitKind {
    /// `unpark` ends it.
    pub(crate) park: bool,
    /// `cancel` ends it.
    pub(crate) cancellable: bool,
}

/// Why a wait did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWait {
    /// A park found a token, and took it.
    Token,
    /// A cancellable wait found that the fiber has been cancelled.
    Cancelled,
}

impl Wait {
    /// The word of a fiber that has not waited yet.
    pub(crate) fn new() -> Wait {
        Wait(AtomicU64::new(0))
    }

    /// Begins a wait. Called by the fiber itself, which then leaves its stack, unless it claims the wait back first.
    #[inline]
    pub(crate) fn begin(&self, kind: WaitKind) -> Result<WaitNumber, NoWait> {
        self.change(|word| {
            debug_assert_eq!(word & WAITING, 0, "a fiber waits for one thing at a time");
            if kind.cancellable && word & CANCEL != 0 {
                (word, Err(NoWait::Cancelled))
            } else if kind.park && word & TOKEN != 0 {
                (word & !TOKEN, Err(NoWait::Token))
            } else {
                let number = (word >> NUMBER_SHIFT).wrapping_add(1) << NUMBER_SHIFT;
                let park = if kind.park { PARK } else { 0 };
                let cancellable = if kind.cancellable { CANCELLABLE } else { 0 };
                let next = number | (word & LASTING) | WAITING | park | cancellable;
                (next, Ok(WaitNumber(NonZeroU64::MIN | number)))
            }
        })
    }

    /// Ends this wait, unless it has ended. Who gets `true` must put the fiber back into a queue.
    #[inline]
    pub(crate) fn claim(&self, number: WaitNumber, outcome: Outcome) -> bool {
        self.change(|word| {
            let ends = word & WAITING != 0 && word >> NUMBER_SHIFT == number.0.get() >> NUMBER_SHIFT;
            (if ends { ended(word, outcome) } else { word }, ends)
        })
    }

    /// Ends a park, or leaves a token for the next. Who gets `true` must put the fiber back into a queue.
    #[inline]
    pub(crate) fn unpark(&self) -> bool {
        // A token that is there already is written again: whoever takes it must see what this caller did before.
        self.change(|word| {
            let ends = word & (WAITING | PARK) == (WAITING | PARK);
            (
                if ends {
                    ended(word, Outcome::Woken)
                } else {
                    word | TOKEN
                },
                ends,
            )
        })
    }

    /// Ends a park, if there is one, and leaves no token. Who gets `true` lets the fiber go on.
    pub(crate) fn end_park(&self) -> bool {
        self.change(|word| {
            let ends = word & (WAITING | PARK) == (WAITING | PARK);
            (if ends { ended(word, Outcome::Woken) } else { word }, ends)
        })
    }

    /// Ends a wait of any kind, if there is one. For those who know that it can be no other than the one they mean. Who gets `true` must put
    /// the fiber back into a queue, or see to it that it never goes on.
    #[inline]
    pub(crate) fn end_any(&self, outcome: Outcome) -> bool {
        self.change(|word| {
            let ends = word & WAITING != 0;
            (if ends { ended(word, outcome) } else { word }, ends)
        })
    }

    /// Asks the fiber to end, and ends its wait if that may be cancelled. Who gets `true` must put the fiber back into a
    /// queue.
    pub(crate) fn cancel(&self) -> bool {
        self.change(|word| {
            let ends = word & (WAITING | CANCELLABLE) == (WAITING | CANCELLABLE);
            let next = if ends {
                ended(word, Outcome::Cancelled)
            } else {
                word
            };
            (next | CANCEL, ends)
        })
    }

    /// Whether somebody has asked the fiber to end.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed) & CANCEL != 0
    }

    /// Whether a wait has begun and not been claimed.
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.load(Relaxed) & WAITING != 0
    }

    /// How the last wait ended. For the fiber itself, after it was put on the processor again.
    #[inline]
    pub(crate) fn outcome(&self) -> Outcome {
        let mut word = self.0.load(Acquire);
        if word & PIN != 0 {
            word = self.after_pin();
        }
        debug_assert_eq!(word & WAITING, 0, "the wait has been claimed");
        match (word >> OUTCOME_SHIFT) as u8 {
            2 => Outcome::TimedOut,
            3 => Outcome::Cancelled,
            4 => Outcome::Closed,
            _ => Outcome::Woken,
        }
    }

    /// Keeps the fiber from going on from its wait, if it waits. Who gets `true` may look at what it waits for, and then calls
    /// [`unpin`](Wait::unpin), soon: its worker spins. One at a time.
    pub(crate) fn pin(&self) -> bool {
        self.change(|word| {
            let waits = word & WAITING != 0;
            (if waits { word | PIN } else { word }, waits)
        })
    }

    /// Lets the fiber go on.
    pub(crate) fn unpin(&self) {
        self.0.fetch_and(!PIN, Release);
    }

    /// The word, when nobody looks any more.
    #[cold]
    fn after_pin(&self) -> u64 {
        let mut looks = 0;
        loop {
            let word = self.0.load(Acquire);
            if word & PIN == 0 {
                return word;
            }
            looks += 1;
            if looks < 64 {
                spin();
            } else {
                yield_thread(); // who looks may have been preempted
            }
        }
    }

    /// Replaces the word by what `f` makes of it, in one step, and returns what else `f` says.
    #[inline(always)]
    fn change<R>(&self, f: impl Fn(u64) -> (u64, R)) -> R {
        let mut word = self.0.load(Relaxed);
        loop {
            let (next, result) = f(word);
            match self.0.compare_exchange_weak(word, next, AcqRel, Relaxed) {
                Ok(_) => return result,
                Err(now) => word = now,
            }
        }
    }
}

/// The word of a fiber whose wait has just ended in this way.
#[inline(always)]
fn ended(word: u64, outcome: Outcome) -> u64 {
    (word >> NUMBER_SHIFT << NUMBER_SHIFT) | (word & LASTING) | (u64::from(outcome as u8) << OUTCOME_SHIFT)
}
