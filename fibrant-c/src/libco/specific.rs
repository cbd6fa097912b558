//! Values by key, one per coroutine. On the main routine they are the thread's own.
//!
//! Keys are pthread's. A process can have 1024 of those, so what needs more of them asks `co_specific_key`, which has keys of its own when
//! pthread has none left: their values are kept for the main routine by `fb_set`, whose keys know no limit.

use super::extras::Extras;
use crate::fb::local::{self, Destructor, fb_get, fb_set};
use fibrant::routine;
use libc::{c_int, c_void, pthread_key_t};
use std::ptr;
use std::sync::{PoisonError, RwLock};

/// Our own keys have numbers from here on: pthread's are all below.
const FIRST_OWN: pthread_key_t = 1 << 16;

/// Our own keys, in the order of their numbers. They are never given back.
static OWN: RwLock<Vec<OwnKey>> = RwLock::new(Vec::new());

/// A key that pthread had no room for.
#[derive(Clone, Copy)]
struct OwnKey {
    destructor: Option<Destructor>,
    /// The key of `fb_set` for what the main routine of each thread has.
    on_main: u64,
}

/// What is known of a key, if it is one of ours.
fn own(key: pthread_key_t) -> Option<OwnKey> {
    let index = key.checked_sub(FIRST_OWN)?;
    let keys = OWN.read().unwrap_or_else(PoisonError::into_inner);
    keys.get(index as usize).copied()
}

/// A new key for `co_setspecific` and `co_getspecific`, for good: one of pthread's if there is one left, otherwise one that only these two
/// know. `CO_ROUTINE_SPECIFIC` asks for one per variable.
#[unsafe(no_mangle)]
pub extern "C" fn co_specific_key(destructor: Option<unsafe extern "C" fn(*mut c_void)>) -> pthread_key_t {
    let mut key = 0;
    // SAFETY: there is room for the key; whoever sets a value promises that the destructor may be called with it.
    if unsafe { libc::pthread_key_create(&mut key, destructor) } == 0 {
        return key;
    }
    // SAFETY: the same function; one that may unwind is not asked to.
    let destructor: Option<Destructor> = unsafe { std::mem::transmute(destructor) };
    let on_main = local::new_key(destructor);
    let mut keys = OWN.write().unwrap_or_else(PoisonError::into_inner);
    let index = keys.len() as pthread_key_t;
    keys.push(OwnKey { destructor, on_main });
    FIRST_OWN + index
}

/// Sets the value of a key for the coroutine that runs. The key's destructor is called when the coroutine ends, is reset or released.
///
/// # Safety
/// The key's destructor, if it has one, may be called with the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn co_setspecific(key: pthread_key_t, value: *const c_void) -> c_int {
    let Some(extras) = Extras::present() else {
        return match own(key) {
            Some(own) => -fb_set(own.on_main, value.cast_mut()),
            // SAFETY: the caller's promise.
            None => unsafe { libc::pthread_setspecific(key, value) },
        };
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
        return match own(key) {
            Some(own) => fb_get(own.on_main),
            // SAFETY: a key that does not exist has no value.
            None => unsafe { libc::pthread_getspecific(key) },
        };
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
    if let Some(own) = own(key) {
        if let Some(destructor) = own.destructor {
            local::call(destructor, value);
        }
    } else if let Some(destructor) = routine::key_destructor(key) {
        // SAFETY: whoever has set the value has said that it may be called so; it is called once.
        unsafe { destructor(value) };
    }
}
