//! The hand-driven fiber: what its owner holds and does.
//!
//! Users call it; it takes stacks from the [`Thread`], places a [`Block`] on them and runs it. The states and their order
//! are told in [`block`](super::block).

use super::block::{Block, Job, Order};
use super::handle::Identity;
use super::shared::{self, SharedStacks};
use super::thread::Thread;
use super::{ResetError, ResumeError, State, WaitReason};
use crate::{context, env};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic;
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;

/// A function with a stack of its own, run step by step: [`resume`](Fiber::resume) runs it until it calls
/// [`suspend`](super::suspend).
///
/// A fiber costs a few words until it is first resumed; then it takes a stack, which it returns when it is dropped.
///
/// ```
/// use fibrant::fiber::{self, Fiber, State};
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// let sum = Rc::new(Cell::new(0));
/// let fiber = Fiber::new({
///     let sum = Rc::clone(&sum); // what it uses need not be Send, but must be owned
///     move || {
///         for i in 1..=3 {
///             sum.set(sum.get() + i);
///             fiber::suspend();
///         }
///     }
/// });
/// while fiber.resume().unwrap() == State::Ready {}
/// assert_eq!(sum.get(), 6);
/// ```
///
/// # Panics
///
/// A panic inside goes on in whoever resumed the fiber; the fiber has then ended.
///
/// # Dropping
///
/// Dropping a suspended fiber unwinds it: its `suspend` panics without a message, the destructors of all that it holds
/// run, and its stack is free again. A fiber that cannot be unwound is *abandoned*: it never runs again, nothing that it
/// holds is dropped, its stack is never used again, and [`Stats::fibers_abandoned`](crate::stats::Stats::fibers_abandoned)
/// counts it. That happens to a fiber that catches the unwinding and suspends once more, that is suspended in a destructor
/// of a fiber-local or, while panicking, in any destructor, and in programs built with `panic = "abort"`.
///
/// Do not suspend in a destructor while panicking: std counts panics per thread, so until the fiber goes on,
/// [`std::thread::panicking`] is true for all that runs on the thread, and if it is abandoned, for good.
///
/// # Threads
///
/// A fiber stays on the thread that made it: it is neither `Send` nor `Sync`.
///
/// ```compile_fail,E0277
/// let fiber = fibrant::fiber::Fiber::new(|| {});
/// std::thread::spawn(move || fiber.resume()); // `*mut ()` cannot be sent between threads safely
/// ```
/// ```compile_fail,E0277
/// let fiber = fibrant::fiber::Fiber::new(|| {});
/// std::thread::scope(|scope| { scope.spawn(|| fiber.state()); }); // cannot be shared between threads safely
/// ```
///
/// What it runs is `'static`, for a fiber that was forgotten while suspended still has its borrows:
///
/// ```compile_fail,E0597
/// let local = 1;
/// let fiber = fibrant::fiber::Fiber::new(|| println!("{}", &local)); // `local` does not live long enough
/// ```
///
/// # Thread-locals
///
/// It shares the thread-locals of whoever resumes it, as any function called there would. Some code uses a thread-local like a
/// stack: it leaves a pointer there, calls a function, and then puts back what it found (the crate scoped-tls does). If
/// that function suspends the fiber and others like it run meanwhile, the pointers are put back in the wrong order, and one
/// into a fiber that has ended may stay. Neither the type system nor fibrant notices: do not suspend inside such a call.
pub struct Fiber {
    /// Its block, once it has a stack.
    block: Cell<Option<NonNull<Block>>>,
    /// What it will run, in Init.
    job: Cell<Option<Job>>,
    identity: Identity,
    /// The stack size it was made with; `None` for the default.
    stack_size: Option<usize>,
    shares_float_control: bool,
    /// The stacks one of which it shares, if it does.
    pub(super) stacks: Option<SharedStacks>,
    /// Neither Send nor Sync: its block belongs to this thread.
    _thread: PhantomData<*mut ()>,
}

impl Fiber {
    /// A fiber that will run `f`, on a stack of the default size. It does not start yet and this cannot fail: the stack is
    /// taken at the first [`resume`](Fiber::resume).
    ///
    /// ```
    /// use fibrant::fiber::Fiber;
    ///
    /// let fiber = Fiber::new(|| println!("hello from a fiber"));
    /// fiber.resume().unwrap();
    /// ```
    #[inline]
    pub fn new(f: impl FnOnce() + 'static) -> Fiber {
        Fiber::make(None, Box::new(f))
    }

    /// Like [`new`](Fiber::new), with a stack of at least `bytes`, rounded up to whole pages. Only what is used of it costs
    /// memory. Sizes below [`MIN_STACK_SIZE`](super::MIN_STACK_SIZE) get that much; one above 16 GiB makes
    /// [`resume`](Fiber::resume) fail.
    ///
    /// ```
    /// use fibrant::fiber::Fiber;
    ///
    /// let fiber = Fiber::with_stack_size(4 << 20, || {
    ///     let large = [1_u8; 1 << 20];
    ///     assert_eq!(std::hint::black_box(&large).iter().map(|&byte| byte as usize).sum::<usize>(), 1 << 20);
    /// });
    /// fiber.resume().unwrap();
    /// ```
    #[inline]
    pub fn with_stack_size(bytes: usize, f: impl FnOnce() + 'static) -> Fiber {
        Fiber::make(Some(bytes), Box::new(f))
    }

    #[inline]
    fn make(stack_size: Option<usize>, job: Job) -> Fiber {
        let id = Thread::with(|thread| {
            thread.counters.fibers_created.increment();
            thread.next_id()
        });
        Fiber {
            block: Cell::new(None),
            job: Cell::new(Some(job)),
            identity: Identity::Hand { id, name: None },
            stack_size,
            shares_float_control: false,
            stacks: None,
            _thread: PhantomData,
        }
    }

    /// The same fiber with a name, for messages and for [`current`](super::current). Has no effect on a fiber that has
    /// started.
    ///
    /// ```
    /// use fibrant::fiber::Fiber;
    ///
    /// let fiber = Fiber::new(|| {}).named("parser");
    /// assert_eq!(fiber.name(), Some("parser"));
    /// ```
    #[must_use = "this takes the fiber and returns it"]
    pub fn named(mut self, name: impl Into<String>) -> Fiber {
        if self.block.get().is_none() {
            self.identity = Identity::Hand {
                id: self.id(),
                name: Some(Arc::from(name.into())),
            };
        }
        self
    }

    /// The same fiber, which shares the floating-point control words (rounding mode, exception masks, flush-to-zero) with
    /// whoever resumes it, instead of having its own.
    ///
    /// Rust code always runs with their default values, so to fibers that only run Rust this makes no difference, except
    /// that a switch need not look at them: on processors that are slow to read them (AMD Zen) a round trip takes a third
    /// of the time. Do not use it for a fiber that is suspended from within C code that has changed them. Has no effect on
    /// a fiber that has started.
    ///
    /// ```
    /// use fibrant::fiber::{self, Fiber};
    ///
    /// let fiber = Fiber::new(|| loop { fiber::suspend() }).sharing_float_control();
    /// for _ in 0..1000 {
    ///     fiber.resume().unwrap();
    /// }
    /// ```
    #[must_use = "this takes the fiber and returns it"]
    pub fn sharing_float_control(mut self) -> Fiber {
        self.shares_float_control = true;
        self
    }

    /// Runs the fiber until it suspends or ends, and returns which: [`Ready`](State::Ready) or [`Term`](State::Term).
    ///
    /// # Errors
    ///
    /// [`ResumeError::State`] if it is running or has ended; [`ResumeError::Stack`] if there is no stack to start it on, with
    /// an error that names the limit that was hit.
    ///
    /// # Panics
    ///
    /// With the fiber's own panic, if it panics.
    ///
    /// ```
    /// use fibrant::fiber::{Fiber, ResumeError};
    ///
    /// let fiber = Fiber::with_stack_size(usize::MAX, || {});
    /// let Err(ResumeError::Stack(error)) = fiber.resume() else { panic!() };
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// ```
    #[inline(always)] // a switch takes less time than a call, its saved registers and its return
    pub fn resume(&self) -> Result<State, ResumeError> {
        match self.block() {
            Some(block) if block.state() == State::Ready && !block.is_shared => {
                // SAFETY: it is Ready; and as a Fiber cannot leave its thread, it was suspended here.
                let state = Thread::with(|thread| unsafe { block.run(thread, Order::GoOn) });
                Ok(with_panic(state, block))
            }
            Some(block) if block.is_shared => self.resume_shared(block),
            Some(block) => self.resume_reset(block),
            None => self.resume_first(),
        }
    }

    /// Resumes a fiber that never ran: takes a stack and runs its job there.
    fn resume_first(&self) -> Result<State, ResumeError> {
        if let Some(stacks) = &self.stacks {
            let block = shared::place(stacks, self.identity.clone());
            self.block.set(Some(block));
            // SAFETY: a fiber's block stays in place until the fiber is dropped, and is only ever shared.
            return self.resume_shared(unsafe { block.as_ref() });
        }
        Thread::with(|thread| {
            let size = match self.stack_size {
                Some(size) => size,
                None => default_stack_size()?,
            };
            let stack = thread.stacks.take(size, false, &thread.counters)?;
            let block = Block::place(stack, self.identity.clone(), self.shares_float_control);
            self.block.set(Some(block));
            // SAFETY: a fiber's block stays in place until the fiber is dropped, and is only ever shared.
            Ok(self.begin(thread, unsafe { block.as_ref() }))
        })
        .map_err(ResumeError::Stack)
    }

    /// Resumes a fiber that is not suspended and has a stack: it can be if it was reset.
    fn resume_reset(&self, block: &Block) -> Result<State, ResumeError> {
        match block.state() {
            State::Init => Ok(Thread::with(|thread| self.begin(thread, block))),
            state => Err(ResumeError::State(state)),
        }
    }

    /// Resumes a fiber on a shared stack, if nobody waits there.
    #[cold]
    fn resume_shared(&self, block: &Block) -> Result<State, ResumeError> {
        match block.state() {
            State::Init | State::Ready => {}
            state => return Err(ResumeError::State(state)),
        }
        Thread::with(|thread| {
            if !shared::is_free(block, thread) {
                let problem = "another fiber waits on the shared stack, and cannot be moved until it goes on";
                return Err(ResumeError::Stack(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    problem,
                )));
            }
            if block.state() == State::Init {
                return Ok(self.begin(thread, block));
            }
            // SAFETY: it is Ready; and as a Fiber cannot leave its thread, it was suspended here.
            let state = unsafe { block.run(thread, Order::GoOn) };
            Ok(with_panic(state, block))
        })
    }

    #[inline(always)]
    fn begin(&self, thread: &Thread, block: &Block) -> State {
        let job = self.job.take().expect("a fiber in Init has a job");
        with_panic(block.run_first(thread, job), block)
    }

    /// Gives a fiber that has not started or has ended something new to run, on the stack that it has. It keeps its id and
    /// name.
    ///
    /// # Errors
    ///
    /// If it is suspended or running: `f` is dropped, and the error names the state.
    ///
    /// ```
    /// use fibrant::fiber::{Fiber, State};
    ///
    /// let fiber = Fiber::new(|| println!("first"));
    /// fiber.resume().unwrap();
    /// fiber.reset(|| println!("second")).unwrap();
    /// assert_eq!(fiber.state(), State::Init);
    /// fiber.resume().unwrap();
    /// ```
    pub fn reset(&self, f: impl FnOnce() + 'static) -> Result<(), ResetError> {
        match self.state() {
            State::Init => {}
            State::Term => {
                if let Some(block) = self.block() {
                    block.renew();
                }
                Thread::with(|thread| thread.counters.fibers_created.increment());
            }
            state => return Err(ResetError(state)),
        }
        // What it would have run is dropped here, after the change: its destructor may look at this fiber.
        drop(self.job.replace(Some(Box::new(f))));
        Ok(())
    }

    /// Where the fiber is in its life.
    ///
    /// ```
    /// # use fibrant::fiber::{Fiber, State};
    /// assert_eq!(Fiber::new(|| {}).state(), State::Init);
    /// ```
    pub fn state(&self) -> State {
        self.block().map_or(State::Init, Block::state)
    }

    /// What the fiber waits for, while it is [`Ready`](State::Ready).
    ///
    /// ```
    /// # use fibrant::fiber::Fiber;
    /// assert_eq!(Fiber::new(|| {}).wait_reason(), None);
    /// ```
    pub fn wait_reason(&self) -> Option<WaitReason> {
        self.block()?.status.reason()
    }

    /// The fiber's number: no other fiber of this process has or had it.
    ///
    /// ```
    /// # use fibrant::fiber::Fiber;
    /// assert_ne!(Fiber::new(|| {}).id(), Fiber::new(|| {}).id());
    /// ```
    pub fn id(&self) -> u64 {
        self.identity.id()
    }

    /// The fiber's name, if it has one.
    ///
    /// ```
    /// # use fibrant::fiber::Fiber;
    /// assert_eq!(Fiber::new(|| {}).named("parser").name(), Some("parser"));
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.identity.name()
    }

    /// The size of the fiber's stack in bytes: what it has once it has started, what it will ask for before.
    ///
    /// ```
    /// # use fibrant::fiber::Fiber;
    /// assert_eq!(Fiber::with_stack_size(100_000, || {}).stack_size(), 100_000);
    /// let fiber = Fiber::with_stack_size(100_000, || {});
    /// fiber.resume().unwrap();
    /// assert!(fiber.stack_size() >= 100_000); // whole pages
    /// ```
    pub fn stack_size(&self) -> usize {
        match self.block() {
            Some(block) => block.stack.size(),
            // If the environment variable makes no sense, `resume` says so.
            None if self.stacks.is_some() => self.stacks.as_ref().map_or(0, SharedStacks::size),
            None => self
                .stack_size
                .unwrap_or_else(|| default_stack_size().unwrap_or(context::stack::DEFAULT_SIZE))
                .max(context::stack::MIN_SIZE),
        }
    }

    /// How much of its stack the fiber has ever used, in bytes, to the page; `None` before it has one.
    ///
    /// A stack that is used again may still count what an earlier fiber used: call
    /// [`trim_stacks`](super::trim_stacks) before the fiber starts for a figure that is its own.
    ///
    /// ```
    /// use fibrant::fiber::{self, Fiber};
    ///
    /// fiber::trim_stacks();
    /// let fiber = Fiber::new(|| {
    ///     std::hint::black_box(&mut [1_u8; 100_000]);
    /// });
    /// assert_eq!(fiber.stack_usage(), None);
    /// fiber.resume().unwrap();
    /// let usage = fiber.stack_usage().unwrap();
    /// assert!(usage > 100_000 && usage < fiber.stack_size());
    /// ```
    pub fn stack_usage(&self) -> Option<usize> {
        Some(self.block()?.stack.usage())
    }

    #[inline(always)]
    fn block(&self) -> Option<&Block> {
        // SAFETY: a fiber's block stays in place until the fiber is dropped, and is only ever shared.
        self.block.get().map(|block| unsafe { block.as_ref() })
    }
}

/// What a fiber that has just run has come to; if that is the end, and by a panic, the panic goes on here.
#[inline(always)]
fn with_panic(state: State, block: &Block) -> State {
    if state == State::Term
        && let Some(payload) = block.take_panic()
    {
        panic::resume_unwind(payload);
    }
    state
}

/// The stack size of fibers that name none.
#[inline]
pub(crate) fn default_stack_size() -> io::Result<usize> {
    let size = env::settings()?.stack_size;
    Ok(size.unwrap_or(context::stack::DEFAULT_SIZE))
}

impl Drop for Fiber {
    #[inline]
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            Thread::with(|thread| thread.counters.fibers_ended.increment());
            return;
        };
        // SAFETY: the block stays in place until it is removed below.
        let state = unsafe { block.as_ref() }.state();
        match state {
            State::Term => {}
            State::Init => Thread::with(|thread| thread.counters.fibers_ended.increment()),
            State::Ready => return drop_suspended(block),
            State::Running => dropped_while_running(self.identity.id()),
        }
        release(block);
    }
}

/// Its resumer borrows it and code runs on its stack: no safe program gets here, and there is no way on.
#[cold]
fn dropped_while_running(id: u64) -> ! {
    eprintln!("fibrant: fiber {id} was dropped while it was running");
    process::abort();
}

/// Puts the stack of a fiber in Init or Term back.
#[inline]
fn release(block: NonNull<Block>) {
    // SAFETY: the block stays in place until it is removed below.
    if unsafe { block.as_ref() }.is_shared {
        // SAFETY: as below.
        return unsafe { shared::remove(block) };
    }
    // SAFETY: no frame stands on its stack, and the fiber that owned the block is being dropped.
    let stack = unsafe { Block::remove(block) };
    Thread::with(|thread| thread.stacks.put(stack));
}

/// Unwinds a fiber that is dropped in Ready, or abandons it.
#[cold]
fn drop_suspended(block: NonNull<Block>) {
    // SAFETY: the block stays in place until it is removed below.
    let suspended = unsafe { block.as_ref() };
    if suspended.can_unwind() && Thread::with(|thread| shared::is_free(suspended, thread)) {
        // SAFETY: it is Ready, and its Fiber, which is being dropped here, never left this thread.
        Thread::with(|thread| unsafe { suspended.run(thread, Order::Unwind) });
    }
    if suspended.state() != State::Term {
        // It may still hold anything, and somebody may hold references into its stack: neither is touched again.
        Thread::with(|thread| thread.counters.fibers_abandoned.increment());
        return;
    }
    let panic = suspended.take_panic();
    release(block);
    // It turned the unwinding into a panic of its own, which goes on here, as after a resume.
    if let Some(payload) = panic {
        panic::resume_unwind(payload);
    }
}

impl fmt::Debug for Fiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fiber")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
