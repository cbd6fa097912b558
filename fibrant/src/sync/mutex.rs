//! The mutex: [`RawMutex`], the value that it guards, and poisoning.

use super::holder::Holder;
use super::poison::{Flag, WasPanicking};
use super::raw_mutex::RawMutex;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{LockResult, TryLockError, TryLockResult};

/// A mutual exclusion lock, as [`std::sync::Mutex`], for fibers and threads.
///
/// A fiber that waits for it lets others run; the guard may be held across waits. A lock that is free is taken by whoever comes first;
/// but those who have waited for a millisecond are served first come, first served.
///
/// Waiting for it is a fibrant wait: a fiber that is cancelled, or whose [`timeout`](crate::timeout) is up, unwinds from it and leaves no
/// trace. Like a panic, this poisons the mutexes whose guards it drops.
///
/// ```
/// use fibrant::sync::Mutex;
/// use std::sync::Arc;
///
/// fibrant::run(|| {
///     let account = Arc::new(Mutex::new(0));
///     let deposits: Vec<_> = (0..100)
///         .map(|_| {
///             let account = Arc::clone(&account);
///             fibrant::spawn(move || {
///                 let mut balance = account.lock().unwrap();
///                 let before = *balance;
///                 fibrant::yield_now(); // nobody else comes in between
///                 *balance = before + 1;
///             })
///         })
///         .collect();
///     deposits.into_iter().for_each(|deposit| deposit.join().unwrap());
///     assert_eq!(*account.lock().unwrap(), 100);
/// });
/// ```
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    poison: Flag,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes from thread to thread with the mutex.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: the value is reached through the guard, and there is one at a time: it passes from thread to thread.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// As std's: poisoning tells of what was broken off.
impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

/// Gives the value of a [`Mutex`], which is locked until this is dropped.
///
/// It belongs to the fiber or thread that has locked it:
///
/// ```compile_fail,E0277
/// static MUTEX: fibrant::sync::Mutex<u32> = fibrant::sync::Mutex::new(0);
/// let guard = MUTEX.lock().unwrap();
/// std::thread::spawn(move || drop(guard));
/// ```
#[must_use = "the mutex is unlocked at once if the guard is not kept"]
pub struct MutexGuard<'a, T: ?Sized + 'a> {
    mutex: &'a Mutex<T>,
    entered: WasPanicking,
    /// Who has locked it.
    holder: Holder,
    /// Not Send: the holder is noted in the mutex.
    _bound: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared value.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// A mutex that is not locked.
    ///
    /// ```
    /// use fibrant::sync::Mutex;
    ///
    /// static COUNT: Mutex<u32> = Mutex::new(0);
    /// *COUNT.lock().unwrap() += 1;
    /// ```
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            raw: RawMutex::new(None),
            poison: Flag::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// A mutex with a name, which [dumps](crate::runtime::Handle::dump) show.
    ///
    /// ```
    /// static ACCOUNTS: fibrant::sync::Mutex<Vec<u32>> = fibrant::sync::Mutex::named("accounts", Vec::new());
    /// ACCOUNTS.lock().unwrap().push(1);
    /// ```
    pub const fn named(name: &'static str, value: T) -> Mutex<T> {
        Mutex {
            raw: RawMutex::new(Some(name)),
            poison: Flag::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned; the value is in the error.
    ///
    /// ```
    /// assert_eq!(fibrant::sync::Mutex::new(1).into_inner().unwrap(), 1);
    /// ```
    pub fn into_inner(self) -> LockResult<T> {
        let value = self.value.into_inner();
        self.poison.wrap(value)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks it, and waits for that if it is locked.
    ///
    /// # Errors
    ///
    /// If somebody panicked who had locked it; the guard is in the error.
    ///
    /// # Panics
    ///
    /// If this fiber or thread has locked it already: it would wait for itself.
    ///
    /// ```
    /// let mutex = fibrant::sync::Mutex::new(1);
    /// *mutex.lock().unwrap() = 2;
    /// assert_eq!(*mutex.lock().unwrap(), 2);
    /// ```
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let holder = self.raw.lock();
        // SAFETY: it was just locked.
        self.poison.wrap(unsafe { MutexGuard::new(self, holder) })
    }

    /// Locks it, if it is not locked.
    ///
    /// # Errors
    ///
    /// If it is locked, or if somebody panicked who had locked it.
    ///
    /// ```
    /// let mutex = fibrant::sync::Mutex::new(1);
    /// let guard = mutex.try_lock().unwrap();
    /// assert!(mutex.try_lock().is_err());
    /// drop(guard);
    /// assert!(mutex.try_lock().is_ok());
    /// ```
    #[inline]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let holder = self.raw.try_lock();
        // SAFETY: it was just locked.
        self.poison
            .wrap_try(holder.map(|holder| unsafe { MutexGuard::new(self, holder) }))
    }

    /// Whether somebody panicked who had locked it.
    ///
    /// ```
    /// assert!(!fibrant::sync::Mutex::new(1).is_poisoned());
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.poison.get()
    }

    /// Makes it as good as new, for those who know that its value is.
    ///
    /// ```
    /// use fibrant::sync::Mutex;
    ///
    /// fibrant::run(|| {
    ///     let mutex = Mutex::new(1);
    ///     let result = fibrant::scope(|scope| {
    ///         let fiber = scope.spawn(|| {
    ///             let _guard = mutex.lock().unwrap();
    ///             std::panic::resume_unwind(Box::new("in the middle of something"));
    ///         });
    ///         fiber.join().map(|()| ())
    ///     });
    ///     assert!(result.is_err() && mutex.is_poisoned());
    ///     mutex.clear_poison();
    ///     assert_eq!(*mutex.lock().unwrap(), 1);
    /// });
    /// ```
    pub fn clear_poison(&self) {
        self.poison.clear();
    }

    /// The value. No lock is needed: nobody else can have it.
    ///
    /// # Errors
    ///
    /// If the mutex is poisoned; the reference is in the error.
    ///
    /// ```
    /// let mut mutex = fibrant::sync::Mutex::new(1);
    /// *mutex.get_mut().unwrap() = 2;
    /// ```
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.poison.wrap(self.value.get_mut())
    }
}

/// For those who have no place for a guard.
#[cfg(feature = "c-api")]
#[doc(hidden)]
impl<T: ?Sized> Mutex<T> {
    /// Whether the fiber or thread that calls this has locked it.
    pub fn is_mine(&self) -> bool {
        self.raw.is_held_by(Holder::present().0)
    }

    /// Its guard once more.
    ///
    /// # Safety
    /// The caller has locked it, and has forgotten the guard.
    pub unsafe fn guard(&self) -> MutexGuard<'_, T> {
        // SAFETY: the caller's promise.
        unsafe { MutexGuard::new(self, Holder::present().0) }
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// # Safety
    /// The caller has locked the mutex, as that holder, and this is its guard.
    #[inline]
    unsafe fn new(mutex: &'a Mutex<T>, holder: Holder) -> MutexGuard<'a, T> {
        MutexGuard {
            mutex,
            entered: mutex.poison.enter(),
            holder,
            _bound: PhantomData,
        }
    }

    /// Who has locked it.
    pub(super) fn holder(&self) -> Holder {
        self.holder
    }

    /// Its mutex.
    pub(super) fn mutex(&self) -> &'a Mutex<T> {
        self.mutex
    }
}

impl<T: ?Sized> Mutex<T> {
    /// The lock alone.
    pub(super) fn raw(&self) -> &RawMutex {
        &self.raw
    }

    /// Whether it is poisoned.
    pub(super) fn poison(&self) -> &Flag {
        &self.poison
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard stands for the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; there is one guard, and it is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.poison.leave(self.entered);
        // SAFETY: the guard stands for the lock, and is gone.
        unsafe { self.mutex.raw.unlock(self.holder) };
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Mutex");
        match self.try_lock() {
            Ok(guard) => text.field("data", &&*guard),
            Err(TryLockError::Poisoned(error)) => text.field("data", &&**error.get_ref()),
            Err(TryLockError::WouldBlock) => text.field("data", &format_args!("<locked>")),
        };
        text.field("poisoned", &self.is_poisoned())
            .finish_non_exhaustive()
    }
}
