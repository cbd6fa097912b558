//! Hand-driven fibers on shared stacks: what [`hand`](super::hand) and [`block`](super::block) do differently for them.
//!
//! Such a fiber's block is on the heap, together with its share in the stack. Before it runs it is brought to the stack, and whoever
//! was there is moved out; so is a resumer that shares the stack, when the fiber goes back to it. If whoever switches stands on that
//! very stack, the [`ferry`](super::ferry) does the moving.
//!
//! A fiber that is Running stays where it is, unless it has itself resumed another that needs the stack: it may wait for something
//! in the runtime, together with the fiber that drives it, and what it waits for knows it by its frames.

use super::block::{Block, Job, unwind};
use super::ferry::{Ferry, Moving};
use super::handle::Identity;
use super::thread::Thread;
use super::{Fiber, State};
use crate::context::stack::{SharedStack, Tenant};
use crate::context::{self, Context};
use crate::primitives::without_waiting;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::thread::{self, ThreadId};

/// Stacks that any number of fibers use in turn, each from its own copy: see [`Fiber::sharing_stack`].
///
/// They are for fibers of one thread. Clones are the same stacks.
///
/// ```
/// use fibrant::fiber::{self, Fiber, SharedStacks, State};
///
/// let stacks = SharedStacks::new(1, 64 * 1024).unwrap();
/// let count = |n: u64| move || {
///     for step in 0..n {
///         println!("step {step} of {n}");
///         fiber::suspend();
///     }
/// };
/// // SAFETY: nothing outside of the fibers refers to what is on their stacks.
/// let fibers = [2, 3].map(|n| unsafe { Fiber::new(count(n)).sharing_stack(&stacks) });
/// for _ in 0..2 {
///     fibers.iter().for_each(|fiber| assert_eq!(fiber.resume().unwrap(), State::Ready));
/// }
/// assert_eq!(fibers[0].resume().unwrap(), State::Term);
/// ```
#[derive(Clone)]
pub struct SharedStacks(Rc<Stacks>);

struct Stacks {
    list: Vec<NonNull<SharedStack>>,
    next: Cell<usize>,
    /// The thread that they are for. In Rust they cannot leave it; C may try.
    thread: ThreadId,
}

impl SharedStacks {
    /// So many stacks, of at least that many bytes each. Fibers get one after the other in turn.
    ///
    /// # Errors
    ///
    /// If there is to be none, they are to be larger than 2 GiB, or no stack is to be had; and in builds with `--cfg fibrant_asan`, as AddressSanitizer does not know of
    /// frames that move.
    ///
    /// ```
    /// assert!(fibrant::fiber::SharedStacks::new(0, 64 * 1024).is_err());
    /// ```
    pub fn new(count: usize, size: usize) -> io::Result<SharedStacks> {
        if count == 0 || cfg!(fibrant_asan) {
            let problem =
                "there must be a stack to share; and AddressSanitizer does not know of frames that move";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let mut stacks = Stacks {
            list: Vec::with_capacity(count),
            next: Cell::new(0),
            thread: thread::current().id(),
        };
        for _ in 0..count {
            let stack = Thread::with(|thread| SharedStack::take(size, &thread.stacks, &thread.counters))?;
            stacks.list.push(stack);
        }
        Ok(SharedStacks(Rc::new(stacks)))
    }

    /// Whether they are for the calling thread.
    pub(crate) fn are_this_threads(&self) -> bool {
        self.0.thread == thread::current().id()
    }

    /// The next one in turn.
    pub(crate) fn next(&self) -> NonNull<SharedStack> {
        let index = self.0.next.get();
        self.0.next.set((index + 1) % self.0.list.len());
        self.0.list[index]
    }

    /// How large they are.
    pub(super) fn size(&self) -> usize {
        // SAFETY: they are there as long as this is.
        unsafe { self.0.list[0].as_ref() }.stack().size()
    }
}

impl fmt::Debug for SharedStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStacks")
            .field("count", &self.0.list.len())
            .field("size", &self.size())
            .finish()
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        if self.thread != thread::current().id() {
            return; // fibers of another thread may be on them
        }
        for &stack in &self.list {
            // SAFETY: `new` has taken it, and nobody gets a share in it any more. An abandoned fiber has one for ever.
            Thread::with(|thread| unsafe { SharedStack::give_back(stack, &thread.stacks) });
        }
    }
}

impl Fiber {
    /// The same fiber, on one of these stacks, which it shares with others. While it is suspended and another needs the stack, what it
    /// has in use there is kept as a copy: a few hundred bytes, as a rule, instead of a page or more. Each switch between two of them
    /// copies both, which takes about 40 ns for half a KiB. It shares the floating-point control words, too (see
    /// [`sharing_float_control`](Fiber::sharing_float_control)). Has no effect on a fiber that has started.
    ///
    /// A call inside it that waits, in a fiber of a runtime, keeps the stack: others that share it cannot be resumed until then, and
    /// [`resume`](Fiber::resume) says so.
    ///
    /// # Safety
    ///
    /// **While the fiber is suspended, nothing outside refers to what is on its stack**, and it keeps no reference to another's that may
    /// be moved: what is there is moved away, and something else is found in its place. That rules out scoped threads, borrowed
    /// data in channels, intrusive lists, and guards that others know by their address, across a [`suspend`](super::suspend).
    ///
    /// ```
    /// # use fibrant::fiber::{self, Fiber, SharedStacks};
    /// let stacks = SharedStacks::new(1, 64 * 1024).unwrap();
    /// // SAFETY: nothing refers to what is on its stack.
    /// let fiber = unsafe { Fiber::new(fiber::suspend).sharing_stack(&stacks) };
    /// fiber.resume().unwrap();
    /// ```
    #[must_use = "this takes the fiber and returns it"]
    pub unsafe fn sharing_stack(mut self, stacks: &SharedStacks) -> Fiber {
        self.stacks = Some(stacks.clone());
        self
    }
}

/// The block of a fiber on a shared stack.
#[repr(C)]
struct SharedBlock {
    block: Block,
    tenant: Tenant,
}

/// Makes a block for a fiber that will have a share in one of these stacks.
pub(super) fn place(stacks: &SharedStacks, identity: Identity) -> NonNull<Block> {
    let home = stacks.next();
    // SAFETY: the stack stays until the fiber, which keeps the stacks, is gone, or for ever if it is abandoned.
    let block = unsafe {
        SharedBlock {
            block: Block::new(home.as_ref().stack().alias(), identity, true, true),
            tenant: Tenant::new(home),
        }
    };
    // The fiber has no block yet: another that resumes it meanwhile would make one, too.
    NonNull::from(Box::leak(without_waiting(|| Box::new(block)))).cast()
}

/// Frees the block of a fiber on a shared stack.
///
/// # Safety
/// As for [`Block::remove`].
pub(super) unsafe fn remove(block: NonNull<Block>) {
    // SAFETY: `place` has leaked it from a box.
    let shared = unsafe { Box::from_raw(block.cast::<SharedBlock>().as_ptr()) };
    shared.tenant.forget();
    let SharedBlock { block, tenant } = *shared;
    drop(block);
    Thread::with(|thread| tenant.leave(&thread.stacks));
}

/// The share that a fiber has in its stack.
fn tenant_of(block: &Block) -> Option<&Tenant> {
    // SAFETY: if it is shared, it is the head of such a block.
    block
        .is_shared
        .then(|| unsafe { &(*ptr::from_ref(block).cast::<SharedBlock>()).tenant })
}

/// Whether a fiber may have its stack now: of those who share it nobody is Running but, perhaps, its resumers. Others wait in the runtime, and
/// either their frames are there, for others to find, or they have been moved out and will come back over whoever is there then.
pub(super) fn is_free(block: &Block, thread: &Thread) -> bool {
    let Some(tenant) = tenant_of(block) else {
        return true;
    };
    let home = tenant.home();
    let mut others = home.running();
    let mut resumer = thread.current();
    while others > 0
        && let Some(one) = resumer
    {
        // SAFETY: the current fiber and its resumers have their blocks.
        let one = unsafe { one.as_ref() };
        if tenant_of(one).is_some_and(|own| ptr::eq(own.home(), home)) {
            others -= 1;
        }
        resumer = one.parent.get();
    }
    others == 0
}

/// Notes that a fiber, which may be on a shared stack, leaves it by that context: it resumes another.
#[inline(always)]
pub(super) fn note_leaving(block: &Block, context: &Context) {
    if let Some(tenant) = tenant_of(block) {
        tenant.set_left_by(context);
    }
}

/// Brings a fiber to its stack, and lets it begin there, if it has not.
///
/// # Safety
/// It is the block of a fiber on a shared stack, and the caller stands on another. Neither it nor the occupant is on the processor.
unsafe fn settle(block: *const ()) {
    // SAFETY: by the caller's promise.
    unsafe {
        let block = &*block.cast::<Block>();
        if let Some(tenant) = tenant_of(block) {
            tenant.settle();
            if tenant.is_new() {
                let stack = tenant.home().stack();
                let data = ptr::from_ref(block).cast_mut().cast();
                tenant.set_left_by(&block.context);
                block.context.prepare(stack, stack.top().as_ptr(), enter, data);
            }
        }
    }
}

/// Where to switch to so that `to` goes on, on whose stack that is: there, or to the ferry. `from` is the fiber that switches, if it
/// is one.
fn bring<'a>(thread: &'a Thread, from: Option<&Block>, to: &'a Context, whose: &Block) -> &'a Context {
    let Some(tenant) = tenant_of(whose).filter(|tenant| !tenant.is_settled()) else {
        return to;
    };
    let stands_there = |own: &Tenant| ptr::eq(own.home(), tenant.home());
    if from.and_then(tenant_of).is_some_and(stands_there) {
        let moving = Moving {
            bring: settle,
            passenger: ptr::from_ref(whose).cast(),
        };
        return Ferry::to(thread, to, moving);
    }
    // SAFETY: whoever switches stands elsewhere.
    unsafe { settle(ptr::from_ref(whose).cast()) };
    to
}

/// Begins to run `job`: see [`Block::run_first`].
#[cold]
pub(super) fn run_first(block: &Block, thread: &Thread, job: Job) -> State {
    // On the heap: the frame that this is called in may be moved away. It was just found that the stack is free, which must stay so.
    let job = Box::into_raw(without_waiting(|| Box::new(job))).expose_provenance();
    run(block, thread, job)
}

/// Makes a fiber begin or go on: see [`Block::run`].
#[cold]
pub(super) fn run(block: &Block, thread: &Thread, argument: usize) -> State {
    let home = tenant_of(block).map(Tenant::home);
    home.inspect(|home| home.note_running());
    let state = block.run_by(thread, || {
        // SAFETY: the resumer runs, so its block is in place.
        let resumer = block.parent.get().map(|parent| unsafe { &*parent.as_ptr() });
        let target = bring(thread, resumer, &block.context, block);
        // SAFETY: it is live: the fiber has left itself by such a switch, or is about to begin; or it is the ferry's.
        unsafe { context::switch_sharing_float_control(&block.resumer, target, argument) }
    });
    // Nobody asks in between: the fiber that came back here has just left the state Running.
    home.inspect(|home| home.note_not_running());
    state
}

/// Goes back to the resumer: see [`Block::suspend`]. The fiber or its resumer is on a shared stack.
#[cold]
pub(super) fn suspend(block: &Block) {
    note_leaving(block, &block.context);
    // The switch may be back on the thread when its state is another's: nothing is kept of it.
    let target: *const Context = Thread::with(|thread| ptr::from_ref(to_resumer(block, thread)));
    // SAFETY: the resumer waits there, on this thread, or the ferry, which only a fiber comes to that shares the words.
    let order = unsafe { block.switch(&block.context, &*target, 0) };
    if block.is_unwound(order) {
        unwind();
    }
}

/// Where a fiber goes on its way back.
fn to_resumer<'a>(block: &'a Block, thread: &'a Thread) -> &'a Context {
    match block.parent.get() {
        // SAFETY: the resumer waits for this fiber, so its block is in place.
        Some(parent) => bring(thread, Some(block), &block.resumer, unsafe { parent.as_ref() }),
        None => &block.resumer,
    }
}

/// Brings the resumer of a fiber that has a stack of its own, and ends on it, to the one that it shares.
#[cold]
pub(super) fn bring_resumer(block: &Block) {
    Thread::with(|thread| {
        to_resumer(block, thread);
    });
}

/// The first and last function of a fiber on a shared stack.
///
/// # Safety
/// `data` is the address of its block, which is Running for the first time since it was prepared; `job` that of a box with what it is to run.
unsafe extern "C" fn enter(data: *mut (), job: usize) -> ! {
    context::started();
    // SAFETY: by the contract.
    let block = unsafe { &*data.cast::<Block>() };
    // SAFETY: `run_first` has made it of a box, for this.
    let job = unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<Job>(job)) };
    let result = panic::catch_unwind(AssertUnwindSafe(job));
    block.end_locals();
    if let Err(payload) = result {
        block.keep_panic(payload);
    }
    block.status.set_term();
    if let Some(tenant) = tenant_of(block) {
        // What is left there is of no use to anybody.
        tenant.forget();
    }
    let target: *const Context = Thread::with(|thread| ptr::from_ref(to_resumer(block, thread)));
    // SAFETY: the resumer waits there, or the ferry; nothing on this stack is left to drop.
    unsafe { context::leave(&*target, true, 0) }
}
