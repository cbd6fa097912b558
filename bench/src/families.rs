//! The locks and channels that are measured, as `blocking` and `meeting` want them: std's, parking_lot's, crossbeam's and may's.
//!
//! Ours look like std's and crossbeam's, so the macros here are for them, too; but they are where our program is: a program that
//! contains our library has its hooks, and the peers' must not.

use std::sync::mpsc;

use crate::blocking::{Channel, Lock, Shared};

/// Makes `Mutex`, `Read` and `Write` of a module with a `Mutex` and an `RwLock`: `locks!("name", module, whether a wait keeps
/// something in thread-locals, how to get the guard out of what `lock` returns)`.
#[macro_export]
macro_rules! locks {
    ($label:literal, $($module:ident)::+, $locals:literal, $($guard:tt)*) => {
        $crate::lock!(Mutex, concat!($label, " mutex"), $($module)::+::Mutex<u64>, $locals, true, |lock| {
            let mut guard = lock.lock()$($guard)*;
            *guard += 1;
            guard
        }, |lock| *lock.lock()$($guard)*);
        $crate::lock!(Read, concat!($label, " read"), $($module)::+::RwLock<u64>, $locals, false, |lock| {
            let guard = lock.read()$($guard)*;
            std::hint::black_box(*guard);
            guard
        }, |lock| *lock.read()$($guard)*);
        $crate::lock!(Write, concat!($label, " write"), $($module)::+::RwLock<u64>, $locals, true, |lock| {
            let mut guard = lock.write()$($guard)*;
            *guard += 1;
            guard
        }, |lock| *lock.read()$($guard)*);
    };
}

/// Makes a type of a lock: its name, the lock, whether a wait keeps something in thread-locals, whether one at a time has it, what
/// takes it and returns a guard, and what reads the count.
#[macro_export]
macro_rules! lock {
    (
        $name:ident, $label:expr, $lock:ty, $locals:literal, $exclusive:literal,
        |$taken:ident| $take:expr, |$read:ident| $total:expr
    ) => {
        #[doc = $label]
        pub struct $name($lock);

        impl $crate::blocking::Lock for $name {
            const NAME: &'static str = $label;
            const WAITS_WITH_LOCALS: bool = $locals;
            const EXCLUSIVE: bool = $exclusive;

            fn new() -> $name {
                $name(<$lock>::new(0))
            }

            #[inline]
            fn pass(&self, inside: impl FnOnce()) {
                let $taken = &self.0;
                let _guard = $take;
                inside();
            }

            fn total(&self) -> u64 {
                let $read = &self.0;
                $total
            }
        }
    };
}

/// Makes `Condition` and `Barrier` of a module with a `Mutex`, a `Condvar` and a `Barrier`: `meetings!("name", module)`.
#[macro_export]
macro_rules! meetings {
    ($label:literal, $($module:ident)::+) => {
        #[doc = concat!($label, "'s condition, and its mutex.")]
        pub struct Condition($($module)::+::Mutex<u64>, $($module)::+::Condvar);

        impl $crate::meeting::Condition for Condition {
            const NAME: &'static str = concat!($label, " condvar");

            fn new() -> Condition {
                Condition($($module)::+::Mutex::new(0), $($module)::+::Condvar::new())
            }

            #[inline]
            fn advance(&self, from: u64) {
                let mut number = self.0.lock().unwrap();
                while *number != from {
                    number = self.1.wait(number).unwrap();
                }
                *number += 1;
                drop(number);
                self.1.notify_one();
            }

            #[inline]
            fn notify(&self) {
                self.1.notify_one();
            }
        }

        #[doc = concat!($label, "'s barrier.")]
        pub struct Barrier($($module)::+::Barrier);

        impl $crate::meeting::Barrier for Barrier {
            const NAME: &'static str = concat!($label, " barrier");

            fn new(count: usize) -> Barrier {
                Barrier($($module)::+::Barrier::new(count))
            }

            #[inline]
            fn wait(&self) -> bool {
                self.0.wait().is_leader()
            }
        }
    };
}

/// Makes `Group` of a module with a `WaitGroup`: `groups!("name", module)`.
#[macro_export]
macro_rules! groups {
    ($label:literal, $($module:ident)::+) => {
        #[doc = concat!($label, "'s groups.")]
        #[derive(Clone)]
        pub struct Group($($module)::+::WaitGroup);

        impl $crate::meeting::Group for Group {
            const NAME: &'static str = concat!($label, " wait group");

            fn new() -> Group {
                Group($($module)::+::WaitGroup::new())
            }

            #[inline]
            fn wait(self) {
                self.0.wait();
            }
        }
    };
}

/// Makes a type of a kind of channel that is like crossbeam's: `channels!(Type, "name", module, select, whether a wait keeps something
/// in thread-locals)`.
#[macro_export]
macro_rules! channels {
    ($name:ident, $label:literal, $($module:ident)::+, $($select:ident)::+, $locals:literal) => {
        #[doc = concat!($label, "'s channels.")]
        pub struct $name;

        impl $crate::blocking::Channel for $name {
            const NAME: &'static str = $label;
            const WAITS_WITH_LOCALS: bool = $locals;
            const ROOMS: &'static [Option<usize>] = &[Some(1), Some(0), None];
            type Sender = $($module)::+::Sender<u64>;
            type Receiver = $($module)::+::Receiver<u64>;

            fn new(room: Option<usize>) -> (Self::Sender, Self::Receiver) {
                match room {
                    Some(room) => $($module)::+::bounded(room),
                    None => $($module)::+::unbounded(),
                }
            }

            #[inline]
            fn send(sender: &Self::Sender, value: u64) {
                sender.send(value).expect("a receiver");
            }

            #[inline]
            fn recv(receiver: &Self::Receiver) -> Option<u64> {
                receiver.recv().ok()
            }
        }

        impl $crate::blocking::Shared for $name {}

        impl $crate::blocking::Select for $name {
            #[inline]
            fn select(first: &Self::Receiver, second: &Self::Receiver) -> Option<u64> {
                $($select)::+! {
                    recv(first) -> value => value.ok(),
                    recv(second) -> value => value.ok(),
                }
            }
        }

        impl $crate::meeting::Clock for $name {
            type Moments = $($module)::+::Receiver<std::time::Instant>;

            #[inline]
            fn after(time: std::time::Duration) -> Self::Moments {
                $($module)::+::after(time)
            }

            fn tick(period: std::time::Duration) -> Self::Moments {
                $($module)::+::tick(period)
            }

            #[inline]
            fn moment(moments: &Self::Moments) -> Option<std::time::Instant> {
                moments.recv().ok()
            }

            #[inline]
            fn recv_within(receiver: &Self::Receiver, time: std::time::Duration) -> Option<u64> {
                let limit = $($module)::+::after(time);
                $($select)::+! {
                    recv(receiver) -> value => value.ok(),
                    recv(limit) -> _ => None,
                }
            }
        }
    };
}

/// std's locks.
pub mod of_std {
    locks!("std", std::sync, false, .unwrap());
    meetings!("std", std::sync);
}

/// parking_lot's locks.
pub mod of_parking_lot {
    locks!("parking_lot", parking_lot, true,);
}

/// may's locks.
pub mod of_may {
    locks!("may", may::sync, false, .unwrap());
    meetings!("may", may::sync);
    groups!("may", may::sync);
}

channels!(
    Crossbeam,
    "crossbeam",
    crossbeam_channel,
    crossbeam_channel::select,
    true
);

/// Makes a type of a kind of channel that is like std's.
macro_rules! std_channels {
    ($name:ident, $label:literal, $rooms:expr, $sender:ty, $receiver:ty, |$room:ident| $new:expr, $locals:literal) => {
        #[doc = concat!($label, "'s channels.")]
        pub struct $name;

        impl Channel for $name {
            const NAME: &'static str = $label;
            const WAITS_WITH_LOCALS: bool = $locals;
            const ROOMS: &'static [Option<usize>] = $rooms;
            type Sender = $sender;
            type Receiver = $receiver;

            fn new($room: Option<usize>) -> (Self::Sender, Self::Receiver) {
                $new
            }

            #[inline]
            fn send(sender: &Self::Sender, value: u64) {
                sender.send(value).expect("a receiver");
            }

            #[inline]
            fn recv(receiver: &Self::Receiver) -> Option<u64> {
                receiver.recv().ok()
            }
        }
    };
}

std_channels!(
    StdBounded,
    "std",
    &[Some(1), Some(0)],
    mpsc::SyncSender<u64>,
    mpsc::Receiver<u64>,
    |room| mpsc::sync_channel(room.expect("bounds")),
    true
);
std_channels!(
    StdUnbounded,
    "std",
    &[None],
    mpsc::Sender<u64>,
    mpsc::Receiver<u64>,
    |_room| mpsc::channel(),
    true
);
std_channels!(
    MaySpsc,
    "may spsc",
    &[None],
    may::sync::spsc::Sender<u64>,
    may::sync::spsc::Receiver<u64>,
    |_room| may::sync::spsc::channel(),
    false
);
std_channels!(
    MayMpsc,
    "may mpsc",
    &[None],
    may::sync::mpsc::Sender<u64>,
    may::sync::mpsc::Receiver<u64>,
    |_room| may::sync::mpsc::channel(),
    false
);
std_channels!(
    MayMpmc,
    "may mpmc",
    &[None],
    may::sync::mpmc::Sender<u64>,
    may::sync::mpmc::Receiver<u64>,
    |_room| may::sync::mpmc::channel(),
    false
);

impl Shared for MayMpmc {}

/// may's semaphore, with one permit.
pub struct MaySemaphore(may::sync::Semphore);

impl Lock for MaySemaphore {
    const NAME: &'static str = "may semaphore";
    const WAITS_WITH_LOCALS: bool = false;
    const EXCLUSIVE: bool = false;

    fn new() -> MaySemaphore {
        MaySemaphore(may::sync::Semphore::new(1))
    }

    #[inline]
    fn pass(&self, inside: impl FnOnce()) {
        self.0.wait();
        inside();
        self.0.post();
    }

    fn total(&self) -> u64 {
        0
    }
}
