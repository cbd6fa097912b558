//! Help with deadlocks, for those who ask for it: when nothing has been able to run for a while and nothing is pending that
//! could change it, the dump is printed, once. The program goes on: a plain thread may yet unpark somebody.
//!
//! [`Worker::sleep`](super::worker::Worker::sleep) calls it.

use super::crew::Phase;
use super::worker::Worker;
use crate::clock;
use crate::fiber::{TaskRef, WaitReason};
use std::sync::atomic::Ordering::Relaxed;

/// How long the worker may sleep before it looks.
pub(super) fn next_look(worker: &Worker) -> Option<u64> {
    let patience = worker.crew.deadlock_after?;
    if worker.crew.deadlock_reported.load(Relaxed) {
        return None;
    }
    let since = worker.desk.idle_since.load(Relaxed).max(worker.last_look.get());
    Some(since.saturating_add(clock::nanoseconds(patience)))
}

/// Looks whether nothing has moved for too long, and says so.
pub(super) fn look(worker: &Worker) {
    let crew = &worker.crew;
    let Some(patience) = crew.deadlock_after else {
        return;
    };
    worker.last_look.set(worker.now());
    let since = worker.now().saturating_sub(clock::nanoseconds(patience));
    let stuck = crew.every_desk(|_, desk| {
        let idle_since = desk.idle_since.load(Relaxed);
        let is_idle = !desk.is_manned.load(Relaxed) || (idle_since != 0 && idle_since <= since);
        is_idle
            && desk.ready.load(Relaxed) == 0
            && desk.inbox().is_empty()
            && desk.roster.first_stamp() == u64::MAX
            && desk.alarms.load(Relaxed) == 0
            && desk.events.load(Relaxed) == 0
    });
    if !stuck || crew.had_outside_work_since(since) || crew.phase() != Phase::Open {
        return;
    }
    let fibers = crew.tasks(|_| true);
    let waits_for_event = |task: &TaskRef| matches!(task.waiting(), Some((WaitReason::Descriptor { .. }, _)));
    if !fibers.is_empty()
        && !fibers.iter().any(waits_for_event)
        && !crew.deadlock_reported.swap(true, Relaxed)
    {
        eprintln!(
            "fibrant: no fiber of '{}' could run for {patience:?}, and no timer, event or offloaded call is pending; \
             they wait for each other, or for another thread:\n{}",
            crew.name,
            super::dump::Dump::of(crew)
        );
    }
}
