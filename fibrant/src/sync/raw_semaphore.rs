//! The semaphore without its permits' owners: how many permits are free, and who waits for some.
//!
//! [`Semaphore`](super::Semaphore) uses it, and so does [`RwLock`](super::RwLock), whose readers take one permit each and whose writers
//! take them all; `tests/models_sync.rs` runs it in all orders.
//!
//! # The word
//!
//! ```text
//!    63    1 0
//!    +------+-------+
//!    | free |waiters|
//!    +------+-------+
//! ```
//!
//! As long as *waiters* is not set, permits are taken and given back in one step each. It is set while somebody is in the list, or was a
//! moment ago; then the word is changed under the list's lock only, so that whoever has that decides alone:
//!
//! - Those at the head of the list for whom there is enough are woken, and the permits stay free until they come: a newcomer may be
//!   faster. Who was woken stays in its place until it has got its permits: it is *coming*.
//! - But to those who have waited for [`PATIENCE`] the permits are *given*, and no newcomer takes any while such a one is the first. So
//!   those who wait that long are served in the order in which they came, whoever wants many among those who want few.

use super::holder::Holder;
use super::list::{List, Node};
use super::someone::{End, Someone, Wish};
use crate::clock;
use crate::fiber::{Subject, WaitReason};
use crate::primitives::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::primitives::const_unless_modelled;
use crate::scheduler::{Guard, InTable, Lock};
use std::cell::Cell;
use std::ptr::{self, NonNull};

const WAITERS: u64 = 1;
const FREE_SHIFT: u32 = 1;

/// How many permits can be free.
pub(crate) const MOST: usize = usize::MAX >> FREE_SHIFT;

/// Who has waited that long gets its permits before anybody who comes later: nanoseconds.
const PATIENCE: u64 = 1_000_000;

/// A number of permits that are free, and those who wait for more than there are.
pub(crate) struct RawSemaphore {
    word: AtomicU64,
    list: Lock<List<Entry>>,
}

/// Somebody who waits for permits.
struct Entry {
    someone: NonNull<Someone>,
    holder: Holder,
    wanted: usize,
    /// When it came: nanoseconds of the monotonic clock.
    came: u64,
    state: Cell<State>,
    /// Whom to wake after it, when several are woken together.
    next: Cell<Option<NonNull<Node<Entry>>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is about to wait, or waits.
    Waiting,
    /// It was woken, and will try to get its permits.
    Coming,
    /// It has its permits, and is in the list no more.
    Served,
}

/// What is told to the scheduler, in case that a fiber never goes on.
struct Waiting<'a> {
    semaphore: &'a RawSemaphore,
    someone: &'a Someone,
    node: &'a Node<Entry>,
}

/// Those who were claimed under the list's lock, in the order in which they are woken after that.
struct Called {
    first: Option<NonNull<Node<Entry>>>,
    last: Option<NonNull<Node<Entry>>>,
}

/// There would be more free permits than can be counted.
#[derive(Debug)]
pub(crate) struct Overflow;

impl RawSemaphore {
    const_unless_modelled! {
        pub(crate) fn new(free: usize) -> RawSemaphore {
            assert!(free <= MOST, "more permits than a semaphore can have");
            RawSemaphore {
                word: AtomicU64::new((free as u64) << FREE_SHIFT),
                list: Lock::new(List::new()),
            }
        }
    }

    /// How many permits are free.
    pub(crate) fn free(&self) -> usize {
        free_in(self.word.load(Relaxed))
    }

    /// Takes permits, if there are so many and nobody waits: in one step.
    #[inline]
    pub(crate) fn take_at_once(&self, wanted: usize) -> bool {
        let mut word = self.word.load(Relaxed);
        while word & WAITERS == 0 && free_in(word) >= wanted {
            let rest = word - ((wanted as u64) << FREE_SHIFT);
            match self.word.compare_exchange_weak(word, rest, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Takes permits, if there are so many and nobody has waited too long for that.
    #[inline]
    pub(crate) fn try_take(&self, wanted: usize) -> bool {
        let mut word = self.word.load(Relaxed);
        loop {
            // Both are decided by one look: whoever waits may go between two of them, and leave what it did not need.
            if word & WAITERS != 0 {
                return self.try_take_slowly(wanted);
            }
            if free_in(word) < wanted {
                return false;
            }
            let rest = word - ((wanted as u64) << FREE_SHIFT);
            match self.word.compare_exchange_weak(word, rest, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    #[cold]
    fn try_take_slowly(&self, wanted: usize) -> bool {
        let mut list = self.list.lock();
        let is_taken = self.take_if_may(&mut list, wanted, None);
        self.open(&list);
        is_taken
    }

    /// Takes permits; waits for them at most until the deadline. Says whether it has got them. What is waited for is told to dumps as
    /// `subject`, which lies at `address`.
    #[inline]
    pub(crate) fn take(&self, wanted: usize, deadline: u64, address: usize, subject: &dyn Subject) -> bool {
        self.take_at_once(wanted) || self.take_slowly(wanted, deadline, address, subject)
    }

    #[cold]
    fn take_slowly(&self, wanted: usize, deadline: u64, address: usize, subject: &dyn Subject) -> bool {
        if self.try_take_slowly(wanted) {
            return true;
        }
        let someone = Someone::present();
        let node = Node::new(Entry {
            someone: NonNull::from(&someone),
            holder: Holder::present().0,
            wanted,
            came: clock::now(),
            state: Cell::new(State::Waiting),
            next: Cell::new(None),
        });
        let waiting = Waiting {
            semaphore: self,
            someone: &someone,
            node: &node,
        };
        let wish = Wish {
            reason: WaitReason::Lock { address },
            subject: Some(subject),
            interruptible: true,
            deadline,
            in_table: Some(InTable {
                give_up: Waiting::give_up,
                wait: NonNull::from(&waiting).cast(),
            }),
        };
        loop {
            let end = someone.wait(&wish, || {
                let mut list = self.list.lock();
                // It may have been served since it was woken and found too few.
                if node.state.get() == State::Served || self.take_if_may(&mut list, wanted, Some(&node)) {
                    self.serve(list);
                    return false;
                }
                node.state.set(State::Waiting);
                if !node.is_linked() {
                    // SAFETY: it is in no list, and is taken out below, before this frame ends, or when the fiber is given up.
                    unsafe { list.push(&node) };
                }
                true
            });
            match end {
                End::Interrupted(interruption) => {
                    self.leave(&node);
                    interruption.unwind();
                }
                End::TimedOut => {
                    // Whoever would have served it has not claimed it, so it is not served.
                    self.leave(&node);
                    return false;
                }
                End::Woken | End::Needless => {
                    let mut list = self.list.lock();
                    if node.state.get() == State::Served || self.take_if_may(&mut list, wanted, Some(&node)) {
                        self.serve(list);
                        return true;
                    }
                }
            }
        }
    }

    /// Keeps others from changing the word without the list's lock, which the caller has; gives how many permits are free.
    fn close(&self) -> usize {
        free_in(self.word.fetch_or(WAITERS, Acquire))
    }

    /// Lets others change the word, if nobody waits.
    fn open(&self, list: &List<Entry>) {
        if list.is_empty() {
            self.word.fetch_and(!WAITERS, Release);
        }
    }

    /// Takes permits under the list's lock, for a newcomer or for one that has a node: if there are so many, and the first in the list is
    /// that one, or has not waited long. Others are kept from changing the word afterwards.
    fn take_if_may(&self, list: &mut List<Entry>, wanted: usize, node: Option<&Node<Entry>>) -> bool {
        let free = self.close();
        if free < wanted {
            return false;
        }
        let is_in_order = list.first().is_none_or(|first| {
            node.is_some_and(|node| ptr::eq(first, node)) || !is_patient(first, clock::now())
        });
        if is_in_order {
            if let Some(node) = node {
                // SAFETY: it is in no other list.
                unsafe { list.remove(node) };
                node.state.set(State::Served);
            }
            self.set_free(free - wanted, list);
        }
        is_in_order
    }

    /// The caller has the list's lock, and others were kept from changing the word.
    fn set_free(&self, free: usize, list: &List<Entry>) {
        let waiters = if list.is_empty() { 0 } else { WAITERS };
        self.word.store((free as u64) << FREE_SHIFT | waiters, Release);
    }

    /// Takes somebody out of the list who will not come. What it was given goes to the next.
    fn leave(&self, node: &Node<Entry>) {
        let mut list = self.list.lock();
        if node.state.get() == State::Served {
            let free = self.close();
            self.set_free(free + node.wanted, &list);
        } else {
            // SAFETY: it is in no other list.
            unsafe { list.remove(node) };
        }
        self.serve(list);
    }

    /// Gives permits back, or adds some.
    #[inline]
    pub(crate) fn give(&self, count: usize) -> Result<(), Overflow> {
        let mut word = self.word.load(Relaxed);
        while word & WAITERS == 0 && count <= MOST - free_in(word) {
            let more = word + ((count as u64) << FREE_SHIFT);
            match self.word.compare_exchange_weak(word, more, Release, Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
        self.give_slowly(count)
    }

    #[cold]
    fn give_slowly(&self, count: usize) -> Result<(), Overflow> {
        let list = self.list.lock();
        let free = self.close();
        let fits = count <= MOST - free;
        if fits {
            self.set_free(free + count, &list);
        }
        self.serve(list);
        if fits { Ok(()) } else { Err(Overflow) }
    }

    /// Calls those for whom there is enough, or gives them their permits.
    fn serve(&self, mut list: Guard<'_, List<Entry>>) {
        let mut free = self.close();
        let mut called = Called::nobody();
        if free > 0 && !list.is_empty() {
            let now = clock::now();
            // What is left when all who are called have come.
            let mut left = free;
            list.for_each(|list, node| {
                if node.wanted > left {
                    return false;
                }
                if node.state.get() == State::Waiting {
                    // SAFETY: whoever is in the list is in place.
                    if !unsafe { node.someone.as_ref() }.claim() {
                        // It has been interrupted, and is about to leave.
                        // SAFETY: it is in this list.
                        unsafe { list.unlink(node) };
                        return true;
                    }
                    node.state.set(State::Coming);
                    called.push(node);
                }
                // Who came before it has been served already, unless its patience lasts longer.
                if left == free && is_patient(node, now) {
                    // SAFETY: it is in this list.
                    unsafe { list.unlink(node) };
                    node.state.set(State::Served);
                    free -= node.wanted;
                }
                left -= node.wanted;
                true
            });
        }
        self.set_free(free, &list);
        drop(list);
        called.wake();
    }

    /// Calls `each` with all who wait, the first who came first.
    pub(crate) fn for_each_waiter(&self, mut each: impl FnMut(Holder)) {
        self.list.lock().for_each(|_, entry| {
            each(entry.holder);
            true
        });
    }
}

/// How many permits are free.
#[inline(always)]
fn free_in(word: u64) -> usize {
    (word >> FREE_SHIFT) as usize
}

/// Whether it has waited so long that it comes before all others.
fn is_patient(entry: &Entry, now: u64) -> bool {
    now.saturating_sub(entry.came) >= PATIENCE
}

impl Called {
    fn nobody() -> Called {
        Called {
            first: None,
            last: None,
        }
    }

    /// The caller has claimed it, under the lock of its list.
    fn push(&mut self, node: &Node<Entry>) {
        let place = NonNull::from(node);
        node.next.set(None);
        match self.last.replace(place) {
            // SAFETY: it was claimed and has not been woken, so it is in place.
            Some(last) => unsafe { last.as_ref() }.next.set(Some(place)),
            None => self.first = Some(place),
        }
    }

    /// Wakes them.
    fn wake(self) {
        let mut next = self.first;
        while let Some(node) = next {
            // SAFETY: as above. What comes after it is read before it goes on.
            let node = unsafe { node.as_ref() };
            next = node.next.get();
            // SAFETY: it was claimed, and is woken once.
            unsafe { Someone::wake(node.someone) };
        }
    }
}

impl Waiting<'_> {
    /// The fiber that waits here never goes on.
    ///
    /// # Safety
    /// See [`InTable`].
    unsafe fn give_up(waiting: NonNull<()>) {
        // SAFETY: it is what `take_slowly` has noted, in the frame of a fiber that never goes on, so that it stays.
        let waiting = unsafe { waiting.cast::<Waiting<'_>>().as_ref() };
        waiting.someone.give_up();
        waiting.semaphore.leave(waiting.node);
    }
}
