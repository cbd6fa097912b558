//! Fibers: the section of that name in `fibrant.h`.

use super::argument::{Call, Function, Grows, Pointer, behind, limit, name, put, read, span};
use super::error::{Answer, Errno, INVALID, answer, guard};
use super::runtime::{FbRuntime, meant};
use fibrant::runtime::{Handle, Runtime};
use fibrant::{Builder, DeferCancel, JoinHandle, defer_cancel, fiber, fiber_local, hook};
use libc::{c_char, c_int, c_void};
use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::time::Duration;

/// `fb_fiber`.
pub struct FbFiber {
    handle: JoinHandle<Pointer>,
    /// Whether somebody joins it, or lets it go.
    is_claimed: AtomicBool,
}

/// `fb_attr`: see the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    size: usize,
    name: *const c_char,
    stack_size: usize,
    worker: c_int,
    light: c_int,
}

// SAFETY: it is made of integers and a pointer that may be null, and begins with its size.
unsafe impl Grows for Attributes {
    const DEFAULT: Attributes = Attributes {
        size: size_of::<Attributes>(),
        name: ptr::null(),
        stack_size: 0,
        worker: -1,
        light: 0,
    };
}

impl Attributes {
    /// # Safety
    /// The name is null or a string; and whoever has set `light` keeps the promise that the header asks for.
    unsafe fn builder(&self) -> Result<Builder, Errno> {
        let mut builder = Builder::new();
        // SAFETY: the caller's promise.
        if let Some(name) = unsafe { name(self.name) } {
            builder = builder.name(name);
        }
        if self.stack_size != 0 {
            builder = builder.stack_size(self.stack_size);
        }
        match usize::try_from(self.worker) {
            Ok(worker) => builder = builder.worker(worker),
            Err(_) if self.worker == -1 => {}
            Err(_) => return Err(INVALID),
        }
        if self.light != 0 {
            // SAFETY: the program has promised it.
            builder = unsafe { builder.light() };
        }
        Ok(builder)
    }
}

/// The right to wait for a fiber, or to let it go. There is one at a time.
struct Claim<'a>(&'a FbFiber);

impl FbFiber {
    fn claim(&self) -> Result<Claim<'_>, Errno> {
        match self.is_claimed.swap(true, Acquire) {
            true => Err(Errno(libc::EBUSY)),
            false => Ok(Claim(self)),
        }
    }

    /// Waits for the end, at most that long.
    fn wait(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        if fb_self_id() == self.handle.id() {
            return Err(Errno(libc::EDEADLK));
        }
        let claim = self.claim()?;
        // SAFETY: whoever has the claim is alone.
        if !unsafe { self.handle.wait_for_end(timeout) } {
            return Err(Errno(libc::ETIMEDOUT));
        }
        // It is kept: the caller frees the handle.
        std::mem::forget(claim);
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.is_claimed.store(false, Release);
    }
}

/// Spawns a fiber, and puts its handle there, if it is wanted.
fn spawn(runtime: &Handle, builder: Builder, call: Call, fiber: *mut *mut FbFiber) -> Answer {
    let handle = builder.spawn_with(runtime, move || call.run())?;
    if let Some(place) = NonNull::new(fiber) {
        let new = FbFiber {
            handle,
            is_claimed: AtomicBool::new(false),
        };
        // SAFETY: the program's promise: a handle may be written there.
        unsafe { place.write(Box::into_raw(Box::new(new))) };
    }
    Ok(0)
}

/// Why a fiber's function was not called, or did not return.
fn reason(payload: &(dyn Any + Send)) -> Errno {
    match payload.is::<fibrant::Cancelled>() {
        true => Errno(libc::ECANCELED),
        // Functions of C do not panic: there was no stack.
        false => Errno(libc::ENOMEM),
    }
}

/// # Safety
/// The header, for `fb_join`.
unsafe fn join(fiber: *mut FbFiber, result: *mut *mut c_void, timeout: Option<Duration>) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { behind(fiber)? }.wait(timeout)?;
    // SAFETY: it was made by `spawn`, and whoever has joined it is the last that uses it.
    let ended = unsafe { Box::from_raw(fiber) };
    let returned = match ended.handle.join() {
        Ok(returned) => returned.0,
        Err(payload) => match reason(&*payload) {
            Errno(libc::ECANCELED) => ptr::without_provenance_mut(usize::MAX),
            error => return Err(error),
        },
    };
    // SAFETY: the caller's promise.
    unsafe { put(result, returned) };
    Ok(0)
}

/// Waits for a fiber, or for a function on a real thread, which may use what is on the caller's stack.
fn wait_for(handle: JoinHandle<Pointer>, result: *mut *mut c_void) -> Answer {
    let _guard = defer_cancel();
    let returned = handle.join().map_err(|payload| reason(&*payload))?;
    // SAFETY: the program's promise: the result may be written there.
    unsafe { put(result, returned.0) };
    Ok(0)
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_spawn(
    fiber: *mut *mut FbFiber,
    function: Option<Function>,
    argument: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let call = unsafe { Call::new(function, argument)? };
        spawn(&Handle::try_current_or_global()?, Builder::new(), call, fiber)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_spawn_in(
    runtime: *mut FbRuntime,
    fiber: *mut *mut FbFiber,
    attr: *const Attributes,
    function: Option<Function>,
    argument: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let (call, builder) = unsafe { (Call::new(function, argument)?, read(attr)?.builder()?) };
        // SAFETY: the program's promise.
        spawn(&unsafe { meant(runtime)? }, builder, call, fiber)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_join(fiber: *mut FbFiber, result: *mut *mut c_void) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { join(fiber, result, None) })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_join_timeout(
    fiber: *mut FbFiber,
    result: *mut *mut c_void,
    timeout: i64,
) -> c_int {
    // SAFETY: the program's promise.
    answer(|| unsafe { join(fiber, result, limit(timeout)) })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_detach(fiber: *mut FbFiber) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        std::mem::forget(unsafe { behind(fiber)? }.claim()?);
        // SAFETY: it was made by `spawn`, and whoever has claimed it is the last that uses it.
        drop(unsafe { Box::from_raw(fiber) });
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_finished(fiber: *const FbFiber) -> c_int {
    // SAFETY: the program's promise.
    answer(|| Ok(unsafe { behind(fiber)? }.handle.is_finished().into()))
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_cancel(fiber: *mut FbFiber) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        unsafe { behind(fiber)? }.handle.cancel();
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_cancelled() -> c_int {
    answer(|| Ok(fiber::current().is_some_and(|fiber| fiber.is_cancelled()).into()))
}

fiber_local! {
    /// Puts off cancelling, if the fiber with this number has said so: what runs in `fb_run` has the locals of its thread, which stay.
    static DEFERRED: RefCell<Option<(u64, DeferCancel)>> = const { RefCell::new(None) };
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_set_cancel(enabled: c_int) -> c_int {
    answer(|| {
        let me = fb_self_id();
        let guard = (enabled == 0).then(|| (me, defer_cancel()));
        // A fiber whose locals have ended is not cancelled any more.
        let Ok(before) = DEFERRED.try_with(|deferred| deferred.replace(guard)) else {
            return Ok(0);
        };
        Ok(before.is_none_or(|(fiber, _)| fiber != me).into())
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_id(fiber: *const FbFiber) -> u64 {
    // SAFETY: the program's promise.
    guard(|| Ok(unsafe { behind(fiber)? }.handle.id())).unwrap_or(0)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_self_id() -> u64 {
    guard(|| Ok(fiber::current().map_or(0, |fiber| fiber.id()))).unwrap_or(0)
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_self_name(buffer: *mut c_char, size: usize) -> c_int {
    answer(|| {
        let buffer = NonNull::new(buffer.cast::<u8>()).ok_or(INVALID)?;
        let fiber = fiber::current().ok_or(Errno(libc::ESRCH))?;
        let name = fiber.name().unwrap_or("").as_bytes();
        if name.len() >= size {
            return Err(Errno(libc::ERANGE));
        }
        // SAFETY: the program's promise: the buffer has that size, which is enough for the name and the zero at its end.
        unsafe {
            buffer.copy_from_nonoverlapping(NonNull::from(name).cast(), name.len());
            buffer.add(name.len()).write(0);
        }
        Ok(c_int::try_from(name.len()).unwrap_or(c_int::MAX))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_sleep(time: i64) -> c_int {
    answer(|| {
        fibrant::sleep(span(time));
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_yield() -> c_int {
    answer(|| {
        fibrant::yield_now();
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_run_on(
    runtime: *mut FbRuntime,
    worker: usize,
    function: Option<Function>,
    argument: *mut c_void,
    result: *mut *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let (runtime, call) = unsafe { (meant(runtime)?, Call::new(function, argument)?) };
        let builder = Builder::new().worker(worker);
        wait_for(builder.spawn_with(&runtime, move || call.run())?, result)
    })
}

/// See the header.
///
/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fb_blocking(
    function: Option<Function>,
    argument: *mut c_void,
    result: *mut *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the program's promise.
        let call = unsafe { Call::new(function, argument)? };
        if Runtime::current().is_none() {
            // SAFETY: the program's promise.
            unsafe { put(result, call.run().0) };
            return Ok(0);
        }
        // It panics if there is no thread, and has no other way to say so.
        let spawned = panic::catch_unwind(move || fibrant::spawn_blocking(move || call.run()));
        wait_for(spawned.map_err(|_| Errno(libc::EAGAIN))?, result)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn fb_set_hooks(enabled: c_int) -> c_int {
    answer(|| {
        let before = hook::is_enabled();
        hook::set_enabled(enabled != 0);
        Ok(before.into())
    })
}
