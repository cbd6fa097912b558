//! The wait group: a count of those who are to come, and a list of those who wait until it is 0.

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
use std::sync::Arc;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Waits until a number of fibers or threads have done their part: all clones of it are dropped.
///
/// The methods are those of `crossbeam`'s `WaitGroup`. Go's `sync.WaitGroup` serves the same end, with `Add` for what is a clone here,
/// and `Done` for what is a drop: so a fiber that panics, or is cancelled, is done as well.
///
/// Waiting is a fibrant wait: a fiber that is cancelled while it waits, or whose [`timeout`](crate::timeout) is up, unwinds from it. Its
/// own clone is given up when the wait begins.
///
/// ```
/// use fibrant::sync::WaitGroup;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
///
/// fibrant::run(|| {
///     let (group, done) = (WaitGroup::new(), Arc::new(AtomicU32::new(0)));
///     for _ in 0..10 {
///         let (group, done) = (group.clone(), Arc::clone(&done));
///         drop(fibrant::spawn(move || {
///             done.fetch_add(1, SeqCst);
///             drop(group);
///         }));
///     }
///     group.wait();
///     assert_eq!(done.load(SeqCst), 10);
/// });
/// ```
pub struct WaitGroup {
    shared: Arc<Shared>,
}

// It has no value that could be broken off in the middle.
impl UnwindSafe for WaitGroup {}
impl RefUnwindSafe for WaitGroup {}

struct Shared {
    /// How many clones there are. Once it is 0 it stays that.
    count: AtomicUsize,
    list: Lock<List<Entry>>,
    name: Name,
}

/// Somebody who waits for the others.
struct Entry {
    someone: NonNull<Someone>,
    holder: Holder,
    /// Set when the count is 0, and it is taken out of the list.
    may_go_on: Cell<bool>,
}

/// What is told to the scheduler, in case that a fiber never goes on.
struct Waiting<'a> {
    shared: &'a Shared,
    someone: &'a Someone,
    node: &'a Node<Entry>,
}

impl WaitGroup {
    /// A group of which there is one.
    ///
    /// ```
    /// fibrant::sync::WaitGroup::new().wait(); // for nobody else
    /// ```
    pub fn new() -> WaitGroup {
        WaitGroup::made(None)
    }

    /// A group with a name, which [dumps](crate::runtime::Handle::dump) show.
    ///
    /// ```
    /// fibrant::sync::WaitGroup::named("workers").wait();
    /// ```
    pub fn named(name: &'static str) -> WaitGroup {
        WaitGroup::made(Some(name))
    }

    fn made(name: Name) -> WaitGroup {
        let shared = Shared {
            count: AtomicUsize::new(1),
            list: Lock::new(List::new()),
            name,
        };
        WaitGroup {
            shared: Arc::new(shared),
        }
    }

    /// Drops this one, and waits until all others have been dropped, too.
    ///
    /// ```
    /// let group = fibrant::sync::WaitGroup::new();
    /// let other = group.clone();
    /// std::thread::spawn(move || drop(other));
    /// group.wait();
    /// ```
    pub fn wait(self) {
        let shared = Arc::clone(&self.shared);
        drop(self);
        shared.wait();
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.count.load(Acquire) == 0
    }

    fn wait(&self) {
        if self.is_over() {
            return;
        }
        let someone = Someone::present();
        let node = Node::new(Entry {
            someone: NonNull::from(&someone),
            holder: Holder::present().0,
            may_go_on: Cell::new(false),
        });
        let waiting = Waiting {
            shared: self,
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
        let end = someone.wait(&wish, || {
            let mut list = self.list.lock();
            // Whoever makes it 0 from here on finds this one in the list.
            if self.is_over() {
                return false;
            }
            // SAFETY: it is in no list, and is taken out before this frame ends: by the last one, below, or when the fiber is given up.
            unsafe { list.push(&node) };
            true
        });
        if let End::Interrupted(interruption) = end {
            self.leave(&node);
            interruption.unwind();
        }
    }

    /// The last clone is gone.
    #[cold]
    fn end(&self) {
        let mut going_on = List::new();
        let mut list = self.list.lock();
        list.for_each(|list, node| {
            // SAFETY: it is in this list.
            unsafe { list.unlink(node) };
            node.may_go_on.set(true);
            // SAFETY: whoever is in the list is in place. If it has been interrupted, it is about to leave.
            if unsafe { node.someone.as_ref() }.claim() {
                // SAFETY: it is in no list now, and stays until it is woken.
                unsafe { going_on.push(node) };
            }
            true
        });
        drop(list);
        going_on.for_each(|_, node| {
            // SAFETY: it was claimed, and is woken once. The one after it is known already.
            unsafe { Someone::wake(node.someone) };
            true
        });
    }

    /// Takes somebody out of the list who will not come.
    fn leave(&self, node: &Node<Entry>) {
        let mut list = self.list.lock();
        if !node.may_go_on.get() {
            // SAFETY: it is in no other list: only those who may go on are.
            unsafe { list.remove(node) };
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
        waiting.shared.leave(waiting.node);
    }
}

impl Clone for WaitGroup {
    fn clone(&self) -> WaitGroup {
        // It cannot overflow: there is an Arc for each, which aborts long before.
        self.shared.count.fetch_add(1, Relaxed);
        WaitGroup {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for WaitGroup {
    fn drop(&mut self) {
        if self.shared.count.fetch_sub(1, AcqRel) == 1 {
            self.shared.end();
        }
    }
}

impl Default for WaitGroup {
    fn default() -> WaitGroup {
        WaitGroup::new()
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroup")
            .field("count", &self.shared.count.load(Relaxed))
            .finish()
    }
}

impl Subject for Shared {
    fn describe(&self) -> String {
        let mut text = Text::new("wait group", self.name);
        text.add(&format!("{} to come", self.count.load(Relaxed)));
        let mut list = self.list.lock();
        text.waiters(|each| {
            list.for_each(|_, entry| {
                each(entry.holder);
                true
            });
        });
        text.finish()
    }
}
