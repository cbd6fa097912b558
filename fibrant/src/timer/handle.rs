//! The timer itself, and how it fires.
//!
//! Anyone may cancel, refresh or reset it, from any thread; it is armed in the wheel of one worker, which alone touches the
//! wheel. What they share is its [`Record`]; what they agree on is the state there, behind a lock: whether the record is still
//! this timer's, when it is due, and whether it was cancelled. The wheel may know of another moment yet: if its alarm goes off
//! too early it is armed anew, and if the moment has moved, or the timer was cancelled, the worker is told.
//!
//! A timer is over when it has fired for the last time, or was cancelled, or its worker ended. Then its worker takes the alarm
//! out of the wheel and *retires* the record. A repeating timer's function is out of the record while it is called, and comes
//! back if the timer is not over by then.
//!
//! One-shot timers are work that [`stop`](crate::runtime::Runtime::stop) waits for: begun when armed, ended when their fiber
//! has been spawned, or when they were cancelled and their worker has taken them out. Repeating ones are not.

use super::kept::Kept;
use super::records::{Function, Generation, Held, Once, Record, Repeating, State};
use crate::clock;
use crate::primitives::without_waiting;
use crate::scheduler::{Crew, Desk, Phase, Timed, Worker};
use std::fmt;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

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
    record: &'static Record,
    /// The record is this timer's as long as it is of this generation.
    generation: Generation,
}

impl Timer {
    #[track_caller]
    pub(super) fn once(delay: Duration, f: impl FnOnce() + Send + 'static) -> Timer {
        Timer::arm(delay, Box::new(Once(f)), false)
    }

    /// One that goes on while its function says so.
    #[track_caller]
    pub(super) fn repeating(period: Duration, f: impl FnMut() -> bool + Send + 'static) -> Timer {
        Timer::arm(period, Box::new(Repeating(f)), true)
    }

    #[track_caller]
    fn arm(length: Duration, function: Box<dyn Function>, repeats: bool) -> Timer {
        let Some(worker) = Worker::current() else {
            panic!("a timer was armed outside a runtime: call it from a fiber, or inside fibrant::run");
        };
        let start = clock::now();
        let home = worker.home();
        let (record, state) = Kept::of(worker).records().take(function);
        state.start.set(start);
        state.length.set(clock::nanoseconds(length));
        state.repeats.set(repeats);
        state.armed_at.set(Location::caller());
        state.desk.set(Some(home));
        let (generation, due) = (state.generation.get(), state.due());
        drop(state);
        if !ptr::eq(home, worker.desk) {
            send_home(record, home, Arc::clone(&worker.crew));
        } else {
            if !repeats {
                worker.desk.note_begun(1);
            }
            set_alarm(record, worker, due);
        }
        Timer { record, generation }
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
        let Some(state) = self.state() else {
            return false;
        };
        match Worker::current() {
            // The same as below, for what is done most often.
            Some(worker) if self.is_armed_by(worker, &state) => take_out(self.record, state, worker),
            _ => {
                state.is_cancelled.set(true);
                self.follow_up(state);
            }
        }
        true
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
        let now = clock::now();
        let Some(state) = self.state() else {
            return false;
        };
        state.start.set(now);
        self.follow_up(state);
        true
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
        let now = clock::now();
        let Some(state) = self.state() else {
            return false;
        };
        if from_now {
            state.start.set(now);
        }
        state.length.set(clock::nanoseconds(length));
        self.follow_up(state);
        true
    }

    /// Its state, locked, unless it is over.
    #[inline]
    fn state(&self) -> Option<Held> {
        let state = self.record.lock();
        (state.generation.get() == self.generation && !state.is_cancelled.get()).then_some(state)
    }

    /// Whether its alarm is in the wheel of this worker, which is that of the calling thread.
    #[inline]
    fn is_armed_by(&self, worker: &Worker, state: &State) -> bool {
        state.desk.get().is_some_and(|desk| ptr::eq(worker.desk, desk)) && self.record.timed.is_armed()
    }

    /// Has the worker do what the state, which has changed, says: at once, if this is its thread.
    fn follow_up(&self, state: Held) {
        let desk = state.desk.get().expect("it was armed on a worker");
        match Worker::current() {
            Some(worker) if ptr::eq(worker.desk, desk) => follow(self.record, state, worker),
            _ => {
                drop(state);
                let Timer { record, generation } = *self;
                desk.send(Box::new(move |worker| {
                    let state = record.lock();
                    if state.generation.get() == generation {
                        follow(record, state, worker);
                    }
                }));
            }
        }
    }
}

/// Sets the alarm as the state says, or takes the timer out. On its worker.
fn follow(record: &'static Record, state: Held, worker: &Worker) {
    if !record.timed.is_armed() {
        return; // it fires right now, or is on its way to this worker: who has it looks at the state
    }
    if state.is_cancelled.get() {
        return take_out(record, state, worker);
    }
    // SAFETY: it is armed, on this worker.
    unsafe { Kept::of(worker).disarm(record.timed()) };
    let due = state.due();
    drop(state);
    set_alarm(record, worker, due);
}

/// Ends a timer whose alarm is in the wheel. On its worker.
#[inline(always)]
fn take_out(record: &'static Record, state: Held, worker: &Worker) {
    let kept = Kept::of(worker);
    // SAFETY: it is armed, on this worker.
    unsafe { kept.disarm(record.timed()) };
    retire(record, state, worker, kept);
}

/// Sends a timer that a guest has armed to the worker that it belongs to.
#[cold]
fn send_home(record: &'static Record, home: &'static Desk, crew: Arc<Crew>) {
    // Somebody is to be waited for at every moment: first the errand, then the timer.
    crew.note_begun_outside();
    home.send(Box::new(move |worker| {
        let state = record.lock();
        if !state.repeats.get() {
            worker.desk.note_begun(1);
        }
        let due = state.due();
        // It is another crew's desk if the timer was armed when its own was over.
        if state.is_cancelled.get() || worker.crew.phase() == Phase::Over || !Arc::ptr_eq(&crew, &worker.crew)
        {
            retire(record, state, worker, Kept::of(worker));
        } else {
            drop(state);
            set_alarm(record, worker, due);
        }
        crew.note_ended_outside();
    }));
}

/// Puts a timer into the wheel of its worker.
fn set_alarm(record: &'static Record, worker: &Worker, due: u64) {
    // SAFETY: records stay in place for ever. It is not armed.
    without_waiting(|| unsafe { Kept::of(worker).arm(record.timed(), due) });
}

/// Ends a timer, which is out of the wheel.
#[inline(always)]
fn retire(record: &'static Record, state: Held, worker: &Worker, kept: &Kept) {
    let repeats = state.repeats.get();
    let function = kept.records().put(record, state);
    if !repeats {
        worker.desk.note_ended();
    }
    // Last, as it may run anything.
    drop(function);
}

/// The alarm of a timer has gone off.
///
/// # Safety
/// Its purpose is a timer's, and it was armed by this worker and has just expired.
pub(crate) unsafe fn expire(timed: NonNull<Timed>, worker: &Worker) {
    // SAFETY: by the contract it is the head of a record; records stay for ever.
    let record: &'static Record = unsafe { timed.cast::<Record>().as_ref() };
    let state = record.lock();
    let phase = worker.crew.phase();
    let repeats = state.repeats.get();
    if state.is_cancelled.get() || phase == Phase::Over || (repeats && phase != Phase::Open) {
        // In a runtime that is being stopped repeating timers end; in one that is over all do.
        return retire(record, state, worker, Kept::of(worker));
    }
    let now = clock::now();
    let due = state.due();
    if due > now {
        drop(state);
        return set_alarm(record, worker, due); // it was moved meanwhile
    }
    let armed_at = state.armed_at.get();
    if !repeats {
        let function = Kept::of(worker).records().put(record, state);
        // The fiber begins before the timer ends: at every moment one of them is there to be waited for.
        let function = function.expect("it is called once, now");
        worker.spawn_detached(armed_at, move || drop(function.call()));
        worker.desk.note_ended();
        return;
    }
    // The next moment is one period later, or as many as it takes to be in the future.
    let period = state.length.get().max(1);
    let missed = (now - due) / period;
    state.start.set(due.saturating_add(period.saturating_mul(missed)));
    let generation = state.generation.get();
    let (next, function) = (state.due(), state.content.take_function());
    drop(state);
    set_alarm(record, worker, next);
    // If it is gone, its last call goes on still.
    if let Some(function) = function {
        worker.spawn_detached(armed_at, move || call(Timer { record, generation }, function));
    }
}

/// One call of a repeating timer, as a fiber of its worker. If it panics its function is gone, and with it the timer.
fn call(timer: Timer, function: Box<dyn Function>) {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| function.call())) {
        Ok(Some(function)) => {
            if let Some(state) = timer.state() {
                state.content.put_function(function);
            }
        }
        Ok(None) => drop(timer.cancel()),
        Err(payload) => {
            timer.cancel();
            std::panic::resume_unwind(payload);
        }
    }
}

impl Drop for Timer {
    /// Leaves it as it is. This is here for `drop(timer::after(..))`, which says that the timer is not to be touched again, and
    /// of which lints would otherwise say that it drops nothing.
    fn drop(&mut self) {}
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("state", &if self.state().is_some() { "armed" } else { "over" })
            .finish_non_exhaustive()
    }
}
