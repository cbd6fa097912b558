//! The benchmarks of what tasks meet by, conditions, barriers and groups, and of channels that a clock fills; for the same libraries as
//! those of `blocking`, to whose [`List`] they are added.

use std::hint::black_box;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::blocking::{List, Select, Tasks, join_all, timed, two_seats};
use crate::cases::{Bench, PARTY};
use crate::micro::Outcome;

/// Longer than any benchmark: a limit that is never reached.
pub const LIMIT: Duration = Duration::from_secs(600);

/// A number behind a mutex, and a condition that says when it has changed.
pub trait Condition: Send + Sync + 'static {
    /// What lines call it.
    const NAME: &'static str;

    /// One whose number is 0.
    fn new() -> Self;
    /// Waits until the number is this one, makes it one more, and tells one who waits.
    fn advance(&self, from: u64);
    /// Tells one who waits.
    fn notify(&self);
}

/// A point at which a number of tasks meet, over and over.
pub trait Barrier: Send + Sync + 'static {
    /// What lines call it.
    const NAME: &'static str;

    /// One for so many.
    fn new(count: usize) -> Self;
    /// Waits for the others. Says whether it is the one of them who is told so.
    fn wait(&self) -> bool;
}

/// Something to wait for the end of several tasks with, each of which has a clone and drops it.
pub trait Group: Clone + Send + 'static {
    /// What lines call it.
    const NAME: &'static str;

    /// One with no clones.
    fn new() -> Self;
    /// Waits until there are no clones.
    fn wait(self);
}

/// A kind of channel of which there are some that a clock fills.
pub trait Clock: Select {
    /// The end from which its messages are received.
    type Moments: Send + 'static;

    /// One that has a message after that time, once.
    fn after(time: Duration) -> Self::Moments;
    /// One that has a message over and over, after that time each.
    fn tick(period: Duration) -> Self::Moments;
    /// Waits for its next message.
    fn moment(moments: &Self::Moments) -> Option<Instant>;
    /// Receives, with a limit that is made for it: a channel that has a message after that time.
    fn recv_within(receiver: &Self::Receiver, time: Duration) -> Option<u64>;
}

impl<T: Tasks> List<T> {
    /// Adds what is to be measured of a condition.
    pub fn condition<C: Condition>(mut self) -> List<T> {
        let tasks = self.tasks;
        if self.bench == Bench::Meet {
            let name = format!("{}, there and back", C::NAME);
            self.add(name, false, move |n| take_turns::<C>(tasks, n));
            let name = format!("{}, nobody waits", C::NAME);
            self.add(name, false, move |n| Ok(notify_nobody::<C>(tasks, n)));
        }
        self
    }

    /// Of a barrier.
    pub fn barrier<B: Barrier>(mut self) -> List<T> {
        let tasks = self.tasks;
        if self.bench == Bench::Meet {
            let name = format!("{}, {PARTY} tasks", B::NAME);
            self.add(name, false, move |n| Ok(meet::<B>(tasks, n)));
        }
        self
    }

    /// Of a group.
    pub fn group<G: Group>(mut self) -> List<T> {
        let tasks = self.tasks;
        if self.bench == Bench::Meet {
            let name = format!("{}, clone and drop", G::NAME);
            self.add(name, false, move |n| Ok(clone_and_drop::<G>(tasks, n)));
            let name = format!("{}, {PARTY} tasks", G::NAME);
            self.add(name, false, move |n| Ok(await_group::<G>(tasks, n)));
        }
        self
    }

    /// Of tasks that are joined, one after the other: what one would do without a group.
    pub fn joins(mut self) -> List<T> {
        let tasks = self.tasks;
        if self.bench == Bench::Meet {
            let name = format!("joins wait group, {PARTY} tasks");
            self.add(name, false, move |n| Ok(await_joins(tasks, n)));
        }
        self
    }

    /// Of channels that a clock fills.
    pub fn clock<C: Clock>(mut self) -> List<T> {
        let tasks = self.tasks;
        if self.bench == Bench::Moment {
            let mut add = |what: &str, run: fn(T, usize) -> Duration| {
                self.add(format!("{} {what}", C::NAME), false, move |n| Ok(run(tasks, n)));
            };
            add("after, made and dropped", |tasks, n| {
                repeat(tasks, n, || drop(black_box(C::after(LIMIT))))
            });
            add("after, due", |tasks, n| {
                repeat(tasks, n, || {
                    black_box(C::moment(&C::after(Duration::ZERO))).expect("a moment");
                })
            });
            add("tick, due", |tasks, n| {
                // Whoever receives takes longer than that, so that there always is one.
                let ticks = C::tick(Duration::from_nanos(1));
                repeat(tasks, n, move || {
                    black_box(C::moment(&ticks)).expect("a moment");
                })
            });
            add("after, as a limit", |tasks, n| {
                let (sender, receiver) = C::new(Some(1));
                repeat(tasks, n, move || {
                    C::send(&sender, 1);
                    assert_eq!(C::recv_within(&receiver, LIMIT), Some(1));
                })
            });
        }
        self
    }
}

/// The time that a task takes to do something so often.
fn repeat(tasks: impl Tasks, n: usize, mut once: impl FnMut() + Send + 'static) -> Duration {
    timed(tasks, None, move || {
        let start = Instant::now();
        (0..n).for_each(|_| once());
        start.elapsed()
    })
}

/// Two tasks count, one the even numbers, the other the odd ones.
fn take_turns<C: Condition>(tasks: impl Tasks, n: usize) -> Outcome<Duration> {
    fn both<T: Tasks, C: Condition>(tasks: T, seat: Option<usize>, n: u64) -> Duration {
        let even = Arc::new(C::new());
        let odd = even.clone();
        let start = Instant::now();
        let other = tasks.spawn(seat, move || (0..n).for_each(|turn| odd.advance(2 * turn + 1)));
        (0..n).for_each(|turn| even.advance(2 * turn));
        T::join(other);
        start.elapsed()
    }
    let [here, there] = two_seats(tasks)?;
    Ok(timed(tasks, here, move || both::<_, C>(tasks, there, n as u64)))
}

fn notify_nobody<C: Condition>(tasks: impl Tasks, n: usize) -> Duration {
    let condition = C::new();
    repeat(tasks, n, move || black_box(&condition).notify())
}

fn meet<B: Barrier>(tasks: impl Tasks, n: usize) -> Duration {
    fn all<T: Tasks, B: Barrier>(tasks: T, n: usize) -> Duration {
        let barrier = Arc::new(B::new(PARTY));
        let told = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let spawn = || {
            let (barrier, told) = (barrier.clone(), told.clone());
            tasks.spawn(None, move || {
                let own = (0..n).filter(|_| barrier.wait()).count();
                told.fetch_add(own, Ordering::Relaxed);
            })
        };
        join_all::<T>(iter::repeat_with(spawn).take(PARTY).collect());
        let time = start.elapsed();
        assert_eq!(told.load(Ordering::Relaxed), n);
        time
    }
    timed(tasks, None, move || all::<_, B>(tasks, n))
}

fn clone_and_drop<G: Group>(tasks: impl Tasks, n: usize) -> Duration {
    let group = G::new();
    repeat(tasks, n, move || drop(black_box(group.clone())))
}

fn await_group<G: Group>(tasks: impl Tasks, n: usize) -> Duration {
    repeat(tasks, n, move || {
        let group = G::new();
        for _ in 0..PARTY {
            let clone = group.clone();
            drop(tasks.spawn(None, move || drop(clone)));
        }
        group.wait();
    })
}

fn await_joins<T: Tasks>(tasks: T, n: usize) -> Duration {
    repeat(tasks, n, move || {
        let spawn = || tasks.spawn(None, || ());
        join_all::<T>(iter::repeat_with(spawn).take(PARTY).collect());
    })
}
