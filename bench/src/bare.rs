//! The least that a fresh guarded stack can cost: a guard and the first touch of a page.

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

const MADV_GUARD_INSTALL: libc::c_int = 102;

/// The size of a memory page here.
pub fn page_size() -> usize {
    // SAFETY: reads a setting.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The time that it takes to guard and touch `count` stacks of `size` bytes in one mapping, guarded by a marker or, where
/// the kernel has none, by mprotect.
pub fn guard_and_touch(count: usize, size: usize) -> Duration {
    let page = page_size();
    let slot = size + page;
    // SAFETY: a new mapping at an address of the kernel's choice, used within its bounds and unmapped at the end.
    unsafe {
        let base = libc::mmap(
            ptr::null_mut(),
            count * slot,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        libc::madvise(base, count * slot, libc::MADV_NOHUGEPAGE);
        let start = Instant::now();
        for index in 0..count {
            let guard = base.add(index * slot);
            if libc::madvise(guard, page, MADV_GUARD_INSTALL) != 0 {
                assert_eq!(
                    libc::mprotect(guard, page, libc::PROT_NONE),
                    0,
                    "{}",
                    io::Error::last_os_error()
                );
            }
            guard.add(slot - 64).cast::<u8>().write_volatile(1);
        }
        let time = start.elapsed();
        libc::munmap(base, count * slot);
        time
    }
}
