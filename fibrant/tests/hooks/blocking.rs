//! Blocking and non-blocking: points 8 to 10.

use crate::support::*;
use fibrant::hook::disabled;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::thread;

/// What the user has set, as a system call that nothing hooks tells.
fn flags(fd: RawFd) -> i64 {
    // SAFETY: asks for a number.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) }
}

/// Sets or clears `O_NONBLOCK`, as std does.
fn set_nonblocking(fd: RawFd, yes: bool) -> i32 {
    let mut value = i32::from(yes);
    // SAFETY: the value is a number.
    unsafe { libc::ioctl(fd, libc::FIONBIO, &raw mut value) }
}

/// The flags of a descriptor that is its standard input, as another process sees them.
fn flags_elsewhere(fd: OwnedFd) -> String {
    let mut command = Command::new("grep");
    command
        .args(["flags", "/proc/self/fdinfo/0"])
        .stdin(Stdio::from(fd));
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

fn copy(fd: &impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

bodies! {
    p08_flags_are_what_the_user_set, true, || {
        let (mut ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        // SAFETY: asks for a number.
        let flags = move || unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let before = flags();
        later(move || theirs.write_all(b"x").unwrap());
        let read = kind(ours.read(&mut [0; 4]));
        (read, flags() == before, before & libc::O_NONBLOCK)
    };
    p08_what_is_set_by_one_call_is_seen_by_the_other, true, || {
        let (mut ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let set = set_nonblocking(fd, true);
        // SAFETY: numbers.
        let (seen, cleared) = unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_SETFL, 0)) };
        let refused = kind(theirs.set_nonblocking(true).and_then(|()| theirs.read(&mut [0; 4])));
        later(move || theirs.write_all(b"x").unwrap());
        let read = kind(ours.read(&mut [0; 4]));
        (set, seen & libc::O_NONBLOCK, cleared, refused, read, flags(fd) & i64::from(libc::O_NONBLOCK))
    };
    p08_another_process_sees_nothing_of_a_wait, true, || {
        let (mut ours, mut theirs) = streams();
        let shared = copy(&ours);
        let seen = later(move || {
            let seen = flags_elsewhere(shared);
            theirs.write_all(b"x").unwrap();
            seen
        });
        (kind(ours.read(&mut [0; 4])), seen.join().unwrap())
    };
    p08_a_pipe_that_is_written_to_stays_as_it_is, true, || {
        let (reader, writer) = pipe();
        let fds = [reader.as_raw_fd(), writer.as_raw_fd()];
        let seen = later(move || {
            let seen = fds.map(flags);
            let mut all = Vec::new();
            File::from(reader).read_to_end(&mut all).unwrap();
            (seen, all.len())
        });
        let written = kind(File::from(writer).write(&[1; 100_000]));
        (written, seen.join().unwrap())
    };
    p08_a_listener_is_never_changed, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (fd, address) = (listener.as_raw_fd(), listener.local_addr().unwrap());
        let seen = later(move || {
            // Looks very often while connections come and are accepted.
            let streams: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
            (0..500).map(|_| flags(fd)).chain(streams.iter().map(|_| flags(fd))).collect::<std::collections::BTreeSet<_>>()
        });
        let accepted = (0..20).filter(|_| listener.accept().is_ok()).count();
        (accepted, seen.join().unwrap())
    };
    p08_a_connect_that_waits_shows_no_flag, true, || {
        // A queue that is full: the connection is neither made nor refused.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: sets the length of its queue anew.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let _first = TcpStream::connect(address).unwrap();
        // SAFETY: makes a descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)) };
        let time = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, time);
        let fd = socket.as_raw_fd();
        // SAFETY: asks for a number.
        let seen = later(move || (unsafe { libc::fcntl(fd, libc::F_GETFL) }, flags(fd)));
        (connect_to(fd, address), seen.join().unwrap())
    };

    p09_a_nonblocking_read_does_not_wait, false, || {
        let (mut ours, _theirs) = streams();
        ours.set_nonblocking(true).unwrap();
        kind(ours.read(&mut [0; 4]))
    };
    p09_dontwait_does_not_wait, false, || {
        let (ours, _theirs) = streams();
        receive(ours.as_raw_fd(), &mut [0; 4], libc::MSG_DONTWAIT)
    };
    p09_a_nonblocking_accept_does_not_wait, false, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        kind(listener.accept().map(drop))
    };
    p09_an_accepted_socket_is_blocking, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        later(move || {
            let _stream = TcpStream::connect(address).unwrap();
            thread::sleep(ms(20));
        });
        let (mut accepted, _) = listener.accept().unwrap();
        kind(accepted.read(&mut [0; 4]))
    };
    p09_flags_of_accept4_are_honoured, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = later(move || [0; 2].map(|_| TcpStream::connect(address).unwrap()));
        // SAFETY: asks for no address; what is accepted is owned from then on.
        let accepted = [0, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC].map(|asked| unsafe {
            OwnedFd::from_raw_fd(libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), asked))
        });
        let _peer = peer.join().unwrap();
        // SAFETY: asks for numbers.
        let seen = accepted.each_ref().map(|fd| unsafe { (libc::fcntl(fd.as_raw_fd(), libc::F_GETFL), libc::fcntl(fd.as_raw_fd(), libc::F_GETFD)) });
        (seen, receive(accepted[1].as_raw_fd(), &mut [0; 4], 0))
    };
    p09_a_nonblocking_listeners_sockets_are_blocking, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // Who connects may know of it before the listener does.
        let mut asked = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one element, a local variable.
        assert_eq!(disabled(|| unsafe { libc::poll(&mut asked, 1, -1) }), 1);
        let (mut accepted, _) = listener.accept().unwrap();
        later(move || peer.write_all(b"data").unwrap());
        (flags(accepted.as_raw_fd()) & i64::from(libc::O_NONBLOCK), kind(accepted.read(&mut [0; 8])))
    };
    p09_a_nonblocking_connect_does_not_wait, false, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: sets the length of its queue anew.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let _first = disabled(|| TcpStream::connect(address).unwrap());
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: makes a descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0)) };
        [0; 2].map(|_| connect_to(socket.as_raw_fd(), address))
    };
    p09_a_nonblocking_write_gives_what_went_in, false, || {
        let (ours, _theirs) = streams();
        ours.set_nonblocking(true).unwrap();
        let written = (&ours).write(&vec![1; 10_000_000]).map(|written| written > 0 && written < 10_000_000);
        let (_reader, writer) = pipe();
        set_nonblocking(writer.as_raw_fd(), true);
        let mut writer = File::from(writer);
        (kind(written), kind((&ours).write(&[1; 100_000])), kind(writer.write(&[1; 1_000_000])), kind(writer.write(&[1; 4096])))
    };
    p09_dontwait_overrides_waitall, false, || {
        let (ours, mut theirs) = disabled(tcp);
        theirs.write_all(b"1234").unwrap();
        let fd = ours.as_raw_fd();
        // It may be under way.
        while receive(fd, &mut [0; 4], libc::MSG_PEEK | libc::MSG_DONTWAIT).0 != 4 {}
        let mut buffer = [0; 8];
        [0; 2].map(|_| (receive(fd, &mut buffer, libc::MSG_WAITALL | libc::MSG_DONTWAIT), buffer))
    };
    p09_what_is_no_socket_is_nonblocking, false, || {
        let (reader, _writer) = pipe();
        set_nonblocking(reader.as_raw_fd(), true);
        // SAFETY: make descriptors.
        let others = unsafe {
            [
                libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC),
                libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC),
                libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC),
                libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK),
            ]
            .map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let read = |fd: RawFd| {
            let mut buffer = [0; 64];
            // SAFETY: the buffer has that length.
            told(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), 64) })
        };
        (read(reader.as_raw_fd()), others.each_ref().map(|fd| read(fd.as_raw_fd())))
    };

    p10_a_read_that_waits_goes_on_waiting, true, || {
        let (mut ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        later(move || {
            let set = set_nonblocking(fd, true);
            thread::sleep(ms(15));
            theirs.write_all(b"data").unwrap();
            (set, theirs)
        });
        // Once the flag is there, the next call does not wait.
        let first = kind(ours.read(&mut [0; 8]));
        (first, flags(fd) & i64::from(libc::O_NONBLOCK))
    };
    p10_a_write_that_waits_goes_on_to_the_end, true, || {
        let (mut ours, mut theirs) = tcp();
        let fd = ours.as_raw_fd();
        let reader = later(move || {
            set_nonblocking(fd, true);
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            all.len()
        });
        let written = kind(ours.write(&vec![1; 12_000_000]));
        drop(ours);
        (written, reader.join().unwrap())
    };
    p10_a_call_that_waits_for_all_goes_on, true, || {
        let (ours, mut theirs) = tcp();
        let fd = ours.as_raw_fd();
        later(move || {
            for part in [b"1234", b"5678", b"9abc"] {
                set_nonblocking(fd, true);
                theirs.write_all(part).unwrap();
                thread::sleep(ms(5));
            }
        });
        let mut buffer = [0; 12];
        (receive(fd, &mut buffer, libc::MSG_WAITALL), buffer)
    };
    p10_arguments_have_their_full_width, false, || {
        let (reader, _writer) = pipe();
        let fd = reader.as_raw_fd();
        // On the heap, whose addresses do not fit into 32 bits.
        // SAFETY: all zero, but for what is said, is a lock on the whole file.
        let mut lock: Box<libc::flock> = Box::new(unsafe { std::mem::zeroed() });
        lock.l_type = libc::F_WRLCK as _;
        let file = File::open("/proc/self/exe").unwrap();
        let mut waiting = Box::new(77);
        // SAFETY: what is pointed to is there; the rest is numbers.
        unsafe {
            let size = libc::fcntl(fd, libc::F_SETPIPE_SZ, 1 << 16);
            let sizes = (size, libc::fcntl(fd, libc::F_GETPIPE_SZ));
            let asked = libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut *lock);
            let owner = (libc::fcntl(fd, libc::F_SETOWN, libc::getpid()), libc::fcntl(fd, libc::F_GETOWN) == libc::getpid());
            let ioctl = libc::ioctl(fd, libc::FIONREAD, &raw mut *waiting);
            (sizes, asked, i32::from(lock.l_type), owner, ioctl, *waiting, told(libc::ioctl(fd, 0x7fff_1234_u32 as _, 0) as isize))
        }
    };
    p10_commands_of_fcntl_reach_the_kernel, false, || {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        // SAFETY: numbers, and a descriptor that is closed again.
        unsafe {
            let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 700);
            let flags = (libc::fcntl(copy, libc::F_GETFD), libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK));
            let both = (libc::fcntl(copy, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFL));
            (copy >= 700, flags, both, libc::close(copy), told(libc::fcntl(copy, libc::F_GETFD) as isize), told(libc::fcntl(fd, 9999) as isize))
        }
    };
}
