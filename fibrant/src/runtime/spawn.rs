//! Spawning: the functions that mirror `std::thread`.

use super::{Handle, no_such_worker, refuse_nested};
use crate::fiber::{Fiber, State, TaskRef, Thread};
use crate::scheduler::{
    Crew, Group, JoinHandle, Locals, Making, Phase, Scheduled, ScopeData, Worker, defer_cancel, submit,
    yield_now,
};
use std::io;
use std::panic::{self, Location};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Runs `f` on the calling thread as the first fiber of a new runtime, and returns what it returns. The thread is worker 0
/// meanwhile; there are as many workers as cores that the process may use (`FIBRANT=workers=N` changes that). `f` need be
/// neither `Send` nor `'static`.
///
/// When `f` returns, the fibers that are left are cancelled, as if the program ended: join those that matter.
///
/// # Panics
///
/// Inside a runtime; if the runtime cannot be made; and with the panic of `f`.
///
/// ```
/// let greeting = String::from("hello");
/// let answer = fibrant::run(|| {
///     println!("{greeting} from a fiber");
///     fibrant::spawn(|| 6 * 7).join().unwrap()
/// });
/// assert_eq!(answer, 42);
/// ```
#[track_caller]
pub fn run<F, T>(f: F) -> T
where
    F: FnOnce() -> T,
{
    refuse_nested();
    run_with(super::Builder::new(), f)
        .unwrap_or_else(|error| panic!("the runtime could not be started: {error}"))
}

/// The same in a runtime that is built so. The calling thread is not a worker.
pub(super) fn run_with<T>(builder: super::Builder, f: impl FnOnce() -> T) -> io::Result<T> {
    let runtime = builder.use_caller(true).build()?;
    let caller = runtime.caller.as_ref().expect("it was built with one");
    let result = caller.enter(f);
    runtime.shutdown(Duration::ZERO);
    Ok(result)
}

/// Spawns a fiber: `f` runs concurrently with its spawner, on some worker of the same runtime. Outside a runtime it runs in a
/// global one, which is started when it is first needed.
///
/// It mirrors [`std::thread::spawn`]. Once the fiber has started it stays on its worker.
///
/// The fiber is *isolated*: it has thread-locals of its own, as a new thread has, and whatever it calls takes it for a thread. So it
/// may hold locks of `std::sync` across waits, and use channels and `thread::park`, with fibers and threads alike. Its thread-locals
/// are dropped when `f` has returned, before [`join`](JoinHandle::join) returns. In a runtime built with
/// [`light`](crate::runtime::Builder::light) it shares its worker's instead.
///
/// # Panics
///
/// If the global runtime cannot be started: see [`Builder::build`](crate::runtime::Builder::build).
///
/// ```
/// // Outside a runtime:
/// let fiber = fibrant::spawn(|| "hello");
/// assert_eq!(fiber.join().unwrap(), "hello");
/// ```
///
/// A thread as far as std can tell:
///
/// ```
/// use std::cell::Cell;
/// use std::sync::mpsc;
///
/// thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
///
/// fibrant::run(|| {
///     let (sender, receiver) = mpsc::sync_channel(0);
///     let fibers = [1, 2].map(|number| {
///         let sender = sender.clone();
///         fibrant::spawn(move || {
///             COUNT.set(number);
///             sender.send(number).unwrap(); // waits for the receiver
///             assert_eq!(COUNT.get(), number);
///         })
///     });
///     assert_eq!(receiver.iter().take(2).sum::<u32>(), 3);
///     fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
///     assert_eq!(COUNT.get(), 0);
/// });
/// ```
#[track_caller]
#[inline]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let spawned = Builder::new().spawn_at(Location::caller(), f);
    spawned.unwrap_or_else(|error| panic!("{error}"))
}

/// Spawns a fiber on this worker. What it runs and returns need not be `Send`.
///
/// It shares the thread-locals of the fiber that calls this, as what is not `Send` may point into them. They live until the last of
/// those that share them has ended, which drops them. Towards all others it is as isolated as its spawner.
///
/// Some code uses a thread-local like a stack, as the crate scoped-tls does: do not wait inside such a call while another fiber that
/// shares the same thread-locals may make one. Nor do two of them get along in `thread::park`, `mpsc` or a lock that a thread may take
/// twice: to std they are one thread. The type system does not stop you there; [`spawn`] has no such rules.
///
/// # Panics
///
/// Outside a runtime.
///
/// ```
/// use std::rc::Rc;
///
/// fibrant::run(|| {
///     let shared = Rc::new(5);
///     let fiber = fibrant::spawn_local({
///         let shared = Rc::clone(&shared);
///         move || *shared + 1
///     });
///     assert_eq!(fiber.join().unwrap(), 6);
/// });
/// ```
#[track_caller]
pub fn spawn_local<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    spawn_here("spawn_local", None, Location::caller(), f)
}

/// Spawns a fiber on the calling thread's worker, for the function of that name.
fn spawn_here<F, T>(
    caller: &str,
    name: Option<Arc<String>>,
    spawned_at: &'static Location<'static>,
    f: F,
) -> JoinHandle<T>
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    let Some(worker) = Worker::current() else {
        panic!(
            "{caller} was called outside a runtime: there is no worker to run the fiber; call it inside fibrant::run"
        );
    };
    let making = Making {
        id: Thread::with(Thread::next_id),
        name,
        spawned_at,
        stack_size: worker.crew.stack_size,
        is_bound: true,
        locals: worker.fiber().map_or(Locals::Workers, Group::join),
        scope: None,
    };
    // SAFETY: it owns what it runs. It is bound to this worker, so that is run, or dropped, on this thread, and what it returns
    // is dropped there or by its handle, which leaves the thread only if the result may.
    let (fiber, task) = unsafe { Scheduled::make(making, f) };
    // SAFETY: it is new, and bound to this worker.
    unsafe { worker.launch([fiber], true) };
    // SAFETY: its only join handle, of the right type.
    unsafe { JoinHandle::new(task) }
}

impl Fiber {
    /// Lets the scheduler drive the fiber from here on, on this worker: it is resumed until it has ended, and whenever it
    /// suspends itself it is resumed after everyone else has had a turn. What it waits for in fibrant's functions, it waits
    /// for as a scheduled fiber.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    ///
    /// ```
    /// use fibrant::fiber::{self, Fiber};
    ///
    /// fibrant::run(|| {
    ///     let fiber = Fiber::new(|| {
    ///         fiber::suspend();
    ///         fibrant::sleep(std::time::Duration::from_millis(1));
    ///     });
    ///     fiber.resume().unwrap(); // the first step by hand
    ///     fiber.spawn().join().unwrap();
    /// });
    /// ```
    #[track_caller]
    pub fn spawn(self) -> JoinHandle<()> {
        let name = self.name().map(|name| Arc::new(name.to_owned()));
        spawn_here("Fiber::spawn", name, Location::caller(), move || {
            while self.state() != State::Term {
                // A fiber that cannot be resumed (there is no stack) ends with the reason, which join passes on.
                if self.resume().unwrap_or_else(|error| panic!("{error}")) == State::Ready {
                    yield_now();
                }
            }
        })
    }
}

/// Runs `f` on a real thread, for what would block a worker: a call that is not hooked, or a long computation. There is an
/// elastic pool of such threads, 512 at most; one that is idle for ten seconds ends.
///
/// Cancelling it has an effect only before it has begun.
///
/// # Panics
///
/// If there is no thread and none can be started.
///
/// ```
/// fibrant::run(|| {
///     let file = fibrant::spawn_blocking(|| std::fs::read_to_string("/proc/version"));
///     assert!(file.join().unwrap().unwrap().starts_with("Linux"));
/// });
/// ```
#[track_caller]
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let making = Making {
        id: Thread::with(Thread::next_id),
        name: None,
        spawned_at: Location::caller(),
        stack_size: 0,
        is_bound: true,
        locals: Locals::Workers,
        scope: None,
    };
    // SAFETY: it owns what it runs, which may be run and dropped anywhere.
    let (job, task) = unsafe { Scheduled::make(making, f) };
    let crew = Worker::current().map(|worker| Arc::clone(&worker.crew));
    // SAFETY: it is new, and the scheduler's reference goes to the pool.
    let submitted = unsafe { submit(TaskRef::from_raw(job.cast()), crew) };
    submitted.unwrap_or_else(|error| panic!("no thread could be started for spawn_blocking: {error}"));
    // SAFETY: its only join handle, of the right type.
    unsafe { JoinHandle::new(task) }
}

/// Runs `f` on another worker of this runtime, waits for it, and returns what it returns: see
/// [`Handle::run_on`](crate::runtime::Handle::run_on).
///
/// # Panics
///
/// Outside a runtime; if there is no such worker; and with the panic of `f`.
///
/// ```
/// fibrant::run(|| {
///     let last = fibrant::runtime::Runtime::current().unwrap().workers() - 1;
///     let local = String::from("borrowed");
///     assert_eq!(fibrant::run_on(last, || local.len()), 8);
/// });
/// ```
#[track_caller]
pub fn run_on<F, T>(worker: usize, f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    let Some(handle) = super::Runtime::current() else {
        panic!("run_on was called outside a runtime: use Runtime::run_on");
    };
    run_in(&handle, worker, Location::caller(), f)
}

/// Moves the calling fiber to another worker of its runtime: what follows runs on that worker's thread.
///
/// [`run_on`] is the safe way to run something elsewhere. This is for those who need the fiber itself to move.
///
/// # Safety
///
/// Rust, LLVM and the C library assume that a function stays on its thread. From the call of this function until all its callers
/// on the fiber's stack have returned:
///
/// - no thread-local is used whose address may have been taken before: not `errno` after a call, nothing that holds a reference
///   from `thread_local!`'s `with` across this call, no lock guard that is bound to its thread;
/// - nothing that is not `Send` is used that was made before, and nobody else uses it there: no `Rc`, no fiber that is driven by
///   hand, no borrow from one;
/// - no caller may be a function that was not written with this in mind.
///
/// # Panics
///
/// Outside a runtime, in the function given to `run` (it is its thread), and if there is no such worker.
///
/// ```
/// use fibrant::runtime::Builder;
///
/// let runtime = Builder::new().workers(2).build().unwrap();
/// let moved = runtime.spawn_on(0, || {
///     let thread = || std::fs::read_link("/proc/thread-self").unwrap(); // as the kernel sees it
///     let before = thread();
///     // SAFETY: nothing here is bound to the thread, and the callers are fibrant's own, which know about this.
///     unsafe { fibrant::switch_to(1) };
///     before != thread()
/// });
/// assert!(moved.join().unwrap());
/// ```
pub unsafe fn switch_to(worker: usize) {
    let current = Worker::current().filter(|worker| worker.fiber().is_some());
    let Some(here) = current else {
        panic!("switch_to was called outside a runtime: only a fiber can move to another worker");
    };
    let Some(desk) = here.crew.desks.get(worker) else {
        panic!("{}", no_such_worker(worker, &here.crew));
    };
    if here.index != Some(worker) {
        // SAFETY: the caller's promise.
        unsafe { here.move_to(desk) };
    }
}

/// Spawns a fiber with a name, a stack size, or on a certain worker. Mirrors [`std::thread::Builder`].
///
/// ```
/// fibrant::run(|| {
///     let fiber = fibrant::Builder::new()
///         .name("parser")
///         .stack_size(1 << 20)
///         .spawn(|| fibrant::fiber::current().unwrap().name().map(str::to_owned))
///         .unwrap();
///     assert_eq!(fiber.join().unwrap().as_deref(), Some("parser"));
/// });
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder makes nothing until spawn is called"]
pub struct Builder {
    name: Option<Arc<String>>,
    stack_size: Option<usize>,
    worker: Option<usize>,
    light: bool,
}

impl Builder {
    /// A builder with the runtime's defaults.
    ///
    /// ```
    /// fibrant::run(|| fibrant::Builder::new().spawn(|| ()).unwrap().join().unwrap());
    /// ```
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names the fiber, for dumps and messages.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let fiber = fibrant::Builder::new().name("parser").spawn(|| ()).unwrap();
    ///     assert_eq!(fiber.name(), Some("parser"));
    /// });
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = Some(Arc::new(name.into()));
        self
    }

    /// The size of its stack, in bytes: see [`Fiber::with_stack_size`](crate::fiber::Fiber::with_stack_size).
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let fiber = fibrant::Builder::new().stack_size(8 << 20).spawn(|| {
    ///         std::hint::black_box([0_u8; 1 << 20]);
    ///     });
    ///     fiber.unwrap().join().unwrap();
    /// });
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// The worker that it is to run on.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let thread = || std::fs::read_link("/proc/thread-self").unwrap(); // as the kernel sees it
    ///     let here = thread();
    ///     let fiber = fibrant::Builder::new().worker(0).spawn(thread).unwrap();
    ///     assert_eq!(fiber.join().unwrap(), here); // the caller of run is worker 0
    /// });
    /// ```
    pub fn worker(mut self, index: usize) -> Builder {
        self.worker = Some(index);
        self
    }

    /// Makes the fiber light: it shares the thread-locals of its worker instead of having its own, with the worker itself and all
    /// its other light fibers. It is cheaper to spawn and to switch to, and takes less memory: `docs/threads-or-fibers.md` in the
    /// repository has the figures.
    ///
    /// # Safety
    ///
    /// **Nothing that the fiber runs keeps state in thread-locals across a wait.** That goes for all code that it calls, down to std
    /// and the C library, and for every wait, in a hooked call as in fibrant's own functions: other light fibers of its worker run
    /// meanwhile, and would find that state, or replace it. In particular, across a wait,
    ///
    /// - no reference is kept that `thread_local!`'s `with` has lent, if other fibers may change what it refers to;
    /// - nothing is in use that treats a thread-local like a stack, as scoped-tls and the entered spans of tracing do: they put back
    ///   what they have found, in the wrong order, and scoped-tls then reads a stack that is gone;
    /// - no lock is held that its thread may take twice, such as `stdout().lock()`: another fiber would be let in;
    /// - no C++ exception is being handled.
    ///
    /// `thread::park`, `mpsc`, parking_lot and crossbeam know threads only: between light fibers of a worker they hang. `errno` is
    /// right, as hooks write it last; `Mutex`, `RwLock`, `Condvar` and `Once` of std work.
    ///
    /// ```
    /// fibrant::run(|| {
    ///     // SAFETY: it uses no thread-locals.
    ///     let fiber = unsafe { fibrant::Builder::new().light() }.spawn(|| 1).unwrap();
    ///     assert_eq!(fiber.join().unwrap(), 1);
    /// });
    /// ```
    pub unsafe fn light(mut self) -> Builder {
        self.light = true;
        self
    }

    /// Spawns the fiber: see [`spawn`].
    ///
    /// # Errors
    ///
    /// If there is no such worker, the stack is too large, or the global runtime has been stopped. (A stack that turns out not to be
    /// had when the fiber is about to start, or on which the program's thread-locals do not fit, is told to whoever joins it.)
    ///
    /// ```
    /// fibrant::run(|| {
    ///     let error = fibrant::Builder::new().worker(1_000_000).spawn(|| ()).unwrap_err();
    ///     assert!(error.to_string().contains("no worker 1000000"));
    /// });
    /// ```
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_at(Location::caller(), f)
    }

    #[inline]
    fn spawn_at<F, T>(self, spawned_at: &'static Location<'static>, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        match Worker::current() {
            // SAFETY: it owns what it runs, which may be run and dropped anywhere.
            Some(worker) => unsafe { self.spawn_on_worker(worker, spawned_at, None, f) },
            None => self.spawn_in(&Handle::current_or_global(), spawned_at, f),
        }
    }

    /// Spawns the fiber in that runtime.
    #[cfg(feature = "c-api")]
    #[doc(hidden)]
    #[track_caller]
    pub fn spawn_with<F, T>(self, runtime: &Handle, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_in(runtime, Location::caller(), f)
    }

    /// Spawns the fiber in that runtime.
    pub(super) fn spawn_in<F, T>(
        self,
        handle: &Handle,
        spawned_at: &'static Location<'static>,
        f: F,
    ) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // SAFETY: it owns what it runs, which may be run and dropped anywhere.
        unsafe { self.spawn_unbounded(handle, spawned_at, None, f) }
    }

    /// Spawns the fiber in that runtime, whatever it borrows.
    ///
    /// # Safety
    /// Whatever `f` and its result borrow or own may be used on another thread, and outlives the fiber and its handle.
    pub(super) unsafe fn spawn_unbounded<F, T>(
        self,
        handle: &Handle,
        spawned_at: &'static Location<'static>,
        scope: Option<Arc<ScopeData>>,
        f: F,
    ) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T,
    {
        if let Some(worker) = Worker::current().filter(|_| handle.is_inside()) {
            // SAFETY: the caller's promise.
            return unsafe { self.spawn_on_worker(worker, spawned_at, scope, f) };
        }
        let crew = &handle.crew;
        if let Some(worker) = self.worker.filter(|worker| *worker >= crew.desks.len()) {
            return Err(no_such_worker(worker, crew));
        }
        let worker = self.worker;
        let making = self.making(crew, spawned_at, scope)?;
        let arrival = crew.admit()?;
        Thread::with(|thread| thread.counters.fibers_created.increment());
        // SAFETY: the caller's promise.
        let (fiber, task) = unsafe { Scheduled::make(making, f) };
        // SAFETY: it is new, and may start on another thread.
        unsafe { crew.take([fiber], worker) };
        drop(arrival);
        // SAFETY: its only join handle, of the right type.
        Ok(unsafe { JoinHandle::new(task) })
    }

    /// Spawns the fiber from a worker of its runtime.
    ///
    /// # Safety
    /// As for `spawn_unbounded`.
    #[inline]
    unsafe fn spawn_on_worker<F, T>(
        self,
        worker: &Worker,
        spawned_at: &'static Location<'static>,
        scope: Option<Arc<ScopeData>>,
        f: F,
    ) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T,
    {
        let target = self.worker;
        if let Some(index) = target.filter(|index| *index >= worker.crew.desks.len()) {
            return Err(no_such_worker(index, &worker.crew));
        }
        let is_elsewhere = target.is_some() && worker.index != target;
        if is_elsewhere && worker.crew.phase() == Phase::Over {
            return Err(worker.crew.stopped()); // the function given to `run` goes on, and nobody is at work there
        }
        let making = self.making(&worker.crew, spawned_at, scope)?;
        // SAFETY: the caller's promise.
        let (fiber, task) = unsafe { Scheduled::make(making, f) };
        match target {
            Some(index) if is_elsewhere => {
                worker.crew.note_begun_outside();
                Thread::with(|thread| thread.counters.fibers_created.increment());
                // SAFETY: it is new, and may start on another thread.
                unsafe { worker.crew.take([fiber], Some(index)) };
            }
            // SAFETY: it is new, and may start here or on another thread.
            _ => unsafe { worker.launch([fiber], target.is_some()) },
        }
        // SAFETY: its only join handle, of the right type.
        Ok(unsafe { JoinHandle::new(task) })
    }

    #[inline]
    fn making(
        self,
        crew: &Crew,
        spawned_at: &'static Location<'static>,
        scope: Option<Arc<ScopeData>>,
    ) -> io::Result<Making> {
        let stack_size = match self.stack_size {
            Some(bytes) => crate::fiber::rounded_stack_size(bytes)?,
            None => crew.stack_size,
        };
        Ok(Making {
            id: Thread::with(Thread::next_id),
            name: self.name,
            spawned_at,
            stack_size,
            is_bound: self.worker.is_some(),
            locals: if self.light {
                Locals::Workers
            } else {
                crew.locals()
            },
            scope,
        })
    }
}

/// Spawns many fibers at once.
pub(super) fn spawn_all<F, T>(
    handle: &Handle,
    spawned_at: &'static Location<'static>,
    functions: impl IntoIterator<Item = F>,
) -> io::Result<Vec<JoinHandle<T>>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let crew = &handle.crew;
    // The functions come from the user's iterator, which may do anything, and may panic: nothing has begun yet. It may even go on
    // elsewhere, in a fiber that is driven by hand.
    let functions: Vec<F> = functions.into_iter().collect();
    let inside = Worker::current().filter(|_| handle.is_inside());
    let makings = functions
        .iter()
        .map(|_| Builder::new().making(crew, spawned_at, None))
        .collect::<io::Result<Vec<_>>>()?;
    let mut arrival = None;
    if inside.is_none() && !functions.is_empty() {
        arrival = Some(crew.admit()?);
        // The runtime cannot be drained before the first has ended, so the others are let in, too.
        (1..functions.len()).for_each(|_| crew.note_begun_outside());
    }
    let mut fibers: Vec<NonNull<Scheduled>> = Vec::with_capacity(functions.len());
    let mut handles = Vec::with_capacity(functions.len());
    for (f, making) in functions.into_iter().zip(makings) {
        // SAFETY: it owns what it runs, which may be run and dropped anywhere.
        let (fiber, task) = unsafe { Scheduled::make(making, f) };
        fibers.push(fiber);
        // SAFETY: its only join handle, of the right type.
        handles.push(unsafe { JoinHandle::new(task) });
    }
    match inside {
        // SAFETY: they are new, and may start anywhere.
        Some(worker) => unsafe { worker.launch(fibers, false) },
        None => {
            Thread::with(|thread| thread.counters.fibers_created.add(fibers.len() as u64));
            // SAFETY: they are new, and may start anywhere.
            unsafe { crew.take(fibers, None) };
        }
    }
    drop(arrival);
    Ok(handles)
}

/// Runs `f` on a worker of a runtime and waits for it.
pub(super) fn run_in<F, T>(handle: &Handle, worker: usize, called_at: &'static Location<'static>, f: F) -> T
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    // The wait must come to its end: `f` may borrow.
    let _guard = defer_cancel();
    let scope = Arc::new(ScopeData::new());
    scope.note_spawned();
    // SAFETY: what it borrows outlives it, as this waits for its end, and may be used on another thread.
    let spawned = unsafe {
        Builder::new()
            .worker(worker)
            .spawn_unbounded(handle, called_at, Some(Arc::clone(&scope)), f)
    };
    let fiber = spawned.unwrap_or_else(|error| panic!("{error}"));
    let result = fiber.join_to_the_end();
    // Whoever joins a fiber that was abandoned is told that it was cancelled. But it has not ended, and those to whom it has lent what
    // `f` borrows may still run.
    scope.wait_for_all();
    result.unwrap_or_else(|payload| panic::resume_unwind(payload))
}
