//! Room for very many small things: memory in huge pages.
//!
//! The [`wheel`](super::wheel) has its alarms there, and [`records`](super::records) the records of timers. A million timers are some 25,000 small pages, each of which the
//! kernel would bring at its first touch; that would take longer than to arm them.

use crate::context::stack::page_size;
use std::alloc::{self, Layout};
use std::mem::MaybeUninit;
use std::slice;

/// The bytes of a huge page, on x86_64 and, with small pages of 4 KiB, on aarch64.
pub(super) const HUGE: usize = if cfg!(miri) { 4096 } else { 2 << 20 };

/// Asks the kernel for huge pages where there is room for so many things, if that is enough for one. What is there already stays as it is.
#[cold]
pub(super) fn prefer_huge_pages<T>(start: *mut T, capacity: usize) {
    let bytes = capacity * size_of::<T>();
    if bytes < HUGE || cfg!(miri) {
        return;
    }
    // All of its first and last page, so that the allocator's mapping stays in one piece, which can be moved when it grows.
    let page = page_size();
    let from = start.addr() / page * page;
    let length = (start.addr() + bytes - from).next_multiple_of(page);
    // SAFETY: it changes nothing but how the kernel finds memory when it is touched. Where there are no huge pages, small ones do.
    unsafe { libc::madvise(start.with_addr(from).cast(), length, libc::MADV_HUGEPAGE) };
}

/// New room for as many things as one huge page holds, for ever.
pub(super) fn row<T>() -> &'static mut [MaybeUninit<T>] {
    const {
        assert!(HUGE.is_multiple_of(size_of::<T>()) && align_of::<T>() <= HUGE);
    }
    let layout = Layout::from_size_align(HUGE, HUGE).expect("a power of two");
    // SAFETY: it has a size.
    let start = unsafe { alloc::alloc(layout) }.cast::<MaybeUninit<T>>();
    if start.is_null() {
        alloc::handle_alloc_error(layout);
    }
    // SAFETY: so many fit, they are aligned, nobody else has them, and they need not be initialised.
    unsafe { slice::from_raw_parts_mut(start, HUGE / size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_huge_page() {
        let row = row::<u64>();
        prefer_huge_pages(row.as_mut_ptr(), row.len());
        assert_eq!((row.as_ptr().addr() % HUGE, size_of_val(row)), (0, HUGE));
        for (index, place) in row.iter_mut().enumerate() {
            place.write(index as u64);
        }
        // SAFETY: it was written just now.
        assert_eq!(unsafe { row[row.len() - 1].assume_init() }, row.len() as u64 - 1);
    }
}
