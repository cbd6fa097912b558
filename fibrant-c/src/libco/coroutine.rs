//! Coroutines: made, resumed, left and released by hand.

use super::event_loop;
use super::extras::Extras;
use super::{number_of, set_error};
use fibrant::routine::{self, Function, Routine, SharedStacks};
use libc::{c_int, c_void};
use std::ptr::{self, NonNull};

/// The stack of a coroutine for which nobody names a size, and the largest.
const DEFAULT_STACK: usize = 128 << 10;
const LARGEST_STACK: usize = 8 << 20;

/// The body of a function that is another one by another name. It jumps there: what is switched away from must not return to a frame
/// in between.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_to {
    ($function:path) => {
        std::arch::naked_asm!("jmp {function}", function = sym $function)
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump_to {
    ($function:path) => {
        std::arch::naked_asm!("b {function}", function = sym $function)
    };
}
pub(super) use jump_to;

/// What a coroutine is made with. Packed, as libco has it.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub struct Attributes {
    stack_size: c_int,
    share_stack: *mut SharedStacks,
}

/// For a coroutine without a function.
unsafe extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
    ptr::null_mut()
}

/// The stack size that was asked for, within bounds.
fn stack_size(asked: c_int) -> usize {
    match usize::try_from(asked) {
        Ok(0) | Err(_) => DEFAULT_STACK,
        Ok(size) => size.min(LARGEST_STACK),
    }
}

/// Makes this thread's environment, if it has none yet; gives its main routine, or null.
pub(super) fn main_routine() -> *mut Routine {
    if let Some(main) = routine::main() {
        return main.as_ptr();
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    match routine::prepare(Extras::end_of) {
        Ok(main) => {
            set_error(errno.unwrap_or(0)); // what was tried on the way is nobody's business
            main.as_ptr()
        }
        Err(error) => {
            set_error(number_of(&error));
            ptr::null_mut()
        }
    }
}

/// Makes a coroutine, which does not start yet. 0, or the negative number of an error.
///
/// # Safety
/// The pointers are valid, `attributes` may be null; the function may be called with the argument on this thread. With a shared
/// stack nobody keeps a pointer to something on it while the coroutine is suspended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_create(
    place: *mut *mut Routine,
    attributes: *const Attributes,
    function: Option<Function>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise. What is packed may lie anywhere.
    let attributes = (!attributes.is_null()).then(|| unsafe { attributes.read_unaligned() });
    let function = function.unwrap_or(nothing);
    if main_routine().is_null() {
        // SAFETY: the caller's promise.
        unsafe { *place = ptr::null_mut() };
        return -std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EPERM);
    }
    // SAFETY: the caller's promise.
    let made = unsafe {
        match attributes.and_then(|attributes| attributes.share_stack.as_ref()) {
            Some(stacks) => routine::create_shared(stacks, function, argument),
            None => {
                let size = stack_size(attributes.map_or(0, |attributes| attributes.stack_size));
                routine::create(size, function, argument)
            }
        }
    };
    let (made, answer) = match made {
        Ok(made) => (made.as_ptr(), 0),
        Err(error) => (ptr::null_mut(), -number_of(&error)),
    };
    // SAFETY: the caller's promise.
    unsafe { *place = made };
    answer
}

/// Makes a coroutine begin or go on, until it yields, waits or ends. One that has ended, that runs, or that is another thread's is left
/// alone.
///
/// # Safety
/// It is null or has not been released.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_resume(co: *mut Routine) {
    jump_to!(routine::resume)
}

/// Goes back to the resumer of the coroutine that runs. On the main routine nothing happens.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn co_yield_ct() {
    jump_to!(routine::suspend)
}

/// The same: it is always the one that runs that yields.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn co_yield(_: *mut Routine) {
    jump_to!(routine::suspend)
}

/// The same.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn co_yield_env(_: *mut c_void) {
    jump_to!(routine::suspend)
}

/// Frees a coroutine that does not run, and all that it has. What is in its frames is forgotten.
///
/// # Safety
/// It is null or has not been released, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_release(co: *mut Routine) {
    let Some(co) = NonNull::new(co) else { return };
    // SAFETY: the caller's promise.
    unsafe {
        if co.as_ref().is_threads_own() {
            return; // the thread itself
        }
        let extras = co.as_ref().extras().replace(ptr::null_mut());
        match routine::release(co) {
            Ok(()) => Extras::free(extras),
            Err(_) => co.as_ref().extras().set(extras),
        }
    }
}

/// The same.
///
/// # Safety
/// As for `co_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_free(co: *mut Routine) {
    // SAFETY: the caller's promise.
    unsafe { co_release(co) }
}

/// Makes a coroutine that does not run begin anew when it is resumed next, with the same function and argument.
///
/// # Safety
/// It is null or has not been released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_reset(co: *mut Routine) {
    let Some(co) = NonNull::new(co) else { return };
    // SAFETY: the caller's promise.
    unsafe {
        if !co.as_ref().is_threads_own() && routine::reset(co).is_ok() {
            // It may have been in a call that turns the hooks on for as long as it takes.
            routine::set_hooked_of(co, event_loop::is_marked(co));
            Extras::free(co.as_ref().extras().replace(ptr::null_mut()));
        }
    }
}

/// The coroutine that runs: the main routine, if none does.
#[unsafe(no_mangle)]
pub extern "C" fn co_self() -> *mut Routine {
    match routine::current() {
        Some(routine) => routine.as_ptr(),
        None => main_routine(),
    }
}

/// The same.
#[unsafe(no_mangle)]
pub extern "C" fn co_get_current() -> *mut Routine {
    co_self()
}

/// The same.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "libco's name")]
pub extern "C" fn GetCurrThreadCo() -> *mut Routine {
    co_self()
}

/// This thread's environment, made if it has none yet.
#[unsafe(no_mangle)]
pub extern "C" fn co_get_curr_thread_env() -> *mut c_void {
    main_routine().cast()
}

/// Makes this thread's environment, if it has none yet.
#[unsafe(no_mangle)]
pub extern "C" fn co_init_curr_thread_env() {
    main_routine();
}

/// So many stacks of at least that size, for coroutines of this thread to share; null if there is no memory, or nothing was asked for.
#[unsafe(no_mangle)]
pub extern "C" fn co_alloc_sharestack(count: c_int, size: c_int) -> *mut SharedStacks {
    // Of any size, as libco's: few are enough for many coroutines.
    let size = usize::try_from(size).ok().filter(|&size| size > 0);
    let stacks = SharedStacks::new(usize::try_from(count).unwrap_or(0), size.unwrap_or(DEFAULT_STACK));
    match stacks {
        Ok(stacks) => Box::into_raw(Box::new(stacks)),
        Err(error) => {
            set_error(number_of(&error));
            ptr::null_mut()
        }
    }
}

/// Gives shared stacks back; those that coroutines still use, when the last of them is released.
///
/// # Safety
/// They are null or came from `co_alloc_sharestack`, on this thread, and are not used for new coroutines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_free_sharestack(stacks: *mut SharedStacks) {
    if !stacks.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(stacks) });
    }
}

/// For programs that call it; libco's does nothing, either.
#[unsafe(no_mangle)]
pub extern "C" fn co_log_err(_: *const libc::c_char) {}
