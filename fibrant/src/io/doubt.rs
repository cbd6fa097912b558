//! Doubts: which descriptors' waits are to be looked after, because what they rest on may be wrong.
//!
//! A registration may be gone: the descriptor was closed without our knowledge, and its number may stand for another file. So a wait
//! that lasts verifies it, once ([`watch`](mod@super::watch)). Most waits do not last, and a deadline for each would be a good part of what a wait costs.
//! So there is none. A *descriptor* is put on a list when somebody begins to wait for it, unless it is on one; from time to time the
//! [reactor](super::reactor) takes the whole list and looks who still waits. Whoever it finds for the second time is old enough. A
//! descriptor for which nobody young is left leaves the list, so that an idle worker has none, and sleeps.
//!
//! There is a list for each degree of trust, and each is looked at half as often as the one before: a connection whose messages are
//! far apart would otherwise be verified for each of them.

use crate::clock;
use std::cell::{Cell, RefCell};
use std::num::NonZeroU8;
use std::os::fd::RawFd;

/// How often the list of those that are not trusted is looked at: nanoseconds. A wait is verified after one to two of these.
const PERIOD: u64 = 10_000_000;

/// How many lists there are. The period of the last is somewhat more than half a second.
const LISTS: usize = 7;

/// A worker's lists.
pub(super) struct Doubts {
    lists: [List; LISTS],
    /// When the first of them is to be looked at.
    due: Cell<u64>,
}

struct List {
    descriptors: RefCell<Vec<RawFd>>,
    /// Room for the next ones, while these are looked at.
    room: RefCell<Vec<RawFd>>,
    /// When it is to be looked at; never, if it is empty.
    due: Cell<u64>,
    /// Changes with each look, so that what has come since is told from what is looked at.
    is_odd_turn: Cell<bool>,
}

/// What a wait has seen of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// It has begun since the last look.
    Young,
    /// It was there at the last look.
    Old,
    /// It has been interrupted, to verify what it rests on.
    Reminded,
    /// It has been verified, or need not be.
    Settled,
}

/// What a descriptor's registration says of the list that it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed(NonZeroU8);

impl Listed {
    /// The list, and which kind of turn it has. In one byte: there is one of these for each descriptor.
    fn new(list: u8, is_odd_turn: bool) -> Listed {
        Listed(NonZeroU8::MIN.saturating_add(list << 1 | u8::from(is_odd_turn)))
    }

    #[inline]
    fn list(self) -> u8 {
        (self.0.get() - 1) >> 1
    }

    /// Whether somebody who trusts it so much is reminded early enough.
    #[inline]
    pub(super) fn suits(self, trust: u8) -> bool {
        self.list() <= list_for(trust)
    }
}

/// The list for what was found to be good so often in a row.
#[inline]
fn list_for(trust: u8) -> u8 {
    trust.min(LISTS as u8 - 1)
}

impl Doubts {
    pub(super) fn new() -> Doubts {
        let list = || List {
            descriptors: RefCell::default(),
            room: RefCell::default(),
            due: Cell::new(clock::NEVER),
            is_odd_turn: Cell::new(false),
        };
        Doubts {
            lists: std::array::from_fn(|_| list()),
            due: Cell::new(clock::NEVER),
        }
    }

    /// When the next list is to be looked at; never, if all are empty.
    pub(super) fn due(&self) -> u64 {
        self.due.get()
    }

    /// Puts a descriptor on the list for what is trusted so much. Returns what its registration is to say.
    pub(super) fn add(&self, fd: RawFd, trust: u8) -> Listed {
        self.add_to(list_for(trust), fd)
    }

    fn add_to(&self, number: u8, fd: RawFd) -> Listed {
        let list = &self.lists[usize::from(number)];
        list.descriptors.borrow_mut().push(fd);
        if list.due.get() == clock::NEVER {
            list.due.set(clock::now() + (PERIOD << number));
            self.due.set(self.due.get().min(list.due.get()));
        }
        Listed::new(number, list.is_odd_turn.get())
    }

    /// Puts a descriptor back on the list from which it was taken.
    pub(super) fn add_again(&self, fd: RawFd, listed: Listed) -> Listed {
        self.add_to(listed.list(), fd)
    }

    /// Takes the lists whose time has come, one after the other; with what the registrations of those on it say, unless they are on
    /// another by now.
    pub(super) fn take_due(&self, now: u64) -> Option<(Listed, Vec<RawFd>)> {
        let index = self.lists.iter().position(|list| list.due.get() <= now)?;
        let list = &self.lists[index];
        list.due.set(clock::NEVER);
        let dues = self.lists.iter().map(|list| list.due.get());
        self.due.set(dues.min().unwrap_or(clock::NEVER));
        let descriptors = list.descriptors.replace(list.room.take());
        let is_odd_turn = list.is_odd_turn.replace(!list.is_odd_turn.get());
        Some((Listed::new(index as u8, is_odd_turn), descriptors))
    }

    /// Keeps the room that a list has taken.
    pub(super) fn keep_room(&self, listed: Listed, mut descriptors: Vec<RawFd>) {
        descriptors.clear();
        self.lists[usize::from(listed.list())].room.replace(descriptors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_taken_when_its_time_has_come() {
        let doubts = Doubts::new();
        assert_eq!(doubts.due(), clock::NEVER);
        let [of_3, of_5, of_4] = [(3, 0), (5, 1), (4, 0)].map(|(fd, trust)| doubts.add(fd, trust));
        assert_eq!(of_3, of_4);
        let first = doubts.due();
        assert!(doubts.take_due(first - 1).is_none());
        assert_eq!(doubts.take_due(first), Some((of_3, vec![3, 4])));
        assert!(doubts.due() > first && doubts.due() < clock::NEVER);
        assert_eq!(doubts.take_due(doubts.due()), Some((of_5, vec![5])));
        assert_eq!(doubts.due(), clock::NEVER);
    }

    #[test]
    fn what_is_put_back_is_told_from_what_was_taken() {
        let doubts = Doubts::new();
        doubts.add(3, 0);
        let (taken, _) = doubts.take_due(clock::NEVER - 1).unwrap();
        let again = doubts.add_again(3, taken);
        assert_ne!(again, taken);
        assert!(again.suits(0) && taken.suits(7) && !doubts.add(4, 2).suits(1));
        assert_eq!(doubts.take_due(clock::NEVER - 1), Some((again, vec![3])));
    }

    #[test]
    fn those_who_are_trusted_more_are_looked_at_less_often() {
        let doubts = Doubts::new();
        let now = clock::now();
        doubts.add(3, 200);
        assert!(doubts.due() >= now + (PERIOD << (LISTS - 1)));
        doubts.add(4, 2);
        assert!(doubts.due() < now + (PERIOD << (LISTS - 1)));
    }
}
