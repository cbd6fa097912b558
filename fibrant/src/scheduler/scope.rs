//! Scopes: fibers that borrow from the one that spawned them, because it waits for them.

use super::cancel::Interruption;
use super::completion::Completion;
use super::crew::Crew;
use super::join::{announce, wait_on_thread};
use super::turn::{WaitEnd, Waiting};
use super::worker::Worker;
use crate::clock;
use crate::fiber::WaitReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// What a scope and its fibers share.
#[derive(Debug)]
pub(crate) struct ScopeData {
    /// The fibers that have not ended, and one for the scope itself until it waits.
    running: AtomicUsize,
    /// Whether fibers that have not started must not.
    cancelled: AtomicBool,
    /// Whether a fiber panicked and nobody has taken that from its join handle.
    panicked: AtomicBool,
    /// Completed by whoever brings `running` to zero.
    all_ended: Completion,
}

// SAFETY: everything is atomic but the waiter in the completion, which its states assign to one side at a time; a waiter may be
// sent and woken from anywhere.
unsafe impl Send for ScopeData {}
// SAFETY: as above.
unsafe impl Sync for ScopeData {}

impl ScopeData {
    pub(crate) fn new() -> ScopeData {
        ScopeData {
            running: AtomicUsize::new(1),
            cancelled: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            all_ended: Completion::new(),
        }
    }

    /// A fiber is about to be spawned.
    pub(crate) fn note_spawned(&self) {
        self.running.fetch_add(1, Relaxed);
    }

    /// A fiber has ended and everything that it borrowed is gone; or the scope's own function has.
    pub(crate) fn note_ended(&self) {
        if self.running.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: the count reaches zero once: it cannot grow again, as only the scope's function and its fibers spawn.
            unsafe { self.all_ended.complete() };
        }
    }

    /// A fiber's panic was dropped.
    pub(super) fn note_panicked(&self) {
        self.panicked.store(true, Relaxed);
    }

    /// Whether a fiber panicked and nobody has taken that from its join handle.
    pub(crate) fn has_panicked(&self) -> bool {
        self.panicked.load(Relaxed)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire)
    }

    /// Cancels the scope's fibers.
    pub(crate) fn cancel(self: &Arc<ScopeData>, crew: &Crew) {
        self.cancelled.store(true, Release);
        let is_ours = |fiber: &super::scheduled::Scheduled| {
            fiber.scope.as_ref().is_some_and(|scope| Arc::ptr_eq(scope, self))
        };
        for task in crew.tasks(is_ours) {
            task.cancel();
        }
    }

    /// Waits for all fibers of the scope. If whoever waits is cancelled meanwhile, the fibers are, and the wait goes on:
    /// what they borrow must stay. Returns whether it was.
    pub(crate) fn wait_for_all(self: &Arc<ScopeData>) -> Option<Interruption> {
        self.note_ended();
        let mut interruption = None;
        while !self.all_ended.is_done() {
            let worker = match Worker::current() {
                Some(worker) if worker.fiber().is_some() => worker,
                _ => {
                    wait_on_thread(&self.all_ended, clock::NEVER);
                    break;
                }
            };
            let end = worker.wait(
                Waiting {
                    reason: WaitReason::Scope,
                    park: false,
                    // The first interruption is passed on to the fibers. A second one would find them told already.
                    interruptible: interruption.is_none(),
                    deadline: clock::NEVER,
                },
                |task, number| announce(&self.all_ended, task, number),
            );
            // SAFETY: the scope's owner is the only one who waits for this.
            unsafe { self.all_ended.forget(end == WaitEnd::Woken) };
            if let WaitEnd::Interrupted(kind) = end {
                interruption = Some(kind);
                self.cancel(&worker.crew);
            }
        }
        interruption
    }
}
