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

use super::records::{Callback, Generation, Record, Records, State};
use crate::clock;
use crate::primitives::without_waiting;
use crate::scheduler::{Crew, Desk, Guard, Phase, Timed, Worker};
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
        let record = Records::of(worker).take();
        let mut state = record.state.lock();
        let generation = state.generation;
        state.start = start;
        state.length = clock::nanoseconds(length);
        state.repeats = repeats;
        state.callback = callback;
        state.armed_at = Location::caller();
        let home = worker.home();
        state.desk = Some(home);
        let due = state.due();
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
        let Some(mut state) = self.state() else {
            return false;
        };
        state.is_cancelled = true;
        self.follow_up(state);
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
        let Some(mut state) = self.state() else {
            return false;
        };
        state.start = now;
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
        let Some(mut state) = self.state() else {
            return false;
        };
        if from_now {
            state.start = now;
        }
        state.length = clock::nanoseconds(length);
        self.follow_up(state);
        true
    }

    /// Its state, locked, unless it is over.
    fn state(&self) -> Option<Guard<'static, State>> {
        let state = self.record.state.lock();
        (state.generation == self.generation && !state.is_cancelled).then_some(state)
    }

    /// Has the worker do what the state, which has changed, says: at once, if this is its thread.
    fn follow_up(&self, state: Guard<'static, State>) {
        let desk = state.desk.expect("it was armed on a worker");
        match Worker::current() {
            Some(worker) if ptr::eq(worker.desk, desk) => follow(self.record, state, worker),
            _ => {
                drop(state);
                let Timer { record, generation } = *self;
                desk.send(Box::new(move |worker| {
                    let state = record.state.lock();
                    if state.generation == generation {
                        follow(record, state, worker);
                    }
                }));
            }
        }
    }
}

/// Sets the alarm as the state says, or takes the timer out. On its worker.
fn follow(record: &'static Record, state: Guard<'static, State>, worker: &Worker) {
    if !record.timed.is_armed() {
        return; // it fires right now, or is on its way to this worker: who has it looks at the state
    }
    // SAFETY: it is armed, on this worker.
    unsafe { worker.driver.disarm(record.timed()) };
    if state.is_cancelled {
        retire(record, state, worker);
    } else {
        let due = state.due();
        drop(state);
        set_alarm(record, worker, due);
    }
}

/// Sends a timer that a guest has armed to the worker that it belongs to.
#[cold]
fn send_home(record: &'static Record, home: &'static Desk, crew: Arc<Crew>) {
    // Somebody is to be waited for at every moment: first the errand, then the timer.
    crew.note_begun_outside();
    home.send(Box::new(move |worker| {
        let state = record.state.lock();
        if !state.repeats {
            worker.desk.note_begun(1);
        }
        let due = state.due();
        // It is another crew's desk if the timer was armed when its own was over.
        if state.is_cancelled || worker.crew.phase() == Phase::Over || !Arc::ptr_eq(&crew, &worker.crew) {
            retire(record, state, worker);
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
    without_waiting(|| unsafe { worker.driver.arm(record.timed(), due) });
}

/// Ends a timer, which is out of the wheel.
fn retire(record: &'static Record, mut state: Guard<'static, State>, worker: &Worker) {
    let repeats = state.repeats;
    let callback = state.retire();
    drop(state);
    Records::of(worker).put(record);
    if !repeats {
        worker.desk.note_ended();
    }
    // Last, as it may run anything.
    drop(callback);
}

/// The alarm of a timer has gone off.
///
/// # Safety
/// Its purpose is a timer's, and it was armed by this worker and has just expired.
pub(crate) unsafe fn expire(timed: NonNull<Timed>, worker: &Worker) {
    // SAFETY: by the contract it is the head of a record; records stay for ever.
    let record: &'static Record = unsafe { timed.cast::<Record>().as_ref() };
    let mut state = record.state.lock();
    let phase = worker.crew.phase();
    if state.is_cancelled || phase == Phase::Over || (state.repeats && phase != Phase::Open) {
        // In a runtime that is being stopped repeating timers end; in one that is over all do.
        return retire(record, state, worker);
    }
    let now = clock::now();
    let due = state.due();
    if due > now {
        drop(state);
        return set_alarm(record, worker, due); // it was moved meanwhile
    }
    let armed_at = state.armed_at;
    match std::mem::replace(&mut state.callback, Callback::Gone) {
        Callback::Once(f) => {
            state.retire();
            drop(state);
            // The fiber begins before the timer ends: at every moment one of them is there to be waited for.
            worker.spawn_detached(armed_at, f);
            Records::of(worker).put(record);
            worker.desk.note_ended();
        }
        repeating => {
            // The next moment is one period later, or as many as it takes to be in the future.
            let period = state.length.max(1);
            let missed = (now - due) / period;
            state.start = due.saturating_add(period.saturating_mul(missed));
            let generation = state.generation;
            let next = state.due();
            drop(state);
            set_alarm(record, worker, next);
            // If it is gone, its last call goes on still.
            if let Callback::Repeating(f) = repeating {
                worker.spawn_detached(armed_at, move || call(Timer { record, generation }, f));
            }
        }
    }
}

/// One call of a repeating timer, as a fiber of its worker. If it panics its function is gone, and with it the timer.
fn call(timer: Timer, mut f: Box<dyn FnMut() -> bool + Send>) {
    let goes_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut f));
    match goes_on {
        Ok(true) => {
            if let Some(mut state) = timer.state() {
                state.callback = Callback::Repeating(f);
            }
        }
        Ok(false) => drop(timer.cancel()),
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
