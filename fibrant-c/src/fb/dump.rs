//! Dumps: the section of that name in `fibrant.h`.

use super::error::{Answer, Errno, INVALID, answer};
use super::runtime::{FbRuntime, meant};
use libc::{FILE, c_int};
use std::io;

/// The error that the C library has just told of.
fn last_error() -> Errno {
    Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// What a dump of the runtime says.
///
/// # Safety
/// The handle is null, or valid.
unsafe fn text(runtime: *const FbRuntime) -> Result<String, Errno> {
    // SAFETY: the caller's promise.
    Ok(format!("{}\n", unsafe { meant(runtime)? }.dump()))
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_dump(runtime: *const FbRuntime, file: *mut FILE) -> c_int {
    answer(|| {
        if file.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program's promise.
        let text = unsafe { text(runtime)? };
        // SAFETY: the text is what it is said to be; the stream is the program's.
        let is_written = unsafe {
            libc::fwrite(text.as_ptr().cast(), 1, text.len(), file) == text.len() && libc::fflush(file) == 0
        };
        if is_written { Ok(0) } else { Err(last_error()) }
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_dump_fd(runtime: *const FbRuntime, fd: c_int) -> c_int {
    answer(|| -> Answer {
        // SAFETY: the program's promise.
        let text = unsafe { text(runtime)? };
        let mut left = text.as_bytes();
        while !left.is_empty() {
            // SAFETY: the text is what it is said to be.
            let written = unsafe { libc::write(fd, left.as_ptr().cast(), left.len()) };
            match usize::try_from(written) {
                Ok(written) => left = &left[written..],
                Err(_) if last_error() == Errno(libc::EINTR) => {}
                Err(_) => return Err(last_error()),
            }
        }
        Ok(0)
    })
}
