//! Stacks that several fibers use in turn, as copies: who is not on the processor may be moved out to the heap.
//!
//! [`fiber`](crate::fiber) calls this for coroutines on shared stacks. A [`SharedStack`] has at most one *occupant*, whose frames
//! are on it. Another that is to run [settles](Tenant::settle) there first: what the occupant has in use is copied out, what the
//! newcomer had is copied back to where it was. Nothing is copied as long as the same one comes back.
//!
//! Copying a stack while standing on it cannot be done: the caller of `settle` stands on another. It is in the middle of a switch, so that it
//! does not wait, for the allocator's locks either.

use super::{Cache, Stack, valgrind};
use crate::context::Context;
use crate::primitives::without_waiting;
use crate::stats::Counters;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::io;
use std::ptr::{self, NonNull};

/// A stack with an occupant.
pub(crate) struct SharedStack {
    stack: Stack,
    occupant: Cell<*const Tenant>,
    /// How many have a share in it.
    tenants: Cell<usize>,
    /// How many of them are Running, as far as somebody counts. Not all are on it: one that has resumed another may have been moved out,
    /// and comes back when that one does.
    running: Cell<usize>,
    /// Whether it goes when the last of those who have a share does.
    is_doomed: Cell<bool>,
}

/// A fiber's part of a shared stack, while it has one.
pub(crate) struct Tenant {
    home: NonNull<SharedStack>,
    /// The context by which it leaves the stack, and which is live while it is not on the processor. It may be in a frame there.
    left_by: Cell<*const Context>,
    /// What it has in use, from the lowest byte to the top, while somebody else occupies the stack; and how large that is.
    copy: Cell<*mut u8>,
    size: Cell<u32>,
    capacity: Cell<u32>,
}

/// Copies are allocated in steps of this many bytes, so that a fiber whose use varies a little keeps its own.
const STEP: u32 = 64;

/// The largest stack that can be shared, 2 GiB: what is in use is copied as a whole, and its size kept in 32 bits.
const MAX_SIZE: usize = 2 << 30;

impl SharedStack {
    /// A stack of at least that size, taken from this thread's. More than [`MAX_SIZE`] is an error.
    pub(crate) fn take(size: usize, cache: &Cache, counters: &Counters) -> io::Result<NonNull<SharedStack>> {
        if size > MAX_SIZE {
            let problem = format!(
                "a stack of {size} bytes was asked for, to be shared; the largest that can be is {MAX_SIZE} bytes (2 GiB)"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let stack = SharedStack {
            stack: cache.take(size, false, counters)?,
            occupant: Cell::new(ptr::null()),
            tenants: Cell::new(0),
            running: Cell::new(0),
            is_doomed: Cell::new(false),
        };
        Ok(NonNull::from(Box::leak(Box::new(stack))))
    }

    /// The stack itself.
    pub(crate) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// How many of those who have a share in it are Running.
    pub(crate) fn running(&self) -> usize {
        self.running.get()
    }

    /// Notes that one of them is Running.
    pub(crate) fn note_running(&self) {
        self.running.set(self.running.get() + 1);
    }

    /// Notes that it is not any more.
    pub(crate) fn note_not_running(&self) {
        self.running.set(self.running.get() - 1);
    }

    /// Gives the stack back, now or when the last one that has a share in it has left.
    ///
    /// # Safety
    /// It came from `take`, and nobody gets a share in it any more.
    pub(crate) unsafe fn give_back(this: NonNull<SharedStack>, cache: &Cache) {
        // SAFETY: by the caller's promise it is there.
        let shared = unsafe { this.as_ref() };
        shared.is_doomed.set(true);
        if shared.tenants.get() == 0 {
            // SAFETY: `take` has leaked it from a box, and nobody knows of it any more.
            cache.put(unsafe { Box::from_raw(this.as_ptr()) }.stack);
        }
    }
}

impl Tenant {
    /// One that has nothing there yet.
    ///
    /// # Safety
    /// The stack stays where it is as long as the tenant is used.
    pub(crate) unsafe fn new(home: NonNull<SharedStack>) -> Tenant {
        // SAFETY: by the caller's promise.
        let tenants = unsafe { &home.as_ref().tenants };
        tenants.set(tenants.get() + 1);
        Tenant {
            home,
            left_by: Cell::new(ptr::null()),
            copy: Cell::new(ptr::null_mut()),
            size: Cell::new(0),
            capacity: Cell::new(0),
        }
    }

    /// The stack that it shares.
    #[inline]
    pub(crate) fn home(&self) -> &SharedStack {
        // SAFETY: the promise of `new`.
        unsafe { self.home.as_ref() }
    }

    /// The context by which it leaves the stack.
    #[inline]
    pub(crate) fn left_by(&self) -> *const Context {
        self.left_by.get()
    }

    /// Names the context by which it leaves the stack. It stays in place until it goes on there, or forgets.
    #[inline]
    pub(crate) fn set_left_by(&self, context: &Context) {
        self.left_by.set(context);
    }

    /// Whether it is on its stack.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        ptr::eq(self.home().occupant.get(), self)
    }

    /// Whether it has never been moved out, nor been on its stack since it was last told to forget.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        self.size.get() == 0
    }

    /// Makes it the occupant: whoever is there moves out, and what it had comes back.
    ///
    /// # Safety
    /// The caller stands on another stack. The occupant, if there is one, is not on the processor: it has left the stack by the
    /// context that it has named.
    #[inline]
    pub(crate) unsafe fn settle(&self) {
        let home = self.home();
        // SAFETY: an occupant takes itself out before it goes away.
        if let Some(occupant) = unsafe { home.occupant.get().as_ref() } {
            // SAFETY: by the caller's promise it is live, and in place: the occupant's frames are.
            let low = unsafe { (*occupant.left_by.get()).frame() };
            let size = home.stack.top().as_ptr() as usize - low as usize;
            debug_assert!(size <= home.stack.size(), "it is on its stack");
            occupant.make_room(size as u32);
            // SAFETY: from there to the top the stack is in use, by somebody who does not run; there is room for it.
            unsafe { ptr::copy_nonoverlapping(low, occupant.copy.get(), size) };
        }
        let size = self.size.get() as usize;
        if size > 0 {
            // SAFETY: that many bytes below the top are where its copy was taken from; nobody else is there any more.
            unsafe {
                let low = home.stack.top().as_ptr().sub(size);
                valgrind::revive(low, size);
                ptr::copy_nonoverlapping(self.copy.get(), low, size);
            }
        }
        home.occupant.set(self);
    }

    /// Makes room for a copy of that size.
    #[inline]
    fn make_room(&self, size: u32) {
        let capacity = size.next_multiple_of(STEP);
        if self.capacity.get() != capacity {
            self.free();
            // SAFETY: it is not empty: who has left a stack has left a frame there.
            let copy = without_waiting(|| unsafe { alloc(layout(capacity)) });
            if copy.is_null() {
                handle_alloc_error(layout(capacity));
            }
            self.copy.set(copy);
            self.capacity.set(capacity);
        }
        self.size.set(size);
    }

    fn free(&self) {
        if self.capacity.get() > 0 {
            // SAFETY: it was allocated with this layout, in `make_room`.
            without_waiting(|| unsafe { dealloc(self.copy.get(), layout(self.capacity.get())) });
            self.capacity.set(0);
            self.size.set(0);
        }
    }

    /// Gives up what it has, on the stack and in its copy: it never goes on from there.
    pub(crate) fn forget(&self) {
        if self.is_settled() {
            self.home().occupant.set(ptr::null());
        }
        self.free();
    }
}

impl Tenant {
    /// Gives up its share. It has forgotten what it had, where it was known by its address.
    pub(crate) fn leave(self, cache: &Cache) {
        debug_assert!(self.capacity.get() == 0, "it has forgotten its copy");
        let tenants = &self.home().tenants;
        tenants.set(tenants.get() - 1);
        if self.home().is_doomed.get() {
            // SAFETY: it has been given back before, and waits for the last to leave.
            unsafe { SharedStack::give_back(self.home, cache) };
        }
    }
}

fn layout(capacity: u32) -> Layout {
    Layout::from_size_align(capacity as usize, 16).expect("a stack is not that large")
}
