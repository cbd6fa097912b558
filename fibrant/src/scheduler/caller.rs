//! Threads of the user's own that are workers for a while.
//!
//! `run` and `Runtime::run` make the calling thread a worker: the closure that they are given becomes its root fiber, on the
//! thread's own stack. In a `use_caller` runtime that is worker 0, which then belongs to that thread: nobody else drives it, and
//! whatever waits for one of its fibers on that thread must do so. In other runtimes it is a *guest*, a worker for as long as
//! the closure takes.
//! When its runtime is over, what is left there is given up, by its thread or by whoever shuts the runtime down: [`hands`](super::hands) tells which.

use super::cancel::Cancelled;
use super::crew::{Crew, Phase};
use super::driver::{Purpose, Timed};
use super::group::Locals;
use super::hands::Hands;
use super::scheduled::{Making, Scheduled, end_child};
use super::worker::Worker;
use crate::clock;
use crate::fiber::{Payload, TaskRef, Thread};
use crate::sys;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// How long a thread whose function was cancelled by a shutdown stays for the other fibers of its worker: as long as the shutdown does.
const GRACE: Duration = Duration::from_secs(1);

/// A worker that a thread of the user's drives.
pub(crate) struct Caller {
    worker: Worker,
    /// The thread that it belongs to, once there is one.
    owner: OnceLock<ThreadId>,
    /// Who may touch the worker.
    hands: Hands,
}

/// Why a root fiber did not return.
pub(crate) enum Ended {
    Panicked(Payload),
    Cancelled,
    /// It has not begun: the worker was given up before, or is in the middle of something.
    TooLate,
}

impl Ended {
    /// Goes on with the panic; and with one that says why, if it was cancelled: nobody joins it who would see that, and whoever
    /// called does not expect to be unwound without a word.
    #[track_caller]
    pub(crate) fn pass_on(self, runtime: &str) -> ! {
        match self {
            Ended::Panicked(payload) => panic::resume_unwind(payload),
            Ended::Cancelled => panic!(
                "another thread has shut the runtime '{runtime}' down while this function ran in it, and waited"
            ),
            Ended::TooLate => panic!(
                "another thread has shut the runtime '{runtime}' down before this function could run in it"
            ),
        }
    }
}

// SAFETY: the worker is touched by whoever has it only: see `hands`. Its owner alone runs fibers; another thread drops only what may be dropped
// anywhere.
unsafe impl Send for Caller {}
// SAFETY: as above.
unsafe impl Sync for Caller {}

thread_local! {
    /// The workers that belong to this thread. Only looked at outside fibers.
    static OWN: RefCell<Vec<Weak<Caller>>> = const { RefCell::new(Vec::new()) };
}

impl Caller {
    /// A worker that will belong to the first thread that enters it. It must not have been used yet.
    pub(crate) fn new(worker: Worker) -> Arc<Caller> {
        Arc::new(Caller {
            worker,
            owner: OnceLock::new(),
            hands: Hands::new(),
        })
    }

    /// Makes the worker belong to the calling thread, if it belongs to nobody yet. Returns whether it does.
    pub(crate) fn claim(self: &Arc<Caller>) -> bool {
        let me = thread::current().id();
        let owner = self.owner.get_or_init(|| {
            OWN.with_borrow_mut(|own| {
                own.retain(|caller| caller.strong_count() > 0);
                own.push(Arc::downgrade(self));
            });
            me
        });
        *owner == me
    }

    /// Runs `f` as the root fiber of the worker, on this thread. The worker belongs to this thread, which is no worker now.
    #[track_caller]
    pub(crate) fn enter<R>(self: &Arc<Caller>, f: impl FnOnce() -> R) -> R {
        match self.try_enter(f) {
            Ok(value) => value,
            Err(ended) => ended.pass_on(self.runtime()),
        }
    }

    /// The same, for those who have something to do before they pass a panic on.
    #[track_caller]
    pub(crate) fn try_enter<R>(self: &Arc<Caller>, f: impl FnOnce() -> R) -> Result<R, Ended> {
        assert!(
            self.claim(),
            "a worker is entered by the thread that it belongs to"
        );
        let _manned = self.occupy().ok_or(Ended::TooLate)?;
        let result = enter(&self.worker, f);
        if let Err(Ended::Cancelled) = result {
            // Everybody was, and nobody else lets the others unwind.
            self.run_fibers(clock::after(GRACE), |_| self.started() > 0);
        }
        result
    }

    /// Has the calling thread, which it belongs to, man it until the result is dropped; unless it has been given up.
    fn occupy(&self) -> Option<Manned<'_>> {
        self.hands.man().then_some(Manned(self))
    }

    /// Runs the worker's fibers on this thread while `more` says so, at most until then. Does nothing if it has been given up.
    pub(crate) fn drive(self: &Arc<Caller>, deadline: u64, more: impl Fn(&Worker) -> bool) {
        assert!(
            self.claim(),
            "a worker is driven by the thread that it belongs to"
        );
        if let Some(_manned) = self.occupy() {
            self.run_fibers(deadline, more);
        }
    }

    fn run_fibers(&self, deadline: u64, more: impl Fn(&Worker) -> bool) {
        let worker = &self.worker;
        let timed = Timed::new();
        worker.man(|| {
            if deadline != clock::NEVER {
                // SAFETY: it is new, and stays here until it has expired or is disarmed below.
                unsafe {
                    worker
                        .driver
                        .arm(NonNull::from(&timed), Purpose::Nothing, deadline)
                };
            }
            worker.drive(|| more(worker) && (deadline == clock::NEVER || clock::now() < deadline));
            if timed.is_armed() {
                // SAFETY: it is armed, here.
                unsafe { worker.driver.disarm(NonNull::from(&timed)) };
            }
        });
    }

    /// Gives up what is left, if the crew is over and nobody else does: see [`Worker::abandon_rest`]. If its thread mans it just now, that does it
    /// when it leaves.
    pub(crate) fn give_up(self: &Arc<Caller>) {
        let is_own_thread = self.claim();
        self.give_up_on(is_own_thread);
    }

    /// Gives up what is left with a guest that leaves, on its own thread, whether or not the crew is over. Nobody else knows of it.
    pub(crate) fn abandon_rest(self: &Arc<Caller>) {
        assert!(self.claim(), "a guest leaves by itself");
        // Nobody enters it any more, not even what is dropped here.
        if self.hands.give_up(|| true) {
            self.worker.abandon_rest(true);
            self.hands.note_given_up();
        }
    }

    fn give_up_on(&self, is_own_thread: bool) {
        let crew = &self.worker.crew;
        if self.hands.give_up(|| crew.phase() == Phase::Over) {
            self.worker.abandon_rest(is_own_thread);
            self.hands.note_given_up();
        }
    }

    /// The crew that it is of.
    pub(super) fn crew(&self) -> &Crew {
        &self.worker.crew
    }

    /// The name of its runtime.
    pub(crate) fn runtime(&self) -> &str {
        &self.worker.crew.name
    }

    /// Whether any fiber is with it.
    pub(crate) fn has_fibers(&self) -> bool {
        !self.worker.desk.roster.is_empty()
    }

    /// How many started fibers it has.
    pub(crate) fn started(&self) -> usize {
        self.worker.desk.roster.started()
    }
}

/// The thread that a worker belongs to is at work there. It leaves when this is dropped, also by a panic.
struct Manned<'a>(&'a Caller);

impl Drop for Manned<'_> {
    fn drop(&mut self) {
        self.0.hands.leave();
        // What has ended here may have been the last, and nobody sleeps here who would find that out.
        self.0.worker.crew.finish_if_drained();
        self.0.give_up_on(true);
    }
}

/// The worker of the calling thread's own that may be the one to run this fiber, if there is one.
pub(super) fn own_worker_of(fiber: &Scheduled) -> Option<Arc<Caller>> {
    let desk = fiber.owner()?;
    OWN.with_borrow(|own| {
        own.iter()
            .filter_map(Weak::upgrade)
            .find(|caller| caller.worker.crew.index_of(desk).is_some())
    })
}

/// Runs `f` as the root fiber of a worker that this thread is for as long as that takes.
#[track_caller]
fn enter<R>(worker: &Worker, f: impl FnOnce() -> R) -> Result<R, Ended> {
    let making = Making {
        id: Thread::with(Thread::next_id),
        name: thread::current().name().map(|name| Arc::new(name.to_owned())),
        spawned_at: Location::caller(),
        stack_size: 0,
        is_bound: true,
        locals: Locals::Workers,
        scope: None,
    };
    worker.man(|| {
        // SAFETY: what it would run is nothing; the closure runs here, on the thread's own stack.
        let (root, task) = unsafe { Scheduled::make(making, || ()) };
        let scheduled = Scheduled::of(&task);
        // SAFETY: it is new, and this is the thread that it is.
        unsafe { scheduled.context.refer_to(&worker.context) };
        // SAFETY: it is new, and removed below.
        let is_there = unsafe {
            worker
                .desk
                .roster
                .add_started(root, |_| scheduled.set_owner(worker.desk))
        };
        assert!(is_there, "whoever mans a worker has found it open");
        worker.set_root(Some(root));
        worker.set_fiber(Some(root));
        // Whoever has cancelled everybody, and has not found it, has said so before it looked.
        if worker.crew.is_cancelling() {
            worker.note_refused(scheduled);
            scheduled.task.cancel();
        }
        let process = sys::process();
        // What ran here last may have been the scheduler's own code.
        worker.thread().set_scheduling(false);
        let result = panic::catch_unwind(AssertUnwindSafe(f));
        if sys::process() != process {
            end_child(&result);
        }
        worker.set_fiber(None);
        worker.set_root(None);
        // What is left to drop need not be `Send`, and this thread may not come back.
        worker.clear_up();
        let was_cancelled = scheduled.task.wait.is_cancelled();
        // SAFETY: it was added above. The scheduler's reference ends here; others may keep theirs.
        unsafe {
            worker.desk.roster.remove(root);
            drop(TaskRef::from_raw(NonNull::cast(root)));
        }
        result.map_err(|payload| match payload {
            payload if was_cancelled && payload.is::<Cancelled>() => Ended::Cancelled,
            payload => Ended::Panicked(payload),
        })
    })
}
