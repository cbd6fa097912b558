//! Values by key, one per coroutine. On the main routine they are the thread's own.

use super::extras::Extras;
use fibrant::routine;
use libc::{c_int, c_void, pthread_key_t};
use std::ptr;

/// Sets the value of a key of pthread's for the coroutine that runs. The key's destructor is called when the coroutine ends, is reset
/// or released.
///
/// # Safety
/// The key's destructor, if it has one, may be called with the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_setspecific(key: pthread_key_t, value: *const c_void) -> c_int {
    let Some(extras) = Extras::present() else {
        // SAFETY: the caller's promise.
        return unsafe { libc::pthread_setspecific(key, value) };
    };
    // SAFETY: they are those of the coroutine that runs, and nobody else uses them meanwhile.
    let specifics = unsafe { &mut (*extras).specifics };
    let value = value.cast_mut();
    match specifics.binary_search_by_key(&key, |one| one.0) {
        Ok(place) => specifics[place].1 = value,
        Err(place) => specifics.insert(place, (key, value)),
    }
    0
}

/// The value of a key for the coroutine that runs; null if it has none.
#[unsafe(no_mangle)]
pub extern "C" fn co_getspecific(key: pthread_key_t) -> *mut c_void {
    let Some(routine) = routine::current() else {
        // SAFETY: a key that does not exist has no value.
        return unsafe { libc::pthread_getspecific(key) };
    };
    // SAFETY: the coroutine runs, so it is there, and nobody else uses what it has meanwhile.
    let extras = unsafe { routine.as_ref().extras().get().cast::<Extras>().as_ref() };
    extras.map_or(ptr::null_mut(), |extras| {
        let found = extras.specifics.binary_search_by_key(&key, |one| one.0);
        found.map_or(ptr::null_mut(), |place| extras.specifics[place].1)
    })
}

/// Calls the destructor of a key with a value that was one's, if both exist.
pub(super) fn destroy(key: pthread_key_t, value: *mut c_void) {
    if value.is_null() {
        return;
    }
    if let Some(destructor) = routine::key_destructor(key) {
        // SAFETY: whoever has set the value has said that it may be called so; it is called once.
        unsafe { destructor(value) };
    }
}
