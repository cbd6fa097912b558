//! Runtimes: workers, and the fibers that they run.
//!
//! Most programs need none of this: [`run`](crate::run) makes a runtime, and [`spawn`](crate::spawn) finds it. Make your own
//! with a [`Builder`] to choose the number of workers, to have several, or to stop one and look at what was left.
//!
//! ```
//! use fibrant::runtime::Builder;
//!
//! let runtime = Builder::new().workers(2).name("squares").build().unwrap();
//! let squares = runtime.spawn_all((0..10).map(|n| move || n * n));
//! let sum: u32 = squares.into_iter().map(|square| square.join().unwrap()).sum();
//! assert_eq!(sum, 285);
//! runtime.stop().unwrap();
//! ```

// Inside: `builder` makes a runtime; `routine` has event loops for C's coroutines; `stop` ends one; `spawn` has the functions that mirror std::thread; `scope` has scopes. This
// is the only module that wires the others: it gives workers their reactors.

mod builder;
#[doc(hidden)]
pub mod routine;
pub(crate) mod scope;
pub(crate) mod spawn;
mod stop;

pub use crate::scheduler::{Dump, FiberDump, FiberState, WorkerDump};
pub use builder::Builder;
pub use stop::Report;

use spawn::Builder as FiberBuilder;

use crate::hook;
use crate::io::Reactor;
use crate::scheduler::{Caller, Crew, Desk, JoinHandle, Worker};
use crate::stats::{HookStats, Stats};
use crate::sys::PerProcess;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

/// Workers, and the fibers that they run. Dropping it shuts it down at once: see [`shutdown`](Runtime::shutdown).
///
/// What it can do besides running and ending is in its [`Handle`], to which it dereferences.
///
/// ```
/// use fibrant::runtime::Builder;
///
/// let runtime = Builder::new().workers(1).build().unwrap();
/// assert_eq!(runtime.spawn(|| 1 + 1).join().unwrap(), 2);
/// ```
pub struct Runtime {
    handle: Handle,
    /// Worker 0, if it is a thread of the user's.
    caller: Option<Arc<Caller>>,
    /// The threads of the other workers, until they have been joined.
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// A runtime, for those who want to use it from elsewhere: cheap to clone, and does not keep it from being stopped.
///
/// ```
/// use fibrant::runtime::Runtime;
///
/// fibrant::run(|| {
///     let handle = Runtime::current().unwrap();
///     let from_a_thread = std::thread::spawn(move || handle.spawn(|| "hello").join().unwrap());
///     fibrant::spawn_blocking(|| assert_eq!(from_a_thread.join().unwrap(), "hello")).join().unwrap();
/// });
/// ```
#[derive(Clone)]
pub struct Handle {
    crew: Arc<Crew>,
}

impl Runtime {
    /// The runtime whose fiber calls this; `None` elsewhere.
    ///
    /// ```
    /// use fibrant::runtime::Runtime;
    ///
    /// assert!(Runtime::current().is_none());
    /// fibrant::run(|| assert!(Runtime::current().is_some()));
    /// ```
    pub fn current() -> Option<Handle> {
        let crew = Arc::clone(&Worker::current()?.crew);
        Some(Handle { crew })
    }

    /// Runs `f` on the calling thread, as a fiber of this runtime, and returns what it returns. The thread is a worker
    /// meanwhile: what `f` waits for, its other fibers use. `f` need be neither `Send` nor `'static`.
    ///
    /// If the runtime was built with [`use_caller`](Builder::use_caller), the thread becomes its worker 0, for good: others
    /// must not call this any more. This returns when the fibers that have started on that worker have ended. Otherwise the thread is
    /// a guest: it only runs `f`, and the fibers that are bound to it, and this returns when those have ended.
    ///
    /// # Panics
    ///
    /// On a thread that is a worker already; if worker 0 belongs to another thread; if the runtime has been stopped; with the
    /// panic of `f`; and if another thread shuts the runtime down while `f` waits, which is cancelled then like every other fiber.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    ///
    /// let runtime = Builder::new().workers(2).use_caller(true).build().unwrap();
    /// let mut local = vec![1, 2, 3];
    /// runtime.run(|| local.push(fibrant::spawn(|| 4).join().unwrap()));
    /// assert_eq!(local, [1, 2, 3, 4]);
    /// ```
    #[track_caller]
    pub fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        refuse_nested();
        let arrival = self.handle.crew.admit().unwrap_or_else(|error| panic!("{error}"));
        /// The closure is work that a stop waits for.
        struct Running<'a>(&'a Crew);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.note_ended_outside();
            }
        }
        let running = Running(&self.handle.crew);
        let f = move || {
            drop(arrival);
            f()
        };
        match &self.caller {
            Some(caller) => {
                assert!(
                    caller.claim(),
                    "worker 0 of the runtime '{}' belongs to the thread that first ran it: run it there, or build it without \
                     use_caller",
                    self.handle.crew.name
                );
                let result = caller.enter(f);
                drop(running);
                caller.drive(crate::clock::NEVER, |_| caller.started() > 0);
                result
            }
            None => self.run_as_guest(f),
        }
    }

    #[track_caller]
    fn run_as_guest<T>(&self, f: impl FnOnce() -> T) -> T {
        let desk = Desk::take().unwrap_or_else(|error| panic!("{error}"));
        let reactor = Reactor::new(desk).unwrap_or_else(|error| panic!("{error}"));
        let guest = Guest {
            caller: Some(Caller::new(Worker::guest(
                Arc::clone(&self.handle.crew),
                desk,
                Box::new(reactor),
            ))),
            crew: &self.handle.crew,
            desk,
        };
        guest.crew.note_guest(desk);
        let caller = guest.caller.as_ref().expect("it leaves when it is dropped");
        // Its fibers end before it leaves, whether or not it panics: nobody else runs them.
        let result = caller.try_enter(f);
        caller.drive(crate::clock::NEVER, |_| caller.has_fibers());
        match result {
            Ok(value) => value,
            Err(ended) => ended.pass_on(self.name()),
        }
    }

    /// A handle to this runtime.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    ///
    /// let runtime = Builder::new().workers(1).build().unwrap();
    /// let handle = runtime.handle();
    /// assert_eq!(std::thread::spawn(move || handle.spawn(|| 5).join().unwrap()).join().unwrap(), 5);
    /// ```
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

/// A thread that is a worker for a while. Leaves when it is dropped, also by a panic.
struct Guest<'a> {
    caller: Option<Arc<Caller>>,
    crew: &'a Crew,
    desk: &'static Desk,
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take() {
            caller.abandon_rest();
        }
        self.crew.note_guest_left(self.desk);
        self.desk.give_back();
    }
}

/// Panics if the calling thread is a worker.
#[track_caller]
fn refuse_nested() {
    assert!(
        Worker::here().is_none(),
        "a runtime cannot be run inside another: this thread is a worker already, and what runs here is a fiber; spawn one \
         instead, or use Handle::run_on to reach another runtime"
    );
}

/// The runtime of those who have none: made at its first use, with as many workers as there are cores, and never ended.
static GLOBAL: PerProcess<OnceLock<Runtime>> = PerProcess::new(OnceLock::new);

fn global() -> &'static Runtime {
    GLOBAL.get().get_or_init(|| {
        let runtime = Builder::new().name("fibrant-global").build();
        runtime.unwrap_or_else(|error| panic!("the global runtime could not be started: {error}"))
    })
}

impl Handle {
    /// The runtime that the calling fiber belongs to, or the global one.
    fn current_or_global() -> Handle {
        Runtime::current().unwrap_or_else(|| global().handle())
    }

    /// The same, with an error if the global one cannot be started.
    #[cfg(feature = "c-api")]
    #[doc(hidden)]
    pub fn try_current_or_global() -> io::Result<Handle> {
        if let Some(handle) = Runtime::current() {
            return Ok(handle);
        }
        let global = GLOBAL.get();
        if global.get().is_none() {
            // If somebody else is faster, this one ends at once.
            let _ = global.set(Builder::new().name("fibrant-global").build()?);
        }
        Ok(self::global().handle())
    }

    /// Spawns a fiber: see [`spawn`](crate::spawn).
    ///
    /// # Panics
    ///
    /// If the runtime has been stopped, unless a fiber of its own calls this.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    ///
    /// let runtime = Builder::new().workers(1).build().unwrap();
    /// runtime.spawn(|| println!("hello")).join().unwrap();
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(&self, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let spawned = FiberBuilder::new().spawn_in(self, Location::caller(), f);
        spawned.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Spawns a fiber that runs on this worker.
    ///
    /// # Panics
    ///
    /// If there is no such worker, or the runtime has been stopped.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    ///
    /// let runtime = Builder::new().workers(2).build().unwrap();
    /// let thread = || std::fs::read_link("/proc/thread-self").unwrap(); // as the kernel sees it
    /// let threads = [0, 1].map(|worker| runtime.spawn_on(worker, thread).join().unwrap());
    /// assert_ne!(threads[0], threads[1]);
    /// ```
    #[track_caller]
    pub fn spawn_on<F, T>(&self, worker: usize, f: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let spawned = FiberBuilder::new()
            .worker(worker)
            .spawn_in(self, Location::caller(), f);
        spawned.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Spawns many fibers at once, with one look for a worker to wake.
    ///
    /// # Panics
    ///
    /// If the runtime has been stopped, unless a fiber of its own calls this.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    ///
    /// let runtime = Builder::new().workers(1).build().unwrap();
    /// let fibers = runtime.spawn_all((1..=3).map(|n| move || n));
    /// assert_eq!(fibers.into_iter().map(|fiber| fiber.join().unwrap()).sum::<i32>(), 6);
    /// ```
    #[track_caller]
    pub fn spawn_all<F, T>(&self, functions: impl IntoIterator<Item = F>) -> Vec<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        spawn::spawn_all(self, Location::caller(), functions).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs `f` as a fiber on this worker, waits for it, and returns what it returns. Works from fibers of this and of other
    /// runtimes, and from plain threads. The wait cannot be cancelled, so `f` may borrow; if the runtime is shut down and the fiber is
    /// abandoned, it never ends.
    ///
    /// # Panics
    ///
    /// If there is no such worker, or the runtime has been stopped; and with the panic of `f`.
    ///
    /// ```
    /// use fibrant::runtime::Builder;
    ///
    /// let other = Builder::new().workers(1).name("other").build().unwrap();
    /// fibrant::run(|| {
    ///     let thread = || std::fs::read_link("/proc/thread-self").unwrap(); // as the kernel sees it
    ///     let here = thread();
    ///     let there = other.run_on(0, thread);
    ///     assert_ne!(here, there);
    ///     assert_eq!(here, thread()); // back again
    /// });
    /// ```
    #[track_caller]
    pub fn run_on<F, T>(&self, worker: usize, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        spawn::run_in(self, worker, Location::caller(), f)
    }

    /// How many workers it has.
    ///
    /// ```
    /// assert_eq!(fibrant::runtime::Builder::new().workers(3).build().unwrap().workers(), 3);
    /// ```
    pub fn workers(&self) -> usize {
        self.crew.desks.len()
    }

    /// Its name.
    ///
    /// ```
    /// assert_eq!(fibrant::runtime::Builder::new().name("web").build().unwrap().name(), "web");
    /// ```
    pub fn name(&self) -> &str {
        &self.crew.name
    }

    /// What its workers and fibers are doing. May be called from any thread, whatever the workers do.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
    /// println!("{}", runtime.dump());
    /// ```
    pub fn dump(&self) -> Dump {
        let mut dump = Dump::of(&self.crew);
        dump.hooks = self.hook_stats();
        dump
    }

    /// What its workers have counted of the hooks: one entry for each function that a fiber has called.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
    /// runtime.spawn(std::thread::yield_now).join().unwrap();
    /// let stats = runtime.hook_stats();
    /// assert!(stats.iter().any(|one| one.name == "sched_yield" && one.calls == 1));
    /// ```
    pub fn hook_stats(&self) -> Vec<HookStats> {
        hook::stats_of(&self.crew)
    }

    /// What its workers have counted. The thread of a caller's worker brings along what it counted elsewhere.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().workers(1).build().unwrap();
    /// runtime.spawn(fibrant::yield_now).join().unwrap();
    /// assert_eq!(runtime.stats().fibers_ended, 1);
    /// ```
    pub fn stats(&self) -> Stats {
        self.crew.stats()
    }

    /// Whether the calling thread is one of its workers.
    fn is_inside(&self) -> bool {
        Worker::current().is_some_and(|worker| Arc::ptr_eq(&worker.crew, &self.crew))
    }
}

impl Deref for Runtime {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("name", &self.name())
            .field("workers", &self.workers())
            .finish_non_exhaustive()
    }
}

/// The error for a worker that does not exist.
fn no_such_worker(worker: usize, crew: &Crew) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "the runtime '{}' has no worker {worker}: it has {}, counted from 0",
            crew.name,
            crew.desks.len()
        ),
    )
}
