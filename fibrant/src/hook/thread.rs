//! What makes a fiber's thread, as it sees it, a whole one: functions of the C library that are given a thread, that keep something
//! for each, or that speak to all of them.
//!
//! An isolated fiber has a thread control block of its own, which the C library and the kernel do not know as a thread's. So:
//!
//! - a function that asks the kernel for something about a thread is given the worker's instead of the fiber's;
//! - destructors of keys are noted, as they are ours to run when a fiber ends;
//! - the loader of libraries runs with the worker's own block, as it has locks that belong to threads; nothing waits inside it, and
//!   afterwards the blocks of all fibers get the new thread-locals;
//! - the signal by which the C library changes the user of all threads is handled with the worker's own block.
//!
//! [`table`](super::table) has the other hooks. Calls [`tls`] and the real functions.

use super::real::Real;
use crate::context::{self, exceptions, stack, tls};
use crate::fiber::Thread;
use crate::scheduler::Worker;
use crate::sys::{self, PerProcess, syscall};
use libc::{
    c_char, c_int, c_void, clockid_t, cpu_set_t, dl_phdr_info, pthread_attr_t, pthread_key_t, pthread_t,
    sched_param,
};
use libc::{sigval, size_t};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The thread that the kernel knows: for a fiber's, its worker's.
fn kernels_thread(thread: pthread_t) -> pthread_t {
    tls::home_of(thread as usize).map_or(thread, |home| home as pthread_t)
}

/// Calls `f` with the thread's own block of thread-locals.
pub(super) fn at_home<R>(f: impl FnOnce() -> R) -> R {
    match Thread::if_any(|thread| Some(thread.home())) {
        // SAFETY: it is this thread's own block, with which nobody else runs. `f` does not switch: whoever calls this sees to that.
        Some(home) if home != context::thread_pointer() => unsafe { context::with_thread_pointer(home, f) },
        _ => f(),
    }
}

/// Calls `f` while no blocking call of this fiber's is emulated, so that it does not wait.
fn without_waits<R>(f: impl FnOnce() -> R) -> R {
    let Some(worker) = Worker::of_hooked_fiber() else {
        return f();
    };
    worker.set_hooked(false);
    let result = f();
    worker.set_hooked(true);
    result
}

/// Defines functions that are given a thread.
macro_rules! of_threads {
    ($($name:ident ($($argument:ident: $type:ty),*);)*) => {
        $(
            /// The C library's function of this name; a fiber's thread is its worker's.
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(thread: pthread_t $(, $argument: $type)*) -> c_int {
                static REAL: Real<unsafe extern "C" fn(pthread_t $(, $type)*) -> c_int> =
                    // SAFETY: it is the C library's, with these arguments.
                    unsafe { Real::new(super::table::c_name(concat!(stringify!($name), "\0"))) };
                match REAL.get() {
                    // SAFETY: the arguments are those that the function was called with.
                    Some(real) => unsafe { real(kernels_thread(thread) $(, $argument)*) },
                    None => libc::ENOSYS,
                }
            }
        )*

        /// Their names, and those of the others in this file.
        pub(super) const NAMES: &[&str] = &[
            $(stringify!($name),)*
            "pthread_getattr_np", "pthread_key_create", "pthread_key_delete", "tss_create", "tss_delete",
            "dlopen", "dlmopen", "dlclose", "dlerror", "dl_iterate_phdr",
        ];
    };
}

of_threads! {
    pthread_kill(signal: c_int);
    pthread_sigqueue(signal: c_int, value: sigval);
    pthread_setaffinity_np(size: size_t, set: *const cpu_set_t);
    pthread_getaffinity_np(size: size_t, set: *mut cpu_set_t);
    pthread_setschedparam(policy: c_int, parameters: *const sched_param);
    pthread_getschedparam(policy: *mut c_int, parameters: *mut sched_param);
    pthread_setschedprio(priority: c_int);
    pthread_getcpuclockid(clock: *mut clockid_t);
    pthread_setname_np(name: *const c_char);
    pthread_getname_np(name: *mut c_char, size: size_t);
}

/// The attributes of a thread; for the one that asks, the truth about the stack that it runs on.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_getattr_np(thread: pthread_t, attributes: *mut pthread_attr_t) -> c_int {
    static REAL: Real<unsafe extern "C" fn(pthread_t, *mut pthread_attr_t) -> c_int> =
        // SAFETY: it is the C library's, with these arguments.
        unsafe { Real::new(c"pthread_getattr_np") };
    let Some(real) = REAL.get() else {
        return libc::ENOSYS;
    };
    // SAFETY: asks for a number.
    let is_own = thread == unsafe { libc::pthread_self() };
    let fibers_stack = is_own
        .then(|| Thread::if_any(|thread| thread.current_stack()))
        .flatten();
    // SAFETY: the arguments are those that the function was called with; a fiber's stack is what it says.
    unsafe {
        let result = real(kernels_thread(thread), attributes);
        match fibers_stack {
            Some((bottom, size)) if result == 0 => {
                libc::pthread_attr_setguardsize(attributes, stack::page_size());
                libc::pthread_attr_setstack(attributes, bottom.cast(), size)
            }
            _ => result,
        }
    }
}

type Destructor = Option<unsafe extern "C" fn(*mut c_void)>;

/// Makes a key, and notes its destructor.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_key_create(key: *mut pthread_key_t, destructor: Destructor) -> c_int {
    static REAL: Real<unsafe extern "C" fn(*mut pthread_key_t, Destructor) -> c_int> =
        // SAFETY: it is the C library's, with these arguments.
        unsafe { Real::new(c"pthread_key_create") };
    // SAFETY: the arguments are those that the function was called with.
    unsafe { create_key(&REAL, key, destructor) }
}

/// C11's name for the same.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tss_create(key: *mut pthread_key_t, destructor: Destructor) -> c_int {
    static REAL: Real<unsafe extern "C" fn(*mut pthread_key_t, Destructor) -> c_int> =
        // SAFETY: it is the C library's, with these arguments.
        unsafe { Real::new(c"tss_create") };
    // SAFETY: the arguments are those that the function was called with.
    unsafe { create_key(&REAL, key, destructor) }
}

/// # Safety
/// As the C library's functions.
unsafe fn create_key(
    real: &Real<unsafe extern "C" fn(*mut pthread_key_t, Destructor) -> c_int>,
    key: *mut pthread_key_t,
    destructor: Destructor,
) -> c_int {
    let Some(real) = real.get() else {
        return libc::ENOSYS;
    };
    // SAFETY: by the contract; if the function succeeds it has written the key.
    unsafe {
        let result = real(key, destructor);
        if result == 0 {
            tls::keys::note(*key, destructor);
        }
        result
    }
}

/// Deletes a key.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_key_delete(key: pthread_key_t) -> c_int {
    static REAL: Real<unsafe extern "C" fn(pthread_key_t) -> c_int> =
        // SAFETY: it is the C library's, with these arguments.
        unsafe { Real::new(c"pthread_key_delete") };
    tls::keys::note(key, None);
    // SAFETY: the argument is the one that the function was called with.
    REAL.get().map_or(libc::ENOSYS, |real| unsafe { real(key) })
}

/// C11's name for the same.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tss_delete(key: pthread_key_t) {
    // SAFETY: as there.
    unsafe { pthread_key_delete(key) };
}

/// Calls a function that loads or unloads libraries: with the thread's own block, without waits, and with what follows from it.
fn load<R>(call: impl FnOnce() -> R, worked: impl FnOnce(&R) -> bool) -> R {
    without_waits(|| {
        let _alone = Loader::engage();
        let result = at_home(call);
        if worked(&result) {
            look_for_exceptions();
        }
        if let Some(update) = tls::note_libraries() {
            stack::update_locals(&update);
        }
        result
    })
}

/// Who may load and unload libraries: one thread at a time, from the call until all blocks are up to date. Otherwise one library could take the
/// place of another that was just unloaded, and nobody would see that its thread-locals are new. The C library has such a lock, too, for the
/// call alone; constructors run under it and may load further libraries, so this one also lets its thread in again.
#[derive(Default)]
struct Loader {
    lock: Mutex<()>,
    /// The thread that has the lock, or 0.
    thread: AtomicI32,
}

static LOADER: PerProcess<Loader> = PerProcess::new(Loader::default);

/// The loader, until it is dropped.
struct Engaged {
    loader: &'static Loader,
    _guard: MutexGuard<'static, ()>,
}

impl Loader {
    /// Waits for the loader, unless this thread has it.
    fn engage() -> Option<Engaged> {
        let loader = LOADER.get();
        let thread = sys::thread_id();
        // Whoever finds its own number has written it itself.
        if loader.thread.load(Relaxed) == thread {
            return None;
        }
        let guard = loader.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loader.thread.store(thread, Relaxed);
        Some(Engaged {
            loader,
            _guard: guard,
        })
    }
}

impl Drop for Engaged {
    fn drop(&mut self) {
        self.loader.thread.store(0, Relaxed);
    }
}

/// Looks whether C++'s library is loaded; if so, it stays. That it is not is no error that the program is to see.
fn look_for_exceptions() {
    let (Some(open), Some(forget_error)) = (DLOPEN.get(), DLERROR.get()) else {
        return;
    };
    if exceptions::are_known() {
        return;
    }
    // SAFETY: asks for a library only if it is there, and looks up a name. The library is never closed here.
    unsafe {
        let library = open(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        // If it is part of the program, everybody finds it.
        let scope = if library.is_null() {
            libc::RTLD_DEFAULT
        } else {
            library
        };
        exceptions::note(libc::dlsym(scope, exceptions::NAME.as_ptr()));
        forget_error();
    }
}

/// The C library's `dlopen`.
static DLOPEN: Real<unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void> =
    // SAFETY: it is the C library's, with these arguments.
    unsafe { Real::new(c"dlopen") };

/// Loads a library. Its thread-locals are in the blocks of all fibers when this returns.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    let Some(real) = DLOPEN.get() else {
        return ptr::null_mut();
    };
    // SAFETY: the arguments are those that the function was called with.
    load(|| unsafe { real(file, mode) }, |library| !library.is_null())
}

/// Loads a library into a namespace.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(space: libc::c_long, file: *const c_char, mode: c_int) -> *mut c_void {
    static REAL: Real<unsafe extern "C" fn(libc::c_long, *const c_char, c_int) -> *mut c_void> =
        // SAFETY: it is the C library's, with these arguments.
        unsafe { Real::new(c"dlmopen") };
    let Some(real) = REAL.get() else {
        return ptr::null_mut();
    };
    // SAFETY: the arguments are those that the function was called with.
    let call = || unsafe { real(space, file, mode) };
    load(call, |library| !library.is_null())
}

/// Unloads a library.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(library: *mut c_void) -> c_int {
    static REAL: Real<unsafe extern "C" fn(*mut c_void) -> c_int> =
        // SAFETY: it is the C library's, with these arguments.
        unsafe { Real::new(c"dlclose") };
    let Some(real) = REAL.get() else {
        return -1;
    };
    // SAFETY: the argument is the one that the function was called with.
    load(|| unsafe { real(library) }, |result| *result == 0)
}

/// The C library's `dlerror`.
pub(super) static DLERROR: Real<unsafe extern "C" fn() -> *mut c_char> =
    // SAFETY: it is the C library's.
    unsafe { Real::new(c"dlerror") };

/// What went wrong last when a library was loaded: either here or, as the functions above do that, with the thread's own block.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlerror() -> *mut c_char {
    let Some(real) = DLERROR.get() else {
        return ptr::null_mut();
    };
    // SAFETY: the function has no arguments.
    unsafe {
        let own = real();
        if own.is_null() { at_home(|| real()) } else { own }
    }
}

type Visit = Option<unsafe extern "C" fn(*mut dl_phdr_info, size_t, *mut c_void) -> c_int>;

/// Visits all libraries, under a lock that belongs to a thread: nothing waits meanwhile.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dl_iterate_phdr(visit: Visit, data: *mut c_void) -> c_int {
    static REAL: Real<unsafe extern "C" fn(Visit, *mut c_void) -> c_int> =
        // SAFETY: it is the C library's, with these arguments.
        unsafe { Real::new(c"dl_iterate_phdr") };
    // SAFETY: the arguments are those that the function was called with.
    REAL.get()
        .map_or(0, |real| without_waits(|| unsafe { real(visit, data) }))
}

/// The signal by which the C library changes the user of all threads.
const SIGSETXID: c_int = 33;

/// The C library's handler of it.
static CHANGE_USER: AtomicUsize = AtomicUsize::new(0);

type Handler = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void);

/// How the kernel is told of a handler.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// Prepares the process for fibers. The C library's handler is in place once a thread has been started, as for isolated fibers one
/// has; until then there is nothing to do.
pub(crate) fn prepare() {
    look_for_exceptions();
    let mut action = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    let own = on_change_of_user as *const () as usize;
    // SAFETY: reads the action, and writes it with another handler, which calls the one that was there.
    unsafe {
        let read = syscall!(
            SYS_rt_sigaction,
            SIGSETXID,
            0_usize,
            &raw mut action,
            size_of::<u64>()
        );
        if read < 0 || action.handler <= libc::SIG_IGN || action.handler == own {
            return;
        }
        CHANGE_USER.store(action.handler, Relaxed);
        action.handler = own;
        syscall!(
            SYS_rt_sigaction,
            SIGSETXID,
            &raw const action,
            0_usize,
            size_of::<u64>()
        );
    }
}

/// The C library asks this thread to change its user, and waits until a mark in the thread's own block says that it has.
unsafe extern "C" fn on_change_of_user(signal: c_int, info: *mut c_void, context: *mut c_void) {
    // SAFETY: `prepare` has stored the address of such a function; the arguments are the kernel's.
    at_home(|| unsafe {
        let handler = std::mem::transmute::<usize, Handler>(CHANGE_USER.load(Relaxed));
        handler(signal, info, context);
    });
}
