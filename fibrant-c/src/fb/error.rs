//! Results as C has them: a number that is negative if it is an error.
//!
//! [`answer`] is around the body of every function of the header. It does two more things:
//!
//! - **A cancelled fiber's wait ends here.** fibrant's waits unwind when their fiber is cancelled. Between such a wait and this function
//!   there is Rust only; C frames are never unwound. Whoever called gets `-ECANCELED`.
//! - **A panic ends the program.** It is a bug of the library: what its callers could do wrong has been looked at before. It could be
//!   half-way through anything, and a program that is told so by a number would go on, as nobody looks at what `unlock` returns.

use fibrant::routine;
use libc::c_int;
use std::any::Any;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::process;

/// An error number, as in `errno.h`: positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) c_int);

/// What a function of the header has to say.
pub(super) type Answer = Result<c_int, Errno>;

/// An argument makes no sense.
pub(super) const INVALID: Errno = Errno(libc::EINVAL);

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(match error.kind() {
            io::ErrorKind::InvalidInput => libc::EINVAL,
            io::ErrorKind::Unsupported => libc::ENOTSUP,
            io::ErrorKind::OutOfMemory => libc::ENOMEM,
            // A runtime that takes no more work.
            io::ErrorKind::Other => libc::ESHUTDOWN,
            _ => libc::EIO,
        }))
    }
}

/// Runs the body of a function that C calls.
pub(super) fn answer(body: impl FnOnce() -> Answer) -> c_int {
    match guard(body) {
        Ok(number) => number,
        Err(Errno(number)) => -number,
    }
}

/// The same for one whose result is not such a number.
pub(super) fn guard<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // In a coroutine of libco's on a shared stack it is made elsewhere: what waits leaves something in its frames for others to find.
    let body = || {
        routine::become_somebody();
        routine::elsewhere(body)
    };
    // A wait that unwinds leaves no trace, and after anything else the program ends.
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(interruption(&*payload)))
}

/// What a wait has unwound with, as an error. Ends the program if it was something else.
pub(super) fn interruption(payload: &(dyn Any + Send)) -> Errno {
    if payload.is::<fibrant::Cancelled>() {
        Errno(libc::ECANCELED)
    } else if fibrant::is_time_up(payload) {
        // Rust code has set the fiber a time limit, and calls C inside it.
        Errno(libc::ETIMEDOUT)
    } else {
        eprintln!("fibrant: that was a bug in the library; the program ends");
        process::abort()
    }
}
