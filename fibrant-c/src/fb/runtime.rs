//! Runtimes: the section of that name in `fibrant.h`.

use super::argument::{Call, Function, Grows, behind, limit, name, place, put, read};
use super::error::{Answer, Errno, INVALID, answer};
use fibrant::routine;
use fibrant::runtime::{Builder, Handle, Runtime};
use libc::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::Duration;

/// `fb_runtime`.
pub struct FbRuntime {
    runtime: Runtime,
    use_caller: bool,
    /// The thread that worker 0 belongs to, if that is one of the program's.
    owner: OnceLock<ThreadId>,
}

/// `fb_runtime_options`: see the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RuntimeOptions {
    size: usize,
    workers: usize,
    stack_size: usize,
    name: *const c_char,
    light: c_int,
    no_hooks: c_int,
    use_caller: c_int,
    deadlock_ms: c_int,
}

// SAFETY: it is made of integers and a pointer that may be null, and begins with its size.
unsafe impl Grows for RuntimeOptions {
    const DEFAULT: RuntimeOptions = RuntimeOptions {
        size: size_of::<RuntimeOptions>(),
        workers: 0,
        stack_size: 0,
        name: ptr::null(),
        light: 0,
        no_hooks: 0,
        use_caller: 0,
        deadlock_ms: 0,
    };
}

impl RuntimeOptions {
    /// # Safety
    /// The name is null or a string; and whoever has set `light` keeps the promise that the header asks for.
    unsafe fn builder(&self) -> Result<Builder, Errno> {
        let mut builder = Builder::new().use_caller(self.use_caller != 0);
        if self.workers != 0 {
            builder = builder.workers(self.workers);
        }
        if self.stack_size != 0 {
            builder = builder.stack_size(self.stack_size);
        }
        // SAFETY: the caller's promise.
        if let Some(name) = unsafe { name(self.name) } {
            builder = builder.name(name);
        }
        if self.no_hooks != 0 {
            builder = builder.hooks(false);
        }
        match u64::try_from(self.deadlock_ms) {
            Ok(0) => {}
            Ok(time) => builder = builder.deadlock_after(Duration::from_millis(time)),
            Err(_) => return Err(INVALID),
        }
        if self.light != 0 {
            // SAFETY: the program has promised it.
            builder = unsafe { builder.light() };
        }
        Ok(builder)
    }
}

/// The runtime that is meant: that one, or that of the calling fiber, or the global one.
///
/// # Safety
/// The handle is null, or valid.
pub(super) unsafe fn meant(runtime: *const FbRuntime) -> Result<Handle, Errno> {
    match runtime.is_null() {
        true => Ok(Handle::try_current_or_global()?),
        // SAFETY: the caller's promise.
        false => Ok(unsafe { behind(runtime)? }.runtime.handle()),
    }
}

/// An error if a fiber calls, or a coroutine of libco's.
fn refuse_fibers(error: c_int) -> Result<(), Errno> {
    if Runtime::current().is_some() || routine::current().is_some() {
        return Err(Errno(error));
    }
    Ok(())
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_run(
    function: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>,
    argument: *mut c_void,
    options: *const RuntimeOptions,
) -> c_int {
    /// Nothing unwinds from here: see `argument::call`.
    extern "C" fn call(
        function: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int {
        // SAFETY: the program has given both.
        unsafe { function(argument) }
    }
    answer(|| {
        let function = function.ok_or(INVALID)?;
        refuse_fibers(libc::EBUSY)?;
        // SAFETY: the program's promise.
        let builder = unsafe { read(options)?.builder()? };
        Ok(builder.run(|| call(function, argument))?)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_runtime_start(
    runtime: *mut *mut FbRuntime,
    options: *const RuntimeOptions,
) -> c_int {
    answer(|| {
        let place = place(runtime)?;
        // SAFETY: the program's promise.
        let options = unsafe { read(options)? };
        let new = FbRuntime {
            // SAFETY: the program's promise.
            runtime: unsafe { options.builder()? }.build()?,
            use_caller: options.use_caller != 0,
            owner: OnceLock::new(),
        };
        // SAFETY: the program's promise.
        unsafe { place.write(Box::into_raw(Box::new(new))) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_runtime_run(
    runtime: *mut FbRuntime,
    function: Option<Function>,
    argument: *mut c_void,
    result: *mut *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let (runtime, call) = unsafe { (behind(runtime)?, Call::new(function, argument)?) };
        refuse_fibers(libc::EBUSY)?;
        let here = thread::current().id();
        if runtime.use_caller && *runtime.owner.get_or_init(|| here) != here {
            return Err(Errno(libc::EPERM));
        }
        let returned = runtime.runtime.run(|| call.run());
        // SAFETY: the program's promise.
        unsafe { put(result, returned.0) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_runtime_stop(runtime: *mut FbRuntime) -> c_int {
    answer(|| {
        refuse_fibers(libc::EDEADLK)?;
        // SAFETY: the program's promise.
        let stopped = unsafe { behind(runtime)? }.runtime.stop();
        stopped.map_err(|_| Errno(libc::EPERM))?;
        // SAFETY: it was made by `fb_runtime_start`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(runtime) });
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_runtime_shutdown(runtime: *mut FbRuntime, patience: i64) -> c_int {
    answer(|| -> Answer {
        refuse_fibers(libc::EDEADLK)?;
        // SAFETY: the program's promise.
        let open = unsafe { behind(runtime)? };
        let abandoned = match limit(patience) {
            Some(patience) => open.runtime.shutdown(patience).abandoned.len(),
            None => {
                open.runtime.stop().map_err(|_| Errno(libc::EPERM))?;
                0
            }
        };
        // SAFETY: it was made by `fb_runtime_start`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(runtime) });
        Ok(c_int::try_from(abandoned).unwrap_or(c_int::MAX))
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_workers(runtime: *const FbRuntime) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let workers = unsafe { meant(runtime)? }.workers();
        Ok(c_int::try_from(workers).unwrap_or(c_int::MAX))
    })
}
