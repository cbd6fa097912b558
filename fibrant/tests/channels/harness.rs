//! What the tests of channels share: members that do something together, in every place where members can be; channels of every
//! flavour; and a ledger of what has arrived.

use crate::channel::*;
use crate::patience::{Watchdog, eventually};
use fibrant::runtime::Runtime;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// Longer than any test.
pub const LONG: Duration = Duration::from_secs(3600);

/// How late something may be on a machine that has much else to do.
pub const LATE: Duration = Duration::from_secs(8);

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

/// Where the members of a test are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Fibers of one worker.
    OneWorker,
    /// Fibers of two workers.
    TwoWorkers,
    /// Plain threads.
    Threads,
    /// Fibers of two workers, and plain threads.
    Mixed,
}

pub const KINDS: [Kind; 4] = [Kind::OneWorker, Kind::TwoWorkers, Kind::Threads, Kind::Mixed];

/// A place in which members can be spawned.
pub struct Place {
    pub kind: Kind,
    /// There is none for plain threads.
    runtime: Option<Arc<Runtime>>,
    /// How many members there have been.
    turn: AtomicUsize,
}

/// One of those who do something together.
pub struct Member<T> {
    kind: MemberKind<T>,
}

enum MemberKind<T> {
    Fiber(fibrant::JoinHandle<T>, Arc<Runtime>),
    /// With the number that the kernel gives it, 0 before it begins.
    Thread(thread::JoinHandle<T>, Arc<AtomicI32>),
}

impl Place {
    pub fn new(kind: Kind, watchdog: &Watchdog) -> Place {
        let workers = match kind {
            Kind::OneWorker => 1,
            Kind::TwoWorkers | Kind::Mixed => 2,
            Kind::Threads => 0,
        };
        Place {
            kind,
            runtime: (workers > 0).then(|| Arc::new(watchdog.runtime(workers))),
            turn: AtomicUsize::new(0),
        }
    }

    /// How often something is done that makes two members wait for each other: less often where the kernel has to wake them.
    pub fn rounds(&self, most: usize) -> usize {
        match self.kind {
            Kind::OneWorker => most,
            _ => most / 4,
        }
    }

    /// Spawns the next member. Whoever spawns two roles in turn has members of each kind in both.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Member<T> {
        let turn = self.turn.fetch_add(1, SeqCst);
        let kind = match (self.kind, &self.runtime) {
            (Kind::Mixed, Some(runtime)) => match turn % 4 {
                0 => MemberKind::Fiber(runtime.spawn_on(0, f), Arc::clone(runtime)),
                3 => MemberKind::Fiber(runtime.spawn_on(1, f), Arc::clone(runtime)),
                _ => MemberKind::thread(f),
            },
            (_, Some(runtime)) => {
                let worker = (turn + turn / 2) % runtime.workers();
                MemberKind::Fiber(runtime.spawn_on(worker, f), Arc::clone(runtime))
            }
            (_, None) => MemberKind::thread(f),
        };
        Member { kind }
    }

    /// Ends it. All members must have ended.
    pub fn stop(self) {
        if let Some(runtime) = self.runtime {
            runtime.stop().unwrap();
        }
    }
}

impl<T: Send + 'static> MemberKind<T> {
    fn thread(f: impl FnOnce() -> T + Send + 'static) -> MemberKind<T> {
        let number = Arc::new(AtomicI32::new(0));
        let mine = Arc::clone(&number);
        let thread = thread::spawn(move || {
            // SAFETY: asks for a number.
            mine.store(unsafe { libc::gettid() }, SeqCst);
            f()
        });
        MemberKind::Thread(thread, number)
    }
}

impl<T> Member<T> {
    /// What it returned. If it panicked, this goes on with the panic.
    pub fn join(self) -> T {
        let result = match self.kind {
            MemberKind::Fiber(fiber, _) => fiber.join(),
            MemberKind::Thread(thread, _) => thread.join(),
        };
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }

    /// Whether it waits for something.
    pub fn waits(&self) -> bool {
        match &self.kind {
            MemberKind::Fiber(fiber, runtime) => {
                let fibers = runtime.dump().fibers;
                fibers
                    .iter()
                    .any(|one| one.id == fiber.id() && one.wait.is_some())
            }
            MemberKind::Thread(_, number) => {
                let path = format!("/proc/self/task/{}/stat", number.load(SeqCst));
                let line = std::fs::read_to_string(path).unwrap_or_default();
                // After the name, which is in parentheses, there is a letter for the state.
                line.rsplit_once(") ")
                    .is_some_and(|(_, state)| state.starts_with('S'))
            }
        }
    }

    /// Waits until it does.
    #[track_caller]
    pub fn wait_until_it_waits(&self) {
        eventually("it waits", || self.waits());
    }

    pub fn is_finished(&self) -> bool {
        match &self.kind {
            MemberKind::Fiber(fiber, _) => fiber.is_finished(),
            MemberKind::Thread(thread, _) => thread.is_finished(),
        }
    }
}

/// Joins all of them.
pub fn join_all<T>(members: impl IntoIterator<Item = Member<T>>) -> Vec<T> {
    members.into_iter().map(Member::join).collect()
}

/// Runs a test in each kind of place.
#[track_caller]
pub fn everywhere(test: impl Fn(&Place)) {
    let watchdog = Watchdog::new();
    for kind in KINDS {
        watchdog.note(format!("{kind:?}"));
        let place = Place::new(kind, &watchdog);
        test(&place);
        place.stop();
    }
}

/// Runs a test in each kind of place, once with each flavour of channel.
#[track_caller]
pub fn everywhere_with_all(test: impl Fn(&Place, Flavour)) {
    everywhere(|place| FLAVOURS.into_iter().for_each(|flavour| test(place, flavour)));
}

/// Runs a test that needs nobody else, in a fiber and in a plain thread.
#[track_caller]
pub fn alone(test: fn()) {
    let watchdog = Watchdog::new();
    for kind in [Kind::OneWorker, Kind::Threads] {
        watchdog.note(format!("{kind:?}"));
        let place = Place::new(kind, &watchdog);
        place.spawn(test).join();
        place.stop();
    }
}

/// A flavour of channel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Flavour {
    Unbounded,
    /// With room for so many messages. With none it is a rendezvous.
    Bounded(usize),
}

pub const RENDEZVOUS: Flavour = Flavour::Bounded(0);

pub const FLAVOURS: [Flavour; 4] = [
    Flavour::Unbounded,
    Flavour::Bounded(1),
    Flavour::Bounded(3),
    RENDEZVOUS,
];

impl Flavour {
    pub fn channel<T>(self) -> (Sender<T>, Receiver<T>) {
        match self {
            Flavour::Unbounded => unbounded(),
            Flavour::Bounded(room) => bounded(room),
        }
    }

    /// How many messages fit in, if there is a limit.
    pub fn room(self) -> Option<usize> {
        match self {
            Flavour::Unbounded => None,
            Flavour::Bounded(room) => Some(room),
        }
    }

    /// Whether so many fit in.
    pub fn holds(self, count: usize) -> bool {
        self.room().is_none_or(|room| count <= room)
    }
}

/// Numbers that look random, the same ones in every run.
pub struct Random(u64);

impl Random {
    pub fn new(index: usize) -> Random {
        Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(index as u64 + 1))
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % end
    }

    /// Does something that may take a moment.
    pub fn linger(&mut self) {
        match self.below(12) {
            0 => fibrant::sleep(us(self.0 % 100)),
            1 | 2 => fibrant::yield_now(),
            3 => thread::yield_now(),
            _ => {}
        }
    }
}

/// A message: who has sent it, and its number there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Message {
    pub sender: usize,
    pub number: usize,
}

/// How often each message has arrived.
pub struct Ledger(Vec<Vec<AtomicUsize>>);

/// Notes what one receiver has received.
pub struct Reader<'a> {
    ledger: &'a Ledger,
    /// The last message of each sender.
    last: Vec<Option<usize>>,
}

impl Ledger {
    /// For so many senders with so many messages each.
    pub fn new(senders: usize, messages: usize) -> Arc<Ledger> {
        let row = || (0..messages).map(|_| AtomicUsize::new(0)).collect();
        Arc::new(Ledger((0..senders).map(|_| row()).collect()))
    }

    pub fn reader(&self) -> Reader<'_> {
        Reader {
            ledger: self,
            last: vec![None; self.0.len()],
        }
    }

    /// Every message must have arrived once.
    #[track_caller]
    pub fn assert_complete(&self) {
        for (sender, row) in self.0.iter().enumerate() {
            for (number, count) in row.iter().enumerate() {
                let count = count.load(SeqCst);
                assert_eq!(count, 1, "message {number} of {sender} has come {count} times");
            }
        }
    }
}

impl Reader<'_> {
    /// Notes a message, which must be a later one than the last of the same sender.
    #[track_caller]
    pub fn note(&mut self, message: Message) {
        let Message { sender, number } = message;
        self.ledger.0[sender][number].fetch_add(1, SeqCst);
        let last = self.last[sender].replace(number);
        assert!(last < Some(number), "{number} of {sender} comes after {last:?}");
    }
}

/// Sends in one way or another; `Err` with the message if there are no receivers any more.
pub fn send_somehow<T>(sender: &Sender<T>, mut message: T, random: &mut Random) -> Result<(), T> {
    loop {
        match random.below(5) {
            0 => match sender.send_timeout(message, us(random.below(200))) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) => message = back,
                Err(SendTimeoutError::Disconnected(back)) => return Err(back),
            },
            1 => match sender.try_send(message) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) => {
                    message = back;
                    fibrant::yield_now();
                }
                Err(TrySendError::Disconnected(back)) => return Err(back),
            },
            _ => return sender.send(message).map_err(SendError::into_inner),
        }
    }
}

/// Receives in one way or another; `None` if there are no senders any more.
pub fn receive_somehow<T>(receiver: &Receiver<T>, random: &mut Random) -> Option<T> {
    loop {
        match random.below(5) {
            0 => match receiver.recv_timeout(us(random.below(200))) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            },
            1 => match receiver.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Empty) => fibrant::yield_now(),
                Err(TryRecvError::Disconnected) => return None,
            },
            2 => return receiver.iter().next(),
            _ => return receiver.recv().ok(),
        }
    }
}
