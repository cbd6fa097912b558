//! Files that block: what cannot be waited for is done on a real thread.

use super::retry::{Answer, Caller, answer};
use crate::scheduler;

/// Makes a call on a real thread while the fiber waits for it.
///
/// # Safety
/// What the call uses may be used on another thread meanwhile.
pub(super) unsafe fn offload(caller: Caller, call: impl Fn() -> isize) -> Answer {
    caller.count().offloads.increment();
    // SAFETY: the caller's promise.
    let result = unsafe { scheduler::offload(caller.worker, &call) };
    // Without a thread to be had, it blocks the worker: late, but right.
    answer(result.unwrap_or_else(|_| call()))
}
