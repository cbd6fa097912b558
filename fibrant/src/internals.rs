//! The raw switch, for this workspace's benchmarks: two contexts that pass control back and forth.

use crate::context::stack::{Cache, Stack};
use crate::context::{self, Context};
use crate::stats::Counters;

/// A context that does nothing but switch back, with or without setting the thread pointer.
pub struct PingPong {
    here: Box<Context>,
    there: Box<(Context, *const Context)>,
    thread_pointer: *mut u8,
    _stack: Stack,
}

impl PingPong {
    /// A context on a stack of its own; `with_thread_pointer` chooses the variant of the switch.
    pub fn new(with_thread_pointer: bool) -> PingPong {
        let stack = Cache::new(false)
            .take(64 << 10, false, &Counters::default())
            .expect("a stack");
        let here = Box::new(Context::spent());
        let there = Box::new((Context::spent(), &raw const *here));
        let entry = if with_thread_pointer {
            answer_with_thread_pointer
        } else {
            answer
        };
        // SAFETY: a fresh stack; the pair of contexts is boxed and lives as long as this.
        unsafe {
            there.0.prepare(
                &stack,
                stack.top().as_ptr(),
                entry,
                (&raw const *there).cast_mut().cast(),
            );
        }
        // SAFETY: it has just been prepared. Both variants of the answer end in a switch back to here.
        unsafe { context::switch_to_new(&here, &there.0, 0) };
        PingPong {
            here,
            there,
            thread_pointer: context::thread_pointer(),
            _stack: stack,
        }
    }

    /// Whether the variant with the thread pointer works here.
    pub fn thread_pointer_can_change() -> bool {
        context::thread_pointer_can_change()
    }

    /// There and back.
    #[inline(always)]
    pub fn round_trip(&self) {
        // SAFETY: the other side is live: it waits in its own switch.
        unsafe { context::switch(&self.here, &self.there.0, 0) };
    }

    /// There and back, setting the thread pointer (to what it is) both times. For a pair that was made for it.
    #[inline(always)]
    pub fn round_trip_with_thread_pointer(&self) {
        // SAFETY: as above; the thread pointer is this thread's own.
        unsafe { context::switch_with_thread_pointer(&self.here, &self.there.0, 0, self.thread_pointer) };
    }
}

unsafe extern "C" fn answer(data: *mut (), _: usize) -> ! {
    context::started();
    // SAFETY: the pair that this context was prepared with.
    let (own, other) = unsafe { &*data.cast::<(Context, *const Context)>() };
    loop {
        // SAFETY: whoever switched here waits in the other context.
        unsafe { context::switch(own, &**other, 0) };
    }
}

unsafe extern "C" fn answer_with_thread_pointer(data: *mut (), _: usize) -> ! {
    context::started();
    let thread_pointer = context::thread_pointer();
    // SAFETY: the pair that this context was prepared with.
    let (own, other) = unsafe { &*data.cast::<(Context, *const Context)>() };
    loop {
        // SAFETY: whoever switched here waits in the other context; both sides use this thread's own thread pointer.
        unsafe { context::switch_with_thread_pointer(own, &**other, 0, thread_pointer) };
    }
}
