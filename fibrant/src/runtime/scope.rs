//! Scopes: fibers that may borrow, because their spawner waits for them.

use super::{FiberBuilder, Handle};
use crate::fiber;
use crate::scheduler::{Cancelled, JoinHandle, ScopeData};
use std::io;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::Arc;
use std::thread;

/// Runs `f`, which may spawn fibers that borrow from the caller, and returns when they have all ended. Mirrors
/// [`std::thread::scope`].
///
/// If the fiber that calls it is cancelled, the scope's fibers are cancelled with it, and it unwinds when they have ended.
///
/// # Panics
///
/// With the panic of `f`; and if one of the fibers panicked and was not joined.
///
/// ```
/// fibrant::run(|| {
///     let mut numbers = vec![1, 2, 3];
///     let mut sum = 0;
///     fibrant::scope(|s| {
///         s.spawn(|| sum = numbers.iter().sum());
///     });
///     numbers.push(sum);
///     assert_eq!(numbers, [1, 2, 3, 6]);
/// });
/// ```
#[track_caller]
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope {
        data: Arc::new(ScopeData::new()),
        handle: Handle::current_or_global(),
        _scope: PhantomData,
        _env: PhantomData,
    };
    let result = panic::catch_unwind(AssertUnwindSafe(|| f(&scope)));
    if result.as_ref().is_err_and(|payload| payload.is::<Cancelled>()) {
        scope.data.cancel(&scope.handle.crew);
    }
    let interruption = scope.data.wait_for_all();
    match (result, interruption) {
        (Err(payload), _) => panic::resume_unwind(payload),
        (_, Some(interruption)) => interruption.unwind(),
        _ if scope.data.has_panicked() => panic!("a scoped fiber panicked"),
        (Ok(value), _) => value,
    }
}

/// A scope to spawn fibers in: see [`scope`].
///
/// ```
/// fibrant::run(|| {
///     let word = String::from("borrowed");
///     fibrant::scope(|s| {
///         for _ in 0..3 {
///             s.spawn(|| assert_eq!(word, "borrowed"));
///         }
///     });
/// });
/// ```
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    data: Arc<ScopeData>,
    handle: Handle,
    /// Invariant in both, as std's.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Spawns a fiber that may borrow from outside the scope.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let text = String::from("hello");
    ///     let length = fibrant::scope(|s| s.spawn(|| text.len()).join().unwrap());
    ///     assert_eq!(length, 5);
    /// });
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&'scope self, f: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let spawned = self.spawn_at(FiberBuilder::new(), Location::caller(), f);
        spawned.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Spawns a fiber with a name, a stack size, or on a certain worker.
    ///
    /// # Errors
    ///
    /// As [`Builder::spawn`](crate::Builder::spawn).
    ///
    /// ```
    /// fibrant::run(|| {
    ///     fibrant::scope(|s| {
    ///         let builder = fibrant::Builder::new().name("child");
    ///         assert_eq!(s.spawn_with(builder, || 1).unwrap().name(), Some("child"));
    ///     });
    /// });
    /// ```
    #[track_caller]
    pub fn spawn_with<F, T>(
        &'scope self,
        builder: FiberBuilder,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.spawn_at(builder, Location::caller(), f)
    }

    fn spawn_at<F, T>(
        &'scope self,
        builder: FiberBuilder,
        spawned_at: &'static Location<'static>,
        f: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.data.note_spawned();
        // SAFETY: what it borrows lives for the scope, which does not end before the fiber has and its result has been taken
        // or dropped, or is with a handle that cannot outlive the scope.
        let spawned =
            unsafe { builder.spawn_unbounded(&self.handle, spawned_at, Some(Arc::clone(&self.data)), f) };
        if spawned.is_err() {
            self.data.note_ended();
        }
        Ok(ScopedJoinHandle {
            inner: spawned?,
            _scope: PhantomData,
        })
    }
}

/// A fiber of a [`scope`] that somebody may wait for. Mirrors [`std::thread::ScopedJoinHandle`].
///
/// ```
/// fibrant::run(|| {
///     fibrant::scope(|s| {
///         let fiber = s.spawn(|| 1 + 1);
///         assert_eq!(fiber.join().unwrap(), 2);
///     });
/// });
/// ```
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    inner: JoinHandle<T>,
    _scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the fiber to end: see [`JoinHandle::join`].
    ///
    /// # Errors
    ///
    /// What the fiber panicked with.
    ///
    /// ```
    /// fibrant::run(|| fibrant::scope(|s| assert_eq!(s.spawn(|| 3).join().unwrap(), 3)));
    /// ```
    pub fn join(self) -> thread::Result<T> {
        self.inner.join()
    }

    /// Whether the fiber has ended.
    ///
    /// ```
    /// fibrant::run(|| fibrant::scope(|s| {
    ///     let fiber = s.spawn(|| ());
    ///     while !fiber.is_finished() {
    ///         fibrant::yield_now();
    ///     }
    /// }));
    /// ```
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }

    /// Asks the fiber to end: see [`JoinHandle::cancel`].
    ///
    /// ```
    /// fibrant::run(|| fibrant::scope(|s| {
    ///     let fiber = s.spawn(fibrant::fiber::park);
    ///     fiber.cancel();
    ///     assert!(fiber.join().is_err());
    /// }));
    /// ```
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// The fiber's number.
    ///
    /// ```
    /// fibrant::run(|| fibrant::scope(|s| assert!(s.spawn(|| ()).id() > 0)));
    /// ```
    pub fn id(&self) -> u64 {
        self.inner.id()
    }

    /// The fiber's name, if it was given one.
    ///
    /// ```
    /// fibrant::run(|| fibrant::scope(|s| assert_eq!(s.spawn(|| ()).name(), None)));
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.inner.name()
    }

    /// The fiber, to unpark it.
    ///
    /// ```
    /// fibrant::run(|| fibrant::scope(|s| {
    ///     let fiber = s.spawn(fibrant::fiber::park);
    ///     fiber.fiber().unpark();
    /// }));
    /// ```
    pub fn fiber(&self) -> &fiber::Handle {
        self.inner.fiber()
    }
}
