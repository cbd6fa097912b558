//! A list of nodes that lie in the frames of those who have entered it: nothing is allocated, and everybody can leave from the middle.
//!
//! The wait table and everything else that is waited for here keep those who wait in such lists, each behind a [`Lock`] of its own.
//!
//! [`Lock`]: crate::scheduler::Lock

use std::cell::Cell;
use std::ops::Deref;
use std::ptr;

/// A value that can be in a list. What is in the node, the value's cells too, is touched under the lock of the list that it is in.
pub(crate) struct Node<T> {
    value: T,
    is_linked: Cell<bool>,
    next: Cell<*const Node<T>>,
    previous: Cell<*const Node<T>>,
}

impl<T> Node<T> {
    pub(crate) fn new(value: T) -> Node<T> {
        Node {
            value,
            is_linked: Cell::new(false),
            next: Cell::new(ptr::null()),
            previous: Cell::new(ptr::null()),
        }
    }

    /// Whether it is in a list.
    pub(crate) fn is_linked(&self) -> bool {
        self.is_linked.get()
    }
}

impl<T> Deref for Node<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// The nodes in the order in which they have entered, the oldest first.
pub(crate) struct List<T> {
    first: *const Node<T>,
    last: *const Node<T>,
}

// SAFETY: a list is behind a lock, and its nodes are touched by whoever has that. What the nodes hold is made to be used by others than
// those in whose frames it lies: that is what they enter a list for.
unsafe impl<T> Send for List<T> {}

impl<T> List<T> {
    pub(crate) const fn new() -> List<T> {
        List {
            first: ptr::null(),
            last: ptr::null(),
        }
    }

    /// Adds a node at the end.
    ///
    /// # Safety
    /// It is in no list, and stays in place until it is unlinked.
    #[inline]
    pub(crate) unsafe fn push(&mut self, node: &Node<T>) {
        node.next.set(ptr::null());
        node.previous.set(self.last);
        // SAFETY: what is linked is in place.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.next.set(node),
            None => self.first = node,
        }
        self.last = node;
        node.is_linked.set(true);
    }

    /// Takes a node out.
    ///
    /// # Safety
    /// It is in this list.
    #[inline]
    pub(crate) unsafe fn unlink(&mut self, node: &Node<T>) {
        let (next, previous) = (node.next.get(), node.previous.get());
        // SAFETY: what is linked is in place.
        unsafe {
            match previous.as_ref() {
                Some(previous) => previous.next.set(next),
                None => self.first = next,
            }
            match next.as_ref() {
                Some(next) => next.previous.set(previous),
                None => self.last = previous,
            }
        }
        node.is_linked.set(false);
    }

    /// Takes a node out, if it is in this list.
    ///
    /// # Safety
    /// It is in no other list.
    pub(crate) unsafe fn remove(&mut self, node: &Node<T>) {
        if node.is_linked() {
            // SAFETY: it is in a list, so in this one.
            unsafe { self.unlink(node) };
        }
    }

    /// The oldest node.
    #[inline]
    pub(crate) fn first(&self) -> Option<&Node<T>> {
        // SAFETY: what is linked is in place. It is borrowed as long as the list is, which is when it could be unlinked.
        unsafe { self.first.as_ref() }
    }

    /// Whether nobody is here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Calls `f` with the nodes, the oldest first, until it says that this is enough. It may unlink the one that it is called with.
    #[inline]
    pub(crate) fn for_each(&mut self, mut f: impl FnMut(&mut List<T>, &Node<T>) -> bool) {
        let mut next = self.first;
        // SAFETY: what is linked is in place; the one after it is read before it can be unlinked.
        while let Some(node) = unsafe { next.as_ref() } {
            next = node.next.get();
            if !f(self, node) {
                return;
            }
        }
    }
}
