//! Plain threads that wait for descriptors.
//!
//! They block in the kernel, which does not tell them that a descriptor is closed meanwhile. So each has a bell beside it, which whoever closes
//! the descriptor, or cancels the waits for it, rings. `io::wait` comes here on a thread that runs no fibers; `io::close` and `io::cancel_event`
//! come here to end such waits.
//!
//! One of the two always sees the other: a thread says that it waits, and then looks whether the descriptor still stands for the same file;
//! whoever closes it makes that another one, and then looks who waits. A thread that comes between that look and the close itself finds out when
//! its wait has lasted a moment, as a fiber does.

use super::Event;
use crate::clock;
use crate::scheduler::Lock;
use crate::sys::{self, PerProcess};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering::*, fence};

/// After how long a wait looks once more whether the descriptor is still there: milliseconds.
const SECOND_LOOK_AFTER: i32 = 10;

/// A thread that waits. It is in the frame of the function that does.
struct Outsider {
    fd: RawFd,
    event: Event,
    /// An eventfd.
    bell: OwnedFd,
    /// Why the wait is over, if somebody has ended it: an error number.
    error: AtomicI32,
    /// The next one of those who wait, under their lock.
    next: Cell<*const Outsider>,
}

/// Those who wait: a list through themselves.
#[derive(Default)]
struct Outsiders(Cell<Option<ptr::NonNull<Outsider>>>);

// SAFETY: it is behind a lock, and whoever is in it stays in place until it has taken itself out, under that lock. Of an outsider others
// touch its link, under the lock, what is atomic, and what does not change.
unsafe impl Send for Outsiders {}

static OUTSIDERS: PerProcess<Lock<Outsiders>> = PerProcess::new(Lock::default);

impl Outsiders {
    fn iter(&self) -> impl Iterator<Item = &Outsider> {
        let mut next = self
            .0
            .get()
            .map_or(ptr::null(), |first| first.as_ptr().cast_const());
        std::iter::from_fn(move || {
            // SAFETY: null, or in the list, and so in place while the lock is held, which whoever has borrowed this holds.
            let outsider = unsafe { next.as_ref() }?;
            next = outsider.next.get();
            Some(outsider)
        })
    }
}

/// A thread that is among those who wait, until this is dropped.
struct Enlisted<'a>(&'a Outsider);

impl<'a> Enlisted<'a> {
    fn new(outsider: &'a Outsider) -> Enlisted<'a> {
        let outsiders = OUTSIDERS.get().lock();
        let before = outsiders.0.replace(Some(ptr::NonNull::from(outsider)));
        outsider
            .next
            .set(before.map_or(ptr::null(), |before| before.as_ptr()));
        Enlisted(outsider)
    }
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        let outsiders = OUTSIDERS.get().lock();
        let next = self.0.next.get();
        match outsiders.iter().find(|other| ptr::eq(other.next.get(), self.0)) {
            Some(previous) => previous.next.set(next),
            None => outsiders.0.set(ptr::NonNull::new(next.cast_mut())),
        }
    }
}

/// Blocks the thread until the descriptor is ready for one of the events, and says for which; for none if the deadline comes first.
pub(super) fn wait(fd: RawFd, event: Event, deadline: u64) -> io::Result<Event> {
    let generation = super::generation(fd);
    // SAFETY: makes a descriptor; nothing is borrowed.
    let bell = sys::check(unsafe { sys::syscall!(SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    let outsider = Outsider {
        fd,
        event,
        // SAFETY: it was just made and is nobody else's.
        bell: unsafe { OwnedFd::from_raw_fd(bell as RawFd) },
        error: AtomicI32::new(0),
        next: Cell::new(ptr::null()),
    };
    let _enlisted = Enlisted::new(&outsider);
    fence(SeqCst);
    let mut at_most = SECOND_LOOK_AFTER;
    loop {
        if super::generation(fd) != generation {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let rest = match deadline {
            clock::NEVER => at_most,
            _ => {
                let nanoseconds = deadline.saturating_sub(clock::now());
                i32::try_from(nanoseconds.div_ceil(1_000_000))
                    .unwrap_or(i32::MAX)
                    .min(at_most)
            }
        };
        let ready = super::poll_beside(fd, event, Some(outsider.bell.as_raw_fd()), rest)?;
        match outsider.error.load(Acquire) {
            0 if !ready.is_empty() || clock::now() >= deadline => return Ok(ready),
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        // From now on as long as it takes.
        at_most = if deadline == clock::NEVER { -1 } else { i32::MAX };
    }
}

/// Ends the waits for a descriptor and these events with an error. Returns whether there were any.
pub(super) fn end_waits(fd: RawFd, event: Event, error: i32) -> bool {
    // Between what the caller has changed and the look at those who wait.
    fence(SeqCst);
    let Some(outsiders) = OUTSIDERS.existing() else {
        return false;
    };
    let mut any = false;
    for outsider in outsiders.lock().iter() {
        let concerns = outsider.fd == fd && !(outsider.event & event).is_empty();
        if concerns
            && outsider
                .error
                .compare_exchange(0, error, Release, Relaxed)
                .is_ok()
        {
            any = true;
            // SAFETY: writes eight bytes to a descriptor that is open as long as its owner is in the list.
            unsafe { sys::syscall!(SYS_write, outsider.bell.as_raw_fd(), &raw const ONE, 8) };
        }
    }
    any
}

/// What ringing adds to the bell's counter.
static ONE: u64 = 1;
