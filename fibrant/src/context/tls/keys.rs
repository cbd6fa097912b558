//! The destructors of pthread's keys: at a thread's end the C library runs them, at a fiber's we do.
//!
//! It does not tell which keys have one, so [`hook`](crate::hook) notes that when a key is made. [`tls`](super) runs them.

use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};

/// How often they are run if they set keys again, as POSIX has it.
const ROUNDS: usize = 4;

/// How many keys a process may have, and how many of them share an array in a thread's control block.
pub(super) const KEYS: usize = 1024;
pub(super) const KEYS_PER_ARRAY: usize = 32;

/// The destructors, by key; 0 if a key has none.
static DESTRUCTORS: [AtomicUsize; KEYS] = [const { AtomicUsize::new(0) }; KEYS];

/// One more than the largest key that has had a destructor.
static USED_KEYS: AtomicUsize = AtomicUsize::new(0);

/// Notes the destructor of a key of pthread's.
pub(crate) fn note(key: libc::pthread_key_t, destructor: Option<unsafe extern "C" fn(*mut c_void)>) {
    let Some(place) = DESTRUCTORS.get(key as usize) else {
        return;
    };
    place.store(destructor.map_or(0, |function| function as usize), Release);
    if destructor.is_some() {
        USED_KEYS.fetch_max(key as usize + 1, Release);
    }
}

/// The destructor of a key, if it has one.
pub(crate) fn destructor(key: libc::pthread_key_t) -> Option<unsafe extern "C" fn(*mut c_void)> {
    let address = DESTRUCTORS.get(key as usize)?.load(Acquire);
    // SAFETY: it is 0, for none, or the function that `note` was given.
    unsafe { mem::transmute::<usize, Option<unsafe extern "C" fn(*mut c_void)>>(address) }
}

/// Runs the destructors of the values of keys that the calling thread has, and of those that they set.
pub(super) fn end() {
    for _ in 0..ROUNDS {
        if !end_once() {
            break;
        }
    }
}

/// Runs the destructors of the values of keys that the calling thread has. Returns whether there were any.
fn end_once() -> bool {
    let mut any = false;
    for (key, destructor) in DESTRUCTORS[..USED_KEYS.load(Acquire)].iter().enumerate() {
        let destructor = destructor.load(Acquire);
        if destructor == 0 {
            continue;
        }
        let key = key as libc::pthread_key_t;
        // SAFETY: a key that was made and not deleted; the value is the thread's own.
        unsafe {
            let value = libc::pthread_getspecific(key);
            if !value.is_null() {
                libc::pthread_setspecific(key, ptr::null());
                // SAFETY: `note_key` has stored such a function.
                let destructor = mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(destructor);
                destructor(value);
                any = true;
            }
        }
    }
    any
}
