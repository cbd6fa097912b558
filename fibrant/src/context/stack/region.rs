//! Regions: address space reserved from the kernel, cut into slots of one size.
//!
//! [`Pool`](super::pool) calls it. A slot is a guard page and, above it, a stack. Reserving costs one mapping however many
//! slots there are, and no memory: pages are committed when they are touched.

use super::{guard, limits, page_end, page_size, valgrind};
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

/// The first region of a size has about this many bytes; each further one twice the last, so that a program with few
/// fibers stays small even where address space is limited (`ulimit -v`), and one with a million has few mappings.
const FIRST_REGION: usize = 16 << 20;

/// The largest region: 1,000,000 stacks of 256 KiB take 25 of them.
const LARGEST_REGION: usize = 16 << 30;

/// Tops are set off from each other by this many bytes, two cache lines, from slot to slot.
pub(super) const STAGGER_STEP: usize = 128;

/// After so many bytes the staggering starts anew.
///
/// Why: a cache chooses a line's place by the low bits of its address. If all stacks began at a page's end, the busiest
/// lines of all fibers would compete for the same few places; switching among 1,000 of them then takes twice as long.
pub(super) const STAGGER: usize = 1024;

/// Reserved address space, of which the first `cut` slots have been given out.
pub(super) struct Region {
    base: NonNull<u8>,
    /// The size of each stack.
    size: usize,
    slots: usize,
    cut: usize,
}

// SAFETY: a region is an address and numbers; the memory behind slots that are not cut yet is used by nobody.
unsafe impl Send for Region {}

impl Region {
    /// Reserves a region for stacks of `size` bytes, the `nth` of that size. If that much is refused, less may do.
    pub(super) fn reserve(size: usize, nth: u32) -> io::Result<Region> {
        let slot = size + page_size();
        // So many doublings are more than enough, and lose no bits.
        let wanted = (FIRST_REGION << nth.min(16)).min(LARGEST_REGION);
        let mut slots = (wanted / slot).max(1);
        loop {
            match map(slots * slot) {
                Ok(base) => {
                    return Ok(Region {
                        base,
                        size,
                        slots,
                        cut: 0,
                    });
                }
                Err(error) if slots == 1 => {
                    return Err(limits::explain(
                        error,
                        "reserving address space for a stack",
                        slot,
                    ));
                }
                Err(_) => slots /= 2,
            }
        }
    }

    /// The addresses that it takes.
    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.base.addr().get();
        start..start + self.slots * (self.size + page_size())
    }

    /// The tops of all slots that have been cut.
    pub(super) fn tops(&self) -> impl Iterator<Item = NonNull<u8>> + '_ {
        (0..self.cut).map(|index| self.top(index))
    }

    fn top(&self, index: usize) -> NonNull<u8> {
        let end = (index + 1) * (self.size + page_size());
        let stagger = index * STAGGER_STEP % STAGGER;
        // SAFETY: the end of a slot within the region, less an offset that is smaller than the slot's last page.
        unsafe { self.base.add(end - stagger) }
    }

    /// The top of the next slot's stack, or `None` if all have been given out. It has no guard yet: see [`equip`].
    pub(super) fn cut(&mut self) -> Option<NonNull<u8>> {
        if self.cut == self.slots {
            return None;
        }
        self.cut += 1;
        Some(self.top(self.cut - 1))
    }
}

/// Makes a slot that was just cut ready for use: the page below its stack gets a guard, valgrind is told.
pub(super) fn equip(top: NonNull<u8>, size: usize) -> io::Result<()> {
    let bottom = bottom_of(top, size);
    // SAFETY: each slot starts with a page for its guard, directly below the stack.
    let guard = unsafe { bottom.sub(page_size()) };
    // SAFETY: the page belongs to this slot, which nobody uses yet.
    unsafe { guard::install(guard) }?;
    valgrind::register(bottom, size);
    Ok(())
}

/// Gives the memory of idle slots back to the kernel, in one call for each run of neighbours. The tops come in the order
/// of their addresses; guards stay in place.
pub(super) fn trim_runs(tops: impl Iterator<Item = NonNull<u8>>, size: usize) {
    for (start, length) in runs(tops.map(|top| bottom_of(top, size).addr()), size) {
        // SAFETY: the range consists of stacks that nobody uses and the guards between them; what it holds may be lost.
        let result =
            unsafe { libc::madvise(ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED) };
        // It only fails for locked memory, which its owner wants to stay.
        debug_assert!(result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL));
    }
}

/// Joins the stacks that begin at `bottoms` (ascending) and have only a guard between them to ranges of start and length.
fn runs(bottoms: impl Iterator<Item = usize>, size: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for bottom in bottoms {
        match runs.last_mut() {
            Some((start, length)) if *start + *length + page_size() == bottom => {
                *length += page_size() + size;
            }
            _ => runs.push((bottom, size)),
        }
    }
    runs
}

/// Where the stack with this top ends.
fn bottom_of(top: NonNull<u8>, size: usize) -> *mut u8 {
    let end = page_end(top.addr().get());
    top.as_ptr().with_addr(end - size)
}

/// Maps memory that is only committed by touch, without huge pages (one would swallow many stacks): since Linux 6.7 a
/// mapping for stacks has none, before that it must be asked for.
fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping was just made. A kernel without huge pages refuses, which is as good.
    unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
    Ok(NonNull::new(base.cast()).expect("mmap does not choose address 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_staggered_aligned_and_within_the_region() {
        let size = 64 << 10;
        let mut region = Region::reserve(size, 0).unwrap();
        let (base, slots) = (region.base, region.slots);
        let tops: Vec<_> = std::iter::from_fn(|| region.cut()).collect();
        assert_eq!(tops.len(), slots);
        let mut offsets = std::collections::BTreeSet::new();
        for (index, top) in tops.iter().enumerate() {
            let bottom = bottom_of(*top, size) as usize;
            assert_eq!(top.addr().get() % 16, 0);
            assert_eq!(
                bottom,
                base.addr().get() + index * (size + page_size()) + page_size()
            );
            assert!((bottom..=bottom + size).contains(&top.addr().get()));
            offsets.insert(top.addr().get() % page_size());
        }
        assert_eq!(offsets.len(), STAGGER / STAGGER_STEP);
    }

    #[test]
    fn neighbours_form_one_run() {
        let page = page_size();
        let size = 4 * page;
        let slot = size + page;
        let at = |index: usize| 1000 * page + index * slot;
        assert_eq!(runs([].into_iter(), size), []);
        assert_eq!(
            runs([at(0), at(1), at(2), at(5), at(7), at(8)].into_iter(), size),
            [(at(0), 3 * slot - page), (at(5), size), (at(7), 2 * slot - page)]
        );
    }
}
