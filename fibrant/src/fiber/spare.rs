//! The memory of scheduled fibers that have ended: each thread keeps some of it for the next ones.
//!
//! [`scheduler`](crate::scheduler) takes a fiber's block of memory here, and gives it back when the last reference is gone; this file calls
//! the allocator. A thousand fibers that are spawned, run and joined are more blocks than the C library keeps at hand for a
//! thread, so that `malloc` and `free` were a third of what such a fiber cost.
//!
//! There are no locks: whichever thread gives a block back keeps it. So blocks wander from threads that spawn to threads that join, where
//! those beyond [`KEPT`] go back to the allocator. A worker keeps as many as it had fibers at once, as long as it is busy: to give back a million
//! blocks takes a tenth of what it takes to wake and end their fibers, and the next ones would want them again. When it has nothing to do it
//! gives them back, some at a time, as it does with stacks.

use super::thread::Thread;
use std::alloc::{self, Layout};
use std::array;
use std::cell::Cell;
use std::iter;
use std::ptr::NonNull;

/// The size of the smallest blocks, which is that of a fiber that runs and returns nothing much, and how far the sizes are apart. With what
/// the C library adds, both are multiples of 16: nothing is lost by rounding.
const SMALLEST: usize = 232;
const STEP: usize = 16;

/// How many sizes are kept. Larger blocks are the allocator's.
const SIZES: usize = 16;

/// How every block is aligned, as the C library's are.
const ALIGNMENT: usize = 16;

/// How many blocks a thread keeps in any case, if it has them. None where somebody watches what is used after it was freed.
const KEPT: usize = if cfg!(any(fibrant_asan, feature = "valgrind")) {
    0
} else {
    4096
};

/// How many blocks are given back to the allocator in one go: that takes a fraction of a millisecond.
const BATCH: usize = 4096;

/// The blocks that a thread keeps.
pub(crate) struct Spares {
    /// The block of each size that was given back last.
    last: [Cell<Option<NonNull<Spare>>>; SIZES],
    /// How many there are of all sizes.
    count: Cell<usize>,
    /// How many are kept at most. 0 if none are ever to be.
    most: Cell<usize>,
}

/// A block that nobody uses.
struct Spare {
    /// The one of the same size that was given back before it.
    earlier: Option<NonNull<Spare>>,
}

impl Spares {
    /// None. A thread whose state is never freed keeps none.
    pub(super) fn new(keeps: bool) -> Spares {
        Spares {
            last: array::from_fn(|_| Cell::new(None)),
            count: Cell::new(0),
            most: Cell::new(if keeps { KEPT } else { 0 }),
        }
    }

    /// The thread is a worker, and has so many fibers: their blocks are worth keeping.
    #[inline]
    pub(crate) fn expect(&self, fibers: usize) {
        if fibers > self.most.get() && self.most.get() > 0 {
            self.most.set(fibers);
        }
    }

    /// Whether there are more than are kept in any case.
    #[inline]
    pub(crate) fn has_surplus(&self) -> bool {
        self.count.get() > KEPT
    }

    /// Gives some of those back to the allocator. From now on no more are kept than in any case.
    pub(crate) fn trim(&self) {
        if self.most.get() > KEPT {
            self.most.set(KEPT);
        }
        let surplus = self.count.get().saturating_sub(KEPT).min(BATCH);
        let kept = (0..SIZES).flat_map(|index| iter::from_fn(move || Some((index, self.take(index)?))));
        for (index, spare) in kept.take(surplus) {
            // SAFETY: it was allocated with that layout, and is in no list any more.
            unsafe { alloc::dealloc(spare.as_ptr().cast(), layout_of(index)) };
        }
    }

    #[inline]
    fn take(&self, index: usize) -> Option<NonNull<Spare>> {
        let spare = self.last[index].get()?;
        // SAFETY: it is in the list, so nobody else uses it, and `put` has written it.
        self.last[index].set(unsafe { spare.read() }.earlier);
        self.count.set(self.count.get() - 1);
        Some(spare)
    }

    /// Keeps a block, if there is room. Says whether it does.
    ///
    /// # Safety
    /// It is of that size, and nobody uses it.
    #[inline]
    unsafe fn put(&self, index: usize, block: NonNull<Spare>) -> bool {
        if self.count.get() >= self.most.get() {
            return false;
        }
        let earlier = self.last[index].replace(Some(block));
        // SAFETY: nobody else uses it, and it is large enough.
        unsafe { block.write(Spare { earlier }) };
        self.count.set(self.count.get() + 1);
        true
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        for index in 0..SIZES {
            while let Some(spare) = self.take(index) {
                // SAFETY: it was allocated with that layout, and is in no list any more.
                unsafe { alloc::dealloc(spare.as_ptr().cast(), layout_of(index)) };
            }
        }
    }
}

/// The layout of all blocks of a size.
const fn layout_of(index: usize) -> Layout {
    match Layout::from_size_align(SMALLEST + STEP * index, ALIGNMENT) {
        Ok(layout) => layout,
        Err(_) => panic!("sizes are small"),
    }
}

/// Which size a `T` needs, if it is one that is kept.
const fn index_for<T>() -> Option<usize> {
    let index = size_of::<T>().saturating_sub(SMALLEST).div_ceil(STEP);
    if index < SIZES && align_of::<T>() <= ALIGNMENT {
        Some(index)
    } else {
        None
    }
}

/// The layout of the block that a `T` gets.
const fn layout_for<T>() -> Layout {
    match index_for::<T>() {
        Some(index) => layout_of(index),
        None => Layout::new::<T>(),
    }
}

/// Memory for a `T`, which is not of size zero. Nothing is in it yet.
#[inline]
pub(crate) fn allocate<T>() -> NonNull<T> {
    const { assert!(size_of::<T>() > 0) };
    if let Some(index) = const { index_for::<T>() }
        && let Some(spare) = Thread::if_any(|thread| thread.spares.take(index))
    {
        return spare.cast();
    }
    let layout = const { layout_for::<T>() };
    // SAFETY: the size is not zero.
    let block = unsafe { alloc::alloc(layout) };
    NonNull::new(block.cast()).unwrap_or_else(|| alloc::handle_alloc_error(layout))
}

/// Gives the memory of a `T` back, which is gone from it.
///
/// # Safety
/// It comes from [`allocate`] for the same type, and nobody uses it any more.
#[inline]
pub(crate) unsafe fn free<T>(block: NonNull<T>) {
    if let Some(index) = const { index_for::<T>() } {
        // SAFETY: `allocate` made it with the layout of that size, and nobody uses it, as the caller promises.
        let keep = |thread: &Thread| unsafe { thread.spares.put(index, block.cast()) }.then_some(());
        if Thread::if_any(keep).is_some() {
            return;
        }
    }
    // SAFETY: it was allocated with this layout, whether or not it was kept in between.
    unsafe { alloc::dealloc(block.as_ptr().cast(), const { layout_for::<T>() }) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As large as the smallest, and an odd one in the middle.
    type Small = [u64; SMALLEST / 8];
    type Odd = [u8; SMALLEST + 5 * STEP + 3];
    type Large = [u64; 1000];

    #[test]
    fn the_last_block_of_a_size_is_used_again() {
        Thread::with(|_| ());
        let blocks: Vec<NonNull<Small>> = (0..100).map(|_| allocate()).collect();
        let odd = allocate::<Odd>();
        // SAFETY: they come from above, each once.
        unsafe {
            blocks.iter().for_each(|block| free(*block));
            free(odd);
        }
        let again: Vec<NonNull<Small>> = (0..100).map(|_| allocate()).collect();
        assert!(KEPT == 0 || blocks.iter().rev().eq(&again));
        assert!(KEPT == 0 || allocate::<Odd>() == odd);
        // SAFETY: as above; the odd one is left.
        unsafe { again.iter().for_each(|block| free(*block)) };
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        std::thread::spawn(|| {
            Thread::with(|_| ());
            let small: Vec<NonNull<Small>> = (0..KEPT + 10).map(|_| allocate()).collect();
            let large = allocate::<Large>();
            // SAFETY: they come from above, each once.
            unsafe {
                small.into_iter().for_each(|block| free(block));
                free(large);
            }
            Thread::with(|thread| assert_eq!(thread.spares.count.get(), KEPT));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_busy_worker_keeps_as_many_as_it_had_and_an_idle_one_gives_them_back() {
        let spares = Spares::new(true);
        let layout = layout_of(0);
        let many = KEPT + 2 * BATCH + BATCH / 2;
        spares.expect(many);
        let keep = || {
            // SAFETY: the size is not zero, and what is not kept is freed.
            unsafe {
                let block = NonNull::new(alloc::alloc(layout)).unwrap();
                let is_kept = spares.put(0, block.cast());
                if !is_kept {
                    alloc::dealloc(block.as_ptr(), layout);
                }
                is_kept
            }
        };
        if KEPT == 0 {
            return assert!(!keep());
        }
        let kept = (0..many + 10).filter(|_| keep()).count();
        assert_eq!(kept, many);
        for rest in [2 * BATCH - BATCH / 2, BATCH / 2, 0, 0] {
            assert!(spares.has_surplus() || rest == 0);
            spares.trim();
            assert_eq!(spares.count.get(), KEPT + rest);
        }
        assert!(!keep() && !spares.has_surplus());
    }

    #[test]
    fn a_thread_without_a_state_keeps_nothing() {
        std::thread::spawn(|| {
            let block = allocate::<Small>();
            // SAFETY: it comes from above.
            unsafe { free(block) };
            assert!(Thread::if_any(|_| Some(())).is_none());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(index_for::<u8>(), Some(0));
        assert_eq!(index_for::<Small>(), Some(0));
        assert_eq!(index_for::<[u8; SMALLEST + 1]>(), Some(1));
        assert_eq!(
            index_for::<[u8; SMALLEST + STEP * (SIZES - 1)]>(),
            Some(SIZES - 1)
        );
        assert_eq!(index_for::<[u8; SMALLEST + STEP * (SIZES - 1) + 1]>(), None);
        assert!(layout_for::<Odd>().size() >= size_of::<Odd>());
        #[repr(align(32))]
        struct Aligned(#[allow(dead_code)] [u8; 32]);
        assert_eq!(index_for::<Aligned>(), None);
    }
}
