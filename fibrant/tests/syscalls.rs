//! What a hooked call costs in system calls: one that is ready makes exactly the one that the C library would make, or the one
//! that says "do not block". Point 11 of the hooks' contract.
//!
//! The test runs itself once more as a child process, and traces it: a child that asks for its parent's number, with a label that
//! the kernel ignores, says that a call begins or ends.

mod common;
#[path = "common/patience.rs"]
mod patience;

use fibrant::runtime::Builder;
use patience::Watchdog;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The calls, each with the number of system calls that it may make in a fiber. In a thread each makes one.
const CALLS: [(&str, usize); 23] = [
    ("recv of a stream", 1),
    ("recvfrom of a stream", 1),
    ("recvmsg of a stream", 1),
    ("read of a stream", 1),
    ("readv of a stream", 1),
    ("send to a stream", 1),
    ("sendto to a stream", 1),
    ("sendmsg to a stream", 1),
    ("write to a stream", 1),
    ("writev to a stream", 1),
    ("read of a pipe", 1),
    ("readv of a pipe", 1),
    ("write to a pipe", 1),
    ("writev to a pipe", 1),
    ("TcpStream::read", 1),
    ("TcpStream::write", 1),
    ("UnixDatagram::recv", 1),
    ("UnixDatagram::send", 1),
    ("UdpSocket::recv", 1),
    ("UdpSocket::send", 1),
    ("poll", 1),
    // Its listener cannot be told not to block: it asks whether the user has, and whether it is ready.
    ("accept", 3),
    // The fiber is alone with its worker, so other threads get the processor.
    ("sched_yield", 1),
];

/// Set in a label when the call begins.
const BEGINS: usize = 1 << 20;

/// Set in a label when it runs in a fiber.
const IN_FIBER: usize = 1 << 16;

/// What marks them all.
const MARK: usize = 0x4649_4252 << 24;

/// Makes a call between two marks.
fn marked<R>(label: usize, call: impl FnOnce() -> R) -> R {
    let mark = |label: usize| {
        // SAFETY: asks for a number; the argument is ignored.
        unsafe { libc::syscall(libc::SYS_getppid, MARK | label) }
    };
    mark(label | BEGINS);
    let result = call();
    mark(label);
    result
}

/// The child: makes each call, which is ready, in a thread and in a fiber.
fn make_calls() {
    calls(0);
    let runtime = Builder::new().workers(1).build().unwrap();
    runtime.spawn(|| calls(IN_FIBER)).join().unwrap();
    runtime.stop().unwrap();
}

/// Makes each call once. `place` is part of the labels.
fn calls(place: usize) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let stream = ours.as_raw_fd();
    let (mut reader, mut writer) = io::pipe().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut accepted = listener.accept().unwrap().0;
    let (datagrams, datagrams_peer) = UnixDatagram::pair().unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(udp.local_addr().unwrap()).unwrap();
    let mut waiting = None;
    let mut bytes = [7; 8];
    for (index, (name, _)) in CALLS.into_iter().enumerate() {
        // Everything has something to read, and room.
        theirs.write_all(&[7; 8]).unwrap();
        writer.write_all(&[7; 8]).unwrap();
        accepted.write_all(&[7; 8]).unwrap();
        datagrams_peer.send(&[7; 8]).unwrap();
        udp.send(&[7; 8]).unwrap();
        if name == "accept" {
            waiting = Some(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            assert!(is_ready(listener.as_raw_fd(), 10_000));
        }
        // What is sent to a neighbour may take its time.
        assert!(is_ready(tcp.as_raw_fd(), 10_000), "before {name}");
        assert!(is_ready(udp.as_raw_fd(), 10_000), "before {name}");
        let pipe = (reader.as_raw_fd(), writer.as_raw_fd());
        let (place_of_bytes, length) = (bytes.as_mut_ptr(), bytes.len());
        let mut list = libc::iovec {
            iov_base: place_of_bytes.cast(),
            iov_len: length,
        };
        // SAFETY: all zero, but for its list, is a message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut list, 1);
        let (list, at) = (&raw const list, place_of_bytes.cast::<libc::c_void>());
        let (no_address, no_size) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut asked = libc::pollfd {
            fd: stream,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the bytes, the list of them and the message are local variables, and as long as they say.
        let moved = marked(place | index, || unsafe {
            match name {
                "recv of a stream" => libc::recv(stream, at, length, 0),
                "recvfrom of a stream" => libc::recvfrom(stream, at, length, 0, no_address, no_size),
                "recvmsg of a stream" => libc::recvmsg(stream, &mut message, 0),
                "read of a stream" => libc::read(stream, at, length),
                "readv of a stream" => libc::readv(stream, list, 1),
                "send to a stream" => libc::send(stream, at, length, 0),
                "sendto to a stream" => libc::sendto(stream, at, length, 0, no_address, 0),
                "sendmsg to a stream" => libc::sendmsg(stream, &message, 0),
                "write to a stream" => libc::write(stream, at, length),
                "writev to a stream" => libc::writev(stream, list, 1),
                "read of a pipe" => libc::read(pipe.0, at, length),
                "readv of a pipe" => libc::readv(pipe.0, list, 1),
                "write to a pipe" => libc::write(pipe.1, at, length),
                "writev to a pipe" => libc::writev(pipe.1, list, 1),
                "TcpStream::read" => count(tcp.read(&mut bytes)),
                "TcpStream::write" => count(tcp.write(&bytes)),
                "UnixDatagram::recv" => count(datagrams.recv(&mut bytes)),
                "UnixDatagram::send" => count(datagrams.send(&bytes)),
                "UdpSocket::recv" => count(udp.recv(&mut bytes)),
                "UdpSocket::send" => count(udp.send(&bytes)),
                "poll" => 8 * libc::poll(&mut asked, 1, -1) as isize,
                // Nothing of std's, which would close what it drops.
                "accept" => 8 * (libc::accept(listener.as_raw_fd(), no_address, no_size).min(1)) as isize,
                "sched_yield" => 8 * isize::from(libc::sched_yield() == 0),
                _ => unreachable!("{name}"),
            }
        });
        assert_eq!(moved, 8, "{name}");
        assert_eq!(bytes, [7; 8], "{name}");
        // Emptied by those who do not wait.
        drain(stream);
        drain(theirs.as_raw_fd());
        drain(tcp.as_raw_fd());
        drain(accepted.as_raw_fd());
        drain(datagrams.as_raw_fd());
        drain(datagrams_peer.as_raw_fd());
        drain(udp.as_raw_fd());
        while is_ready(reader.as_raw_fd(), 0) {
            reader.read_exact(&mut [0; 8]).unwrap();
        }
    }
    drop(waiting);
}

fn count(result: io::Result<usize>) -> isize {
    result.map_or(-1, |count| count as isize)
}

/// Whether there is something to read within so many milliseconds.
fn is_ready(fd: i32, milliseconds: i32) -> bool {
    let mut asked = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one element, a local variable.
    fibrant::hook::disabled(|| unsafe { libc::poll(&mut asked, 1, milliseconds) } == 1)
}

fn drain(socket: i32) {
    let mut bytes = [0; 64];
    // SAFETY: the bytes are as many as it says.
    while unsafe { libc::recv(socket, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) } > 0 {}
}

/// Runs a program to its end, and returns which system calls it has made between the two marks of each label.
fn trace(mut command: Command) -> HashMap<usize, Vec<u64>> {
    // SAFETY: asks the kernel to be traced by its parent, which a child may do.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    };
    // It is waited for below, with all its threads.
    #[allow(clippy::zombie_processes)]
    let child = command
        .stdout(Stdio::null())
        .spawn()
        .expect("a child may be traced: this test needs ptrace")
        .id() as libc::pid_t;
    let mut seen: HashMap<usize, Vec<u64>> = HashMap::new();
    // What each thread is in the middle of.
    let mut labels: HashMap<libc::pid_t, usize> = HashMap::new();
    let mut is_first = true;
    loop {
        let mut status = 0;
        // SAFETY: writes to a local variable.
        let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
        assert!(thread > 0, "{}", io::Error::last_os_error());
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            if thread == child {
                assert_eq!(status, 0, "the child failed");
                return seen;
            }
            continue;
        }
        let stop = libc::WSTOPSIG(status);
        let mut signal = 0;
        if std::mem::take(&mut is_first) {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            // SAFETY: numbers; the child is stopped.
            let set = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options) };
            assert_eq!(set, 0, "{}", io::Error::last_os_error());
        } else if stop == libc::SIGTRAP | 0x80 {
            if let Some((number, argument)) = entered(thread) {
                note(&mut seen, &mut labels, thread, number, argument);
            }
        } else if stop != libc::SIGTRAP && stop != libc::SIGSTOP {
            signal = stop; // the child's own
        }
        // SAFETY: numbers; the thread is stopped. If it is gone by now, waitpid says so.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, signal) };
    }
}

/// The system call that a stopped thread is about to make, and its first argument; none if it has just made one.
fn entered(thread: libc::pid_t) -> Option<(u64, u64)> {
    let mut information = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: writes to a local variable; all zero is a value of it.
    let information = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            thread,
            size,
            information.as_mut_ptr(),
        );
        information.assume_init()
    };
    (information.op == libc::PTRACE_SYSCALL_INFO_ENTRY).then(|| {
        // SAFETY: it is an entry.
        let entry = unsafe { information.u.entry };
        (entry.nr, entry.args[0])
    })
}

/// Keeps what happens between marks.
fn note(
    seen: &mut HashMap<usize, Vec<u64>>,
    labels: &mut HashMap<libc::pid_t, usize>,
    thread: libc::pid_t,
    number: u64,
    argument: u64,
) {
    let argument = argument as usize;
    if number == libc::SYS_getppid as u64 && argument & MARK == MARK {
        let label = argument & !MARK & !BEGINS;
        if argument & BEGINS != 0 {
            labels.insert(thread, label);
            seen.entry(label).or_default();
        } else {
            assert_eq!(labels.remove(&thread), Some(label), "it began on this thread");
        }
    } else if let Some(label) = labels.get(&thread) {
        seen.entry(*label).or_default().push(number);
    }
}

#[test]
fn a_call_that_is_ready_makes_one_system_call() {
    if common::case().is_some() {
        return make_calls();
    }
    let _watchdog = Watchdog::new();
    let seen = trace(common::command(
        "a_call_that_is_ready_makes_one_system_call",
        "calls",
        &[],
    ));
    println!(
        "{:<24} {:<12} in a fiber",
        "system calls, by number", "in a thread"
    );
    for (index, (name, most)) in CALLS.into_iter().enumerate() {
        let [thread, fiber] = [0, IN_FIBER].map(|place| seen.get(&(place | index)).expect("each was marked"));
        println!("{name:<24} {:<12} {fiber:?}", format!("{thread:?}"));
        assert_eq!(thread.len(), 1, "{name} in a thread: {thread:?}");
        assert!((1..=most).contains(&fiber.len()), "{name} in a fiber: {fiber:?}");
    }
}
