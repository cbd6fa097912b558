//! What the bodies share: the comparison itself, a gate that opens when a fiber waits, and short ways to common things.

use crate::common;
use crate::patience::{PATIENCE, Watchdog, eventually};
use fibrant::runtime::{Builder, Handle, Runtime};
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// How often fibers of a runtime have waited.
pub fn waits(runtime: &Handle) -> u64 {
    let stats = runtime.stats();
    let hooks = runtime.hook_stats();
    let offloads: u64 = hooks.iter().map(|hook| hook.offloads).sum();
    let by_number = hooks.iter().find(|hook| hook.name == "syscall");
    let is_lock = |name: &str| name.starts_with("pthread_") || name.starts_with("sem_");
    let locks: u64 = hooks
        .iter()
        .filter(|hook| is_lock(hook.name))
        .map(|hook| hook.parks)
        .sum();
    stats.descriptor_waits + stats.sleeps + offloads + by_number.map_or(0, |hook| hook.parks) + locks
}

/// Something to call on a thread, that returns when who made it waits, be it a fiber or a thread.
pub fn gate() -> impl FnOnce() + Send {
    let runtime = Runtime::current();
    let before = runtime.as_ref().map_or(0, waits);
    let thread = this_thread();
    move || match runtime {
        Some(runtime) => {
            let start = Instant::now();
            while waits(&runtime) == before {
                assert!(start.elapsed() < 2 * PATIENCE, "it does not wait");
                thread::sleep(ms(1));
            }
        }
        None => {
            let start = Instant::now();
            while !sleeps(thread) {
                assert!(start.elapsed() < 2 * PATIENCE, "it does not wait");
            }
        }
    }
}

fn this_thread() -> i32 {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() }
}

/// Whether a thread has slept in the kernel for a while, as far as one can see; or has ended.
fn sleeps(thread: i32) -> bool {
    // An emulator's threads sleep for other reasons, too, and for longer.
    let is_emulated = std::env::var_os("FIBRANT_TEST_RUNNER").is_some();
    let looks = if is_emulated { 50 } else { 4 };
    (0..looks).all(|_| {
        thread::sleep(ms(2));
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        // The state follows the name, which is in brackets.
        status.map_or(true, |status| {
            status
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" S"))
        })
    })
}

/// Something that goes on at the same time: a fiber where fibers are, a thread elsewhere.
pub enum Activity<T> {
    Thread(thread::JoinHandle<T>, Arc<AtomicI32>),
    Fiber(fibrant::JoinHandle<T>),
}

/// Begins another activity; a fiber is one of the worker that this is called on.
pub fn go<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Activity<T> {
    if Runtime::current().is_none() {
        return go_in_a_thread(f);
    }
    // Workers are named by their numbers.
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
    let worker = name.trim_end().rsplit('-').next().unwrap().parse().unwrap();
    Activity::Fiber(fibrant::Builder::new().worker(worker).spawn(f).unwrap())
}

/// Begins another activity; a fiber begins at any worker.
pub fn go_anywhere<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Activity<T> {
    if Runtime::current().is_some() {
        return Activity::Fiber(fibrant::spawn(f));
    }
    go_in_a_thread(f)
}

/// Begins a thread.
pub fn go_in_a_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Activity<T> {
    let number = Arc::new(AtomicI32::new(0));
    let told = Arc::clone(&number);
    let handle = thread::spawn(move || {
        told.store(this_thread(), Ordering::Relaxed);
        f()
    });
    Activity::Thread(handle, number)
}

impl<T> Activity<T> {
    pub fn join(self) -> T {
        match self {
            Activity::Thread(handle, _) => handle.join().unwrap(),
            Activity::Fiber(handle) => handle.join().unwrap(),
        }
    }

    /// Whether it waits, or is over already.
    fn waits(&self) -> bool {
        match self {
            Activity::Thread(_, number) => {
                let number = number.load(Ordering::Relaxed);
                number != 0 && sleeps(number)
            }
            Activity::Fiber(handle) => {
                let dump = Runtime::current().expect("in a fiber").dump();
                let fiber = dump.fibers.iter().find(|fiber| fiber.id == handle.id());
                fiber.map_or_else(|| handle.is_finished(), |fiber| fiber.wait.is_some())
            }
        }
    }

    pub fn is_over(&self) -> bool {
        match self {
            Activity::Thread(handle, _) => handle.is_finished(),
            Activity::Fiber(handle) => handle.is_finished(),
        }
    }

    /// Returns it when it waits.
    pub fn waiting(self) -> Activity<T> {
        eventually("an activity waits", || self.waits());
        self
    }
}

/// The first of so many descriptor numbers in a row that are nobody's: no file gets one of them unless it is put there. They
/// come from the upper end of what the process may have.
pub fn numbers(count: i32) -> RawFd {
    static LIMIT: Once = Once::new();
    static NEXT: AtomicI32 = AtomicI32::new(0);
    LIMIT.call_once(|| {
        // SAFETY: the limit is a local variable.
        unsafe {
            let mut limit = std::mem::zeroed::<libc::rlimit>();
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit.rlim_cur = limit.rlim_max;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
            NEXT.store(limit.rlim_cur.min(100_000) as i32, Ordering::Relaxed);
        }
    });
    NEXT.fetch_sub(count, Ordering::Relaxed) - count
}

/// Puts a file at a number of [`numbers`].
pub fn put(fd: impl Into<OwnedFd>, number: RawFd) -> RawFd {
    // SAFETY: nobody else uses that number.
    let result = unsafe { libc::dup3(fd.into().as_raw_fd(), number, libc::O_CLOEXEC) };
    assert_eq!(result, number);
    number
}

/// Closes a number of [`numbers`].
pub fn close(fd: RawFd) -> (isize, i32) {
    // SAFETY: nobody else uses that number.
    told(unsafe { libc::close(fd) } as isize)
}

/// Sends without waiting until nothing more goes in. Returns how much did.
pub fn fill(fd: RawFd) -> usize {
    let (block, mut sum) = ([7_u8; 1024], 0);
    loop {
        // SAFETY: the block has that length.
        match unsafe { libc::send(fd, block.as_ptr().cast(), block.len(), libc::MSG_DONTWAIT) } {
            ..=0 => return sum,
            sent => sum += sent as usize,
        }
    }
}

/// Sets an option of a socket.
pub fn set<T>(fd: RawFd, level: i32, name: i32, value: T) -> i32 {
    // SAFETY: the value has the size that is told.
    unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<T>() as u32) }
}

/// Sends a byte with a descriptor over a local socket.
pub fn pass(socket: RawFd, fd: RawFd) {
    let mut byte = *b"f";
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 4];
    // SAFETY: the message's parts are local variables, and the control data has room for one descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        assert_eq!(libc::sendmsg(socket, &message, 0), 1);
    }
}

/// Receives a descriptor from a local socket.
pub fn passed(socket: RawFd) -> OwnedFd {
    let mut byte = [0];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 4];
    // SAFETY: as above; what is received is a descriptor of ours from then on.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        assert_eq!(libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC), 1);
        let header = libc::CMSG_FIRSTHDR(&message);
        assert!(!header.is_null());
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned())
    }
}

/// Connects to an address of the Internet.
pub fn connect_to(fd: RawFd, address: SocketAddr) -> (isize, i32) {
    let SocketAddr::V4(address) = address else {
        panic!("{address} is not of version 4")
    };
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as _,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: address.ip().to_bits().to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the name is a local variable of that size.
    told(unsafe { libc::connect(fd, (&raw const name).cast(), size_of_val(&name) as u32) } as isize)
}

/// An address that refuses connections as long as the first is kept: whoever has it does not listen. A number that is nobody's
/// could become another test's at any moment.
pub fn nobody_listens() -> (OwnedFd, SocketAddr) {
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as _,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: Ipv4Addr::LOCALHOST.to_bits().to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: makes a descriptor; the name is a local variable of that size.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let socket = OwnedFd::from_raw_fd(fd);
        assert_eq!(
            libc::bind(fd, (&raw const name).cast(), size_of_val(&name) as u32),
            0
        );
        TcpListener::from(socket)
    };
    let address = socket.local_addr().unwrap();
    (socket.into(), address)
}

/// An address that refuses datagrams as long as the first is kept: whoever has it receives its own only.
pub fn nobody_receives() -> (OwnedFd, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    socket.connect(address).unwrap();
    (socket.into(), address)
}

/// Limits how long receiving may take.
pub fn set_receive_timeout(fd: RawFd, time: Duration) -> i32 {
    let time = libc::timeval {
        tv_sec: time.as_secs() as i64,
        tv_usec: time.subsec_micros().into(),
    };
    set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time)
}

pub fn set_errno(error: i32) {
    // SAFETY: the address is that of this thread's variable.
    unsafe { *libc::__errno_location() = error };
}

pub fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Does something when the fiber waits, from a thread. What it returns lives until that is dropped.
pub fn later<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    let gate = gate();
    thread::spawn(move || {
        gate();
        f()
    })
}

/// What a call of C's gave: its result, and `errno` if it failed.
pub fn told(result: isize) -> (isize, i32) {
    let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    (result, if result < 0 { error } else { 0 })
}

pub fn kind<T>(result: io::Result<T>) -> Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

pub fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: writes two numbers, which are descriptors of ours from then on.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

/// A child that runs a line of shell, with pipes.
pub fn shell(line: &str) -> std::process::Child {
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub fn streams() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

pub fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

pub fn receive(fd: RawFd, buffer: &mut [u8], flags: i32) -> (isize, i32) {
    // SAFETY: the buffer is as long as it says.
    told(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) })
}

/// A body. What it comes to is a text, so that all have one type: otherwise the compiler makes everything below for each of them.
type Body = Arc<dyn Fn() -> String + Send + Sync>;

/// Runs a body in a thread and in fibers, and compares.
#[track_caller]
pub fn same(waits: bool, body: fn() -> String) {
    let watchdog = Watchdog::new();
    let expected = thread::spawn(body).join().unwrap();
    in_fibers(&watchdog, waits, expected, Arc::new(body));
}

/// Runs a body in fibers only, where a thread would have no end: the one deliberate difference.
#[track_caller]
pub fn other_than_a_thread<T: Debug + 'static>(waits: bool, expected: T, body: fn() -> T) {
    let body = Arc::new(move || format!("{:?}", body()));
    in_fibers(&Watchdog::new(), waits, format!("{expected:?}"), body);
}

#[track_caller]
fn in_fibers(watchdog: &Watchdog, waits: bool, expected: String, body: Body) {
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).build().unwrap();
        watchdog.show(&runtime);
        let body = Arc::clone(&body);
        let spawned = move || body();
        assert_eq!(
            runtime.spawn(spawned).join().unwrap(),
            expected,
            "{workers} workers"
        );
        assert_eq!(self::waits(&runtime.handle()) > 0, waits, "whether it waited");
        eventually("no deadline is left behind", || {
            runtime.dump().workers.iter().all(|worker| worker.timers == 0)
        });
        runtime.stop().unwrap();
    }
}

/// Whether this is a process for this test alone. If not, the test is run in one, and has to succeed.
pub fn alone(test: &str) -> bool {
    let (_, test) = test.split_once("::").expect("the binary's name comes first");
    if common::case().is_some() {
        return true;
    }
    common::child(test, "alone", &[]).succeeded();
    false
}

/// Makes a test of each body, and a list of their names. A line is `name, whether it waits, body;`. What would disturb other
/// tests has a process of its own: `name, true alone, body;`. Where a fiber deliberately does not do what a thread does, what it
/// comes to stands before the body: `name, true => result, body;`. One that shows a known fault is ignored, with the reason.
macro_rules! bodies {
    ($($(#[ignore = $reason:literal])? $name:ident, $waits:literal $($alone:ident)? $(=> $expected:expr)?, $body:expr;)*) => {
        $(
            #[test]
            $(#[ignore = $reason])?
            fn $name() {
                $(if !$crate::support::$alone(concat!(module_path!(), "::", stringify!($name))) {
                    return;
                })?
                bodies!(@run $waits $(=> $expected)?, $body);
            }
        )*

        /// Those that count: one that is ignored does not.
        pub const BODIES: &[&str] = &[$(bodies!(@name $($reason)? $name),)*];
    };
    (@name $name:ident) => {
        stringify!($name)
    };
    (@name $reason:literal $name:ident) => {
        ""
    };
    (@run $waits:literal, $body:expr) => {
        $crate::support::same($waits, || format!("{:?}", ($body)()))
    };
    (@run $waits:literal => $expected:expr, $body:expr) => {
        $crate::support::other_than_a_thread($waits, $expected, $body)
    };
}
