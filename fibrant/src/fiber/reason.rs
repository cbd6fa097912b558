//! Why a fiber is not running: what dumps and counters show.
//!
//! The fiber writes its reason before it waits; any thread may read it. It is kept as two plain numbers, so that writing it
//! costs two stores.

use std::fmt;

/// Why a fiber is not running. More reasons come with the things a fiber can wait for.
///
/// ```
/// use fibrant::fiber::{self, Fiber, WaitReason};
///
/// let fiber = Fiber::new(fiber::suspend);
/// assert_eq!(fiber.wait_reason(), None); // not started
/// fiber.resume().unwrap();
/// assert_eq!(fiber.wait_reason(), Some(WaitReason::Suspended));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitReason {
    /// It called [`suspend`](super::suspend) and waits for its owner to resume it.
    Suspended,
    /// It called [`park`](super::park) and waits to be unparked.
    Parked,
    /// It sleeps.
    Sleeping,
    /// It waits for another fiber, or a function on a real thread, to end.
    Joining {
        /// That fiber's number.
        fiber: u64,
    },
    /// It waits for the fibers of its scope to end.
    Scope,
    /// It waits for a descriptor.
    Descriptor {
        /// The descriptor.
        fd: i32,
        /// For input: there is something to read.
        read: bool,
        /// For output: there is room to write.
        write: bool,
    },
    /// It waits for a number in memory to change: for a lock or a channel of std's, most often.
    Futex {
        /// Where the number is.
        address: usize,
    },
    /// It waits for a lock, or for something like it (a condition, a semaphore, a barrier): the C library's, or one of
    /// [`sync`](crate::sync).
    Lock {
        /// Where that is.
        address: usize,
    },
    /// It waits for a message from a [channel](crate::sync::channel).
    Receiving {
        /// Where the channel is.
        address: usize,
    },
    /// It waits until it can send a message to a [channel](crate::sync::channel).
    Sending {
        /// Where the channel is.
        address: usize,
    },
    /// It waits for one of several channels.
    Select {
        /// How many.
        arms: usize,
    },
}

/// Something that fibers wait for and that can tell more than their reason does, to dumps.
pub(crate) trait Subject {
    /// What it is, who has it, who waits for it. Called on any thread while somebody waits for it; it must not wait itself.
    fn describe(&self) -> String;
}

impl WaitReason {
    /// How many kinds of reasons there are.
    pub(crate) const KINDS: usize = 11;

    /// The kinds by their numbers, for counters and dumps.
    pub(crate) const NAMES: [&'static str; WaitReason::KINDS] = [
        "suspended",
        "parked",
        "sleeping",
        "joining",
        "scope",
        "descriptor",
        "futex",
        "lock",
        "receiving",
        "sending",
        "select",
    ];

    /// The number of its kind.
    #[inline]
    pub(crate) fn kind(self) -> u8 {
        self.encode().0
    }

    /// The number of its kind, and the rest of it.
    #[inline]
    pub(super) fn encode(self) -> (u8, u64) {
        match self {
            WaitReason::Suspended => (0, 0),
            WaitReason::Parked => (1, 0),
            WaitReason::Sleeping => (2, 0),
            WaitReason::Joining { fiber } => (3, fiber),
            WaitReason::Scope => (4, 0),
            WaitReason::Descriptor { fd, read, write } => (
                5,
                u64::from(fd as u32) | u64::from(read) << 32 | u64::from(write) << 33,
            ),
            WaitReason::Futex { address } => (6, address as u64),
            WaitReason::Lock { address } => (7, address as u64),
            WaitReason::Receiving { address } => (8, address as u64),
            WaitReason::Sending { address } => (9, address as u64),
            WaitReason::Select { arms } => (10, arms as u64),
        }
    }

    pub(super) fn decode(kind: u8, rest: u64) -> WaitReason {
        match kind {
            1 => WaitReason::Parked,
            2 => WaitReason::Sleeping,
            3 => WaitReason::Joining { fiber: rest },
            4 => WaitReason::Scope,
            5 => WaitReason::Descriptor {
                fd: rest as u32 as i32,
                read: rest & 1 << 32 != 0,
                write: rest & 1 << 33 != 0,
            },
            6 => WaitReason::Futex {
                address: rest as usize,
            },
            7 => WaitReason::Lock {
                address: rest as usize,
            },
            8 => WaitReason::Receiving {
                address: rest as usize,
            },
            9 => WaitReason::Sending {
                address: rest as usize,
            },
            10 => WaitReason::Select { arms: rest as usize },
            _ => WaitReason::Suspended,
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitReason::Joining { fiber } => write!(f, "joining fiber {fiber}"),
            WaitReason::Descriptor { fd, read, write } => {
                let what = match (read, write) {
                    (true, true) => "input or output",
                    (_, true) => "output",
                    _ => "input",
                };
                write!(f, "waiting for {what} on descriptor {fd}")
            }
            WaitReason::Futex { address } => write!(f, "waiting for a change at {address:#x}"),
            WaitReason::Lock { address } => write!(f, "waiting for the lock at {address:#x}"),
            WaitReason::Sending { address } => {
                write!(f, "sending to the channel at {address:#x}")
            }
            WaitReason::Receiving { address } => write!(f, "receiving from the channel at {address:#x}"),
            WaitReason::Select { arms } => write!(f, "selecting among {arms} channels"),
            WaitReason::Scope => f.write_str("waiting for the fibers of its scope"),
            simple => f.write_str(WaitReason::NAMES[usize::from(simple.kind())]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_survives_its_numbers() {
        for reason in [
            WaitReason::Suspended,
            WaitReason::Parked,
            WaitReason::Sleeping,
            WaitReason::Joining { fiber: u64::MAX },
            WaitReason::Scope,
            WaitReason::Descriptor {
                fd: i32::MAX,
                read: false,
                write: true,
            },
            WaitReason::Descriptor {
                fd: 0,
                read: true,
                write: false,
            },
            WaitReason::Futex { address: usize::MAX },
            WaitReason::Lock { address: 64 },
            WaitReason::Receiving { address: 8 },
            WaitReason::Sending { address: 16 },
            WaitReason::Select { arms: 3 },
        ] {
            let (kind, rest) = reason.encode();
            assert_eq!(WaitReason::decode(kind, rest), reason);
        }
    }
}
