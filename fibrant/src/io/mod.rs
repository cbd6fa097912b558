//! The I/O manager: waiting for descriptors, and functions that run when one is ready.
//!
//! It works for everything that the kernel can poll: sockets, pipes, eventfds, timerfds, signalfds, pidfds, inotify, terminals.
//! Descriptors are not registered beforehand and their flags are not touched: make one non-blocking, try, and if the call would
//! block, [`wait`].
//!
//! ```
//! use fibrant::io::{self, Event};
//! use std::io::{ErrorKind, Read, Write};
//! use std::os::fd::AsRawFd;
//! use std::os::unix::net::UnixStream;
//!
//! fibrant::run(|| {
//!     let (mut ours, mut theirs) = UnixStream::pair().unwrap();
//!     ours.set_nonblocking(true).unwrap();
//!     let reader = fibrant::spawn(move || {
//!         let mut buffer = [0; 5];
//!         while ours.read(&mut buffer).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
//!             io::wait(ours.as_raw_fd(), Event::READ, None).unwrap();
//!         }
//!         buffer
//!     });
//!     fibrant::yield_now();
//!     theirs.write_all(b"hello").unwrap();
//!     assert_eq!(&reader.join().unwrap(), b"hello");
//! });
//! ```

// Inside: `event` says what to wait for; `table` knows who waits for which descriptor; `callback` is a function that waits;
// `stream` remembers what is known of one, and `lull` whether it is silent; `watch` is a fiber's wait, and `outsider` a plain thread's; `reactor` is what a worker sleeps in. The module calls `scheduler` to make fibers wait and `timer` for the wheel.

mod callback;
mod doubt;
mod event;
mod lull;
mod outsider;
mod reactor;
mod stream;
mod table;
mod watch;

pub use event::Event;
pub(crate) use reactor::Reactor;
pub(crate) use stream::{Options, Patience, Stream};
pub(crate) use watch::{Round, Watch, watch, watch_file, watch_file_here};

use crate::clock;
use crate::fiber::Thread;
use crate::scheduler::Worker;
use crate::sys;
use callback::Callback;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::panic::Location;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;
use table::DIRECTIONS;

/// Waits until the descriptor is ready for one of the events, and returns for which. On a thread that runs no fibers it blocks
/// the thread, in `poll`. A cancelled fiber unwinds.
///
/// Several fibers may wait for one descriptor, on one worker or several; each that is woken lets the next one have a look.
///
/// # Errors
///
/// [`TimedOut`](io::ErrorKind::TimedOut) after `timeout`; `ECANCELED` if somebody calls [`cancel_event`] or [`cancel_all`], and
/// `EBADF` if somebody calls [`close`] meanwhile, or the descriptor is not open;
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for a regular file, which cannot be waited for, and for no event at all.
///
/// ```
/// use fibrant::io::{self, Event};
/// use std::os::fd::AsRawFd;
/// use std::os::unix::net::UnixStream;
/// use std::time::Duration;
///
/// fibrant::run(|| {
///     let (ours, _theirs) = UnixStream::pair().unwrap();
///     assert_eq!(io::wait(ours.as_raw_fd(), Event::WRITE, None).unwrap(), Event::WRITE);
///     let error = io::wait(ours.as_raw_fd(), Event::READ, Some(Duration::from_millis(1))).unwrap_err();
///     assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
/// });
/// ```
pub fn wait(fd: RawFd, event: Event, timeout: Option<Duration>) -> io::Result<Event> {
    check_arguments(fd, event)?;
    check_open(fd)?;
    let deadline = timeout.map_or(clock::NEVER, clock::after);
    match Worker::current() {
        Some(worker) if worker.fiber().is_some() => wait_as_fiber(worker, fd, event, deadline),
        _ => wait_as_thread(fd, event, deadline),
    }
}

fn check_arguments(fd: RawFd, event: Event) -> io::Result<()> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    if event.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no event to wait for: name READ, WRITE or both",
        ));
    }
    Ok(())
}

/// Makes sure that the table does not grow for a number that is no descriptor.
fn check_open(fd: RawFd) -> io::Result<()> {
    if table::existing(fd).is_none() {
        poll(fd, Event::READ, 0)?;
    }
    Ok(())
}

/// The wait of a fiber.
fn wait_as_fiber(worker: &Worker, fd: RawFd, event: Event, deadline: u64) -> io::Result<Event> {
    let interruption = watch(worker, &[(fd, event)], |watch| {
        // Registered first, then asked: what cannot be registered is an error, however ready it is.
        watch.register()?;
        loop {
            let ready = poll(fd, event, 0)?;
            if !ready.is_empty() {
                return Ok(Ok(ready));
            }
            if clock::now() >= deadline {
                return Err(timed_out());
            }
            match watch.wait(deadline, true)? {
                Round::Look | Round::Doubt => {}
                Round::TimedOut => return Err(timed_out()),
                Round::Ended(error) => return Err(io::Error::from_raw_os_error(error)),
                Round::Interrupted(interruption) => return Ok(Err(interruption)),
            }
        }
    })?;
    // Outside, where nobody else waits for this fiber to leave.
    interruption.or_else(|interruption| interruption.unwind())
}

/// The wait of a plain thread.
fn wait_as_thread(fd: RawFd, event: Event, deadline: u64) -> io::Result<Event> {
    // epoll says whether it can be waited for at all; poll calls every regular file ready.
    reactor::check_pollable(fd)?;
    // Whoever closes it looks for those who wait if it has an entry.
    table::entry(fd);
    let mut ready = poll(fd, event, 0)?;
    if ready.is_empty() {
        ready = outsider::wait(fd, event, deadline)?;
    }
    match ready.is_empty() {
        true => Err(timed_out()),
        false => Ok(ready),
    }
}

/// Asks the kernel what a descriptor is ready for, for so many milliseconds.
fn poll(fd: RawFd, event: Event, milliseconds: i32) -> io::Result<Event> {
    poll_beside(fd, event, None, milliseconds)
}

/// The same, until there is something to read from the bell.
fn poll_beside(fd: RawFd, event: Event, bell: Option<RawFd>, milliseconds: i32) -> io::Result<Event> {
    let asked = |fd, event: Event| libc::pollfd {
        fd,
        events: event.to_poll(),
        revents: 0,
    };
    // The kernel does not look at a negative number.
    let mut asked = [asked(fd, event), asked(bell.unwrap_or(-1), Event::READ)];
    let count = 1 + usize::from(bell.is_some());
    // SAFETY: so many elements of a local variable.
    match sys::check(unsafe { sys::poll(asked.as_mut_ptr(), count as _, milliseconds) }) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Event::default()),
        result => result?,
    };
    if asked[0].revents & libc::POLLNVAL != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(Event::from_poll(asked[0].revents) & event)
}

/// How many milliseconds there are until then: rounded up, for ever if it is never.
fn milliseconds_until(moment: u64, now: u64) -> i32 {
    if moment == clock::NEVER {
        return -1;
    }
    let nanoseconds = moment.saturating_sub(now);
    i32::try_from(nanoseconds.div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the descriptor was not ready in time")
}

/// Runs `f` once, as a fiber on this worker, when the descriptor is ready for the event, or at once if it is. Errors and
/// hang-ups count as both events. (A guest, see [`Runtime::run`](crate::runtime::Runtime::run), takes its functions with it: those that were not
/// called by then are dropped when it leaves.)
///
/// # Errors
///
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if there is a function for this descriptor and event;
/// [`InvalidInput`](io::ErrorKind::InvalidInput) for a regular file, and unless it is exactly one event;
/// [`Unsupported`](io::ErrorKind::Unsupported) outside a runtime; `EBADF` if the descriptor is not open.
///
/// ```
/// use fibrant::io::{self, Event};
/// use std::os::fd::AsRawFd;
/// use std::os::unix::net::UnixStream;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static CALLED: AtomicBool = AtomicBool::new(false);
/// fibrant::run(|| {
///     let (ours, theirs) = UnixStream::pair().unwrap();
///     io::add_event(ours.as_raw_fd(), Event::READ, || CALLED.store(true, Ordering::Relaxed)).unwrap();
///     assert_eq!(io::pending_events(), 1);
///     drop(theirs); // the end of the stream is something to read
///     while io::pending_events() > 0 {
///         fibrant::yield_now();
///     }
///     fibrant::yield_now();
///     assert!(CALLED.load(Ordering::Relaxed));
/// });
/// ```
#[track_caller]
pub fn add_event(fd: RawFd, event: Event, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    check_arguments(fd, event)?;
    let Some((index, _)) = DIRECTIONS.into_iter().find(|(_, direction)| *direction == event) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a function waits for one event: add one for READ and one for WRITE",
        ));
    };
    let Some(worker) = Worker::current() else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "an event was added outside a runtime: call it from a fiber, or inside fibrant::run",
        ));
    };
    check_open(fd)?;
    let mut state = table::entry(fd).lock();
    if state.callbacks[index].is_some() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("a function waits for {event:?} on descriptor {fd} already; del_event removes it"),
        ));
    }
    let reactor = Reactor::of(worker);
    reactor.register(fd, &mut state, event)?;
    // It may have been ready for long: asking anew makes an edge of that.
    reactor.verify(fd, &mut state)?;
    state.callbacks[index] = Some(Box::new(Callback::new(worker, Location::caller(), Box::new(f))));
    Ok(())
}

/// Removes the functions that wait for these events, without calling them. Returns whether there were any.
///
/// ```
/// use fibrant::io::{self, Event};
/// use std::os::fd::AsRawFd;
/// use std::os::unix::net::UnixStream;
///
/// fibrant::run(|| {
///     let (ours, _theirs) = UnixStream::pair().unwrap();
///     io::add_event(ours.as_raw_fd(), Event::READ, || unreachable!()).unwrap();
///     assert!(io::del_event(ours.as_raw_fd(), Event::READ));
///     assert!(!io::del_event(ours.as_raw_fd(), Event::READ));
/// });
/// ```
pub fn del_event(fd: RawFd, event: Event) -> bool {
    let removed = take_callbacks(fd, event, |_| false).0;
    removed.iter().flatten().count() > 0
}

/// Calls the functions that wait for these events, now, once; and ends the waits for them, with `ECANCELED`. Returns
/// whether there were any.
///
/// ```
/// use fibrant::io::{self, Event};
/// use std::os::fd::AsRawFd;
/// use std::os::unix::net::UnixStream;
///
/// fibrant::run(|| {
///     let (ours, _theirs) = UnixStream::pair().unwrap();
///     let fd = ours.as_raw_fd();
///     let waiter = fibrant::spawn_local(move || io::wait(fd, Event::READ, None));
///     fibrant::yield_now();
///     assert!(io::cancel_event(fd, Event::READ));
///     let error = waiter.join().unwrap().unwrap_err();
///     assert_eq!(error.raw_os_error(), Some(125)); // ECANCELED
/// });
/// ```
pub fn cancel_event(fd: RawFd, event: Event) -> bool {
    let (callbacks, ended) = take_callbacks(fd, event, |state| state.end_waits(event, libc::ECANCELED));
    let mut any = outsider::end_waits(fd..=fd, event, libc::ECANCELED) | ended;
    for callback in callbacks.into_iter().flatten() {
        any = true;
        callback.call();
    }
    any
}

/// [`cancel_event`] for both events.
///
/// ```
/// assert!(!fibrant::io::cancel_all(0)); // nobody waits for standard input
/// ```
pub fn cancel_all(fd: RawFd) -> bool {
    cancel_event(fd, Event::READ | Event::WRITE)
}

/// Closes a descriptor. Whoever waits for it, on whatever worker or thread, gets `EBADF`; functions that wait for it are called, once. An
/// event that is under way for it reaches nobody, even if the number is used again at once.
///
/// The descriptor must be the caller's to close: use it on what [`IntoRawFd`](std::os::fd::IntoRawFd) gives.
///
/// # Errors
///
/// As `close(2)`; the descriptor is gone all the same, unless it was `EBADF`.
///
/// ```
/// use fibrant::io::{self, Event};
/// use std::os::fd::IntoRawFd;
/// use std::os::unix::net::UnixStream;
///
/// fibrant::run(|| {
///     let (ours, _theirs) = UnixStream::pair().unwrap();
///     let fd = ours.into_raw_fd();
///     let waiter = fibrant::spawn_local(move || io::wait(fd, Event::READ, None));
///     fibrant::yield_now();
///     io::close(fd).unwrap();
///     assert_eq!(waiter.join().unwrap().unwrap_err().raw_os_error(), Some(9)); // EBADF
/// });
/// ```
pub fn close(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller owns it; in the sense of Rust's I/O safety this function should not be safe to call with any
    // number, but like std's own raw functions it cannot make memory unsound: a wrong number closes somebody else's file.
    sys::check(closing(fd..=fd, || unsafe { sys::close(fd) })).map(drop)
}

/// Lets `close` close these descriptors, or put others in their place: what is known of them is forgotten before, who waits for
/// one gets `EBADF`, and functions that wait for one are called afterwards.
pub(crate) fn closing<R>(descriptors: RangeInclusive<RawFd>, close: impl FnOnce() -> R) -> R {
    let end_waits_of_threads =
        || outsider::end_waits(descriptors.clone(), Event::READ | Event::WRITE, libc::EBADF);
    if sys::is_forked() {
        // The fibers that wait are the parent's, and so are the registrations.
        end_waits_of_threads();
        return close();
    }
    if Thread::in_signal_handler() {
        // What it has interrupted may have the lock; later waits find out by themselves. But nobody is to wait for what is there.
        table::known(descriptors.clone()).for_each(|fd| table::entry(fd).lull.forget());
        end_waits_of_threads();
        return Options::changing(close);
    }
    let mut callbacks = Vec::new();
    for fd in table::known(descriptors.clone()) {
        let entry = table::entry(fd);
        entry.kind.store(Kind::Unknown as u8, Relaxed);
        entry.impatient.iter().for_each(|flag| flag.store(false, Relaxed));
        let (taken, _) = take_callbacks(fd, Event::READ | Event::WRITE, |state| {
            state.generation = state.generation.wrapping_add(1);
            state.patience = Patience::default();
            table::entry(fd).endless.store(0, Relaxed);
            table::entry(fd).lull.forget();
            table::entry(fd).generation.store(state.generation, Release);
            for registration in state.registrations.take() {
                reactor::forget(registration.epoll, fd);
            }
            table::entry(fd).note_home(state);
            state.end_waits(Event::READ | Event::WRITE, libc::EBADF)
        });
        callbacks.extend(taken.into_iter().flatten());
    }
    end_waits_of_threads();
    let result = close();
    callbacks.into_iter().for_each(|callback| callback.call());
    result
}

/// Forgets what belongs to the process that this one was forked from.
pub(crate) fn forget_parents() {
    table::forget_all();
}

/// Whether the socket's timeout for this direction is negative.
pub(crate) fn is_impatient(fd: RawFd, event: Event) -> bool {
    table::existing(fd).is_some_and(|entry| entry.impatient[index_of(event)].load(Relaxed))
}

/// Remembers that for a socket, which is open.
pub(crate) fn note_impatient(fd: RawFd, event: Event, yes: bool) {
    // Most have no such timeout, and need no entry.
    if !sys::is_forked() && (yes || is_impatient(fd, event)) {
        table::entry(fd).impatient[index_of(event)].store(yes, Relaxed);
    }
}

/// The place of a direction.
fn index_of(event: Event) -> usize {
    usize::from(event.contains(Event::WRITE))
}

/// A number that the file which a descriptor stands for has, and the next one has not.
#[inline]
pub(crate) fn generation(fd: RawFd) -> u32 {
    table::existing(fd).map_or(0, |entry| entry.generation.load(Acquire))
}

/// What is remembered of a descriptor, until it is closed. It may have been closed without our knowledge, so it is a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing.
    Unknown,
    /// It is a socket.
    Socket,
    /// It is no socket, and no file on a disk, either: a short read of it is complete.
    Other,
}

/// What is remembered of a descriptor.
#[inline]
pub(crate) fn kind(fd: RawFd) -> Kind {
    match table::existing(fd).map(|entry| entry.kind.load(Relaxed)) {
        Some(1) => Kind::Socket,
        Some(2) => Kind::Other,
        _ => Kind::Unknown,
    }
}

/// Remembers something of a descriptor, which is open.
pub(crate) fn note_kind(fd: RawFd, kind: Kind) {
    if fd >= 0 && !sys::is_forked() {
        table::entry(fd).kind.store(kind as u8, Relaxed);
    }
}

/// Notes that a descriptor has just been made. If something is known of its number, that is of a file which was closed without our
/// knowledge.
pub(crate) fn note_new(fd: RawFd, kind: Kind) {
    if !sys::is_forked() && table::existing(fd).is_some_and(table::Entry::has_known_a_file) {
        closing(fd..=fd, || ());
    }
    if kind != Kind::Unknown {
        note_kind(fd, kind);
    }
}

/// Whether the descriptor is one that can be waited for.
pub(crate) fn is_pollable(fd: RawFd) -> bool {
    reactor::check_pollable(fd).is_ok()
}

/// Whether the descriptor has a place in the table.
pub(crate) fn is_known(fd: RawFd) -> bool {
    !sys::is_forked() && !Thread::in_signal_handler() && table::existing(fd).is_some()
}

/// Calls `f` while nobody else does for this descriptor. It must not wait.
pub(crate) fn exclusively<R>(fd: RawFd, f: impl FnOnce() -> R) -> R {
    let _state = table::entry(fd).lock();
    f()
}

/// A descriptor, which is open, with its [`generation`]. From now on it is noticed if it is closed.
pub(crate) fn identify(fd: RawFd) -> (RawFd, u32) {
    (fd, table::entry(fd).generation.load(Acquire))
}

/// Makes a call while nobody can put another file in the place of this one. `EBADF`, if somebody has. It must not wait.
pub(crate) fn on_same_file((fd, generation): (RawFd, u32), call: impl FnOnce() -> isize) -> isize {
    let state = table::entry(fd).lock();
    if state.generation == generation {
        call()
    } else {
        -(libc::EBADF as isize)
    }
}

/// The same for two descriptors, which may be one.
pub(crate) fn on_same_files(mut files: [(RawFd, u32); 2], call: impl FnOnce() -> isize) -> isize {
    // Always in this order: so two who do this never wait for each other.
    files.sort_unstable();
    let [first, second] = files;
    on_same_file(first, || match first.0 == second.0 {
        true => call(),
        false => on_same_file(second, call),
    })
}

/// Takes the functions for these events out of the table, and does something else to the descriptor's state with the same
/// lock.
fn take_callbacks(
    fd: RawFd,
    event: Event,
    also: impl FnOnce(&mut table::State) -> bool,
) -> ([Option<Box<Callback>>; 2], bool) {
    let Some(entry) = table::existing(fd) else {
        return ([None, None], false);
    };
    let mut state = entry.lock();
    let also = also(&mut state);
    let take = |(index, direction): (usize, Event)| {
        event
            .contains(direction)
            .then(|| state.callbacks[index].take())
            .flatten()
    };
    (DIRECTIONS.map(take), also)
}

/// How many functions of this runtime wait for an event; 0 outside one.
///
/// ```
/// fibrant::run(|| assert_eq!(fibrant::io::pending_events(), 0));
/// ```
pub fn pending_events() -> usize {
    Worker::current().map_or(0, |worker| worker.crew.pending_events())
}
