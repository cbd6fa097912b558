//! The typed coroutine: a [`Fiber`] that takes a value at each resume and gives one at each suspension.
//!
//! Users call it. It is made of a fiber and a place where the two sides leave values for each other; as they never run at
//! the same time, nothing here is unsafe.

use super::{Fiber, ResumeError, State, suspend};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// A fiber that passes values: [`resume`](Coroutine::resume) takes an `In` and gives the next `Out`, or at the end a `Ret`.
///
/// ```
/// use fibrant::fiber::{Coroutine, Progress};
///
/// // Gives the running average of what it is given, until it gets a negative number.
/// let mut average = Coroutine::new(|yielder, first: f64| {
///     let (mut sum, mut count, mut next) = (0.0, 0, first);
///     while next >= 0.0 {
///         sum += next;
///         count += 1;
///         next = yielder.suspend(sum / f64::from(count));
///     }
///     count
/// });
/// assert_eq!(average.resume(1.0).unwrap(), Progress::Yielded(1.0));
/// assert_eq!(average.resume(3.0).unwrap(), Progress::Yielded(2.0));
/// assert_eq!(average.resume(-1.0).unwrap(), Progress::Returned(2));
/// ```
///
/// One that takes and returns nothing is an iterator, whose code may yield from any depth:
///
/// ```
/// use fibrant::fiber::{Coroutine, Yielder};
///
/// fn walk(yielder: &Yielder<(), u32>, from: u32, to: u32) {
///     if from < to {
///         let middle = (from + to) / 2;
///         walk(yielder, from, middle);
///         yielder.suspend(middle);
///         walk(yielder, middle + 1, to);
///     }
/// }
/// let numbers = Coroutine::new(|yielder, ()| walk(yielder, 0, 5));
/// assert_eq!(numbers.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
/// ```
pub struct Coroutine<In, Out, Ret> {
    fiber: Fiber,
    exchange: Rc<Exchange<In, Out>>,
    /// Where the function leaves its result.
    result: Rc<Cell<Option<Ret>>>,
}

/// What a resumed [`Coroutine`] gave.
///
/// ```
/// use fibrant::fiber::{Coroutine, Progress};
///
/// let mut coroutine = Coroutine::new(|yielder, ()| {
///     yielder.suspend("out");
///     "end"
/// });
/// assert_eq!(coroutine.resume(()).unwrap(), Progress::Yielded("out"));
/// assert_eq!(coroutine.resume(()).unwrap(), Progress::Returned("end"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress<Out, Ret> {
    /// It suspended and gave this.
    Yielded(Out),
    /// It ended and returned this.
    Returned(Ret),
}

/// Where the two sides leave values for each other. Each is taken before the next is left.
struct Exchange<In, Out> {
    input: Cell<Option<In>>,
    output: Cell<Option<Out>>,
}

/// The coroutine's end of the exchange: what its function calls to give a value and wait for the next.
///
/// ```
/// use fibrant::fiber::Coroutine;
///
/// let letters = Coroutine::new(|yielder, ()| {
///     for letter in 'a'..='c' {
///         yielder.suspend(letter);
///     }
/// });
/// assert_eq!(letters.collect::<String>(), "abc");
/// ```
pub struct Yielder<In, Out> {
    exchange: Rc<Exchange<In, Out>>,
}

impl<In: 'static, Out: 'static, Ret: 'static> Coroutine<In, Out, Ret> {
    /// A coroutine that will run `f` with what the first resume brings.
    ///
    /// ```
    /// use fibrant::fiber::{Coroutine, Progress};
    ///
    /// let mut double = Coroutine::new(|_, n: u32| n * 2);
    /// let progress: Progress<(), u32> = double.resume(21).unwrap();
    /// assert_eq!(progress, Progress::Returned(42));
    /// ```
    pub fn new(f: impl FnOnce(&Yielder<In, Out>, In) -> Ret + 'static) -> Coroutine<In, Out, Ret> {
        Coroutine::make(None, f)
    }

    /// Like [`new`](Coroutine::new), with a stack of at least `bytes`: see [`Fiber::with_stack_size`].
    ///
    /// ```
    /// use fibrant::fiber::Coroutine;
    ///
    /// let ones = Coroutine::with_stack_size(64 << 10, |yielder, ()| loop { yielder.suspend(1) });
    /// assert_eq!(ones.take(3).sum::<u32>(), 3);
    /// ```
    pub fn with_stack_size(
        bytes: usize,
        f: impl FnOnce(&Yielder<In, Out>, In) -> Ret + 'static,
    ) -> Coroutine<In, Out, Ret> {
        Coroutine::make(Some(bytes), f)
    }

    fn make(
        stack_size: Option<usize>,
        f: impl FnOnce(&Yielder<In, Out>, In) -> Ret + 'static,
    ) -> Coroutine<In, Out, Ret> {
        let exchange = Rc::new(Exchange {
            input: Cell::new(None),
            output: Cell::new(None),
        });
        let result = Rc::new(Cell::new(None));
        let yielder = Yielder {
            exchange: Rc::clone(&exchange),
        };
        let body = {
            let result = Rc::clone(&result);
            move || {
                let first = yielder.input();
                result.set(Some(f(&yielder, first)));
            }
        };
        let fiber = match stack_size {
            None => Fiber::new(body),
            Some(bytes) => Fiber::with_stack_size(bytes, body),
        };
        Coroutine {
            fiber,
            exchange,
            result,
        }
    }

    /// Runs the coroutine until it yields or returns. The first `input` is what its function is called with, each further
    /// one is what its [`suspend`](Yielder::suspend) returns.
    ///
    /// # Errors
    ///
    /// As [`Fiber::resume`]: it has ended, or there is no stack to start it on. The input is dropped.
    ///
    /// # Panics
    ///
    /// With the coroutine's own panic, if it panics.
    ///
    /// ```
    /// use fibrant::fiber::{Coroutine, Progress};
    ///
    /// let mut echo = Coroutine::new(|yielder, mut heard: String| -> () {
    ///     loop { heard = yielder.suspend(heard.to_uppercase()) }
    /// });
    /// assert_eq!(echo.resume("a".to_owned()).unwrap(), Progress::Yielded("A".to_owned()));
    /// assert_eq!(echo.resume("b".to_owned()).unwrap(), Progress::Yielded("B".to_owned()));
    /// ```
    pub fn resume(&mut self, input: In) -> Result<Progress<Out, Ret>, ResumeError> {
        self.exchange.input.set(Some(input));
        let resumed = self.fiber.resume();
        self.exchange.input.set(None);
        match resumed? {
            State::Term => {
                let result = self.result.take();
                Ok(Progress::Returned(
                    result.expect("a function that ended has returned"),
                ))
            }
            _ => {
                let output = self.exchange.output.take();
                Ok(Progress::Yielded(output.expect(
                    "a coroutine suspends by its Yielder, not by fiber::suspend",
                )))
            }
        }
    }

    /// The fiber behind the coroutine: its state, id, stack.
    ///
    /// ```
    /// use fibrant::fiber::{Coroutine, State};
    ///
    /// let mut coroutine = Coroutine::new(|yielder, ()| yielder.suspend(1));
    /// assert_eq!(coroutine.fiber().state(), State::Init);
    /// coroutine.next();
    /// assert_eq!(coroutine.fiber().state(), State::Ready);
    /// ```
    pub fn fiber(&self) -> &Fiber {
        &self.fiber
    }
}

impl<In, Out> Yielder<In, Out> {
    /// Gives `output` to whoever resumed the coroutine, and returns what the next resume brings.
    ///
    /// # Panics
    ///
    /// Outside the coroutine; and it unwinds when the coroutine is dropped, as [`fiber::suspend`](super::suspend) does.
    ///
    /// ```
    /// # use fibrant::fiber::Coroutine;
    /// let squares = Coroutine::new(|yielder, ()| {
    ///     for i in 1..=3 { yielder.suspend(i * i) }
    /// });
    /// assert_eq!(squares.collect::<Vec<_>>(), [1, 4, 9]);
    /// ```
    pub fn suspend(&self, output: Out) -> In {
        self.exchange.output.set(Some(output));
        suspend();
        self.input()
    }

    fn input(&self) -> In {
        self.exchange
            .input
            .take()
            .expect("a coroutine is resumed by Coroutine::resume, which brings a value")
    }
}

/// Each item is what the coroutine yields; the end is its return.
impl<Out: 'static> Iterator for Coroutine<(), Out, ()> {
    type Item = Out;

    /// # Panics
    ///
    /// If there is no stack to start on, and with the coroutine's own panic.
    fn next(&mut self) -> Option<Out> {
        if self.fiber.state() == State::Term {
            return None;
        }
        match self.resume(()) {
            Ok(Progress::Yielded(output)) => Some(output),
            Ok(Progress::Returned(())) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

impl<Out: 'static> std::iter::FusedIterator for Coroutine<(), Out, ()> {}

impl<In, Out, Ret> fmt::Debug for Coroutine<In, Out, Ret> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coroutine")
            .field("fiber", &self.fiber)
            .finish_non_exhaustive()
    }
}

impl<In, Out> fmt::Debug for Yielder<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Yielder").finish_non_exhaustive()
    }
}
