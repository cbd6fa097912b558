//! libco's functions, under their names for C and under those that C++ makes of them.
//!
//! `include/co_routine.h` and its companions declare them. Handles are opaque: a coroutine is a [`Routine`](fibrant::routine::Routine),
//! and a thread's environment and its epoll are its main routine under other names.
//!
//! - [`coroutine`]: make, resume, yield, reset, release; shared stacks;
//! - [`event_loop`]: poll and the loop; hooks on and off; accept;
//! - [`condition`]: condition variables, and the C++ lock made of one;
//! - `extras`: what a coroutine has besides its stack, freed with it: [`specific`], values by key; [`environment`], variables of its
//!   own; and the resolver's state;
//! - [`mangled`]: the same functions for objects that were compiled as C++ against libco's own headers.

pub mod condition;
pub mod coroutine;
pub mod environment;
pub mod event_loop;
mod extras;
pub mod mangled;
pub mod specific;

use std::io;

/// The number of an error, for C.
fn number_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::Unsupported => libc::EPERM,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        _ => libc::EAGAIN,
    })
}

/// Tells C what went wrong.
fn set_error(number: i32) {
    // SAFETY: the address is that of this thread's variable.
    unsafe { *libc::__errno_location() = number };
}
