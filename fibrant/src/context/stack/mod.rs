//! Stacks: guarded slots of large reserved regions, used again last in, first out.
//!
//! [`fiber`](crate::fiber) takes a [`Stack`] from its thread's [`Cache`] and puts it back there. From top to bottom:
//!
//! - [`cache`]: what one thread keeps at hand; taking and putting needs no lock;
//! - [`pool`]: one per stack size, shared by all threads: idle slots, and the region that fresh ones are cut from;
//! - [`region`]: address space reserved from the kernel, cut into slots;
//! - [`guard`]: makes the page below a stack fault; [`limits`]: says which limit was run into, and how to raise it;
//! - [`shared`]: stacks that several fibers use in turn, as copies;
//! - [`valgrind`]: tells valgrind where the stacks are.
//!
//! ```text
//!    region  | guard | slot 0's stack      <- top | guard | slot 1's stack     <- top | guard | ...
//!            |<page >|<------- size ------------->|
//!                                           ^ staggered: up to a few hundred bytes below the page's end
//! ```
//!
//! Stacks of isolated fibers come from pools of their own: a block for the fiber's thread-locals ([`tls`](super::tls)) takes the
//! slot's top, and the stack begins below it. It stays made while the slot is idle, and is given back before the slot is trimmed.
//!
//! A slot's memory is committed by touching it and stays committed while the slot is idle, until it is trimmed together
//! with many others. Regions are never given back: address space is plentiful, and the next burst finds its guards in place.

mod cache;
mod guard;
mod limits;
mod pool;
mod region;
mod shared;
mod valgrind;

pub(crate) use cache::Cache;
pub(crate) use shared::{SharedStack, Tenant};

use super::tls::{Layout, Update};
use pool::Pool;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The stack of a fiber for which nobody names a size: 256 KiB.
pub(crate) const DEFAULT_SIZE: usize = 256 << 10;

/// The smallest stack, 16 KiB: enough to panic and print the message (8 KiB at most), but not a backtrace (24 KiB).
/// Smaller requests get this.
pub(crate) const MIN_SIZE: usize = 16 << 10;

/// The largest stack, 16 GiB. More is a mistake and an error.
pub(crate) const MAX_SIZE: usize = 16 << 30;

/// A stack that nothing else uses. Forgetting it means that its slot is never used again.
#[must_use = "a stack that is not put back is lost"]
pub(crate) struct Stack {
    /// The slot's top. Aligned to [`region::STAGGER_STEP`] bytes, at most [`region::STAGGER`] below the slot's last page's end.
    top: NonNull<u8>,
    /// Where it comes from, and how large it is.
    pool: &'static Pool,
}

impl Stack {
    /// Where the stack begins, aligned to 16 bytes; it grows down.
    #[inline]
    pub(crate) fn top(&self) -> NonNull<u8> {
        match self.pool.layout() {
            None => self.top,
            // SAFETY: the block is smaller than the smallest slot: `of` sees to that.
            Some(layout) => unsafe { self.top.sub(layout.size()) },
        }
    }

    /// Another name for the same stack, which is not put back.
    pub(crate) fn alias(&self) -> Stack {
        Stack {
            top: self.top,
            pool: self.pool,
        }
    }

    /// Whether it has a block for thread-locals.
    #[inline]
    pub(crate) fn is_isolated(&self) -> bool {
        self.pool.layout().is_some()
    }

    /// The block for thread-locals, if it has one: how it is laid out, and its thread pointer.
    #[inline]
    pub(crate) fn locals(&self) -> Option<(&'static Layout, *mut u8)> {
        let layout = self.pool.layout()?;
        Some((layout, layout.thread_pointer(self.top.as_ptr())))
    }

    /// The lowest usable byte, at a page boundary; the guard is below.
    pub(crate) fn bottom(&self) -> *mut u8 {
        let end = page_end(self.top.addr().get());
        self.top.as_ptr().with_addr(end - self.pool.size())
    }

    /// How many bytes it has, from the guard to the end of its last page.
    pub(crate) fn size(&self) -> usize {
        self.pool.size()
    }

    /// The addresses at which a stack overflow faults.
    pub(crate) fn guard(&self) -> Range<usize> {
        let end = self.bottom() as usize;
        end - page_size()..end
    }

    /// How many bytes were ever in use, to the page, since the slot's memory was last given back: whoever used the slot
    /// before counts, too.
    pub(crate) fn usage(&self) -> usize {
        let mut resident = vec![0_u8; self.size() / page_size()];
        // SAFETY: the range is a whole slot of a region, mapped for good, and the vector has a byte for each of its pages.
        let result =
            unsafe { libc::mincore(self.bottom().cast(), self.size(), resident.as_mut_ptr().cast()) };
        assert_eq!(result, 0, "mincore: {}", io::Error::last_os_error());
        let untouched = resident.iter().take_while(|page| *page & 1 == 0).count();
        self.size() - untouched * page_size()
    }
}

/// The size in bytes that a request for `requested` bytes gets: whole pages, and not less than [`MIN_SIZE`].
#[inline]
pub(crate) fn rounded(requested: usize) -> io::Result<usize> {
    if requested > MAX_SIZE {
        return Err(too_large(requested));
    }
    Ok(page_end(requested.max(MIN_SIZE)))
}

#[cold]
fn too_large(requested: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "a stack of {requested} bytes was asked for; the largest is {MAX_SIZE} bytes (16 GiB), the default {} KiB",
            DEFAULT_SIZE >> 10
        ),
    )
}

/// The next page boundary, or the address itself if it is one.
#[inline]
fn page_end(address: usize) -> usize {
    let within = page_size() - 1; // a page size is a power of two
    (address + within) & !within
}

/// Gives the memory of all idle stacks back to the kernel, except for those in other threads' caches. Returns how many
/// stacks that were.
pub(crate) fn trim() -> usize {
    Pool::trim_all()
}

/// Brings the thread-locals of all blocks up to date with libraries that were just loaded.
pub(crate) fn update_locals(update: &Update) {
    Pool::update_locals(update);
}

/// Whether somebody has left very many idle stacks to be trimmed.
#[inline]
pub(crate) fn has_surplus() -> bool {
    Pool::has_surplus()
}

/// Gives the memory of some of them back to the kernel.
pub(crate) fn trim_surplus() {
    Pool::trim_surplus();
}

/// The size of a memory page here.
#[inline]
pub(crate) fn page_size() -> usize {
    /// Not asked yet while 0. Threads may ask at the same time; they get the same answer.
    static PAGE_SIZE: AtomicUsize = AtomicUsize::new(0);
    #[cold]
    fn ask() -> usize {
        // SAFETY: sysconf only reads a setting.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let size = usize::try_from(size).expect("the kernel names its page size");
        PAGE_SIZE.store(size, Relaxed);
        size
    }
    match PAGE_SIZE.load(Relaxed) {
        0 => ask(),
        size => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_pages_within_bounds() {
        let page = page_size();
        assert_eq!(rounded(0).unwrap(), MIN_SIZE.next_multiple_of(page));
        assert_eq!(
            rounded((64 << 10) + 1).unwrap(),
            ((64 << 10) + 1_usize).next_multiple_of(page)
        );
        assert_eq!(rounded(MAX_SIZE).unwrap(), MAX_SIZE);
        for absurd in [MAX_SIZE + 1, usize::MAX] {
            let error = rounded(absurd).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("16 GiB"), "{error}");
        }
    }
}
