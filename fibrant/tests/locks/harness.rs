//! What the tests of locks share: fibers and plain threads that do the same together, in runtimes with one worker and with two, with a
//! deadline.

use crate::patience::Watchdog;
use fibrant::fiber::WaitReason;
use fibrant::runtime::{Builder, Handle, Runtime};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

/// One of those who do something together.
pub struct Member {
    /// Its number: fibers first, then threads.
    pub index: usize,
    /// How many there are in all.
    pub count: usize,
    /// Where it is in its own series of numbers that look random.
    seed: u64,
    /// A connection to itself.
    loopback: (UnixStream, UnixStream),
}

impl Member {
    fn new(index: usize, count: usize) -> Member {
        Member {
            index,
            count,
            seed: 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(index as u64 + 1),
            loopback: UnixStream::pair().unwrap(),
        }
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % end
    }

    /// Does something that may take a moment, as one does while one holds a lock.
    pub fn linger(&mut self) {
        match self.below(6) {
            0 => thread::sleep(us(50)),
            1 => thread::sleep(us(self.seed % 300)),
            2 => thread::yield_now(),
            3 => {
                let mut byte = [0];
                self.loopback.0.write_all(&[7]).unwrap();
                self.loopback.1.read_exact(&mut byte).unwrap();
            }
            _ => {}
        }
    }
}

/// What kind of fibers a runtime has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Each has thread-locals of its own.
    Isolated,
    /// They share their worker's. Only for what keeps nothing there across a wait, or is to show what happens if it does.
    Light,
}

impl Kind {
    /// A runtime with such fibers.
    pub fn runtime(self, workers: usize) -> Runtime {
        let builder = Builder::new().workers(workers).name("test");
        match self {
            Kind::Isolated => builder,
            // SAFETY: as the kind asks for.
            Kind::Light => unsafe { builder.light() },
        }
        .build()
        .unwrap()
    }
}

/// How many fibers of a runtime wait for a lock or a like thing.
pub fn waiting_for_locks(runtime: &Handle) -> usize {
    let fibers = runtime.dump().fibers;
    let waits = fibers.iter().map(|fiber| fiber.wait);
    waits
        .filter(|wait| matches!(wait, Some(WaitReason::Futex { .. })))
        .count()
}

/// Lets so many fibers and so many threads work on the same thing, made anew for each runtime; then `check` looks at it.
#[track_caller]
pub fn together<S: Send + Sync + 'static>(
    fibers: usize,
    threads: usize,
    make: impl Fn() -> S,
    work: impl Fn(&S, &mut Member) + Send + Sync + 'static,
    check: impl Fn(&S),
) {
    together_as(Kind::Isolated, fibers, threads, make, work, check);
}

/// The same with fibers of this kind.
#[track_caller]
pub fn together_as<S: Send + Sync + 'static>(
    kind: Kind,
    fibers: usize,
    threads: usize,
    make: impl Fn() -> S,
    work: impl Fn(&S, &mut Member) + Send + Sync + 'static,
    check: impl Fn(&S),
) {
    let watchdog = Watchdog::new();
    let work = Arc::new(work);
    for workers in [1, 2] {
        let runtime = kind.runtime(workers);
        watchdog.show(&runtime);
        let shared = Arc::new(make());
        let member = |index: usize| {
            let (shared, work) = (Arc::clone(&shared), Arc::clone(&work));
            move || work(&shared, &mut Member::new(index, fibers + threads))
        };
        let in_fibers: Vec<_> = (0..fibers).map(|index| runtime.spawn(member(index))).collect();
        let in_threads: Vec<_> = (fibers..fibers + threads)
            .map(|index| thread::spawn(member(index)))
            .collect();
        in_fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        in_threads.into_iter().for_each(|thread| thread.join().unwrap());
        check(&shared);
        runtime.stop().unwrap();
    }
}
