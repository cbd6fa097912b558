//! From one descriptor to another: sendfile, splice and tee.
//!
//! The kernel's own calls block on a socket even when they are told not to. So what goes to a socket is read, or copied, and sent;
//! so is what `sendfile` writes to anything else that is no pipe.
//! Between pipes and files the kernel does it, when `poll` says that both sides are ready.
//!
//! Both descriptors have to stand for the same files to the end: that is made sure of before each piece.

use super::file::pread;
use super::retry::{self, Answer, Caller, answer, is_nonblocking, is_ready, would_block};
use super::transfer::{self, is_file};
use crate::clock;
use crate::io::{self, Event};
use crate::sys::syscall;
use libc::{c_int, c_uint, off_t, size_t};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};

/// How much is read at a time.
const PIECE: usize = 64 << 10;

/// How much the kernel moves at most in one call.
const MOST: usize = 0x7fff_f000;

const AGAIN: isize = -(libc::EAGAIN as isize);

/// The two descriptors of a call, which are open, with the files that they stood for when it began.
#[derive(Clone, Copy)]
struct Pair {
    caller: Caller,
    from: (RawFd, u32),
    to: (RawFd, u32),
}

impl Pair {
    fn new(caller: Caller, from: RawFd, to: RawFd) -> Pair {
        let [from, to] = [from, to].map(io::identify);
        Pair { caller, from, to }
    }

    /// Makes a call on both. `EBADF`, if one is another file's by now. The call must not wait.
    fn attempt(&self, call: impl FnOnce() -> isize) -> isize {
        io::on_same_files([self.from, self.to], call)
    }

    /// `EBADF`, if one is another file's by now.
    fn check(&self) -> Answer {
        answer(self.attempt(|| 0))
    }

    /// Waits until one of them is ready, at most until then.
    fn wait(&self, file: (RawFd, u32), event: Event, deadline: u64) -> Answer {
        let (fd, generation) = file;
        self.caller.count().would_block.increment();
        io::watch_file(self.caller.worker, (fd, event), generation, |watch| {
            self.caller
                .wait_and_retry(watch, deadline, &mut || match is_ready(fd, event) {
                    true => 0,
                    false => AGAIN,
                })
        })
    }
}

/// # Safety
/// As `sendfile`.
pub(super) unsafe fn sendfile(
    caller: Caller,
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Answer {
    let never_waits = !can_move(from, to) || is_file(to) || !is_file(from) || is_nonblocking(to);
    if never_waits || count == 0 {
        // SAFETY: the arguments are the caller's.
        return answer(unsafe { syscall!(SYS_sendfile, to, from, offset, count) });
    }
    let pair = Pair::new(caller, from, to);
    let seek = |position: off_t, whence: c_int| {
        // SAFETY: numbers.
        answer(unsafe { syscall!(SYS_lseek, from, position, whence) })
    };
    // SAFETY: null or a position, as the caller promises.
    let start = match unsafe { offset.as_ref() } {
        Some(&offset) => offset,
        None => seek(0, libc::SEEK_CUR)? as off_t,
    };
    let count = count.min(MOST);
    let mut piece = vec![0_u8; PIECE.min(count)];
    if is_pipe(to) {
        // The kernel moves what there is room for, and no more. It is read only so that the kernel need not wait for the disk; what is
        // wrong the kernel says, too.
        // SAFETY: the piece is that long.
        let _ = unsafe { pread(caller, from, piece.as_mut_ptr().cast(), piece.len(), start) };
        // SAFETY: the arguments are the caller's; pipes have no offset.
        return move_when_ready(&pair, false, || unsafe {
            syscall!(
                SYS_splice,
                from,
                offset,
                to,
                null_mut::<off_t>(),
                count,
                libc::SPLICE_F_NONBLOCK
            )
        });
    }
    let mut moved = 0;
    let error = loop {
        let length = piece.len().min(count - moved);
        let position = start + moved as off_t;
        if let Err(error) = pair.check() {
            break Some(error);
        }
        // SAFETY: the piece is that long.
        let read = match unsafe { pread(caller, from, piece.as_mut_ptr().cast(), length, position) } {
            Ok(0) => break None,
            Ok(read) => read,
            Err(error) => break Some(error),
        };
        // Perhaps it has waited for the disk.
        if let Err(error) = pair.check() {
            break Some(error);
        }
        // SAFETY: so much of it has been read.
        match unsafe { transfer::write(caller, to, piece.as_ptr().cast(), read as usize) } {
            Ok(written) => {
                moved += written as usize;
                if written < read || moved == count {
                    break None;
                }
            }
            Err(error) => break Some(error),
        }
    };
    match error {
        Some(error) if moved == 0 => return Err(error),
        _ => {}
    }
    // SAFETY: as above.
    match unsafe { offset.as_mut() } {
        Some(offset) => *offset = start + moved as off_t,
        None => drop(pair.attempt(|| seek(start + moved as off_t, libc::SEEK_SET).unwrap_or(0))),
    }
    Ok(moved as isize)
}

/// # Safety
/// As `splice`.
pub(super) unsafe fn splice(
    caller: Caller,
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    length: size_t,
    flags: c_uint,
) -> Answer {
    let softly = flags & libc::SPLICE_F_NONBLOCK != 0;
    // SAFETY: the arguments are the caller's.
    let call = || unsafe {
        syscall!(
            SYS_splice,
            from,
            from_offset,
            to,
            to_offset,
            length,
            flags | libc::SPLICE_F_NONBLOCK
        )
    };
    let [from_type, to_type] = [from, to].map(transfer::file_type);
    let has_pipe = [from_type, to_type].contains(&Some(libc::S_IFIFO));
    let has_position = |kind| !matches!(kind, Some(libc::S_IFIFO | libc::S_IFSOCK));
    let is_misplaced = (!from_offset.is_null() && !has_position(from_type))
        || (!to_offset.is_null() && !has_position(to_type));
    if length == 0 || !has_pipe || is_misplaced || !can_move(from, to) {
        return answer(call()); // moves nothing, but says what is wrong
    }
    let pair = Pair::new(caller, from, to);
    if to_type == Some(libc::S_IFSOCK) {
        return send_from_pipe(&pair, length, softly || is_nonblocking(from), call);
    }
    move_when_ready(&pair, softly, call)
}

/// # Safety
/// As `tee`.
pub(super) unsafe fn tee(caller: Caller, from: c_int, to: c_int, length: size_t, flags: c_uint) -> Answer {
    let softly = flags & libc::SPLICE_F_NONBLOCK != 0;
    // SAFETY: the arguments are the caller's.
    let call = || unsafe { syscall!(SYS_tee, from, to, length, flags | libc::SPLICE_F_NONBLOCK) };
    if length == 0 || !is_pipe(from) || !is_pipe(to) || !can_move(from, to) {
        return answer(call()); // moves nothing, but says what is wrong
    }
    move_when_ready(&Pair::new(caller, from, to), softly, call)
}

/// Makes a call that moves bytes when there are some and there is room for them. One side is a pipe.
fn move_when_ready(pair: &Pair, softly: bool, call: impl Fn() -> isize) -> Answer {
    let ((from, _), (to, _)) = (pair.from, pair.to);
    // A file on a disk may have the flag, but nobody heeds it.
    let is_flagged = |fd| is_nonblocking(fd) && !is_file(fd);
    let softly = softly || is_flagged(from) || is_flagged(to);
    if is_pipe(from) && is_pipe(to) {
        // Pipes heed that they must not wait. What is wrong with them, if they are the same one, is no reason to wait, either.
        let result = pair.attempt(&call);
        if softly || !would_block(result) {
            return answer(result);
        }
    }
    // Pipes have no time limit.
    let mut until = None;
    loop {
        for (file, event) in [(pair.from, Event::READ), (pair.to, Event::WRITE)] {
            if is_ready(file.0, event) {
                continue;
            }
            if softly {
                return Err(libc::EAGAIN);
            }
            let deadline = match event {
                Event::READ => *until.get_or_insert_with(|| retry::deadline(from, libc::SO_RCVTIMEO)),
                _ => clock::NEVER,
            };
            pair.wait(file, event, deadline)?;
        }
        let result = pair.attempt(&call);
        if softly || !would_block(result) {
            return answer(result);
        }
        // Somebody else was faster.
        crate::scheduler::yield_now();
    }
}

/// Moves bytes from a pipe to a socket until there are none left, as the kernel does. `call` is the kernel's own call: if the socket
/// is non-blocking, it does not wait for it. Otherwise what is sent is a copy, and only so much is taken out of the pipe as was sent:
/// if the socket's time is up, or the fiber is cancelled, the rest is still there. Softly, the pipe is not waited for.
fn send_from_pipe(pair: &Pair, length: usize, softly: bool, call: impl Fn() -> isize) -> Answer {
    let ((from, _), (to, _)) = (pair.from, pair.to);
    if is_nonblocking(to) {
        return loop {
            if !softly && !is_ready(from, Event::READ) {
                pair.wait(pair.from, Event::READ, clock::NEVER)?;
            }
            let result = pair.attempt(&call);
            // If it is the pipe that has nothing, somebody else was faster.
            if softly || !would_block(result) || is_ready(from, Event::READ) {
                break answer(result);
            }
        };
    }
    let mut until = None;
    let mut moved = 0;
    let end = loop {
        if !is_ready(from, Event::READ) {
            if moved > 0 {
                break Ok(0);
            }
            if softly {
                break Err(libc::EAGAIN);
            }
            if let Err(error) = pair.wait(pair.from, Event::READ, clock::NEVER) {
                break Err(error);
            }
        }
        // A new one each time: a coroutine that waits may never go on, and would leave its descriptors behind.
        let sent = Copy::new(PIECE.min(length - moved))
            .and_then(|mut copy| answer(pair.attempt(|| copy.send(from, to))));
        match sent {
            Ok(0) => break Ok(0),
            Ok(sent) => moved += sent as usize,
            Err(libc::EAGAIN) if is_ready(to, Event::WRITE) => crate::scheduler::yield_now(), // somebody else was faster
            Err(libc::EAGAIN) => {
                // One for the whole call, whenever it first has to wait.
                let deadline = *until.get_or_insert_with(|| retry::deadline(to, libc::SO_SNDTIMEO));
                if let Err(error) = pair.wait(pair.to, Event::WRITE, deadline) {
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
        if moved == length {
            break Ok(0);
        }
    };
    match end {
        Err(error) if moved == 0 => Err(error),
        _ => Ok(moved as isize),
    }
}

/// A pipe of our own: what another one holds is copied to it, and read from here.
struct Copy {
    out: OwnedFd,
    input: OwnedFd,
    piece: Vec<u8>,
}

impl Copy {
    /// One for so many bytes.
    fn new(length: usize) -> Result<Copy, i32> {
        let mut ends = [0; 2];
        // SAFETY: writes two numbers.
        answer(unsafe { syscall!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
        // SAFETY: they were just made, and are nobody else's.
        let [out, input] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Copy {
            out,
            input,
            piece: vec![0; length],
        })
    }

    /// Sends what a pipe holds to a socket, as much as there is room for here, without waiting, and takes out of it what was sent.
    fn send(&mut self, from: RawFd, to: RawFd) -> isize {
        let (length, input) = (self.piece.len(), self.input.as_raw_fd());
        // SAFETY: numbers.
        let copied = unsafe { syscall!(SYS_tee, from, input, length, libc::SPLICE_F_NONBLOCK) };
        if copied <= 0 {
            return copied;
        }
        self.empty();
        // SAFETY: so much of it has been read.
        let sent = unsafe {
            syscall!(
                SYS_sendto,
                to,
                self.piece.as_ptr(),
                copied,
                libc::MSG_DONTWAIT,
                null::<u8>(),
                0
            )
        };
        if sent > 0 {
            let none = null_mut::<off_t>();
            // Not read, as somebody else may have emptied the pipe meanwhile, and not every pipe can be read without waiting.
            // SAFETY: no offsets: pipes have none.
            unsafe { syscall!(SYS_splice, from, none, input, none, sent, libc::SPLICE_F_NONBLOCK) };
            self.empty();
        }
        sent
    }

    /// Reads what is in our own pipe: never more than the piece has room for.
    fn empty(&mut self) {
        // SAFETY: the piece is that long.
        unsafe {
            syscall!(
                SYS_read,
                self.out.as_raw_fd(),
                self.piece.as_mut_ptr(),
                self.piece.len()
            )
        };
    }
}

/// Whether it is a pipe, named or not.
fn is_pipe(fd: RawFd) -> bool {
    transfer::file_type(fd) == Some(libc::S_IFIFO)
}

/// Whether both are open, the one for input and the other for output.
fn can_move(from: RawFd, to: RawFd) -> bool {
    let mode = |fd: RawFd| {
        // SAFETY: asks for a number.
        let flags = unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFL) };
        (flags >= 0).then_some(flags as c_int & libc::O_ACCMODE)
    };
    let is_or_both =
        |fd: RawFd, wanted: c_int| mode(fd).is_some_and(|mode| [wanted, libc::O_RDWR].contains(&mode));
    is_or_both(from, libc::O_RDONLY) && is_or_both(to, libc::O_WRONLY)
}
