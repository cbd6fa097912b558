//! What AddressSanitizer must be told: which stack the code is about to run on, and when it has arrived there.
//!
//! [`context`](super) calls this around every switch. With `--cfg fibrant_asan` (in `RUSTFLAGS`, beside
//! `-Zsanitizer=address`) the calls reach the sanitizer; otherwise every function here is empty and [`Notes`] takes no
//! room. Valgrind only wants to know where stacks are; that is told once per stack, in [`stack`](super::stack).

pub(super) use notes::*;

#[cfg(not(fibrant_asan))]
mod notes {
    use crate::context::Context;
    use crate::context::stack::Stack;

    pub(in crate::context) struct Notes;

    impl Notes {
        pub(in crate::context) const fn unknown() -> Notes {
            Notes
        }
        #[inline(always)]
        pub(in crate::context) fn describe(&self, _stack: &Stack, _top: *mut u8) {}
    }

    #[inline(always)]
    pub(in crate::context) fn leaving(_from: &Context, _to: &Context) {}
    #[inline(always)]
    pub(in crate::context) fn leaving_for_good(_to: &Context) {}
    #[inline(always)]
    pub(in crate::context) fn arrived(_own: &Context) {}
    #[inline(always)]
    pub(in crate::context) fn started() {}
    #[inline(always)]
    pub(in crate::context) fn forget_poison(_stack: &Stack) {}
}

#[cfg(fibrant_asan)]
mod notes {
    use crate::context::Context;
    use crate::context::stack::Stack;
    use std::cell::Cell;
    use std::ffi::c_void;
    use std::ptr;

    unsafe extern "C" {
        fn __sanitizer_start_switch_fiber(save: *mut *mut c_void, bottom: *const c_void, size: usize);
        fn __sanitizer_finish_switch_fiber(
            saved: *mut c_void,
            old_bottom: *mut *const c_void,
            old_size: *mut usize,
        );
        fn __asan_unpoison_memory_region(start: *const c_void, size: usize);
    }

    /// What the sanitizer knows of a stack that is saved in a context.
    pub(in crate::context) struct Notes {
        /// Its fake stack, which the sanitizer keeps for use-after-return detection.
        fake_stack: Cell<*mut c_void>,
        /// Its low end; a thread's own stack learns it from the sanitizer when it is first left.
        bottom: Cell<*const c_void>,
        /// Its size.
        size: Cell<usize>,
    }

    thread_local! {
        /// The context that the switch in progress on this thread has left (null if it was left for good).
        static LEFT: Cell<*const Context> = const { Cell::new(ptr::null()) };
    }

    impl Notes {
        pub(in crate::context) const fn unknown() -> Notes {
            Notes {
                fake_stack: Cell::new(ptr::null_mut()),
                bottom: Cell::new(ptr::null()),
                size: Cell::new(0),
            }
        }
        pub(in crate::context) fn describe(&self, stack: &Stack, top: *mut u8) {
            self.fake_stack.set(ptr::null_mut());
            self.bottom.set(stack.bottom().cast());
            self.size.set(top as usize - stack.bottom() as usize);
        }
    }

    pub(in crate::context) fn leaving(from: &Context, to: &Context) {
        LEFT.set(from);
        // SAFETY: the sanitizer stores a pointer in a cell that outlives the call and is told of a stack that exists.
        unsafe {
            __sanitizer_start_switch_fiber(
                from.notes.fake_stack.as_ptr(),
                to.notes.bottom.get(),
                to.notes.size.get(),
            );
        }
    }

    pub(in crate::context) fn leaving_for_good(to: &Context) {
        LEFT.set(ptr::null());
        // SAFETY: a null place to save to makes the sanitizer free the fake stack; the rest as in `leaving`.
        unsafe {
            __sanitizer_start_switch_fiber(ptr::null_mut(), to.notes.bottom.get(), to.notes.size.get());
        }
    }

    pub(in crate::context) fn arrived(own: &Context) {
        finish(own.notes.fake_stack.get());
    }

    pub(in crate::context) fn started() {
        finish(ptr::null_mut());
    }

    /// Completes a switch: the sanitizer answers with the bounds of the stack that was left, which is how the bounds of a
    /// thread's own stack become known.
    fn finish(fake_stack: *mut c_void) {
        let (mut bottom, mut size) = (ptr::null(), 0);
        // SAFETY: the fake stack is what the sanitizer gave when this stack was left, null for a new one; the two results
        // are local variables.
        unsafe { __sanitizer_finish_switch_fiber(fake_stack, &mut bottom, &mut size) };
        let left = LEFT.get();
        if !left.is_null() {
            // SAFETY: the context that a switch leaves stays in place until it is switched to, which cannot have happened
            // before this switch was complete.
            let notes = unsafe { &(*left).notes };
            notes.bottom.set(bottom);
            notes.size.set(size);
        }
    }

    /// A stack that is used again may carry marks of frames that were left for good.
    pub(in crate::context) fn forget_poison(stack: &Stack) {
        // SAFETY: the region is a whole idle stack.
        unsafe { __asan_unpoison_memory_region(stack.bottom().cast(), stack.size()) };
    }
}
