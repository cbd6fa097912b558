//! Whether a worker that has nothing to do looks on for a moment before it sleeps.
//!
//! To wake a thread takes the kernel microseconds, on a virtual machine tens of them. Where fibers of two workers answer each
//! other, that is nearly all of the time: each worker falls asleep just before its next letter comes. Such a worker *watches* its
//! inbox for a moment instead, and the letter is found in a fraction of a microsecond, without a system call on either side. Where
//! nothing comes, watching is processor time for nothing. So it has to pay:
//!
//! - A worker that has just slept, for less than [`SHORT`], until a letter came, is **on**: it watches before it falls asleep next.
//! - As long as watches find letters, it stays on.
//! - A watch **in vain** turns it off, and it takes more such short sleeps to turn it on than it took the last time: about twice as
//!   many, up to [`MOST`]. Each watch that finds something makes that one less. So where letters come, but not soon enough, less
//!   than one sleep in a hundred is preceded by a watch; and a runtime in which nothing happens never watches.
//!
//! [`Worker::sleep`](super::worker::Worker::sleep) asks and tells; what is watched for is there, too. All of this is the worker's own.

use std::cell::Cell;

/// How long a watch lasts: nanoseconds. Longer than it takes to wake another thread, as most often that has to answer first.
pub(super) const LENGTH: u64 = 50_000;

/// A sleep that is shorter, in nanoseconds, would not have come about if both sides had watched: two threads are woken in less.
pub(super) const SHORT: u64 = 150_000;

/// The most short sleeps that it takes to turn it on again.
const MOST: u32 = 100;

/// Whether to watch, and what has come of it.
pub(super) struct Vigil {
    is_on: Cell<bool>,
    /// How many short sleeps are still to come before it is on.
    wanting: Cell<u32>,
    /// How many it will take after the next watch in vain, but for what that adds.
    doubt: Cell<u32>,
}

impl Vigil {
    pub(super) fn new() -> Vigil {
        Vigil {
            is_on: Cell::new(false),
            wanting: Cell::new(0),
            doubt: Cell::new(0),
        }
    }

    /// Whether to watch before the next sleep.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// A watch has found a letter.
    pub(super) fn note_found(&self) {
        self.doubt.set(self.doubt.get().saturating_sub(1));
    }

    /// A watch was in vain.
    pub(super) fn note_vain(&self) {
        self.is_on.set(false);
        self.doubt.set(MOST.min(2 * self.doubt.get() + 2));
        self.wanting.set(self.doubt.get());
    }

    /// A letter has ended a sleep of so many nanoseconds.
    pub(super) fn note_letter(&self, slept: u64) {
        if slept >= SHORT {
            return;
        }
        match self.wanting.get().checked_sub(1) {
            Some(wanting) => self.wanting.set(wanting),
            None => self.is_on.set(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has so many short sleeps, or fewer if it is on before. Returns how many it had.
    fn sleep_until_on(vigil: &Vigil, most: u32) -> u32 {
        let mut count = 0;
        while !vigil.is_on() && count < most {
            vigil.note_letter(SHORT - 1);
            count += 1;
        }
        count
    }

    #[test]
    fn a_short_sleep_that_a_letter_ends_turns_it_on_and_a_long_one_does_not() {
        let vigil = Vigil::new();
        assert!(!vigil.is_on());
        vigil.note_letter(SHORT);
        assert!(!vigil.is_on());
        vigil.note_letter(SHORT - 1);
        assert!(vigil.is_on());
        (0..1000).for_each(|_| vigil.note_found());
        assert!(vigil.is_on());
        vigil.note_vain();
        assert!(!vigil.is_on());
    }

    #[test]
    fn watches_in_vain_become_rare() {
        let vigil = Vigil::new();
        let mut before = sleep_until_on(&vigil, 1);
        for _ in 0..10 {
            vigil.note_vain();
            let count = sleep_until_on(&vigil, 2 * MOST);
            assert!(count > before || count == MOST + 1, "{count} after {before}");
            before = count;
        }
        assert_eq!(before, MOST + 1);
    }

    #[test]
    fn one_success_for_each_failure_is_not_enough() {
        let vigil = Vigil::new();
        sleep_until_on(&vigil, 1);
        for _ in 0..200 {
            vigil.note_found();
            vigil.note_vain();
            sleep_until_on(&vigil, 2 * MOST);
        }
        vigil.note_vain();
        assert_eq!(sleep_until_on(&vigil, 2 * MOST), MOST + 1);
    }

    #[test]
    fn what_pays_again_is_trusted_again() {
        let vigil = Vigil::new();
        sleep_until_on(&vigil, 1);
        for _ in 0..20 {
            vigil.note_vain();
            sleep_until_on(&vigil, 2 * MOST);
        }
        (0..MOST).for_each(|_| vigil.note_found());
        vigil.note_vain();
        assert_eq!(sleep_until_on(&vigil, 2 * MOST), 3);
    }
}
