//! The benchmarks of locks and channels for libraries whose tasks run ordinary blocking code: threads, fibers, coroutines.
//!
//! A program says how it runs [`Tasks`] and names the [`Lock`]s and [`Channel`]s to a [`List`], which makes cases of them.

use std::hint::black_box;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::cases::{Bench, CAPACITY, Case, Hold};
use crate::micro::Outcome;

/// How a library runs blocking code.
pub trait Tasks: Copy + Send + 'static {
    /// A task that can be joined.
    type Handle;

    /// Starts a task: on worker `seat` for good, or wherever the library puts it.
    fn spawn(self, seat: Option<usize>, body: impl FnOnce() + Send + 'static) -> Self::Handle;

    /// Waits for its end.
    fn join(handle: Self::Handle);

    /// Lets others run.
    fn yield_now();

    /// How many workers there are.
    fn workers(self) -> usize;

    /// Whether tasks can be bound to two workers, or why not.
    fn seats(self) -> Outcome<()>;

    /// Whether each task has thread-locals of its own.
    fn has_locals(self) -> bool;
}

/// A lock around a count.
pub trait Lock: Send + Sync + 'static {
    /// What lines call it.
    const NAME: &'static str;
    /// Whether a wait for it keeps something in thread-locals.
    const WAITS_WITH_LOCALS: bool;
    /// Whether one at a time has it, and counts.
    const EXCLUSIVE: bool;

    /// A free one.
    fn new() -> Self;

    /// Locks, counts one more if only one can have it, calls `inside` and unlocks.
    fn pass(&self, inside: impl FnOnce());

    /// The count.
    fn total(&self) -> u64;
}

/// A kind of channel for numbers.
pub trait Channel: 'static {
    /// What lines call it.
    const NAME: &'static str;
    /// Whether a wait for it keeps something in thread-locals.
    const WAITS_WITH_LOCALS: bool;
    /// The rooms that it can have, of those that [`Bench::Channel`] knows; `None` has no bounds.
    const ROOMS: &'static [Option<usize>];

    /// The end that sends.
    type Sender: Send + 'static;
    /// The end that receives.
    type Receiver: Send + 'static;

    /// A channel with so much room.
    fn new(room: Option<usize>) -> (Self::Sender, Self::Receiver);
    /// Sends, waiting for room.
    fn send(sender: &Self::Sender, value: u64);
    /// Receives, waiting for something; nothing if there are no senders left.
    fn recv(receiver: &Self::Receiver) -> Option<u64>;
}

/// A kind of channel of which there can be several senders and receivers.
pub trait Shared: Channel<Sender: Clone, Receiver: Clone> {}

/// A kind of channel over which one can select.
pub trait Select: Shared {
    /// Receives from one of the two.
    fn select(first: &Self::Receiver, second: &Self::Receiver) -> Option<u64>;
}

const NO_LOCALS: &str = "it waits with thread-locals, which these tasks share";

/// The cases of one benchmark.
pub struct List<T> {
    pub(crate) bench: Bench,
    pub(crate) tasks: T,
    suffix: &'static str,
    cases: Vec<Case<'static>>,
}

impl<T: Tasks> List<T> {
    /// An empty one.
    pub fn new(bench: Bench, tasks: T) -> List<T> {
        List {
            bench,
            tasks,
            suffix: "",
            cases: Vec::new(),
        }
    }

    /// Adds something to all names that follow.
    pub fn suffix(mut self, suffix: &'static str) -> List<T> {
        self.suffix = suffix;
        self
    }

    /// Adds what is to be measured of a lock that nobody else wants.
    pub fn lock<L: Lock>(mut self) -> List<T> {
        let tasks = self.tasks;
        if self.bench == Bench::Lock {
            self.add(L::NAME.into(), false, move |n| Ok(alone::<L>(tasks, n)));
        }
        self
    }

    /// And of one that many want.
    pub fn mutex<L: Lock>(self) -> List<T> {
        let mut list = self.lock::<L>();
        let tasks = list.tasks;
        if list.bench == Bench::Contend {
            for (crowd, hold) in Hold::crowds() {
                let name = format!("{}, {crowd} {}", L::NAME, hold.name());
                list.add(name, L::WAITS_WITH_LOCALS, move |n| {
                    Ok(contend::<L>(tasks, crowd, hold, n))
                });
            }
        }
        list
    }

    /// Adds what is to be measured of a channel with one sender and one receiver.
    pub fn channel<C: Channel>(mut self) -> List<T> {
        let tasks = self.tasks;
        match self.bench {
            Bench::Channel => {
                for &room in C::ROOMS {
                    let name = match room {
                        Some(room) => format!("{} bounded({room})", C::NAME),
                        None => format!("{} unbounded", C::NAME),
                    };
                    self.add(name, C::WAITS_WITH_LOCALS, move |n| {
                        round_trips::<C>(tasks, room, n)
                    });
                }
            }
            Bench::Throughput => {
                let (name, room) = stream_case::<C>("1:1");
                self.add(name, C::WAITS_WITH_LOCALS, move |n| {
                    let (sender, receiver) = C::new(room);
                    Ok(stream::<C>(tasks, vec![sender], vec![receiver], n))
                });
            }
            _ => (),
        }
        self
    }

    /// And of one with several of each.
    pub fn shared<C: Shared>(self) -> List<T> {
        let mut list = self.channel::<C>();
        let tasks = list.tasks;
        if list.bench == Bench::Throughput {
            let (name, room) = stream_case::<C>("4:4");
            list.add(name, C::WAITS_WITH_LOCALS, move |n| {
                let (sender, receiver) = C::new(room);
                Ok(stream::<C>(tasks, vec![sender; 4], vec![receiver; 4], n))
            });
        }
        list
    }

    /// And of one over which one can select.
    pub fn select<C: Select>(self) -> List<T> {
        let mut list = self.shared::<C>();
        let tasks = list.tasks;
        if list.bench == Bench::Select {
            let name = format!("{} ready", C::NAME);
            list.add(name, false, move |n| Ok(select_ready::<C>(tasks, n)));
            let name = format!("{} waiting", C::NAME);
            list.add(name, C::WAITS_WITH_LOCALS, move |n| {
                Ok(select_waiting::<C>(tasks, n))
            });
        }
        list
    }

    /// All of them.
    pub fn cases(self) -> Vec<Case<'static>> {
        self.cases
    }

    pub(crate) fn add(
        &mut self,
        name: String,
        needs_locals: bool,
        run: impl Fn(usize) -> Outcome<Duration> + 'static,
    ) {
        let name = name + self.suffix;
        self.cases.push(if needs_locals && !self.tasks.has_locals() {
            Case::lacking(name, NO_LOCALS)
        } else {
            Case::new(name, run)
        });
    }
}

/// Something to do for some tens of nanoseconds: in registers, each step waiting for the one before, so that it takes the same time
/// wherever it runs.
#[inline(never)]
pub(crate) fn work() {
    let mut value = black_box(1_u64);
    for _ in 0..20 {
        value = (value ^ (value >> 7)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    black_box(value);
}

/// The time that `body`, run as a task, says.
pub(crate) fn timed<T: Tasks>(
    tasks: T,
    seat: Option<usize>,
    body: impl FnOnce() -> Duration + Send + 'static,
) -> Duration {
    let time = Arc::new(OnceLock::new());
    let same = time.clone();
    T::join(tasks.spawn(seat, move || same.set(body()).expect("one time")));
    *time.get().expect("the task has ended")
}

pub(crate) fn join_all<T: Tasks>(handles: Vec<T::Handle>) {
    handles.into_iter().for_each(T::join);
}

/// Where two tasks are that wait for each other: on one worker if there is only one, else on two for good.
pub(crate) fn two_seats(tasks: impl Tasks) -> Outcome<[Option<usize>; 2]> {
    if tasks.workers() == 1 {
        return Ok([None, None]);
    }
    tasks.seats()?;
    Ok([Some(0), Some(1)])
}

fn alone<L: Lock>(tasks: impl Tasks, n: usize) -> Duration {
    timed(tasks, None, move || {
        let lock = Arc::new(L::new());
        let start = Instant::now();
        for _ in 0..n {
            black_box(&*lock).pass(|| ());
        }
        let time = start.elapsed();
        if L::EXCLUSIVE {
            assert_eq!(lock.total(), n as u64);
        }
        time
    })
}

fn contend<L: Lock>(tasks: impl Tasks, crowd: usize, hold: Hold, n: usize) -> Duration {
    fn rival<T: Tasks, L: Lock>(lock: &L, hold: Hold, n: usize) {
        for _ in 0..n {
            match hold {
                Hold::Short => lock.pass(work),
                Hold::Yield => lock.pass(T::yield_now),
            }
            work();
        }
    }
    fn all<T: Tasks, L: Lock>(tasks: T, crowd: usize, hold: Hold, n: usize) -> Duration {
        let lock = Arc::new(L::new());
        let start = Instant::now();
        let spawn = || {
            let lock = lock.clone();
            tasks.spawn(None, move || rival::<T, L>(&lock, hold, n / crowd))
        };
        join_all::<T>(iter::repeat_with(spawn).take(crowd).collect());
        let time = start.elapsed();
        assert_eq!(lock.total(), n as u64);
        time
    }
    timed(tasks, None, move || all::<_, L>(tasks, crowd, hold, n))
}

fn round_trips<C: Channel>(tasks: impl Tasks, room: Option<usize>, n: usize) -> Outcome<Duration> {
    fn ping<T: Tasks, C: Channel>(tasks: T, room: Option<usize>, seat: Option<usize>, n: usize) -> Duration {
        let (to_pong, from_ping) = C::new(room);
        let (to_ping, from_pong) = C::new(room);
        let pong = tasks.spawn(seat, move || {
            while let Some(value) = C::recv(&from_ping) {
                C::send(&to_ping, value + 1);
            }
        });
        let start = Instant::now();
        for value in 0..n as u64 {
            C::send(&to_pong, value);
            assert_eq!(C::recv(&from_pong), Some(value + 1));
        }
        let time = start.elapsed();
        drop(to_pong);
        T::join(pong);
        time
    }
    let [here, there] = two_seats(tasks)?;
    Ok(timed(tasks, here, move || ping::<_, C>(tasks, room, there, n)))
}

/// The name of a case of [`Bench::Throughput`] and the channel's room: one that cannot have bounds goes without, and the name says so.
fn stream_case<C: Channel>(ends: &str) -> (String, Option<usize>) {
    if C::ROOMS.iter().any(Option::is_some) {
        (format!("{} {ends}", C::NAME), Some(CAPACITY))
    } else {
        (format!("{} unbounded {ends}", C::NAME), None)
    }
}

fn stream<C: Channel>(
    tasks: impl Tasks,
    senders: Vec<C::Sender>,
    receivers: Vec<C::Receiver>,
    n: usize,
) -> Duration {
    fn all<T: Tasks, C: Channel>(
        tasks: T,
        senders: Vec<C::Sender>,
        receivers: Vec<C::Receiver>,
        n: usize,
    ) -> Duration {
        let share = (n / senders.len()) as u64;
        let expected = senders.len() as u64 * (share * (share - 1) / 2);
        let sum = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let receive = |receiver| {
            let sum = sum.clone();
            tasks.spawn(None, move || {
                let own: u64 = iter::from_fn(|| C::recv(&receiver)).sum();
                sum.fetch_add(own, Ordering::Relaxed);
            })
        };
        let send = |sender| {
            tasks.spawn(None, move || {
                (0..share).for_each(|value| C::send(&sender, value));
            })
        };
        let receivers = receivers.into_iter().map(receive).collect();
        let senders = senders.into_iter().map(send).collect();
        join_all::<T>(senders);
        join_all::<T>(receivers);
        let time = start.elapsed();
        assert_eq!(sum.load(Ordering::Relaxed), expected);
        time
    }
    timed(tasks, None, move || all::<_, C>(tasks, senders, receivers, n))
}

/// Sends to one of two channels, then selects: never a wait.
fn select_ready<C: Select>(tasks: impl Tasks, n: usize) -> Duration {
    timed(tasks, None, move || {
        let (to_first, first) = C::new(Some(1));
        let (to_second, second) = C::new(Some(1));
        let start = Instant::now();
        for value in 0..n as u64 {
            C::send(if value % 2 == 0 { &to_first } else { &to_second }, value);
            assert_eq!(C::select(&first, &second), Some(value));
        }
        start.elapsed()
    })
}

/// Two senders, each with a channel of its own that has room for one, and a receiver that selects.
fn select_waiting<C: Select>(tasks: impl Tasks, n: usize) -> Duration {
    fn all<T: Tasks, C: Select>(tasks: T, n: usize) -> Duration {
        let share = (n / 2) as u64;
        let (to_first, first) = C::new(Some(1));
        let (to_second, second) = C::new(Some(1));
        // Kept until the end, so that neither channel ever counts as ready for lack of senders.
        let kept = [to_first, to_second];
        let start = Instant::now();
        let send = |sender: &C::Sender| {
            let sender = sender.clone();
            tasks.spawn(None, move || {
                (0..share).for_each(|value| C::send(&sender, value));
            })
        };
        let senders = kept.iter().map(send).collect();
        let sum: u64 = (0..n).map(|_| C::select(&first, &second).expect("senders")).sum();
        join_all::<T>(senders);
        let time = start.elapsed();
        assert_eq!(sum, share * (share - 1));
        time
    }
    timed(tasks, None, move || all::<_, C>(tasks, n))
}
