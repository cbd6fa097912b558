//! The condition variable: those who have let a mutex go until somebody notifies them, in a list of their own.
//!
//! # Who is told
//!
//! A notification goes to the one that has waited longest. That one is *claimed* for it: it then neither times out nor is cancelled from
//! this wait, but locks the mutex again and returns. So no notification is lost; unless the fiber never goes on, and then it is passed on.
//!
//! # Whether there is anybody
//!
//! A notification that finds nobody is one load, without a fence. Who waits says so while it still holds the mutex. Who notifies has
//! changed what is waited for under the same mutex: either before, and then the other has seen the change and does not wait; or after,
//! and then the mutex has made what the other has written visible.

use super::holder::Holder;
use super::list::{List, Node};
use super::mutex::MutexGuard;
use super::raw_mutex::RawMutex;
use super::someone::{End, Someone, Wish};
use super::subject::{Name, Text};
use crate::clock;
use crate::fiber::{Subject, WaitReason};
use crate::scheduler::{InTable, Lock};
use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

/// A condition variable, as [`std::sync::Condvar`], for fibers and threads that share a [`Mutex`](super::Mutex).
///
/// It is what libco's `co_cond_t` is: those who wait are notified in the order in which they came, and whoever notifies them goes on
/// running. It differs in that it belongs to a mutex, as it must where there are several workers, and in that threads may use it, too.
/// [`wait`](Condvar::wait) and the like do not return without a reason, but for one: a notification is passed on by a fiber that is given
/// up when its runtime stops.
///
/// Waiting is a fibrant wait: a fiber that is cancelled while it waits, or whose [`timeout`](crate::timeout) is up, unwinds from it without
/// the mutex, and does not poison it. One that was notified before that first gets the mutex back, and returns as ever: what it was told
/// is not lost.
///
/// All who wait at the same time do so with the same mutex.
///
/// ```
/// use fibrant::sync::{Condvar, Mutex};
/// use std::sync::Arc;
///
/// fibrant::run(|| {
///     let shared = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
///     let consumer = fibrant::spawn({
///         let shared = Arc::clone(&shared);
///         move || {
///             let (queue, filled) = &*shared;
///             let mut queue = filled.wait_while(queue.lock().unwrap(), |queue| queue.is_empty()).unwrap();
///             queue.pop()
///         }
///     });
///     let (queue, filled) = &*shared;
///     queue.lock().unwrap().push("parcel");
///     filled.notify_one();
///     assert_eq!(consumer.join().unwrap(), Some("parcel"));
/// });
/// ```
pub struct Condvar {
    /// Whether somebody is in the list. Written under its lock.
    has_waiters: AtomicBool,
    list: Lock<List<Entry>>,
    name: Name,
}

// It has no value that could be broken off in the middle.
impl UnwindSafe for Condvar {}
impl RefUnwindSafe for Condvar {}

/// Whether a wait with a time limit has ended because that was over.
///
/// ```
/// use fibrant::sync::{Condvar, Mutex};
/// use std::time::Duration;
///
/// let (mutex, never) = (Mutex::new(()), Condvar::new());
/// let (_guard, result) = never.wait_timeout(mutex.lock().unwrap(), Duration::from_millis(1)).unwrap();
/// assert!(result.timed_out());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was over.
    ///
    /// ```
    /// use fibrant::sync::{Condvar, Mutex};
    /// use std::time::Duration;
    ///
    /// let (mutex, ready) = (Mutex::new(true), Condvar::new());
    /// let result = ready.wait_timeout_while(mutex.lock().unwrap(), Duration::from_secs(60), |ready| !*ready);
    /// assert!(!result.unwrap().1.timed_out());
    /// ```
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// Somebody who waits to be notified.
struct Entry {
    someone: NonNull<Someone>,
    holder: Holder,
    mutex: *const RawMutex,
    /// Set when it is taken out of the list to be notified.
    is_notified: Cell<bool>,
}

/// What is told to the scheduler, in case that a fiber never goes on.
struct Waiting<'a> {
    condvar: &'a Condvar,
    someone: &'a Someone,
    node: &'a Node<Entry>,
}

impl Condvar {
    /// A condition variable.
    ///
    /// ```
    /// static CHANGED: fibrant::sync::Condvar = fibrant::sync::Condvar::new();
    /// CHANGED.notify_all(); // nobody is there
    /// ```
    pub const fn new() -> Condvar {
        Condvar::made(None)
    }

    /// A condition variable with a name, which [dumps](crate::runtime::Handle::dump) show.
    ///
    /// ```
    /// static FILLED: fibrant::sync::Condvar = fibrant::sync::Condvar::named("filled");
    /// FILLED.notify_one();
    /// ```
    pub const fn named(name: &'static str) -> Condvar {
        Condvar::made(Some(name))
    }

    const fn made(name: Name) -> Condvar {
        Condvar {
            has_waiters: AtomicBool::new(false),
            list: Lock::new(List::new()),
            name,
        }
    }

    /// Unlocks the mutex, waits to be notified, and locks the mutex again.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned; the guard is in the error.
    ///
    /// # Panics
    ///
    /// If others wait here with another mutex.
    ///
    /// ```
    /// use fibrant::sync::{Condvar, Mutex};
    ///
    /// fibrant::run(|| {
    ///     let (ready, changed) = (Mutex::new(false), Condvar::new());
    ///     fibrant::scope(|scope| {
    ///         scope.spawn(|| {
    ///             *ready.lock().unwrap() = true;
    ///             changed.notify_one();
    ///         });
    ///         let mut guard = ready.lock().unwrap();
    ///         while !*guard {
    ///             guard = changed.wait(guard).unwrap();
    ///         }
    ///     });
    /// });
    /// ```
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let (guard, _) = self.wait_until(guard, clock::NEVER);
        guard.mutex().poison().wrap(guard)
    }

    /// Waits as long as the condition holds.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned; the guard is in the error.
    ///
    /// # Panics
    ///
    /// As [`wait`](Condvar::wait); or if the condition does.
    ///
    /// ```
    /// use fibrant::sync::{Condvar, Mutex};
    ///
    /// fibrant::run(|| {
    ///     let (pending, changed) = (Mutex::new(true), Condvar::new());
    ///     fibrant::scope(|scope| {
    ///         scope.spawn(|| {
    ///             *pending.lock().unwrap() = false;
    ///             changed.notify_one();
    ///         });
    ///         let guard = changed.wait_while(pending.lock().unwrap(), |pending| *pending).unwrap();
    ///         assert!(!*guard);
    ///     });
    /// });
    /// ```
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// Waits to be notified, that long at most. Getting the mutex back may take longer.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned; the guard and the result are in the error.
    ///
    /// # Panics
    ///
    /// As [`wait`](Condvar::wait).
    ///
    /// ```
    /// use fibrant::sync::{Condvar, Mutex};
    /// use std::time::Duration;
    ///
    /// let (mutex, never) = (Mutex::new(1), Condvar::new());
    /// let (guard, result) = never.wait_timeout(mutex.lock().unwrap(), Duration::from_millis(1)).unwrap();
    /// assert!(*guard == 1 && result.timed_out());
    /// ```
    pub fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (guard, timed_out) = self.wait_until(guard, clock::after(timeout));
        let mutex = guard.mutex();
        mutex.poison().wrap((guard, WaitTimeoutResult(timed_out)))
    }

    /// Waits as long as the condition holds, and that long at most. The result says whether it still held when the time was over.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned; the guard and the result are in the error.
    ///
    /// # Panics
    ///
    /// As [`wait`](Condvar::wait); or if the condition does.
    ///
    /// ```
    /// use fibrant::sync::{Condvar, Mutex};
    /// use std::time::Duration;
    ///
    /// let (pending, changed) = (Mutex::new(true), Condvar::new());
    /// let result = changed.wait_timeout_while(pending.lock().unwrap(), Duration::from_millis(1), |pending| *pending);
    /// assert!(result.unwrap().1.timed_out());
    /// ```
    pub fn wait_timeout_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let deadline = clock::after(timeout);
        loop {
            if !condition(&mut guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            if deadline != clock::NEVER && clock::now() >= deadline {
                return Ok((guard, WaitTimeoutResult(true)));
            }
            let (again, timed_out) = self.wait_until(guard, deadline);
            let poison = again.mutex().poison();
            guard = poison
                .wrap(again)
                .map_err(|error| PoisonError::new((error.into_inner(), WaitTimeoutResult(timed_out))))?;
        }
    }

    /// Waits to be notified, for at most that long, if it is limited. Says whether the time was over; and gives the guard back at once if
    /// others wait here with another mutex.
    #[cfg(feature = "c-api")]
    #[doc(hidden)]
    pub fn try_wait<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> Result<(MutexGuard<'a, T>, bool), MutexGuard<'a, T>> {
        self.try_wait_until(guard, timeout.map_or(clock::NEVER, clock::after))
    }

    /// Gives the mutex up until it is notified, or until the deadline. Says whether that was it.
    fn wait_until<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: u64,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.try_wait_until(guard, deadline);
        waited.unwrap_or_else(|_guard| panic!("others wait for this condition variable with another mutex"))
    }

    /// The same; gives the guard back at once if others wait with another mutex.
    fn try_wait_until<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: u64,
    ) -> Result<(MutexGuard<'a, T>, bool), MutexGuard<'a, T>> {
        // It stands for the lock when this returns; but if this unwinds, only as long as the mutex was not unlocked.
        let guard = ManuallyDrop::new(guard);
        let mutex = guard.mutex().raw();
        let someone = Someone::present();
        let node = Node::new(Entry {
            someone: NonNull::from(&someone),
            holder: guard.holder(),
            mutex,
            is_notified: Cell::new(false),
        });
        let waiting = Waiting {
            condvar: self,
            someone: &someone,
            node: &node,
        };
        let wish = Wish {
            reason: WaitReason::Lock {
                address: ptr::from_ref(self).addr(),
            },
            subject: Some(self),
            interruptible: true,
            deadline,
            in_table: Some(InTable {
                give_up: Waiting::give_up,
                wait: NonNull::from(&waiting).cast(),
            }),
        };
        let mut is_unlocked = false;
        let end = someone.wait(&wish, || {
            // SAFETY: it is in no list, and is taken out below, before this frame ends, or when the fiber is given up.
            is_unlocked = unsafe { self.enter(&node) };
            if is_unlocked {
                // SAFETY: the guard stands for the lock, and is not used until it is locked again.
                unsafe { mutex.unlock(guard.holder()) };
            }
            is_unlocked
        });
        match end {
            End::Woken => {
                // Whoever was notified is not interrupted here: its notification would be lost.
                let also = InTable {
                    give_up: Condvar::pass_on,
                    wait: NonNull::from(self).cast(),
                };
                mutex.lock_again(false, Some(also));
            }
            End::TimedOut => {
                self.leave(&node);
                mutex.lock_again(true, None);
            }
            End::Interrupted(interruption) => {
                if is_unlocked {
                    self.leave(&node);
                } else {
                    drop(ManuallyDrop::into_inner(guard));
                }
                interruption.unwind();
            }
            End::Needless => return Err(ManuallyDrop::into_inner(guard)),
        }
        Ok((ManuallyDrop::into_inner(guard), end == End::TimedOut))
    }

    /// Adds somebody to the list, unless those in it wait with another mutex.
    ///
    /// # Safety
    /// It is in no list, and stays in place until it is taken out.
    unsafe fn enter(&self, node: &Node<Entry>) -> bool {
        let mut list = self.list.lock();
        if list
            .first()
            .is_some_and(|first| !ptr::eq(first.mutex, node.mutex))
        {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { list.push(node) };
        self.has_waiters.store(true, Relaxed);
        true
    }

    /// Takes somebody out of the list who will not come. If it was notified, another one is instead.
    fn leave(&self, node: &Node<Entry>) {
        let mut list = self.list.lock();
        if node.is_notified.get() {
            drop(list);
            self.notify(1);
        } else {
            // SAFETY: it is in no other list: only those who were notified are.
            unsafe { list.remove(node) };
            self.has_waiters.store(!list.is_empty(), Relaxed);
        }
    }

    /// Notifies the one that has waited longest, if anybody waits. Neither does that one run at once, nor does the caller wait: it
    /// makes no difference whether it holds the mutex.
    ///
    /// ```
    /// use fibrant::sync::{Condvar, Mutex};
    ///
    /// fibrant::run(|| {
    ///     let (tickets, more) = (Mutex::new(0), Condvar::new());
    ///     fibrant::scope(|scope| {
    ///         for _ in 0..2 {
    ///             scope.spawn(|| *more.wait_while(tickets.lock().unwrap(), |tickets| *tickets == 0).unwrap() -= 1);
    ///         }
    ///         for _ in 0..2 {
    ///             *tickets.lock().unwrap() += 1;
    ///             more.notify_one();
    ///         }
    ///     });
    /// });
    /// ```
    #[inline]
    pub fn notify_one(&self) {
        if self.has_waiters.load(Relaxed) {
            self.notify(1);
        }
    }

    /// Notifies all who wait, in the order in which they came. Each gets the mutex when it is its turn.
    ///
    /// ```
    /// use fibrant::sync::{Condvar, Mutex};
    ///
    /// fibrant::run(|| {
    ///     let (open, opened) = (Mutex::new(false), Condvar::new());
    ///     fibrant::scope(|scope| {
    ///         for _ in 0..10 {
    ///             scope.spawn(|| drop(opened.wait_while(open.lock().unwrap(), |open| !*open)));
    ///         }
    ///         *open.lock().unwrap() = true;
    ///         opened.notify_all();
    ///     });
    /// });
    /// ```
    #[inline]
    pub fn notify_all(&self) {
        if self.has_waiters.load(Relaxed) {
            self.notify(usize::MAX);
        }
    }

    #[cold]
    fn notify(&self, most: usize) {
        let mut left = most;
        let mut notified = List::new();
        let mut list = self.list.lock();
        list.for_each(|list, node| {
            if left == 0 {
                return false;
            }
            // SAFETY: it is in this list.
            unsafe { list.unlink(node) };
            // SAFETY: whoever is in the list is in place. If it has been interrupted, it is about to leave.
            if unsafe { node.someone.as_ref() }.claim() {
                node.is_notified.set(true);
                // SAFETY: it is in no list now, and stays until it is woken.
                unsafe { notified.push(node) };
                left -= 1;
            }
            true
        });
        self.has_waiters.store(!list.is_empty(), Relaxed);
        drop(list);
        notified.for_each(|_, node| {
            // SAFETY: it was claimed, and is woken once. The one after it is known already.
            unsafe { Someone::wake(node.someone) };
            true
        });
    }

    /// A fiber that was notified never goes on.
    ///
    /// # Safety
    /// It is called with a condition variable.
    unsafe fn pass_on(condvar: NonNull<()>) {
        // SAFETY: the caller's promise.
        unsafe { condvar.cast::<Condvar>().as_ref() }.notify(1);
    }
}

impl Waiting<'_> {
    /// The fiber that waits here never goes on.
    ///
    /// # Safety
    /// See [`InTable`].
    unsafe fn give_up(waiting: NonNull<()>) {
        // SAFETY: it is what `wait_until` has noted, in the frame of a fiber that never goes on, so that it stays.
        let waiting = unsafe { waiting.cast::<Waiting<'_>>().as_ref() };
        waiting.someone.give_up();
        waiting.condvar.leave(waiting.node);
    }
}

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

impl Subject for Condvar {
    fn describe(&self) -> String {
        let mut text = Text::new("condvar", self.name);
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
