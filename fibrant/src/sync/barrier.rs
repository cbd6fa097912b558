//! The barrier: those who have come wait in a list until enough have.

use super::holder::Holder;
use super::list::{List, Node};
use super::someone::{End, Someone, Wish};
use super::subject::{Name, Text};
use crate::clock;
use crate::fiber::{Subject, WaitReason};
use crate::scheduler::{InTable, Lock};
use std::cell::Cell;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};

/// Lets so many fibers and threads begin something together, as [`std::sync::Barrier`].
///
/// Waiting is a fibrant wait: a fiber that is cancelled while it waits, or whose [`timeout`](crate::timeout) is up, unwinds from it, and is
/// not counted any more: another one has to come in its place.
///
/// ```
/// use fibrant::sync::Barrier;
///
/// fibrant::run(|| {
///     let barrier = Barrier::new(10);
///     let leaders = fibrant::scope(|scope| {
///         let fibers: Vec<_> = (0..10).map(|_| scope.spawn(|| barrier.wait().is_leader())).collect();
///         fibers.into_iter().map(|fiber| fiber.join().unwrap()).filter(|&leads| leads).count()
///     });
///     assert_eq!(leaders, 1);
/// });
/// ```
pub struct Barrier {
    state: Lock<State>,
    /// How many it takes.
    count: usize,
    name: Name,
}

// It has no value that could be broken off in the middle.
impl UnwindSafe for Barrier {}
impl RefUnwindSafe for Barrier {}

/// Whether somebody was the last to come to a [`Barrier`].
///
/// ```
/// assert!(fibrant::sync::Barrier::new(1).wait().is_leader());
/// ```
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Whether this one was the last to come: one of those who go on together is.
    ///
    /// ```
    /// let barrier = fibrant::sync::Barrier::new(2);
    /// let leaders = std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| barrier.wait().is_leader());
    ///     [barrier.wait().is_leader(), other.join().unwrap()]
    /// });
    /// assert_ne!(leaders[0], leaders[1]);
    /// ```
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

struct State {
    list: List<Entry>,
    /// How many are in it.
    present: usize,
}

/// Somebody who waits for the others.
struct Entry {
    someone: NonNull<Someone>,
    holder: Holder,
    /// Set when the barrier opens, which takes it out of the list.
    may_pass: Cell<bool>,
}

/// What is told to the scheduler, in case that a fiber never goes on.
struct Waiting<'a> {
    barrier: &'a Barrier,
    someone: &'a Someone,
    node: &'a Node<Entry>,
}

impl Barrier {
    /// A barrier for so many; 0 is as good as 1.
    ///
    /// ```
    /// static START: fibrant::sync::Barrier = fibrant::sync::Barrier::new(1);
    /// START.wait();
    /// ```
    pub const fn new(count: usize) -> Barrier {
        Barrier::made(None, count)
    }

    /// A barrier with a name, which [dumps](crate::runtime::Handle::dump) show.
    ///
    /// ```
    /// fibrant::sync::Barrier::named("start", 1).wait();
    /// ```
    pub const fn named(name: &'static str, count: usize) -> Barrier {
        Barrier::made(Some(name), count)
    }

    const fn made(name: Name, count: usize) -> Barrier {
        Barrier {
            state: Lock::new(State {
                list: List::new(),
                present: 0,
            }),
            count,
            name,
        }
    }

    /// Waits until as many have come as it takes. Then it is as new: the next ones wait again.
    ///
    /// ```
    /// use fibrant::sync::Barrier;
    /// use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    ///
    /// fibrant::run(|| {
    ///     let (barrier, done) = (Barrier::new(3), AtomicU32::new(0));
    ///     fibrant::scope(|scope| {
    ///         for _ in 0..3 {
    ///             scope.spawn(|| {
    ///                 done.fetch_add(1, SeqCst);
    ///                 barrier.wait();
    ///                 assert_eq!(done.load(SeqCst), 3);
    ///             });
    ///         }
    ///     });
    /// });
    /// ```
    pub fn wait(&self) -> BarrierWaitResult {
        // SAFETY: nobody is added.
        if unsafe { self.arrive(None) } {
            return BarrierWaitResult(true);
        }
        let someone = Someone::present();
        let node = Node::new(Entry {
            someone: NonNull::from(&someone),
            holder: Holder::present().0,
            may_pass: Cell::new(false),
        });
        let waiting = Waiting {
            barrier: self,
            someone: &someone,
            node: &node,
        };
        let wish = Wish {
            reason: WaitReason::Lock {
                address: ptr::from_ref(self).addr(),
            },
            subject: Some(self),
            interruptible: true,
            deadline: clock::NEVER,
            in_table: Some(InTable {
                give_up: Waiting::give_up,
                wait: NonNull::from(&waiting).cast(),
            }),
        };
        // SAFETY: it is in no list, and is taken out before this frame ends: by who opens, below, or when the fiber is given up.
        let end = someone.wait(&wish, || !unsafe { self.arrive(Some(&node)) });
        if let End::Interrupted(interruption) = end {
            self.leave(&node);
            interruption.unwind();
        }
        BarrierWaitResult(end == End::Needless)
    }

    /// Opens it, if the caller is the last one to come; otherwise adds the caller to those who wait. Says whether it is open.
    ///
    /// # Safety
    /// The node is in no list, and stays in place until it is taken out.
    unsafe fn arrive(&self, node: Option<&Node<Entry>>) -> bool {
        let mut state = self.state.lock();
        if state.present + 1 < self.count {
            if let Some(node) = node {
                // SAFETY: the caller's promise.
                unsafe { state.list.push(node) };
                state.present += 1;
            }
            return false;
        }
        let mut passing = List::new();
        state.present = 0;
        state.list.for_each(|list, node| {
            // SAFETY: it is in this list.
            unsafe { list.unlink(node) };
            node.may_pass.set(true);
            // SAFETY: whoever is in the list is in place. One that was interrupted a moment ago has come, all the same.
            if unsafe { node.someone.as_ref() }.claim() {
                // SAFETY: it is in no list now, and stays until it is woken.
                unsafe { passing.push(node) };
            }
            true
        });
        drop(state);
        passing.for_each(|_, node| {
            // SAFETY: it was claimed, and is woken once. The one after it is known already.
            unsafe { Someone::wake(node.someone) };
            true
        });
        true
    }

    /// Takes somebody out of the list who will not come, unless the barrier has opened.
    fn leave(&self, node: &Node<Entry>) {
        let mut state = self.state.lock();
        if !node.may_pass.get() && node.is_linked() {
            // SAFETY: it is in this list: only those who may pass are in another.
            unsafe { state.list.unlink(node) };
            state.present -= 1;
        }
    }
}

impl Waiting<'_> {
    /// The fiber that waits here never goes on.
    ///
    /// # Safety
    /// See [`InTable`].
    unsafe fn give_up(waiting: NonNull<()>) {
        // SAFETY: it is what `wait` has noted, in the frame of a fiber that never goes on, so that it stays.
        let waiting = unsafe { waiting.cast::<Waiting<'_>>().as_ref() };
        waiting.someone.give_up();
        waiting.barrier.leave(waiting.node);
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").finish_non_exhaustive()
    }
}

impl fmt::Debug for BarrierWaitResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BarrierWaitResult")
            .field("is_leader", &self.is_leader())
            .finish()
    }
}

impl Subject for Barrier {
    fn describe(&self) -> String {
        let mut text = Text::new("barrier", self.name);
        let mut state = self.state.lock();
        text.add(&format!("{} of {} are here", state.present, self.count));
        text.waiters(|each| {
            state.list.for_each(|_, entry| {
                each(entry.holder);
                true
            });
        });
        text.finish()
    }
}
