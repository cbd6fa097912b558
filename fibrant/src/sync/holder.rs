//! Who holds a lock: the fiber that runs here, or else the calling thread, as one number.

use crate::scheduler::Worker;
use crate::sys;
use std::cell::Cell;
use std::fmt;

/// A fiber or a thread. 0 is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(u64);

/// Set in the number of a thread.
const IS_THREAD: u64 = 1;

thread_local! {
    /// The system's number of this thread, once it was asked for, and the process that it has it in: in a forked child it has another, and
    /// its former one may be somebody else's. Fibers with thread-locals of their own do not ask.
    static NUMBER: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

impl Holder {
    /// The caller, and about what time it is, if it is a fiber, for which that costs nothing: nanoseconds of the monotonic clock, as of
    /// its worker's last look; otherwise 0.
    #[inline(always)]
    pub(crate) fn present() -> (Holder, u64) {
        match Worker::and_fiber() {
            Some((worker, fiber)) => (Holder::fiber(fiber.task.id()), worker.now()),
            None => (Holder::thread(), 0),
        }
    }

    /// The fiber with this number.
    #[inline(always)]
    pub(crate) fn fiber(id: u64) -> Holder {
        Holder(id << 1)
    }

    #[inline(always)]
    fn thread() -> Holder {
        let (process, mut number) = NUMBER.get();
        if number == 0 || process != sys::process() {
            number = Holder::ask_for_number();
        }
        Holder(number << 1 | IS_THREAD)
    }

    #[cold]
    fn ask_for_number() -> u64 {
        sys::note_forks();
        let number = sys::thread_id() as u64;
        NUMBER.set((sys::process(), number));
        number
    }

    /// It as a number, whose two highest bits are not needed.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// What [`number`](Holder::number) has given.
    pub(crate) fn from_number(number: u64) -> Option<Holder> {
        (number != 0).then_some(Holder(number))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.0 & IS_THREAD == 0 {
            "fiber"
        } else {
            "thread"
        };
        write!(f, "{kind} {}", self.0 >> 1)
    }
}
