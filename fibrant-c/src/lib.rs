//! fibrant for C and C++.
//!
//! Two families of functions, each with its headers under `include/`:
//!
//! - [`libco`]: the names of Tencent's libco (`co_routine.h` and its companions): coroutines that are resumed by hand, and an event
//!   loop per thread that resumes those whose calls would have blocked;
//! - [`fb`]: `fibrant.h`, the runtime itself: N:M fibers, channels, locks.
//!
//! Linking the library also puts fibrant's hooks in front of the C library's blocking calls; outside coroutines and fibers they pass
//! through, so it may be preloaded into any program.

pub mod fb;
pub mod libco;

// The hooks are linked because the crate is named.
use fibrant as _;
