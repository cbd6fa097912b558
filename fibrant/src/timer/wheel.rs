//! The wheel: all the deadlines that one worker waits for, in a hierarchical timing wheel.
//!
//! The I/O driver of a worker owns it and is its only caller. The driver inserts the deadlines of waits and of
//! timers, advances the wheel after each poll, and asks for the next deadline before it sleeps. The wheel calls
//! nothing but the function that [`Wheel::advance`] is given. It reads no clock: the driver passes the time in.
//!
//! # Levels
//!
//! Time is cut into ticks. A tick's number has 48 bits; read it as eight digits of six bits each. Every digit has
//! a level, every level has 64 slots, one for each value of its digit. A slot is a list of alarms. The wheel
//! remembers the tick that it has reached. An alarm is put on the level of the highest digit in which its tick
//! differs from the reached one, in the slot of its own digit there:
//!
//! ```text
//!   level          7   6   5   4   3   2   1   0
//!   reached tick   0 . 0 . 0 . 0 . 0 . 0 . 5 . 9
//!   alarm A        0 . 0 . 0 . 0 . 0 . 0 . 5 .12    differs first on level 0: level 0, slot 12
//!   alarm B        0 . 0 . 0 . 0 . 0 . 0 . 7 . 3    differs first on level 1: level 1, slot  7
//!   alarm C        0 . 0 . 0 . 0 . 2 . 0 . 0 . 1    differs first on level 3: level 3, slot  2
//! ```
//!
//! So a slot of level 0 is one tick, a slot of level 1 is 64 ticks, and so on: near deadlines lie finely sorted,
//! far ones coarsely. Every alarm of a level is later than every alarm of the levels below it. When the reached
//! tick enters a slot of a higher level, the slot's alarms now agree with it in that digit too, and are moved to
//! lower levels. An alarm moves down at most seven times; most are removed before they move at all.
//!
//! The tick is 2^16 ns, 65.5 us. Then eight levels of six bits cover all of u64, and no deadline needs a special
//! place. It is also about the slack of 50 us with which Linux ends a sleep, so a wake-up finds few ticks to visit,
//! and rarely more than a handful of alarms in one, which need little sorting. The tick does not round: an alarm
//! goes off by its exact deadline.
//!
//! # Slots
//!
//! [`Wheel::next_deadline`] is exact, so it needs the minimum of the first slot that is not empty. That slot may
//! hold 100,000 alarms, and a scan before each sleep would be too slow. Therefore a slot's list begins with a run
//! that is sorted by deadline; whatever did not fit comes behind it in order of insertion:
//!
//! ```text
//!   head                 sorted               tail
//!    10 -> 20 -> 20 -> 40 -> 25 -> 90 -> 31         rest = 25: nothing behind the run is earlier
//! ```
//!
//! A new earliest alarm goes to the front, a new latest one extends the run, so equal timeouts, armed and removed
//! in any order, keep the whole list sorted. Only if the run's first is later than `rest` must the rest be looked
//! at: a short rest gives its earliest alarm to the run, a long one is sorted into it once.

use crate::scheduler::Alarm;
use std::cell::Cell;
use std::ptr::NonNull;

/// Binary digits of the nanoseconds within a tick.
const TICK_BITS: u32 = 16;
/// Binary digits of a tick's number that choose the slot of one level.
const LEVEL_BITS: u32 = 6;
/// Slots of a level: as many as a bitmap has bits.
const WIDTH: usize = 1 << LEVEL_BITS;
/// Levels: enough for every tick of a u64 of nanoseconds.
const LEVELS: usize = 8;
/// The slot behind those of the levels: alarms that [`Wheel::advance`] found due and has not passed on yet.
const DUE: usize = LEVELS * WIDTH;
/// How much of a slot's rest is looked at for its earliest alarm before it is sorted instead.
const LOOK: usize = 64;
/// The most pieces a list is in while it is sorted. Piece n is made of 2^n runs, and memory holds fewer than 2^48.
const PIECES: usize = 48;

const _: () = assert!(TICK_BITS + LEVEL_BITS * LEVELS as u32 == u64::BITS && WIDTH == u64::BITS as usize);

/// A neighbour in a list, or the list's end.
type Link = Option<NonNull<Alarm>>;

/// The alarms of one slot.
struct Slot {
    /// The list's first alarm.
    head: Cell<Link>,
    /// The list's last alarm.
    tail: Cell<Link>,
    /// The last alarm of the sorted run that the list begins with; None if the run is empty.
    sorted: Cell<Link>,
    /// No alarm behind the sorted run has an earlier deadline. u64::MAX if there is no such alarm.
    rest: Cell<u64>,
}

/// Some alarms, linked in both directions. There is at least one.
#[derive(Clone, Copy)]
struct List {
    /// The first: its `previous` is None.
    head: NonNull<Alarm>,
    /// The last: its `next` is None.
    tail: NonNull<Alarm>,
}

/// The deadlines of one worker. It owns no alarm: dropping it leaves armed ones alone.
//
// What all of the unsafe code below rests on: a list holds an alarm from `insert` until it is unlinked, by
// `remove` or before `expired` sees it. `insert`'s caller keeps it valid and in place for that time. So every
// alarm that is reached through a list is valid. An alarm consists of Cells and the wheel takes only shared
// references to it, which end before `expired` runs; so neither aliasing nor re-entrance can break them.
pub(crate) struct Wheel {
    /// The slots of all levels, lowest level first, then [`DUE`].
    slots: Box<[Slot; DUE + 1]>,
    /// A bitmap for each level, and one for [`DUE`]: the slots that are not empty.
    occupied: [Cell<u64>; LEVELS + 1],
    /// The tick that has been reached. It decides where an alarm belongs.
    reached: Cell<u64>,
    /// The latest time that the wheel was told.
    now: Cell<u64>,
    /// How many alarms are armed.
    len: Cell<usize>,
}

impl Wheel {
    /// A wheel without alarms. This allocates; nothing else here does.
    pub(crate) fn new(now: u64) -> Wheel {
        // By way of a vector, because an array would first be built on the stack, and a fiber's may be small.
        let empty = || Slot {
            head: Cell::new(None),
            tail: Cell::new(None),
            sorted: Cell::new(None),
            rest: Cell::new(u64::MAX),
        };
        let slots: Vec<Slot> = std::iter::repeat_with(empty).take(DUE + 1).collect();
        let Ok(slots) = slots.into_boxed_slice().try_into() else {
            unreachable!("as many slots as were asked for")
        };
        Wheel {
            slots,
            occupied: [const { Cell::new(0) }; LEVELS + 1],
            reached: Cell::new(now >> TICK_BITS),
            now: Cell::new(now),
            len: Cell::new(0),
        }
    }

    /// Arms an alarm. A deadline that has passed already is found by the next [`Wheel::advance`].
    ///
    /// # Safety
    ///
    /// The alarm is unarmed. It stays in place and valid, and only this thread uses it, until it has expired or was
    /// removed, or the wheel is gone.
    #[inline]
    pub(crate) unsafe fn insert(&self, alarm: NonNull<Alarm>, deadline: u64) {
        // SAFETY: the caller keeps the alarm valid from now on, and no `&mut` to it can be in use meanwhile, because
        // the caller would break the same promise with it.
        let fields = unsafe { alarm.as_ref() };
        debug_assert!(!fields.is_armed(), "an alarm is armed twice");
        fields.deadline.set(deadline);
        self.len.set(self.len.get() + 1);
        // SAFETY: the alarm is valid, see above. It is unarmed, so it is in no list, and the index is of a slot that
        // its deadline belongs in.
        unsafe { self.link(alarm, self.index(deadline)) };
    }

    /// Disarms an alarm.
    ///
    /// # Safety
    ///
    /// The alarm is armed in this wheel.
    #[inline]
    pub(crate) unsafe fn remove(&self, alarm: NonNull<Alarm>) {
        // SAFETY: the alarm is armed here, so it is in one of this wheel's lists, and `insert`'s caller keeps it valid
        // as long as it is in one. After `unlink` it is valid still: nothing else runs in between.
        unsafe {
            self.unlink(alarm);
            alarm.as_ref().slot.set(Alarm::UNARMED);
        }
        self.len.set(self.len.get() - 1);
    }

    /// Takes out every alarm whose deadline is not later than `now`, and calls `expired` with each, unarmed, in the
    /// order of their deadlines; those with the same deadline in the order of their insertion. If the time goes
    /// back, the latest time so far counts.
    ///
    /// `expired` may use the wheel. What it removes does not expire. What it inserts expires in the next advance at
    /// the soonest, so this ends whatever is inserted. If it panics, the next advance goes on with those left over.
    pub(crate) fn advance(&self, now: u64, mut expired: impl FnMut(NonNull<Alarm>)) {
        let now = now.max(self.now.get());
        self.now.set(now);
        self.collect(now);
        // In order already, unless alarms are left over from an advance that `expired` left by a panic, or that is
        // under way because `expired` called this one.
        self.sort(DUE);
        while let Some(alarm) = self.slots[DUE].head.get() {
            // SAFETY: the alarm is in a list of this wheel, so it is armed here. The head is read afresh each time,
            // so it does not matter what `expired` removed.
            unsafe { self.remove(alarm) };
            expired(alarm);
        }
    }

    /// The earliest deadline of all armed alarms, exactly.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        // Within `expired` there may be due alarms, and it may have inserted even earlier ones.
        let first = self.first().and_then(|index| self.earliest(index));
        let due = self.earliest(DUE);
        first.into_iter().chain(due).min()
    }

    /// How many alarms are armed.
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    /// The slot in which a deadline belongs. One that has passed belongs in the slot of the reached tick.
    #[inline]
    fn index(&self, deadline: u64) -> usize {
        let reached = self.reached.get();
        let tick = (deadline >> TICK_BITS).max(reached);
        // The lowest bit is set to make equal ticks differ on level 0.
        let level = ((tick ^ reached) | 1).ilog2() / LEVEL_BITS;
        level as usize * WIDTH + (tick >> (level * LEVEL_BITS)) as usize % WIDTH
    }

    /// The first slot of the levels that is not empty. No alarm of another one is earlier than any of its alarms:
    /// slots that the reached tick has passed are empty, and a lower level comes before a higher one.
    fn first(&self) -> Option<usize> {
        let levels = self.occupied[..LEVELS].iter().enumerate();
        let (level, occupied) = levels
            .map(|(level, bits)| (level, bits.get()))
            .find(|&(_, bits)| bits != 0)?;
        Some(level * WIDTH + occupied.trailing_zeros() as usize)
    }

    /// Moves all alarms with a deadline up to `now` to [`DUE`], and the reached tick to the one of `now`.
    ///
    /// All are collected before the first is passed on. Therefore `expired` finds a wheel that is whole and has
    /// arrived at `now`, and nothing that it inserts can get into this advance.
    fn collect(&self, now: u64) {
        let target = now >> TICK_BITS;
        while let Some(index) = self.first() {
            let (level, slot) = ((index / WIDTH) as u32, &self.slots[index]);
            let shift = level * LEVEL_BITS;
            let above = self.reached.get() >> (shift + LEVEL_BITS) << LEVEL_BITS;
            let start = (above | (index % WIDTH) as u64) << shift;
            let bound = self.bound(slot);
            if start > target {
                break;
            }
            if level == 0 {
                self.reached.set(start);
                if bound <= now {
                    self.sort(index);
                }
                while let Some(alarm) = slot.head.get() {
                    // SAFETY: the alarm is in a list, so it is valid, and it is in none between the two calls.
                    unsafe {
                        if alarm.as_ref().deadline.get() > now {
                            break;
                        }
                        self.unlink(alarm);
                        self.link(alarm, DUE);
                    }
                }
                if start == target {
                    break; // What is left is of this tick, but later than `now`.
                }
            } else {
                // Right to the tick of its first alarm, so that a lone alarm does not go through every level.
                self.reached.set((bound >> TICK_BITS).clamp(start, target));
                let mut next = slot.head.take();
                slot.tail.set(None);
                slot.sorted.set(None);
                slot.rest.set(u64::MAX);
                self.vacate(index);
                while let Some(alarm) = next {
                    // SAFETY: the alarm was in this slot's list, so it is valid. The slot has let go of its list, and
                    // the way on is read before the alarm joins another one; so it is in none when it is linked. That
                    // is never this slot again: the reached tick has the same digit on this level now.
                    unsafe {
                        let fields = alarm.as_ref();
                        next = fields.next.get();
                        self.link(alarm, self.index(fields.deadline.get()));
                    }
                }
            }
        }
        // No slot is left that begins before, so every alarm stays where it belongs.
        self.reached.set(target);
    }

    /// Puts an alarm into the list of a slot.
    ///
    /// # Safety
    ///
    /// The alarm is in no list, and valid until it is taken out of this one.
    #[inline]
    unsafe fn link(&self, alarm: NonNull<Alarm>, index: usize) {
        let slot = &self.slots[index];
        // SAFETY: the caller says that the alarm is valid. The slot's head and tail are in its list, so they are too.
        unsafe {
            let fields = alarm.as_ref();
            let deadline = fields.deadline.get();
            fields.slot.set(index as u16);
            let Some(tail) = slot.tail.get() else {
                fields.previous.set(None);
                fields.next.set(None);
                slot.head.set(Some(alarm));
                slot.tail.set(Some(alarm));
                slot.sorted.set(Some(alarm));
                let occupied = &self.occupied[index / WIDTH];
                occupied.set(occupied.get() | 1 << (index % WIDTH));
                return;
            };
            let extends = slot.sorted.get() == Some(tail) && deadline >= tail.as_ref().deadline.get();
            if !extends && deadline < self.bound(slot) {
                // Not if it is equal: of equal deadlines the first one inserted stays the first.
                self.link_first(alarm, slot);
                return;
            }
            fields.previous.set(Some(tail));
            fields.next.set(None);
            tail.as_ref().next.set(Some(alarm));
            slot.tail.set(Some(alarm));
            if extends {
                slot.sorted.set(Some(alarm));
            } else {
                slot.rest.set(slot.rest.get().min(deadline));
            }
        }
    }

    /// Puts an alarm before all others of a slot, and so into its sorted run.
    ///
    /// # Safety
    ///
    /// As for [`Wheel::link`]. The slot is not empty, and the alarm is not later than any other of it.
    unsafe fn link_first(&self, alarm: NonNull<Alarm>, slot: &Slot) {
        let head = slot.head.replace(Some(alarm));
        // SAFETY: the caller says that the alarm is valid, and the head was in the slot's list.
        unsafe {
            alarm.as_ref().previous.set(None);
            alarm.as_ref().next.set(head);
            if let Some(head) = head {
                head.as_ref().previous.set(Some(alarm));
            }
        }
        if slot.sorted.get().is_none() {
            slot.sorted.set(Some(alarm));
        }
    }

    /// Takes an alarm out of the list that it is in.
    ///
    /// # Safety
    ///
    /// The alarm is in a list of this wheel.
    #[inline]
    unsafe fn unlink(&self, alarm: NonNull<Alarm>) {
        // SAFETY: the alarm is in a list, and so are its neighbours; so all three are valid.
        unsafe {
            let fields = alarm.as_ref();
            let index = fields.slot.get() as usize;
            let slot = &self.slots[index];
            let (previous, next) = (fields.previous.get(), fields.next.get());
            match previous {
                Some(previous) => previous.as_ref().next.set(next),
                None => slot.head.set(next),
            }
            match next {
                Some(next) => next.as_ref().previous.set(previous),
                None => slot.tail.set(previous),
            }
            if slot.sorted.get() == Some(alarm) {
                slot.sorted.set(previous);
            }
            if slot.sorted.get() == slot.tail.get() {
                slot.rest.set(u64::MAX);
                if slot.head.get().is_none() {
                    self.vacate(index);
                }
            }
        }
    }

    /// Notes that a slot is empty.
    #[inline]
    fn vacate(&self, index: usize) {
        let occupied = &self.occupied[index / WIDTH];
        occupied.set(occupied.get() & !(1 << (index % WIDTH)));
    }

    /// A time that no alarm of a slot is earlier than; u64::MAX if the slot is empty. It is the exact minimum, unless
    /// it comes from `rest` and the alarm that set `rest` was removed.
    #[inline]
    fn bound(&self, slot: &Slot) -> u64 {
        // SAFETY: the head is in a list, so it is valid.
        let head = slot
            .head
            .get()
            .map_or(u64::MAX, |head| unsafe { head.as_ref() }.deadline.get());
        head.min(slot.rest.get())
    }

    /// The earliest deadline of a slot; None if it is empty.
    fn earliest(&self, index: usize) -> Option<u64> {
        let slot = &self.slots[index];
        let head = slot.head.get()?;
        // SAFETY: the head is in a list, so it is valid.
        let deadline = unsafe { head.as_ref() }.deadline.get();
        if deadline <= slot.rest.get() {
            return Some(deadline); // Neither the run nor the rest has an earlier one.
        }
        self.settle(index);
        Some(self.bound(slot))
    }

    /// Makes the bound of a slot its exact minimum, and its head the alarm with it.
    ///
    /// It looks at no more than [`LOOK`] alarms. If there are more behind the run, they are sorted into it. That
    /// walks the run too, but more than [`LOOK`] alarms must have been inserted since the last time to cause it.
    fn settle(&self, index: usize) {
        let slot = &self.slots[index];
        let Some(head) = slot.head.get() else { return };
        let mut first: Option<(u64, NonNull<Alarm>)> = None;
        let mut second = u64::MAX;
        let mut next = self.behind(slot);
        for _ in 0..LOOK {
            let Some(alarm) = next else { break };
            step();
            // SAFETY: the alarm is in this slot's list, so it is valid.
            let fields = unsafe { alarm.as_ref() };
            let deadline = fields.deadline.get();
            match first {
                Some((least, _)) if deadline >= least => second = second.min(deadline),
                _ => {
                    second = first.map_or(u64::MAX, |(least, _)| least);
                    first = Some((deadline, alarm));
                }
            }
            next = fields.next.get();
        }
        let Some((least, alarm)) = first else { return };
        if next.is_some() {
            self.sort(index);
        } else if alarm == head {
            // There was no run. It is one now.
            slot.sorted.set(Some(alarm));
            slot.rest.set(second);
        // SAFETY: the head is in a list, so it is valid.
        } else if slot.sorted.get().is_none() || least < unsafe { head.as_ref() }.deadline.get() {
            // SAFETY: the alarm is in this slot's list. The head is too and is another one, so the list is not empty
            // in between. The alarm is the earliest behind the run, and earlier than the run's first.
            unsafe {
                self.unlink(alarm);
                self.link_first(alarm, slot);
            }
            slot.rest.set(second);
        } else {
            slot.rest.set(least);
        }
    }

    /// The first alarm behind the sorted run of a slot.
    fn behind(&self, slot: &Slot) -> Link {
        match slot.sorted.get() {
            // SAFETY: the run's last alarm is in a list, so it is valid.
            Some(last) => unsafe { last.as_ref() }.next.get(),
            None => slot.head.get(),
        }
    }

    /// Sorts the list of a slot. Alarms with the same deadline keep their order.
    fn sort(&self, index: usize) {
        let slot = &self.slots[index];
        let Some(rest) = self.behind(slot) else { return };
        // SAFETY: all the alarms are in this slot's list, so they are valid. The list is cut behind the run, so that
        // the two parts share no alarm and each of them ends.
        let list = unsafe {
            match (slot.head.get(), slot.sorted.get()) {
                (Some(head), Some(tail)) => {
                    tail.as_ref().next.set(None);
                    merge(List { head, tail }, sort(rest))
                }
                _ => sort(rest),
            }
        };
        slot.head.set(Some(list.head));
        slot.tail.set(Some(list.tail));
        slot.sorted.set(Some(list.tail));
        slot.rest.set(u64::MAX);
    }
}

/// Sorts the alarms from this one on: a merge sort of the runs that are in order already.
///
/// # Safety
///
/// The alarms are valid and linked by `next`.
unsafe fn sort(first: NonNull<Alarm>) -> List {
    let mut pieces: [Option<List>; PIECES] = [None; PIECES];
    let mut rest = Some(first);
    while let Some(head) = rest {
        let mut tail = head;
        // SAFETY: every alarm on the way is valid, as the caller says.
        unsafe {
            loop {
                step();
                rest = tail.as_ref().next.get();
                match rest {
                    Some(next) if next.as_ref().deadline.get() >= tail.as_ref().deadline.get() => tail = next,
                    _ => break,
                }
            }
            head.as_ref().previous.set(None);
            tail.as_ref().next.set(None);
        }
        // Count up in binary: two pieces of the same size become one of the next size. The older one goes first.
        let mut list = List { head, tail };
        for piece in &mut pieces {
            let Some(older) = piece.take() else {
                *piece = Some(list);
                break;
            };
            // SAFETY: both were cut from the caller's alarms, at different places.
            list = unsafe { merge(older, list) };
        }
    }
    // SAFETY: as above. The larger of two pieces is the older one.
    let merged = pieces
        .into_iter()
        .flatten()
        .reduce(|newer, older| unsafe { merge(older, newer) });
    let Some(list) = merged else {
        unreachable!("there is at least one alarm")
    };
    list
}

/// Merges two sorted lists. Of equal deadlines, those of the left list go first.
///
/// # Safety
///
/// The alarms are valid, and no alarm is in both lists.
unsafe fn merge(left: List, right: List) -> List {
    let (mut a, mut b) = (left.head, right.head);
    let mut last: Link = None;
    let mut head = None;
    // SAFETY: the caller says that all alarms are valid. As the lists share none, an alarm that was taken is not
    // reached again, so its links may be overwritten: the way on is read before.
    unsafe {
        // Appends an alarm to what has been merged.
        let mut append = |alarm: NonNull<Alarm>| {
            alarm.as_ref().previous.set(last);
            match last {
                Some(last) => last.as_ref().next.set(Some(alarm)),
                None => head = Some(alarm),
            }
            last = Some(alarm);
        };
        // When one list has ended, the other one's remainder is in order and linked, and is appended as it is.
        let (remainder, tail) = loop {
            step();
            if a.as_ref().deadline.get() <= b.as_ref().deadline.get() {
                let next = a.as_ref().next.get();
                append(a);
                let Some(next) = next else { break (b, right.tail) };
                a = next;
            } else {
                let next = b.as_ref().next.get();
                append(b);
                let Some(next) = next else { break (a, left.tail) };
                b = next;
            }
        };
        append(remainder);
        List {
            head: head.unwrap_or(remainder),
            tail,
        }
    }
}

#[cfg(test)]
std::thread_local! {
    /// The steps that this thread has taken along lists, apart from those that move an alarm.
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Counts a step along a list, in tests only: they check that there are few.
#[inline]
fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
