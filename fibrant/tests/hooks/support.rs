//! What the bodies share: the comparison itself, a gate that opens when a fiber waits, and short ways to common things.

use crate::patience::Watchdog;
use fibrant::runtime::{Builder, Handle, Runtime};
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// How often fibers of a runtime have waited.
pub fn waits(runtime: &Handle) -> u64 {
    let stats = runtime.stats();
    let offloads: u64 = runtime.hook_stats().iter().map(|hook| hook.offloads).sum();
    stats.descriptor_waits + stats.sleeps + offloads
}

/// Something to call on a thread, that returns when the fiber that made it waits; or a little later, if that is none.
pub fn gate() -> impl FnOnce() + Send {
    let runtime = Runtime::current();
    let before = runtime.as_ref().map_or(0, waits);
    move || match runtime {
        Some(runtime) => {
            let start = Instant::now();
            while waits(&runtime) == before {
                assert!(start.elapsed() < Duration::from_secs(20), "it does not wait");
                thread::sleep(ms(1));
            }
        }
        None => thread::sleep(ms(20)),
    }
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

/// Runs a body in a thread and in fibers, and compares.
#[track_caller]
pub fn same<T: Debug + PartialEq + Send + 'static>(waits: bool, body: fn() -> T) {
    let watchdog = Watchdog::new();
    let expected = thread::spawn(body).join().unwrap();
    in_fibers(&watchdog, waits, &expected, body);
}

/// Runs a body in fibers only, where a thread would have no end: the one deliberate difference.
#[track_caller]
pub fn other_than_a_thread<T: Debug + PartialEq + Send + 'static>(waits: bool, expected: T, body: fn() -> T) {
    in_fibers(&Watchdog::new(), waits, &expected, body);
}

#[track_caller]
fn in_fibers<T: Debug + PartialEq + Send + 'static>(
    watchdog: &Watchdog,
    waits: bool,
    expected: &T,
    body: fn() -> T,
) {
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).build().unwrap();
        watchdog.show(&runtime);
        assert_eq!(
            &runtime.spawn(body).join().unwrap(),
            expected,
            "{workers} workers"
        );
        assert_eq!(self::waits(&runtime.handle()) > 0, waits, "whether it waited");
        runtime.stop().unwrap();
    }
}

/// Makes a test of each body, and a list of their names. A line is `name, whether it waits, body;`. Where a fiber deliberately
/// does not do what a thread does, what it comes to stands before the body: `name, true => result, body;`.
macro_rules! bodies {
    ($($name:ident, $waits:literal $(=> $expected:expr)?, $body:expr;)*) => {
        $(
            #[test]
            fn $name() {
                bodies!(@run $waits $(=> $expected)?, $body);
            }
        )*

        pub const BODIES: &[&str] = &[$(stringify!($name),)*];
    };
    (@run $waits:literal, $body:expr) => {
        $crate::support::same($waits, $body)
    };
    (@run $waits:literal => $expected:expr, $body:expr) => {
        $crate::support::other_than_a_thread($waits, $expected, $body)
    };
}
