//! Making a runtime.

use super::{Handle, Runtime};
use crate::io::Reactor;
use crate::scheduler::{Caller, Crew, Worker};
use crate::{env, fiber, hook, scheduler, sync, sys};
use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Makes a [`Runtime`]. What it is not told comes from the environment variable `FIBRANT`, or is the default.
///
/// ```
/// use fibrant::runtime::Builder;
///
/// let runtime = Builder::new().workers(2).name("web").stack_size(64 << 10).build().unwrap();
/// assert_eq!(runtime.workers(), 2);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder makes nothing until build is called"]
pub struct Builder {
    workers: Option<usize>,
    use_caller: bool,
    name: Option<String>,
    stack_size: Option<usize>,
    hooks: Option<bool>,
    light: bool,
    deadlock_after: Option<Duration>,
    stuck_after: Option<Duration>,
}

/// After how long in one fiber a worker is called stuck.
const STUCK_AFTER: Duration = Duration::from_millis(250);

impl Builder {
    /// A builder with the defaults: as many workers as cores that the process may use, each a thread of its own.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().build().unwrap();
    /// assert!(runtime.workers() >= 1);
    /// ```
    pub fn new() -> Builder {
        Builder::default()
    }

    /// How many workers there are, the caller's included if it is used. `FIBRANT=workers=4` sets it for programs that do not.
    ///
    /// ```
    /// assert_eq!(fibrant::runtime::Builder::new().workers(3).build().unwrap().workers(), 3);
    /// ```
    pub fn workers(mut self, number: usize) -> Builder {
        self.workers = Some(number);
        self
    }

    /// Whether worker 0 is the thread that calls [`Runtime::run`] or [`Runtime::stop`], while it does, rather than a thread of
    /// the runtime's own. It then belongs to the first thread that does so.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().workers(1).use_caller(true).build().unwrap();
    /// let thread = || std::fs::read_link("/proc/thread-self").unwrap(); // as the kernel sees it
    /// let here = thread();
    /// runtime.run(|| {
    ///     let fiber = fibrant::spawn(thread);
    ///     assert_eq!(fiber.join().unwrap(), here);
    /// });
    /// ```
    pub fn use_caller(mut self, yes: bool) -> Builder {
        self.use_caller = yes;
        self
    }

    /// The runtime's name, for dumps and messages. Its threads are called `name-0`, `name-1`, and so on.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().workers(1).name("web").build().unwrap();
    /// let thread = runtime.spawn(|| std::fs::read_to_string("/proc/thread-self/comm").unwrap());
    /// assert_eq!(thread.join().unwrap(), "web-0\n");
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// The stack size of fibers for which none is named; 256 KiB by default. `FIBRANT=stack=64k` sets it for programs that do
    /// not.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().workers(1).stack_size(1 << 20).build().unwrap();
    /// runtime.spawn(|| { std::hint::black_box([0_u8; 500_000]); }).join().unwrap();
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// Whether blocking calls of the C library are [hooked](crate::hook) in this runtime's fibers. They are by default;
    /// `FIBRANT=hooks=off` sets it for programs that do not say.
    ///
    /// ```
    /// let runtime = fibrant::runtime::Builder::new().workers(1).hooks(false).build().unwrap();
    /// # drop(runtime);
    /// ```
    pub fn hooks(mut self, yes: bool) -> Builder {
        self.hooks = Some(yes);
        self
    }

    /// Prints the [dump](super::Handle::dump) to standard error, once, when no fiber could run for that long and no timer, event
    /// or call on a real thread is pending. The program goes on. Off by default; `FIBRANT=deadlock=5s` sets it for programs that
    /// do not.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = fibrant::runtime::Builder::new().workers(1).deadlock_after(Duration::from_secs(5)).build().unwrap();
    /// # drop(runtime);
    /// ```
    pub fn deadlock_after(mut self, time: Duration) -> Builder {
        self.deadlock_after = Some(time);
        self
    }

    /// After how long in one fiber a worker is called stuck: the fiber computes, or blocks in a call that is not hooked, and nobody
    /// else has a turn there. The [dump](super::Handle::dump) shows it, and with the feature `tracing` a warning is sent. 250 ms by
    /// default; `FIBRANT=stuck=1s` sets it for programs that do not.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::time::Duration;
    ///
    /// static OVER: AtomicBool = AtomicBool::new(false);
    /// let runtime = fibrant::runtime::Builder::new().workers(1).stuck_after(Duration::from_millis(20)).build().unwrap();
    /// let busy = runtime.spawn(|| while !OVER.load(Ordering::Relaxed) {});
    /// while runtime.dump().workers[0].stuck.is_none() {}
    /// OVER.store(true, Ordering::Relaxed);
    /// busy.join().unwrap();
    /// ```
    pub fn stuck_after(mut self, time: Duration) -> Builder {
        self.stuck_after = Some(time);
        self
    }

    /// Makes the runtime's fibers light, those of timers and event functions included: they share the thread-locals of their worker
    /// instead of having their own. Also the way to have a runtime where [`build`](Builder::build) says that fibers cannot have their own.
    ///
    /// # Safety
    ///
    /// **Nothing that the fibers run keeps state in thread-locals across a wait**: two fibers of a worker would find each other's. What
    /// that means is said at [`fibrant::Builder::light`](crate::Builder::light), and goes for everything that runs in this runtime.
    ///
    /// ```
    /// // SAFETY: the fibers run nothing that uses thread-locals.
    /// let runtime = unsafe { fibrant::runtime::Builder::new().workers(1).light() }.build().unwrap();
    /// # drop(runtime);
    /// ```
    pub unsafe fn light(mut self) -> Builder {
        self.light = true;
        self
    }

    /// Makes the runtime and starts its threads.
    ///
    /// # Errors
    ///
    /// If there are to be no workers, the environment variable `FIBRANT` makes no sense, or the system refuses a thread or a
    /// descriptor.
    ///
    /// With [`Unsupported`](io::ErrorKind::Unsupported), and the reason, if fibers cannot have thread-locals of their own here and
    /// [`light`](Builder::light) was not called. It takes glibc, 2.34 or later, linked dynamically; on x86_64 also a kernel and a
    /// processor that let programs change the thread pointer (FSGSBASE: Linux 5.9 or later). Builds with `--cfg fibrant_asan` are light:
    /// whoever builds that way promises what `light` asks for.
    ///
    /// ```
    /// assert!(fibrant::runtime::Builder::new().workers(0).build().is_err());
    /// ```
    pub fn build(self) -> io::Result<Runtime> {
        // A forked child that makes a runtime has its own things from now on.
        sys::begin_anew(|| {
            scheduler::forget_parents();
            crate::io::forget_parents();
            hook::forget_parents();
        });
        sync::address::prepare();
        let settings = env::settings()?;
        let workers = match self.workers.or(settings.workers) {
            Some(0) => {
                let problem = "a runtime needs a worker: ask for 1 or more";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
            Some(number) => number,
            None => thread::available_parallelism().map_or(1, usize::from),
        };
        let stack_size = match self.stack_size {
            Some(bytes) => bytes,
            None => fiber::default_stack_size()?,
        };
        // Who builds for a sanitizer, which has its own idea of threads, asks for light fibers by that.
        let isolated = !self.light && !cfg!(fibrant_asan);
        if isolated {
            fiber::can_be_isolated()?;
        }
        hook::prepare();
        let crew = Arc::new(Crew::new(
            workers,
            self.name.unwrap_or_else(|| "fibrant".to_owned()),
            fiber::rounded_stack_size(stack_size)?,
            self.hooks.or(settings.hooks).unwrap_or(true),
            isolated,
            self.deadlock_after.or(settings.deadlock_after),
            self.stuck_after.or(settings.stuck_after).unwrap_or(STUCK_AFTER),
        )?);
        let caller = if self.use_caller {
            let reactor = Reactor::new(crew.desks[0])?;
            Some(Caller::new(Worker::new(Arc::clone(&crew), 0, Box::new(reactor))))
        } else {
            None
        };
        let runtime = Runtime {
            handle: Handle { crew },
            caller,
            threads: Mutex::default(),
        };
        // If one cannot be started, dropping the runtime ends those that were.
        for index in usize::from(self.use_caller)..workers {
            let thread = start_worker(Arc::clone(&runtime.handle.crew), index)?;
            runtime
                .threads
                .lock()
                .expect("nobody else knows it yet")
                .push(thread);
        }
        Ok(runtime)
    }

    /// Runs `f` as [`run`](crate::run) does, in a runtime that is made so. The calling thread must not be a worker.
    #[cfg(feature = "c-api")]
    #[doc(hidden)]
    pub fn run<T>(self, f: impl FnOnce() -> T) -> io::Result<T> {
        super::refuse_nested();
        super::spawn::run_with(self, f)
    }
}

/// Starts a worker's thread, and returns when it is ready.
fn start_worker(crew: Arc<Crew>, index: usize) -> io::Result<thread::JoinHandle<()>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = format!("{}-{index}", crew.name);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let reactor = match Reactor::new(crew.desks[index]) {
            Ok(reactor) => reactor,
            Err(error) => return drop(sender.send(Err(error))),
        };
        let worker = Worker::new(crew, index, Box::new(reactor));
        // SAFETY: makes this thread's own sleeps end on time: by default the kernel may add 50 us.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
        worker.serve(move || drop(sender.send(Ok(()))));
    })?;
    match receiver.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("a worker's thread ended before it had begun")),
    }
}
