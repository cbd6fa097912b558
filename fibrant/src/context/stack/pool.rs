//! The pool of one stack size, shared by all threads.
//!
//! [`Cache`](super::Cache) calls it in batches. A slot that is not in use is in one of three states:
//!
//! - *warm*: its memory is still committed from its last use. Handed out first, the last one put back first.
//! - *cold*: its memory has been given back to the kernel, its guard is in place. Handed out when none is warm.
//! - *fresh*: never used. Cut from the newest [`Region`] when nothing idle is left; its guard is installed then.
//!
//! Warm slots become cold in bulk only: when more than [`WARM_LIMIT`] have gathered, the [`TRIM_BATCH`] oldest are trimmed
//! together, and [`Pool::trim_all`] does it on request. One slot at a time would cost ten times as much. A worker leaves it until
//! it is idle: it interrupts the other processors, which a burst of fibers that end cannot afford (7 us a stack were seen).

use super::region::{Region, trim_runs};
use crate::context::tls::{self, Layout, Update};
use crate::sys::{self, PerProcess};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many idle slots may stay committed: 64 MiB if each has touched one page.
const WARM_LIMIT: usize = 16_384;

/// How many are trimmed together: some 200 us of work, a pause that nobody sees.
const TRIM_BATCH: usize = 1_024;

/// All slots of one size.
pub(super) struct Pool {
    /// The size of each stack, whole pages.
    size: usize,
    /// How the blocks for thread-locals at their tops are laid out, if they have such.
    layout: Option<&'static Layout>,
    /// The process that it was made in: one that is forked from it has pools of its own.
    process: u32,
    slots: Mutex<Slots>,
}

/// The slots that no thread has, by the tops of their stacks.
#[derive(Default)]
struct Slots {
    warm: Vec<Top>,
    cold: Vec<Top>,
    /// Cut from their region, but the kernel refused the guard: the next who wants a fresh slot tries again.
    unguarded: Vec<Top>,
    /// The regions, each larger than the last; fresh slots are cut from the last one.
    regions: Vec<Region>,
}

/// The top of a slot's stack.
#[derive(Clone, Copy)]
struct Top(NonNull<u8>);

// SAFETY: an idle slot is plain memory that nobody uses; whoever takes its top out of the pool, on whatever thread, is its
// only user.
unsafe impl Send for Top {}

/// What a pool gives.
pub(super) enum Taken {
    /// Slots that were used before.
    Idle(Vec<NonNull<u8>>),
    /// A slot that was never used, with its guard in place.
    Fresh(NonNull<u8>),
}

impl Slots {
    /// A slot that was never used, without its guard.
    fn cut(&mut self, size: usize, isolated: bool) -> io::Result<Top> {
        if let Some(top) = self.unguarded.pop() {
            return Ok(top);
        }
        if let Some(top) = self.regions.last_mut().and_then(Region::cut) {
            return Ok(Top(top));
        }
        if isolated && !tls::has_room_for_region() {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "fibers have stacks of too many different sizes: no more of them can be noted; use few sizes",
            ));
        }
        let mut region = Region::reserve(size, self.regions.len() as u32)?;
        if isolated {
            tls::note_region(region.addresses());
        }
        let top = region.cut().expect("a new region has a slot");
        self.regions.push(region);
        Ok(Top(top))
    }
}

impl Pool {
    /// The pool for stacks of `size` bytes, with a block for thread-locals or without, made when the first one is asked for. There
    /// are as many as the program uses different sizes, and they are never freed.
    pub(super) fn of(size: usize, isolated: bool) -> io::Result<&'static Pool> {
        let layout = match isolated.then(tls::layout).transpose() {
            Ok(layout) => layout,
            Err(reason) => return Err(io::Error::new(io::ErrorKind::Unsupported, reason.to_string())),
        };
        if layout.is_some_and(|layout| layout.size() + super::MIN_SIZE / 2 > size) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "the program's thread-locals do not fit on a stack of {size} bytes: ask for a larger one"
                ),
            ));
        }
        let mut pools = lock(POOLS.get());
        let has_kind = |pool: &&&Pool| pool.size == size && pool.layout.is_some() == isolated;
        if let Some(pool) = pools.iter().find(has_kind) {
            return Ok(pool);
        }
        let pool: &'static Pool = Box::leak(Box::new(Pool {
            size,
            layout,
            process: sys::process(),
            slots: Mutex::default(),
        }));
        pools.push(pool);
        Ok(pool)
    }

    /// How the blocks for thread-locals are laid out, if its stacks have such.
    #[inline]
    pub(super) fn layout(&self) -> Option<&'static Layout> {
        self.layout
    }

    /// Brings the thread-locals of all blocks up to date.
    pub(super) fn update_locals(update: &Update) {
        let pools = lock(POOLS.get()).clone();
        for pool in pools {
            let Some(layout) = pool.layout else { continue };
            for top in lock(&pool.slots).regions.iter().flat_map(Region::tops) {
                // SAFETY: there is a block, or memory that reads as zero or will be overwritten by the next one to begin. The
                // library has just been loaded, so nobody has used it yet.
                unsafe { update.apply(layout.thread_pointer(top.as_ptr())) };
            }
        }
    }

    /// The size of its stacks.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Up to `most` idle slots, the last of them being the one to use first; if there is none, a fresh one. The error says
    /// which limit was hit.
    pub(super) fn take(&self, most: usize) -> io::Result<Taken> {
        let mut slots = lock(&self.slots);
        let list = if slots.warm.is_empty() {
            &mut slots.cold
        } else {
            &mut slots.warm
        };
        if !list.is_empty() {
            let rest = list.len().saturating_sub(most);
            return Ok(Taken::Idle(list.drain(rest..).map(|top| top.0).collect()));
        }
        let top = slots.cut(self.size, self.layout.is_some())?;
        // The guard is a system call of half a microsecond: not under the lock.
        drop(slots);
        match super::region::equip(top.0, self.size) {
            Ok(()) => Ok(Taken::Fresh(top.0)),
            Err(error) => {
                lock(&self.slots).unguarded.push(top);
                Err(error)
            }
        }
    }

    /// Takes slots back, the last of them being the one to use first. If `trims` is set and very many are warm by now, the
    /// oldest are trimmed; otherwise that is left to [`Pool::trim_surplus`].
    pub(super) fn put_idle(&self, tops: &[NonNull<u8>], trims: bool) {
        if self.process != sys::process() {
            return; // the parent's; another thread may have had the lock when this process was forked
        }
        let oldest: Vec<Top> = {
            let mut slots = lock(&self.slots);
            slots.warm.extend(tops.iter().copied().map(Top));
            if slots.warm.len() <= WARM_LIMIT {
                return;
            }
            if !trims {
                SURPLUS.store(true, Relaxed);
                return;
            }
            slots.warm.drain(..TRIM_BATCH).collect()
        };
        self.trim(oldest);
    }

    /// Whether somebody has left very many warm slots to be trimmed.
    pub(super) fn has_surplus() -> bool {
        SURPLUS.load(Relaxed)
    }

    /// Trims one batch of the slots that are too many.
    pub(super) fn trim_surplus() {
        let pools = lock(POOLS.get()).clone();
        for pool in pools {
            let oldest: Vec<Top> = {
                let mut slots = lock(&pool.slots);
                if slots.warm.len() <= WARM_LIMIT {
                    continue;
                }
                slots.warm.drain(..TRIM_BATCH).collect()
            };
            pool.trim(oldest);
            return;
        }
        SURPLUS.store(false, Relaxed);
    }

    /// Trims the warm slots of all pools. Returns how many they were.
    pub(super) fn trim_all() -> usize {
        let pools = lock(POOLS.get()).clone();
        let trim_pool = |pool: &&'static Pool| {
            let warm = std::mem::take(&mut lock(&pool.slots).warm); // the lock ends here: trimming takes it again
            pool.trim(warm)
        };
        pools.iter().map(trim_pool).sum()
    }

    /// Gives the memory of these slots, which nobody has now, back to the kernel; they are cold then.
    fn trim(&self, mut tops: Vec<Top>) -> usize {
        if let Some(layout) = self.layout {
            for top in &tops {
                // SAFETY: nobody has the slot, so nobody runs with its block.
                unsafe { layout.release(layout.thread_pointer(top.0.as_ptr())) };
            }
        }
        // Neighbours are trimmed by one call, and are later handed out in the order of their addresses.
        tops.sort_unstable_by_key(|top| std::cmp::Reverse(top.0));
        trim_runs(tops.iter().rev().map(|top| top.0), self.size);
        lock(&self.slots).cold.extend_from_slice(&tops);
        tops.len()
    }
}

/// Whether there may be warm slots to trim in some pool.
static SURPLUS: AtomicBool = AtomicBool::new(false);

static POOLS: PerProcess<Mutex<Vec<&'static Pool>>> = PerProcess::new(Mutex::default);

/// Nothing here panics halfway through a change, so a poisoned lock still guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
