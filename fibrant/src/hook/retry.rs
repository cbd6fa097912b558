//! The one retry loop: try, and if the call would block, wait and try again.
//!
//! Every hooked call that moves bytes or waits for a descriptor comes here. It has tried without blocking; only if that was in
//! vain is the kernel asked whether the user wanted to wait at all, and how long:
//!
//! 1. A user who made the descriptor non-blocking gets `EAGAIN`, at once.
//! 2. A timeout set with `SO_RCVTIMEO` or `SO_SNDTIMEO` gives one deadline for the whole call.
//! 3. Rounds of waiting and trying again, until something has come of it. Whoever closes the descriptor ends the call with
//!    `EBADF`, whoever cancels the waits for it with `ECANCELED`.
//!
//! What would block without ever saying when it would not any more is tried again and again, after longer and longer pauses:
//! [`try_again`].
//!
//! It calls [`io`] to wait.

use super::table::{Hook, NAMES};
use crate::clock;
use crate::fiber::WaitReason;
use crate::io::{self, Event, Round};
use crate::scheduler::{WaitEnd, Waiting, Worker};
use crate::sys::{self, syscall};
use std::os::fd::RawFd;

/// The first pause before something is tried again, and the longest: nanoseconds.
const PAUSES: [u64; 2] = [100_000, 20_000_000];

/// How long a call waits that does not: nanoseconds.
pub(super) const NOT_AT_ALL: u64 = 0;

/// The deadline of such a call.
const AT_ONCE: u64 = 0;

/// What a call gives: its result, or an error's number.
pub(super) type Answer = Result<isize, i32>;

/// A fiber that makes a hooked call.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) worker: &'static Worker,
    pub(super) hook: Hook,
}

/// How long a call may wait.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Limit {
    /// As the socket's option says, if it is one: `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    Option(libc::c_int),
    /// Until then.
    Until(u64),
}

/// The kernel's result as an answer.
#[inline]
pub(super) fn answer(result: isize) -> Answer {
    if result < 0 {
        Err(-result as i32)
    } else {
        Ok(result)
    }
}

/// Whether a result says that the call would have blocked.
#[inline]
pub(super) fn would_block(result: isize) -> bool {
    result == -(libc::EAGAIN as isize)
}

/// Tries until the call does not want to block any more. `attempt` makes it, without blocking, and gives the kernel's result.
#[inline]
pub(super) fn retry(
    caller: Caller,
    fd: RawFd,
    event: Event,
    limit: Limit,
    mut attempt: impl FnMut() -> isize,
) -> Answer {
    let result = attempt();
    if !would_block(result) {
        if result > 0 && event == Event::READ {
            caller.found(Some(fd));
        }
        return answer(result);
    }
    if is_nonblocking(fd) {
        return Err(libc::EAGAIN);
    }
    wait_and_retry(caller, fd, event, limit, &mut attempt)
}

/// The same, for a call that has been tried and is to wait. Nobody else uses the descriptor exclusively during an attempt.
#[cold]
pub(super) fn wait_and_retry(
    caller: Caller,
    fd: RawFd,
    event: Event,
    limit: Limit,
    attempt: &mut dyn FnMut() -> isize,
) -> Answer {
    caller.count().would_block.increment();
    let deadline = match limit {
        Limit::Option(option) => deadline(fd, option),
        Limit::Until(deadline) => deadline,
    };
    io::watch(caller.worker, &[(fd, event)], |watch| {
        caller.wait_and_retry(watch, deadline, attempt)
    })
}

/// Tries again and again, after longer and longer pauses, what would block without ever saying when it would not.
pub(super) fn try_again(caller: Caller, deadline: u64, call: &mut dyn FnMut() -> isize) -> Answer {
    let [mut pause, longest] = PAUSES;
    loop {
        let now = clock::now();
        if now >= deadline {
            return Err(libc::EAGAIN);
        }
        caller.sleep_until(deadline.min(now + pause));
        pause = longest.min(2 * pause);
        let result = call();
        if !would_block(result) {
            return answer(result);
        }
    }
}

/// The same for a call on a descriptor that was tried, and stood for the file with this [`generation`](io::generation) before: if it
/// stands for another one by now, `EBADF`. Nobody else uses the descriptor exclusively during a call.
pub(super) fn try_file_again(
    caller: Caller,
    file: (RawFd, u32),
    deadline: u64,
    call: &mut dyn FnMut() -> isize,
) -> Answer {
    io::identify(file.0); // now it is noticed if somebody closes it during a pause
    try_again(caller, deadline, &mut || io::on_same_file(file, &mut *call))
}

impl Caller {
    /// The counters of the call.
    pub(super) fn count(&self) -> &crate::stats::HookCounters {
        &self.worker.thread().counters.hooks[self.hook as usize]
    }

    /// The call has found something without waiting. In libco it would have gone back to the event loop all the same, unless the user had made
    /// the descriptor non-blocking, and programs count on others having their turn meanwhile: here a coroutine does so now and then.
    #[inline(always)]
    pub(super) fn found(&self, fd: Option<RawFd>) {
        if self.worker.is_event_loop && self.worker.note_ready_call() {
            self.let_others_run(fd);
        }
    }

    #[cold]
    fn let_others_run(&self, fd: Option<RawFd>) {
        if !fd.is_some_and(is_nonblocking) {
            self.worker.yield_now();
        }
    }

    /// Calls `wait`, in which the fiber waits: meanwhile dumps show the call.
    #[inline(always)]
    pub(super) fn parking<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.worker.set_call(Some(&NAMES[self.hook as usize]));
        let result = wait();
        self.worker.set_call(None);
        result
    }

    /// Makes the fiber sleep until then.
    pub(super) fn sleep_until(&self, deadline: u64) {
        self.count().parks.increment();
        let waiting = || Waiting {
            reason: WaitReason::Sleeping,
            // A coroutine may be resumed by hand: that ends it early.
            park: self.worker.is_event_loop,
            interruptible: false,
            deadline,
        };
        self.parking(|| {
            while self.worker.wait(waiting(), |_, _| {}) != WaitEnd::TimedOut {
                if self.worker.was_resumed_by_hand() {
                    break;
                }
            }
        });
    }

    /// Waits and tries until the call does not want to block any more. It never touches another file that has got the number.
    pub(super) fn wait_and_retry(
        &self,
        watch: &io::Watch<'_>,
        deadline: u64,
        attempt: &mut dyn FnMut() -> isize,
    ) -> Answer {
        if deadline == AT_ONCE {
            return Err(libc::EAGAIN);
        }
        loop {
            let is_over = match self.listen(watch, deadline) {
                // Perhaps the worker was busy, and something has come in time: so there is a last try.
                Err(libc::EAGAIN) => true,
                heard => {
                    debug_assert!(heard != Ok(false), "nothing is believed here");
                    heard.map(|_| false)?
                }
            };
            let result = watch.attempt(&mut *attempt)?;
            if is_over || !would_block(result) {
                return answer(result);
            }
        }
    }

    /// Waits for a round, at most until then. An error if there is nothing to try again for.
    #[inline(never)]
    pub(super) fn wait(&self, watch: &io::Watch<'_>, deadline: u64) -> Result<(), i32> {
        self.listen(watch, deadline)?;
        watch.check()
    }

    /// The same for who tries by [`attempt`](io::Watch::attempt), which finds out if the descriptor has been closed. Whether there may be
    /// something; if not, it is time to make sure of what is believed. `EAGAIN`, if it is time for a last try.
    #[inline(always)]
    pub(super) fn listen(&self, watch: &io::Watch<'_>, deadline: u64) -> Result<bool, i32> {
        self.count().parks.increment();
        let round = self.parking(|| watch.wait(deadline, self.worker.hears_interruption()));
        match round.map_err(|error| error.raw_os_error().unwrap_or(libc::EPERM))? {
            Round::Look => Ok(true),
            Round::Doubt => Ok(false),
            Round::TimedOut => Err(libc::EAGAIN),
            Round::Ended(error) => Err(error),
            Round::Interrupted(interruption) => {
                self.worker.note_heard(interruption);
                Err(libc::ECANCELED)
            }
        }
    }
}

/// Whether a descriptor is ready, as the kernel says.
pub(super) fn is_ready(fd: RawFd, event: Event) -> bool {
    let mut asked = libc::pollfd {
        fd,
        events: event.to_poll(),
        revents: 0,
    };
    // SAFETY: one element, a local variable.
    unsafe { sys::poll(&mut asked, 1, 0) != 0 }
}

/// Whether the user has made the descriptor non-blocking.
pub(super) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: asks for a number. One that is not open has no flags, and the call itself says so.
    let flags = unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK as isize != 0
}

/// When a call that begins now has to give up, by that option of its socket. Never, if it is none.
pub(super) fn deadline(fd: RawFd, option: libc::c_int) -> u64 {
    match patience(fd, option) {
        NOT_AT_ALL => AT_ONCE,
        clock::NEVER => clock::NEVER,
        time => clock::now().saturating_add(time),
    }
}

/// How long a call may wait, by that option of its socket: nanoseconds; for ever, if it is none.
pub(super) fn patience(fd: RawFd, option: libc::c_int) -> u64 {
    let mut time = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut size = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: writes to local variables.
    let result = unsafe {
        syscall!(
            SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            option,
            &raw mut time,
            &raw mut size
        )
    };
    if result < 0 {
        return clock::NEVER;
    }
    if (time.tv_sec, time.tv_usec) == (0, 0) {
        let event = if option == libc::SO_SNDTIMEO {
            Event::WRITE
        } else {
            Event::READ
        };
        return if io::is_impatient(fd, event) {
            NOT_AT_ALL
        } else {
            clock::NEVER
        };
    }
    (time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_usec as u64 * 1000)
}
