//! A worker's roster: all fibers that are with it, behind one small lock.
//!
//! - **fresh**: spawned, not started, free to go: other workers steal from here;
//! - **bound**: not started, but meant for this worker;
//! - **started**: they stay with this worker until they end.
//!
//! The spawner adds to it, the worker moves a fiber from one list to the next when it starts and removes it when it ends,
//! thieves take half of the fresh ones, and dumps read it. A fiber is linked through its own memory, so that the one that its
//! parent joins can be taken out of the middle: this is why it is not one of crossbeam's deques. The lock is taken three
//! times in a fiber's life and hardly ever contended.
//!
//! When its worker has gone, a roster is **closed**: whoever comes to it later is turned away, as nobody would ever find it there.
//!
//! The worker looks at the stamp of the first fiber of each list, to see whose turn it is, without the lock: it may see it a
//! little late.

use super::lock::Lock;
use crate::primitives::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::cell::Cell;
use std::ptr::NonNull;

/// How many members a thief takes at most: the lock is held meanwhile.
const LOOT: usize = 128;

/// Something that can be on a roster: it has room for its links.
///
/// # Safety
/// The place is used by the roster alone.
pub(crate) unsafe trait Member: Sized {
    /// Where it is on a roster.
    fn station(&self) -> &Station<Self>;
}

/// A member's place on a roster. Guarded by the lock of the roster that it is on; but the stamp of one that has started is its worker's,
/// and nobody else looks at its place.
#[repr(C)]
pub(crate) struct Station<T> {
    /// Its stamp, a rising number of its worker's, times eight; whether it was away, times four; and its place. First, beside what else every
    /// turn needs.
    mark: Cell<u64>,
    previous: Cell<Option<NonNull<T>>>,
    next: Cell<Option<NonNull<T>>>,
}

/// After so many stamps a member was away.
const AWAY: u64 = 2048;

/// Which list a member is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// None.
    Nowhere = 0,
    /// Not started, free to go.
    Fresh,
    /// Not started, meant for this worker.
    Bound,
    /// Started.
    Started,
}

impl<T> Station<T> {
    /// A place on no roster.
    pub(crate) fn nowhere() -> Station<T> {
        Station {
            previous: Cell::new(None),
            next: Cell::new(None),
            mark: Cell::new(Place::Nowhere as u64),
        }
    }

    /// The stamp: of when it was spawned, or of when it was queued last.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.mark.get() >> 3
    }

    /// Stamps one that has started: it has just run, or has waited.
    #[inline]
    pub(crate) fn set_stamp(&self, stamp: u64, has_waited: bool) {
        let was_away = has_waited && stamp.wrapping_sub(self.stamp()) > AWAY;
        self.mark
            .set(stamp << 3 | u64::from(was_away) << 2 | Place::Started as u64);
    }

    /// Whether it waited while so many others ran that nothing of it is left in the cache, as far as its last stamp tells.
    #[inline]
    pub(crate) fn was_away(&self) -> bool {
        self.mark.get() & 4 != 0
    }

    fn set(&self, place: Place, stamp: u64) {
        self.mark.set(stamp << 3 | place as u64);
    }

    fn place(&self) -> Place {
        match self.mark.get() & 3 {
            0 => Place::Nowhere,
            1 => Place::Fresh,
            2 => Place::Bound,
            _ => Place::Started,
        }
    }
}

/// The fibers of one worker.
pub(crate) struct Roster<T> {
    lists: Lock<Lists<T>>,
    /// The stamp of the first fresh member and of the first bound one, or higher than any.
    fresh_stamp: AtomicU64,
    bound_stamp: AtomicU64,
    /// How many are fresh, and how many have started.
    fresh: AtomicUsize,
    started: AtomicUsize,
}

struct Lists<T> {
    fresh: List<T>,
    bound: List<T>,
    started: List<T>,
    is_closed: bool,
}

impl<T> Lists<T> {
    /// The list of those who are fresh, or bound.
    #[inline(always)]
    fn unstarted(&mut self, place: Place) -> &mut List<T> {
        match place {
            Place::Bound => &mut self.bound,
            _ => &mut self.fresh,
        }
    }
}

// SAFETY: the lists hold pointers to members that anyone may be handed: a member that has not started may start on any
// thread (or is bound, and only its worker takes it out), and one that has started is only looked at.
unsafe impl<T> Send for Lists<T> {}

impl<T: Member> Roster<T> {
    pub(crate) fn new() -> Roster<T> {
        Roster {
            lists: Lock::new(Lists {
                fresh: List::new(Place::Fresh),
                bound: List::new(Place::Bound),
                started: List::new(Place::Started),
                is_closed: false,
            }),
            fresh_stamp: AtomicU64::new(u64::MAX),
            bound_stamp: AtomicU64::new(u64::MAX),
            fresh: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
        }
    }

    /// Publishes what others look at without the lock: of the list that has changed.
    #[inline(always)]
    fn publish(&self, lists: &Lists<T>, changed: Place) {
        match changed {
            Place::Fresh => {
                store_if_new(&self.fresh_stamp, lists.fresh.first_stamp());
                self.fresh.store(lists.fresh.length, Relaxed);
            }
            Place::Bound => store_if_new(&self.bound_stamp, lists.bound.first_stamp()),
            Place::Started => self.started.store(lists.started.length, Relaxed),
            Place::Nowhere => {}
        }
    }

    /// Calls `f` with the lists, and publishes everything.
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(&mut Lists<T>) -> R) -> R {
        let mut lists = self.lists.lock();
        let result = f(&mut lists);
        for place in [Place::Fresh, Place::Bound, Place::Started] {
            self.publish(&lists, place);
        }
        result
    }

    /// Adds members that have not started, and says how many. `own` is called with each under the lock. If the roster is closed, they are
    /// the caller's again.
    ///
    /// # Safety
    /// They are valid until they are taken out, are on no roster, and may start on the thread of whoever takes them: of this
    /// worker, if they are bound.
    pub(crate) unsafe fn add<I>(
        &self,
        members: I,
        bound: bool,
        stamp: u64,
        mut own: impl FnMut(NonNull<T>),
    ) -> Result<usize, I>
    where
        I: IntoIterator<Item = NonNull<T>>,
    {
        let mut lists = self.lists.lock();
        if lists.is_closed {
            return Err(members);
        }
        let place = if bound { Place::Bound } else { Place::Fresh };
        let list = lists.unstarted(place);
        let before = list.length;
        for member in members {
            own(member);
            // SAFETY: valid and on no list, by the caller's promise.
            unsafe { list.append(member, stamp) };
        }
        let added = list.length - before;
        self.publish(&lists, place);
        Ok(added)
    }

    /// Adds one that is started already. Returns whether it did: not if the roster is closed. `own` is called with it under the lock.
    ///
    /// # Safety
    /// It is valid until it is taken out, and on no roster.
    #[must_use]
    pub(crate) unsafe fn add_started(&self, member: NonNull<T>, own: impl FnOnce(NonNull<T>)) -> bool {
        let mut lists = self.lists.lock();
        if lists.is_closed {
            return false;
        }
        own(member);
        // SAFETY: by the caller's promise.
        unsafe { lists.started.append(member, 0) };
        self.publish(&lists, Place::Started);
        true
    }

    /// Closes it: nobody comes to it any more, and nobody is left to be started or stolen. Calls `f` with each member, under the lock: `f` must
    /// not come back here.
    pub(crate) fn close(&self, mut f: impl FnMut(NonNull<T>)) {
        self.with(|lists| {
            lists.is_closed = true;
            while let Some(member) = lists.bound.take_first().or_else(|| lists.fresh.take_first()) {
                // SAFETY: it was on this roster, so it is valid, and is on no list now.
                unsafe { lists.started.append(member, 0) };
            }
            lists.started.for_each(&mut f);
        });
    }

    /// Opens it again, for the next worker.
    pub(crate) fn open(&self) {
        self.lists.lock().is_closed = false;
    }

    /// The stamp of the member that is next to start; higher than any if there is none.
    #[inline]
    pub(crate) fn first_stamp(&self) -> u64 {
        self.fresh_stamp.load(Relaxed).min(self.bound_stamp.load(Relaxed))
    }

    /// Takes the member that is next to start: it counts as started.
    pub(crate) fn start_next(&self) -> Option<NonNull<T>> {
        let mut lists = self.lists.lock();
        let place = if lists.fresh.first_stamp() <= lists.bound.first_stamp() {
            Place::Fresh
        } else {
            Place::Bound
        };
        let member = lists.unstarted(place).take_first()?;
        // SAFETY: it was on this roster, so it is valid, and is on no list now.
        unsafe { lists.started.append(member, 0) };
        self.publish(&lists, place);
        self.publish(&lists, Place::Started);
        Some(member)
    }

    /// Takes this member, out of its turn, if it has not started and is on this roster, which `is_here` says under the lock.
    pub(crate) fn start(&self, member: NonNull<T>, is_here: impl FnOnce() -> bool) -> bool {
        let mut lists = self.lists.lock();
        if !is_here() {
            return false;
        }
        // SAFETY: it is on this roster, so it is valid, and its place is guarded by the lock that is held.
        let place = unsafe { member.as_ref() }.station().place();
        if !matches!(place, Place::Fresh | Place::Bound) {
            return false;
        }
        // SAFETY: it is in that list, by its place.
        unsafe {
            lists.unstarted(place).remove(member);
            lists.started.append(member, 0);
        }
        self.publish(&lists, place);
        self.publish(&lists, Place::Started);
        true
    }

    /// Whether this member, if it is on this roster, which `is_here` says under the lock, has started.
    pub(crate) fn has_started(&self, member: NonNull<T>, is_here: impl FnOnce() -> bool) -> bool {
        let _lists = self.lists.lock();
        // SAFETY: if it is on this roster, it is valid, and its place is guarded by the lock that is held, or is this worker's.
        is_here() && unsafe { member.as_ref() }.station().place() == Place::Started
    }

    /// Removes a started member.
    ///
    /// # Safety
    /// It is among this roster's started ones.
    pub(crate) unsafe fn remove(&self, member: NonNull<T>) {
        let mut lists = self.lists.lock();
        // SAFETY: by the caller's promise.
        unsafe { lists.started.remove(member) };
        self.publish(&lists, Place::Started);
    }

    /// Moves half of the fresh members, but not more than [`LOOT`], those that have waited longest, to another roster. `own` is called with each
    /// before anyone can find it there. Returns how many.
    pub(crate) fn steal(&self, into: &Roster<T>, stamp: u64, mut own: impl FnMut(NonNull<T>)) -> usize {
        let mut loot = List::new(Place::Nowhere);
        self.with(|lists| {
            for _ in 0..lists.fresh.length.div_ceil(2).min(LOOT) {
                let Some(member) = lists.fresh.take_first() else {
                    break;
                };
                own(member);
                // SAFETY: it was on this roster, so it is valid, and is on no list now.
                unsafe { loot.append(member, stamp) };
            }
        });
        if loot.length == 0 {
            return 0;
        }
        let next = std::iter::from_fn(|| loot.take_first());
        // SAFETY: they were fresh here, so they are valid, free to go, and now on no list.
        match unsafe { into.add(next, false, stamp, |_| {}) } {
            Ok(stolen) => stolen,
            Err(_) => unreachable!("a thief is at work, so its roster is open"),
        }
    }

    /// Calls `f` with each member and its place, under the lock: `f` must not come back here.
    pub(crate) fn for_each(&self, mut f: impl FnMut(NonNull<T>, Place)) {
        let lists = self.lists.lock();
        for list in [&lists.started, &lists.bound, &lists.fresh] {
            list.for_each(|member| f(member, list.place));
        }
    }

    /// Whether there is something to steal, seen under the lock: whoever adds something afterwards sees what the caller did
    /// before.
    pub(crate) fn has_fresh(&self) -> bool {
        self.lists.lock().fresh.length > 0
    }

    /// Whether something waits to be started, seen under the lock.
    pub(crate) fn has_unstarted(&self) -> bool {
        let lists = self.lists.lock();
        lists.fresh.length + lists.bound.length > 0
    }

    /// Whether nobody is on it.
    pub(crate) fn is_empty(&self) -> bool {
        let lists = self.lists.lock();
        lists.fresh.length + lists.bound.length + lists.started.length == 0
    }

    /// How many fresh members there are, about.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh.load(Relaxed)
    }

    /// How many started members there are, about.
    #[inline]
    pub(crate) fn started(&self) -> usize {
        self.started.load(Relaxed)
    }
}

/// Stores a number that others look at, if it has changed: most often it has not, and they keep their copy.
#[inline(always)]
fn store_if_new(place: &AtomicU64, number: u64) {
    if place.load(Relaxed) != number {
        place.store(number, Relaxed);
    }
}

/// A doubly linked list through its members.
struct List<T> {
    first: Option<NonNull<T>>,
    last: Option<NonNull<T>>,
    length: usize,
    place: Place,
}

impl<T: Member> List<T> {
    fn new(place: Place) -> List<T> {
        List {
            first: None,
            last: None,
            length: 0,
            place,
        }
    }

    fn first_stamp(&self) -> u64 {
        // SAFETY: what is in a list is valid.
        self.first
            .map_or(u64::MAX, |first| unsafe { first.as_ref() }.station().stamp())
    }

    /// # Safety
    /// The member is valid until it is removed, and in no list.
    unsafe fn append(&mut self, member: NonNull<T>, stamp: u64) {
        // SAFETY: valid by the caller's promise.
        let station = unsafe { member.as_ref() }.station();
        station.set(self.place, stamp);
        station.previous.set(self.last);
        station.next.set(None);
        match self.last.replace(member) {
            // SAFETY: what is in a list is valid.
            Some(last) => unsafe { last.as_ref() }.station().next.set(Some(member)),
            None => self.first = Some(member),
        }
        self.length += 1;
    }

    fn for_each(&self, mut f: impl FnMut(NonNull<T>)) {
        let mut next = self.first;
        while let Some(member) = next {
            // SAFETY: it is in the list, so it is valid.
            next = unsafe { member.as_ref() }.station().next.get();
            f(member);
        }
    }

    fn take_first(&mut self) -> Option<NonNull<T>> {
        let first = self.first?;
        // SAFETY: it is in this list.
        unsafe { self.remove(first) };
        Some(first)
    }

    /// # Safety
    /// The member is in this list.
    unsafe fn remove(&mut self, member: NonNull<T>) {
        // SAFETY: it is in this list, so it is valid.
        let station = unsafe { member.as_ref() }.station();
        let (previous, next) = (station.previous.take(), station.next.take());
        match previous {
            // SAFETY: so are its neighbours.
            Some(previous) => unsafe { previous.as_ref() }.station().next.set(next),
            None => self.first = next,
        }
        match next {
            // SAFETY: so are its neighbours.
            Some(next) => unsafe { next.as_ref() }.station().previous.set(previous),
            None => self.last = previous,
        }
        station.set(Place::Nowhere, 0);
        self.length -= 1;
    }
}
