//! Asking for readiness: poll, select, epoll_wait and their relatives.
//!
//! They are level-triggered whatever is registered below: each look is a `poll` of the kernel's that does not wait, and only when
//! it finds nothing does the fiber wait for an edge of any of the descriptors.

use super::retry::{Answer, Caller, answer, try_again};
use crate::clock;
use crate::io::{self, Event};
use crate::sys::{self, syscall};
use libc::{c_int, c_short, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::os::fd::RawFd;

/// What poll and epoll have the same bits for, and workers are told of.
const EDGES: c_short =
    libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP;

/// What is reported whether it is asked for or not.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// What those wait for who read and write, too.
const PLAIN: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLOUT | libc::POLLWRNORM | ALWAYS;

/// What one of these calls waits for in the kernel's terms, in ours.
fn event_of(events: c_short) -> Event {
    let mut event = Event::default();
    if events & (libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND) != 0 {
        event |= Event::WRITE;
    }
    // Errors and hang-ups are always asked for, and come with input.
    if event.is_empty() || events & !(libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND) != 0 {
        event |= Event::READ;
    }
    // Those who read are not woken by this alone, or wake up in vain.
    let is_plain = events & !PLAIN == 0 && events & (PLAIN & !ALWAYS) != 0;
    if !is_plain {
        event |= Event::ANYTHING;
    }
    event
}

/// Looks, and waits, until a look finds something or the deadline has come: then the last look's result. `look` is the kernel's
/// call, which does not wait; it is told what the kernel has just said of the one descriptor, in bits of epoll's, or 0. `closed` says what
/// it comes to if one of the descriptors is closed and no look shows it.
fn look_until(
    caller: Caller,
    targets: &[(RawFd, Event)],
    deadline: u64,
    mut look: impl FnMut(u32) -> isize,
    closed: impl Fn(&io::Watch<'_>) -> Answer,
) -> Answer {
    let result = look(0);
    if result != 0 || clock::now() >= deadline {
        return answer(result);
    }
    look_again_until(caller, targets, deadline, &mut look, &closed)
}

/// The same, after a look that has found nothing.
fn look_again_until(
    caller: Caller,
    targets: &[(RawFd, Event)],
    deadline: u64,
    look: &mut dyn FnMut(u32) -> isize,
    closed: &dyn Fn(&io::Watch<'_>) -> Answer,
) -> Answer {
    caller.count().would_block.increment();
    match wait_and_look(caller, targets, deadline, look, closed) {
        // A file that is not ready for what is asked, and never will be, is not waited for.
        Err(libc::EPERM) => {
            let can_wait = |target: &&(RawFd, Event)| io::is_pollable(target.0);
            let targets: Vec<_> = targets.iter().filter(can_wait).copied().collect();
            wait_and_look(caller, &targets, deadline, look, closed)
        }
        // An epoll that is nested as deep as the kernel allows goes into no other: it is asked again and again.
        Err(libc::ELOOP) => {
            let mut ask = || match look(0) {
                0 => -(libc::EAGAIN as isize),
                result => result,
            };
            match try_again(caller, deadline, &mut ask) {
                Err(libc::EAGAIN) => Ok(0),
                answer => answer,
            }
        }
        answer => answer,
    }
}

fn wait_and_look(
    caller: Caller,
    targets: &[(RawFd, Event)],
    deadline: u64,
    look: &mut dyn FnMut(u32) -> isize,
    closed: &dyn Fn(&io::Watch<'_>) -> Answer,
) -> Answer {
    if targets.is_empty() {
        caller.sleep_until(deadline); // no descriptor to wait for
        return answer(look(0));
    }
    io::watch(caller.worker, targets, |watch| {
        loop {
            let waited = caller.wait(watch, deadline);
            // Before it looks: what an epoll has told once, it may not tell again.
            if let Err(error) = waited
                && error != libc::EAGAIN
                && error != libc::EBADF
            {
                return Err(error);
            }
            let result = look(watch.edge());
            match waited {
                // One of several was closed: a look tells which, unless the number is another file's by now, or its own still.
                Err(libc::EBADF) if result == 0 => return closed(watch),
                _ if result != 0 || clock::now() >= deadline => return answer(result),
                // As libco has it: a coroutine that is resumed by hand has found nothing.
                _ if caller.worker.was_resumed_by_hand() => return answer(result),
                _ => {}
            }
        }
    })
}

/// The descriptors to wait for, once each.
fn targets(descriptors: &[pollfd]) -> Vec<(RawFd, Event)> {
    let mut targets: Vec<(RawFd, Event)> = Vec::with_capacity(descriptors.len());
    for one in descriptors.iter().filter(|one| one.fd >= 0) {
        targets.push((one.fd, event_of(one.events)));
    }
    targets.sort_by_key(|target| target.0);
    targets.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 |= later.1;
        }
        same
    });
    targets
}

/// # Safety
/// There are so many descriptors.
unsafe fn poll_until(caller: Caller, descriptors: *mut pollfd, count: nfds_t, deadline: u64) -> Answer {
    let mut look = |edge: u32| {
        if edge != 0 && count == 1 {
            // SAFETY: the caller's promise: there is one.
            let only = unsafe { &mut *descriptors };
            // The bits are the same ones. What was said is a moment old, as what a poll says always is by the time it is used.
            let found = edge as c_short & (only.events | libc::POLLERR | libc::POLLHUP);
            if only.events & !EDGES == 0 && found != 0 {
                only.revents = found;
                return 1;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { sys::poll(descriptors, count as usize, 0) }
    };
    let result = look(0);
    // A coroutine that asks for time goes back to its resumer, however short it is: libco's programs count on that.
    let is_over = || deadline == 0 || !caller.worker.is_event_loop && clock::now() >= deadline;
    if result > 0 && deadline != 0 {
        caller.found(None);
    }
    if result != 0 || is_over() {
        return answer(result);
    }
    let list = if count == 0 {
        &[]
    } else {
        // SAFETY: the kernel has just read and written them, so there are so many.
        unsafe { std::slice::from_raw_parts(descriptors, count as usize) }
    };
    let (one, several);
    let targets = match list {
        // Most often: no allocation.
        [only] if only.fd >= 0 => {
            one = [(only.fd, event_of(only.events))];
            &one[..]
        }
        _ => {
            several = targets(list);
            &several
        }
    };
    look_again_until(caller, targets, deadline, &mut look, &|watch| {
        if count == 0 {
            return Err(libc::EBADF);
        }
        // SAFETY: as above; nobody else looks at them.
        let list = unsafe { std::slice::from_raw_parts_mut(descriptors, count as usize) };
        let gone = list.iter_mut().filter(|one| watch.is_closed(one.fd));
        match gone.map(|one| one.revents = libc::POLLNVAL).count() {
            0 => Err(libc::EBADF),
            count => Ok(count as isize),
        }
    })
}

/// # Safety
/// As `poll`.
pub(super) unsafe fn poll(
    caller: Caller,
    descriptors: *mut pollfd,
    count: nfds_t,
    milliseconds: c_int,
) -> Answer {
    let deadline = match u64::try_from(milliseconds) {
        Ok(0) => 0,
        Ok(milliseconds) => clock::now().saturating_add(milliseconds * 1_000_000),
        Err(_) => clock::NEVER,
    };
    // SAFETY: the caller's promise.
    unsafe { poll_until(caller, descriptors, count, deadline) }
}

/// The deadline of a time from now on; never, if there is none.
///
/// # Safety
/// It is null or a time.
pub(super) unsafe fn deadline(time: *const timespec) -> Result<u64, i32> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else {
        return Ok(clock::NEVER);
    };
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(libc::EINVAL);
    }
    let nanoseconds = (time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec as u64);
    Ok(if nanoseconds == 0 {
        0
    } else {
        clock::now().saturating_add(nanoseconds)
    })
}

/// # Safety
/// As `ppoll`. The signal mask is the thread's, which a fiber does not change: a signal does not end its wait.
pub(super) unsafe fn ppoll(
    caller: Caller,
    descriptors: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    _mask: *const sigset_t,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { poll_until(caller, descriptors, count, deadline(time)?) }
}

/// The bits of a word of a set of descriptors, and such a set.
const BITS: usize = libc::c_ulong::BITS as usize;
type Words = Vec<libc::c_ulong>;

/// Asks the kernel, without waiting. It leaves in the sets what is ready.
fn select_now(count: usize, sets: &mut [Words; 3]) -> isize {
    let [read, write, except] = sets.each_mut().map(|set| match set.len() {
        0 => std::ptr::null_mut(),
        _ => set.as_mut_ptr(),
    });
    let mut none = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a set that is not null has a bit for each of so many descriptors; the time is a local variable.
    unsafe { syscall!(SYS_pselect6, count, read, write, except, &raw mut none, 0) }
}

/// How many words of the sets the kernel looks at, if it is told that there are so many descriptors: it leaves those alone for which the
/// process's table of descriptors has no room yet, and sets may end there.
fn words_looked_at(count: usize) -> usize {
    let words = count.div_ceil(BITS);
    if count <= libc::FD_SETSIZE {
        return words; // a whole set is at least as large
    }
    let is_looked_at = |index: usize| {
        let mut set = vec![0; index + 1];
        set[index] = 1;
        let mut sets = [Words::new(), Words::new(), set];
        // It says that the descriptor is not open, or is ready, or takes it out because it is not.
        select_now(index * BITS + 1, &mut sets) != 0 || sets[2][index] == 0
    };
    let mut step = libc::FD_SETSIZE / BITS;
    while step < words && is_looked_at(step) {
        step *= 2;
    }
    // Now the table ends before this word, or there are not so many. Nobody makes it smaller.
    let (mut least, mut most) = (0, step.min(words));
    while least < most {
        let middle = least.midpoint(most);
        if is_looked_at(middle) {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    least
}

/// The descriptors to wait for, after a look in vain has taken out of the sets all those that the kernel has looked at.
fn targets_of_sets(asked: &[Words; 3], left: &[Words; 3]) -> Vec<(RawFd, Event)> {
    let words = asked.iter().map(Vec::len).max().unwrap_or(0);
    let mut targets = Vec::new();
    for fd in 0..words * BITS {
        let is_in = |set: &Words| {
            set.get(fd / BITS)
                .is_some_and(|word| word >> (fd % BITS) & 1 == 1)
        };
        if left.iter().any(is_in) {
            continue;
        }
        let [read, write, except] = asked.each_ref().map(is_in);
        let mut event = Event::default();
        if read || except {
            event |= Event::READ;
        }
        if write {
            event |= Event::WRITE;
        }
        if except {
            event |= Event::ANYTHING;
        }
        if !event.is_empty() {
            targets.push((fd as RawFd, event));
        }
    }
    targets
}

/// # Safety
/// The sets are null or have room for so many descriptors, as far as the kernel looks at them.
unsafe fn select_until(caller: Caller, count: c_int, sets: [*mut fd_set; 3], deadline: u64) -> Answer {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    let words = words_looked_at(count);
    let count = count.min(words * BITS);
    let asked = sets.map(|set| match set.is_null() {
        true => Words::new(),
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(set.cast::<libc::c_ulong>(), words) }.to_vec(),
    });
    // The kernel looks at sets of ours: the caller's are written to at the end, and not at all if the call fails.
    let mut found = asked.clone();
    let result = match select_now(count, &mut found) {
        0 if clock::now() < deadline => {
            let targets = targets_of_sets(&asked, &found);
            let mut look = |_| {
                found.clone_from(&asked);
                select_now(count, &mut found)
            };
            look_again_until(caller, &targets, deadline, &mut look, &|_| Err(libc::EBADF))
        }
        result => answer(result),
    };
    if result.is_ok() {
        for (set, found) in sets.iter().zip(&found).filter(|(set, _)| !set.is_null()) {
            // SAFETY: as above; it has as many words as were read from it.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), set.cast(), words) };
        }
    }
    result
}

/// # Safety
/// As `select`.
pub(super) unsafe fn select(
    caller: Caller,
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> Answer {
    // SAFETY: null or a time.
    let limit = match unsafe { time.as_ref() } {
        None => clock::NEVER,
        Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => return Err(libc::EINVAL),
        Some(time) => {
            let nanoseconds = (time.tv_sec as u64)
                .saturating_mul(1_000_000_000)
                .saturating_add((time.tv_usec as u64).saturating_mul(1000));
            if nanoseconds == 0 {
                0
            } else {
                clock::now().saturating_add(nanoseconds)
            }
        }
    };
    // SAFETY: the caller's promise.
    let result = unsafe { select_until(caller, count, [read, write, except], limit) };
    // Linux says how much of the time was left.
    // SAFETY: as above.
    if let Some(time) = unsafe { time.as_mut() }
        && result.is_ok()
    {
        let rest = limit.saturating_sub(clock::now());
        time.tv_sec = (rest / 1_000_000_000) as i64;
        time.tv_usec = (rest % 1_000_000_000 / 1000) as i64;
    }
    result
}

/// The kernel's `select`.
///
/// # Safety
/// As `select`.
pub(super) unsafe fn select_in_kernel(count: c_int, sets: [*mut fd_set; 3], time: *mut timeval) -> isize {
    // SAFETY: null or a time.
    let mut limit = unsafe { time.as_ref() }.map(|time| timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec.saturating_mul(1000),
    });
    let limit = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the sets are the caller's; the time is a local variable.
    unsafe { syscall!(SYS_pselect6, count, sets[0], sets[1], sets[2], limit, 0) }
}

/// # Safety
/// As `pselect`. The signal mask is the thread's, which a fiber does not change: a signal does not end its wait.
pub(super) unsafe fn pselect(
    caller: Caller,
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    _mask: *const sigset_t,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { select_until(caller, count, [read, write, except], deadline(time)?) }
}

/// # Safety
/// As `epoll_wait`.
unsafe fn epoll_until(
    caller: Caller,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    deadline: u64,
) -> Answer {
    // SAFETY: the arguments are the caller's.
    let look = |_| unsafe { syscall!(SYS_epoll_pwait, epoll, events, room, 0, 0, 0) };
    look_until(caller, &[(epoll, Event::READ)], deadline, look, |_| {
        Err(libc::EBADF)
    })
}

/// # Safety
/// As `epoll_wait`.
pub(super) unsafe fn epoll_wait(
    caller: Caller,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    milliseconds: c_int,
) -> Answer {
    let deadline = match u64::try_from(milliseconds) {
        Ok(0) => 0,
        Ok(milliseconds) => clock::now().saturating_add(milliseconds * 1_000_000),
        Err(_) => clock::NEVER,
    };
    // SAFETY: the caller's promise.
    unsafe { epoll_until(caller, epoll, events, room, deadline) }
}

/// # Safety
/// As `epoll_pwait`.
pub(super) unsafe fn epoll_pwait(
    caller: Caller,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    milliseconds: c_int,
    _mask: *const sigset_t,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { epoll_wait(caller, epoll, events, room, milliseconds) }
}

/// # Safety
/// As `epoll_pwait2`.
pub(super) unsafe fn epoll_pwait2(
    caller: Caller,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    time: *const timespec,
    _mask: *const sigset_t,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { epoll_until(caller, epoll, events, room, deadline(time)?) }
}
