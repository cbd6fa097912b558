//! Fiber-locals: one value per fiber, as a thread-local is one per thread.
//!
//! Users declare them with [`fiber_local!`](crate::fiber_local). Each fiber's [`Block`](super::block::Block) has [`Locals`],
//! and so has each [`Thread`], for code outside fibers. A value is made when it is first asked for, and dropped when its
//! fiber (or thread) ends, on that fiber.

use super::thread::Thread;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Declares fiber-locals, with the syntax of [`std::thread_local!`].
///
/// Each fiber has its own value, made from the initial one when it is first asked for and dropped when the fiber ends.
/// Outside fibers, the thread has its own. See [`fiber::FiberLocal`](crate::fiber::FiberLocal) for what can be done with it.
///
/// ```
/// use fibrant::fiber::Fiber;
/// use fibrant::fiber_local;
/// use std::cell::Cell;
///
/// fiber_local! {
///     static REQUEST: Cell<u32> = const { Cell::new(0) };
/// }
///
/// REQUEST.set(1);
/// let fiber = Fiber::new(|| {
///     assert_eq!(REQUEST.get(), 0); // the fiber's own
///     REQUEST.set(2);
/// });
/// fiber.resume().unwrap();
/// assert_eq!(REQUEST.get(), 1);
/// ```
#[macro_export]
macro_rules! fiber_local {
    () => {};
    ($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = const $init:block $(; $($rest:tt)*)?) => {
        $crate::fiber_local!($(#[$attribute])* $visibility static $name: $type = const { $init } , $($($rest)*)?);
    };
    ($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = $init:expr, $($rest:tt)*) => {
        $(#[$attribute])*
        $visibility static $name: $crate::fiber::FiberLocal<$type> = {
            fn init() -> $type {
                $init
            }
            $crate::fiber::FiberLocal::new(init)
        };
        $crate::fiber_local!($($rest)*);
    };
    ($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = $init:expr $(; $($rest:tt)*)?) => {
        $crate::fiber_local!($(#[$attribute])* $visibility static $name: $type = $init, $($($rest)*)?);
    };
}

/// A fiber-local that [`fiber_local!`](crate::fiber_local) has declared. Its methods are those of [`std::thread::LocalKey`].
///
/// ```
/// use fibrant::fiber_local;
///
/// fiber_local! {
///     static NUMBER: u32 = 6 * 7;
/// }
/// assert_eq!(NUMBER.with(|number| *number), 42);
/// ```
pub struct FiberLocal<T: 'static> {
    /// Which of a fiber's values this is, counted from 1 in the order of first use; 0 before that.
    index: AtomicUsize,
    init: fn() -> T,
}

impl<T: 'static> FiberLocal<T> {
    /// For [`fiber_local!`](crate::fiber_local) only.
    #[doc(hidden)]
    pub const fn new(init: fn() -> T) -> FiberLocal<T> {
        FiberLocal {
            index: AtomicUsize::new(0),
            init,
        }
    }

    /// Calls `f` with the current fiber's value, made now if this is the first use.
    ///
    /// # Panics
    ///
    /// If the fiber is ending and has dropped the value.
    ///
    /// ```
    /// fibrant::fiber_local! { static GREETING: String = "hello".to_owned(); }
    /// assert_eq!(GREETING.with(String::len), 5);
    /// ```
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f)
            .expect("a fiber-local was used after the ending fiber had dropped it")
    }

    /// Like [`with`](FiberLocal::with), with an error instead of the panic.
    ///
    /// ```
    /// fibrant::fiber_local! { static GREETING: String = "hello".to_owned(); }
    /// assert_eq!(GREETING.try_with(String::len).unwrap(), 5);
    /// ```
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        let index = self.index();
        let value = match with_locals(|locals| locals.get(index)) {
            Slot::Value(value) => value,
            Slot::Destroyed => return Err(AccessError(())),
            Slot::Empty => {
                // The initialiser may do anything, even ask for this very value: what it made first then counts.
                let value = (self.init)();
                with_locals(|locals| locals.insert(index, value))
            }
        };
        // SAFETY: only this key has this index, so the value is a T. It stays in its box until the fiber (or the thread)
        // ends its locals, which it does after everything that runs on it, `f` included, or in `Locals::end`, which marks a
        // value as destroyed before it drops it. Only shared references are given out.
        Ok(f(unsafe { value.cast::<T>().as_ref() }))
    }

    fn index(&self) -> usize {
        match self.index.load(Relaxed) {
            0 => self.number(),
            index => index,
        }
    }

    #[cold]
    fn number(&self) -> usize {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let new = LAST.fetch_add(1, Relaxed) + 1;
        // If another thread was faster its number counts, and this one is never used.
        match self.index.compare_exchange(0, new, Relaxed, Relaxed) {
            Ok(_) => new,
            Err(theirs) => theirs,
        }
    }
}

impl<T: 'static> FiberLocal<Cell<T>> {
    /// Replaces the value.
    ///
    /// ```
    /// # use std::cell::Cell;
    /// fibrant::fiber_local! { static N: Cell<u32> = const { Cell::new(1) }; }
    /// N.set(2);
    /// assert_eq!(N.get(), 2);
    /// ```
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    /// A copy of the value.
    ///
    /// ```
    /// # use std::cell::Cell;
    /// fibrant::fiber_local! { static N: Cell<u32> = const { Cell::new(1) }; }
    /// assert_eq!(N.get(), 1);
    /// ```
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    /// Takes the value and leaves the default.
    ///
    /// ```
    /// # use std::cell::Cell;
    /// fibrant::fiber_local! { static N: Cell<u32> = const { Cell::new(1) }; }
    /// assert_eq!((N.take(), N.take()), (1, 0));
    /// ```
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }

    /// Replaces the value and returns the old one.
    ///
    /// ```
    /// # use std::cell::Cell;
    /// fibrant::fiber_local! { static N: Cell<u32> = const { Cell::new(1) }; }
    /// assert_eq!(N.replace(2), 1);
    /// ```
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> FiberLocal<RefCell<T>> {
    /// Calls `f` with the value borrowed.
    ///
    /// ```
    /// # use std::cell::RefCell;
    /// fibrant::fiber_local! { static LOG: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) }; }
    /// assert!(LOG.with_borrow(|log| log.is_empty()));
    /// ```
    pub fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| f(&cell.borrow()))
    }

    /// Calls `f` with the value mutably borrowed.
    ///
    /// ```
    /// # use std::cell::RefCell;
    /// fibrant::fiber_local! { static LOG: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) }; }
    /// LOG.with_borrow_mut(|log| log.push(1));
    /// assert_eq!(LOG.take(), [1]);
    /// ```
    pub fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| f(&mut cell.borrow_mut()))
    }

    /// Replaces the value.
    ///
    /// ```
    /// # use std::cell::RefCell;
    /// fibrant::fiber_local! { static LOG: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) }; }
    /// LOG.set(vec![1]);
    /// assert_eq!(LOG.take(), [1]);
    /// ```
    pub fn set(&'static self, value: T) {
        self.replace(value);
    }

    /// Takes the value and leaves the default.
    ///
    /// ```
    /// # use std::cell::RefCell;
    /// fibrant::fiber_local! { static LOG: RefCell<Vec<u32>> = RefCell::new(vec![1]); }
    /// assert_eq!(LOG.take(), [1]);
    /// assert!(LOG.take().is_empty());
    /// ```
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(RefCell::take)
    }

    /// Replaces the value and returns the old one.
    ///
    /// ```
    /// # use std::cell::RefCell;
    /// fibrant::fiber_local! { static LOG: RefCell<Vec<u32>> = RefCell::new(vec![1]); }
    /// assert_eq!(LOG.replace(vec![2]), [1]);
    /// ```
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> fmt::Debug for FiberLocal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FiberLocal").finish_non_exhaustive()
    }
}

/// A fiber-local was used by a fiber that is ending and has already dropped it.
///
/// ```
/// use fibrant::fiber::{AccessError, Fiber};
///
/// struct Last;
/// impl Drop for Last {
///     fn drop(&mut self) {
///         let result: Result<(), AccessError> = LAST.try_with(|_| ());
///         assert!(result.is_err());
///     }
/// }
/// fibrant::fiber_local! { static LAST: Last = Last; }
/// Fiber::new(|| LAST.with(|_| ())).resume().unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError(());

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fiber is ending and has already dropped this fiber-local")
    }
}

impl Error for AccessError {}

/// Calls `f`, which does not suspend, with the locals of whoever runs: the current fiber, or the thread.
fn with_locals<R>(f: impl FnOnce(&Locals) -> R) -> R {
    Thread::with(|thread| match thread.current() {
        // SAFETY: the current fiber's block is in use while its code runs, which is now.
        Some(block) => f(&unsafe { block.as_ref() }.locals),
        None => match thread.routine() {
            // SAFETY: the coroutine that runs is alive.
            Some(routine) => f(&unsafe { routine.as_ref() }.locals),
            None => f(&thread.locals),
        },
    })
}

/// The values of one fiber or thread. Most fibers have none, so this is a pointer that stays null until there is one.
pub(super) struct Locals(Cell<Option<NonNull<Values>>>);

struct Values {
    /// By index; an entry is missing until its key is first used.
    slots: RefCell<Vec<Slot>>,
    /// Set while the destructors run.
    ending: Cell<bool>,
}

/// A key's place: nothing yet, a value (in a box of its own, so that it stays where it is), or its remains.
#[derive(Clone, Copy)]
enum Slot {
    Empty,
    Value(NonNull<dyn Any>),
    Destroyed,
}

impl Locals {
    pub(super) const fn new() -> Locals {
        Locals(Cell::new(None))
    }

    fn values(&self) -> Option<&Values> {
        // SAFETY: leaked from a box in `insert`, and freed by `drop_all`, which puts null in its place first. Nobody keeps the
        // reference for longer than a look or a change: destructors and initialisers run without it.
        self.0.get().map(|values| unsafe { values.as_ref() })
    }

    fn get(&self, index: usize) -> Slot {
        self.values().map_or(Slot::Empty, |values| {
            let slots = values.slots.borrow();
            slots.get(index - 1).copied().unwrap_or(Slot::Empty)
        })
    }

    /// Puts a value in its place, unless it has been filled meanwhile. Returns what is there now.
    fn insert<T: 'static>(&self, index: usize, value: T) -> NonNull<dyn Any> {
        let values = self.values().unwrap_or_else(|| {
            let values: &Values = Box::leak(Box::new(Values {
                slots: RefCell::new(Vec::new()),
                ending: Cell::new(false),
            }));
            self.0.set(Some(NonNull::from(values)));
            values
        });
        let mut slots = values.slots.borrow_mut();
        if slots.len() < index {
            slots.resize(index, Slot::Empty);
        }
        let slot = &mut slots[index - 1];
        if let Slot::Value(first) = *slot {
            drop(slots); // the one that is not used is dropped after this, and may use locals
            return first;
        }
        let value: Box<dyn Any> = Box::new(value);
        let value = NonNull::from(Box::leak(value));
        *slot = Slot::Value(value);
        value
    }

    /// Whether destructors are running.
    pub(super) fn are_ending(&self) -> bool {
        self.values().is_some_and(|values| values.ending.get())
    }

    /// Drops all values, those that destructors make meanwhile included; then they are as new. A destructor that panics
    /// ends the program, as that of a thread-local does.
    #[inline]
    pub(super) fn end(&self) {
        if self.0.get().is_some() {
            self.drop_all();
        }
    }

    fn drop_all(&self) {
        while let Some(value) = self.next_to_drop() {
            // SAFETY: it was leaked from a box in `insert`, and has just been marked as destroyed, so that nobody gets at it
            // any more; whoever had it from `try_with` is done, or is a destructor of another value that has returned.
            let value = unsafe { Box::from_raw(value.as_ptr()) };
            if panic::catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
                eprintln!("fibrant: a destructor of a fiber-local panicked; the program ends");
                process::abort();
            }
        }
        if let Some(values) = self.0.take() {
            // SAFETY: leaked from a box in `insert`, and nobody finds it any more.
            drop(unsafe { Box::from_raw(values.as_ptr()) });
        }
    }

    fn next_to_drop(&self) -> Option<NonNull<dyn Any>> {
        let values = self.values()?;
        values.ending.set(true);
        values.slots.borrow_mut().iter_mut().find_map(|slot| {
            let Slot::Value(value) = *slot else {
                return None;
            };
            *slot = Slot::Destroyed;
            Some(value)
        })
    }
}
