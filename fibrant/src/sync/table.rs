//! The wait table: who waits for which address.
//!
//! An address falls into one of a fixed number of *buckets*, each a small lock around one queue, first in, first out. A waiter lives
//! in the frame of whoever waits. [`address`](super::address) enters and removes waiters and wakes them; what a waiter is (a fiber or a
//! thread) this file does not know: it is a [`Sleeper`], whose wait can be *claimed*, once.
//!
//! # Nothing is missed
//!
//! Who waits enters the bucket's count, and then looks, under the bucket's lock, whether there is still a reason to wait. Who wakes
//! has changed that reason before, and then looks at the count. Between the two steps of each lies a full fence, so at
//! least one of them sees what the other did: either the waiter sees the change and does not wait, or the waker sees the count, takes
//! the lock, and finds the waiter in the queue. So a wake with nobody waiting costs a fence and a load.
//!
//! # Nothing is counted twice
//!
//! Waiters are claimed under the lock, and leave the queue at the same time. One whose claim fails has been ended by something else
//! (its deadline); it leaves the queue, too, but is not counted. Claimed ones are woken after the lock is released: they cannot go
//! on before that, so their frames stay.

use super::list::{List, Node};
use crate::primitives::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use crate::scheduler::Lock;
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// What an address is waited for as: the same address may be several things to several functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub(crate) enum Space {
    /// The kernel's own kind: a number of 32 bits.
    Futex,
    Mutex,
    Condition,
    RwLock,
    Semaphore,
    Barrier,
    Once,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) space: Space,
    pub(crate) address: usize,
}

impl Key {
    pub(crate) fn new(space: Space, address: usize) -> Key {
        Key { space, address }
    }
}

/// Who waits.
pub(crate) trait Sleeper {
    /// Ends the wait, unless it has ended. Who gets `true` must wake the sleeper, which does not go on until then.
    fn claim(&self) -> bool;
}

/// Who waits, and for what.
pub(crate) struct Place<S> {
    pub(crate) sleeper: S,
    /// Only wakes with one of these bits are meant for it.
    pub(crate) bits: u32,
    /// The bucket that it is in, by its number. Changed under the locks of both.
    bucket: AtomicUsize,
    // All below: under the lock of that bucket.
    key: Cell<Key>,
    was_taken: Cell<bool>,
    /// The next of those who were claimed at once.
    next: Cell<*const Waiter<S>>,
}

/// A place in the table, in the frame of whoever waits.
pub(crate) type Waiter<S> = Node<Place<S>>;

impl<S> Place<S> {
    pub(crate) fn waiter(sleeper: S, key: Key, bits: u32) -> Waiter<S> {
        Node::new(Place {
            sleeper,
            bits,
            bucket: AtomicUsize::new(0),
            key: Cell::new(key),
            was_taken: Cell::new(false),
            next: Cell::new(ptr::null()),
        })
    }

    /// Whether a waker has claimed it by this place. For whoever waits, after it was removed.
    pub(crate) fn was_taken(&self) -> bool {
        self.was_taken.get()
    }

    /// What it waits for, or waited for. For whoever waits, after it was removed.
    pub(crate) fn key(&self) -> Key {
        self.key.get()
    }
}

type Queue<S> = List<Place<S>>;

/// Some of those who wait. Each has its own lines of the cache.
#[repr(align(128))]
struct Bucket<S> {
    /// How many waiters are in the queue, or about to be.
    count: AtomicUsize,
    queue: Lock<Queue<S>>,
}

/// The table.
pub(crate) struct Table<S> {
    buckets: Box<[Bucket<S>]>,
}

/// Waiters whose waits were claimed, to be woken by the caller, in this order.
pub(crate) struct Claimed<S> {
    first: *const Waiter<S>,
    last: *const Waiter<S>,
    pub(crate) count: usize,
}

impl<S: Sleeper + Sync> Table<S> {
    /// A table of so many buckets: a power of two.
    pub(crate) fn new(buckets: usize) -> Table<S> {
        assert!(buckets.is_power_of_two());
        let bucket = || Bucket {
            count: AtomicUsize::new(0),
            queue: Lock::new(Queue::new()),
        };
        Table {
            buckets: (0..buckets).map(|_| bucket()).collect(),
        }
    }

    /// The number of an address's bucket.
    pub(crate) fn place(&self, key: Key) -> usize {
        // Addresses of locks are multiples of four; the product spreads what they differ in over the high bits.
        let mixed = (key.address as u64 >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 40) as usize & (self.buckets.len() - 1)
    }

    /// Whether somebody may be waiting. The caller has changed what they wait for, and a full fence came after that.
    #[inline]
    pub(crate) fn may_have(&self, key: Key) -> bool {
        self.buckets[self.place(key)].count.load(Relaxed) > 0
    }

    /// Enters a waiter, if there is still a reason to wait: `still` says so, under the lock.
    ///
    /// # Safety
    /// It is new, and stays in place until it was claimed or [`remove`](Table::remove)d.
    pub(crate) unsafe fn enter(&self, waiter: &Waiter<S>, still: impl FnOnce() -> bool) -> bool {
        let place = self.place(waiter.key.get());
        let bucket = &self.buckets[place];
        waiter.bucket.store(place, Relaxed);
        let mut queue = bucket.queue.lock();
        bucket.count.fetch_add(1, SeqCst);
        fence(SeqCst);
        if !still() {
            bucket.count.fetch_sub(1, Relaxed);
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { queue.push(waiter) };
        true
    }

    /// Removes a waiter, if it is still there. For whoever waits, when the wait is over; afterwards nobody knows of it.
    pub(crate) fn remove(&self, waiter: &Waiter<S>) {
        loop {
            let place = waiter.bucket.load(Relaxed);
            let bucket = &self.buckets[place];
            let mut queue = bucket.queue.lock();
            if waiter.bucket.load(Relaxed) != place {
                continue; // moved meanwhile; while this lock is held it is not
            }
            if waiter.is_linked() {
                // SAFETY: it is in the queue of that bucket.
                unsafe { queue.unlink(waiter) };
                bucket.count.fetch_sub(1, Relaxed);
            }
            return;
        }
    }

    /// Calls `f` with all who wait for anything. It only looks.
    pub(crate) fn for_all(&self, mut f: impl FnMut(&S)) {
        for bucket in &self.buckets {
            bucket.queue.lock().for_each(|_, waiter| {
                f(&waiter.sleeper);
                true
            });
        }
    }

    /// Claims up to so many of those who wait, the one that has waited longest first.
    pub(crate) fn claim(&self, key: Key, most: usize, bits: u32) -> Claimed<S> {
        let bucket = &self.buckets[self.place(key)];
        let mut claimed = Claimed::none();
        if most > 0 {
            claimed.take_from(bucket, &mut bucket.queue.lock(), key, most, bits);
        }
        claimed
    }

    /// Claims up to `wake` of those who wait for `from`, and lets up to `most` of the others wait for `to` instead, at the end of that
    /// queue. Neither, if `check`, called under the locks, says no. Also gives how many it has moved.
    pub(crate) fn requeue(
        &self,
        from: Key,
        to: Key,
        wake: usize,
        most: usize,
        check: impl FnOnce() -> bool,
    ) -> Option<(Claimed<S>, usize)> {
        let places = (self.place(from), self.place(to));
        let (old, new) = (&self.buckets[places.0], &self.buckets[places.1]);
        // Always in the same order, so that two who do this do not wait for each other.
        let (mut old_queue, mut new_queue) = match places {
            (one, other) if one < other => {
                let first = old.queue.lock();
                (first, Some(new.queue.lock()))
            }
            (one, other) if one > other => {
                let first = new.queue.lock();
                (old.queue.lock(), Some(first))
            }
            _ => (old.queue.lock(), None),
        };
        // As when one enters: who changes what `to` stands for from here on finds that somebody may wait for it.
        new.count.fetch_add(1, SeqCst);
        fence(SeqCst);
        let is_right = check();
        let mut claimed = Claimed::none();
        if is_right && wake > 0 {
            claimed.take_from(old, &mut old_queue, from, wake, !0);
        }
        let mut moved = 0;
        if is_right && most > 0 && from != to {
            // Those who stay in the same bucket come to the end of its queue, and are met there again, with the other key.
            old_queue.for_each(|queue, waiter| {
                if waiter.key.get() != from {
                    return true;
                }
                // SAFETY: it is in this queue, and stays in place until it is in none.
                unsafe {
                    queue.unlink(waiter);
                    waiter.key.set(to);
                    waiter.bucket.store(places.1, Relaxed);
                    new_queue.as_deref_mut().unwrap_or(queue).push(waiter);
                }
                new.count.fetch_add(1, Relaxed);
                old.count.fetch_sub(1, Relaxed);
                moved += 1;
                moved < most
            });
        }
        new.count.fetch_sub(1, Relaxed);
        is_right.then_some((claimed, moved))
    }
}

impl<S: Sleeper> Claimed<S> {
    fn none() -> Claimed<S> {
        Claimed {
            first: ptr::null(),
            last: ptr::null(),
            count: 0,
        }
    }

    /// Claims up to so many of those in a bucket, whose lock is held.
    fn take_from(&mut self, bucket: &Bucket<S>, queue: &mut Queue<S>, key: Key, most: usize, bits: u32) {
        queue.for_each(|queue, waiter| {
            if waiter.key.get() != key || waiter.bits & bits == 0 {
                return true;
            }
            // SAFETY: it is in this queue.
            unsafe { queue.unlink(waiter) };
            bucket.count.fetch_sub(1, Relaxed);
            if waiter.sleeper.claim() {
                waiter.was_taken.set(true);
                self.push(waiter);
            }
            self.count < most
        });
    }

    fn push(&mut self, waiter: &Waiter<S>) {
        waiter.next.set(ptr::null());
        // SAFETY: who is claimed stays in place until it is woken.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.next.set(waiter),
            None => self.first = waiter,
        }
        self.last = waiter;
        self.count += 1;
    }

    /// Calls `wake` with each, which must wake it.
    pub(crate) fn wake(self, mut wake: impl FnMut(NonNull<S>)) {
        let mut next = self.first;
        // SAFETY: who is claimed stays in place until it is woken, which is after this is read.
        while let Some(waiter) = unsafe { next.as_ref() } {
            next = waiter.next.get();
            wake(NonNull::from(&waiter.sleeper));
        }
    }
}
