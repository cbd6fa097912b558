//! Contexts: what it takes to leave one stack and go on another.
//!
//! [`fiber`](crate::fiber) (and later the scheduler) calls this module; it calls nothing of ours. It holds
//!
//! - the switch, one file per architecture ([`arch`]), each opening with a diagram of the saved frame;
//! - the notes that AddressSanitizer needs at every switch ([`sanitizer`]);
//! - the stacks to switch to ([`stack`]);
//! - thread-locals of a fiber's own, which a switch can change, too ([`tls`]);
//! - what fibers that share thread-locals must not share ([`exceptions`]).
//!
//! A [`Context`] is the address of a saved frame. It is *live* from the moment something is saved in it (a switch away,
//! or [`Context::prepare`]) until something switches to it; it is then *spent*. Every `unsafe fn` here asks for one
//! thing: switch only to live contexts, on the thread on which they were saved.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod arch;
#[cfg(target_arch = "x86_64")]
pub(crate) use arch::naked_crossing;
pub(crate) mod exceptions;
mod sanitizer;
pub(crate) mod stack;
pub(crate) mod tls;

use stack::Stack;
use std::cell::UnsafeCell;
use std::ptr;

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("fibrant runs on Linux, x86_64 or aarch64; other systems are not supported");

/// The first function of a new context: gets the data it was prepared with and the argument of the first switch to it.
pub(crate) type Entry = unsafe extern "C" fn(data: *mut (), argument: usize) -> !;

/// A place to leave a stack and come back to it.
#[repr(C)]
pub(crate) struct Context {
    /// Where the saved frame begins; meaningful only while the context is live. The switch writes it through a shared
    /// reference, hence the cell.
    frame: UnsafeCell<*mut u8>,
    /// What AddressSanitizer wants to know of the stack that is saved here (empty without `--cfg fibrant_asan`).
    notes: sanitizer::Notes,
}

impl Context {
    /// A context that is not live yet: something must be saved in it first.
    pub(crate) const fn spent() -> Context {
        Context {
            frame: UnsafeCell::new(ptr::null_mut()),
            notes: sanitizer::Notes::unknown(),
        }
    }

    /// Brings the first lines that are in use on the stack that this context, which is live, was left on into the cache.
    ///
    /// # Safety
    /// The context belongs to this thread.
    #[inline(always)]
    pub(crate) unsafe fn prefetch(&self, lines: usize) {
        // SAFETY: by the caller's promise nobody writes the cell now.
        prefetch_lines(unsafe { *self.frame.get() }, lines);
    }

    /// The lowest byte that is in use on the stack that this context, which is live, was left on; null if it was never prepared or begun. Of one that
    /// refers to another, what it was given.
    ///
    /// # Safety
    /// Nobody writes it meanwhile, and what was written last has happened before.
    #[inline(always)]
    pub(crate) unsafe fn frame(&self) -> *mut u8 {
        // SAFETY: by the caller's promise nobody writes the cell now.
        unsafe { *self.frame.get() }
    }

    /// Makes this context live: the first switch to it, by [`switch_to_new`], [`switch_sharing_float_control`] or [`switch`],
    /// calls `entry(data, argument)` on the stack that ends at `top`.
    ///
    /// By the first two it starts with the floating-point control words of whoever switches to it first, as a new thread inherits
    /// its creator's; by [`switch`], with the default ones.
    ///
    /// # Safety
    /// `top` is aligned to 16 bytes and lies on the stack, what is below it there is used by nothing else, and the context is
    /// spent.
    #[inline]
    pub(crate) unsafe fn prepare(&self, stack: &Stack, top: *mut u8, entry: Entry, data: *mut ()) {
        // SAFETY: the caller promises a free stack with room for a frame below its aligned top.
        let frame = unsafe { arch::prepare(top, entry, data) };
        // SAFETY: the context is spent, so no switch reads or writes the cell now; it belongs to this thread.
        unsafe { *self.frame.get() = frame };
        self.notes.describe(stack, top);
    }

    /// Notes that what this context is for runs already, on that stack below `top`: nothing has switched to it.
    ///
    /// # Safety
    /// The context is spent, and belongs to this thread.
    #[inline]
    pub(crate) unsafe fn begin(&self, stack: &Stack, top: *mut u8) {
        // SAFETY: it is spent, so no switch reads or writes the cell now.
        unsafe { *self.frame.get() = top };
        self.notes.describe(stack, top);
    }

    /// Notes that this context is never switched to: what it is for goes on in another, which is found by that address.
    ///
    /// # Safety
    /// As for [`Context::begin`].
    pub(crate) unsafe fn refer_to<T>(&self, place: *const T) {
        // SAFETY: as in `begin`.
        unsafe { *self.frame.get() = place.cast::<u8>().cast_mut() };
    }
}

/// Defines a switch: the architecture's instruction for it between the notes for the sanitizer.
macro_rules! define_switch {
    ($(#[doc = $doc:literal])+ $(#[allow($lint:ident)])? $name:ident $(, $pointer:ident: $type:ty)?) => {
        $(#[doc = $doc])+
        $(#[allow($lint)])?
        #[inline(always)]
        pub(crate) unsafe fn $name(from: &Context, to: &Context, argument: usize $(, $pointer: $type)?) -> usize {
            sanitizer::leaving(from, to);
            // SAFETY: the caller's promise is what the architecture's switch asks for.
            let answer = unsafe { arch::$name(from.frame.get(), to.frame.get(), argument $(, $pointer)?) };
            sanitizer::arrived(from);
            answer
        }
    };
}

define_switch! {
    /// Saves this stack in `from` and goes on in `to`, whose own `switch` returns `argument` there. Returns, with an
    /// argument of theirs, when somebody switches to `from`.
    ///
    /// # Safety
    /// `to` is live, was saved on this thread (by a switch, with its control words) and stays in place while it is switched
    /// to; `from` is spent and stays in place until it is switched to. The thread pointer is the same on both sides.
    switch
}

define_switch! {
    /// Like [`switch`], to a context that was prepared and not switched to yet.
    ///
    /// # Safety
    /// As for [`switch`], except that `to` was prepared, on this thread.
    switch_to_new
}

define_switch! {
    /// Like [`switch`] or [`switch_to_new`], but the floating-point control words stay as they are: both sides share them.
    ///
    /// # Safety
    /// As for [`switch`]; and who switches back to `from` uses this function, too.
    switch_sharing_float_control
}

define_switch! {
    /// Like [`switch`], and the thread pointer becomes `thread_pointer` on the way: what follows runs with the thread-locals
    /// of that block. The caller keeps each side's thread pointer, so nothing is read back here.
    ///
    /// # Safety
    /// As for [`switch`], except for the last sentence; and `thread_pointer` is the thread pointer with which `to` was left,
    /// or the address of a thread control block whose code may run here. [`thread_pointer_can_change`] has answered yes.
    switch_with_thread_pointer, thread_pointer: *mut u8
}

/// Leaves this stack for good: goes on in `to`, which is given `argument`, and nothing ever switches back. `share_float_control` says which switch
/// `to` was left by.
///
/// # Safety
/// `to` as for the switch that it was left by. What still lives on this stack is never dropped.
#[inline(always)] // a call that does not return would upset the processor's prediction of returns
pub(crate) unsafe fn leave(to: &Context, share_float_control: bool, argument: usize) -> ! {
    sanitizer::leaving_for_good(to);
    // SAFETY: the caller's promise is what the architecture asks for.
    unsafe { arch::leave(to.frame.get(), share_float_control, argument) }
}

/// The same, and the thread pointer becomes `thread_pointer` on the way. `to` was left by [`switch`].
///
/// # Safety
/// As for [`leave`] and [`switch_with_thread_pointer`].
#[inline(always)]
pub(crate) unsafe fn leave_with_thread_pointer(to: &Context, argument: usize, thread_pointer: *mut u8) -> ! {
    sanitizer::leaving_for_good(to);
    // SAFETY: the caller's promise is what the architecture asks for.
    unsafe { arch::leave_with_thread_pointer(to.frame.get(), argument, thread_pointer) }
}

/// Calls `f(data)` with another thread pointer, on the same stack.
///
/// # Safety
/// `thread_pointer` is the address of a thread control block whose code may run here, and which nobody else runs with meanwhile.
/// `f` may be called with `data`, does not unwind, and does not switch. [`thread_pointer_can_change`] has answered yes.
pub(crate) unsafe fn call_with_thread_pointer(
    thread_pointer: *mut u8,
    f: unsafe extern "C" fn(*mut ()),
    data: *mut (),
) {
    // SAFETY: the caller's promise is what the architecture asks for; afterwards the thread pointer is what it was.
    unsafe { arch::call_with_thread_pointer(thread_pointer, f, data) }
}

/// The same, for a closure. If it panics, the process aborts.
///
/// # Safety
/// As for [`call_with_thread_pointer`].
pub(crate) unsafe fn with_thread_pointer<R>(thread_pointer: *mut u8, f: impl FnOnce() -> R) -> R {
    struct Call<F, R>(Option<F>, Option<R>);
    unsafe extern "C" fn run<F: FnOnce() -> R, R>(data: *mut ()) {
        // SAFETY: the call below.
        let call = unsafe { &mut *data.cast::<Call<F, R>>() };
        call.1 = call.0.take().map(|f| f());
    }
    /// The function that runs a closure of this type.
    fn runner<F: FnOnce() -> R, R>(_: &Call<F, R>) -> unsafe extern "C" fn(*mut ()) {
        run::<F, R>
    }
    let mut call = Call(Some(f), None);
    let run = runner(&call);
    // SAFETY: the caller's promise; the function gets the call that it was made for.
    unsafe { call_with_thread_pointer(thread_pointer, run, (&raw mut call).cast()) };
    call.1.expect("it has been called")
}

/// Brings what is at an address into the cache. The address need not be valid.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    arch::prefetch(address);
}

/// Brings so many cache lines from an address on into the cache.
#[inline(always)]
pub(crate) fn prefetch_lines<T>(address: *const T, count: usize) {
    for line in 0..count {
        prefetch(address.cast::<[u8; 64]>().wrapping_add(line));
    }
}

/// Gives the floating-point control words their default values, as a new context has them.
#[inline]
pub(crate) fn reset_float_control() {
    arch::reset_float_control();
}

/// The first thing a new context does, before anything else of its stack: completes the switch that began it.
pub(crate) fn started() {
    sanitizer::started();
}

/// Whether the thread pointer can be changed from user space here.
pub(crate) fn thread_pointer_can_change() -> bool {
    arch::thread_pointer_can_change()
}

/// This thread's thread pointer.
pub(crate) fn thread_pointer() -> *mut u8 {
    arch::thread_pointer()
}

#[cfg(test)]
mod tests;
