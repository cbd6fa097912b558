//! The stacks that one thread keeps at hand.
//!
//! Each thread that runs fibers owns one; [`fiber`](crate::fiber) takes stacks from it and puts them back. Only when it is
//! empty or full does it turn to the [`Pool`], in batches. While it does, its own cell is not borrowed: waiting for the
//! pool's lock must not leave the cache unusable to whatever runs meanwhile.

use super::pool::Pool;
use super::{Stack, rounded};
use crate::context::sanitizer;
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
}

/// The idle stacks of one size, the last one put first.
struct Shelf {
    pool: &'static Pool,
    tops: Vec<NonNull<u8>>,
}

impl Shelf {
    /// An empty one with room for all it may ever hold, so that putting a stack back seldom allocates.
    fn new(pool: &'static Pool) -> Shelf {
        Shelf {
            pool,
            tops: Vec::with_capacity(KEPT),
        }
    }
}

impl Cache {
    /// An empty cache, which keeps what is put into it or passes everything on to the pools.
    pub(crate) fn new(keeps: bool) -> Cache {
        Cache {
            front: Cell::new(None),
            shelves: RefCell::new(Vec::new()),
            keeps,
        }
    }

    /// A stack of at least `requested` bytes: the last one put here, else an idle one of another thread's, else a fresh one.
    /// The error says which limit was hit.
    #[inline]
    pub(crate) fn take(&self, requested: usize, counters: &Counters) -> io::Result<Stack> {
        let size = rounded(requested)?;
        let stack = match self.front.take() {
            Some(stack) if stack.size() == size => {
                counters.stacks_reused.increment();
                stack
            }
            other => {
                self.front.set(other);
                self.take_from_shelf(size, counters)?
            }
        };
        sanitizer::forget_poison(&stack);
        Ok(stack)
    }

    #[inline(never)] // out of the way of the front
    fn take_from_shelf(&self, size: usize, counters: &Counters) -> io::Result<Stack> {
        let at_hand = {
            let mut shelves = self.shelves.borrow_mut();
            shelves
                .iter_mut()
                .find(|shelf| shelf.pool.size() == size)
                .and_then(|shelf| {
                    let top = shelf.tops.pop()?;
                    let pool = shelf.pool;
                    Some(Stack { top, pool })
                })
        };
        match at_hand {
            Some(stack) => {
                counters.stacks_reused.increment();
                Ok(stack)
            }
            None => self.take_from_pool(size, counters),
        }
    }

    #[cold]
    fn take_from_pool(&self, size: usize, counters: &Counters) -> io::Result<Stack> {
        let pool = Pool::of_size(size);
        let mut idle = pool.take_idle(if self.keeps { KEPT / 2 } else { 1 });
        let top = match idle.pop() {
            Some(top) => {
                counters.stacks_reused.increment();
                top
            }
            None => {
                let top = pool.fresh()?;
                counters.stacks_fresh.increment();
                top
            }
        };
        for top in idle {
            self.put_on_shelf(Stack { top, pool });
        }
        Ok(Stack { top, pool })
    }

    /// Takes a stack back.
    #[inline]
    pub(crate) fn put(&self, stack: Stack) {
        if self.keeps {
            if let Some(earlier) = self.front.replace(Some(stack)) {
                self.put_on_shelf(earlier);
            }
        } else {
            stack.pool.put_idle(&[stack.top]);
        }
    }

    /// If the shelf is full its older half moves to the pool.
    #[inline(never)]
    fn put_on_shelf(&self, stack: Stack) {
        let Stack { top, pool } = stack;
        let mut moving = Vec::new();
        {
            let mut shelves = self.shelves.borrow_mut();
            let shelf = match shelves.iter().position(|shelf| shelf.pool.size() == pool.size()) {
                Some(index) => &mut shelves[index],
                None => {
                    shelves.push(Shelf::new(pool));
                    shelves.last_mut().expect("it has just been pushed")
                }
            };
            if shelf.tops.len() == KEPT {
                moving.extend(shelf.tops.drain(..KEPT / 2));
            }
            shelf.tops.push(top);
        }
        if !moving.is_empty() {
            pool.put_idle(&moving);
        }
    }

    /// Moves everything to the pools, where other threads find it and it can be trimmed.
    pub(crate) fn flush(&self) {
        if let Some(stack) = self.front.take() {
            stack.pool.put_idle(&[stack.top]);
        }
        let shelves = std::mem::take(&mut *self.shelves.borrow_mut());
        for shelf in shelves {
            shelf.pool.put_idle(&shelf.tops);
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.flush();
    }
}
