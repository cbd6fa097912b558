//! What the functions of the header are given: names, durations, structures, functions.

use super::error::{Errno, INVALID};
use libc::{c_char, c_void};
use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

/// `fb_function`. An exception may leave it: see [`call`].
pub type Function = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// A pointer of the program's, which is passed on and never looked into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer(pub(super) *mut c_void);

// SAFETY: nothing here looks into it. The header says that functions and messages go from thread to thread: what is behind the pointer is
// the program's affair.
unsafe impl Send for Pointer {}

/// A function and what it is to be called with.
#[derive(Clone, Copy)]
pub(super) struct Call {
    function: Function,
    argument: Pointer,
}

impl Call {
    /// # Safety
    /// The function may be called with the argument, once, from any thread.
    pub(super) unsafe fn new(function: Option<Function>, argument: *mut c_void) -> Result<Call, Errno> {
        Ok(Call {
            function: function.ok_or(INVALID)?,
            argument: Pointer(argument),
        })
    }

    /// Calls it.
    pub(super) fn run(self) -> Pointer {
        Pointer(call(self.function, self.argument.0))
    }
}

/// Calls a function of the program's. This function is one that nothing can unwind from: an exception that comes here, or a forced
/// unwinding, ends the program, as `noexcept` does in C++. So it cannot reach the fiber's own frames, which would not know what to do
/// with it; and as the function is called by an ABI that may unwind, that is defined.
extern "C" fn call(function: Function, argument: *mut c_void) -> *mut c_void {
    // SAFETY: whoever has made the `Call` has promised that it may be called with that.
    unsafe { function(argument) }
}

/// Gives the result to a program that may not want it.
///
/// # Safety
/// The place is null, or may be written to.
pub(super) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write(value) };
    }
}

/// The place for a new handle.
pub(super) fn place<T>(place: *mut *mut T) -> Result<NonNull<*mut T>, Errno> {
    NonNull::new(place).ok_or(INVALID)
}

/// What a handle stands for.
///
/// # Safety
/// It is null, or stands for one that is not freed while the reference is used.
pub(super) unsafe fn behind<'a, T>(handle: *const T) -> Result<&'a T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or(INVALID)
}

/// A span of time; none is for ever.
pub(super) fn limit(duration: i64) -> Option<Duration> {
    u64::try_from(duration).ok().map(Duration::from_nanos)
}

/// A span of time that must have an end for the crate, so centuries will do.
pub(super) fn span(duration: i64) -> Duration {
    limit(duration).unwrap_or(Duration::MAX)
}

/// A name, if there is one.
///
/// # Safety
/// It is null, or a string.
pub(super) unsafe fn name(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The name of a lock, which wants one that stays: as long as this.
pub(super) struct LockName(Option<NonNull<str>>);

impl LockName {
    /// # Safety
    /// As for [`name`].
    pub(super) unsafe fn new(text: *const c_char) -> LockName {
        // SAFETY: the caller's promise.
        let name = unsafe { name(text) };
        LockName(name.map(|name| NonNull::from(Box::leak(name.into_boxed_str()))))
    }

    /// It, for somebody who goes away before this does.
    ///
    /// # Safety
    /// It is not used when this is gone.
    pub(super) unsafe fn get(&self) -> Option<&'static str> {
        // SAFETY: it was leaked above, and is freed with this.
        self.0.map(|name| unsafe { name.as_ref() })
    }
}

impl Drop for LockName {
    fn drop(&mut self) {
        if let Some(name) = self.0 {
            // SAFETY: it was leaked from a box, and whoever has it does not use it any more.
            drop(unsafe { Box::from_raw(name.as_ptr()) });
        }
    }
}

/// Who is about to let others go on: whoever unlocks, posts, or is done. The others may free the lock at once, as pthread's may be,
/// while it is still being looked at here; so freeing waits for that.
#[derive(Default)]
pub(super) struct Releasing(AtomicUsize);

impl Releasing {
    /// Does something after which the lock may be freed by others.
    pub(super) fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Relaxed);
        let result = f();
        // Nothing of the lock is used from here on.
        self.0.fetch_sub(1, Release);
        result
    }

    /// Waits until nobody does. It is a matter of moments, for those who are at it do not wait.
    pub(super) fn settle(&self) {
        let _guard = fibrant::defer_cancel();
        while self.0.load(Acquire) != 0 {
            fibrant::yield_now();
        }
    }
}

/// A structure that begins with its own size, and may have grown since the program, or this library, was compiled.
///
/// # Safety
/// It is made of integers and of pointers that may be null, and its first field is a `usize`.
pub(super) unsafe trait Grows: Copy {
    /// What fields have that the program does not know of.
    const DEFAULT: Self;
}

/// Reads such a structure. What the program does not know of has the default; what this library does not know of must be 0.
///
/// # Safety
/// It is null, or begins with the number of bytes that may be read there.
pub(super) unsafe fn read<T: Grows>(place: *const T) -> Result<T, Errno> {
    let mut value = T::DEFAULT;
    if place.is_null() {
        return Ok(value);
    }
    // SAFETY: it begins with its size.
    let size = unsafe { place.cast::<usize>().read() };
    if size < size_of::<usize>() {
        return Err(INVALID);
    }
    let known = size.min(size_of::<T>());
    // SAFETY: so many bytes may be read there, by the caller's promise. Whatever they are, they are a T's, as that is what `Grows` says.
    let rest = unsafe {
        ptr::copy_nonoverlapping(place.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
        std::slice::from_raw_parts(place.cast::<u8>().add(known), size - known)
    };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Errno(libc::E2BIG));
    }
    Ok(value)
}
