//! Hooks, differentially: each body runs in a thread, where nothing is hooked, and in a fiber, and must come to the same. Each
//! names the point of the contract that it is about, and says whether the fiber has to wait in it.

#[path = "common/patience.rs"]
mod patience;

use fibrant::runtime::{Builder, Handle, Runtime};
use patience::Watchdog;
use std::fmt::Debug;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// How often fibers of a runtime have waited.
fn waits(runtime: &Handle) -> u64 {
    let stats = runtime.stats();
    stats.descriptor_waits + stats.sleeps
}

/// Something to call on a thread, that returns when the fiber that made it waits; or a little later, if that is none.
fn gate() -> impl FnOnce() + Send {
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
fn later<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    let gate = gate();
    thread::spawn(move || {
        gate();
        f()
    })
}

/// What a call of C's gave: its result, and `errno` if it failed.
fn told(result: isize) -> (isize, i32) {
    let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    (result, if result < 0 { error } else { 0 })
}

fn kind<T>(result: io::Result<T>) -> Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: writes two numbers, which are descriptors of ours from then on.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

/// A child that runs a line of shell, with pipes.
fn shell(line: &str) -> std::process::Child {
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn streams() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

fn receive(fd: RawFd, buffer: &mut [u8], flags: i32) -> (isize, i32) {
    // SAFETY: the buffer is as long as it says.
    told(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) })
}

/// Runs a body in a thread and in fibers, and compares.
#[track_caller]
fn same<T: Debug + PartialEq + Send + 'static>(waits: bool, body: fn() -> T) {
    let watchdog = Watchdog::new();
    let expected = thread::spawn(body).join().unwrap();
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).build().unwrap();
        watchdog.show(&runtime);
        assert_eq!(runtime.spawn(body).join().unwrap(), expected);
        assert_eq!(self::waits(&runtime.handle()) > 0, waits, "whether it waited");
        runtime.stop().unwrap();
    }
}

macro_rules! bodies {
    ($($name:ident, $waits:literal, $body:expr;)*) => {
        $(
            #[test]
            fn $name() {
                same($waits, $body);
            }
        )*

        const BODIES: &[&str] = &[$(stringify!($name),)*];
    };
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
    p11_a_ready_read_does_not_wait, false, || {
        let (mut ours, mut theirs) = streams();
        theirs.write_all(b"hello").unwrap();
        let mut buffer = [0; 8];
        (kind(ours.read(&mut buffer)), buffer)
    };
    p11_a_read_waits_for_data, true, || {
        let (mut ours, mut theirs) = streams();
        later(move || theirs.write_all(b"hello").unwrap());
        let mut buffer = [0; 8];
        (kind(ours.read(&mut buffer)), buffer)
    };
    p11_a_read_of_a_pipe_waits_for_data, true, || {
        let (reader, writer) = pipe();
        later(move || drop(std::fs::File::from(writer).write_all(b"hello")));
        let mut all = Vec::new();
        (kind(std::fs::File::from(reader).read_to_end(&mut all)), all)
    };
    p11_a_read_sees_the_end, true, || {
        let (mut ours, theirs) = tcp();
        later(move || drop(theirs));
        kind(ours.read(&mut [0; 4]))
    };
    p12_a_stream_is_written_to_the_end, true, || {
        let (mut ours, mut theirs) = streams();
        let gate = gate();
        let reader = thread::spawn(move || {
            gate();
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            all.iter().enumerate().all(|(index, &byte)| byte == index as u8).then_some(all.len())
        });
        let data: Vec<u8> = (0..3_000_000_u32).map(|index| index as u8).collect();
        // One call.
        let written = kind(ours.write(&data));
        drop(ours);
        (written, reader.join().unwrap())
    };
    p12_a_pipe_is_written_to_the_end, true, || {
        let (reader, writer) = pipe();
        let gate = gate();
        let reading = thread::spawn(move || {
            gate();
            let mut all = Vec::new();
            std::fs::File::from(reader).read_to_end(&mut all).unwrap();
            all.len()
        });
        let written = kind(std::fs::File::from(writer).write(&vec![7; 300_000]));
        (written, reading.join().unwrap())
    };
    p12_vectors_are_written_to_the_end, true, || {
        let (mut ours, mut theirs) = tcp();
        let gate = gate();
        let reader = thread::spawn(move || {
            gate();
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            let changes = all.windows(2).filter(|pair| pair[0] != pair[1]).count();
            (all.len(), changes)
        });
        let (a, b, c) = (vec![1; 3_000_000], vec![2; 5_000_000], vec![3; 4_000_000]);
        let list = [IoSlice::new(&a), IoSlice::new(&[]), IoSlice::new(&b), IoSlice::new(&c)];
        let before = list.map(|slice| (slice.as_ptr() as usize, slice.len()));
        let written = kind(ours.write_vectored(&list));
        let same = before == list.map(|slice| (slice.as_ptr() as usize, slice.len()));
        drop(ours);
        (written, same, reader.join().unwrap())
    };
    p12_a_timeout_gives_the_partial_count, true, || {
        let (mut ours, _theirs) = streams();
        ours.set_write_timeout(Some(ms(30))).unwrap();
        let first = ours.write(&vec![7; 10_000_000]).map(|written| written > 0 && written < 10_000_000);
        (kind(first), kind(ours.write(&[7; 4096])))
    };
    p13_datagrams_keep_their_bounds, true, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        later(move || ["one", "", "three"].iter().for_each(|word| assert!(theirs.send(word.as_bytes()).is_ok())));
        let mut buffer = [0; 3];
        [0; 3].map(|_| (kind(ours.recv(&mut buffer)), buffer))
    };
    p13_nothing_is_read_without_waiting, false, || {
        let (ours, mut theirs) = streams();
        let (fd, place) = (ours.as_raw_fd(), std::ptr::dangling_mut());
        // SAFETY: nothing is read or written.
        let (read, write) = unsafe { (told(libc::read(fd, place, 0)), told(libc::write(fd, place, 0))) };
        theirs.write_all(b"x").unwrap();
        // SAFETY: as above.
        (read, write, told(unsafe { libc::read(fd, place, 0) }))
    };
    p13_vectors_are_read_in_order, true, || {
        let (mut ours, mut theirs) = tcp();
        later(move || theirs.write_all(b"onetwothree").unwrap());
        let (mut a, mut b) = ([0; 3], [0; 5]);
        let read = kind(ours.read_vectored(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]));
        (read, a, b)
    };
    p14_peek_leaves_the_data, true, || {
        let (ours, mut theirs) = tcp();
        later(move || theirs.write_all(b"data").unwrap());
        let mut buffer = [0; 4];
        let peeked = (kind(ours.peek(&mut buffer)), buffer);
        (peeked, kind((&ours).read(&mut buffer)), buffer)
    };
    p14_waitall_waits_for_all, true, || {
        let (ours, mut theirs) = tcp();
        later(move || {
            theirs.write_all(b"first ").unwrap();
            thread::sleep(ms(20));
            theirs.write_all(b"second").unwrap();
        });
        let mut buffer = [0; 12];
        (receive(ours.as_raw_fd(), &mut buffer, libc::MSG_WAITALL), buffer)
    };
    p14_waitall_gives_what_came_before_the_end, true, || {
        let (ours, mut theirs) = tcp();
        later(move || theirs.write_all(b"first ").unwrap());
        let mut buffer = [0; 12];
        (receive(ours.as_raw_fd(), &mut buffer, libc::MSG_WAITALL), buffer)
    };
    p14_a_low_water_mark_is_waited_for, true, || {
        let (mut ours, mut theirs) = tcp();
        let mark: libc::c_int = 8;
        // SAFETY: the option is a number.
        let set = unsafe {
            libc::setsockopt(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const mark).cast(), 4)
        };
        theirs.write_all(b"1234").unwrap();
        later(move || theirs.write_all(b"567890").unwrap());
        let mut buffer = [0; 8];
        (set, kind(ours.read(&mut buffer)), buffer)
    };
    p14_a_broken_stream_is_an_error, false, || {
        let (mut ours, theirs) = streams();
        drop(theirs);
        (kind(ours.write(b"x")), kind(ours.read(&mut [0; 4])))
    };
    p16_a_read_times_out, true, || {
        let (mut ours, _theirs) = tcp();
        ours.set_read_timeout(Some(ms(30))).unwrap();
        // The kernel counts in ticks of some milliseconds.
        let start = Instant::now();
        let read = kind(ours.read(&mut [0; 4]));
        (read, start.elapsed() >= ms(20))
    };
    p16_a_timeout_gives_what_has_come, true, || {
        let (ours, mut theirs) = tcp();
        ours.set_read_timeout(Some(ms(60))).unwrap();
        theirs.write_all(b"some").unwrap();
        let mut buffer = [0; 12];
        (receive(ours.as_raw_fd(), &mut buffer, libc::MSG_WAITALL), buffer)
    };
    p16_a_datagram_times_out, true, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(ms(30))).unwrap();
        kind(socket.recv_from(&mut [0; 4]).map(|(count, _)| count))
    };
    p17_one_deadline_for_all_rounds, true, || {
        let (ours, mut theirs) = tcp();
        ours.set_read_timeout(Some(ms(100))).unwrap();
        thread::spawn(move || while theirs.write_all(b".").is_ok() { thread::sleep(ms(10)) });
        let start = Instant::now();
        let (count, _) = receive(ours.as_raw_fd(), &mut [0; 10_000], libc::MSG_WAITALL);
        (count > 0, start.elapsed() >= ms(90), start.elapsed() < Duration::from_secs(5))
    };
    p18_a_sleep_is_not_early, true, || {
        [1, 900, 5_000].map(|microseconds| {
            let (start, time) = (Instant::now(), Duration::from_micros(microseconds));
            thread::sleep(time);
            start.elapsed() >= time
        })
    };
    p18_usleep_and_nanosleep_are_not_early, true, || {
        let start = Instant::now();
        let time = libc::timespec { tv_sec: 0, tv_nsec: 700_000 };
        // SAFETY: the time is a local variable.
        let results = unsafe { (libc::usleep(300), libc::nanosleep(&time, std::ptr::null_mut())) };
        (results, start.elapsed() >= ms(1))
    };
    p18_a_wrong_time_is_an_error, false, || {
        [(0, 1_000_000_000), (0, -1), (-1, 0)].map(|(tv_sec, tv_nsec)| {
            let time = libc::timespec { tv_sec, tv_nsec };
            // SAFETY: the time is a local variable.
            unsafe {
                let first = told(libc::nanosleep(&time, std::ptr::null_mut()) as isize);
                (first, libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &time, std::ptr::null_mut()))
            }
        })
    };
    p18_a_time_of_the_clock_is_kept, true, || {
        [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME].map(|clock| {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let start = Instant::now();
            // SAFETY: the time is a local variable.
            unsafe {
                libc::clock_gettime(clock, &mut time);
                time.tv_nsec += 30_000_000;
                time.tv_sec += time.tv_nsec / 1_000_000_000;
                time.tv_nsec %= 1_000_000_000;
                let result = libc::clock_nanosleep(clock, libc::TIMER_ABSTIME, &time, std::ptr::null_mut());
                (result, start.elapsed() >= ms(29))
            }
        })
    };
    p19_poll_waits_for_any, true, || {
        let (a, mut b) = streams();
        let (c, _d) = streams();
        let _peer = later(move || b.write_all(b"x").map(|()| b));
        let asked = |fd: RawFd, events| libc::pollfd { fd, events, revents: 77 };
        let (first, second) = (c.as_raw_fd(), a.as_raw_fd());
        let mut list = [asked(first, libc::POLLIN), asked(-1, libc::POLLIN), asked(second, libc::POLLIN), asked(second, 0)];
        // SAFETY: there are four.
        let result = unsafe { libc::poll(list.as_mut_ptr(), 4, -1) };
        (result, list.map(|one| one.revents))
    };
    p19_poll_times_out, true, || {
        let (a, _b) = streams();
        let mut one = libc::pollfd { fd: a.as_raw_fd(), events: libc::POLLIN, revents: 77 };
        let start = Instant::now();
        // SAFETY: there is one, and then none.
        let results = unsafe { (libc::poll(&mut one, 1, 30), libc::poll(std::ptr::null_mut(), 0, 20)) };
        (results, one.revents, start.elapsed() >= ms(50))
    };
    p19_poll_of_what_is_ready_does_not_wait, false, || {
        let (a, b) = streams();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        drop(b);
        let asked = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP, revents: 0 };
        let mut list = [asked(a.as_raw_fd()), asked(file.as_raw_fd()), asked(9_999)];
        // SAFETY: there are three.
        (unsafe { libc::poll(list.as_mut_ptr(), 3, -1) }, list.map(|one| one.revents))
    };
    p19_select_says_what_and_how_much_time_is_left, true, || {
        let (a, mut b) = streams();
        later(move || b.write_all(b"x").unwrap());
        let fd = a.as_raw_fd();
        // SAFETY: sets and times are local variables.
        unsafe {
            let (mut read, mut write) = (std::mem::zeroed(), std::mem::zeroed());
            libc::FD_SET(fd, &mut read);
            let mut time = libc::timeval { tv_sec: 10, tv_usec: 0 };
            let result = libc::select(fd + 1, &mut read, &mut write, std::ptr::null_mut(), &mut time);
            (result, libc::FD_ISSET(fd, &read), time.tv_sec)
        }
    };
    p20_epoll_waits, true, || {
        // SAFETY: makes a descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let (a, mut b) = streams();
        let _peer = later(move || b.write_all(b"x").map(|()| b));
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 42 };
        // SAFETY: the events are local variables.
        unsafe {
            assert_eq!(libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, a.as_raw_fd(), &mut event), 0);
            let mut found = [libc::epoll_event { events: 0, u64: 0 }; 4];
            let result = libc::epoll_wait(epoll.as_raw_fd(), found.as_mut_ptr(), 4, -1);
            let (events, data) = (found[0].events, found[0].u64);
            (result, events, data)
        }
    };
    p20_epoll_times_out, true, || {
        // SAFETY: makes a descriptor, and writes to a local variable.
        unsafe {
            let epoll = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            let mut found = [libc::epoll_event { events: 0, u64: 0 }; 4];
            let start = Instant::now();
            let result = libc::epoll_wait(epoll.as_raw_fd(), found.as_mut_ptr(), 4, 30);
            (result, start.elapsed() >= ms(30))
        }
    };
    p21_a_refused_connection_is_an_error, true, || {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        kind(TcpStream::connect(address).map(drop))
    };
    p21_a_local_connection_waits_for_room, true, || {
        let directory = std::env::temp_dir().join(format!("fibrant-{}-{:?}", std::process::id(), thread::current().id()));
        drop(std::fs::create_dir(&directory));
        let path = directory.join(format!("{:?}", Instant::now()).replace(' ', ""));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: sets the length of its queue anew.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let first = UnixStream::connect(&path).map(drop);
        later(move || (0..2).for_each(|_| drop(listener.accept().unwrap())));
        let second = UnixStream::connect(&path).map(drop);
        drop(std::fs::remove_dir_all(directory));
        (kind(first), kind(second))
    };
    p22_accept_waits, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        later(move || drop(TcpStream::connect(address).unwrap().write_all(b"hello")));
        let (mut accepted, peer) = listener.accept().unwrap();
        let mut all = String::new();
        (kind(accepted.read_to_string(&mut all)), all, peer.ip())
    };
    p22_accept_times_out, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let time = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        // SAFETY: the option is a time.
        let set = unsafe {
            libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), 16)
        };
        (set, kind(listener.accept().map(drop)))
    };
    p28_names_are_found, false, || {
        use std::net::ToSocketAddrs;
        let found = ("localhost", 80).to_socket_addrs().map(|all| all.map(|one| one.ip().is_loopback()).collect::<Vec<_>>());
        (kind(found).map(|all| !all.is_empty() && all.iter().all(|&is| is)), ("no.such.name.invalid", 1).to_socket_addrs().is_err())
    };
    p27_a_child_is_waited_for, true, || {
        let mut child = shell("read word; exit 7");
        let input = child.stdin.take();
        later(move || drop(input));
        kind(child.wait().map(|status| status.code()))
    };
    p27_a_childs_output_is_read, true, || {
        let mut child = shell("cat; echo end >&2");
        let mut input = child.stdin.take().unwrap();
        later(move || input.write_all(&[b'x'; 30_000]).unwrap());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), output.stdout.len(), output.stderr)
    };
    p27_a_child_that_may_stop_is_waited_for, true, || {
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::uninit());
        let mut child = shell("read word; kill -9 $$");
        let input = child.stdin.take();
        later(move || drop(input));
        let id = child.id() as libc::pid_t;
        // SAFETY: the places are local variables.
        unsafe {
            let waited = libc::wait4(id, &mut status, libc::WUNTRACED, usage.as_mut_ptr());
            let again = told(libc::waitpid(id, &mut status, 0) as isize);
            (waited == id, libc::WTERMSIG(status), again, child.wait().is_err())
        }
    };
    p28_a_thread_is_joined, true, || {
        let gate = gate();
        let thread = thread::spawn(move || {
            gate();
            42
        });
        thread.join().unwrap()
    };
    p28_a_file_is_read_locked_and_synced, false, || {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut magic = [0; 4];
        let read = kind(file.read_at(&mut magic, 0));
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: numbers.
        let locks = unsafe {
            let shared = [file.as_raw_fd(), other.as_raw_fd()].map(|fd| libc::flock(fd, libc::LOCK_SH));
            (shared, told(libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) as isize))
        };
        (read, magic, locks, kind(file.read_at(&mut magic, u64::MAX)).is_err())
    };
    p28_a_lock_is_waited_for, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-lock-{}-{:?}", std::process::id(), thread::current().id()));
        let (first, second) = (std::fs::File::create(&path).unwrap(), std::fs::File::create(&path).unwrap());
        drop(std::fs::remove_file(&path));
        // SAFETY: numbers.
        unsafe {
            let held = libc::flock(first.as_raw_fd(), libc::LOCK_EX);
            later(move || drop(first));
            (held, libc::flock(second.as_raw_fd(), libc::LOCK_EX), kind(second.sync_all()))
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
    p28_a_record_lock_is_waited_for, true, || {
        let path = std::env::temp_dir().join(format!("fibrant-record-{}-{:?}", std::process::id(), thread::current().id()));
        let (first, second) = (std::fs::File::create(&path).unwrap(), std::fs::File::create(&path).unwrap());
        drop(std::fs::remove_file(&path));
        // SAFETY: all zero, but for what is said, is the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        // SAFETY: the lock is a local variable.
        unsafe {
            let held = libc::fcntl(first.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock);
            let refused = told(libc::fcntl(second.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) as isize);
            later(move || drop(first));
            (held, refused, libc::fcntl(second.as_raw_fd(), libc::F_OFD_SETLKW, &raw const lock))
        }
    };
    p25_success_leaves_errno_alone, true, || {
        let (ours, mut theirs) = streams();
        later(move || theirs.write_all(b"x").unwrap());
        // SAFETY: the address is that of this thread's variable.
        unsafe { *libc::__errno_location() = 77 };
        let mut buffer = [0; 4];
        // SAFETY: the buffer has that length.
        let count = unsafe { libc::read(ours.as_raw_fd(), buffer.as_mut_ptr().cast(), 4) };
        (count, io::Error::last_os_error().raw_os_error())
    };
}

#[test]
fn every_body_names_its_point() {
    assert!(BODIES.len() >= 40);
    for name in BODIES {
        let point = name
            .strip_prefix('p')
            .and_then(|rest| rest.get(..2)?.parse::<u32>().ok());
        assert!(point.is_some_and(|point| (1..=28).contains(&point)), "{name}");
    }
}

#[test]
fn a_read_of_a_closed_descriptor_ends() {
    // The one deliberate difference: the kernel would leave a thread blocked on the old file.
    let _watchdog = Watchdog::new();
    for workers in [1, 2] {
        let runtime = Builder::new().workers(workers).build().unwrap();
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        let reader = runtime.spawn(move || receive(fd, &mut [0; 4], 0));
        while runtime.stats().descriptor_waits == 0 {
            thread::sleep(ms(1));
        }
        drop(ours); // from a thread that is no worker
        assert_eq!(reader.join().unwrap(), (-1, libc::EBADF));
        runtime.stop().unwrap();
    }
}

#[test]
fn siblings_run_while_one_waits() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let start = Instant::now();
    let sleepers: Vec<_> = (0..100)
        .map(|_| runtime.spawn(|| thread::sleep(ms(100))))
        .collect();
    sleepers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    runtime.stop().unwrap();
}

#[test]
fn hooks_can_be_turned_off() {
    let _watchdog = Watchdog::new();
    assert!(!fibrant::hook::is_enabled());
    let runtime = Builder::new().workers(1).hooks(false).build().unwrap();
    assert!(!runtime.spawn(fibrant::hook::is_enabled).join().unwrap());
    runtime.stop().unwrap();
    let runtime = Builder::new().workers(1).build().unwrap();
    let slept = runtime.spawn(|| {
        fibrant::hook::disabled(|| thread::sleep(ms(2)));
        fibrant::hook::set_enabled(false);
        thread::sleep(ms(2));
        let off = fibrant::hook::is_enabled();
        fibrant::hook::set_enabled(true);
        (off, fibrant::hook::is_enabled())
    });
    assert_eq!(slept.join().unwrap(), (false, true));
    assert_eq!(runtime.stats().sleeps, 0);
    runtime.spawn(|| thread::sleep(ms(2))).join().unwrap();
    assert_eq!(runtime.stats().sleeps, 1);
    runtime.stop().unwrap();
}

#[test]
fn a_forked_child_leaves_its_parent_alone() {
    use std::os::unix::process::CommandExt;
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let received = runtime.spawn(|| {
        let (mut ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let reader = fibrant::spawn(move || {
            let mut buffer = [0; 8];
            let counts = [0; 2].map(|_| ours.read(&mut buffer).unwrap());
            (counts, buffer)
        });
        fibrant::yield_now(); // it waits, and is registered
        let mut command = std::process::Command::new("true");
        // SAFETY: closes and duplicates descriptors, which a child may do; it also makes std fork.
        unsafe {
            command.pre_exec(move || {
                libc::close(fd);
                libc::dup2(2, fd);
                libc::close(fd);
                Ok(())
            })
        };
        let status = command.status().unwrap();
        theirs.write_all(b"one").unwrap();
        thread::sleep(ms(5));
        theirs.write_all(b"three").unwrap();
        (status.success(), reader.join().unwrap())
    });
    assert_eq!(received.join().unwrap(), (true, ([3, 5], *b"three\0\0\0")));
    runtime.stop().unwrap();
}

#[test]
fn a_cancelled_fiber_is_told_once() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let (ours, mut theirs) = streams();
    let reader = runtime.spawn(move || {
        let first = receive(ours.as_raw_fd(), &mut [0; 4], 0);
        (first, receive(ours.as_raw_fd(), &mut [0; 4], 0))
    });
    while runtime.stats().descriptor_waits == 0 {
        thread::sleep(ms(1));
    }
    reader.cancel();
    while runtime.stats().descriptor_waits < 2 {
        thread::sleep(ms(1));
    }
    theirs.write_all(b"x").unwrap();
    assert_eq!(reader.join().unwrap(), ((-1, libc::ECANCELED), (1, 0)));
    runtime.stop().unwrap();
}
