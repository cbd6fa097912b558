//! The guard: a page below a stack that faults when the stack overflows into it.
//!
//! [`region`](super::region) installs one per slot. Linux 6.13 has markers for this (`MADV_GUARD_INSTALL`): they live in the
//! page table and need no mapping of their own, so a million stacks stay within a few mappings. Older kernels refuse
//! them, and emulators (qemu's user mode, sandboxes) may accept what they do not know and do nothing: so the first marker
//! is tried out before any is trusted. Otherwise the page is protected by mprotect, which splits the mapping.
//! There is no third way: a stack without a guard is never handed out.

use super::{limits, page_size};
use crate::env;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// `madvise` advice of Linux 6.13; libc has no name for it on all our targets yet.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// What is known of this kernel's guard markers. Threads may find out at the same time; they find the same.
static MARKERS: AtomicU8 = AtomicU8::new(UNTRIED);
const UNTRIED: u8 = 0;
const WORK: u8 = 1;
const USELESS: u8 = 2;

/// Makes every access to the page fault from now on.
///
/// # Safety
/// The page is page-aligned memory of one of our mappings, and nobody uses it.
pub(super) unsafe fn install(page: *mut u8) -> io::Result<()> {
    if MARKERS.load(Relaxed) == UNTRIED && env::settings()?.guard_by_mprotect {
        MARKERS.store(USELESS, Relaxed);
    }
    // SAFETY: the caller's promise.
    let marked = MARKERS.load(Relaxed) != USELESS && unsafe { mark(page) };
    if marked {
        return Ok(());
    }
    // SAFETY: the caller's promise; what the page held is nobody's.
    if unsafe { libc::mprotect(page.cast(), page_size(), libc::PROT_NONE) } == 0 {
        return Ok(());
    }
    Err(limits::explain(
        io::Error::last_os_error(),
        "guarding a stack (mprotect)",
        0,
    ))
}

/// Tries a marker; false if the page still needs a guard. Memory that the program has locked (`mlockall`) takes no marker
/// even where others do, so one refusal says nothing of the next page unless it was the first.
///
/// # Safety
/// As for [`install`].
unsafe fn mark(page: *mut u8) -> bool {
    // SAFETY: the caller's promise: the advice discards the page's content and affects nothing else.
    let accepted = unsafe { libc::madvise(page.cast(), page_size(), MADV_GUARD_INSTALL) } == 0;
    if accepted && MARKERS.load(Relaxed) == UNTRIED {
        let works = faults(page);
        MARKERS.store(if works { WORK } else { USELESS }, Relaxed);
        return works;
    }
    accepted
}

/// Whether the page faults, asked of the kernel: a system call that is to write to such memory answers EFAULT. (One that reads
/// a path from it would do, too, but valgrind reads paths itself, and crashes.)
fn faults(page: *mut u8) -> bool {
    // SAFETY: asks whether the page is in memory, the answer to be written to the page itself, which nobody uses.
    let result = unsafe { libc::mincore(page.cast(), page_size(), page) };
    result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}
