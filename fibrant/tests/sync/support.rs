//! What these tests share: who waits for a lock, as the dump tells.

use crate::patience::eventually;
use fibrant::runtime::Handle;

/// What the dump of a runtime says about the lock with this name, if one of its fibers waits for it.
pub fn subject(runtime: &Handle, name: &str) -> Option<String> {
    let name = format!("'{name}'");
    let fibers = runtime.dump().fibers;
    let mut subjects = fibers.into_iter().filter_map(|fiber| fiber.subject);
    subjects.find(|subject| subject.contains(&name))
}

/// How many wait for the lock with this name, fibers and threads, as long as one of the runtime's fibers is among them.
pub fn waiters(runtime: &Handle, name: &str) -> usize {
    let Some(subject) = subject(runtime, name) else {
        return 0;
    };
    let waiters = subject.split_once("wanted by ").map(|(_, waiters)| waiters);
    waiters.map_or(0, |waiters| waiters.split(", ").count())
}

/// Waits until so many wait for the lock with this name.
#[track_caller]
pub fn until_waiting(runtime: &Handle, name: &str, count: usize) {
    eventually(&format!("{count} wait for '{name}'"), || {
        waiters(runtime, name) == count
    });
}

/// How many fibers of the runtime wait for a lock.
pub fn waiting(runtime: &Handle) -> usize {
    let fibers = runtime.dump().fibers;
    let waits = fibers.iter().map(|fiber| fiber.wait);
    waits
        .filter(|wait| matches!(wait, Some(fibrant::fiber::WaitReason::Lock { .. })))
        .count()
}
