//! The mutex without its value: who holds it, and who waits for it.
//!
//! [`Mutex`](super::Mutex) and [`Condvar`](super::Condvar) use it; `tests/models.rs` runs it in all orders.
//!
//! # The word
//!
//! ```text
//!    63     2 1       0
//!    +-------+-------+------+
//!    | holder|waiters|locked|
//!    +-------+-------+------+
//! ```
//!
//! It is 0 when nobody holds the mutex and nobody waits: locking and unlocking then are one step each. *Waiters* is set while somebody is
//! in the list, or was a moment ago; then who lets go looks into the list, and who holds the list's lock decides alone:
//!
//! - The first in the list is woken, and the mutex is free until it comes: a newcomer may be faster. That is what makes a mutex fast
//!   that is held for a moment only. The first stays the first until it has got the mutex: it is *coming*.
//! - But if the first has waited for [`PATIENCE`], the mutex is handed over to it, and is never free. So those who wait that long are
//!   served in the order in which they came.

use super::holder::Holder;
use super::list::{List, Node};
use super::someone::{End, Someone, Wish};
use super::subject::{Name, Text};
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

const LOCKED: u64 = 1;
const WAITERS: u64 = 2;
const HOLDER_SHIFT: u32 = 2;

/// Who has waited that long gets the mutex before anybody who comes later: nanoseconds.
const PATIENCE: u64 = 1_000_000;

/// A mutex.
pub(crate) struct RawMutex {
    word: AtomicU64,
    /// Since when it has been held, about, for dumps: nanoseconds of the monotonic clock; 0 if nobody knows.
    since: AtomicU64,
    list: Lock<List<Entry>>,
    name: Name,
}

/// Somebody who waits for the mutex.
struct Entry {
    someone: NonNull<Someone>,
    holder: Holder,
    /// When it came: nanoseconds of the monotonic clock.
    came: u64,
    /// Whether it was woken, and will try to get the mutex.
    is_coming: Cell<bool>,
}

/// What is told to the scheduler, in case that a fiber never goes on.
struct Waiting<'a> {
    mutex: &'a RawMutex,
    someone: &'a Someone,
    node: &'a Node<Entry>,
    also: Option<InTable>,
}

impl RawMutex {
    const_unless_modelled! {
        pub(crate) fn new(name: Name) -> RawMutex {
            RawMutex {
                word: AtomicU64::new(0),
                since: AtomicU64::new(0),
                list: Lock::new(List::new()),
                name,
            }
        }
    }

    /// Locks it; waits, if somebody holds it. Says who holds it now.
    #[inline]
    pub(crate) fn lock(&self) -> Holder {
        let (me, now) = Holder::present();
        if self
            .word
            .compare_exchange(0, held_by(me), Acquire, Relaxed)
            .is_err()
        {
            self.lock_slowly(me, true, None);
            // What time it was before does not matter any more.
            self.since.store(clock::now(), Relaxed);
        } else {
            self.since.store(now, Relaxed);
        }
        me
    }

    /// Locks it after a wait for something else. `also` is told if the fiber never goes on.
    pub(crate) fn lock_again(&self, interruptible: bool, also: Option<InTable>) {
        self.lock_slowly(Holder::present().0, interruptible, also);
        self.since.store(clock::now(), Relaxed);
    }

    /// Locks it, if nobody holds it, and says who does now.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Holder> {
        let (me, now) = Holder::present();
        if !self.try_lock_as(me) {
            return None;
        }
        self.since.store(now, Relaxed);
        Some(me)
    }

    #[inline]
    fn try_lock_as(&self, me: Holder) -> bool {
        let mut word = self.word.load(Relaxed);
        while word & LOCKED == 0 {
            let waiters = word & WAITERS;
            match self
                .word
                .compare_exchange_weak(word, held_by(me) | waiters, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    pub(crate) fn is_held_by(&self, holder: Holder) -> bool {
        self.word.load(Relaxed) & !WAITERS == held_by(holder)
    }

    #[cold]
    fn lock_slowly(&self, me: Holder, interruptible: bool, also: Option<InTable>) {
        if self.try_lock_as(me) {
            return;
        }
        assert!(
            !self.is_held_by(me),
            "{me} holds this mutex already, and would wait for itself for ever"
        );
        let came = clock::now();
        // Who has locked it did not look at the clock, perhaps.
        let _ = self.since.compare_exchange(0, came, Relaxed, Relaxed);
        let someone = Someone::present();
        let node = Node::new(Entry {
            someone: NonNull::from(&someone),
            holder: me,
            came,
            is_coming: Cell::new(false),
        });
        let waiting = Waiting {
            mutex: self,
            someone: &someone,
            node: &node,
            also,
        };
        let wish = Wish {
            reason: WaitReason::Lock {
                address: ptr::from_ref(self).addr(),
            },
            subject: Some(self),
            interruptible,
            deadline: clock::NEVER,
            in_table: Some(InTable {
                give_up: Waiting::give_up,
                wait: NonNull::from(&waiting).cast(),
            }),
        };
        loop {
            let end = someone.wait(&wish, || {
                let mut list = self.list.lock();
                // From now on, whoever holds it looks into the list when it lets go.
                let word = self.word.fetch_or(WAITERS, Relaxed);
                // It may have been handed over since this one was woken and found it locked: nobody would wake it once more.
                if word & LOCKED == 0 || word & !WAITERS == held_by(me) {
                    return false;
                }
                node.is_coming.set(false);
                if !node.is_linked() {
                    // SAFETY: it is in no list, and is taken out below, before this frame ends, or when the fiber is given up.
                    unsafe { list.push(&node) };
                }
                true
            });
            if let End::Interrupted(interruption) = end {
                self.leave(&node);
                interruption.unwind();
            }
            let mut list = self.list.lock();
            if self.is_held_by(me) || self.try_lock_as(me) {
                // SAFETY: it is in no other list.
                unsafe { list.remove(&node) };
                let waiters = if list.is_empty() { 0 } else { WAITERS };
                // Whoever else would change the word now needs the list's lock. What was handed over was written before that was let go.
                self.word.store(held_by(me) | waiters, Relaxed);
                return;
            }
        }
    }

    /// Takes somebody out of the list who will not come. What it was given goes to the next.
    fn leave(&self, node: &Node<Entry>) {
        let mut list = self.list.lock();
        // SAFETY: it is in no other list.
        unsafe { list.remove(node) };
        if self.is_held_by(node.holder) {
            self.pass_on(list);
        } else if node.is_coming.get() && self.word.load(Relaxed) & LOCKED == 0 {
            // Nobody else is coming, and nobody will look into the list.
            let next = call_first(&mut list);
            drop(list);
            wake(next);
        }
    }

    /// Unlocks it. What the word is, if nobody waits, follows from the holder: to read it first took a quarter of the time of a lock
    /// that nobody wants, as the step that follows has to wait for it.
    ///
    /// # Safety
    /// This is who holds it, and the caller stands for it.
    #[inline]
    pub(crate) unsafe fn unlock(&self, holder: Holder) {
        if self
            .word
            .compare_exchange(held_by(holder), 0, Release, Relaxed)
            .is_err()
        {
            self.unlock_slowly();
        }
    }

    #[cold]
    fn unlock_slowly(&self) {
        self.pass_on(self.list.lock());
    }

    /// Gives the mutex to the first in the list, or lets it go. The caller holds it.
    fn pass_on(&self, mut list: Guard<'_, List<Entry>>) {
        let next = call_first(&mut list);
        let word = match list.first() {
            None => 0,
            Some(first) => {
                let now = clock::now();
                if now.saturating_sub(first.came) >= PATIENCE {
                    self.since.store(now, Relaxed);
                    held_by(first.holder) | WAITERS
                } else {
                    WAITERS
                }
            }
        };
        self.word.store(word, Release);
        drop(list);
        wake(next);
    }
}

/// The word of a mutex that is held, and that nobody waits for.
#[inline(always)]
fn held_by(holder: Holder) -> u64 {
    holder.number() << HOLDER_SHIFT | LOCKED
}

/// Makes sure that the first in the list is coming. Whom it returns is to be woken.
fn call_first(list: &mut List<Entry>) -> Option<NonNull<Someone>> {
    let mut called = None;
    list.for_each(|list, first| {
        if first.is_coming.get() {
            return false;
        }
        // SAFETY: whoever is in the list is in place.
        if unsafe { first.someone.as_ref() }.claim() {
            first.is_coming.set(true);
            called = Some(first.someone);
            return false;
        }
        // It has been interrupted, and is about to leave.
        // SAFETY: it is in this list.
        unsafe { list.unlink(first) };
        true
    });
    called
}

fn wake(someone: Option<NonNull<Someone>>) {
    if let Some(someone) = someone {
        // SAFETY: it was just claimed.
        unsafe { Someone::wake(someone) };
    }
}

impl Waiting<'_> {
    /// The fiber that waits here never goes on.
    ///
    /// # Safety
    /// See [`InTable`].
    unsafe fn give_up(waiting: NonNull<()>) {
        // SAFETY: it is what `lock_slowly` has noted, in the frame of a fiber that never goes on, so that it stays.
        let waiting = unsafe { waiting.cast::<Waiting<'_>>().as_ref() };
        waiting.someone.give_up();
        waiting.mutex.leave(waiting.node);
        if let Some(also) = waiting.also {
            // SAFETY: the caller's promise.
            unsafe { (also.give_up)(also.wait) };
        }
    }
}

impl Subject for RawMutex {
    fn describe(&self) -> String {
        let mut text = Text::new("mutex", self.name);
        let word = self.word.load(Relaxed);
        if word & LOCKED != 0 {
            text.holder(
                Holder::from_number(word >> HOLDER_SHIFT),
                self.since.load(Relaxed),
            );
        }
        let mut list = self.list.lock();
        text.waiters(|each| {
            list.for_each(|_, entry| {
                each(entry.holder);
                true
            });
        });
        text.finish()
    }
}
