//! The timer itself.
//!
//! Anyone may cancel, refresh or reset it, from any thread; it is armed in the wheel of one worker, which alone touches the
//! wheel. What they agree on is `due`, one atomic number:
//!
//! - a moment: it is to fire then. It may be moved. The wheel may know of another moment yet: if its alarm goes off too early
//!   it is armed anew, and if the moment has moved forward the worker is told.
//! - [`FIRED`]: it has fired, for the last time.
//! - [`CANCELLED`]: it will not.
//!
//! One-shot timers are work that [`stop`](crate::runtime::Runtime::stop) waits for: begun when armed, ended when their fiber
//! has been spawned, or when they were cancelled and their worker has taken them out. Repeating ones are not.

use crate::clock;
use crate::scheduler::{Alarm, Desk, Phase, Timed, Worker};
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;

const FIRED: u64 = 0;
const CANCELLED: u64 = 1;
/// The first number that is a moment.
const FIRST_MOMENT: u64 = 2;

/// A function that will run later: see [`after`](super::after) and [`every`](super::every). It can be cancelled and moved from
/// any thread. Dropping it detaches it: it fires all the same.
///
/// ```
/// use fibrant::timer;
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let watchdog = timer::after(Duration::from_secs(3600), || println!("nothing heard for an hour"));
///     assert!(watchdog.refresh()); // heard something: another hour
///     assert!(watchdog.reset(Duration::from_secs(60), true)); // from now on, a minute
///     assert!(watchdog.cancel());
///     assert!(!watchdog.refresh());
/// });
/// ```
pub struct Timer {
    inner: Arc<Inner>,
}

/// What the handle, the wheel and a running call share.
#[repr(C)]
struct Inner {
    /// Its alarm. First, so that its address is this one's. The worker's.
    timed: Timed,
    /// When it is due, or what became of it.
    due: AtomicU64,
    /// The moment from which it was counted, and for how long.
    start: AtomicU64,
    length: AtomicU64,
    /// What it runs. The worker's, or that of the call in progress.
    callback: UnsafeCell<Callback>,
    /// Whether a call of a repeating timer is in progress.
    is_running: AtomicBool,
    repeats: bool,
    /// The worker it belongs to.
    desk: &'static Desk,
    armed_at: &'static Location<'static>,
}

enum Callback {
    Once(Box<dyn FnOnce() + Send>),
    /// Returns whether it is to be called again.
    Repeating(Box<dyn FnMut() -> bool + Send>),
    /// It has been taken out to be called, or for good.
    Gone,
}

// SAFETY: the alarm is touched by its worker only. The callback, which may be sent, is touched by the worker while no call is
// in progress, and by that call, on the same worker, otherwise. The rest is atomic or never changes.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Timer {
    #[track_caller]
    pub(super) fn once(delay: Duration, f: Box<dyn FnOnce() + Send>) -> Timer {
        Timer::arm(delay, Callback::Once(f), false)
    }

    #[track_caller]
    pub(super) fn repeating(period: Duration, mut f: Box<dyn FnMut() + Send>) -> Timer {
        Timer::repeating_while(
            period,
            Box::new(move || {
                f();
                true
            }),
        )
    }

    #[track_caller]
    pub(super) fn repeating_while(period: Duration, f: Box<dyn FnMut() -> bool + Send>) -> Timer {
        Timer::arm(period, Callback::Repeating(f), true)
    }

    #[track_caller]
    fn arm(length: Duration, callback: Callback, repeats: bool) -> Timer {
        let Some(worker) = Worker::current() else {
            panic!("a timer was armed outside a runtime: call it from a fiber, or inside fibrant::run");
        };
        let start = clock::now();
        let length = clock::nanoseconds(length);
        let due = start.saturating_add(length);
        let inner = Arc::new(Inner {
            timed: Timed {
                alarm: Alarm::new(),
                expire: Inner::expire,
            },
            due: AtomicU64::new(due),
            start: AtomicU64::new(start),
            length: AtomicU64::new(length),
            callback: UnsafeCell::new(callback),
            is_running: AtomicBool::new(false),
            repeats,
            desk: worker.desk,
            armed_at: Location::caller(),
        });
        if !repeats {
            worker.desk.note_begun(1);
        }
        Inner::insert(Arc::clone(&inner), worker, due);
        Timer { inner }
    }

    /// Makes sure it does not fire. False if it has fired for the last time, or was cancelled: a call that is in progress goes
    /// on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// fibrant::run(|| {
    ///     let timer = fibrant::timer::after(Duration::from_secs(60), || ());
    ///     assert!(timer.cancel());
    /// });
    /// ```
    pub fn cancel(&self) -> bool {
        let cancelled = self
            .inner
            .due
            .fetch_update(AcqRel, Acquire, |due| (due >= FIRST_MOMENT).then_some(CANCELLED))
            .is_ok();
        if cancelled {
            self.inner.tell_worker();
        }
        cancelled
    }

    /// Lets it begin anew: it is due after its whole delay or period from now. False if it has fired for the last time or was
    /// cancelled.
    ///
    /// ```
    /// # use std::time::Duration;
    /// fibrant::run(|| {
    ///     let timer = fibrant::timer::after(Duration::from_secs(60), || ());
    ///     assert!(timer.refresh());
    ///     timer.cancel();
    /// });
    /// ```
    pub fn refresh(&self) -> bool {
        self.inner.move_to(clock::now(), self.inner.length.load(Relaxed))
    }

    /// Changes its delay or period; it is counted from now, or from when it was last begun. False if it has fired for the
    /// last time or was cancelled.
    ///
    /// ```
    /// # use std::time::Duration;
    /// fibrant::run(|| {
    ///     let timer = fibrant::timer::after(Duration::from_secs(60), || ());
    ///     assert!(timer.reset(Duration::from_secs(120), false)); // two minutes from when it was armed
    ///     timer.cancel();
    /// });
    /// ```
    pub fn reset(&self, length: Duration, from_now: bool) -> bool {
        let start = if from_now {
            clock::now()
        } else {
            self.inner.start.load(Relaxed)
        };
        self.inner.move_to(start, clock::nanoseconds(length))
    }
}

impl Inner {
    /// Moves the moment it is due, if it is still to fire.
    fn move_to(self: &Arc<Inner>, start: u64, length: u64) -> bool {
        let due = start.saturating_add(length).max(FIRST_MOMENT);
        let moved = self
            .due
            .fetch_update(AcqRel, Acquire, |now| (now >= FIRST_MOMENT).then_some(due))
            .is_ok();
        if moved {
            self.start.store(start, Relaxed);
            self.length.store(length, Relaxed);
            self.tell_worker();
        }
        moved
    }

    /// Has the worker look at `due`, which has changed: at once, if this is its thread.
    fn tell_worker(self: &Arc<Inner>) {
        match Worker::current() {
            Some(worker) if ptr::eq(worker.desk, self.desk) => self.follow(worker),
            _ => {
                let inner = Arc::clone(self);
                self.desk.send(Box::new(move |worker| inner.follow(worker)));
            }
        }
    }

    /// Arms it as `due` says, or takes it out. On its worker.
    fn follow(self: &Arc<Inner>, worker: &Worker) {
        if !self.timed.alarm.is_armed() {
            return; // it has fired, or fires right now
        }
        let timed = NonNull::from(&self.timed);
        // SAFETY: it is armed, on this worker.
        unsafe { worker.driver.disarm(timed) };
        // The wheel's reference, which goes back to it or is dropped with this.
        // SAFETY: `insert` has leaked it, and it was taken out just now.
        let inner = unsafe { Arc::from_raw(Arc::as_ptr(self)) };
        match inner.due.load(Acquire) {
            CANCELLED | FIRED => inner.end(worker),
            due => Inner::insert(inner, worker, due),
        }
    }

    /// Puts it into the worker's wheel, with a reference.
    fn insert(inner: Arc<Inner>, worker: &Worker, due: u64) {
        // SAFETY: `timed` is the first field, so the address is that of the whole, which the leaked reference keeps in place
        // until the alarm has expired or is disarmed. It is not armed.
        let timed = unsafe { NonNull::new_unchecked(Arc::into_raw(inner).cast_mut().cast::<Timed>()) };
        // SAFETY: as above.
        unsafe { worker.driver.arm(timed, due) };
    }

    /// Its alarm has gone off.
    ///
    /// # Safety
    /// The address is that of an armed timer's, whose reference is the caller's to take.
    unsafe fn expire(timed: NonNull<Timed>, worker: &Worker) {
        // SAFETY: `insert` has leaked the reference; the alarm has expired, so nobody else takes it.
        let inner = unsafe { Arc::from_raw(timed.as_ptr().cast_const().cast::<Inner>()) };
        let now = clock::now();
        loop {
            let due = inner.due.load(Acquire);
            if due < FIRST_MOMENT || worker.crew.phase() == Phase::Over {
                return inner.end(worker); // cancelled, or its worker ends
            }
            if due > now {
                return Inner::insert(inner, worker, due); // it was moved meanwhile
            }
            let next = if inner.repeats {
                inner.next_after(due, now)
            } else {
                FIRED
            };
            if inner.due.compare_exchange(due, next, AcqRel, Acquire).is_ok() {
                return inner.fire(worker, due, next);
            }
        }
    }

    /// When a repeating timer that was due then is due next: one period later, or as many as it takes to be in the future.
    fn next_after(&self, due: u64, now: u64) -> u64 {
        let period = self.length.load(Relaxed).max(1);
        due.saturating_add(period.saturating_mul((now - due) / period + 1))
    }

    fn fire(self: Arc<Inner>, worker: &Worker, due: u64, next: u64) {
        if !self.repeats {
            // SAFETY: it fires once, here, on its worker, and no call is in progress.
            let callback = unsafe { ptr::replace(self.callback.get(), Callback::Gone) };
            if let Callback::Once(f) = callback {
                worker.spawn_detached(self.armed_at, f);
            }
            worker.desk.note_ended();
            return;
        }
        self.start.store(due, Relaxed);
        if worker.crew.phase() != Phase::Open {
            return; // the runtime is being stopped: repeating timers end
        }
        if !self.is_running.swap(true, AcqRel) {
            let inner = Arc::clone(&self);
            worker.spawn_detached(self.armed_at, move || inner.call());
        }
        Inner::insert(self, worker, next);
    }

    /// One call of a repeating timer, as a fiber of its worker.
    fn call(self: Arc<Inner>) {
        // SAFETY: `is_running` was set for this call, so the callback is its own.
        let callback = unsafe { ptr::replace(self.callback.get(), Callback::Gone) };
        if let Callback::Repeating(mut f) = callback {
            // If it panics, the callback is gone, and with it the timer.
            let goes_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut f));
            match goes_on {
                Ok(true) => {
                    // SAFETY: as above.
                    unsafe { *self.callback.get() = Callback::Repeating(f) };
                    self.is_running.store(false, Release);
                }
                Ok(false) => drop(Timer { inner: self }.cancel()),
                Err(payload) => {
                    Timer { inner: self }.cancel();
                    std::panic::resume_unwind(payload);
                }
            }
        }
    }

    /// It was taken out of the wheel for good.
    fn end(self: Arc<Inner>, worker: &Worker) {
        if !self.is_running.load(Acquire) {
            // SAFETY: it is out of the wheel and no call is in progress, so the callback is the worker's.
            drop(unsafe { ptr::replace(self.callback.get(), Callback::Gone) });
        }
        if !self.repeats {
            worker.desk.note_ended();
        }
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.inner.due.load(Relaxed) {
            FIRED => "fired",
            CANCELLED => "cancelled",
            _ => "armed",
        };
        f.debug_struct("Timer")
            .field("state", &state)
            .field("repeats", &self.inner.repeats)
            .finish_non_exhaustive()
    }
}
