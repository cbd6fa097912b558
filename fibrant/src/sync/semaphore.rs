//! The semaphore: [`RawSemaphore`], and permits that are given back when they are dropped.

use super::raw_semaphore::RawSemaphore;
use super::subject::{Name, Text};
use crate::clock;
use crate::fiber::Subject;
use std::fmt;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::time::Duration;

/// A number of permits, which fibers and threads take and give back: so many of them may do something at once.
///
/// This is what sylar's `FiberSemaphore` is, with permits that give themselves back, timeouts, and requests for several at once; it is
/// also what Go programs use a buffered channel for. A permit need not be given back by whoever took it, or at all:
/// [`release`](Semaphore::release) adds permits, and [`Permit::forget`] removes one.
///
/// A free permit is taken by whoever comes first; but those who have waited for a millisecond are served first come, first served, also
/// if they want many permits and others want few.
///
/// Waiting for a permit is a fibrant wait: a fiber that is cancelled, or whose [`timeout`](crate::timeout) is up, unwinds from it, and
/// permits that it had been given already go to the next.
///
/// ```
/// use fibrant::sync::Semaphore;
/// use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
/// use std::time::Duration;
///
/// static DOWNLOADS: Semaphore = Semaphore::named("downloads", 3);
/// static RUNNING: AtomicUsize = AtomicUsize::new(0);
///
/// fibrant::run(|| {
///     fibrant::scope(|scope| {
///         for _ in 0..20 {
///             scope.spawn(|| {
///                 let _permit = DOWNLOADS.acquire();
///                 assert!(RUNNING.fetch_add(1, SeqCst) < 3);
///                 fibrant::sleep(Duration::from_millis(1));
///                 RUNNING.fetch_sub(1, SeqCst);
///             });
///         }
///     });
///     assert_eq!(DOWNLOADS.available(), 3);
/// });
/// ```
pub struct Semaphore {
    raw: RawSemaphore,
    name: Name,
}

// It has no value that could be broken off in the middle.
impl UnwindSafe for Semaphore {}
impl RefUnwindSafe for Semaphore {}

/// One or more permits of a [`Semaphore`], which are given back when this is dropped.
///
/// It may be sent to other fibers and threads.
///
/// ```
/// let semaphore = fibrant::sync::Semaphore::new(1);
/// let permit = semaphore.acquire();
/// std::thread::scope(|scope| scope.spawn(move || drop(permit)).join()).unwrap();
/// assert_eq!(semaphore.available(), 1);
/// ```
#[must_use = "the permit is given back at once if it is not kept"]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Semaphore {
    /// A semaphore with so many permits.
    ///
    /// # Panics
    ///
    /// If that is more than half of `usize::MAX`.
    ///
    /// ```
    /// static SEMAPHORE: fibrant::sync::Semaphore = fibrant::sync::Semaphore::new(2);
    /// assert_eq!(SEMAPHORE.available(), 2);
    /// ```
    pub const fn new(permits: usize) -> Semaphore {
        Semaphore {
            raw: RawSemaphore::new(permits),
            name: None,
        }
    }

    /// A semaphore with a name, which [dumps](crate::runtime::Handle::dump) show.
    ///
    /// # Panics
    ///
    /// As [`new`](Semaphore::new).
    ///
    /// ```
    /// static CONNECTIONS: fibrant::sync::Semaphore = fibrant::sync::Semaphore::named("connections", 10);
    /// let _permit = CONNECTIONS.acquire();
    /// ```
    pub const fn named(name: &'static str, permits: usize) -> Semaphore {
        Semaphore {
            raw: RawSemaphore::new(permits),
            name: Some(name),
        }
    }

    /// Takes a permit, and waits for one if none is free.
    ///
    /// ```
    /// let semaphore = fibrant::sync::Semaphore::new(1);
    /// let permit = semaphore.acquire();
    /// assert_eq!(semaphore.available(), 0);
    /// drop(permit);
    /// assert_eq!(semaphore.available(), 1);
    /// ```
    #[inline]
    pub fn acquire(&self) -> Permit<'_> {
        self.acquire_many(1)
    }

    /// Takes a permit, if one is free and nobody has waited for a millisecond.
    ///
    /// ```
    /// let semaphore = fibrant::sync::Semaphore::new(1);
    /// let permit = semaphore.try_acquire().unwrap();
    /// assert!(semaphore.try_acquire().is_none());
    /// # drop(permit);
    /// ```
    #[inline]
    pub fn try_acquire(&self) -> Option<Permit<'_>> {
        self.try_acquire_many(1)
    }

    /// Takes a permit, and waits for one that long at most.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let semaphore = fibrant::sync::Semaphore::new(1);
    /// let permit = semaphore.acquire_timeout(Duration::from_millis(1)).unwrap();
    /// assert!(semaphore.acquire_timeout(Duration::from_millis(1)).is_none());
    /// # drop(permit);
    /// ```
    pub fn acquire_timeout(&self, timeout: Duration) -> Option<Permit<'_>> {
        self.acquire_many_timeout(1, timeout)
    }

    /// Takes so many permits, and waits until it can have them all. While it does, it has none.
    ///
    /// If there are never that many, it waits for ever.
    ///
    /// ```
    /// let semaphore = fibrant::sync::Semaphore::new(3);
    /// let two = semaphore.acquire_many(2);
    /// assert_eq!((two.count(), semaphore.available()), (2, 1));
    /// ```
    #[inline]
    pub fn acquire_many(&self, permits: usize) -> Permit<'_> {
        self.take(permits, clock::NEVER);
        self.permit(permits)
    }

    /// Takes so many permits, if they are free and nobody has waited for a millisecond.
    ///
    /// ```
    /// let semaphore = fibrant::sync::Semaphore::new(3);
    /// assert!(semaphore.try_acquire_many(3).is_some());
    /// assert!(semaphore.try_acquire_many(4).is_none());
    /// ```
    #[inline]
    pub fn try_acquire_many(&self, permits: usize) -> Option<Permit<'_>> {
        let is_taken = permits == 0 || self.raw.try_take(permits);
        is_taken.then(|| self.permit(permits))
    }

    /// Takes so many permits, and waits that long at most until it can have them all.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let semaphore = fibrant::sync::Semaphore::new(3);
    /// assert!(semaphore.acquire_many_timeout(4, Duration::from_millis(1)).is_none());
    /// assert_eq!(semaphore.available(), 3);
    /// ```
    pub fn acquire_many_timeout(&self, permits: usize, timeout: Duration) -> Option<Permit<'_>> {
        self.try_acquire_many(permits).or_else(|| {
            let is_taken = self.take(permits, clock::after(timeout));
            is_taken.then(|| self.permit(permits))
        })
    }

    #[inline]
    fn take(&self, permits: usize, deadline: u64) -> bool {
        permits == 0 || self.raw.take(permits, deadline, ptr::from_ref(self).addr(), self)
    }

    /// The guard of permits that were just taken.
    #[inline]
    fn permit(&self, count: usize) -> Permit<'_> {
        Permit {
            semaphore: self,
            count,
        }
    }

    /// Adds so many permits, or gives back what was [forgotten](Permit::forget). Nobody else runs because of that at once.
    ///
    /// # Panics
    ///
    /// If there would be more than half of `usize::MAX`.
    ///
    /// ```
    /// let done = fibrant::sync::Semaphore::new(0);
    /// fibrant::run(|| {
    ///     fibrant::scope(|scope| {
    ///         scope.spawn(|| done.release(1));
    ///         done.acquire().forget(); // waits until that is done
    ///     });
    /// });
    /// ```
    #[inline]
    pub fn release(&self, permits: usize) {
        assert!(
            self.raw.give(permits).is_ok(),
            "more permits than a semaphore can have"
        );
    }

    /// How many permits are free.
    ///
    /// ```
    /// assert_eq!(fibrant::sync::Semaphore::new(3).available(), 3);
    /// ```
    pub fn available(&self) -> usize {
        self.raw.free()
    }
}

impl Permit<'_> {
    /// How many permits these are.
    ///
    /// ```
    /// assert_eq!(fibrant::sync::Semaphore::new(3).acquire_many(2).count(), 2);
    /// ```
    pub fn count(&self) -> usize {
        self.count
    }

    /// Keeps them taken for good, or until [`release`](Semaphore::release) adds as many.
    ///
    /// ```
    /// let semaphore = fibrant::sync::Semaphore::new(3);
    /// semaphore.acquire().forget();
    /// assert_eq!(semaphore.available(), 2);
    /// ```
    pub fn forget(self) {
        mem::forget(self);
    }
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.semaphore.release(self.count);
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Subject for Semaphore {
    fn describe(&self) -> String {
        let mut text = Text::new("semaphore", self.name);
        text.add(&format!("{} free", self.available()));
        text.waiters(|each| self.raw.for_each_waiter(each));
        text.finish()
    }
}
