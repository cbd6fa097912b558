//! Counters: what happened, per thread and in the whole process.
//!
//! Each thread counts for itself; what an ended thread counted stays in the process's total.
//!
//! ```
//! use fibrant::fiber::Fiber;
//!
//! let before = fibrant::stats::current_thread();
//! let fiber = Fiber::new(|| {});
//! fiber.resume().unwrap();
//! let after = fibrant::stats::current_thread();
//! assert_eq!(after.fibers_created - before.fibers_created, 1);
//! assert_eq!(after.switches - before.switches, 2); // there and back
//! ```

// A leaf: everyone may write here, it calls nothing of ours. Each thread that uses fibers has its own `Counters`, which only
// that thread writes and anyone may read; a counter is one plain addition, no locked instruction.

mod counter;

pub(crate) use counter::Counter;

use crate::sys::PerProcess;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Makes, from one list, the counters that are written, the figures that are read, and the ways between them.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What one thread counts. Only that thread writes.
        #[derive(Default)]
        pub(crate) struct Counters {
            $($(#[doc = $doc])+ pub(crate) $name: Counter,)+
            /// What is counted of each hook, by its number.
            pub(crate) hooks: Hooks,
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.get(),)+ }
            }
        }

        /// Figures read off the counters at one moment, by [`current_thread`] or [`process`].
        ///
        /// ```
        /// let stats = fibrant::stats::process();
        /// println!("{} switches, {} stacks used again", stats.switches, stats.stacks_reused);
        /// assert!(stats.fibers_ended <= stats.fibers_created);
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Stats {
            const ZERO: Stats = Stats { $($name: 0,)+ };

            fn add(&mut self, other: Stats) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Switches from one stack to another. Resuming a fiber until it suspends makes two, counted when it has.
    switches,
    /// Fibers made, counting a reset of an ended one.
    fibers_created,
    /// Fibers that ended: returned, panicked, were unwound, or were dropped before they started.
    fibers_ended,
    /// Fibers that were dropped while suspended and could not be unwound. Their stacks are lost.
    fibers_abandoned,
    /// Stacks that were used for the first time.
    stacks_fresh,
    /// Stacks that were used again.
    stacks_reused,
    /// Waits in [`fiber::park`](crate::fiber::park).
    parks,
    /// Waits in [`sleep`](crate::sleep).
    sleeps,
    /// Waits for another fiber to end.
    joins,
    /// Waits for the fibers of a scope.
    scopes,
    /// Waits for a descriptor.
    descriptor_waits,
    /// Waits for a lock, or for a number in memory to change.
    lock_waits,
}

/// How many hooks there are at most.
pub(crate) const HOOKS: usize = 128;

/// The counters of all hooks.
pub(crate) struct Hooks(Box<[HookCounters; HOOKS]>);

/// What is counted of a hook: calls made by fibers, how often one would have blocked, waits, and calls made on real threads.
#[derive(Default)]
pub(crate) struct HookCounters {
    pub(crate) calls: Counter,
    pub(crate) would_block: Counter,
    pub(crate) parks: Counter,
    pub(crate) offloads: Counter,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks(Box::new(std::array::from_fn(|_| HookCounters::default())))
    }
}

impl Deref for Hooks {
    type Target = [HookCounters; HOOKS];

    fn deref(&self) -> &[HookCounters; HOOKS] {
        &self.0
    }
}

/// What was counted of each hook, by its number: calls, how often one would have blocked, waits, calls made on real threads. On the
/// heap: whoever asks may be a fiber with a small stack.
#[derive(Default)]
pub(crate) struct HookFigures(Vec<[u64; 4]>);

impl HookFigures {
    /// Adds what a thread has counted.
    pub(crate) fn add(&mut self, hooks: &Hooks) {
        self.0.resize(HOOKS, [0; 4]);
        for (sum, counters) in self.0.iter_mut().zip(hooks.iter()) {
            sum[0] += counters.calls.get();
            sum[1] += counters.would_block.get();
            sum[2] += counters.parks.get();
            sum[3] += counters.offloads.get();
        }
    }

    /// Those of hooks that were called, with these names.
    pub(crate) fn named(&self, names: &[&'static str]) -> Vec<HookStats> {
        let called = names.iter().zip(&self.0).filter(|(_, figures)| figures[0] > 0);
        called
            .map(|(&name, &[calls, would_block, parks, offloads])| HookStats {
                name,
                calls,
                would_block,
                parks,
                offloads,
            })
            .collect()
    }
}

/// What was counted of a hooked function, as it was called in fibers: [`hook::stats`](crate::hook::stats) and
/// [`Handle::hook_stats`](crate::runtime::Handle::hook_stats).
///
/// ```
/// use std::time::Duration;
///
/// fibrant::run(|| std::thread::sleep(Duration::from_millis(1)));
/// let stats = fibrant::hook::stats();
/// let sleeps = stats.iter().find(|one| one.name == "clock_nanosleep").unwrap();
/// assert!(sleeps.calls >= 1 && sleeps.parks >= 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookStats {
    /// The function.
    pub name: &'static str,
    /// How often fibers called it.
    pub calls: u64,
    /// How often it would have blocked.
    pub would_block: u64,
    /// How often a fiber waited in it; several times in one call, perhaps.
    pub parks: u64,
    /// How often it was called on a real thread while the fiber waited.
    pub offloads: u64,
}

impl Counters {
    /// The counter of a kind of wait, by the number of its reason.
    #[inline]
    pub(crate) fn park(&self, kind: u8) -> &Counter {
        match kind {
            2 => &self.sleeps,
            3 => &self.joins,
            4 => &self.scopes,
            5 => &self.descriptor_waits,
            6 | 7 => &self.lock_waits,
            _ => &self.parks,
        }
    }
}

impl Stats {
    /// All of these together.
    pub(crate) fn sum(all: impl Iterator<Item = Stats>) -> Stats {
        all.fold(Stats::ZERO, |mut sum, one| {
            sum.add(one);
            sum
        })
    }
}

/// All counters there are.
#[derive(Default)]
struct Registry {
    /// Those of threads that live.
    threads: Vec<Arc<Counters>>,
    /// The sum of those of threads that have ended.
    ended: Stats,
    ended_hooks: HookFigures,
}

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new(Mutex::default);

fn registry() -> MutexGuard<'static, Registry> {
    // Nothing panics halfway through a change, so a poisoned registry is still right.
    REGISTRY.get().lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// This thread's counters, for those who ask; null while it has none.
    static OWN: Cell<*const Counters> = const { Cell::new(ptr::null()) };
}

/// A thread's counters, part of the process's total while this lives; what they counted stays in it afterwards.
pub(crate) struct ThreadCounters {
    counters: Arc<Counters>,
    /// Neither Send nor Sync: counters have one writer.
    _own: PhantomData<*const ()>,
}

impl ThreadCounters {
    /// Counters for this thread.
    pub(crate) fn register() -> ThreadCounters {
        let counters = Arc::new(Counters::default());
        OWN.set(&raw const *counters);
        registry().threads.push(Arc::clone(&counters));
        ThreadCounters {
            counters,
            _own: PhantomData,
        }
    }

    /// Makes them those of the block of thread-locals that the caller runs with.
    #[inline]
    pub(crate) fn adopt(&self) {
        OWN.set(&raw const *self.counters);
    }

    /// The same counters, for a reader.
    pub(crate) fn share(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

impl Deref for ThreadCounters {
    type Target = Counters;

    #[inline(always)]
    fn deref(&self) -> &Counters {
        &self.counters
    }
}

impl Drop for ThreadCounters {
    fn drop(&mut self) {
        OWN.set(ptr::null());
        let mut registry = registry();
        registry
            .threads
            .retain(|other| !Arc::ptr_eq(other, &self.counters));
        registry.ended.add(self.counters.read());
        registry.ended_hooks.add(&self.counters.hooks);
    }
}

/// What this thread has counted so far.
///
/// ```
/// use fibrant::{fiber::Fiber, stats};
///
/// Fiber::new(|| {}).resume().unwrap();
/// assert!(stats::current_thread().switches >= 2);
/// std::thread::spawn(|| assert_eq!(stats::current_thread().switches, 0)).join().unwrap();
/// ```
pub fn current_thread() -> Stats {
    // SAFETY: the pointer is null or that of counters which this thread registered and still holds (or has leaked): the
    // drop that frees them clears it, on this thread, as neither they nor the pointer can change threads.
    unsafe { OWN.get().as_ref() }.map_or_else(Stats::default, Counters::read)
}

/// What all threads have counted so far, those that have ended included. Other threads go on counting meanwhile, so the
/// figures are of about the same moment, not of exactly one.
///
/// ```
/// use fibrant::{fiber::Fiber, stats};
///
/// std::thread::spawn(|| Fiber::new(|| {}).resume().unwrap()).join().unwrap();
/// assert!(stats::process().fibers_ended >= 1);
/// ```
pub fn process() -> Stats {
    let registry = registry();
    let mut total = registry.ended;
    for counters in &registry.threads {
        total.add(counters.read());
    }
    total
}

/// What all threads have counted of the hooks, by their numbers.
pub(crate) fn hook_figures() -> HookFigures {
    let registry = registry();
    let mut sum = HookFigures(registry.ended_hooks.0.clone());
    for counters in &registry.threads {
        sum.add(&counters.hooks);
    }
    sum
}
