//! The event loop, and what makes a coroutine's calls wait in it.

use super::coroutine::main_routine;
use fibrant::routine::{self, Routine};
use libc::{c_int, c_void, nfds_t, pollfd, sockaddr, socklen_t};
use std::ptr::NonNull;

/// A coroutine, or the main routine, whose calls are to be hooked.
const HOOKED: u8 = 1;

/// This thread's epoll, made if it has none yet.
#[unsafe(no_mangle)]
pub extern "C" fn co_get_epoll_ct() -> *mut c_void {
    main_routine().cast()
}

/// Resumes this thread's coroutines as they become ready. After each turn `after(argument)` is called, if there is one, at least every
/// millisecond; -1 ends the loop. Without it the loop sleeps while there is nothing to do, and does not end.
///
/// # Safety
/// The function may be called with the argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_eventloop(
    _: *mut c_void,
    after: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    argument: *mut c_void,
) {
    if !main_routine().is_null() {
        // SAFETY: the caller's promise.
        let after = after.map(|after| move || unsafe { after(argument) } != -1);
        let _ = routine::run(after); // it is made
    }
}

/// Waits until one of the descriptors is ready, as `poll` does, whether hooks are on or off. On the main routine it is `poll`.
///
/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_poll(
    _: *mut c_void,
    descriptors: *mut pollfd,
    count: nfds_t,
    milliseconds: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    hooked(|| unsafe { libc::poll(descriptors, count, milliseconds) })
}

/// The same as `accept`.
///
/// # Safety
/// As `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::accept(fd, address, length) }
}

/// Calls `f` with the hooks on.
fn hooked<R>(f: impl FnOnce() -> R) -> R {
    if co_is_enable_sys_hook() {
        return f();
    }
    routine::set_hooked(true);
    let result = f();
    routine::set_hooked(false);
    result
}

fn set_hooked(yes: bool) {
    if let Some(routine) = NonNull::new(super::coroutine::co_self()) {
        // SAFETY: it runs, so it is there.
        unsafe { routine.as_ref() }
            .mark()
            .set(if yes { HOOKED } else { 0 });
        routine::set_hooked(yes);
    }
}

/// Turns the hooks on for the coroutine that runs. On the main routine calls block as ever.
#[unsafe(no_mangle)]
pub extern "C" fn co_enable_hook_sys() {
    set_hooked(true);
}

/// Turns the hooks off for the coroutine that runs.
#[unsafe(no_mangle)]
pub extern "C" fn co_disable_hook_sys() {
    set_hooked(false);
}

/// Whether they were turned on.
#[unsafe(no_mangle)]
pub extern "C" fn co_is_enable_sys_hook() -> bool {
    let runs = routine::current().or_else(routine::main);
    // SAFETY: the routine that runs is there.
    runs.is_some_and(|routine| unsafe { is_marked(routine) })
}

/// Whether they were turned on for a coroutine.
///
/// # Safety
/// It has not been released.
pub(super) unsafe fn is_marked(routine: NonNull<Routine>) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { routine.as_ref() }.mark().get() & HOOKED != 0
}
