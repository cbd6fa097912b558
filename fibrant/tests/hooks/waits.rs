//! Waits: points 23 to 25.

use crate::support::*;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

bodies! {
    p25_success_leaves_errno_alone, true, || {
        let (ours, mut theirs) = streams();
        later(move || theirs.write_all(b"x").unwrap());
        // SAFETY: the address is that of this thread's variable.
        unsafe { *libc::__errno_location() = 77 };
        let mut buffer = [0; 4];
        // SAFETY: the buffer has that length.
        let count = unsafe { libc::read(ours.as_raw_fd(), buffer.as_mut_ptr().cast(), 4) };
        (count, io::Error::last_os_error().raw_os_error())
    };
}
