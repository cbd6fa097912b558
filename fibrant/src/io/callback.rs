//! Event callbacks: functions that become fibers when a descriptor is ready.

use crate::scheduler::{Crew, Desk, Worker};
use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A function that waits for an event. Work that [`stop`](crate::runtime::Runtime::stop) waits for, until it is called or
/// dropped.
pub(super) struct Callback {
    function: Option<Box<dyn FnOnce() + Send>>,
    /// The worker that registered it.
    pub(super) desk: &'static Desk,
    crew: Arc<Crew>,
    added_at: &'static Location<'static>,
}

impl Callback {
    pub(super) fn new(
        worker: &Worker,
        added_at: &'static Location<'static>,
        function: Box<dyn FnOnce() + Send>,
    ) -> Callback {
        worker.crew.note_begun_outside();
        worker.desk.events.fetch_add(1, Relaxed);
        Callback {
            function: Some(function),
            desk: worker.desk,
            crew: Arc::clone(&worker.crew),
            added_at,
        }
    }

    /// Makes it a fiber on its worker: at once, if this is that one.
    pub(super) fn call(mut self) {
        let function = self.function.take().expect("a callback is called once");
        let added_at = self.added_at;
        match Worker::current() {
            Some(worker) if ptr::eq(worker.desk, self.desk) => worker.spawn_detached(added_at, function),
            // It is still pending until its worker has it: `self` goes along.
            _ => {
                let desk = self.desk;
                desk.send(Box::new(move |worker| {
                    worker.spawn_detached(added_at, function);
                    drop(self);
                }));
            }
        }
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        self.desk.events.fetch_sub(1, Relaxed);
        self.crew.note_ended_outside();
    }
}
