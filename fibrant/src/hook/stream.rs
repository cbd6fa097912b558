//! Reading from a TCP stream, with the fewest system calls: one for each message, if they come one at a time.
//!
//! `transfer` comes here with plain reads of what is known as such a stream, and [`introduce`]s one when a first read has to wait. A
//! stream that is silent is not asked in vain: the fiber waits at once, and as long as the user has set before. What that rests on is
//! remembered by [`io::Stream`]; here the kernel is asked, when it is not known or a wait has lasted a while.
//!
//! It calls [`io`] to wait.

use super::retry::{Answer, Caller, NOT_AT_ALL, answer, is_nonblocking, patience, would_block};
use super::transfer::{HAS_LOW_WATER_MARKS, socket_option};
use crate::clock;
use crate::io::{self, Event, Options, Patience, Stream};
use crate::sys::syscall;
use libc::{c_int, c_void, socklen_t};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;

/// The option that names the protocol which has been put upon TCP, if any.
pub(super) const TCP_ULP: c_int = 31;

/// The stream that a plain read of a descriptor is for, if it is known as one.
#[inline]
pub(super) fn of(fd: RawFd) -> Option<Stream> {
    // Whoever has set a mark waits for more than there is.
    Stream::of(fd).filter(|_| !HAS_LOW_WATER_MARKS.load(Relaxed))
}

/// Finds out whether a socket that is to be waited for is a plain TCP stream, if nobody has. An error if it is not to be waited for.
#[cold]
pub(super) fn introduce(fd: RawFd, generation: u32) -> Result<Option<Stream>, i32> {
    if !Stream::is_unknown(fd) {
        return Ok(None);
    }
    if is_nonblocking(fd) {
        return Err(libc::EAGAIN);
    }
    Stream::introduce(fd, generation, is_plain(fd));
    Ok(of(fd))
}

/// Whether a read of a socket that is shorter than it might be has emptied it: with TCP, unless something else divides the stream.
fn is_plain(fd: RawFd) -> bool {
    let is_tcp = || socket_option(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    let is_bare = || {
        let mut name = [0_u8; 16];
        let mut size = name.len() as socklen_t;
        // SAFETY: writes to local variables.
        let result = unsafe {
            syscall!(
                SYS_getsockopt,
                fd,
                libc::IPPROTO_TCP,
                TCP_ULP,
                &raw mut name,
                &raw mut size
            )
        };
        // A kernel that does not know the option has no such protocols.
        result < 0 || size == 0 || name[0] == 0
    };
    matches!(
        socket_option(fd, libc::SO_DOMAIN),
        Some(libc::AF_INET | libc::AF_INET6)
    ) && is_tcp()
        && is_bare()
}

/// A receiving call with these flags begins. After one that asks for urgent data the kernel says no more that there is some, but reads stop
/// where it was: they have to try from now on.
#[inline]
pub(super) fn note_urgent(fd: RawFd, flags: c_int) {
    if flags & libc::MSG_OOB != 0
        && let Some(stream) = Stream::of(fd)
    {
        stream.note_urgent();
    }
}

/// Reads from a stream.
///
/// # Safety
/// The buffer has that length, and may be written to.
#[inline]
pub(super) unsafe fn receive(
    caller: Caller,
    fd: RawFd,
    stream: Stream,
    buffer: *mut c_void,
    length: usize,
) -> Answer {
    let read = Read {
        fd,
        stream,
        buffer,
        length,
    };
    // Whoever has been interrupted, or has a time limit, tries first: what is there is read, however late it is.
    let silence = stream.silence().filter(|_| !caller.worker.may_be_interrupted());
    let patience = match silence {
        Some(patience) => patience,
        None => {
            // SAFETY: by the contract.
            let result = unsafe { read.attempt() };
            if !would_block(result) {
                if result > 0 {
                    caller.found(Some(fd));
                }
                return answer(result);
            }
            match stream.patience() {
                Some(patience) => patience,
                // What was just asked is right for this call, whatever somebody changes from now on. It is not doubted.
                None => Patience {
                    options: Options::default(),
                    ..ask(fd, stream)
                },
            }
        }
    };
    if patience.time == NOT_AT_ALL {
        return Err(libc::EAGAIN);
    }
    // SAFETY: by the contract.
    unsafe { read.wait(caller, patience) }
}

/// A read of a stream.
#[derive(Clone, Copy)]
struct Read {
    fd: RawFd,
    stream: Stream,
    buffer: *mut c_void,
    length: usize,
}

impl Read {
    /// Asks the kernel, without waiting.
    ///
    /// # Safety
    /// The buffer has that length, and may be written to.
    #[inline(always)]
    unsafe fn attempt(&self) -> isize {
        let &Read {
            fd, buffer, length, ..
        } = self;
        // SAFETY: by the contract.
        let call = || unsafe { syscall!(SYS_recvfrom, fd, buffer, length, libc::MSG_DONTWAIT, 0, 0) };
        self.stream.read(length, call)
    }

    /// Waits until there is something, and reads it.
    ///
    /// While a fiber waits here its stack leaves the cache, if there are many, and all of it that is in use has to come back: so
    /// everything is in one frame, as small as it can be.
    ///
    /// # Safety
    /// As [`attempt`](Self::attempt).
    #[inline(never)]
    unsafe fn wait(self, caller: Caller, patience: Patience) -> Answer {
        caller.count().would_block.increment();
        let target = (self.fd, Event::READ);
        if caller.worker.keeps_no_records() {
            return io::watch_file(caller.worker, target, self.stream.generation, |watch| {
                // SAFETY: by the contract.
                unsafe { self.wait_with(watch, caller, patience) }
            });
        }
        io::watch_file_here(caller.worker, target, self.stream.generation, |watch| {
            // SAFETY: by the contract.
            unsafe { self.wait_with(watch, caller, patience) }
        })
    }

    /// # Safety
    /// As [`attempt`](Self::attempt).
    #[inline(always)]
    unsafe fn wait_with(&self, watch: &io::Watch<'_>, caller: Caller, patience: Patience) -> Answer {
        let mut deadline = deadline(patience.time);
        watch.believe();
        loop {
            let mut is_over = false;
            let is_heard = match caller.listen(watch, deadline) {
                Ok(is_heard) => is_heard,
                // Perhaps the worker was busy, and something has come in time: so there is a last try.
                Err(libc::EAGAIN) => {
                    is_over = true;
                    true
                }
                Err(error) => {
                    if error == libc::ECANCELED {
                        self.stream.forget(); // it was too short to make sure, and perhaps all of them are
                    }
                    return Err(error);
                }
            };
            if !is_heard && self.doubt(watch, patience, &mut deadline)? {
                continue; // if there is something, it will be heard; to look now would be to jump the queue
            }
            // SAFETY: by the contract.
            let result = watch.attempt_and_leave(|| unsafe { self.attempt() })?;
            if !would_block(result) {
                return answer(result);
            }
            if is_over || !is_heard && clock::now() >= deadline {
                return Err(libc::EAGAIN);
            }
        }
    }

    /// Makes sure of what the wait rests on. Returns whether it goes on, perhaps until another moment.
    #[cold]
    fn doubt(&self, watch: &io::Watch<'_>, believed: Patience, deadline: &mut u64) -> Result<bool, i32> {
        watch.check()?;
        let is_plain = is_plain(self.fd);
        if !is_plain {
            self.stream.forget(); // it is another file
        }
        // Whatever somebody has changed meanwhile is for the next call. What was remembered may have been wrong when it began, though.
        if believed.options == Options::present() {
            let present = ask(self.fd, self.stream);
            if present.time != believed.time {
                // Somewhat late, for nobody knows any more when it began; never early.
                *deadline = self::deadline(present.time);
            }
        }
        Ok(is_plain && clock::now() < *deadline)
    }
}

/// Until when somebody waits who begins now.
fn deadline(time: u64) -> u64 {
    match time {
        clock::NEVER => clock::NEVER,
        time => clock::now().saturating_add(time),
    }
}

/// Asks the kernel how long a read may wait, and remembers it.
#[cold]
fn ask(fd: RawFd, stream: Stream) -> Patience {
    let options = Options::present();
    let time = if is_nonblocking(fd) {
        NOT_AT_ALL
    } else {
        patience(fd, libc::SO_RCVTIMEO)
    };
    let patience = Patience { options, time };
    stream.remember(patience);
    patience
}
