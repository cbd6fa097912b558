//! The wheel: all the deadlines that one worker waits for, in a hierarchical timing wheel.
//!
//! The I/O driver of a worker owns it and is its only caller. The driver inserts the deadlines of waits and of
//! timers, advances the wheel after each poll, and asks for the next deadline before it sleeps. The wheel calls
//! nothing, and reads no clock: the driver passes the time in.
//!
//! # Alarms
//!
//! A deadline and what it is for are an *alarm*. The wheel keeps its alarms close together in memory of its own,
//! linked by their numbers there, and not in the fibers and timers that they are for: those are far apart, and whoever
//! sorts a million deadlines would wait for memory a few million times. So what an alarm is for is looked at once, when
//! it goes off.
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
//! [`Wheel::next_alarm`] is exact, so it needs the minimum of the first slot that is not empty. That slot may
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

use crate::context;

/// Binary digits of the nanoseconds within a tick.
const TICK_BITS: u32 = 16;
/// Binary digits of a tick's number that choose the slot of one level.
const LEVEL_BITS: u32 = 6;
/// Slots of a level: as many as a bitmap has bits.
const WIDTH: usize = 1 << LEVEL_BITS;
/// Levels: enough for every tick of a u64 of nanoseconds.
const LEVELS: usize = 8;
/// The slot behind those of the levels: alarms that [`Wheel::advance`] found due and that have not been taken yet.
const DUE: usize = LEVELS * WIDTH;
/// How much of a slot's rest is looked at for its earliest alarm before it is sorted instead.
const LOOK: usize = 64;
/// How many alarms are very many: to spread so many takes tens of microseconds.
const CROWD: usize = 1 << 12;
/// Room for so many alarms is kept in any case, and for sorting so many.
const KEPT: usize = 1 << 12;
/// How many alarms of a list before its turn one is fetched from memory, among very many.
const AHEAD: usize = 8;

const _: () = assert!(TICK_BITS + LEVEL_BITS * LEVELS as u32 == u64::BITS && WIDTH == u64::BITS as usize);

/// The number of an alarm in its wheel, while it is armed; or [`NONE`].
pub(crate) type Key = u32;

/// No alarm: the end of a list.
pub(crate) const NONE: Key = Key::MAX;

/// The slot of a number that is free.
const FREE: u16 = u16::MAX;

/// A deadline, and what it is for.
struct Alarm<T> {
    deadline: u64,
    target: T,
    /// The alarms before and after it in its slot's list, or [`NONE`]. Of a number that is free, `next` is the next free one.
    previous: Key,
    next: Key,
    /// One that may come a little later in the list: to be fetched when this one is looked at. Nothing but time depends on it.
    ahead: Key,
    /// Which slot it is in, or [`FREE`].
    slot: u16,
}

/// Why to look at the wheel, and when.
pub(crate) enum Visit<T> {
    /// The next alarm goes off; it is for this.
    Alarm(u64, T),
    /// Very many alarms are to be spread, which is better done before the first of them is due.
    Spread(u64),
}

/// The alarms of one slot.
struct Slot {
    /// The list's first alarm.
    head: Key,
    /// The list's last alarm.
    tail: Key,
    /// The last alarm of the sorted run that the list begins with; [`NONE`] if the run is empty.
    sorted: Key,
    /// No alarm behind the sorted run has an earlier deadline. u64::MAX if there is no such alarm.
    rest: u64,
}

impl Slot {
    const EMPTY: Slot = Slot {
        head: NONE,
        tail: NONE,
        sorted: NONE,
        rest: u64::MAX,
    };
}

/// The last few alarms that were put into each of the slots of a level, while another slot's are spread over them.
struct Trails {
    last: [[Key; AHEAD]; WIDTH],
    turns: [u8; WIDTH],
}

impl Trails {
    fn new() -> Trails {
        Trails {
            last: [[NONE; AHEAD]; WIDTH],
            turns: [0; WIDTH],
        }
    }

    /// Notes that an alarm comes to the end of a slot's list, and returns the one that came [`AHEAD`] alarms before it, if any. Slots of
    /// different levels may be taken for each other.
    #[inline]
    fn follow(&mut self, index: usize, key: Key) -> Key {
        let turn = &mut self.turns[index % WIDTH];
        let place = *turn as usize % AHEAD;
        *turn = turn.wrapping_add(1);
        std::mem::replace(&mut self.last[index % WIDTH][place], key)
    }
}

/// The deadlines of one worker, each for a `T`.
pub(crate) struct Wheel<T> {
    /// All alarms, by number, and numbers that are free.
    alarms: Vec<Alarm<T>>,
    /// The first free number, if any.
    free: Key,
    /// The slots of all levels, lowest level first, then [`DUE`].
    slots: Box<[Slot]>,
    /// A bitmap for each level, and one for [`DUE`]: the slots that are not empty.
    occupied: [u64; LEVELS + 1],
    /// The tick that has been reached. It decides where an alarm belongs.
    reached: u64,
    /// The latest time that the wheel was told.
    now: u64,
    /// How many alarms are armed.
    len: usize,
    /// Where alarms are sorted: by deadline and number. Empty in between.
    sorting: Vec<(u64, Key)>,
}

impl<T: Copy> Wheel<T> {
    /// A wheel without alarms.
    pub(crate) fn new(now: u64) -> Wheel<T> {
        Wheel {
            alarms: Vec::new(),
            free: NONE,
            slots: std::iter::repeat_with(|| Slot::EMPTY).take(DUE + 1).collect(),
            occupied: [0; LEVELS + 1],
            reached: now >> TICK_BITS,
            now,
            len: 0,
            sorting: Vec::new(),
        }
    }

    /// Arms an alarm. A deadline that has passed already is found by the next [`Wheel::advance`]. The key is good until the
    /// alarm is removed or taken.
    #[inline]
    pub(crate) fn insert(&mut self, target: T, deadline: u64) -> Key {
        let alarm = Alarm {
            deadline,
            target,
            previous: NONE,
            next: NONE,
            ahead: NONE,
            slot: 0,
        };
        let key = self.free;
        let key = if key != NONE {
            self.free = self.alarms[key as usize].next;
            self.alarms[key as usize] = alarm;
            key
        } else {
            self.alarms.push(alarm);
            let key = self.alarms.len() - 1;
            assert!(
                key < NONE as usize,
                "four thousand million deadlines on one worker"
            );
            key as Key
        };
        self.len += 1;
        self.link(key, self.index(deadline));
        key
    }

    /// Disarms an alarm.
    #[inline(always)]
    pub(crate) fn remove(&mut self, key: Key) {
        self.unlink(key);
        self.len -= 1;
        if self.len == 0 {
            self.begin_afresh();
        } else {
            let alarm = &mut self.alarms[key as usize];
            alarm.next = self.free;
            alarm.slot = FREE;
            self.free = key;
        }
    }

    /// Disarms all alarms.
    pub(crate) fn clear(&mut self) {
        self.slots.fill_with(|| Slot::EMPTY);
        self.occupied = [0; LEVELS + 1];
        self.len = 0;
        self.begin_afresh();
    }

    /// When an alarm goes off.
    #[inline]
    pub(crate) fn deadline(&self, key: Key) -> u64 {
        self.alarms[key as usize].deadline
    }

    /// What the alarm of a number is for, if it is armed. Numbers are below [`Wheel::numbers`].
    pub(crate) fn armed(&self, key: Key) -> Option<T> {
        let alarm = self.alarms.get(key as usize)?;
        (alarm.slot != FREE).then_some(alarm.target)
    }

    /// All alarms have smaller numbers than this.
    pub(crate) fn numbers(&self) -> Key {
        self.alarms.len() as Key
    }

    /// The last alarm has gone. From now on alarms that are armed one after the other lie one after the other again. Room is kept
    /// for as many as there were at once since the last time.
    fn begin_afresh(&mut self) {
        let most = self.alarms.len();
        self.alarms.clear();
        if self.alarms.capacity() > KEPT.max(2 * most) {
            self.alarms.shrink_to(KEPT.max(most));
        }
        self.free = NONE;
    }

    /// Makes every alarm whose deadline is not later than `now` due, and calls `found` with what it is for: it will soon be
    /// needed. If the time goes back, the latest time so far counts.
    pub(crate) fn advance(&mut self, now: u64, found: impl FnMut(T)) {
        self.now = self.now.max(now);
        self.collect(self.now, found);
        // In order already, unless alarms are left over from the last time.
        self.sort(DUE);
    }

    /// Takes the first alarm that is due: in the order of their deadlines; those with the same deadline in the order of their
    /// insertion. What is inserted from now on is due after the next [`Wheel::advance`] at the soonest, so taking all of them
    /// ends, whatever is inserted meanwhile.
    #[inline]
    pub(crate) fn take_due(&mut self) -> Option<T> {
        let key = self.slots[DUE].head;
        if key == NONE {
            return None;
        }
        let target = self.alarms[key as usize].target;
        self.remove(key);
        Some(target)
    }

    /// What the alarm is for that will be taken after this many others, if it is due already.
    #[inline]
    pub(crate) fn due_after(&self, others: usize) -> Option<T> {
        let mut key = self.slots[DUE].head;
        for _ in 0..others {
            if key != NONE {
                key = self.next(key);
            }
        }
        (key != NONE).then(|| self.alarms[key as usize].target)
    }

    /// The earliest deadline of all armed alarms, exactly, and what it is for.
    pub(crate) fn next_alarm(&mut self) -> Option<(u64, T)> {
        // There may be due alarms that have not been taken, and even earlier ones may have been inserted since.
        let first = self.first().and_then(|index| self.earliest(index));
        let due = self.earliest(DUE);
        let key = match (first, due) {
            (Some(first), Some(due)) if self.deadline(first) < self.deadline(due) => first,
            (first, due) => due.or(first)?,
        };
        Some((self.deadline(key), self.alarms[key as usize].target))
    }

    /// When to advance next: at the next deadline; with very many alarms, already when time comes to the slot of the next one.
    pub(crate) fn next_visit(&mut self) -> Option<Visit<T>> {
        match self.first() {
            Some(index) if index >= WIDTH && self.len > CROWD && self.slots[DUE].head == NONE => {
                Some(Visit::Spread(self.start(index) << TICK_BITS))
            }
            _ => self
                .next_alarm()
                .map(|(deadline, target)| Visit::Alarm(deadline, target)),
        }
    }

    /// How many alarms are armed.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn next(&self, key: Key) -> Key {
        self.alarms[key as usize].next
    }

    #[inline]
    fn set_next(&mut self, key: Key, next: Key) {
        self.alarms[key as usize].next = next;
    }

    #[inline]
    fn set_previous(&mut self, key: Key, previous: Key) {
        self.alarms[key as usize].previous = previous;
    }

    /// The slot in which a deadline belongs. One that has passed belongs in the slot of the reached tick.
    #[inline]
    fn index(&self, deadline: u64) -> usize {
        let tick = (deadline >> TICK_BITS).max(self.reached);
        // The lowest bit is set to make equal ticks differ on level 0.
        let level = ((tick ^ self.reached) | 1).ilog2() / LEVEL_BITS;
        level as usize * WIDTH + (tick >> (level * LEVEL_BITS)) as usize % WIDTH
    }

    /// The first tick of a slot that the reached tick has not passed.
    #[inline]
    fn start(&self, index: usize) -> u64 {
        let shift = (index / WIDTH) as u32 * LEVEL_BITS;
        let above = self.reached >> (shift + LEVEL_BITS) << LEVEL_BITS;
        (above | (index % WIDTH) as u64) << shift
    }

    /// The first slot of the levels that is not empty. No alarm of another one is earlier than any of its alarms:
    /// slots that the reached tick has passed are empty, and a lower level comes before a higher one.
    fn first(&self) -> Option<usize> {
        let mut levels = self.occupied[..LEVELS].iter().enumerate();
        let (level, occupied) = levels.find(|&(_, &bits)| bits != 0)?;
        Some(level * WIDTH + occupied.trailing_zeros() as usize)
    }

    /// Moves all alarms with a deadline up to `now` to [`DUE`], and the reached tick to the one of `now`.
    ///
    /// All are collected before the first is taken. Therefore whoever takes one finds a wheel that is whole and has arrived at
    /// `now`, and nothing inserted then can get among those that are due.
    fn collect(&mut self, now: u64, mut found: impl FnMut(T)) {
        let target = now >> TICK_BITS;
        while let Some(index) = self.first() {
            let start = self.start(index);
            if start > target {
                break;
            }
            let bound = self.bound(index);
            if index < WIDTH {
                self.reached = start;
                if bound <= now {
                    self.sort(index);
                }
                self.make_due(index, now, &mut found);
                if start == target {
                    break; // What is left is of this tick, but later than `now`.
                }
            } else {
                // Right to the tick of its first alarm, so that a lone alarm does not go through every level.
                self.reached = (bound >> TICK_BITS).clamp(start, target);
                self.spread(index);
            }
        }
        // No slot is left that begins before, so every alarm stays where it belongs.
        self.reached = target;
    }

    /// Moves the alarms of a slot, which the reached tick has entered, to lower levels.
    ///
    /// In the list of a slot that thousands of others were spread over alarms are far apart, and each says only where the next one is. So
    /// that they need not be waited for one by one, each is given one to fetch that comes some steps later.
    fn spread(&mut self, index: usize) {
        let mut next = self.slots[index].head;
        self.slots[index] = Slot::EMPTY;
        self.vacate(index);
        let mut trails = (self.len > CROWD).then(Trails::new);
        while next != NONE {
            let key = next;
            let alarm = &self.alarms[key as usize];
            next = alarm.next;
            // Never into this slot again: the reached tick has the same digit on this level now.
            let index = self.index(alarm.deadline);
            if let Some(trails) = &mut trails {
                self.fetch(alarm.ahead);
                let earlier = trails.follow(index, key);
                if earlier != NONE {
                    self.alarms[earlier as usize].ahead = key;
                }
            }
            self.link(key, index);
        }
    }

    /// Has an alarm brought into the cache. There need not be one of that number.
    #[inline]
    fn fetch(&self, key: Key) {
        context::prefetch(self.alarms.as_ptr().wrapping_add(key as usize));
    }

    /// Moves the alarms of a slot with a deadline up to `now` behind those that are due. If there are any, the whole slot is sorted.
    fn make_due(&mut self, index: usize, now: u64, found: &mut impl FnMut(T)) {
        let head = self.slots[index].head;
        let (mut last, mut next) = (NONE, head);
        while next != NONE && self.deadline(next) <= now {
            last = next;
            let alarm = &mut self.alarms[last as usize];
            alarm.slot = DUE as u16;
            next = alarm.next;
            found(alarm.target);
            let ahead = alarm.ahead;
            self.fetch(ahead);
        }
        if last == NONE {
            return;
        }
        debug_assert!(self.slots[index].sorted == self.slots[index].tail);
        if next == NONE {
            self.slots[index] = Slot::EMPTY;
            self.vacate(index);
        } else {
            self.set_next(last, NONE);
            self.set_previous(next, NONE);
            self.slots[index].head = next;
        }
        let due = &self.slots[DUE];
        let (earlier, first) = (due.tail, self.deadline(head));
        if earlier == NONE {
            self.occupied[DUE / WIDTH] |= 1 << (DUE % WIDTH);
            self.slots[DUE] = Slot {
                head,
                tail: last,
                sorted: last,
                rest: u64::MAX,
            };
            return;
        }
        let extends = due.sorted == earlier && first >= self.deadline(earlier);
        self.set_next(earlier, head);
        self.set_previous(head, earlier);
        let due = &mut self.slots[DUE];
        due.tail = last;
        if extends {
            due.sorted = last;
        } else {
            due.rest = due.rest.min(first);
        }
    }

    /// Puts an alarm, which is in no list, into that of a slot.
    #[inline]
    fn link(&mut self, key: Key, index: usize) {
        let slot = &mut self.slots[index];
        let tail = slot.tail;
        let alarm = &mut self.alarms[key as usize];
        let deadline = alarm.deadline;
        alarm.slot = index as u16;
        alarm.previous = tail;
        alarm.next = NONE;
        if tail == NONE {
            slot.head = key;
            slot.tail = key;
            slot.sorted = key;
            self.occupied[index / WIDTH] |= 1 << (index % WIDTH);
            return;
        }
        let extends = slot.sorted == tail && deadline >= self.alarms[tail as usize].deadline;
        if !extends && deadline < self.bound(index) {
            // Not if it is equal: of equal deadlines the first one inserted stays the first.
            self.link_first(key, index);
            return;
        }
        self.set_next(tail, key);
        let slot = &mut self.slots[index];
        slot.tail = key;
        if extends {
            slot.sorted = key;
        } else {
            slot.rest = slot.rest.min(deadline);
        }
    }

    /// Puts an alarm, which is in no list, before all others of a slot, and so into its sorted run. The slot is not empty, and
    /// the alarm is not later than any other of it.
    fn link_first(&mut self, key: Key, index: usize) {
        let slot = &mut self.slots[index];
        let head = slot.head;
        slot.head = key;
        if slot.sorted == NONE {
            slot.sorted = key;
        }
        self.set_previous(key, NONE);
        self.set_next(key, head);
        self.set_previous(head, key);
    }

    /// Takes an alarm out of the list that it is in.
    #[inline(always)]
    fn unlink(&mut self, key: Key) {
        let alarm = &self.alarms[key as usize];
        let (index, previous, next) = (alarm.slot as usize, alarm.previous, alarm.next);
        if previous != NONE {
            self.set_next(previous, next);
        }
        if next != NONE {
            self.set_previous(next, previous);
        }
        let slot = &mut self.slots[index];
        if previous == NONE {
            slot.head = next;
        }
        if next == NONE {
            slot.tail = previous;
        }
        if slot.sorted == key {
            slot.sorted = previous;
        }
        if slot.sorted == slot.tail {
            slot.rest = u64::MAX;
            if slot.head == NONE {
                self.vacate(index);
            }
        }
    }

    /// Notes that a slot is empty.
    #[inline]
    fn vacate(&mut self, index: usize) {
        self.occupied[index / WIDTH] &= !(1 << (index % WIDTH));
    }

    /// A time that no alarm of a slot is earlier than; u64::MAX if the slot is empty. It is the exact minimum, unless
    /// it comes from `rest` and the alarm that set `rest` was removed.
    #[inline]
    fn bound(&self, index: usize) -> u64 {
        let slot = &self.slots[index];
        if slot.head == NONE {
            return u64::MAX;
        }
        self.deadline(slot.head).min(slot.rest)
    }

    /// The alarm of a slot with the earliest deadline, which is the list's first from now on; None if it is empty.
    fn earliest(&mut self, index: usize) -> Option<Key> {
        let slot = &self.slots[index];
        if slot.head == NONE {
            return None;
        }
        // Otherwise neither the run nor the rest has an earlier one.
        if self.deadline(slot.head) > slot.rest {
            self.settle(index);
        }
        Some(self.slots[index].head)
    }

    /// Makes the bound of a slot that is not empty its exact minimum, and its head the alarm with it.
    ///
    /// It looks at no more than [`LOOK`] alarms. If there are more behind the run, they are sorted into it. That
    /// walks the run too, but more than [`LOOK`] alarms must have been inserted since the last time to cause it.
    fn settle(&mut self, index: usize) {
        let head = self.slots[index].head;
        let (mut first, mut least, mut second) = (NONE, u64::MAX, u64::MAX);
        let mut next = self.behind(index);
        for _ in 0..LOOK {
            if next == NONE {
                break;
            }
            step();
            let deadline = self.deadline(next);
            if first == NONE || deadline < least {
                (first, least, second) = (next, deadline, least);
            } else {
                second = second.min(deadline);
            }
            next = self.next(next);
        }
        if first == NONE {
            return;
        }
        if next != NONE {
            self.sort(index);
        } else if first == head {
            // There was no run. It is one now.
            self.slots[index].sorted = first;
            self.slots[index].rest = second;
        } else if self.slots[index].sorted == NONE || least < self.deadline(head) {
            // The head is another one, so the list is not empty in between.
            self.unlink(first);
            self.link_first(first, index);
            self.slots[index].rest = second;
        } else {
            self.slots[index].rest = least;
        }
    }

    /// The first alarm behind the sorted run of a slot.
    fn behind(&self, index: usize) -> Key {
        let slot = &self.slots[index];
        match slot.sorted {
            NONE => slot.head,
            last => self.next(last),
        }
    }

    /// Sorts the list of a slot. Alarms with the same deadline keep their order. Not in the list, whose alarms may be far apart, and where each
    /// comparison would have to be waited for.
    fn sort(&mut self, index: usize) {
        if self.behind(index) == NONE {
            return;
        }
        let mut sorting = std::mem::take(&mut self.sorting);
        let mut next = self.slots[index].head;
        while next != NONE {
            step();
            let alarm = &self.alarms[next as usize];
            self.fetch(alarm.ahead);
            sorting.push((alarm.deadline, next));
            next = alarm.next;
        }
        // This finds the run, and whatever else is in order already.
        sorting.sort_by_key(|&(deadline, _)| deadline);
        let (mut previous, mut keys) = (NONE, sorting.iter().map(|&(_, key)| key).peekable());
        while let Some(key) = keys.next() {
            let alarm = &mut self.alarms[key as usize];
            alarm.previous = previous;
            alarm.next = keys.peek().copied().unwrap_or(NONE);
            previous = key;
        }
        self.slots[index] = Slot {
            head: sorting[0].1,
            tail: previous,
            sorted: previous,
            rest: u64::MAX,
        };
        sorting.clear();
        sorting.shrink_to(KEPT);
        self.sorting = sorting;
    }
}

#[cfg(test)]
std::thread_local! {
    /// The steps that this thread has taken along lists, apart from those that move an alarm.
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
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
