//! Descriptor lifetime under fire: for half a minute fibers and plain threads open, close, duplicate, replace, pass on and use
//! again the same few numbers, while others read, write, poll and time out. Points 1 to 7, 23 and 24 of the hooks' contract.
//!
//! Every byte says whose connection it belongs to. A byte from another connection, a call that does not end, a wake-up that gets
//! lost, or an error that nobody has caused is a failure.
//!
//! A program may not close a number that another fiber is about to use: whoever comes later may find another file there, with
//! threads as with fibers. So nobody does that here. Each number has one owner, except in [`evict`] and [`crowd`]: there a number
//! is closed or replaced under fibers that are known to *wait* for it, because the runtime's dump says so, and that do not use it
//! again afterwards. The file they waited for was theirs; any other is none of their business.

#[path = "common/patience.rs"]
mod patience;
#[path = "common/secret.rs"]
mod secret;

use fibrant::JoinHandle;
use fibrant::fiber::WaitReason;
use fibrant::runtime::{Builder, Handle};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How many workers are under fire, for how many seconds, and whose.
const FIRE: [(usize, u64, &[Player]); 3] = [(2, 14, &PLAYERS), (1, 8, &PLAYERS), (1, 8, &DUELLISTS)];

/// Takes the place of those seconds, for runs by hand.
const SECONDS: &str = "FIBRANT_TEST_SECONDS";

/// Takes the place of a seed from the clock. Order and time are the machine's all the same.
const SEED: &str = "FIBRANT_TEST_SEED";

/// A player that has not finished a round for so long hangs.
const HANGS: Duration = Duration::from_secs(20);

/// After so long a wait has looked after its registration, and nothing will help it any more if its wake-up gets lost.
const UNAIDED: Duration = Duration::from_millis(15);

/// What a player does over and over, from where, and how many of them there are.
type Player = (&'static str, Place, usize);

const PLAYERS: [Player; 10] = [
    ("converse", Place::Fiber, 6),
    ("converse", Place::Thread, 2),
    ("evict", Place::Fiber, 2),
    ("evict", Place::Neighbour, 2),
    ("evict", Place::Thread, 2),
    ("crowd", Place::Fiber, 1),
    ("crowd", Place::Neighbour, 1),
    ("crowd", Place::Thread, 1),
    ("heal", Place::Fiber, 2),
    ("heal", Place::Thread, 1),
];

/// Where nobody else is in the way, blows come at the very moment when a fiber looks, or is about to wait again.
const DUELLISTS: [Player; 2] = [("snipe", Place::Thread, 1), ("crowd", Place::Thread, 1)];

/// Where a player is, seen from the fibers that it makes wait.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// A fiber, on whatever worker.
    Fiber,
    /// A fiber on the same worker.
    Neighbour,
    /// A plain thread.
    Thread,
}

/// What all players share.
struct Fire {
    runtime: Handle,
    workers: usize,
    is_over: AtomicBool,
    connections: AtomicU32,
    rounds: [AtomicU64; PLAYERS.len() * 8],
}

/// Small numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn milliseconds(&mut self, most: usize) -> Duration {
        Duration::from_micros(1 + self.below(1000 * most) as u64)
    }

    /// Another one, for somebody else.
    fn fork(&mut self) -> Random {
        Random(self.next().wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
}

const FRAME: usize = 8;

/// What a connection's stream has in that place. Frames of eight bytes: whose they are, and the how-manieth.
fn byte(connection: u32, place: u64) -> u8 {
    frame(connection, (place / FRAME as u64) as u32)[place as usize % FRAME]
}

fn frame(connection: u32, number: u32) -> [u8; FRAME] {
    let both = u64::from(connection) << 32 | u64::from(number);
    both.to_le_bytes()
}

impl Fire {
    /// A number for a connection that no other has, and that differs from others in all its bytes.
    fn connection(&self) -> u32 {
        self.connections.fetch_add(1, Relaxed).wrapping_mul(0x9E37_79B1)
    }

    fn spawn<T: Send + 'static>(
        &self,
        place: Place,
        random: &mut Random,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        match place {
            Place::Neighbour => fibrant::spawn_local(f),
            _ => self.runtime.spawn_on(random.below(self.workers), f),
        }
    }

    /// Waits until all of these fibers wait for a descriptor, or have ended.
    fn settle<T>(&self, fibers: &[JoinHandle<T>]) {
        if fibrant::hook::is_enabled() {
            fibrant::yield_now();
        }
        loop {
            let dump = self.runtime.dump();
            let is_settled = |fiber: &JoinHandle<T>| {
                fiber.is_finished()
                    || dump.fibers.iter().any(|one| {
                        one.id == fiber.id() && matches!(one.wait, Some(WaitReason::Descriptor { .. }))
                    })
            };
            if fibers.iter().all(is_settled) {
                return;
            }
            glance();
        }
    }
}

/// Passes the time until the next look at something that will happen soon.
fn glance() {
    if fibrant::hook::is_enabled() {
        thread::sleep(Duration::from_micros(20));
    } else {
        thread::yield_now();
    }
}

/// Somebody who does a part of a player's work.
enum Helper<T> {
    Fiber(JoinHandle<T>),
    Thread(thread::JoinHandle<T>),
}

impl<T: Send + 'static> Helper<T> {
    fn new(fire: &Fire, random: &mut Random, f: impl FnOnce() -> T + Send + 'static) -> Helper<T> {
        if random.one_in(6) {
            Helper::Thread(thread::spawn(f))
        } else {
            Helper::Fiber(fire.spawn(Place::Fiber, random, f))
        }
    }

    fn join(self) -> T {
        match self {
            Helper::Fiber(fiber) => fiber.join().unwrap(),
            Helper::Thread(thread) => thread.join().unwrap(),
        }
    }
}

// What C has, without the pointers.

/// The result of a call of C's, or the error that it has left.
fn told(result: isize) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// The four ways to read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Read,
    Readv,
    Recv,
    Recvmsg,
}

fn input(how: Input, fd: RawFd, buffer: &mut [u8], flags: i32) -> Result<usize, i32> {
    let (first, second) = buffer.split_at_mut(buffer.len() / 2);
    let mut list = [first, second].map(|part| libc::iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    });
    // SAFETY: all zero is a message of nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (list.as_mut_ptr(), list.len() as _);
    // SAFETY: the buffer, or its two parts, is as long as it says.
    told(unsafe {
        match how {
            Input::Read => libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()),
            Input::Readv => libc::readv(fd, list.as_ptr(), 2),
            Input::Recv => libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags),
            Input::Recvmsg => libc::recvmsg(fd, &mut message, flags),
        }
    })
}

/// The four ways to write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Output {
    Write,
    Writev,
    Send,
    Sendmsg,
}

fn output(how: Output, fd: RawFd, bytes: &[u8]) -> Result<usize, i32> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut list = [first, second].map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // SAFETY: all zero is a message of nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (list.as_mut_ptr(), list.len() as _);
    // SAFETY: the bytes, or their two parts, are as many as it says, and are only read.
    told(unsafe {
        match how {
            Output::Write => libc::write(fd, bytes.as_ptr().cast(), bytes.len()),
            Output::Writev => libc::writev(fd, list.as_ptr(), 2),
            Output::Send => libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0),
            Output::Sendmsg => libc::sendmsg(fd, &message, 0),
        }
    })
}

fn poll(fd: RawFd, events: i16, time: Option<Duration>) -> Result<usize, i32> {
    let mut asked = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let milliseconds = time.map_or(-1, |time| time.as_millis() as i32);
    // SAFETY: one element, a local variable.
    told(unsafe { libc::poll(&mut asked, 1, milliseconds) } as isize)
}

/// Takes everything that is there.
fn drain(fd: &OwnedFd, all: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = input(Input::Recv, fd.as_raw_fd(), &mut buffer, libc::MSG_DONTWAIT) {
        all.extend(&buffer[..count]);
    }
}

fn set_option<T>(fd: RawFd, option: i32, value: T) {
    // SAFETY: the value is as long as it says.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<T>() as u32,
        )
    };
    assert_eq!(result, 0, "setsockopt: {}", io::Error::last_os_error());
}

/// Sets `SO_RCVTIMEO` or `SO_SNDTIMEO`.
fn set_timeout(fd: RawFd, option: i32, time: Option<Duration>) {
    let time = time.unwrap_or_default();
    let time = libc::timeval {
        tv_sec: time.as_secs() as _,
        tv_usec: time.subsec_micros().into(),
    };
    set_option(fd, option, time);
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: writes two numbers, which are descriptors of ours from then on.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

fn streams() -> (OwnedFd, OwnedFd) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours.into(), theirs.into())
}

/// Puts another file in the place of a number.
fn replace(fd: RawFd, by: &OwnedFd) {
    // SAFETY: numbers; the caller owns both.
    let result = unsafe { libc::dup3(by.as_raw_fd(), fd, libc::O_CLOEXEC) };
    assert_eq!(result, fd, "dup3: {}", io::Error::last_os_error());
}

fn close(fd: RawFd) {
    // SAFETY: the caller owns it.
    let result = unsafe { libc::close(fd) };
    assert_eq!(result, 0, "close: {}", io::Error::last_os_error());
}

/// Passes a descriptor over a socket.
fn pass(over: &OwnedFd, fd: OwnedFd) {
    let mut control = [0_u64; 4];
    let mut byte = 0_u8;
    let mut list = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: the message and what it points to are local variables; there is room for one descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut list, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write(fd.as_raw_fd());
        assert_eq!(libc::sendmsg(over.as_raw_fd(), &message, 0), 1);
    }
}

/// Takes a descriptor from a socket.
fn take(over: &OwnedFd) -> OwnedFd {
    let mut control = [0_u64; 4];
    let mut byte = 0_u8;
    let mut list = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: as above; what comes is a descriptor of ours.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut list, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        assert_eq!(
            libc::recvmsg(over.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC),
            1
        );
        let header = libc::CMSG_FIRSTHDR(&message);
        assert!(!header.is_null(), "the descriptor came with its byte");
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read())
    }
}

// The players.

/// One end of a connection, with its one owner.
struct End {
    fd: OwnedFd,
    is_socket: bool,
}

impl End {
    fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The same file under another number. The first one is closed, the other goes on.
    fn moved(self, random: &mut Random) -> End {
        let fd = match random.below(4) {
            0 => self.fd.try_clone().unwrap(),
            1 => {
                let least = random.below(3000) as libc::c_int;
                // SAFETY: makes a descriptor, which is ours.
                unsafe {
                    let fd = libc::fcntl(self.raw(), libc::F_DUPFD_CLOEXEC, least);
                    assert!(fd >= least, "{}", io::Error::last_os_error());
                    OwnedFd::from_raw_fd(fd)
                }
            }
            2 => {
                let (other, _) = pipe();
                replace(other.as_raw_fd(), &self.fd);
                other
            }
            _ => {
                let (ours, theirs) = streams();
                pass(&ours, self.fd);
                take(&theirs)
            }
        };
        End { fd, ..self }
    }
}

/// What is written, and what is read.
fn connection(random: &mut Random) -> (End, End) {
    let (is_socket, from, to) = match random.below(16) {
        0 => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (true, ours.into(), listener.accept().unwrap().0.into())
        }
        1..6 => {
            let (reader, writer) = pipe();
            (false, writer, reader)
        }
        _ => {
            let (ours, theirs) = streams();
            (true, ours, theirs)
        }
    };
    let end = |fd| End { fd, is_socket };
    (end(from), end(to))
}

/// Two talk, while their descriptors change numbers and hands.
fn converse(fire: &Arc<Fire>, random: &mut Random) {
    let id = fire.connection();
    let (from, to) = connection(random);
    // Seldom more than fits into the kernel's buffers: checking that takes long.
    let longest = if random.one_in(50) { 30_000 } else { 100 };
    let length = (FRAME * (1 + random.below(longest))) as u64;
    let mut own = random.fork();
    let speaker = Helper::new(fire, random, move || speak(from, id, length, &mut own));
    assert_eq!(listen(fire, to, id, 0, random), length, "all has come");
    speaker.join();
}

/// Writes a connection's bytes, and closes it.
fn speak(mut end: End, id: u32, length: u64, random: &mut Random) {
    let mut sent = 0;
    let mut limit = None;
    while sent < length {
        match random.below(8) {
            0 => end = end.moved(random),
            1 if end.is_socket => {
                limit = random.one_in(2).then(|| random.milliseconds(3));
                set_timeout(end.raw(), libc::SO_SNDTIMEO, limit);
            }
            2 => thread::sleep(random.milliseconds(2)),
            3 => assert_eq!(poll(end.raw(), libc::POLLOUT, None), Ok(1)),
            _ => {}
        }
        let piece = (1 + random.below(40_000) as u64).min(length - sent);
        let bytes: Vec<u8> = (sent..sent + piece).map(|place| byte(id, place)).collect();
        let ways = [Output::Write, Output::Writev, Output::Send, Output::Sendmsg];
        let how = random.of(if end.is_socket { &ways } else { &ways[..2] });
        match output(how, end.raw(), &bytes) {
            Ok(count) if count as u64 == piece || (limit.is_some() && count > 0) => sent += count as u64,
            Err(libc::EAGAIN) if limit.is_some() => {}
            other => panic!("{how:?} of {piece} bytes with limit {limit:?} gives {other:?}"),
        }
    }
}

/// Reads until the end, from that place on, and returns how much there was.
fn listen(fire: &Arc<Fire>, mut end: End, id: u32, mut place: u64, random: &mut Random) -> u64 {
    let mut limit = None;
    let mut buffer = [0; 4096];
    loop {
        match random.below(16) {
            0 | 1 => end = end.moved(random),
            2 | 3 if end.is_socket => {
                limit = random.one_in(2).then(|| random.milliseconds(3));
                set_timeout(end.raw(), libc::SO_RCVTIMEO, limit);
            }
            4 => {
                let time = random.one_in(2).then(|| Duration::from_millis(random.next() % 3));
                let start = Instant::now();
                match poll(end.raw(), libc::POLLIN, time) {
                    Ok(1) => {}
                    Ok(0) if time.is_some_and(|time| start.elapsed() >= time) => {}
                    other => panic!("poll for {time:?} gives {other:?}"),
                }
            }
            5 if random.one_in(4) => {
                // Somebody else goes on.
                if end.is_socket {
                    set_timeout(end.raw(), libc::SO_RCVTIMEO, None);
                }
                let (ours, theirs) = streams();
                let (fire_too, mut own, is_socket) = (Arc::clone(fire), random.fork(), end.is_socket);
                let heir = Helper::new(fire, random, move || {
                    let fd = take(&theirs);
                    listen(&fire_too, End { fd, is_socket }, id, place, &mut own)
                });
                pass(&ours, end.fd);
                return heir.join();
            }
            _ => {}
        }
        let length = 1 + random.below(buffer.len());
        let ways = [Input::Read, Input::Readv, Input::Recv, Input::Recvmsg];
        let how = random.of(if end.is_socket { &ways } else { &ways[..2] });
        let flags = random.of(&[0, 0, libc::MSG_WAITALL]);
        let start = Instant::now();
        match input(how, end.raw(), &mut buffer[..length], flags) {
            Ok(0) => return place,
            Ok(count) => {
                for &found in &buffer[..count] {
                    assert_eq!(
                        found,
                        byte(id, place),
                        "a foreign byte at place {place} of {id:x}"
                    );
                    place += 1;
                }
            }
            // The kernel counts in ticks, with which a thread's call may end a little early.
            Err(libc::EAGAIN)
                if limit.is_some_and(|limit| start.elapsed() >= limit || !fibrant::hook::is_enabled()) => {}
            other => panic!(
                "{how:?} with limit {limit:?} gives {other:?} after {:?}",
                start.elapsed()
            ),
        }
    }
}

/// A call that waits for a number.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    /// Reads one frame.
    Input(Input),
    /// Reads a long message, until it is complete.
    Whole,
    /// Writes one frame, or a long message, to the end.
    Output(Output, usize),
    Poll,
    Accept,
}

const LONG: usize = 40 * FRAME;

/// More than fits.
const VERY_LONG: usize = 20_000;

const CALLS: [Call; 13] = [
    Call::Whole,
    Call::Whole,
    Call::Input(Input::Recv),
    Call::Input(Input::Recvmsg),
    Call::Input(Input::Read),
    Call::Input(Input::Readv),
    Call::Output(Output::Write, FRAME),
    Call::Output(Output::Sendmsg, FRAME),
    Call::Output(Output::Writev, VERY_LONG),
    Call::Output(Output::Send, VERY_LONG),
    Call::Output(Output::Sendmsg, VERY_LONG),
    Call::Poll,
    Call::Accept,
];

impl Call {
    /// How many bytes it moves.
    fn length(self) -> usize {
        match self {
            Call::Whole => LONG,
            Call::Output(_, length) => length,
            _ => FRAME,
        }
    }

    /// Makes the call, once. Gives what it reads, too.
    fn make(self, number: RawFd, id: u32, limit: Option<Duration>) -> (Result<usize, i32>, Vec<u8>) {
        let mut bytes = vec![0; self.length()];
        let result = match self {
            Call::Input(how) => input(how, number, &mut bytes, 0),
            Call::Whole => input(Input::Recv, number, &mut bytes, libc::MSG_WAITALL),
            Call::Output(how, length) => output(how, number, &message(id, length)),
            Call::Poll => poll(number, libc::POLLIN, limit),
            Call::Accept => {
                let (address, size) = (std::ptr::null_mut(), std::ptr::null_mut());
                // SAFETY: no address is asked for; what comes is a descriptor.
                told(unsafe { libc::accept4(number, address, size, libc::SOCK_CLOEXEC) } as isize)
            }
        };
        (result, bytes)
    }
}

/// So many bytes of a connection, from the first on.
fn message(id: u32, length: usize) -> Vec<u8> {
    (0..length as u64).map(|place| byte(id, place)).collect()
}

/// A number to wait for, which whoever has it must close, and what it is connected with.
struct Target {
    number: RawFd,
    call: Call,
    id: u32,
    peer: Option<OwnedFd>,
    address: Option<SocketAddr>,
    /// What the call is to read.
    message: Vec<u8>,
    /// How many bytes were sent beforehand, or since.
    sent: usize,
    /// What has been taken out of it.
    taken: Vec<u8>,
}

impl Target {
    /// One for which the call has to wait.
    fn closed_up(call: Call, id: u32, random: &mut Random) -> Target {
        let target = Target::new(call, id, random);
        match call {
            Call::Output(..) => {
                let bytes = [0; 1024];
                let mut sent = 0;
                loop {
                    let (place, length) = (bytes.as_ptr().cast(), bytes.len());
                    // SAFETY: the bytes are as many as it says.
                    match told(unsafe { libc::send(target.number, place, length, libc::MSG_DONTWAIT) }) {
                        Ok(count) => sent += count,
                        Err(_) => return Target { sent, ..target },
                    }
                }
            }
            _ => target,
        }
    }

    fn new(call: Call, id: u32, random: &mut Random) -> Target {
        let mut address = None;
        let (fd, peer) = match call {
            Call::Accept => {
                let name = format!("fibrant-lifetime-{}-{id}", std::process::id());
                let name = SocketAddr::from_abstract_name(name).unwrap();
                let listener = UnixListener::bind_addr(&name).unwrap();
                address = Some(name);
                (listener.into(), None)
            }
            Call::Output(..) => {
                let (ours, theirs) = streams();
                set_option(ours.as_raw_fd(), libc::SO_SNDBUF, 4096_i32);
                (ours, Some(theirs))
            }
            Call::Input(Input::Read | Input::Readv) | Call::Poll if random.one_in(3) => {
                let (reader, writer) = pipe();
                (reader, Some(writer))
            }
            _ => {
                let (ours, theirs) = streams();
                (ours, Some(theirs))
            }
        };
        Target {
            number: fd.into_raw_fd(),
            call,
            id,
            peer,
            address,
            message: message(id, call.length()),
            sent: 0,
            taken: Vec::new(),
        }
    }

    /// Makes it so that the call need not wait, or not yet again.
    fn open_up(&mut self) {
        match (self.call, &self.address, &self.peer) {
            (Call::Output(..), _, Some(peer)) => drain(peer, &mut self.taken),
            (Call::Accept, Some(address), None) => {
                let mut client = UnixStream::connect_addr(address).unwrap();
                client.write_all(&message(self.id, FRAME)).unwrap();
                self.peer = Some(client.into());
            }
            (_, _, Some(peer)) => {
                let piece = &self.message[self.sent..(self.sent + FRAME).min(self.message.len())];
                if !piece.is_empty() {
                    assert_eq!(output(Output::Write, peer.as_raw_fd(), piece), Ok(piece.len()));
                    self.sent += piece.len();
                }
            }
            _ => {}
        }
    }
}

/// What is done to a number that fibers wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    Close,
    CloseRange,
    Replace,
    Nothing,
}

const BLOWS: [Blow; 6] = [
    Blow::Replace,
    Blow::Replace,
    Blow::Replace,
    Blow::Close,
    Blow::CloseRange,
    Blow::Nothing,
];

impl Blow {
    fn deal(self, number: RawFd, decoy: &OwnedFd) {
        match self {
            Blow::Close => close(number),
            Blow::CloseRange => {
                // SAFETY: numbers; the caller owns them.
                let result = unsafe { libc::close_range(number as _, number as _, 0) };
                assert_eq!(result, 0, "close_range: {}", io::Error::last_os_error());
            }
            Blow::Replace => replace(number, decoy),
            Blow::Nothing => {}
        }
    }

    /// Whether the number is still the caller's to close.
    fn leaves_it_open(self) -> bool {
        matches!(self, Blow::Replace | Blow::Nothing)
    }
}

/// A fiber waits for a number, which is closed or replaced, perhaps just when there is something: it gets what is its own, or
/// `EBADF`, and touches nothing else. `aim` is how long a blow waits after that, and comes closer to the moment in which the
/// fiber looks.
///
/// A sniper does nothing but replace what is read just when it is read.
fn evict(fire: &Arc<Fire>, random: &mut Random, place: Place, is_sniper: bool, aim: &mut [u64; CALLS.len()]) {
    let which = random.below(if is_sniper { 3 } else { CALLS.len() });
    let call = CALLS[which];
    let aim = &mut aim[which];
    let mut target = Target::closed_up(call, fire.connection(), random);
    // What may come in its place is ready at once.
    let mut decoy = Target::new(call, fire.connection(), random);
    if !matches!(call, Call::Output(..)) {
        (0..call.length()).step_by(FRAME).for_each(|_| decoy.open_up());
    }
    // SAFETY: it was made above and nobody else has it.
    let decoy_fd = unsafe { OwnedFd::from_raw_fd(decoy.number) };
    let may_be_pipe = matches!(call, Call::Input(Input::Read | Input::Readv));
    let limit = (!may_be_pipe && !is_sniper && random.one_in(6)).then(|| random.milliseconds(15));
    if !may_be_pipe && call != Call::Poll {
        set_timeout(target.number, libc::SO_RCVTIMEO, limit);
        set_timeout(target.number, libc::SO_SNDTIMEO, limit);
    }

    let (number, id) = (target.number, target.id);
    let fiber = [fire.spawn(place, random, move || call.make(number, id, limit))];
    fire.settle(&fiber);
    if is_sniper && random.one_in(16) {
        thread::sleep(UNAIDED);
    }
    let blow = random.of(&BLOWS[..if is_sniper { 1 } else { BLOWS.len() }]);
    let opens = blow == Blow::Nothing || is_sniper || !random.one_in(4);
    let aimed = Duration::from_nanos(match call.length() {
        FRAME => *aim - *aim / 8 + random.next() % (*aim / 4),
        // It looks and waits many times, until it has everything.
        _ => random.next() % *aim,
    });
    if opens {
        let start = Instant::now();
        loop {
            target.open_up();
            match place {
                _ if blow == Blow::Nothing => thread::sleep(Duration::from_micros(20)),
                Place::Thread => std::hint::spin_loop(),
                _ => fibrant::yield_now(),
            }
            let is_over = match place {
                _ if blow == Blow::Nothing => fiber[0].is_finished(),
                Place::Thread => start.elapsed() >= aimed,
                _ => random.one_in(2),
            };
            if is_over {
                break;
            }
        }
    }
    blow.deal(number, &decoy_fd);
    let [fiber] = fiber;
    let (result, bytes) = fiber.join().unwrap();
    if blow.leaves_it_open() {
        close(number);
    }
    if opens && blow != Blow::Nothing {
        // Too late if it has what it wanted.
        let is_late = result.is_ok_and(|count| count == call.length() || call == Call::Accept);
        *aim = (if is_late {
            *aim - *aim / 16
        } else {
            *aim + *aim / 16
        })
        .clamp(2_000, 5_000_000);
    }

    let case = format!("{call:?} from {place:?}, limit {limit:?}, opened: {opens}, {blow:?}: {result:?}");
    match (call, result) {
        (_, Err(libc::EBADF)) => assert_ne!(blow, Blow::Nothing, "{case}"),
        (Call::Poll, Ok(0)) | (_, Err(libc::EAGAIN)) => assert!(limit.is_some(), "{case}"),
        // The number is ready, whatever it stands for by now, or it stands for nothing.
        (Call::Poll, Ok(1)) => assert!(opens || blow != Blow::Nothing, "{case}"),
        (Call::Accept, Ok(accepted)) => {
            // SAFETY: it is new, and ours.
            let mut stream = unsafe { UnixStream::from_raw_fd(accepted as RawFd) };
            let mut bytes = [0; FRAME];
            stream.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, *message(id, FRAME), "a foreign connection: {case}");
        }
        (Call::Output(..), Ok(count @ 1..)) => {
            drain(target.peer.as_ref().unwrap(), &mut target.taken);
            assert!(
                target.taken[target.sent..] == message(id, count),
                "{} bytes have come: {case}",
                target.taken.len() - target.sent
            );
            assert!(
                count == call.length() || blow != Blow::Nothing || limit.is_some(),
                "{case}"
            );
        }
        (Call::Input(_) | Call::Whole, Ok(count @ 1..)) => {
            assert!(bytes[..count] == message(id, count), "a foreign byte: {case}");
            assert!(count <= target.sent, "{case}");
            assert!(
                count == call.length() || blow != Blow::Nothing || limit.is_some(),
                "{case}"
            );
        }
        _ => panic!("{case}"),
    }
    if let Call::Output(..) = call {
        drain(decoy.peer.as_ref().unwrap(), &mut decoy.taken);
        assert_eq!(decoy.taken.len(), 0, "bytes went to a foreigner: {case}");
    }
}

/// Several fibers wait for one number, and fewer datagrams come: each wakes one of them. The others learn that the number is
/// closed.
fn crowd(fire: &Arc<Fire>, random: &mut Random, place: Place) {
    let id = fire.connection();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let (decoy, decoys_peer) = UnixDatagram::pair().unwrap();
    decoys_peer.send(&frame(fire.connection(), 0)).unwrap();
    let number = ours.into_raw_fd();
    let count = 2 + random.below(4);
    let fibers: Vec<_> = (0..count)
        .map(|_| {
            let how = random.of(&[Input::Read, Input::Recv, Input::Recvmsg]);
            fire.spawn(place, random, move || {
                let mut bytes = [0; FRAME];
                (input(how, number, &mut bytes, 0), bytes)
            })
        })
        .collect();
    // They look as well, but take nothing, so they must let the others have a look.
    let lookers: Vec<_> = (0..random.below(3))
        .map(|_| fire.spawn(place, random, move || poll(number, libc::POLLIN, None)))
        .collect();
    fire.settle(&fibers);
    fire.settle(&lookers);
    if random.one_in(2) {
        thread::sleep(UNAIDED);
    }
    let datagrams = random.below(count + 1);
    for datagram in 0..datagrams {
        theirs.send(&frame(id, datagram as u32)).unwrap();
        if random.one_in(4) {
            thread::sleep(Duration::from_micros(10));
        }
    }
    while fibers.iter().filter(|fiber| fiber.is_finished()).count() < datagrams {
        glance();
    }
    // Those who have looked in vain are about to wait again: that is the moment.
    (0..random.below(100)).for_each(|_| std::hint::spin_loop());
    let blow = random.of(&[Blow::Close, Blow::CloseRange, Blow::Replace]);
    blow.deal(number, &OwnedFd::from(decoy));
    let mut come = vec![false; datagrams];
    let mut ended = 0;
    for fiber in fibers {
        match fiber.join().unwrap() {
            (Err(libc::EBADF), _) => ended += 1,
            (Ok(FRAME), bytes) => {
                let which = (0..datagrams).find(|&datagram| bytes == frame(id, datagram as u32));
                let which = which.unwrap_or_else(|| panic!("foreign bytes: {bytes:?}"));
                assert!(!std::mem::replace(&mut come[which], true), "twice the same");
            }
            other => panic!("{blow:?} gives {other:?}"),
        }
    }
    assert_eq!(
        (come.iter().filter(|&&come| come).count(), ended),
        (datagrams, count - datagrams)
    );
    for looker in lookers {
        let seen = looker.join().unwrap();
        assert!(
            matches!(seen, Ok(1) | Err(libc::EBADF)),
            "{blow:?} gives {seen:?}"
        );
    }
    if blow.leaves_it_open() {
        close(number);
    }
}

/// A number that is known to the runtime gets another file without its knowledge: who waits for that is woken all the same.
fn heal(fire: &Arc<Fire>, random: &mut Random, place: Place) {
    let old_id = fire.connection();
    let (old, old_peer) = streams();
    set_timeout(old.as_raw_fd(), libc::SO_RCVTIMEO, Some(Duration::from_millis(1)));
    let number = old.into_raw_fd();
    let registering = fire.spawn(place, random, move || {
        input(Input::Recv, number, &mut [0; FRAME], 0)
    });
    assert_eq!(registering.join().unwrap(), Err(libc::EAGAIN));
    // Sometimes the old file lives on, and with it its registration, whose events nobody can stop.
    // SAFETY: a copy of a descriptor of ours.
    let old_file = random
        .one_in(2)
        .then(|| unsafe { OwnedFd::from_raw_fd(libc::dup(number)) });

    let id = fire.connection();
    let (ours, theirs) = streams();
    let (number, ours) = if random.one_in(2) {
        secret::put(&ours, number);
        drop(ours);
        // SAFETY: the number is ours, and so is the file that has come in its place.
        (number, unsafe { OwnedFd::from_raw_fd(number) })
    } else {
        // SAFETY: the number is ours.
        secret::close(unsafe { OwnedFd::from_raw_fd(number) });
        // Most often this one has the lowest number, which is that.
        let (new, _) = pipe();
        replace(new.as_raw_fd(), &ours);
        (new.as_raw_fd(), new)
    };
    let reader = [fire.spawn(place, random, move || {
        let mut bytes = [0; FRAME];
        (input(Input::Read, number, &mut bytes, 0), bytes)
    })];
    fire.settle(&reader);
    if let Some(old_file) = old_file {
        assert_eq!(
            output(Output::Write, old_peer.as_raw_fd(), &frame(old_id, 0)),
            Ok(FRAME)
        );
        thread::sleep(Duration::from_micros(50));
        drop(old_file);
    }
    assert_eq!(
        output(Output::Write, theirs.as_raw_fd(), &frame(id, 0)),
        Ok(FRAME)
    );
    let [reader] = reader;
    assert_eq!(reader.join().unwrap(), (Ok(FRAME), frame(id, 0)));
    drop(ours);
}

/// Plays until the fire is over.
fn play(fire: &Arc<Fire>, name: &str, place: Place, rounds: usize, mut random: Random) {
    let mut aim = [20_000; CALLS.len()];
    while !fire.is_over.load(Relaxed) {
        match name {
            "converse" => converse(fire, &mut random),
            "evict" | "snipe" => evict(fire, &mut random, place, name == "snipe", &mut aim),
            "crowd" => crowd(fire, &mut random, place),
            _ => heal(fire, &mut random, place),
        }
        fire.rounds[rounds].fetch_add(1, Relaxed);
    }
}

/// Sees to it that every player gets on, for so long; then until all have ended.
fn watch(fire: &Fire, names: &[String], time: Duration, ended: impl Fn() -> bool) {
    let start = Instant::now();
    let mut seen = vec![(0, start); names.len()];
    while start.elapsed() < time || !ended() {
        fire.is_over.store(start.elapsed() >= time, Relaxed);
        for (index, (rounds, since)) in seen.iter_mut().enumerate() {
            let now = fire.rounds[index].load(Relaxed);
            if now != *rounds {
                (*rounds, *since) = (now, Instant::now());
            }
            assert!(
                since.elapsed() < HANGS || (fire.is_over.load(Relaxed) && start.elapsed() < time + HANGS),
                "{} hangs after {rounds} rounds\n{}",
                names[index],
                fire.runtime.dump()
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// How many sockets and pipes are open. The runtime keeps none of them; it has other kinds for itself.
fn open_descriptors() -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    let names = targets.map(|target| target.to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("socket:") || name.starts_with("pipe:"))
        .count()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn descriptors_under_fire() {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = variable(SEED).unwrap_or(clock.as_nanos() as u64);
    // The first thing that goes wrong ends the process: those who wait for the one that failed would never end.
    std::panic::set_hook(Box::new(move |panic| {
        // Not eprintln: the harness would keep that for a report that never comes.
        let _ = writeln!(io::stderr(), "with {SEED}={seed}: {panic}");
        std::process::abort();
    }));
    let mut random = Random(seed | 1).fork();
    let before = open_descriptors();
    for (workers, seconds, players) in FIRE {
        let time = Duration::from_secs(variable(SECONDS).unwrap_or(seconds));
        let runtime = Builder::new()
            .workers(workers)
            .stack_size(64 << 10)
            .build()
            .unwrap();
        let fire = Arc::new(Fire {
            runtime: runtime.handle(),
            workers,
            is_over: AtomicBool::new(false),
            connections: AtomicU32::new(1),
            rounds: std::array::from_fn(|_| AtomicU64::new(0)),
        });
        let (mut fibers, mut threads, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for &(name, place, count) in players {
            for _ in 0..count {
                let (fire, own, rounds) = (Arc::clone(&fire), random.fork(), names.len());
                names.push(format!("{name} from {place:?}"));
                let play = move || play(&fire, name, place, rounds, own);
                if place == Place::Thread {
                    threads.push(thread::spawn(play));
                } else {
                    fibers.push(runtime.spawn_on(rounds % workers, play));
                }
            }
        }
        watch(&fire, &names, time, || {
            fibers.iter().all(JoinHandle::is_finished) && threads.iter().all(thread::JoinHandle::is_finished)
        });
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        println!(
            "{workers} workers, {} waits for descriptors",
            runtime.stats().descriptor_waits
        );
        for (name, rounds) in names.iter().zip(&fire.rounds) {
            let rounds = rounds.load(Relaxed);
            println!("{rounds:>8} rounds of {name}");
            assert!(rounds > 0, "{name} has done nothing");
        }
        // Nobody waits any more, and no deadline is left.
        patience::eventually("everything has ended", || {
            let dump = runtime.dump();
            dump.fibers.is_empty() && dump.workers.iter().all(|worker| worker.timers == 0)
        });
        runtime.stop().unwrap();
    }
    drop(std::panic::take_hook());
    assert_eq!(open_descriptors(), before, "nothing was left open");
}
