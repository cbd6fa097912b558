//! Turns: how the processor passes from one fiber to the next, and how a fiber begins and ends.
//!
//! A fiber that gives way switches straight to the one whose turn it is. Only if it is time to poll, or nobody can run, does
//! it switch to the worker's own context, where [`Worker::drive`] goes on. The closure given to `run` is a fiber, too, the
//! *root*: it lives on the thread's own stack, so when it waits it drives the worker from right there, until it is its turn.
//!
//! A fiber may have thread-locals of its own, or share those of the fiber that spawned it: whoever switches to it sets its thread
//! pointer, so a stack is always run with the same one. Between the moment in which a fiber has said that it waits, or has ended,
//! and that in which another goes on, the code on its stack is the scheduler's: nothing may wait there, and its calls are not
//! hooked ([`Thread::set_scheduling`]).
//!
//! A fiber that ends does not give its stack back if a new one is next: that one begins on the same stack, without any
//! switch. Otherwise its stack goes to the thread's cache while it still stands on it ([`Cache::put_when_leaving`]), and it
//! leaves for good.
//!
//! [`Cache::put_when_leaving`]: crate::context::stack::Cache::put_when_leaving

use super::completion::ResultOwner;
use super::crew::Phase;
use super::desk::Desk;
use super::driver::{Purpose, Timed};
use super::group::{Group, Left};
use super::queue::LINES_OF_A_FIBER;
use super::scheduled::{Rest, Scheduled};
use super::worker::{Pick, Worker};
use crate::clock;
use crate::context::exceptions::Exceptions;
use crate::context::stack::Stack;
use crate::context::{self, Context, tls};
use crate::fiber::{Block, NoWait, Outcome, Task, TaskRef, Thread, WaitKind, WaitNumber, WaitReason};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::Relaxed;

/// A wait that is about to begin.
pub(crate) struct Waiting {
    /// What dumps show.
    pub(crate) reason: WaitReason,
    /// Whether `unpark` ends it.
    pub(crate) park: bool,
    /// Whether cancelling the fiber, or the end of a [`timeout`](crate::timeout) around it, ends it.
    pub(crate) interruptible: bool,
    /// When it ends at the latest: nanoseconds of the monotonic clock.
    pub(crate) deadline: u64,
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// What the fiber waited for has happened.
    Woken,
    /// The wait's own deadline came first.
    TimedOut,
    /// What it waited on was closed.
    Closed,
    /// The fiber is to unwind: it was cancelled, or the time of a `timeout` around the wait is up. The caller cleans up and
    /// then calls [`Interruption::unwind`](super::cancel::Interruption::unwind).
    Interrupted(super::cancel::Interruption),
}

/// Where the processor goes next.
struct Target<'a> {
    context: &'a Context,
    thread_pointer: *mut u8,
}

impl Target<'_> {
    /// Goes there, until somebody switches back to `from`. Returns the state of the thread that the caller goes on on.
    ///
    /// # Safety
    /// As for [`context::switch`] and [`context::switch_with_thread_pointer`].
    #[inline(always)]
    unsafe fn switch_from(&self, from: &Context, thread: &Thread) -> *const Thread {
        let argument = ptr::from_ref(thread).expose_provenance();
        // SAFETY: the caller's promise.
        let answer = unsafe {
            if self.thread_pointer == context::thread_pointer() {
                context::switch(from, self.context, argument)
            } else {
                context::switch_with_thread_pointer(from, self.context, argument, self.thread_pointer)
            }
        };
        ptr::with_exposed_provenance(answer)
    }

    /// Goes there for good. Who begins there is given the state of its thread.
    ///
    /// # Safety
    /// As for [`context::leave`].
    #[inline(always)]
    unsafe fn leave(&self, thread: &Thread) -> ! {
        let argument = ptr::from_ref(thread).expose_provenance();
        // SAFETY: the caller's promise.
        unsafe {
            if self.thread_pointer == context::thread_pointer() {
                context::leave(self.context, false, argument)
            } else {
                context::leave_with_thread_pointer(self.context, argument, self.thread_pointer)
            }
        }
    }
}

impl Worker {
    /// Makes the running fiber wait. `announce` tells whoever is to end the wait its number; it must not wait itself. Whatever
    /// `announce` has set up is the caller's to take down afterwards.
    #[inline(always)]
    pub(crate) fn wait(&self, waiting: Waiting, announce: impl FnOnce(&Task, WaitNumber)) -> WaitEnd {
        let fiber = self.fiber().expect("what waits here is a fiber");
        let interruptible = waiting.interruptible && fiber.can_be_interrupted(self.thread());
        let kind = WaitKind {
            park: waiting.park,
            cancellable: interruptible,
        };
        let number = match fiber.task.wait.begin(kind) {
            Ok(number) => number,
            Err(NoWait::Token) => return WaitEnd::Woken,
            Err(NoWait::Cancelled) => return WaitEnd::Interrupted(super::cancel::Interruption::Cancel),
        };
        self.thread().set_scheduling(true);
        fiber.task.note_reason(waiting.reason, self.now());
        self.thread().counters.park(waiting.reason.kind()).increment();
        let limit = if interruptible {
            fiber.deadline.get()
        } else {
            clock::NEVER
        };
        let when = waiting.deadline.min(limit);
        if when != clock::NEVER {
            // Armed before anyone is told: whoever ends the wait may do so at once, and then finds it as it will be.
            // SAFETY: it is not armed, as the fiber has disarmed it at the end of its last wait, and stays where it is until it is disarmed
            // below or has expired: a fiber that has not ended stays. One that never goes on has it disarmed, or expired with all others.
            unsafe { self.driver.arm(fiber.timed(), Purpose::Wait, when) };
        }
        announce(&fiber.task, number);
        if self.is_event_loop && !fiber.task.wait.is_waiting() {
            // It is over before it has begun: a coroutine goes back to its resumer only if it must, for it may have got what it
            // wanted, such as a lock that its resumer wants, too.
            self.take_out(NonNull::from(fiber));
            self.thread().set_scheduling(false);
        } else {
            self.give_way(fiber);
        }
        self.disarm_deadline(fiber);
        match fiber.task.wait.outcome() {
            Outcome::Woken => WaitEnd::Woken,
            Outcome::Closed => WaitEnd::Closed,
            Outcome::Cancelled => WaitEnd::Interrupted(super::cancel::Interruption::Cancel),
            Outcome::TimedOut if limit < waiting.deadline => {
                WaitEnd::Interrupted(super::cancel::Interruption::TimeUp)
            }
            Outcome::TimedOut => WaitEnd::TimedOut,
        }
    }

    /// Takes back the deadline of a fiber of this worker whose wait is over, or which never goes on from it.
    #[inline(always)]
    pub(super) fn disarm_deadline(&self, fiber: &Scheduled) {
        if fiber.timed.is_armed() {
            // SAFETY: it is armed, with this worker's driver: a fiber that waits stays with its worker.
            unsafe { self.driver.disarm(fiber.timed()) };
        }
    }

    /// Lets everyone else who can run have a turn first.
    #[inline]
    pub(crate) fn yield_now(&self) {
        let fiber = self.fiber().expect("what yields here is a fiber");
        self.thread().set_scheduling(true);
        if self.is_event_loop {
            // Whoever forsakes a coroutine asks what it waits for: it leaves nothing in its frames.
            fiber.task.note_reason(WaitReason::Parked, self.now());
        }
        // SAFETY: it runs, so it is this worker's and in no queue.
        unsafe { self.enqueue_again(NonNull::from(fiber)) };
        self.give_way(fiber);
    }

    /// Leaves the running fiber, which is in a queue or will be put into one, until it is its turn. What runs is the scheduler's code,
    /// as the caller has noted.
    #[inline]
    pub(super) fn give_way(&self, fiber: &Scheduled) {
        // Looked up once: it stays the same, as the fiber stays with its worker.
        let thread = self.thread();
        if fiber.has_own_locals() {
            self.switch_to_others(thread, NonNull::from(fiber));
        } else {
            let exceptions = Exceptions::present();
            self.switch_to_others(thread, NonNull::from(fiber));
            exceptions.put_back();
        }
        thread.set_scheduling(false);
    }

    #[inline(always)]
    fn switch_to_others(&self, thread: &Thread, fiber: NonNull<Scheduled>) {
        if self.is_event_loop {
            return self.leave_routine();
        }
        let innermost = thread.current();
        if self.root() == Some(fiber) {
            thread.set_current(None);
            // What runs now is the worker's own code, whose calls are not the root's.
            self.set_fiber(None);
            self.drive(|| true);
        } else {
            match self.pick() {
                Pick::Started(next) if next == fiber => return self.publish_turn(),
                pick => {
                    let next = self.target(pick);
                    // SAFETY: it has not ended, so it stays until it is switched to again.
                    let own = unsafe { &fiber.as_ref().context };
                    thread.counters.switches.increment();
                    // SAFETY: the target is the context of a fiber that has left its stack by this function, or was just
                    // prepared, or of the worker, which has left its own by `drive`; all on this thread, which fibers and
                    // workers do not leave (the one that is moved leaves by `switch_to`, and is gone from here). The own
                    // context is spent while the fiber runs. Each goes on with the thread pointer that it was left with, or
                    // with that of its new block.
                    unsafe { next.switch_from(own, thread) };
                }
            }
        }
        thread.set_current(innermost);
    }

    /// Moves the running fiber to another worker. It goes on there.
    ///
    /// # Safety
    /// Nothing that the fiber has on its stack is bound to this thread: see [`switch_to`](crate::switch_to).
    pub(crate) unsafe fn move_to(&self, desk: &'static Desk) {
        let fiber = NonNull::from(self.fiber().expect("what moves is a fiber"));
        assert!(
            self.root() != Some(fiber),
            "the function given to run is its thread: it cannot switch to another worker"
        );
        assert!(
            // SAFETY: it runs.
            unsafe { fiber.as_ref() }.group.get().is_none(),
            "a fiber that shares its thread-locals with others, by spawn_local, cannot switch to another worker"
        );
        let innermost = self.thread().current();
        self.thread().set_scheduling(true);
        // The worker's own code passes it on, once it has left its stack.
        self.moving.set(Some((fiber, desk)));
        let next = self.target(Pick::Poll);
        // SAFETY: as in `give_way`.
        let thread = unsafe { next.switch_from(&fiber.as_ref().context, self.thread()) };
        // SAFETY: the worker that runs it now has given its thread's state; it is the fiber's until the fiber moves on. A light
        // fiber runs with that thread's own locals, which have the same.
        unsafe {
            Thread::adopt(thread);
            if let Some((layout, pointer)) = fiber.as_ref().own_locals() {
                layout.move_home(pointer, (*thread).home());
            }
        }
        let worker = Worker::current_after_switch();
        worker.thread().set_scheduling(false);
        worker.thread().set_current(innermost);
    }

    /// Passes on a fiber that has just left for another worker.
    #[cold]
    fn pass_on(&self, fiber: NonNull<Scheduled>, desk: &'static Desk) {
        // SAFETY: it is one of this worker's started fibers, has left its stack, and is in no queue.
        unsafe {
            if self.index.is_none() {
                // It has begun at a guest's desk, where nobody counts, and will end at one where it is counted.
                self.crew.note_begun_outside();
            }
            let has_arrived = self.crew.while_passing(|| {
                self.desk.roster.remove(fiber);
                let own = |fiber: NonNull<Scheduled>| fiber.as_ref().set_owner(desk);
                desk.roster.add_started(fiber, own) || !self.desk.roster.add_started(fiber, |_| {})
            });
            if !has_arrived {
                // That worker has gone, so the crew is over. It is on this roster still, in no queue.
                drop(self.abandon(fiber.as_ref(), true));
                return;
            }
            // Whoever has cancelled everybody, and may have missed it on its way, has said so before it looked.
            if self.crew.is_cancelling() || fiber.as_ref().is_of_cancelled_scope() {
                fiber.as_ref().task.cancel();
            }
            desk.deliver(fiber);
        }
    }

    /// Notes what runs next and says where that goes on.
    #[inline]
    fn target(&self, pick: Pick) -> Target<'_> {
        let fiber = match pick {
            Pick::Started(fiber) => fiber,
            Pick::Fresh(fiber) if self.equip(fiber) => fiber,
            // The worker's own code ends those that got no stack: what they were to run is dropped, which is the user's code.
            Pick::Fresh(_) | Pick::Poll => {
                self.set_fiber(None);
                return Target {
                    context: &self.context,
                    thread_pointer: self.thread().home(),
                };
            }
        };
        self.set_fiber(Some(fiber));
        // SAFETY: it has not ended, so it stays in place while it is switched to.
        let next = unsafe { &*fiber.as_ptr() };
        let pointer = next.thread_pointer.get();
        Target {
            context: if self.root() == Some(fiber) {
                &self.context
            } else {
                &next.context
            },
            thread_pointer: if pointer.is_null() {
                self.thread().home()
            } else {
                pointer
            },
        }
    }

    /// Gives a fiber its stack. If there is none to be had, the fiber will end with an error for its joiner.
    fn equip(&self, fiber: NonNull<Scheduled>) -> bool {
        // SAFETY: it has not ended.
        let scheduled = unsafe { fiber.as_ref() };
        match self.take_stack(scheduled) {
            Ok(stack) => {
                // SAFETY: the scheduler's reference; it is given back when the block is removed or handed on.
                let task = unsafe { TaskRef::from_raw(fiber.cast()) };
                // SAFETY: it has not started, and will on this thread.
                unsafe { Block::place_scheduled(stack, task, &scheduled.context, enter) };
                true
            }
            Err(error) => {
                self.stackless.borrow_mut().push((fiber, error));
                self.has_leftovers.set(true);
                false
            }
        }
    }

    /// Takes a stack for a fiber, and begins the block of thread-locals on it, if it is to have one.
    #[inline]
    fn take_stack(&self, fiber: &Scheduled) -> std::io::Result<Stack> {
        let thread = self.thread();
        let stack = thread
            .stacks
            .take(fiber.stack_size(), fiber.is_isolated, &thread.counters)?;
        let pointer = match (stack.locals(), fiber.group.get()) {
            (Some((layout, pointer)), _) => {
                // SAFETY: the stack is idle, so nobody runs with its block; this is the thread that will.
                let begun = unsafe { layout.begin(pointer, fiber.task.id(), thread.home()) };
                if let Err(error) = begun {
                    thread.stacks.put(stack);
                    return Err(error);
                }
                pointer
            }
            // SAFETY: the fiber is a member.
            (None, Some(group)) => unsafe { group.as_ref() }.pointer,
            (None, None) => ptr::null_mut(),
        };
        fiber.thread_pointer.set(pointer);
        Ok(stack)
    }

    /// Ends the fibers that were to start and got no stack, and drops results that nobody wants any more. On the worker's own context, where
    /// the user's code may do anything.
    #[inline]
    pub(super) fn clear_up(&self) {
        if self.has_leftovers.replace(false) {
            self.clear_leftovers();
        }
    }

    #[cold]
    fn clear_leftovers(&self) {
        while let Some((fiber, error)) = { self.stackless.borrow_mut().pop() } {
            self.end_without_stack(fiber, &error);
        }
        while let Some(task) = { self.unwanted.borrow_mut().pop() } {
            let fiber = Scheduled::of(&task);
            // SAFETY: the fiber has ended, and its joiner has left the result to this worker.
            unsafe { fiber.drop_result() };
            // Not before: the result may borrow.
            if let Some(scope) = &fiber.scope {
                scope.note_ended();
            }
        }
    }

    #[cold]
    fn end_without_stack(&self, fiber: NonNull<Scheduled>, error: &std::io::Error) {
        // SAFETY: the scheduler's reference, which ends here with the fiber.
        let task = unsafe { TaskRef::from_raw(fiber.cast()) };
        let problem = format!("fiber {} could not start: {error}", task.id());
        crate::sys::complain(&problem);
        // SAFETY: it has not started.
        unsafe { Scheduled::of(&task).refuse(Box::new(problem), Rest::Dropped) };
        if let Some(group) = Scheduled::of(&task).group.take() {
            // SAFETY: it is a member, and ends here. If it was the last, the destructors of the block are not run, as nobody is left to
            // run them, and its stack is not used again.
            let _ = unsafe { Group::leave(group) };
        }
        self.finish(Scheduled::of(&task));
    }

    /// A fiber of this worker has ended, and its result is in place.
    #[inline]
    fn finish(&self, fiber: &Scheduled) {
        self.thread().set_scheduling(true);
        // SAFETY: it was put among the started ones when it was picked.
        unsafe { self.desk.roster.remove(NonNull::from(fiber)) };
        self.thread().counters.fibers_ended.increment();
        let owner = if self.is_ahead(fiber) {
            // SAFETY: a fiber ends once; whoever holds its handle is a fiber of this worker, in the middle of joining it, and has not gone on
            // since: it has neither begun to wait nor let go.
            unsafe { fiber.completion.complete_unasked() };
            ResultOwner::Joiner
        } else {
            // SAFETY: a fiber ends once; the caller holds the scheduler's reference.
            unsafe { fiber.completion.complete() }
        };
        if owner == ResultOwner::Completer {
            // Somebody has let go of it just now. To drop it is the user's code, which may wait or spawn, and this fiber is on no roster any
            // more: it is left to the worker.
            // SAFETY: the caller holds the scheduler's reference.
            let task = unsafe { TaskRef::share(NonNull::from(&fiber.task)) };
            self.unwanted.borrow_mut().push(task);
            self.has_leftovers.set(true);
        } else if let Some(scope) = &fiber.scope {
            scope.note_ended();
        }
        self.desk.note_ended();
    }

    /// Runs fibers while `more` says so, or until it is the root's turn, if there is one. For the worker's own context.
    pub(super) fn drive(&self, more: impl Fn() -> bool) {
        // A crew that is over runs nothing more, whatever could run. Only a root goes on, until it is its turn.
        let mut has_slept = false;
        while more() && (self.root().is_some() || self.crew.phase() != Phase::Over) {
            self.put_retired();
            self.clear_up();
            if self.begin_turn() {
                self.poll();
            }
            match self.pick_fiber() {
                Pick::Started(fiber) if Some(fiber) == self.root() => {
                    self.desk.idle_since.store(0, Relaxed);
                    self.set_fiber(Some(fiber));
                    return;
                }
                Pick::Poll => {
                    if !self.steal() {
                        self.sleep();
                        has_slept = true;
                    }
                }
                pick => {
                    if std::mem::take(&mut has_slept) {
                        self.crew.pass_search_on(self.desk);
                    }
                    self.desk.idle_since.store(0, Relaxed);
                    let next = self.target(pick);
                    self.thread().counters.switches.increment();
                    if !ptr::eq(next.context, &self.context) {
                        // SAFETY: as in `give_way`; the worker's own context is spent while its own code runs.
                        unsafe { next.switch_from(&self.context, self.thread()) };
                    }
                    self.thread().set_current(None);
                    if let Some((fiber, desk)) = self.moving.take() {
                        self.pass_on(fiber, desk);
                    }
                    if self.root().is_some() && self.root() == self.thread().task().map(NonNull::cast) {
                        return;
                    }
                }
            }
        }
        self.clear_up();
    }
}

/// Ends the wait whose deadline has come.
///
/// # Safety
/// Its purpose is a wait's, and it was armed by this worker and has just expired.
#[inline]
pub(crate) unsafe fn expire_wait(timed: NonNull<Timed>, worker: &Worker) {
    // SAFETY: by the contract it is in a fiber that waits, or that was claimed and has not run since, as it runs on the worker that runs
    // this: it would have disarmed it. So the fiber has not ended, and if it waits, the wait is the one that this was armed for.
    let fiber = unsafe { &*Scheduled::of_timed(timed) };
    if fiber.task.wait.end_any(Outcome::TimedOut) {
        // SAFETY: its wait was just claimed, and it is this worker's, as a fiber that waits stays with its worker.
        unsafe { worker.enqueue(NonNull::from(fiber)) };
    }
}

/// Asks for what [`expire_wait`] will need.
#[inline]
pub(crate) fn prefetch_sleeper(timed: NonNull<Timed>) {
    context::prefetch_lines(Scheduled::of_timed(timed), LINES_OF_A_FIBER);
}

/// Asks for the first line of its stack that its turn will need. That also has the processor look up where that page is.
///
/// # Safety
/// Its purpose is a wait's, and it is armed, by this worker.
#[inline]
pub(crate) unsafe fn prefetch_stack_of_sleeper(timed: NonNull<Timed>) {
    // SAFETY: as in `expire_wait`; a fiber of this worker's that waits has left its stack on this thread. (A root's context, and that of a
    // coroutine's task, lead to where theirs is noted: that is asked for, in vain.)
    unsafe { (*Scheduled::of_timed(timed)).context.prefetch(1) };
}

/// The first and last function on a scheduled fiber's stack.
///
/// # Safety
/// `data` is the address of the fiber's block, and the fiber has been noted as the one that runs. `thread` is the exposed address of the state
/// of the thread that runs it, which is a worker.
unsafe extern "C" fn enter(data: *mut (), thread: usize) -> ! {
    context::started();
    let block = NonNull::new(data.cast::<Block>()).expect("a fiber has a block");
    // SAFETY: by the contract it is such an address, and the state stays as long as the worker runs fibers.
    let thread = unsafe { &*ptr::with_exposed_provenance::<Thread>(thread) };
    // SAFETY: the block is in place as long as its stack is in use, and belongs to the fiber that begins.
    unsafe { arrive(block, thread) };
    let mut worker = Worker::of_thread(thread).expect("a fiber runs on a worker");
    loop {
        let left;
        // SAFETY: the fiber that was noted stands on this stack, and begins on the worker that its thread is or, if it goes on on the stack of
        // another, on the one that has picked it.
        (left, worker) = unsafe { run_one(block, worker) };
        match worker.pick() {
            // SAFETY: it has not ended.
            Pick::Fresh(next) if unsafe { fits(block, &left, next) } => {
                let thread = worker.thread();
                // SAFETY: it has not ended.
                let next_ref = unsafe { next.as_ref() };
                // SAFETY: the former fiber has ended; the scheduler's reference to the next one, which begins here, goes to the block.
                unsafe { Block::hand_on(block, TaskRef::from_raw(next.cast()), &next_ref.context) };
                // SAFETY: the block is in place.
                let block_ref = unsafe { block.as_ref() };
                if next_ref.is_isolated || next_ref.group.get().is_some() {
                    next_ref.thread_pointer.set(context::thread_pointer());
                }
                worker.set_fiber(Some(next));
                if let Some((layout, pointer)) = block_ref.stack().locals() {
                    // With the worker's own meanwhile: a signal handler that interrupts it needs some that are whole.
                    // SAFETY: the former fiber has ended, and nobody shares its thread-locals. What follows uses none before
                    // they are those of this thread again.
                    unsafe {
                        let begin = || layout.begin(pointer, next_ref.task.id(), thread.home());
                        let begun = context::with_thread_pointer(thread.home(), begin);
                        debug_assert!(begun.is_ok(), "it needs no memory: the block is made");
                        arrive(block, thread);
                    }
                }
                if let Left::Nobody(Some(stack)) = left {
                    worker.retire(stack);
                }
                context::reset_float_control();
            }
            pick => {
                let next = worker.target(pick);
                let thread = worker.thread();
                thread.counters.switches.increment();
                // SAFETY: the fiber has ended, so nobody uses its block; this code stands on the stack, but leaves it at
                // once, and nothing is left on it to drop.
                let stack = unsafe { Block::remove(block) };
                match left {
                    // SAFETY: others are left, so it lives.
                    Left::Others(group) if stack.is_isolated() => unsafe { group.as_ref() }.keep(stack),
                    Left::Nobody(Some(shared)) => {
                        worker.retire(shared);
                        thread.stacks.put_when_leaving(stack);
                    }
                    Left::Others(_) | Left::Nobody(None) => thread.stacks.put_when_leaving(stack),
                }
                // SAFETY: as in `give_way`.
                unsafe { next.leave(thread) }
            }
        }
    }
}

/// Makes a new block of thread-locals, if the fiber that begins has one, part of the thread that runs it.
///
/// # Safety
/// The block is that of the fiber that begins, on whose stack this is called, and `thread` is the state of the thread.
#[inline]
unsafe fn arrive(block: NonNull<Block>, thread: &Thread) {
    // SAFETY: by the caller's promise. A fiber never runs once its thread's state has ended, as its worker has by then.
    unsafe {
        if let Some((layout, _)) = block.as_ref().stack().locals() {
            Thread::adopt(thread);
            layout.arrive();
        }
    }
}

/// Whether a fresh fiber can go on on the stack of one that has just ended, with the thread pointer that is set.
///
/// # Safety
/// Both are valid.
unsafe fn fits(block: NonNull<Block>, left: &Left, next: NonNull<Scheduled>) -> bool {
    // SAFETY: by the caller's promise.
    let (stack, next) = unsafe { (block.as_ref().stack(), next.as_ref()) };
    stack.size() == next.stack_size()
        && stack.is_isolated() == next.is_isolated
        && if next.is_isolated {
            matches!(left, Left::Nobody(_))
        } else {
            let pointer = match next.group.get() {
                // SAFETY: the fiber is a member.
                Some(group) => unsafe { group.as_ref() }.pointer,
                None => Worker::current_after_switch().thread().home(),
            };
            pointer == context::thread_pointer()
        }
}

/// Runs the fiber that a block stands for, from its first call to its last. Says what is left of its thread-locals, and which worker it has ended
/// on.
///
/// # Safety
/// The block is that of the fiber that was noted as the one that runs, on whose stack this is called; and it is that worker's.
unsafe fn run_one(block: NonNull<Block>, worker: &'static Worker) -> (Left, &'static Worker) {
    worker.thread().set_scheduling(false);
    if !worker.has_own_locals() {
        Exceptions::default().put_back();
    }
    worker.thread().set_current(Some(block));
    let fiber = worker
        .fiber()
        .expect("the fiber that begins is the one that runs");
    // SAFETY: the block keeps the scheduler's reference until it is removed or handed on; only the borrow of the worker, which
    // the fiber may leave, is removed.
    let scheduled = unsafe { &*ptr::from_ref(fiber) };
    let is_late = !scheduled.task.wait.is_cancelled() && worker.crew.is_cancelling();
    if is_late {
        worker.note_refused(scheduled);
    }
    if scheduled.task.wait.is_cancelled() || scheduled.is_of_cancelled_scope() || is_late {
        // SAFETY: it has not run.
        unsafe { scheduled.refuse(Box::new(super::cancel::Cancelled::new()), Rest::Dropped) };
    } else {
        // SAFETY: it is run once, here.
        unsafe { scheduled.run() };
    }
    // SAFETY: the block is in place.
    unsafe { block.as_ref() }.end_locals();
    if scheduled.completion.is_detached() {
        // Nobody wants the result. It is dropped as a thread's is: before its thread-locals.
        // SAFETY: it is in place, and nobody else's.
        unsafe { scheduled.drop_result() };
    }
    // SAFETY: the fiber has nothing more to run.
    let left = unsafe { end_thread_locals(scheduled) };
    // It may have moved to another worker.
    let worker = Worker::current_after_switch();
    worker.finish(scheduled);
    (left, worker)
}

/// Runs the destructors of a fiber's thread-locals, if it is the last that uses them.
///
/// # Safety
/// The fiber runs this itself, and nothing else after it.
#[inline]
unsafe fn end_thread_locals(fiber: &Scheduled) -> Left {
    let group = fiber.group.get();
    // SAFETY: the fiber is a member.
    let is_last = group.is_none_or(|group| unsafe { group.as_ref() }.has_one_member());
    if (fiber.is_isolated || group.is_some()) && is_last {
        // They are the user's code, and may wait; but nothing may unwind out of them.
        fiber.defer_cancel();
        if let Ok(layout) = tls::layout() {
            // SAFETY: the caller runs with the block, as its last user; unless a destructor spawns another, which then is.
            unsafe { layout.end() };
        }
    }
    if fiber.completion.is_detached() {
        // A destructor has waited, and meanwhile somebody has let go of the result. If it is not `Send`, it belongs here, with these
        // thread-locals: nobody else of this thread runs from now on.
        // SAFETY: it is in place, if it was not dropped before, and nobody else's.
        unsafe { fiber.drop_result() };
    }
    // A destructor may have made it a group's member.
    match fiber.group.take() {
        // SAFETY: it is a member, and is taken out once.
        Some(group) => unsafe { Group::leave(group) },
        None => Left::Nobody(None),
    }
}
