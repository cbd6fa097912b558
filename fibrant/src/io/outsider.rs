//! Plain threads that wait for descriptors.
//!
//! They block in the kernel, which does not tell them that a descriptor is closed meanwhile. So each has a bell beside it, which whoever closes
//! the descriptor, or cancels the waits for it, rings. `io::wait` comes here on a thread that runs no fibers; `io::close` and `io::cancel_event`
//! come here to end such waits.
//!
//! One of the two always sees the other: a thread says that it waits, and then looks whether the descriptor still stands for the same file;
//! whoever closes it makes that another one, and then looks who waits. A thread that comes between that look and the close itself finds out when
//! its wait has lasted a moment, as a fiber does.
//!
//! Exactly one ends a wait, here as everywhere: whoever writes its verdict first, be it that something has ended it, or that it has found what it
//! waited for.

use super::Event;
use crate::clock;
use crate::scheduler::Lock;
use crate::sys::{self, PerProcess, syscall};
use std::cell::Cell;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*, fence};

/// After how long a wait looks once more whether the descriptor is still there: nanoseconds.
const SECOND_LOOK_AFTER: u64 = 10_000_000;

/// The verdict on a wait that goes on, and on one that has come to its own end. Any other is an error number.
const OPEN: i32 = 0;
const OVER: i32 = -1;

/// A thread that waits. It is in the frame of the function that does.
struct Outsider {
    fd: RawFd,
    event: Event,
    /// An eventfd.
    bell: OwnedFd,
    verdict: AtomicI32,
    /// The next one of those who wait, under their lock.
    next: Cell<*const Outsider>,
}

impl Outsider {
    /// Ends the wait, unless it has ended.
    fn end(&self, verdict: i32) -> Result<(), i32> {
        let ended = self.verdict.compare_exchange(OPEN, verdict, AcqRel, Acquire);
        ended.map(drop)
    }
}

/// Those who wait.
#[derive(Default)]
struct Outsiders {
    /// How many there are, and will be in a moment: most often nobody, and then nothing else is looked at.
    count: AtomicUsize,
    list: Lock<List>,
}

/// A list through themselves.
#[derive(Default)]
struct List(Cell<*const Outsider>);

// SAFETY: it is behind a lock, and whoever is in it stays in place until it has taken itself out, under that lock. Of an outsider others
// touch its link, under the lock, what is atomic, and what does not change.
unsafe impl Send for List {}

static OUTSIDERS: PerProcess<Outsiders> = PerProcess::new(Outsiders::default);

impl List {
    fn iter(&self) -> impl Iterator<Item = &Outsider> {
        let mut next = self.0.get();
        std::iter::from_fn(move || {
            // SAFETY: null, or in the list, and so in place while the lock is held, which whoever has borrowed this holds.
            let outsider = unsafe { next.as_ref() }?;
            next = outsider.next.get();
            Some(outsider)
        })
    }
}

impl Outsiders {
    /// Calls `f` with the list. No signal comes meanwhile: its handler may close something, too, on the thread that has the lock.
    fn with<R>(&self, f: impl FnOnce(&List) -> R) -> R {
        let (all, mut before) = (u64::MAX, 0_u64);
        // SAFETY: sets of signals as the kernel has them, in local variables.
        unsafe {
            syscall!(
                SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const all,
                &raw mut before,
                8
            )
        };
        let result = f(&self.list.lock());
        // SAFETY: as above.
        unsafe { syscall!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8) };
        result
    }
}

/// A thread that is among those who wait, until this is dropped.
struct Enlisted<'a>(&'a Outsider);

impl<'a> Enlisted<'a> {
    fn new(outsider: &'a Outsider) -> Enlisted<'a> {
        // Or a forked child would take its parent's for its own.
        sys::note_forks();
        let outsiders = OUTSIDERS.get();
        outsiders.count.fetch_add(1, SeqCst);
        outsiders.with(|list| outsider.next.set(list.0.replace(outsider)));
        Enlisted(outsider)
    }
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        let outsiders = OUTSIDERS.get();
        outsiders.with(|list| {
            let next = self.0.next.get();
            match list.iter().find(|other| ptr::eq(other.next.get(), self.0)) {
                Some(previous) => previous.next.set(next),
                None => list.0.set(next),
            }
        });
        outsiders.count.fetch_sub(1, Relaxed);
    }
}

/// Blocks the thread until the descriptor is ready for one of the events, and says for which; for none if the deadline comes first.
pub(super) fn wait(fd: RawFd, event: Event, deadline: u64) -> io::Result<Event> {
    let generation = super::generation(fd);
    // SAFETY: makes a descriptor; nothing is borrowed.
    let bell = sys::check(unsafe { syscall!(SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    let outsider = Outsider {
        fd,
        event,
        // SAFETY: it was just made and is nobody else's.
        bell: unsafe { OwnedFd::from_raw_fd(bell as RawFd) },
        verdict: AtomicI32::new(OPEN),
        next: Cell::new(ptr::null()),
    };
    let _enlisted = Enlisted::new(&outsider);
    fence(SeqCst);
    if super::generation(fd) != generation {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let second_look = clock::now() + SECOND_LOOK_AFTER;
    loop {
        let now = clock::now();
        let until = if now < second_look {
            deadline.min(second_look)
        } else {
            deadline
        };
        let ready = super::poll_beside(
            fd,
            event,
            Some(outsider.bell.as_raw_fd()),
            super::milliseconds_until(until, now),
        )?;
        let is_over = !ready.is_empty() || clock::now() >= deadline;
        let verdict = match is_over {
            true => outsider.end(OVER).err(),
            false => Some(outsider.verdict.load(Acquire)).filter(|verdict| *verdict != OPEN),
        };
        match verdict {
            Some(error) => return Err(io::Error::from_raw_os_error(error)),
            None if is_over => return Ok(ready),
            None => {}
        }
    }
}

/// Ends the waits for these descriptors and events with an error. Returns whether there were any.
pub(super) fn end_waits(descriptors: RangeInclusive<RawFd>, event: Event, error: i32) -> bool {
    // Between what the caller has changed and the look at those who wait.
    fence(SeqCst);
    let Some(outsiders) = OUTSIDERS.existing().filter(|all| all.count.load(Relaxed) > 0) else {
        return false;
    };
    outsiders.with(|list| {
        let mut any = false;
        for outsider in list.iter() {
            let concerns = descriptors.contains(&outsider.fd) && !(outsider.event & event).is_empty();
            if concerns && outsider.end(error).is_ok() {
                any = true;
                // SAFETY: writes eight bytes to a descriptor that is open as long as its owner is in the list.
                unsafe { syscall!(SYS_write, outsider.bell.as_raw_fd(), &raw const ONE, 8) };
            }
        }
        any
    })
}

/// What ringing adds to the bell's counter.
static ONE: u64 = 1;
