//! The reader-writer lock without its value: a [`RawSemaphore`] of which readers take one permit each and writers take all, so that it is
//! as fair as that is; and who writes, and since when.
//!
//! [`RwLock`](super::RwLock) uses it.

use super::holder::Holder;
use super::raw_semaphore::{MOST, RawSemaphore};
use super::subject::{Name, Text};
use crate::clock;
use crate::fiber::Subject;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A reader-writer lock.
pub(super) struct RawRwLock {
    /// Its permits are not counted up to this number by readers: there is no time for so many.
    semaphore: RawSemaphore,
    /// Who holds it for writing: a [`Holder`]'s number, or 0. Nothing depends on it but messages.
    writer: AtomicU64,
    /// Since when, about: nanoseconds of the monotonic clock; 0 if nobody knows.
    since: AtomicU64,
    name: Name,
}

impl RawRwLock {
    pub(super) const fn new(name: Name) -> RawRwLock {
        RawRwLock {
            semaphore: RawSemaphore::new(MOST),
            writer: AtomicU64::new(0),
            since: AtomicU64::new(0),
            name,
        }
    }

    /// Locks it for reading; waits, if somebody writes, or has waited to for some time.
    #[inline]
    pub(super) fn read(&self) {
        if !self.semaphore.take_at_once(1) {
            self.wait(1);
        }
    }

    /// Locks it for reading, if that needs no wait.
    #[inline]
    pub(super) fn try_read(&self) -> bool {
        self.semaphore.try_take(1)
    }

    /// Locks it for writing; waits, if somebody holds it, or has waited for it for some time.
    #[inline]
    pub(super) fn write(&self) {
        let (me, now) = Holder::present();
        if self.semaphore.take_at_once(MOST) {
            self.note_writer(me, now);
        } else {
            self.wait(MOST);
            self.note_writer(me, clock::now());
        }
    }

    /// Locks it for writing, if that needs no wait.
    #[inline]
    pub(super) fn try_write(&self) -> bool {
        let (me, now) = Holder::present();
        let is_mine = self.semaphore.try_take(MOST);
        if is_mine {
            self.note_writer(me, now);
        }
        is_mine
    }

    #[inline]
    fn note_writer(&self, me: Holder, now: u64) {
        self.writer.store(me.number(), Relaxed);
        self.since.store(now, Relaxed);
    }

    #[cold]
    fn wait(&self, permits: usize) {
        let (me, _) = Holder::present();
        assert!(
            self.writer.load(Relaxed) != me.number(),
            "{me} holds this lock for writing already, and would wait for itself for ever"
        );
        // Who writes did not look at the clock, perhaps.
        let _ = self.since.compare_exchange(0, clock::now(), Relaxed, Relaxed);
        let address = ptr::from_ref(self).addr();
        self.semaphore.take(permits, clock::NEVER, address, self);
    }

    /// Unlocks it after reading.
    ///
    /// # Safety
    /// The caller, or whom it stands for, holds it for reading.
    #[inline]
    pub(super) unsafe fn end_reading(&self) {
        self.give(1);
    }

    /// Unlocks it after writing.
    ///
    /// # Safety
    /// The caller, or whom it stands for, holds it for writing.
    #[inline]
    pub(super) unsafe fn end_writing(&self) {
        self.writer.store(0, Relaxed);
        self.give(MOST);
    }

    #[inline]
    fn give(&self, permits: usize) {
        let given = self.semaphore.give(permits);
        debug_assert!(given.is_ok(), "what was taken fits");
    }
}

impl Subject for RawRwLock {
    fn describe(&self) -> String {
        let mut text = Text::new("rwlock", self.name);
        match MOST - self.semaphore.free() {
            0 => {}
            MOST => text.holder(
                Holder::from_number(self.writer.load(Relaxed)),
                self.since.load(Relaxed),
            ),
            readers => text.add(&format!("read by {readers}")),
        }
        text.waiters(|each| self.semaphore.for_each_waiter(each));
        text.finish()
    }
}
