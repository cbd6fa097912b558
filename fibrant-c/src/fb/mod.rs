//! `fibrant.h`: the runtime for C programs.
//!
//! The header says what each function does; here is how. Every function of it is one `extern "C"` function of the same name, which
//! looks at its arguments and then calls the crate `fibrant`, by way of `error::answer`. What the program is given is a pointer to
//! a box, which the last function that takes it opens again.
//!
//! - `error`: how results become numbers, and why no unwinding reaches a caller;
//! - `argument`: what is read from the program: names, durations, structures that may grow, functions;
//! - [`runtime`], [`fiber`], [`channel`], [`select`], [`mutex`], [`count`], [`local`], [`dump`]: the sections of the header.
//!
//! # What is asked of the caller
//!
//! All of these functions are unsafe for the same reasons, which are those of any C API: a handle is one that this library has made, of that
//! kind, and has not been freed; a pointer that is not null may be read or written as its type says; a name ends with a zero
//! byte; a function may be called with its argument, from any thread. The `# Safety` sections say no more than "the header".

mod argument;
mod error;

pub mod channel;
pub mod count;
pub mod dump;
pub mod fiber;
pub mod local;
pub mod mutex;
pub mod runtime;
pub mod select;
