//! C++'s exceptions in flight, for fibers that share their thread-locals.
//!
//! libstdc++ keeps, per thread, which exceptions are being handled and how many have been thrown. A fiber that waits in a `catch`
//! block leaves them behind; if another one shares its thread-locals, it would find them. So whoever gives way keeps a copy, and
//! puts it back when it goes on. An isolated fiber has its own, and none of this.
//!
//! [`scheduler`](crate::scheduler) calls it, around its switches.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// libstdc++'s function that says where they are; null while it is not loaded.
static GLOBALS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// A thread's exceptions in flight: the innermost that is being handled, and how many have been thrown and not caught. The C++ ABI
/// for this processor says so.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Exceptions {
    handled: usize,
    thrown: usize,
}

/// The name of that function.
pub(crate) const NAME: &CStr = c"__cxa_get_globals";

/// Whether libstdc++ is known to be loaded.
pub(crate) fn are_known() -> bool {
    !GLOBALS.load(Relaxed).is_null()
}

/// Notes where the function is.
///
/// # Safety
/// It is null or the address of the function of that name, in a library that stays.
pub(crate) unsafe fn note(function: *mut c_void) {
    GLOBALS.store(function, Relaxed);
}

/// Where this thread's are, if it can have any.
#[inline]
fn place() -> Option<*mut Exceptions> {
    let function = GLOBALS.load(Relaxed);
    if function.is_null() {
        return None;
    }
    // SAFETY: the function of that name has no arguments, and gives such an address.
    Some(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut Exceptions>(function)() })
}

impl Exceptions {
    /// Where this thread's are; null, if it can have none. It stays the same as long as the thread-locals do.
    pub(crate) fn place_of_this_thread() -> *mut Exceptions {
        place().unwrap_or(ptr::null_mut())
    }

    /// This thread's.
    #[inline]
    pub(crate) fn present() -> Exceptions {
        // SAFETY: the calling thread's own.
        place().map_or_else(Exceptions::default, |place| unsafe { *place })
    }

    /// Makes them this thread's.
    #[inline]
    pub(crate) fn put_back(self) {
        if let Some(place) = place() {
            // SAFETY: the calling thread's own.
            unsafe { *place = self };
        }
    }
}
