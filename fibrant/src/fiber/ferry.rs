//! The ferry: brings a fiber to its shared stack when whoever switches to it stands there.
//!
//! What is on a stack cannot be moved by code that runs on it. So [`routine`](super::routine) and [`block`](super::block) switch to this
//! context instead, which has a small stack of its own: it does what has to be done, and goes on to where they wanted to go. A thread
//! has one, once it is needed; the [`Thread`] keeps it.

use super::thread::Thread;
use crate::context::stack::Stack;
use crate::context::{self, Context};
use crate::primitives::without_waiting;
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// The size of its stack.
const SIZE: usize = 16 << 10;

/// A context that moves fibers in and out of shared stacks.
pub(super) struct Ferry {
    context: Context,
    stack: Stack,
    /// Where it goes next, and what is to be done before.
    next: Cell<(*const Context, Moving)>,
}

/// Brings something to its stack.
#[derive(Clone, Copy)]
pub(super) struct Moving {
    /// # Safety
    /// Called with `passenger`, on another stack than the one that it is brought to; neither it nor who is there is on the processor.
    pub(super) bring: unsafe fn(*const ()),
    pub(super) passenger: *const (),
}

impl Ferry {
    /// A ferry that waits for its first passenger.
    fn launch(thread: &Thread) -> Box<Ferry> {
        let stack = thread.stacks.take(SIZE, false, &thread.counters);
        let ferry = Box::new(Ferry {
            context: Context::spent(),
            stack: stack.unwrap_or_else(|error| panic!("no stack from which to move others: {error}")),
            next: Cell::new((
                ptr::null(),
                Moving {
                    bring: |_| {},
                    passenger: ptr::null(),
                },
            )),
        });
        let data = ptr::from_ref(&*ferry).cast_mut().cast();
        // SAFETY: the stack is new, and the context spent.
        unsafe {
            ferry
                .context
                .prepare(&ferry.stack, ferry.stack.top().as_ptr(), serve, data);
        }
        ferry
    }

    /// Where to switch to, in the manner that shares the floating-point control words, so that `moving` is done and `to` goes on.
    #[cold]
    pub(super) fn to<'a>(thread: &'a Thread, to: &Context, moving: Moving) -> &'a Context {
        let ferry = thread.ferry.get().unwrap_or_else(|| {
            // Whoever asks is in the middle of a switch.
            let ferry = without_waiting(|| NonNull::from(Box::leak(Ferry::launch(thread))));
            thread.ferry.set(Some(ferry));
            ferry
        });
        // SAFETY: it is the thread's until that ends.
        let ferry = unsafe { &*ferry.as_ptr() };
        ferry.next.set((to, moving));
        &ferry.context
    }

    /// Ends the ferry of a thread that ends.
    pub(super) fn end(thread: &Thread) {
        if let Some(ferry) = thread.ferry.take() {
            // SAFETY: `to` has leaked it from a box; it waits for a passenger, and there will be none.
            let ferry = unsafe { Box::from_raw(ferry.as_ptr()) };
            thread.stacks.put(ferry.stack);
        }
    }
}

/// # Safety
/// The first function on a ferry's stack; `data` is the ferry.
unsafe extern "C" fn serve(data: *mut (), mut argument: usize) -> ! {
    context::started();
    // SAFETY: by the contract; it stays as long as anybody switches to it.
    let ferry = unsafe { &*data.cast::<Ferry>() };
    loop {
        let (to, moving) = ferry.next.get();
        // SAFETY: whoever switched here has said where it goes, and left a stack that is not this one.
        argument = unsafe {
            (moving.bring)(moving.passenger);
            context::switch_sharing_float_control(&ferry.context, &*to, argument)
        };
    }
}
