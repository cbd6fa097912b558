//! The stacks that one thread keeps at hand.
//!
//! Each thread that runs fibers owns one; [`fiber`](crate::fiber) takes stacks from it and puts them back. Only when it is
//! empty or full does it turn to the [`Pool`], in batches. That allocates, and takes the pool's lock: whoever runs here does not wait
//! meanwhile as a fiber does, not for the allocator's locks either. Others on this thread would find the cache borrowed, or block for a lock
//! that only this thread can let go; and some are in the middle of a switch.

use super::pool::{Pool, Taken};
use super::{Stack, rounded};
use crate::context::sanitizer;
use crate::primitives::without_waiting;
use crate::stats::Counters;
use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;

/// How many idle stacks of a size a thread keeps; half of them move when it has too many or none.
const KEPT: usize = 64;

/// A thread's idle stacks.
pub(crate) struct Cache {
    /// The last one that was put, in front of the shelves: making and ending fibers one at a time needs no more.
    front: Cell<Option<Stack>>,
    /// One shelf per size that the thread has used: few, so they are searched in order.
    shelves: RefCell<Vec<Shelf>>,
    /// False for a thread that is ending: nothing would empty its cache, so everything goes straight to the pool.
    keeps: bool,
    /// Whether very many idle stacks are trimmed right when one is put: not where somebody does it when there is time.
    trims: Cell<bool>,
}

/// The idle stacks of one size, the last one put first.
struct Shelf {
    pool: &'static Pool,
    tops: Vec<NonNull<u8>>,
}

impl Cache {
    /// An empty cache, which keeps what is put into it or passes everything on to the pools.
    pub(crate) fn new(keeps: bool) -> Cache {
        Cache {
            front: Cell::new(None),
            shelves: RefCell::new(Vec::new()),
            keeps,
            trims: Cell::new(true),
        }
    }

    /// Says whether very many idle stacks are trimmed right when one is put, or left to [`super::trim_surplus`]. Returns what
    /// was the case.
    pub(crate) fn set_trims(&self, yes: bool) -> bool {
        self.trims.replace(yes)
    }

    /// A stack of at least `requested` bytes, for an isolated fiber or another: the last one put here, else an idle one of another thread's, else a fresh one.
    /// The error says which limit was hit.
    #[inline]
    pub(crate) fn take(&self, requested: usize, isolated: bool, counters: &Counters) -> io::Result<Stack> {
        let stack = match self.front.take() {
            // Most sizes are whole pages, so this saves rounding them.
            Some(stack) if stack.size() == requested && stack.is_isolated() == isolated => {
                counters.stacks_reused.increment();
                stack
            }
            other => {
                self.front.set(other);
                self.take_rounded(rounded(requested)?, isolated, counters)?
            }
        };
        sanitizer::forget_poison(&stack);
        Ok(stack)
    }

    #[inline(never)] // out of the way of the front
    fn take_rounded(&self, size: usize, isolated: bool, counters: &Counters) -> io::Result<Stack> {
        match self.front.take() {
            Some(stack) if stack.size() == size && stack.is_isolated() == isolated => {
                counters.stacks_reused.increment();
                Ok(stack)
            }
            other => {
                self.front.set(other);
                self.take_from_shelf(size, isolated, counters)
            }
        }
    }

    fn take_from_shelf(&self, size: usize, isolated: bool, counters: &Counters) -> io::Result<Stack> {
        let pool = {
            let mut shelves = self.shelves.borrow_mut();
            let fits =
                |shelf: &&mut Shelf| shelf.pool.size() == size && shelf.pool.layout().is_some() == isolated;
            match shelves.iter_mut().find(fits) {
                Some(shelf) => match shelf.tops.pop() {
                    Some(top) => {
                        counters.stacks_reused.increment();
                        let pool = shelf.pool;
                        return Ok(Stack { top, pool });
                    }
                    None => Some(shelf.pool),
                },
                None => None,
            }
        };
        without_waiting(|| {
            let pool = match pool {
                Some(pool) => pool,
                None => self.new_shelf(Pool::of(size, isolated)?),
            };
            self.take_from_pool(pool, counters)
        })
    }

    fn take_from_pool(&self, pool: &'static Pool, counters: &Counters) -> io::Result<Stack> {
        let top = match pool.take(if self.keeps { KEPT / 2 } else { 1 })? {
            Taken::Fresh(top) => {
                counters.stacks_fresh.increment();
                top
            }
            Taken::Idle(mut tops) => {
                counters.stacks_reused.increment();
                let top = tops.pop().expect("a pool that has idle slots gives one");
                for top in tops {
                    self.put_on_shelf(Stack { top, pool });
                }
                top
            }
        };
        Ok(Stack { top, pool })
    }

    /// Makes a place for the stacks of a pool.
    #[cold]
    fn new_shelf(&self, pool: &'static Pool) -> &'static Pool {
        self.shelves.borrow_mut().push(Shelf {
            pool,
            // Room for all it may ever hold, so that putting a stack back does not allocate.
            tops: Vec::with_capacity(KEPT),
        });
        pool
    }

    /// Takes a stack back.
    #[inline]
    pub(crate) fn put(&self, stack: Stack) {
        if self.keeps {
            if let Some(earlier) = self.front.replace(Some(stack)) {
                self.put_on_shelf(earlier);
            }
        } else {
            self.pass_on(stack.pool, &[stack.top]);
        }
    }

    /// Takes a stack back from the code that stands on it and is about to leave it for good. Only this thread can take it out
    /// again, and not before it has left: it stays in front, and only what was there before moves on.
    pub(crate) fn put_when_leaving(&self, stack: Stack) {
        if let Some(earlier) = self.front.replace(Some(stack)) {
            if self.keeps {
                self.put_on_shelf(earlier);
            } else {
                self.pass_on(earlier.pool, &[earlier.top]);
            }
        }
    }

    /// If the shelf is full its older half moves to the pool; if there is none (the cache was flushed), the stack does.
    #[inline(never)]
    fn put_on_shelf(&self, stack: Stack) {
        let Stack { top, pool } = stack;
        let mut shelves = self.shelves.borrow_mut();
        match shelves.iter_mut().find(|shelf| std::ptr::eq(shelf.pool, pool)) {
            Some(shelf) => {
                if shelf.tops.len() == KEPT {
                    let half: [NonNull<u8>; KEPT / 2] = std::array::from_fn(|index| shelf.tops[index]);
                    shelf.tops.drain(..KEPT / 2);
                    shelf.tops.push(top);
                    drop(shelves);
                    self.pass_on(pool, &half);
                } else {
                    shelf.tops.push(top);
                }
            }
            None => {
                drop(shelves);
                self.pass_on(pool, &[top]);
            }
        }
    }

    /// Moves stacks to their pool.
    #[cold]
    fn pass_on(&self, pool: &Pool, tops: &[NonNull<u8>]) {
        without_waiting(|| pool.put_idle(tops, self.trims.get()));
    }

    /// Forgets everything, in a forked child: the pools are the parent's. It frees nothing.
    pub(crate) fn forget(&self) {
        std::mem::forget((self.front.take(), self.shelves.take()));
    }

    /// Moves everything to the pools, where other threads find it and it can be trimmed.
    pub(crate) fn flush(&self) {
        if let Some(stack) = self.front.take() {
            self.pass_on(stack.pool, &[stack.top]);
        }
        for shelf in self.shelves.take() {
            self.pass_on(shelf.pool, &shelf.tops);
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.flush();
    }
}
