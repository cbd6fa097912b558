//! The reader-writer lock: [`RawRwLock`], the value that it guards, and poisoning.

use super::poison::{Flag, WasPanicking};
use super::raw_rwlock::RawRwLock;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{LockResult, TryLockError, TryLockResult};

/// A reader-writer lock, as [`std::sync::RwLock`], for fibers and threads: many may read the value at once, or one may write it.
///
/// A fiber that waits for it lets others run; the guards may be held across waits. Nobody starves: those who have waited for a millisecond
/// are served first come, first served, and readers who follow each other get in together. So a reader does not overtake a writer that has
/// waited that long; and a fiber that reads must not lock it for reading once more, as it may wait for a writer that waits for it.
///
/// Waiting for it is a fibrant wait: a fiber that is cancelled, or whose [`timeout`](crate::timeout) is up, unwinds from it and leaves no
/// trace. Like a panic, this poisons the locks that it holds for writing; readers do not poison.
///
/// ```
/// use fibrant::sync::RwLock;
///
/// fibrant::run(|| {
///     let prices = RwLock::new(vec![3, 4]);
///     fibrant::scope(|scope| {
///         for _ in 0..10 {
///             scope.spawn(|| {
///                 let prices = prices.read().unwrap();
///                 fibrant::yield_now(); // others read, too, but nobody writes
///                 assert!(prices.len() >= 2);
///             });
///         }
///         scope.spawn(|| prices.write().unwrap().push(5));
///     });
///     assert_eq!(prices.into_inner().unwrap(), [3, 4, 5]);
/// });
/// ```
pub struct RwLock<T: ?Sized> {
    raw: RawRwLock,
    poison: Flag,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes from thread to thread with the lock.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: the value is reached through guards: one that writes passes it from thread to thread, those that read share it.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}
// As std's: poisoning tells of what was broken off.
impl<T: ?Sized> UnwindSafe for RwLock<T> {}
impl<T: ?Sized> RefUnwindSafe for RwLock<T> {}

/// Gives the value of a [`RwLock`], which is locked for reading until this is dropped.
///
/// It belongs to the fiber or thread that has locked it:
///
/// ```compile_fail,E0277
/// static LOCK: fibrant::sync::RwLock<u32> = fibrant::sync::RwLock::new(0);
/// let guard = LOCK.read().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
#[must_use = "the lock is unlocked at once if the guard is not kept"]
pub struct RwLockReadGuard<'a, T: ?Sized + 'a> {
    lock: &'a RwLock<T>,
    /// Not Send, as std's.
    _holder: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared value.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}

/// Gives the value of a [`RwLock`], which is locked for writing until this is dropped.
///
/// It belongs to the fiber or thread that has locked it:
///
/// ```compile_fail,E0277
/// static LOCK: fibrant::sync::RwLock<u32> = fibrant::sync::RwLock::new(0);
/// let guard = LOCK.write().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
#[must_use = "the lock is unlocked at once if the guard is not kept"]
pub struct RwLockWriteGuard<'a, T: ?Sized + 'a> {
    lock: &'a RwLock<T>,
    entered: WasPanicking,
    /// Not Send: the writer is noted in the lock.
    _holder: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared value.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// A lock that nobody holds.
    ///
    /// ```
    /// use fibrant::sync::RwLock;
    ///
    /// static COUNT: RwLock<u32> = RwLock::new(0);
    /// *COUNT.write().unwrap() += 1;
    /// ```
    pub const fn new(value: T) -> RwLock<T> {
        RwLock {
            raw: RawRwLock::new(None),
            poison: Flag::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// A lock with a name, which [dumps](crate::runtime::Handle::dump) show.
    ///
    /// ```
    /// static PRICES: fibrant::sync::RwLock<Vec<u32>> = fibrant::sync::RwLock::named("prices", Vec::new());
    /// assert!(PRICES.read().unwrap().is_empty());
    /// ```
    pub const fn named(name: &'static str, value: T) -> RwLock<T> {
        RwLock {
            raw: RawRwLock::new(Some(name)),
            poison: Flag::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// If the lock is poisoned; the value is in the error.
    ///
    /// ```
    /// assert_eq!(fibrant::sync::RwLock::new(1).into_inner().unwrap(), 1);
    /// ```
    pub fn into_inner(self) -> LockResult<T> {
        let value = self.value.into_inner();
        self.poison.wrap(value)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks it for reading, and waits for that if somebody writes, or has waited to for some time.
    ///
    /// # Errors
    ///
    /// If somebody panicked who wrote; the guard is in the error.
    ///
    /// # Panics
    ///
    /// If this fiber or thread has locked it for writing: it would wait for itself.
    ///
    /// ```
    /// let lock = fibrant::sync::RwLock::new(1);
    /// let one = lock.read().unwrap();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| assert_eq!(*one, *lock.read().unwrap()));
    /// });
    /// ```
    #[inline]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        self.raw.read();
        // SAFETY: it was just locked.
        self.poison.wrap(unsafe { RwLockReadGuard::new(self) })
    }

    /// Locks it for reading, if that needs no wait.
    ///
    /// # Errors
    ///
    /// If it does need a wait, or if somebody panicked who wrote.
    ///
    /// ```
    /// let lock = fibrant::sync::RwLock::new(1);
    /// assert!(lock.try_read().is_ok());
    /// let guard = lock.write().unwrap();
    /// assert!(lock.try_read().is_err());
    /// # drop(guard);
    /// ```
    #[inline]
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        let is_locked = self.raw.try_read();
        // SAFETY: it was just locked.
        self.poison
            .wrap_try(is_locked.then(|| unsafe { RwLockReadGuard::new(self) }))
    }

    /// Locks it for writing, and waits for that if somebody reads or writes.
    ///
    /// # Errors
    ///
    /// If somebody panicked who wrote; the guard is in the error.
    ///
    /// # Panics
    ///
    /// If this fiber or thread has locked it for writing already: it would wait for itself.
    ///
    /// ```
    /// let lock = fibrant::sync::RwLock::new(1);
    /// *lock.write().unwrap() = 2;
    /// assert_eq!(*lock.read().unwrap(), 2);
    /// ```
    #[inline]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.raw.write();
        // SAFETY: it was just locked.
        self.poison.wrap(unsafe { RwLockWriteGuard::new(self) })
    }

    /// Locks it for writing, if that needs no wait.
    ///
    /// # Errors
    ///
    /// If it does need a wait, or if somebody panicked who wrote.
    ///
    /// ```
    /// let lock = fibrant::sync::RwLock::new(1);
    /// let guard = lock.read().unwrap();
    /// assert!(lock.try_write().is_err());
    /// drop(guard);
    /// assert!(lock.try_write().is_ok());
    /// ```
    #[inline]
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        let is_locked = self.raw.try_write();
        // SAFETY: it was just locked.
        self.poison
            .wrap_try(is_locked.then(|| unsafe { RwLockWriteGuard::new(self) }))
    }

    /// Whether somebody panicked who wrote.
    ///
    /// ```
    /// assert!(!fibrant::sync::RwLock::new(1).is_poisoned());
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.poison.get()
    }

    /// Makes it as good as new, for those who know that its value is.
    ///
    /// ```
    /// use fibrant::sync::RwLock;
    ///
    /// fibrant::run(|| {
    ///     let lock = RwLock::new(1);
    ///     let result = fibrant::scope(|scope| {
    ///         let fiber = scope.spawn(|| {
    ///             let _guard = lock.write().unwrap();
    ///             std::panic::resume_unwind(Box::new("in the middle of something"));
    ///         });
    ///         fiber.join().map(|()| ())
    ///     });
    ///     assert!(result.is_err() && lock.is_poisoned());
    ///     lock.clear_poison();
    ///     assert_eq!(*lock.read().unwrap(), 1);
    /// });
    /// ```
    pub fn clear_poison(&self) {
        self.poison.clear();
    }

    /// The value. No lock is needed: nobody else can have it.
    ///
    /// # Errors
    ///
    /// If the lock is poisoned; the reference is in the error.
    ///
    /// ```
    /// let mut lock = fibrant::sync::RwLock::new(1);
    /// *lock.get_mut().unwrap() = 2;
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.poison.wrap(self.value.get_mut())
    }
}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// # Safety
    /// The caller has locked it for reading, and this is its guard.
    #[inline]
    unsafe fn new(lock: &'a RwLock<T>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            lock,
            _holder: PhantomData,
        }
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// # Safety
    /// The caller has locked it for writing, and this is its guard.
    #[inline]
    unsafe fn new(lock: &'a RwLock<T>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard {
            lock,
            entered: lock.poison.enter(),
            _holder: PhantomData,
        }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard stands for the lock: nobody writes.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard stands for the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; there is one guard, and it is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard stands for the lock, and is gone.
        unsafe { self.lock.raw.end_reading() };
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.poison.leave(self.entered);
        // SAFETY: the guard stands for the lock, and is gone.
        unsafe { self.lock.raw.end_writing() };
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("RwLock");
        match self.try_read() {
            Ok(guard) => text.field("data", &&*guard),
            Err(TryLockError::Poisoned(error)) => text.field("data", &&**error.get_ref()),
            Err(TryLockError::WouldBlock) => text.field("data", &format_args!("<locked>")),
        };
        text.field("poisoned", &self.is_poisoned())
            .finish_non_exhaustive()
    }
}
