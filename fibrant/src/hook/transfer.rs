//! Moving bytes: read, write, send, receive, and their relatives.
//!
//! Each call is tried without blocking first: sockets with `MSG_DONTWAIT`, everything else with `RWF_NOWAIT`; so nobody's flags
//! change. What then remains to be emulated is what a blocking call does beyond one try: a stream is written to the end, and
//! `MSG_WAITALL` or `SO_RCVLOWAT` wait for more than there is.
//!
//! Some files know no `RWF_NOWAIT` (named pipes, terminals, inotify), nor do old kernels: those are asked with `poll` first.

use super::retry::{
    self, Answer, Caller, Limit, answer, is_nonblocking, is_ready, try_file_again, would_block,
};
use super::stream;
use crate::io::{self, Event, Kind};
use crate::sys::{self, syscall};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// With one of these a receiving call does not wait: urgent data and the queue of errors are there or not.
const NEVER_WAIT: c_int = libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// Stands for the position that a file has by itself.
const OWN_POSITION: isize = -1;

const RECEIVE: Limit = Limit::Option(libc::SO_RCVTIMEO);
const SEND: Limit = Limit::Option(libc::SO_SNDTIMEO);

/// How much may be written to something that is ready for output without blocking, if it cannot be asked not to.
const ATOMIC: usize = libc::PIPE_BUF;

/// Whether somebody has ever set `SO_RCVLOWAT`: as long as nobody has, a short read needs no further question.
pub(super) static HAS_LOW_WATER_MARKS: AtomicBool = AtomicBool::new(false);

/// Some buffers, from some byte on. The caller's own list of them is never changed.
pub(super) struct Rest<'a> {
    buffers: &'a [iovec],
    /// How many bytes have been moved.
    done: usize,
    /// The list that is left, made when it is needed.
    left: Vec<iovec>,
}

impl<'a> Rest<'a> {
    /// # Safety
    /// There are so many buffers.
    pub(super) unsafe fn new(buffers: *const iovec, count: usize) -> Rest<'a> {
        let buffers = if buffers.is_null() {
            &[]
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(buffers, count) }
        };
        Rest {
            buffers,
            done: 0,
            left: Vec::new(),
        }
    }

    /// The buffers of a message.
    ///
    /// # Safety
    /// It has as many as it says.
    pub(super) unsafe fn of(message: &'a msghdr) -> Rest<'a> {
        // SAFETY: the caller's promise.
        unsafe { Rest::new(message.msg_iov, message.msg_iovlen as _) }
    }

    pub(super) fn total(&self) -> usize {
        total(self.buffers)
    }

    /// Notes that some more bytes have been moved.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.done += bytes;
        let mut skip = self.done;
        self.left.clear();
        for buffer in self.buffers {
            if skip >= buffer.iov_len {
                skip -= buffer.iov_len;
                continue;
            }
            self.left.push(iovec {
                iov_base: buffer.iov_base.wrapping_byte_add(skip),
                iov_len: buffer.iov_len - skip,
            });
            skip = 0;
        }
    }

    /// What is left.
    pub(super) fn list(&self) -> &[iovec] {
        if self.done == 0 { self.buffers } else { &self.left }
    }
}

/// How long some buffers are together. They may be said to be longer than can be: that is the kernel's to complain about.
pub(super) fn total(list: &[iovec]) -> usize {
    let sum = list
        .iter()
        .fold(0_usize, |sum, buffer| sum.saturating_add(buffer.iov_len));
    sum.min(isize::MAX as usize)
}

/// Whether a result says that this file, or this kernel, cannot be told not to block.
fn is_unsupported(result: isize) -> bool {
    matches!(-result as c_int, libc::EOPNOTSUPP | libc::ENOSYS)
}

/// A call that moves bytes until there are `target`, or all, whichever is less: each attempt moves some of what is left.
fn move_all(
    caller: Caller,
    (fd, generation): (RawFd, u32),
    event: Event,
    limit: Limit,
    rest: &mut Rest<'_>,
    target: usize,
    attempt: &mut dyn FnMut(&[iovec]) -> isize,
) -> Answer {
    // One deadline for the whole call, whenever it first has to wait.
    let mut until = None;
    let first = attempt(rest.list());
    if first <= 0 && !would_block(first) {
        return answer(first); // perhaps there is no such descriptor
    }
    let mut first = Some(first);
    // One watch for the whole call, too: its other parts must not go to another file that has got the number since it began.
    io::watch_file(caller.worker, (fd, event), generation, |watch| {
        loop {
            let result = match first.take() {
                Some(result) => Ok(result),
                None => watch
                    .attempt(&mut || verdict(fd, event, rest.done).unwrap_or_else(|| attempt(rest.list()))),
            };
            let result = match result {
                Ok(result) if !would_block(result) => answer(result),
                Ok(_) if until.is_none() && is_nonblocking(fd) => Err(libc::EAGAIN),
                Ok(_) => {
                    caller.count().would_block.increment();
                    let deadline = *until.get_or_insert_with(|| match limit {
                        Limit::Option(option) => retry::deadline(fd, option),
                        Limit::Until(deadline) => deadline,
                    });
                    caller.wait_and_retry(watch, deadline, &mut || {
                        verdict(fd, event, rest.done).unwrap_or_else(|| attempt(rest.list()))
                    })
                }
                Err(error) => Err(error),
            };
            match result {
                // The end of the stream, or nothing to move.
                Ok(0) => return Ok(rest.done as isize),
                Ok(bytes) => rest.advance(bytes as usize),
                // What has been moved counts; the error comes again.
                Err(_) if rest.done > 0 => return Ok(rest.done as isize),
                Err(error) => return Err(error),
            }
            if rest.done >= target {
                return Ok(rest.done as isize);
            }
        }
    })
}

/// What a blocking call that has waited, or moved some bytes, comes to without another try, if that is known. An error that is
/// still to be told is left for the next call if some bytes have been moved, and no signal is sent then.
fn verdict(fd: RawFd, event: Event, done: usize) -> Option<isize> {
    if (event, done) == (Event::READ, 0) {
        return None; // the next try tells it
    }
    // Nobody sees which error it is if some bytes have been moved.
    let stop = -(libc::EPIPE as isize);
    if event == Event::READ && is_at_mark(fd) {
        return Some(stop);
    }
    let mut asked = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: one element, a local variable.
    unsafe { sys::poll(&mut asked, 1, 0) };
    if asked.revents & libc::POLLHUP == 0 {
        return None;
    }
    match done {
        0 => match socket_option(fd, libc::SO_ERROR) {
            None | Some(0) => None,
            Some(error) => Some(-(error as isize)),
        },
        _ if event == Event::READ && unread(fd) > 0 => None,
        _ => Some(stop),
    }
}

/// Whether urgent data comes next, before which a receiving call stops.
fn is_at_mark(fd: RawFd) -> bool {
    const SIOCATMARK: c_int = 0x8905;
    let mut is_there: c_int = 0;
    // SAFETY: writes to a local variable.
    unsafe { syscall!(SYS_ioctl, fd, SIOCATMARK, &raw mut is_there) };
    is_there != 0
}

/// How many bytes there are to be read.
fn unread(fd: RawFd) -> c_int {
    let mut bytes: c_int = 0;
    // SAFETY: writes to a local variable.
    unsafe { syscall!(SYS_ioctl, fd, libc::FIONREAD, &raw mut bytes) };
    bytes
}

/// Whether a socket is a stream, whose writes go on until everything is written.
pub(super) fn is_stream(fd: RawFd) -> bool {
    socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// A number that a socket has as an option; none if it is no socket.
pub(super) fn socket_option(fd: RawFd, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut size = size_of::<c_int>() as socklen_t;
    // SAFETY: writes to local variables.
    let result = unsafe {
        syscall!(
            SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            option,
            &raw mut value,
            &raw mut size
        )
    };
    (result >= 0).then_some(value)
}

/// How many bytes a receiving call waits for, of so many.
fn least(fd: RawFd, flags: c_int, total: usize) -> usize {
    if flags & libc::MSG_WAITALL != 0 {
        return if is_stream(fd) { total } else { 0 };
    }
    if !HAS_LOW_WATER_MARKS.load(Relaxed) {
        return 0;
    }
    match socket_option(fd, libc::SO_RCVLOWAT) {
        Some(mark) if mark > 1 && is_stream(fd) => total.min(mark as usize),
        _ => 0,
    }
}

// Input.

/// # Safety
/// As `recvfrom`.
pub(super) unsafe fn recvfrom(
    caller: Caller,
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> Answer {
    // SAFETY: the size is the caller's, or null.
    let room = unsafe { size.as_ref() }.copied();
    let call = |buffer: *mut c_void, length: usize| {
        if let Some(room) = room {
            // A try in vain may have changed it.
            // SAFETY: as above.
            unsafe { *size = room };
        }
        // SAFETY: the arguments are the caller's.
        unsafe {
            syscall!(
                SYS_recvfrom,
                fd,
                buffer,
                length,
                flags | libc::MSG_DONTWAIT,
                address,
                size
            )
        }
    };
    let is_plain = flags == 0 && address.is_null() && length > 0;
    if is_plain && let Some(known) = stream::of(fd) {
        // SAFETY: the caller's promise.
        return unsafe { stream::receive(caller, fd, known, buffer, length) };
    }
    let generation = io::generation(fd);
    stream::note_urgent(fd, flags);
    let result = call(buffer, length);
    if flags & NEVER_WAIT != 0 {
        return answer(result);
    }
    if is_plain
        && would_block(result)
        && let Some(met) = stream::introduce(fd, generation)?
    {
        // SAFETY: the caller's promise.
        return unsafe { stream::receive(caller, fd, met, buffer, length) };
    }
    let is_short = (0..length as isize).contains(&result) && result != 0;
    let goes_on = would_block(result) || (is_short && may_wait_for_more(flags));
    if !goes_on {
        if result > 0 {
            caller.found(Some(fd));
        }
        return answer(result);
    }
    // SAFETY: one buffer, a local variable.
    let list = [iovec {
        iov_base: buffer,
        iov_len: length,
    }];
    finish_receiving(caller, (fd, generation), flags, &list, result, &mut |list| {
        call(list[0].iov_base, list[0].iov_len)
    })
}

/// Whether a receiving call may go on after it got something.
#[inline]
fn may_wait_for_more(flags: c_int) -> bool {
    flags & libc::MSG_WAITALL != 0 || HAS_LOW_WATER_MARKS.load(Relaxed)
}

/// Goes on with a receiving call whose first try has given this.
#[cold]
fn finish_receiving(
    caller: Caller,
    (fd, generation): (RawFd, u32),
    flags: c_int,
    list: &[iovec],
    first: isize,
    attempt: &mut dyn FnMut(&[iovec]) -> isize,
) -> Answer {
    let mut rest = Rest {
        buffers: list,
        done: 0,
        left: Vec::new(),
    };
    let total = rest.total();
    let target = least(fd, flags, total);
    if first > 0 && (first as usize >= target || is_nonblocking(fd)) {
        return Ok(first);
    }
    let mut first = Some(first);
    if flags & libc::MSG_PEEK != 0 {
        // What was seen is seen again: the count does not add up, it grows. A local stream shows what it has.
        let is_local = socket_option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX);
        let target = if is_local { 0 } else { target };
        let mut seen = 0;
        let answer = retry::retry(caller, fd, Event::READ, RECEIVE, || {
            let result = first.take().unwrap_or_else(|| attempt(list));
            if result <= 0 || result as usize >= target {
                return result;
            }
            if has_ended(fd) {
                return attempt(list); // more may have come just before the end
            }
            seen = result;
            -(libc::EAGAIN as isize)
        });
        return match answer {
            Err(_) if seen > 0 => Ok(seen),
            answer => answer,
        };
    }
    move_all(
        caller,
        (fd, generation),
        Event::READ,
        RECEIVE,
        &mut rest,
        target,
        &mut |list| first.take().unwrap_or_else(|| attempt(list)),
    )
}

/// Whether nothing more will come than what is there.
fn has_ended(fd: RawFd) -> bool {
    let mut asked = libc::pollfd {
        fd,
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one element, a local variable.
    unsafe { sys::poll(&mut asked, 1, 0) != 0 }
}

/// # Safety
/// As `recv`.
pub(super) unsafe fn recv(
    caller: Caller,
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
) -> Answer {
    if flags == 0
        && length > 0
        && let Some(known) = stream::of(fd)
    {
        // SAFETY: the caller's promise.
        return unsafe { stream::receive(caller, fd, known, buffer, length) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        recvfrom(
            caller,
            fd,
            buffer,
            length,
            flags,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    }
}

/// # Safety
/// As `recvmsg`.
pub(super) unsafe fn recvmsg(caller: Caller, fd: c_int, message: *mut msghdr, flags: c_int) -> Answer {
    // SAFETY: a null pointer is the kernel's to complain about; otherwise it is a message.
    let Some(before) = (unsafe { message.as_ref() }) else {
        return Err(libc::EFAULT);
    };
    let (name_room, control_room) = (before.msg_namelen, before.msg_controllen);
    // SAFETY: the arguments are the caller's.
    let call =
        |message: *mut msghdr| unsafe { syscall!(SYS_recvmsg, fd, message, flags | libc::MSG_DONTWAIT) };
    let generation = io::generation(fd);
    stream::note_urgent(fd, flags);
    let result = call(message);
    if flags & NEVER_WAIT != 0 {
        return answer(result);
    }
    let goes_on = would_block(result) || (result > 0 && may_wait_for_more(flags));
    if !goes_on {
        return answer(result);
    }
    // SAFETY: the message's buffers are the caller's, and there are so many.
    let list = unsafe { Rest::new((*message).msg_iov, (*message).msg_iovlen as _) }.buffers;
    // SAFETY: the kernel has written it.
    let mut is_over = result > 0 && unsafe { carries_descriptors(message) };
    let mut has_received = result > 0;
    finish_receiving(caller, (fd, generation), flags, list, result, &mut |left| {
        if is_over {
            return -(libc::EPIPE as isize); // which nobody sees: some bytes have been received
        }
        // SAFETY: the message is the caller's; it is put back as it was, but for what the kernel tells with it.
        unsafe {
            let own = *message;
            (*message).msg_iov = left.as_ptr().cast_mut();
            (*message).msg_iovlen = left.len() as _;
            (*message).msg_namelen = name_room;
            (*message).msg_controllen = control_room;
            let result = call(message);
            if result <= 0 && has_received {
                *message = own; // what came with the bytes there are
            }
            ((*message).msg_iov, (*message).msg_iovlen) = (own.msg_iov, own.msg_iovlen);
            has_received |= result > 0;
            is_over = result > 0 && carries_descriptors(message);
            result
        }
    })
}

/// Whether descriptors have come with a message: no call receives anything more then, or it would lose them.
///
/// # Safety
/// The kernel has written it.
unsafe fn carries_descriptors(message: *const msghdr) -> bool {
    // SAFETY: the caller's promise; the headers follow one another in the room that the message has for them.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(one) = header.as_ref() {
            if (one.cmsg_level, one.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                return true;
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    false
}

/// # Safety
/// As `read`.
pub(super) unsafe fn read(caller: Caller, fd: c_int, buffer: *mut c_void, length: size_t) -> Answer {
    if length > 0 && io::kind(fd) == Kind::Socket {
        // The same, and over 100 ns faster than a call that knows RWF_NOWAIT.
        // SAFETY: the caller's promise.
        let received = unsafe { recv(caller, fd, buffer, length, 0) };
        if received != Err(libc::ENOTSOCK) {
            return received;
        }
    }
    let list = [iovec {
        iov_base: buffer,
        iov_len: length,
    }];
    // SAFETY: one buffer, of that length.
    unsafe { read_list(caller, fd, &list, false) }
}

/// # Safety
/// As `readv`.
pub(super) unsafe fn readv(caller: Caller, fd: c_int, list: *const iovec, count: c_int) -> Answer {
    if !(0..=libc::UIO_MAXIOV).contains(&count) || (list.is_null() && count > 0) {
        // SAFETY: the kernel says what is wrong.
        return answer(unsafe { syscall!(SYS_readv, fd, list, count) });
    }
    // SAFETY: there are so many, as the caller promises.
    let list = unsafe { Rest::new(list, count as usize) }.buffers;
    // SAFETY: they are the caller's.
    unsafe { read_list(caller, fd, list, true) }
}

/// # Safety
/// The buffers may be written to.
unsafe fn read_list(caller: Caller, fd: c_int, list: &[iovec], vectored: bool) -> Answer {
    // SAFETY: the arguments are the caller's.
    let plainly = |list: &[iovec]| unsafe {
        match list {
            [one] if !vectored => syscall!(SYS_read, fd, one.iov_base, one.iov_len),
            list => syscall!(SYS_readv, fd, list.as_ptr(), list.len()),
        }
    };
    if list.iter().all(|buffer| buffer.iov_len == 0) {
        return answer(plainly(list)); // does not wait, but says if something is wrong
    }
    // SAFETY: as above.
    let softly = |list: &[iovec]| unsafe {
        syscall!(
            SYS_preadv2,
            fd,
            list.as_ptr(),
            list.len(),
            OWN_POSITION,
            OWN_POSITION,
            libc::RWF_NOWAIT
        )
    };
    let generation = io::generation(fd);
    let result = softly(list);
    if is_unsupported(result) {
        if file_type(fd) == Some(libc::S_IFSOCK) {
            let mut message = message_of(list);
            // SAFETY: the buffers are the caller's.
            return unsafe { recvmsg(caller, fd, &mut message, 0) };
        }
        return ask_first(caller, fd, Event::READ, || plainly(list));
    }
    let total = total(list);
    let is_short = result > 0 && (result as usize) < total;
    if !would_block(result) && !is_short {
        return answer(result);
    }
    if (would_block(result) || io::kind(fd) == Kind::Unknown) && is_file(fd) {
        // SAFETY: the buffers are the caller's, who waits.
        return unsafe {
            super::file::read_on(
                caller,
                list,
                result,
                |list, _| softly(list),
                |list, _| plainly(list),
            )
        };
    }
    if is_short && !HAS_LOW_WATER_MARKS.load(Relaxed) {
        return Ok(result);
    }
    finish_receiving(caller, (fd, generation), 0, list, result, &mut |list| {
        softly(list)
    })
}

/// Whether it is a file that cannot be waited for. What else it is is remembered.
pub(super) fn is_file(fd: RawFd) -> bool {
    match file_type(fd) {
        Some(libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK) => true,
        Some(kind) => {
            let is_socket = kind == libc::S_IFSOCK;
            io::note_kind(fd, if is_socket { Kind::Socket } else { Kind::Other });
            false
        }
        None => false,
    }
}

/// What kind of file it is.
pub(super) fn file_type(fd: RawFd) -> Option<libc::mode_t> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes to a local variable, if it succeeds.
    let result = unsafe { syscall!(SYS_fstat, fd, status.as_mut_ptr()) };
    // SAFETY: it has succeeded.
    (result >= 0).then(|| unsafe { status.assume_init() }.st_mode & libc::S_IFMT)
}

/// A message of these buffers, and nothing else.
fn message_of(list: &[iovec]) -> msghdr {
    // SAFETY: all zero is a value of it.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.as_ptr().cast_mut();
    message.msg_iovlen = list.len() as _;
    message
}

/// A call on something that cannot be told not to block: made when `poll` says that it is ready.
fn ask_first(caller: Caller, fd: RawFd, event: Event, mut call: impl FnMut() -> isize) -> Answer {
    if is_nonblocking(fd) || file_type(fd).is_none() || is_file(fd) {
        return answer(call()); // which says so if there is no such descriptor
    }
    retry::retry(caller, fd, event, Limit::Until(crate::clock::NEVER), || {
        if is_ready(fd, event) {
            call()
        } else {
            -(libc::EAGAIN as isize)
        }
    })
}

// Output.

/// # Safety
/// As `sendto`.
pub(super) unsafe fn sendto(
    caller: Caller,
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> Answer {
    // SAFETY: the arguments are the caller's.
    let call = |buffer: *const c_void, length: usize| unsafe {
        syscall!(
            SYS_sendto,
            fd,
            buffer,
            length,
            flags | libc::MSG_DONTWAIT,
            address,
            size
        )
    };
    let generation = io::generation(fd);
    let result = call(buffer, length);
    if connects(fd, flags, address, result) {
        // SAFETY: the address is the caller's.
        unsafe { finish_connecting(caller, (fd, generation), address, size) }?;
        let sent = result.max(0) as usize;
        let (rest, flags) = (buffer.wrapping_byte_add(sent), flags & !libc::MSG_FASTOPEN);
        return and_more(sent, || {
            // SAFETY: the rest of the caller's buffer.
            unsafe { send(caller, fd, rest, length - sent, flags) }
        });
    }
    if flags & libc::MSG_DONTWAIT != 0 || result == length as isize {
        return answer(result);
    }
    let list = [iovec {
        iov_base: buffer.cast_mut(),
        iov_len: length,
    }];
    finish_sending(caller, (fd, generation), &list, result, &mut |list| {
        call(list[0].iov_base, list[0].iov_len)
    })
}

/// # Safety
/// As `send`.
pub(super) unsafe fn send(
    caller: Caller,
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { sendto(caller, fd, buffer, length, flags, std::ptr::null(), 0) }
}

/// # Safety
/// As `sendmsg`.
pub(super) unsafe fn sendmsg(caller: Caller, fd: c_int, message: *const msghdr, flags: c_int) -> Answer {
    // SAFETY: the arguments are the caller's.
    let call =
        |message: *const msghdr| unsafe { syscall!(SYS_sendmsg, fd, message, flags | libc::MSG_DONTWAIT) };
    let generation = io::generation(fd);
    let result = call(message);
    if flags & libc::MSG_FASTOPEN != 0
        && (result >= 0 || result == -(libc::EINPROGRESS as isize))
        // SAFETY: the kernel has taken the message, so there is one.
        && let Some(own) = unsafe { message.as_ref() }
        && connects(fd, flags, own.msg_name.cast(), result)
    {
        // SAFETY: the address is the caller's.
        unsafe { finish_connecting(caller, (fd, generation), own.msg_name.cast(), own.msg_namelen) }?;
        // SAFETY: it has as many buffers as it says.
        let mut rest = unsafe { Rest::of(own) };
        let (sent, mut part) = (result.max(0) as usize, *own);
        (part.msg_name, part.msg_namelen) = (std::ptr::null_mut(), 0);
        if sent > 0 {
            rest.advance(sent);
            // The ancillary data went with the first bytes.
            (part.msg_control, part.msg_controllen) = (std::ptr::null_mut(), 0);
        }
        (part.msg_iov, part.msg_iovlen) = (rest.list().as_ptr().cast_mut(), rest.list().len() as _);
        return and_more(sent, || {
            // SAFETY: the rest of the caller's message.
            unsafe { sendmsg(caller, fd, &part, flags & !libc::MSG_FASTOPEN) }
        });
    }
    if flags & libc::MSG_DONTWAIT != 0 || (result < 0 && !would_block(result)) {
        return answer(result);
    }
    // SAFETY: the kernel has taken the message, so there is one, and its buffers are the caller's.
    let (own, list) = unsafe {
        (
            *message,
            Rest::new((*message).msg_iov, (*message).msg_iovlen as _).buffers,
        )
    };
    if result == total(list) as isize {
        return Ok(result);
    }
    finish_sending(caller, (fd, generation), list, result, &mut |left| {
        let mut part = own;
        part.msg_iov = left.as_ptr().cast_mut();
        part.msg_iovlen = left.len() as _;
        if left.len() != list.len() || left.as_ptr() != list.as_ptr() {
            // The ancillary data went with the first bytes.
            part.msg_control = std::ptr::null_mut();
            part.msg_controllen = 0;
        }
        call(&part)
    })
}

/// Whether a sending call whose first try has given this has begun to connect its socket, and is to wait until that is done.
#[inline]
fn connects(fd: RawFd, flags: c_int, address: *const sockaddr, first: isize) -> bool {
    if flags & libc::MSG_FASTOPEN == 0 || flags & libc::MSG_DONTWAIT != 0 || address.is_null() {
        return false;
    }
    (first == -(libc::EINPROGRESS as isize) || (first >= 0 && is_stream(fd))) && !is_nonblocking(fd)
}

/// Waits until a socket whose connection has begun is connected.
///
/// # Safety
/// As `connect`.
unsafe fn finish_connecting(
    caller: Caller,
    file: (RawFd, u32),
    address: *const sockaddr,
    size: socklen_t,
) -> Answer {
    // SAFETY: the caller's promise.
    match unsafe { super::connection::connect(caller, file.0, address, size) } {
        // It has been connected meanwhile.
        Ok(_) | Err(libc::EISCONN) => answer(io::on_same_file(file, || 0)),
        // Its time is up.
        Err(libc::EALREADY) => Err(libc::EINPROGRESS),
        Err(error) => Err(error),
    }
}

/// What a call has moved that goes on after so many bytes.
fn and_more(done: usize, go_on: impl FnOnce() -> Answer) -> Answer {
    match go_on() {
        Ok(more) => Ok(done as isize + more),
        // What has been moved counts; the error comes again.
        Err(_) if done > 0 => Ok(done as isize),
        Err(error) => Err(error),
    }
}

/// Goes on with a sending call whose first try has given this.
#[cold]
fn finish_sending(
    caller: Caller,
    (fd, generation): (RawFd, u32),
    list: &[iovec],
    first: isize,
    attempt: &mut dyn FnMut(&[iovec]) -> isize,
) -> Answer {
    if first >= 0 && (is_nonblocking(fd) || !is_stream_or_pipe(fd)) {
        return Ok(first);
    }
    if would_block(first) && is_ready(fd, Event::WRITE) && !is_stream_or_pipe(fd) && !is_nonblocking(fd) {
        // There is room here, but not where it is to go: a local socket that reads too slowly, and nothing says when it has read.
        let deadline = retry::deadline(fd, libc::SO_SNDTIMEO);
        return try_file_again(caller, (fd, generation), deadline, &mut || attempt(list));
    }
    let mut rest = Rest {
        buffers: list,
        done: 0,
        left: Vec::new(),
    };
    let total = rest.total();
    let mut first = Some(first);
    move_all(
        caller,
        (fd, generation),
        Event::WRITE,
        SEND,
        &mut rest,
        total,
        &mut |list| first.take().unwrap_or_else(|| attempt(list)),
    )
}

/// Whether what is written to it is written to the end: it is no socket of messages.
fn is_stream_or_pipe(fd: RawFd) -> bool {
    socket_option(fd, libc::SO_TYPE).is_none_or(|kind| kind == libc::SOCK_STREAM)
}

/// Whether it is standard output or error, and the fiber must not wait for it: std's locks for them belong to threads, and would let
/// another fiber in that shares its thread-locals with this one.
fn is_locked_output(caller: Caller, fd: RawFd) -> bool {
    matches!(fd, libc::STDOUT_FILENO | libc::STDERR_FILENO) && !caller.worker.has_own_locals()
}

/// # Safety
/// As `write`.
pub(super) unsafe fn write(caller: Caller, fd: c_int, buffer: *const c_void, length: size_t) -> Answer {
    if length > 0 && !is_locked_output(caller, fd) && io::kind(fd) == Kind::Socket {
        // The same, and over 100 ns faster than a call that knows RWF_NOWAIT.
        // SAFETY: the caller's promise.
        let sent = unsafe { send(caller, fd, buffer, length, 0) };
        if sent != Err(libc::ENOTSOCK) {
            return sent;
        }
    }
    let list = [iovec {
        iov_base: buffer.cast_mut(),
        iov_len: length,
    }];
    // SAFETY: one buffer, of that length.
    unsafe { write_list(caller, fd, &list, false) }
}

/// # Safety
/// As `writev`.
pub(super) unsafe fn writev(caller: Caller, fd: c_int, list: *const iovec, count: c_int) -> Answer {
    if !(0..=libc::UIO_MAXIOV).contains(&count) || (list.is_null() && count > 0) {
        // SAFETY: the kernel says what is wrong.
        return answer(unsafe { syscall!(SYS_writev, fd, list, count) });
    }
    // SAFETY: there are so many, as the caller promises.
    let list = unsafe { Rest::new(list, count as usize) }.buffers;
    // SAFETY: they are the caller's.
    unsafe { write_list(caller, fd, list, true) }
}

/// # Safety
/// The buffers may be read.
unsafe fn write_list(caller: Caller, fd: c_int, list: &[iovec], vectored: bool) -> Answer {
    // SAFETY: the arguments are the caller's.
    let plainly = |list: &[iovec]| unsafe {
        match list {
            [one] if !vectored => syscall!(SYS_write, fd, one.iov_base, one.iov_len),
            list => syscall!(SYS_writev, fd, list.as_ptr(), list.len()),
        }
    };
    if is_locked_output(caller, fd) {
        return answer(plainly(list));
    }
    let total = total(list);
    if total == 0 {
        if vectored {
            return answer(plainly(list)); // moves nothing, but says if something is wrong
        }
        // An empty datagram is one, and may have to wait for room; anything else does not.
        return retry::retry(caller, fd, Event::WRITE, SEND, || {
            // SAFETY: nothing is read at the address.
            let result = unsafe { syscall!(SYS_sendto, fd, list[0].iov_base, 0, libc::MSG_DONTWAIT, 0, 0) };
            match -result as c_int {
                libc::ENOTSOCK => plainly(list),
                _ => result,
            }
        });
    }
    // SAFETY: as above.
    let softly = |list: &[iovec]| unsafe {
        syscall!(
            SYS_pwritev2,
            fd,
            list.as_ptr(),
            list.len(),
            OWN_POSITION,
            OWN_POSITION,
            libc::RWF_NOWAIT
        )
    };
    let generation = io::generation(fd);
    let result = softly(list);
    if result == total as isize {
        return Ok(result);
    }
    if is_unsupported(result) {
        if file_type(fd) == Some(libc::S_IFSOCK) {
            // SAFETY: the buffers are the caller's.
            return unsafe { sendmsg(caller, fd, &message_of(list), 0) };
        }
        if is_nonblocking(fd) || is_file(fd) {
            return answer(plainly(list));
        }
        return write_in_pieces(caller, fd, list);
    }
    if result < 0 && !would_block(result) {
        return answer(result);
    }
    if is_file(fd) {
        // It goes to the page cache: that is not a wait.
        let mut rest = Rest {
            buffers: list,
            done: 0,
            left: Vec::new(),
        };
        if result > 0 {
            rest.advance(result as usize);
        }
        return and_more(rest.done, || answer(plainly(rest.list())));
    }
    finish_sending(caller, (fd, generation), list, result, &mut |list| softly(list))
}

/// Writes to something that cannot be told not to block: each time that `poll` says that there is room, as much as then surely fits.
fn write_in_pieces(caller: Caller, fd: RawFd, list: &[iovec]) -> Answer {
    let mut rest = Rest {
        buffers: list,
        done: 0,
        left: Vec::new(),
    };
    let total = rest.total();
    while rest.done < total {
        // In one call, of however many buffers: then nobody else's bytes come in between.
        let piece = beginning(rest.list(), ATOMIC);
        let written = ask_first(caller, fd, Event::WRITE, || {
            // SAFETY: parts of buffers of the caller's.
            unsafe { syscall!(SYS_writev, fd, piece.as_ptr(), piece.len()) }
        });
        match written {
            Ok(0) => break,
            Ok(bytes) => rest.advance(bytes as usize),
            Err(_) if rest.done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(rest.done as ssize_t)
}

/// The first so many bytes of some buffers.
fn beginning(list: &[iovec], length: usize) -> Vec<iovec> {
    let mut room = length;
    let mut parts = Vec::new();
    for buffer in list {
        if room == 0 {
            break;
        }
        let part = buffer.iov_len.min(room);
        room -= part;
        parts.push(iovec {
            iov_base: buffer.iov_base,
            iov_len: part,
        });
    }
    parts
}
