//! Several messages in one call: recvmmsg and sendmmsg.
//!
//! One try takes or gives as many as the kernel can without blocking. What is left is done message by message, as the kernel does
//! it: each may wait, and what was moved before an error counts.

use super::readiness::deadline;
use super::retry::{Answer, Caller, answer, is_nonblocking, would_block};
use super::stream;
use super::transfer::{Rest, is_stream, recvmsg, sendmsg};
use crate::clock;
use crate::sys::syscall;
use libc::{c_int, c_uint, mmsghdr, timespec};
use std::os::fd::RawFd;

/// How many messages the kernel takes at most.
const MOST: c_uint = libc::UIO_MAXIOV as c_uint;

/// # Safety
/// As `recvmmsg`.
pub(super) unsafe fn recvmmsg(
    caller: Caller,
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    time: *mut timespec,
) -> Answer {
    // SAFETY: null or a time, as the caller promises.
    let until = unsafe { deadline(time) }?;
    let count = count.min(MOST) as usize;
    let softly = |from: usize| {
        // SAFETY: the messages are the caller's, and there are so many.
        unsafe {
            syscall!(
                SYS_recvmmsg,
                fd,
                messages.add(from),
                count - from,
                flags | libc::MSG_DONTWAIT,
                time
            )
        }
    };
    stream::note_urgent(fd, flags);
    let first = softly(0);
    if first < 0 && !would_block(first) || flags & libc::MSG_DONTWAIT != 0 {
        return answer(first);
    }
    let mut received = first.max(0) as usize;
    let one_is_enough = flags & libc::MSG_WAITFORONE != 0;
    // The time is looked at when something has come, and only then: so the kernel has it.
    let is_over =
        |received: usize| received == count || (received > 0 && (one_is_enough || clock::now() >= until));
    if is_over(received) {
        return Ok(received as isize);
    }
    if is_nonblocking(fd) {
        return answer(first);
    }
    while !is_over(received) {
        // SAFETY: there are more than so many.
        let message = unsafe { &mut *messages.add(received) };
        // SAFETY: it is the caller's.
        match unsafe { recvmsg(caller, fd, &mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) } {
            Ok(length) => message.msg_len = length as c_uint,
            Err(_) if received > 0 => break,
            Err(error) => return Err(error),
        }
        received += 1;
        if message.msg_hdr.msg_flags & libc::MSG_OOB != 0 {
            break;
        }
        if one_is_enough && received < count {
            received += softly(received).max(0) as usize;
        }
    }
    // SAFETY: as above.
    if let Some(time) = unsafe { time.as_mut() } {
        let rest = until.saturating_sub(clock::now());
        time.tv_sec = (rest / 1_000_000_000) as i64;
        time.tv_nsec = (rest % 1_000_000_000) as i64;
    }
    Ok(received as isize)
}

/// # Safety
/// As `sendmmsg`.
pub(super) unsafe fn sendmmsg(
    caller: Caller,
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Answer {
    let count = count.min(MOST);
    // SAFETY: the arguments are the caller's.
    let first = unsafe { syscall!(SYS_sendmmsg, fd, messages, count, flags | libc::MSG_DONTWAIT) };
    let failed = first < 0 && !would_block(first);
    if failed || flags & libc::MSG_DONTWAIT != 0 {
        return answer(first);
    }
    let mut sent = first.max(0) as usize;
    if sent > 0 {
        // SAFETY: so many have been sent, so they are there.
        let last = unsafe { &mut *messages.add(sent - 1) };
        // SAFETY: as above.
        if !unsafe { finish(caller, fd, last, flags) } {
            return Ok(sent as isize);
        }
    }
    if sent == count as usize {
        return Ok(first);
    }
    if is_nonblocking(fd) {
        return answer(first);
    }
    while sent < count as usize {
        // SAFETY: there are more than so many.
        let message = unsafe { &mut *messages.add(sent) };
        // SAFETY: it is the caller's.
        match unsafe { sendmsg(caller, fd, &message.msg_hdr, flags) } {
            Ok(length) => message.msg_len = length as c_uint,
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
        sent += 1;
        // SAFETY: as above.
        if missing(unsafe { Rest::of(&message.msg_hdr) }.total(), message.msg_len) {
            break;
        }
    }
    Ok(sent as isize)
}

fn missing(total: usize, moved: c_uint) -> bool {
    (moved as usize) < total
}

/// Sends what is left of a message to a stream, which may have taken a part of it. Returns whether all of it has gone.
///
/// # Safety
/// The message is one that the kernel has just read.
unsafe fn finish(caller: Caller, fd: RawFd, message: &mut mmsghdr, flags: c_int) -> bool {
    // SAFETY: the caller's promise.
    let mut rest = unsafe { Rest::of(&message.msg_hdr) };
    let total = rest.total();
    if !missing(total, message.msg_len) || !is_stream(fd) || is_nonblocking(fd) {
        return true;
    }
    rest.advance(message.msg_len as usize);
    let mut part = message.msg_hdr;
    part.msg_iov = rest.list().as_ptr().cast_mut();
    part.msg_iovlen = rest.list().len() as _;
    // The ancillary data went with the first bytes.
    part.msg_control = std::ptr::null_mut();
    part.msg_controllen = 0;
    // SAFETY: as above.
    if let Ok(length) = unsafe { sendmsg(caller, fd, &part, flags) } {
        message.msg_len += length as c_uint;
    }
    !missing(total, message.msg_len)
}
