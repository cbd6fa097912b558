//! What a coroutine has besides its stack: made when it is first needed, freed when the coroutine ends, is reset or released.

use super::specific;
use fibrant::routine::{self, Routine};
use libc::c_void;
use std::ffi::CString;
use std::ptr::{self, NonNull};

/// How often destructors are run if they set values again, as POSIX has it for threads.
const ROUNDS: usize = 4;

/// A coroutine's own things.
#[derive(Default)]
pub(super) struct Extras {
    /// Its values by key of pthread's.
    pub(super) specifics: Vec<(libc::pthread_key_t, *mut c_void)>,
    /// Its own environment: a value for each of the names that have been set.
    pub(super) environment: Vec<(CString, CString)>,
    /// The state of the resolver's, in words.
    pub(super) resolver: Option<Box<[u64]>>,
}

impl Extras {
    /// Those of the coroutine that runs; `None` on the main routine.
    pub(super) fn present() -> Option<*mut Extras> {
        let routine = routine::current()?;
        // SAFETY: it runs, so it is there.
        let place = unsafe { routine.as_ref() }.extras();
        if place.get().is_null() {
            place.set(Box::into_raw(Box::<Extras>::default()).cast());
        }
        Some(place.get().cast())
    }

    /// Called on a coroutine whose function has returned.
    ///
    /// # Safety
    /// The routine is that coroutine.
    pub(super) unsafe fn end_of(routine: NonNull<Routine>) {
        // SAFETY: by the contract.
        let place = unsafe { routine.as_ref() }.extras();
        for _ in 0..ROUNDS {
            // SAFETY: they are this coroutine's, and were just taken away from it.
            unsafe { Extras::free(place.replace(ptr::null_mut())) };
        }
    }

    /// Frees them, and calls the destructors of what is in them.
    ///
    /// # Safety
    /// They are null or were a coroutine's, which has them no more.
    pub(super) unsafe fn free(extras: *mut c_void) {
        if !extras.is_null() {
            // SAFETY: they came from a box, in `present`.
            let extras = unsafe { Box::from_raw(extras.cast::<Extras>()) };
            for (key, value) in extras.specifics {
                specific::destroy(key, value);
            }
        }
    }
}
