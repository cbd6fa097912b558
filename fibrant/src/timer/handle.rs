//! The timer itself, and how it fires.
//!
//! Anyone may cancel, refresh or reset it, from any thread; it is armed in the wheel of one worker, which alone touches the
//! wheel. What they share is its [`Record`]; what they agree on is the state there, behind a lock: whether the record is still
//! this timer's, when it is due, and whether it was cancelled. The wheel may know of an earlier moment: when that comes, the alarm
//! is armed anew. If the timer is due earlier now, or was cancelled, its worker is told.
//!
//! A timer is over when it has fired for the last time, or was cancelled, or its worker ended. Then its worker *retires* the record;
//! what becomes of its alarm, if that is in the wheel still, is told in [`kept`](super::kept). A repeating timer's function is out of
//! the record while it is called, and comes back if the timer is not over by then.
//!
//! One-shot timers are work that [`stop`](crate::runtime::Runtime::stop) waits for: begun when armed, ended when their fiber
//! has been spawned, or when they were cancelled and their worker has taken them out. Repeating ones are not.

use super::kept::Kept;
use super::records::{Function, Generation, Held, Once, Record, Repeating, Standing};
use crate::clock;
use crate::fiber::contain;
use crate::primitives::without_waiting;
use crate::scheduler::{Crew, Desk, Phase, Timed, Worker};
use std::fmt;
use std::panic::{self, AssertUnwindSafe, Location};
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
        let kept = Kept::of(worker);
        kept.make_room();
        let (record, state) = kept.records().take(function);
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
            kept.note_stale(record, false);
            set_alarm(record, kept, due);
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
        state.standing.set(Standing::Cancelled);
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
        let Some(state) = self.state() else {
            return false;
        };
        // Never to earlier, so its alarm will do.
        state.start.set(now.max(state.start.get()));
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
        let before = state.due();
        if from_now {
            state.start.set(now);
        }
        state.length.set(clock::nanoseconds(length));
        if state.due() < before {
            self.follow_up(state);
        }
        true
    }

    /// Its state, locked, unless it is over.
    #[inline]
    fn state(&self) -> Option<Held> {
        let state = self.record.lock();
        let is_its_own = state.generation.get() == self.generation;
        (is_its_own && state.standing.get() == Standing::Armed).then_some(state)
    }

    /// Has the worker do what the state, which has changed, says: at once, if this is its thread.
    #[inline]
    fn follow_up(&self, state: Held) {
        let desk = state.desk.get();
        match Worker::current() {
            Some(worker) if desk.is_some_and(|desk| ptr::eq(worker.desk, desk)) => {
                follow(self.record, state, worker);
            }
            _ => self.tell(state),
        }
    }

    #[cold]
    fn tell(&self, state: Held) {
        let desk = state.desk.get().expect("it was armed on a worker");
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

/// Sets the alarm as the state says, or retires the timer. On its worker.
#[inline(always)]
fn follow(record: &'static Record, state: Held, worker: &Worker) {
    if !record.timed.is_armed() {
        return; // it fires right now, or is on its way to this worker: who has it looks at the state
    }
    let kept = Kept::of(worker);
    if state.standing.get() == Standing::Cancelled {
        return retire(record, state, worker, kept);
    }
    let due = state.due();
    drop(state);
    set_alarm(record, kept, due);
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
        let (due, kept) = (state.due(), Kept::of(worker));
        let is_cancelled = state.standing.get() == Standing::Cancelled;
        // It is another crew's desk if the timer was armed when its own was over.
        if is_cancelled || worker.crew.phase() == Phase::Over || !Arc::ptr_eq(&crew, &worker.crew) {
            // What is dropped may panic, and the errand has ended all the same.
            contain(|| retire(record, state, worker, kept));
        } else {
            drop(state);
            set_alarm(record, kept, due);
        }
        crew.note_ended_outside();
    }));
}

/// Sees to it that a timer's alarm goes off in time. On its worker.
#[inline]
fn set_alarm(record: &'static Record, kept: &Kept, due: u64) {
    without_waiting(|| kept.hasten(record, due));
}

/// Ends a timer. On its worker.
#[inline(always)]
fn retire(record: &'static Record, state: Held, worker: &Worker, kept: &Kept) {
    let repeats = state.repeats.get();
    kept.note_stale(record, true);
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
    // SAFETY: by the contract it is the head of a record, which stays for ever.
    let record: &'static Record = unsafe { timed.cast().as_ref() };
    let kept = Kept::of(worker);
    let state = record.lock();
    let phase = worker.crew.phase();
    let repeats = state.repeats.get();
    let standing = state.standing.get();
    if standing == Standing::Free {
        return kept.note_gone();
    }
    if standing == Standing::Cancelled || phase == Phase::Over || (repeats && phase != Phase::Open) {
        // In a runtime that is being stopped repeating timers end; in one that is over all do.
        // What is dropped may panic.
        contain(|| retire(record, state, worker, kept));
        return;
    }
    let now = clock::now();
    let due = state.due();
    if due > now {
        drop(state);
        return set_alarm(record, kept, due); // it was moved meanwhile, or the alarm was an earlier timer's
    }
    let armed_at = state.armed_at.get();
    if !repeats {
        let function = kept.records().put(record, state);
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
    set_alarm(record, kept, next);
    // If it is gone, its last call goes on still.
    if let Some(function) = function {
        worker.spawn_detached(armed_at, move || call(Timer { record, generation }, function));
    }
}

/// One call of a repeating timer, as a fiber of its worker. If it panics its function is gone, and with it the timer.
fn call(timer: Timer, function: Box<dyn Function>) {
    match panic::catch_unwind(AssertUnwindSafe(|| function.call())) {
        Ok(Some(function)) => {
            if let Some(state) = timer.state() {
                state.content.put_function(function);
            }
        }
        Ok(None) => drop(timer.cancel()),
        Err(payload) => {
            timer.cancel();
            panic::resume_unwind(payload);
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
