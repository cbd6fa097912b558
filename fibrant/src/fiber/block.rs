//! The control block of a fiber: everything about it that must be found while it runs.
//!
//! It lives at the very top of the fiber's own stack, in the page that the first call touches anyway, next to the frames
//! that a switch reads. [`hand`](super::hand) places it when the fiber gets a stack and removes it when the stack is put
//! back; [`suspend`](super::suspend) finds it through the [`Thread`].
//!
//! ```text
//!    +---------------------------+  the stack's top (staggered from stack to stack)
//!    | Block                     |
//!    +---------------------------+  <- the context's top
//!    | frames: entry, closure .. |
//!    |            v              |
//! ```
//!
//! # A fiber's life
//!
//! - **Init**: it has something to run and has not begun. It has a block only if it was reset and kept its stack.
//! - **Running**: between a switch to it and the switch back. Its resumer waits in `resumer`; a fiber that has resumed
//!   another is Running, too, and `parent` leads from the inner one to it.
//! - **Ready**: it has switched back by suspending; its registers wait in `context`. It goes on with the order that the next
//!   switch to it carries: [`Order::GoOn`], or [`Order::Unwind`] when its owner drops it, which starts a panic without a
//!   message that [`enter`] catches.
//! - **Term**: what it ran has returned or panicked and its fiber-locals are gone. It switched back for good; a panic waits
//!   in `panic` for the resumer. A reset makes it Init again.
//!
//! At most one of `context` and `resumer` is live: `context` in Ready, `resumer` in Running. Only these transitions exist:
//! Init to Running to (Ready to Running)* to Term to Init.

use super::handle::Identity;
use super::local::Locals;
use super::shared;
use super::status::Status;
use super::thread::Thread;
use super::{State, TaskRef};
use crate::context::stack::Stack;
use crate::context::{self, Context};
use std::any::Any;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};

/// What a fiber runs.
pub(super) type Job = Box<dyn FnOnce()>;

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// A fiber's control block. Only the fiber's thread touches it. The fields that each switch uses come first: they share
/// cache lines with the frames below.
#[repr(C, align(16))]
pub(crate) struct Block {
    /// Where the fiber goes on. A scheduled one's is kept by the scheduler: who looks for the next fiber finds it there, and not on a stack that may
    /// have left the cache.
    pub(super) context: Context,
    /// Where its resumer goes on.
    pub(super) resumer: Context,
    /// The fiber that its resumer runs on, while Running; `None` if that is the thread itself.
    pub(super) parent: Cell<Option<NonNull<Block>>>,
    /// Where it is in its life, and what it waits for.
    pub(super) status: Status,
    /// Whether it shares the floating-point control words with its resumer: which switch is used, in both directions.
    shares_float_control: bool,
    /// Whether a scheduler runs it: then it has no resumer, and its state is kept elsewhere.
    pub(super) is_scheduled: bool,
    /// Whether its stack is a shared one: then it is the head of a larger one, on the heap: see [`shared`].
    pub(super) is_shared: bool,
    /// What it panicked with, in Term, until the resumer takes it: a box, without the destructor that making and ending a
    /// fiber would have to check.
    panic: Cell<Option<NonNull<dyn Any + Send>>>,
    /// The values of its fiber-locals.
    pub(super) locals: Locals,
    /// Its id and name.
    pub(super) identity: Identity,
    /// The stack that this block stands on.
    pub(super) stack: Stack,
}

/// What a suspended fiber is to do when it is switched to.
#[derive(Clone, Copy, PartialEq)]
#[repr(usize)]
pub(super) enum Order {
    /// Return from `suspend`.
    GoOn,
    /// Unwind from `suspend`.
    Unwind,
}

/// The payload of the panic that unwinds a dropped fiber.
struct Unwinding;

impl Block {
    /// Puts a block at the top of a stack, in state Init.
    #[inline]
    pub(super) fn place(stack: Stack, identity: Identity, shares_float_control: bool) -> NonNull<Block> {
        // SAFETY: the top of a stack that nobody uses, with far more room below it than a block takes.
        let place = unsafe { stack.top().cast::<Block>().sub(1) };
        // SAFETY: writable as said above, and aligned: tops are multiples of 16 and so is the size of a block.
        unsafe { place.write(Block::new(stack, identity, shares_float_control, false)) };
        place
    }

    #[inline(always)]
    pub(super) fn new(
        stack: Stack,
        identity: Identity,
        shares_float_control: bool,
        is_shared: bool,
    ) -> Block {
        Block {
            context: Context::spent(),
            resumer: Context::spent(),
            parent: Cell::new(None),
            status: Status::init(),
            shares_float_control,
            is_scheduled: matches!(identity, Identity::Scheduled(_)),
            is_shared,
            panic: Cell::new(None),
            locals: Locals::new(),
            identity,
            stack,
        }
    }

    /// Takes a block off its stack and returns the stack.
    ///
    /// # Safety
    /// The fiber is in Init or Term, so that no frame stands on the stack, and nobody uses the block any more.
    #[inline]
    pub(crate) unsafe fn remove(block: NonNull<Block>) -> Stack {
        // SAFETY: `place` has written the block, and by the caller's promise this is its last use. Dropping it in place leaves
        // the stack, which has no destructor, to the copy.
        unsafe {
            let stack = (&raw const (*block.as_ptr()).stack).read();
            block.drop_in_place();
            stack
        }
    }

    /// Puts the block of a scheduled fiber at the top of a stack; the first switch to `context`, which the scheduler keeps, calls
    /// `entry` with the block's address.
    ///
    /// # Safety
    /// The context is spent, and belongs to this thread.
    #[inline]
    pub(crate) unsafe fn place_scheduled(
        stack: Stack,
        task: TaskRef,
        context: &Context,
        entry: context::Entry,
    ) {
        let block = Block::place(stack, Identity::Scheduled(task), false);
        let top = block.as_ptr().cast();
        // SAFETY: it was just placed, and nothing stands on the stack below the block, whose address is a multiple of 16; the context is
        // spent, as the caller promises.
        unsafe { context.prepare(&block.as_ref().stack, top, entry, top.cast()) };
    }

    /// Gives the block of a scheduled fiber that has ended to another one, which goes on on the same stack. `context` is the new one's.
    ///
    /// # Safety
    /// The block is one of a scheduled fiber, and the caller is the code at the bottom of its stack; nobody uses what it
    /// has of the former fiber any more. The context is spent, and belongs to this thread.
    #[inline]
    pub(crate) unsafe fn hand_on(block: NonNull<Block>, task: TaskRef, context: &Context) {
        // SAFETY: by the caller's promise; the block is in place.
        unsafe { context.begin(&block.as_ref().stack, block.as_ptr().cast()) };
        // SAFETY: by the caller's promise nobody looks at the old identity now.
        let former = unsafe { std::mem::replace(&mut (*block.as_ptr()).identity, Identity::Scheduled(task)) };
        drop(former);
    }

    /// The stack that the block stands on.
    #[inline]
    pub(crate) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Drops the fiber's locals.
    #[inline]
    pub(crate) fn end_locals(&self) {
        self.locals.end();
    }

    /// Whether destructors of the fiber's locals are running, or of those that it runs in: one that runs, and was resumed by a destructor,
    /// is a part of it.
    pub(crate) fn is_ending_locals(&self) -> bool {
        self.locals.are_ending()
            // SAFETY: whoever has resumed one that runs is in the middle of that, so that its block is in use.
            || self.parent.get().is_some_and(|parent| unsafe { parent.as_ref() }.is_ending_locals())
    }

    /// The fiber's state.
    #[inline(always)]
    pub(super) fn state(&self) -> State {
        self.status.state()
    }

    /// Makes an ended fiber one that has not begun.
    pub(super) fn renew(&self) {
        debug_assert_eq!(self.state(), State::Term);
        self.status.set_init();
    }

    /// Begins to run `job` on a fiber in Init, until it suspends or ends.
    #[inline(always)]
    pub(super) fn run_first(&self, thread: &Thread, job: Job) -> State {
        debug_assert_eq!(self.state(), State::Init);
        if self.is_shared {
            return shared::run_first(self, thread, job);
        }
        let this = (&raw const *self).cast_mut();
        // SAFETY: in Init nothing stands on the stack below the block, whose address is a multiple of 16, and the context is
        // spent: it was never prepared, or the fiber that it was prepared for has ended.
        unsafe { self.context.prepare(&self.stack, this.cast(), enter, this.cast()) };
        // The job is moved by `enter`, which runs before this frame goes on.
        let job = ManuallyDrop::new(job);
        let argument = (&raw const job).expose_provenance();
        // SAFETY: the context has just been prepared, here, and is new.
        self.run_by(thread, || unsafe {
            if self.shares_float_control {
                context::switch_sharing_float_control(&self.resumer, &self.context, argument)
            } else {
                context::switch_to_new(&self.resumer, &self.context, argument)
            }
        })
    }

    /// Runs the fiber on, until it suspends again or ends.
    ///
    /// # Safety
    /// It is in Ready, and was suspended on this thread.
    #[inline(always)]
    pub(super) unsafe fn run(&self, thread: &Thread, order: Order) -> State {
        if self.is_shared {
            return shared::run(self, thread, order as usize);
        }
        // SAFETY: in Ready the context is live and saved on this thread.
        self.run_by(thread, || unsafe {
            self.switch(&self.resumer, &self.context, order as usize)
        })
    }

    /// Notes the fiber as the current one while `switch` runs it, and returns what it has come to: Ready or Term. What both kinds of switch ask for besides a live target:
    /// the resumer's context is spent, as no resumer waits; the block keeps both contexts in place, as it is removed in Init
    /// or Term only; and this frame is not suspended as long as the fiber runs: who suspends the fiber comes back here.
    #[inline(always)]
    pub(super) fn run_by(&self, thread: &Thread, switch: impl FnOnce() -> usize) -> State {
        let parent = thread.current();
        // It is usually the same as last time, and a comparison is cheaper than a store.
        if self.parent.get() != parent {
            self.parent.set(parent);
        }
        if let Some(parent) = parent {
            // SAFETY: the fiber that runs has its block.
            shared::note_leaving(unsafe { parent.as_ref() }, &self.resumer);
        }
        self.status.set_running();
        thread.set_current(Some(NonNull::from(self)));
        switch();
        thread.counters.switches.add(2);
        thread.set_current(self.parent.get());
        let state = self.state();
        if state == State::Term {
            thread.counters.fibers_ended.increment();
        }
        state
    }

    /// Goes back to the resumer until the fiber is run again. Called on the fiber itself.
    #[inline(always)]
    pub(super) fn suspend(&self) {
        debug_assert_eq!(self.state(), State::Running);
        self.status.set_ready(std::thread::panicking());
        let parent = self.parent.get();
        // SAFETY: the resumer waits for it, so its block is in place.
        if self.is_shared || parent.is_some_and(|parent| unsafe { parent.as_ref() }.is_shared) {
            return shared::suspend(self);
        }
        // SAFETY: the fiber is Running, so its resumer waits in `resumer`, saved on this thread, and its own context is spent;
        // the block stays in place while the fiber has started and not ended.
        let order = unsafe { self.switch(&self.context, &self.resumer, 0) };
        if self.is_unwound(order) {
            unwind();
        }
    }

    /// Whether the order by which it goes on is to unwind.
    #[inline(always)]
    pub(super) fn is_unwound(&self, order: usize) -> bool {
        order == Order::Unwind as usize
    }

    /// Switches between the fiber and its resumer, by the same kind of switch in both directions.
    ///
    /// # Safety
    /// As for [`context::switch`].
    #[inline(always)]
    pub(super) unsafe fn switch(&self, from: &Context, to: &Context, argument: usize) -> usize {
        // SAFETY: the caller's promise; and a frame without control words is only ever gone back to by the switch that does
        // not look at them, as the choice is the fiber's for good.
        unsafe {
            if self.shares_float_control {
                context::switch_sharing_float_control(from, to, argument)
            } else {
                context::switch(from, to, argument)
            }
        }
    }

    /// Whether a fiber in Ready can be unwound: not from a destructor of its locals, not where panics abort, and not if it
    /// may be panicking itself, suspended in a destructor that runs because of it: a second panic there would abort.
    /// (Whether it is its own panic or that of whoever resumed it cannot be told.)
    pub(super) fn can_unwind(&self) -> bool {
        !cfg!(panic = "abort") && !self.locals.are_ending() && !self.status.was_panicking()
    }

    /// Keeps a panic for the resumer, unless it is the one that unwinds a dropped fiber.
    #[cold]
    pub(super) fn keep_panic(&self, payload: Payload) {
        if !payload.is::<Unwinding>() {
            self.panic.set(Some(NonNull::from(Box::leak(payload))));
        }
    }

    /// What the fiber panicked with, if it did.
    #[inline]
    pub(super) fn take_panic(&self) -> Option<Payload> {
        let payload = self.panic.take()?;
        // SAFETY: `enter` has leaked it from a box, and whoever takes it takes it once.
        Some(unsafe { Box::from_raw(payload.as_ptr()) })
    }
}

#[cold]
pub(super) fn unwind() -> ! {
    // Not panic!: nothing went wrong, so nothing is printed.
    panic::resume_unwind(Box::new(Unwinding))
}

/// The first and last function on a fiber's stack.
///
/// # Safety
/// `data` is the address of the fiber's block, which is Running for the first time since it was prepared. `job` is the
/// address of what it is to run, which is this function's to move.
unsafe extern "C" fn enter(data: *mut (), job: usize) -> ! {
    context::started();
    // SAFETY: by the contract; and the block stays as long as its stack is in use.
    let block = unsafe { &*data.cast::<Block>() };
    // SAFETY: by the contract. Whoever owned it does not drop it.
    let job = unsafe { ptr::with_exposed_provenance::<Job>(job).read() };
    let result = panic::catch_unwind(AssertUnwindSafe(job));
    block.locals.end();
    if let Err(payload) = result {
        block.keep_panic(payload);
    }
    block.status.set_term();
    if block
        .parent
        .get()
        // SAFETY: the resumer waits for it, so its block is in place.
        .is_some_and(|parent| unsafe { parent.as_ref() }.is_shared)
    {
        shared::bring_resumer(block);
    }
    // SAFETY: the fiber is Running, so its resumer waits in `resumer`. Nothing on this stack is left to drop: the job and the
    // result have been moved out.
    unsafe { context::leave(&block.resumer, block.shares_float_control, 0) }
}
