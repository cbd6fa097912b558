//! Waiting for descriptors, event functions, and what becomes of both when descriptors are closed.
//!
//! The tests of a binary share its descriptor numbers. A test that closes a number and opens it again uses one far above
//! those that the kernel gives to the others (see `at`).

#[path = "common/secret.rs"]
mod secret;
#[path = "common/waiting.rs"]
mod waiting;
#[path = "common/worker.rs"]
mod worker;

use fibrant::fiber::WaitReason;
use fibrant::io::{self, Event};
use fibrant::runtime::{Builder, Runtime};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use waiting::{FAR, Numbers, PATIENCE, eventually, in_runtime, in_runtimes, watched};
use worker::thread_number;

const BOTH: [Event; 2] = [Event::READ, Event::WRITE];

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Lets this process have as many descriptors as it may.
fn raise_descriptor_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: reads and writes a local variable.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit.rlim_cur = limit.rlim_max;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
    });
}

/// Waits until waits that have begun have looked after their registrations, which they do once, after 10 ms: it must not
/// be that which helps them.
fn outlast_the_look() {
    fibrant::sleep(ms(30));
}

/// Turns -1 into a panic with the error that it stands for.
#[track_caller]
fn check(result: libc::c_int) -> libc::c_int {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

/// Owns a descriptor that a system call has just made.
#[track_caller]
fn own(fd: libc::c_int) -> OwnedFd {
    // SAFETY: it was just made, and is nobody else's.
    unsafe { OwnedFd::from_raw_fd(check(fd)) }
}

/// Moves a file to a descriptor number, which nobody else uses: each test has its own, above all that the kernel gives.
fn at(number: RawFd, file: impl Into<OwnedFd>) -> OwnedFd {
    raise_descriptor_limit();
    let file = file.into();
    // By a system call of its own, which is not hooked: the runtime does not know that the number stands for something else now.
    secret::put(&file, number);
    own(number)
}

/// Closes a descriptor without the runtime's knowledge.
fn close_secretly(file: OwnedFd) {
    secret::close(file);
}

/// Two connected stream sockets that do not block.
fn streams() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

/// Two connected datagram sockets that do not block.
fn datagrams() -> (UnixDatagram, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

/// The reading and the writing end of a pipe.
fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: writes to a local array.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) });
    (own(ends[0]).into(), own(ends[1]).into())
}

/// Writes until there is no room. Returns how much that was.
fn fill(mut stream: impl Write) -> usize {
    let mut written = 0;
    loop {
        match stream.write(&[7; 4096]) {
            Ok(count) => written += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return written;
            }
        }
    }
}

/// Reads until there is nothing. Returns how much that was.
fn drain(mut stream: impl Read) -> usize {
    let mut total = 0;
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return total,
            Ok(count) => total += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return total;
            }
        }
    }
}

/// How many fibers of this runtime wait for a descriptor.
fn waiters(fd: RawFd) -> usize {
    waiters_in(&Runtime::current().unwrap(), fd)
}

fn waiters_in(runtime: &fibrant::runtime::Handle, fd: RawFd) -> usize {
    let waits =
        |wait: Option<WaitReason>| matches!(wait, Some(WaitReason::Descriptor { fd: at, .. }) if at == fd);
    runtime
        .dump()
        .fibers
        .iter()
        .filter(|fiber| waits(fiber.wait))
        .count()
}

/// Spawns a fiber on a worker that waits for a descriptor, and returns when it does.
fn waiter(worker: usize, fd: RawFd, event: Event) -> fibrant::JoinHandle<std::io::Result<Event>> {
    let fiber = fibrant::Builder::new()
        .worker(worker)
        .spawn(move || io::wait(fd, event, None))
        .unwrap();
    // Not by their number: one that looks after its registration is awake for a moment.
    let runtime = Runtime::current().unwrap();
    eventually(|| {
        let dump = runtime.dump();
        let mut own = dump.fibers.iter().filter(|one| one.id == fiber.id());
        own.any(|one| matches!(one.wait, Some(WaitReason::Descriptor { fd: at, .. }) if at == fd))
    });
    fiber
}

fn raw_error(error: std::io::Error) -> i32 {
    error.raw_os_error().expect("an error of the system's")
}

/// An event function that counts its calls and sends where it ran.
#[derive(Clone)]
struct Calls {
    count: Arc<AtomicUsize>,
    thread: Arc<std::sync::Mutex<Option<i32>>>,
}

impl Calls {
    fn new() -> Calls {
        Calls {
            count: Arc::default(),
            thread: Arc::default(),
        }
    }
    fn count(&self) -> usize {
        self.count.load(SeqCst)
    }
    fn function(&self) -> impl FnOnce() + Send + use<> {
        let calls = self.clone();
        move || {
            assert!(fibrant::fiber::current().is_some());
            fibrant::sleep(Duration::from_micros(100)); // which a fiber may do
            *calls.thread.lock().unwrap() = Some(thread_number());
            calls.count.fetch_add(1, SeqCst);
        }
    }
    /// How many functions are pending or running.
    fn functions(&self) -> usize {
        Arc::strong_count(&self.count) - 1
    }
    fn thread(&self) -> Option<i32> {
        *self.thread.lock().unwrap()
    }
}

// Waiting.

#[test]
fn a_wait_for_input_ends_when_there_is_input() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            let (ours, mut theirs) = streams();
            let waiting = waiter(worker, ours.as_raw_fd(), Event::READ);
            theirs.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        }
    });
}

#[test]
fn a_wait_for_output_ends_when_there_is_room() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            let (ours, theirs) = streams();
            fill(&ours);
            let waiting = waiter(worker, ours.as_raw_fd(), Event::WRITE);
            drain(&theirs);
            assert_eq!(waiting.join().unwrap().unwrap(), Event::WRITE);
        }
    });
}

#[test]
fn a_wait_for_both_tells_what_has_happened() {
    in_runtimes(|_| {
        let both = Event::READ | Event::WRITE;
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        assert_eq!(io::wait(fd, both, None).unwrap(), Event::WRITE);

        fill(&ours);
        let waiting = waiter(0, fd, both);
        theirs.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        assert_eq!(drain(&ours), 1);

        let waiting = waiter(0, fd, both);
        drain(&theirs);
        assert_eq!(waiting.join().unwrap().unwrap(), Event::WRITE);

        theirs.write_all(b"x").unwrap();
        assert_eq!(io::wait(fd, both, None).unwrap(), both);
        // Only what was asked for is told.
        assert_eq!(io::wait(fd, Event::READ, None).unwrap(), Event::READ);
        assert_eq!(io::wait(fd, Event::WRITE, None).unwrap(), Event::WRITE);
    });
}

#[test]
fn a_wait_that_times_out_is_not_early_and_says_so() {
    in_runtimes(|_| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        fill(&ours);
        let check = move |length: Duration, event: Event| {
            let start = Instant::now();
            let error = io::wait(fd, event, Some(length)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(
                start.elapsed() >= length,
                "{length:?} for {event:?} took {:?}",
                start.elapsed()
            );
        };
        // Below and above the 10 ms after which a wait looks after its registration.
        for length in [Duration::ZERO, Duration::from_nanos(1), ms(3), ms(10), ms(25)] {
            for event in [Event::READ, Event::WRITE, Event::READ | Event::WRITE] {
                check(length, event);
                fibrant::spawn_blocking(move || check(length, event))
                    .join()
                    .unwrap();
            }
        }
        // A wait that has timed out takes nothing away from the next.
        let waiting = waiter(0, fd, Event::READ);
        theirs.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
    });
}

#[test]
fn what_is_ready_is_not_waited_for() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            fibrant::run_on(worker, || {
                let (ours, mut theirs) = streams();
                let fd = ours.as_raw_fd();
                theirs.write_all(b"x").unwrap();
                for _ in 0..3 {
                    // Without time to wait, and level-triggered: what is not read stays ready.
                    for event in BOTH {
                        assert_eq!(io::wait(fd, event, Some(Duration::ZERO)).unwrap(), event);
                    }
                    fibrant::sleep(ms(1));
                }
                drop(theirs); // the end of the stream is ready, too
                assert_eq!(drain(&ours), 1);
                assert_eq!(
                    io::wait(fd, Event::READ, Some(Duration::ZERO)).unwrap(),
                    Event::READ
                );
            });
        }
    });
}

#[test]
fn data_that_comes_while_nobody_waits_is_not_lost() {
    in_runtimes(|_| {
        for unwatched in 0..6 {
            let (ours, mut theirs) = streams();
            let fd = ours.as_raw_fd();
            // Now it is registered.
            let waiting = waiter(0, fd, Event::READ);
            theirs.write_all(b"x").unwrap();
            waiting.join().unwrap().unwrap();
            assert_eq!(drain(&ours), 1);
            // So many edges find nobody, after some of which it is registered no more.
            for _ in 0..unwatched {
                theirs.write_all(b"x").unwrap();
                fibrant::sleep(Duration::from_micros(100)); // the worker polls
                assert_eq!(drain(&ours), 1);
            }
            // It was there before the wait.
            theirs.write_all(b"x").unwrap();
            fibrant::sleep(Duration::from_micros(100));
            assert_eq!(io::wait(fd, Event::READ, None).unwrap(), Event::READ);
            assert_eq!(drain(&ours), 1);
            // It comes during the wait.
            let waiting = waiter(0, fd, Event::READ);
            outlast_the_look();
            theirs.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        }
    });
}

#[test]
fn a_thousand_rounds_between_two_fibers_lose_nothing() {
    in_runtimes(|workers| {
        const ROUNDS: usize = 1000;
        let (mut ours, mut theirs) = streams();
        let receive = |stream: &mut UnixStream| {
            let mut byte = [0];
            while let Err(error) = stream.read_exact(&mut byte) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                io::wait(stream.as_raw_fd(), Event::READ, None).unwrap();
            }
            byte[0]
        };
        let echo = fibrant::Builder::new().worker(workers - 1).spawn(move || {
            for _ in 0..ROUNDS {
                let byte = receive(&mut theirs);
                theirs.write_all(&[byte]).unwrap();
            }
            theirs // open until the other side has read the last one
        });
        for round in 0..ROUNDS {
            ours.write_all(&[round as u8]).unwrap();
            assert_eq!(receive(&mut ours), round as u8);
        }
        drop(echo.unwrap().join().unwrap());
    });
}

/// Receives datagrams until one says that it is the last. Returns how many there were.
fn receive_all(socket: &UnixDatagram) -> usize {
    let mut count = 0;
    let mut buffer = [0; 1];
    loop {
        match socket.recv(&mut buffer) {
            Ok(_) if buffer[0] == 0 => return count,
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                io::wait(socket.as_raw_fd(), Event::READ, None).unwrap();
            }
        }
    }
}

#[test]
fn several_fibers_of_one_worker_may_wait_for_one_descriptor() {
    in_runtime(1, || {
        const FIBERS: usize = 8;
        let (ours, theirs) = datagrams();
        let ours = Arc::new(ours);
        let fd = ours.as_raw_fd();
        let receivers: Vec<_> = (0..FIBERS)
            .map(|_| {
                let socket = Arc::clone(&ours);
                fibrant::spawn(move || receive_all(&socket))
            })
            .collect();
        eventually(|| waiters(fd) == FIBERS);
        outlast_the_look();
        // One at a time, then as many as there is room for: those are one edge.
        for _ in 0..20 {
            theirs.send(&[1]).unwrap();
            fibrant::yield_now();
        }
        for _ in 0..20 {
            for _ in 0..5 {
                send(&theirs, 1);
            }
            fibrant::sleep(Duration::from_micros(50));
        }
        // Each fiber ends with one of these.
        (0..FIBERS).for_each(|_| send(&theirs, 0));
        let received: usize = receivers.into_iter().map(|fiber| fiber.join().unwrap()).sum();
        assert_eq!(received, 120);
    });
}

/// Sends a datagram, when there is room.
fn send(socket: &UnixDatagram, byte: u8) {
    while let Err(error) = socket.send(&[byte]) {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        io::wait(socket.as_raw_fd(), Event::WRITE, None).unwrap();
    }
}

#[test]
fn one_edge_for_several_datagrams_serves_several_fibers_that_take_one_each() {
    in_runtimes(|workers| {
        const FIBERS: usize = 6;
        let (ours, theirs) = datagrams();
        let ours = Arc::new(ours);
        let fd = ours.as_raw_fd();
        let receivers: Vec<_> = (0..FIBERS)
            .map(|index| {
                let socket = Arc::clone(&ours);
                let receive = move || {
                    let mut buffer = [0; 1];
                    while let Err(error) = socket.recv(&mut buffer) {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        io::wait(socket.as_raw_fd(), Event::READ, None).unwrap();
                    }
                };
                fibrant::Builder::new()
                    .worker(index % workers)
                    .spawn(receive)
                    .unwrap()
            })
            .collect();
        eventually(|| waiters(fd) == FIBERS);
        outlast_the_look();
        (0..FIBERS).for_each(|_| assert_eq!(theirs.send(&[1]).unwrap(), 1));
        receivers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

#[test]
fn fibers_of_several_workers_may_wait_for_one_descriptor() {
    in_runtimes(|workers| {
        let fibers = 3 * workers;
        let (ours, theirs) = datagrams();
        let ours = Arc::new(ours);
        let receivers: Vec<_> = (0..fibers)
            .map(|index| {
                let socket = Arc::clone(&ours);
                fibrant::Builder::new()
                    .worker(index % workers)
                    .spawn(move || receive_all(&socket))
                    .unwrap()
            })
            .collect();
        eventually(|| waiters(ours.as_raw_fd()) == fibers);
        outlast_the_look();
        let sender = fibrant::spawn(move || {
            let mut numbers = Numbers(3);
            for _ in 0..500 {
                send(&theirs, 1);
                if numbers.below(4) == 0 {
                    fibrant::sleep(Duration::from_micros(numbers.below(100)));
                }
            }
            (0..fibers).for_each(|_| send(&theirs, 0));
            theirs
        });
        let received: usize = receivers.into_iter().map(|fiber| fiber.join().unwrap()).sum();
        assert_eq!(received, 500);
        drop(sender.join().unwrap());
    });
}

#[test]
fn a_reader_and_a_writer_may_wait_for_one_descriptor() {
    in_runtimes(|workers| {
        const BYTES: usize = 2_000_000;
        let (ours, theirs) = streams();
        let mut fibers = Vec::new();
        for (index, socket) in [ours, theirs].into_iter().enumerate() {
            let socket = Arc::new(socket);
            let reader = Arc::clone(&socket);
            fibers.push(
                fibrant::Builder::new()
                    .worker(index % workers)
                    .spawn(move || {
                        let mut received = 0;
                        while received < BYTES {
                            received += drain(&*reader);
                            if received < BYTES {
                                io::wait(reader.as_raw_fd(), Event::READ, None).unwrap();
                            }
                        }
                        received
                    })
                    .unwrap(),
            );
            // On the same worker and on another one.
            fibers.push(
                fibrant::Builder::new()
                    .worker((2 * index) % workers)
                    .spawn(move || {
                        let mut sent = 0;
                        while sent < BYTES {
                            match (&*socket).write(&vec![1; (BYTES - sent).min(65_536)]) {
                                Ok(count) => sent += count,
                                Err(error) => {
                                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                                    io::wait(socket.as_raw_fd(), Event::WRITE, None).unwrap();
                                }
                            }
                        }
                        sent
                    })
                    .unwrap(),
            );
        }
        for fiber in fibers {
            assert_eq!(fiber.join().unwrap(), BYTES);
        }
    });
}

#[test]
fn a_plain_thread_may_wait_too() {
    watched(|| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        assert_eq!(io::wait(fd, Event::WRITE, None).unwrap(), Event::WRITE);
        let writer = thread::spawn(move || {
            fibrant::hook::disabled(|| thread::sleep(ms(10)));
            theirs.write_all(b"x").unwrap();
            theirs
        });
        assert_eq!(io::wait(fd, Event::READ, None).unwrap(), Event::READ);
        assert_eq!(
            io::wait(fd, Event::READ | Event::WRITE, None).unwrap(),
            Event::READ | Event::WRITE
        );
        let theirs = writer.join().unwrap();
        assert_eq!(drain(&ours), 1);
        fill(&ours);
        let reader = thread::spawn(move || {
            fibrant::hook::disabled(|| thread::sleep(ms(10)));
            drain(&theirs);
            theirs
        });
        assert_eq!(
            io::wait(fd, Event::WRITE, Some(Duration::MAX)).unwrap(),
            Event::WRITE
        );
        drop(reader.join().unwrap());
        assert_eq!(io::wait(fd, Event::READ, None).unwrap(), Event::READ); // the end
    });
}

// All kinds of descriptors.

/// Waits for a descriptor in a fiber, and once more as an event function; makes it ready each time.
fn check_kind(what: &str, fd: RawFd, event: Event, make_ready: impl Fn(), make_unready: impl Fn()) {
    for round in 0..3 {
        let error = io::wait(fd, event, Some(Duration::ZERO)).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::TimedOut,
            "{what}, round {round}: {error}"
        );
        let waiting = waiter(0, fd, event);
        make_ready();
        assert_eq!(waiting.join().unwrap().unwrap(), event, "{what}, round {round}");
        make_unready();

        let calls = Calls::new();
        io::add_event(fd, event, calls.function()).unwrap();
        fibrant::sleep(Duration::from_micros(100));
        assert_eq!(calls.count(), 0, "{what}, round {round}");
        make_ready();
        eventually(|| calls.count() == 1);
        make_unready();
    }
}

#[test]
fn tcp_connections_and_listeners_can_be_waited_for() {
    in_runtimes(|_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        check_kind(
            "listener",
            listener.as_raw_fd(),
            Event::READ,
            || drop(TcpStream::connect(address).unwrap()),
            || drop(listener.accept().unwrap()),
        );
        let ours = TcpStream::connect(address).unwrap();
        // Who connects may know of it before the listener does.
        io::wait(listener.as_raw_fd(), Event::READ, None).unwrap();
        let theirs = listener.accept().unwrap().0;
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        check_kind(
            "TCP input",
            ours.as_raw_fd(),
            Event::READ,
            || assert_eq!((&theirs).write(b"x").unwrap(), 1),
            || assert_eq!(drain(&ours), 1),
        );
        // What is on its way shows late: full is what stays full.
        let fill_up = || {
            while fill(&ours) > 0 {
                fibrant::sleep(ms(2));
            }
        };
        fill_up();
        check_kind(
            "TCP output",
            ours.as_raw_fd(),
            Event::WRITE,
            || {
                // Room is announced only when a good part is free.
                while io::wait(ours.as_raw_fd(), Event::WRITE, Some(Duration::ZERO)).is_err() {
                    drain(&theirs);
                    fibrant::sleep(Duration::from_micros(100));
                }
            },
            fill_up,
        );
    });
}

#[test]
fn a_tcp_connection_that_is_reset_ends_both_kinds_of_waits() {
    in_runtimes(|_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        ours.set_nonblocking(true).unwrap();
        while fill(&ours) > 0 {
            fibrant::sleep(ms(2));
        }
        let reader = waiter(0, ours.as_raw_fd(), Event::READ);
        let writer = waiter(0, ours.as_raw_fd(), Event::WRITE);
        drop(theirs); // with unread data: a reset
        assert_eq!(reader.join().unwrap().unwrap(), Event::READ);
        assert_eq!(writer.join().unwrap().unwrap(), Event::WRITE);
    });
}

#[test]
fn udp_sockets_can_be_waited_for() {
    in_runtimes(|_| {
        let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
        let theirs = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = ours.local_addr().unwrap();
        check_kind(
            "UDP",
            ours.as_raw_fd(),
            Event::READ,
            || assert_eq!(theirs.send_to(b"x", address).unwrap(), 1),
            || assert_eq!(ours.recv(&mut [0]).unwrap(), 1),
        );
        assert_eq!(
            io::wait(ours.as_raw_fd(), Event::WRITE, None).unwrap(),
            Event::WRITE
        );
    });
}

#[test]
fn unix_sockets_and_pipes_can_be_waited_for() {
    in_runtimes(|_| {
        let (ours, theirs) = streams();
        let (read_end, write_end) = pipe();
        check_kind(
            "socket input",
            ours.as_raw_fd(),
            Event::READ,
            || assert_eq!((&theirs).write(b"x").unwrap(), 1),
            || assert_eq!(drain(&ours), 1),
        );
        check_kind(
            "pipe input",
            read_end.as_raw_fd(),
            Event::READ,
            || assert_eq!((&write_end).write(b"x").unwrap(), 1),
            || assert_eq!(drain(&read_end), 1),
        );
        fill(&ours);
        check_kind(
            "socket output",
            ours.as_raw_fd(),
            Event::WRITE,
            || assert!(drain(&theirs) > 0),
            || assert!(fill(&ours) > 0),
        );
        fill(&write_end);
        check_kind(
            "pipe output",
            write_end.as_raw_fd(),
            Event::WRITE,
            || assert!(drain(&read_end) > 0),
            || assert!(fill(&write_end) > 0),
        );
    });
}

#[test]
fn eventfds_and_timerfds_can_be_waited_for() {
    in_runtimes(|_| {
        // SAFETY: makes a descriptor.
        let event: File = own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }).into();
        check_kind(
            "eventfd",
            event.as_raw_fd(),
            Event::READ,
            || assert_eq!((&event).write(&1_u64.to_ne_bytes()).unwrap(), 8),
            || assert_eq!((&event).read(&mut [0; 8]).unwrap(), 8),
        );
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: makes a descriptor.
        let timer: File = own(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) }).into();
        let set = || {
            let zero = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let soon = libc::itimerspec {
                it_interval: zero,
                it_value: libc::timespec {
                    tv_nsec: 1_000_000,
                    ..zero
                },
            };
            // SAFETY: reads a local variable; the old value is not asked for.
            check(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &soon, std::ptr::null_mut()) });
        };
        check_kind("timerfd", timer.as_raw_fd(), Event::READ, set, || {
            assert_eq!((&timer).read(&mut [0; 8]).unwrap(), 8)
        });
    });
}

#[test]
fn a_signalfd_can_be_waited_for() {
    in_runtimes(|_| {
        // Each worker asks its own thread's signals: send and wait on one worker, and let nobody else have the signal.
        let signal = libc::SIGUSR2;
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: writes to a local variable; blocks a signal that nothing here uses, in this thread.
        let set = unsafe {
            check(libc::sigemptyset(set.as_mut_ptr()));
            check(libc::sigaddset(set.as_mut_ptr(), signal));
            let set = set.assume_init();
            assert_eq!(
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()),
                0
            );
            set
        };
        let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
        // SAFETY: makes a descriptor; reads a local variable.
        let signals: File = own(unsafe { libc::signalfd(-1, &set, flags) }).into();
        check_kind(
            "signalfd",
            signals.as_raw_fd(),
            Event::READ,
            // SAFETY: sends this thread a signal that it blocks.
            || unsafe { assert_eq!(libc::pthread_kill(libc::pthread_self(), signal), 0) },
            || assert_eq!((&signals).read(&mut [0; 128]).unwrap(), 128),
        );
    });
}

#[test]
fn a_pidfd_can_be_waited_for() {
    in_runtimes(|_| {
        let mut child = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
        // SAFETY: makes a descriptor.
        let pidfd = own(unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) } as libc::c_int);
        let calls = Calls::new();
        io::add_event(pidfd.as_raw_fd(), Event::READ, calls.function()).unwrap();
        let waiting = waiter(0, pidfd.as_raw_fd(), Event::READ);
        assert_eq!(calls.count(), 0);
        child.kill().unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        eventually(|| calls.count() == 1);
        child.wait().unwrap();
    });
}

#[test]
fn inotify_can_be_waited_for() {
    in_runtimes(|workers| {
        let name = format!("fibrant-inotify-{}-{workers}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).unwrap();
        // SAFETY: makes a descriptor.
        let inotify: File = own(unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) }).into();
        let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: reads a string that ends with a zero.
        check(unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), c_path.as_ptr(), libc::IN_MODIFY) });
        check_kind(
            "inotify",
            inotify.as_raw_fd(),
            Event::READ,
            || assert_eq!((&file).write(b"x").unwrap(), 1),
            || assert!(drain(&inotify) > 0),
        );
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_terminal_can_be_waited_for() {
    in_runtimes(|_| {
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: makes a descriptor.
        let controller: File = own(unsafe { libc::posix_openpt(flags) }).into();
        let mut name = [0; 128];
        // SAFETY: acts on a descriptor that is open, and writes to a local array.
        unsafe {
            check(libc::grantpt(controller.as_raw_fd()));
            check(libc::unlockpt(controller.as_raw_fd()));
            assert_eq!(
                libc::ptsname_r(controller.as_raw_fd(), name.as_mut_ptr(), name.len()),
                0
            );
        }
        // SAFETY: reads a string that ends with a zero, and makes a descriptor.
        let terminal: File = own(unsafe { libc::open(name.as_ptr(), flags) }).into();
        check_kind(
            "terminal",
            terminal.as_raw_fd(),
            Event::READ,
            || assert_eq!((&controller).write(b"line\n").unwrap(), 5),
            || assert_eq!(drain(&terminal), 5),
        );
        // The kernel passes it on by and by.
        let receive = |bytes| {
            let mut received = 0;
            while received < bytes {
                io::wait(controller.as_raw_fd(), Event::READ, None).unwrap();
                received += drain(&controller);
            }
        };
        receive(6 * b"line\r\n".len()); // the echo
        check_kind(
            "controller",
            controller.as_raw_fd(),
            Event::READ,
            || assert_eq!((&terminal).write(b"line").unwrap(), 4),
            || receive(4),
        );
    });
}

// What cannot be waited for.

#[test]
fn what_is_always_ready_is_refused_with_a_clear_text() {
    in_runtimes(|_| {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let directory = File::open(path.parent().unwrap()).unwrap();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        for fd in [file.as_raw_fd(), directory.as_raw_fd(), null.as_raw_fd()] {
            for event in BOTH {
                let from_thread = fibrant::spawn_blocking(move || io::wait(fd, event, None));
                for error in [
                    io::wait(fd, event, None).unwrap_err(),
                    from_thread.join().unwrap().unwrap_err(),
                    io::add_event(fd, event, || unreachable!()).unwrap_err(),
                ] {
                    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                    let text = error.to_string();
                    assert!(text.contains("regular file"), "{text}");
                    assert!(text.contains(&fd.to_string()), "{text}");
                }
            }
        }
        assert_eq!(io::pending_events(), 0);
    });
}

#[test]
fn a_descriptor_that_is_not_open_is_a_bad_one() {
    // Nothing here opens so high a number; the last one would need a table larger than any memory.
    const NOT_OPEN: [RawFd; 4] = [-1, i32::MIN, 9_999, i32::MAX];
    in_runtimes(|_| {
        for fd in NOT_OPEN {
            for event in BOTH {
                let from_thread = fibrant::spawn_blocking(move || io::wait(fd, event, None));
                assert_eq!(raw_error(io::wait(fd, event, None).unwrap_err()), libc::EBADF);
                assert_eq!(raw_error(from_thread.join().unwrap().unwrap_err()), libc::EBADF);
                let error = io::add_event(fd, event, || unreachable!()).unwrap_err();
                assert_eq!(raw_error(error), libc::EBADF);
                assert!(!io::del_event(fd, event));
                assert!(!io::cancel_event(fd, event));
            }
            assert!(!io::cancel_all(fd));
            assert_eq!(raw_error(io::close(fd).unwrap_err()), libc::EBADF);
        }
        assert_eq!(io::pending_events(), 0);
    });
}

#[test]
fn no_event_at_all_cannot_be_waited_for() {
    in_runtimes(|_| {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        let from_thread = fibrant::spawn_blocking(move || io::wait(fd, Event::default(), None));
        for error in [
            io::wait(fd, Event::default(), None).unwrap_err(),
            from_thread.join().unwrap().unwrap_err(),
            io::add_event(fd, Event::default(), || unreachable!()).unwrap_err(),
            // One function, one event.
            io::add_event(fd, Event::READ | Event::WRITE, || unreachable!()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("READ"), "{error}");
        }
        assert!(!io::del_event(fd, Event::default()));
        assert!(!io::cancel_event(fd, Event::default()));
    });
}

// Event functions.

#[test]
fn an_event_function_is_called_once_as_a_fiber_on_the_worker_that_added_it() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            let (ours, mut theirs) = streams();
            let fd = ours.as_raw_fd();
            let calls = Calls::new();
            let thread = fibrant::run_on(worker, || {
                io::add_event(fd, Event::READ, calls.function()).unwrap();
                thread_number()
            });
            assert_eq!(io::pending_events(), 1);
            fibrant::sleep(ms(2));
            assert_eq!(calls.count(), 0);
            theirs.write_all(b"x").unwrap();
            eventually(|| calls.count() == 1);
            assert_eq!(calls.thread(), Some(thread));
            assert_eq!(io::pending_events(), 0);
            // Nor is it called for what comes later.
            for _ in 0..3 {
                theirs.write_all(b"x").unwrap();
                fibrant::sleep(ms(1));
            }
            eventually(|| calls.functions() == 0);
            assert_eq!(calls.count(), 1);
            assert!(!io::cancel_all(fd));
        }
    });
}

#[test]
fn each_direction_has_one_function() {
    in_runtimes(|workers| {
        let (ours, theirs) = streams();
        let fd = ours.as_raw_fd();
        fill(&ours);
        let (read, write) = (Calls::new(), Calls::new());
        io::add_event(fd, Event::READ, read.function()).unwrap();
        io::add_event(fd, Event::WRITE, write.function()).unwrap();
        assert_eq!(io::pending_events(), 2);
        for event in BOTH {
            for worker in [0, workers - 1] {
                let again = fibrant::run_on(worker, || io::add_event(fd, event, || unreachable!()));
                assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
            }
        }
        assert_eq!(io::pending_events(), 2);
        drain(&theirs);
        eventually(|| write.count() == 1);
        assert_eq!(read.count(), 0);
        (&theirs).write_all(b"x").unwrap();
        eventually(|| read.count() == 1);
        assert_eq!(write.count(), 1);
        // Once called, there may be another one, on whatever worker; and it finds what is there.
        for worker in 0..workers {
            let again = Calls::new();
            fibrant::run_on(worker, || io::add_event(fd, Event::READ, again.function())).unwrap();
            eventually(|| again.count() == 1);
        }
    });
}

#[test]
fn an_event_function_is_called_if_the_descriptor_was_ready_before() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            fibrant::run_on(worker, || {
                let (ours, mut theirs) = streams();
                let fd = ours.as_raw_fd();
                theirs.write_all(b"x").unwrap();
                for _ in 0..4 {
                    let calls = Calls::new();
                    for event in BOTH {
                        io::add_event(fd, event, calls.function()).unwrap();
                    }
                    assert_eq!(calls.count(), 0, "not inside the call that adds it");
                    eventually(|| calls.count() == 2);
                }
            });
        }
    });
}

#[test]
fn an_event_function_may_add_itself_again() {
    fn add(mut stream: UnixStream, seen: Arc<AtomicUsize>) {
        let fd = stream.as_raw_fd();
        let f = move || {
            assert_eq!(stream.read(&mut [0]).unwrap(), 1);
            if seen.fetch_add(1, SeqCst) < 99 {
                add(stream, seen);
            }
        };
        io::add_event(fd, Event::READ, f).unwrap();
    }
    in_runtimes(|_| {
        let (ours, mut theirs) = streams();
        let seen = Arc::new(AtomicUsize::new(0));
        add(ours, Arc::clone(&seen));
        for _ in 0..100 {
            theirs.write_all(b"x").unwrap();
            fibrant::yield_now();
        }
        eventually(|| seen.load(SeqCst) == 100);
    });
}

#[test]
fn a_hang_up_or_an_error_counts_as_both_events() {
    in_runtimes(|_| {
        // A socket that is full, so that only the hang-up can mean output.
        let (ours, theirs) = streams();
        let fd = ours.as_raw_fd();
        fill(&ours);
        let (read, write) = (Calls::new(), Calls::new());
        io::add_event(fd, Event::READ, read.function()).unwrap();
        io::add_event(fd, Event::WRITE, write.function()).unwrap();
        let waiting = BOTH.map(|event| waiter(0, fd, event));
        drop(theirs);
        eventually(|| read.count() == 1 && write.count() == 1);
        for (fiber, event) in waiting.into_iter().zip(BOTH) {
            assert_eq!(fiber.join().unwrap().unwrap(), event);
        }
        // The reading end of a pipe, where nothing is ever written, and the writing end, where nothing is read.
        let (read_end, write_end) = pipe();
        let waiting = BOTH.map(|event| waiter(0, read_end.as_raw_fd(), event));
        drop(write_end);
        for (fiber, event) in waiting.into_iter().zip(BOTH) {
            assert_eq!(fiber.join().unwrap().unwrap(), event);
        }
        let (read_end, write_end) = pipe();
        fill(&write_end);
        let waiting = BOTH.map(|event| waiter(0, write_end.as_raw_fd(), event));
        drop(read_end);
        for (fiber, event) in waiting.into_iter().zip(BOTH) {
            assert_eq!(fiber.join().unwrap().unwrap(), event);
        }
    });
}

#[test]
fn the_end_of_the_other_sides_output_counts_as_input_only() {
    in_runtimes(|_| {
        let (ours, theirs) = streams();
        let fd = ours.as_raw_fd();
        fill(&ours);
        let (read, write) = (Calls::new(), Calls::new());
        io::add_event(fd, Event::READ, read.function()).unwrap();
        io::add_event(fd, Event::WRITE, write.function()).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        eventually(|| read.count() == 1);
        assert_eq!(write.count(), 0);
        assert!(io::del_event(fd, Event::WRITE));
    });
}

#[test]
fn an_event_cannot_be_added_outside_a_runtime() {
    let (ours, _theirs) = streams();
    let error = io::add_event(ours.as_raw_fd(), Event::READ, || ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("fibrant::run"), "{error}");
    assert_eq!(io::pending_events(), 0);
}

#[test]
fn a_deleted_event_function_is_dropped_and_not_called() {
    in_runtimes(|workers| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let calls = Calls::new();
        let add = |event| io::add_event(fd, event, calls.function()).unwrap();
        fill(&ours);
        for worker in 0..workers {
            add(Event::READ);
            add(Event::WRITE);
            assert!(fibrant::run_on(worker, || io::del_event(fd, Event::READ)));
            assert!(!io::del_event(fd, Event::READ));
            assert_eq!((calls.functions(), io::pending_events()), (1, 1));
            assert!(
                fibrant::spawn_blocking(move || io::del_event(fd, Event::WRITE))
                    .join()
                    .unwrap()
            );
            assert_eq!((calls.functions(), io::pending_events()), (0, 0));
        }
        add(Event::READ);
        add(Event::WRITE);
        assert!(io::del_event(fd, Event::READ | Event::WRITE));
        theirs.write_all(b"x").unwrap();
        fibrant::sleep(ms(5));
        assert_eq!(calls.count(), 0);
        // A fiber that waits there is not concerned.
        assert_eq!(drain(&ours), 1);
        let waiting = waiter(workers - 1, fd, Event::READ);
        assert!(!io::del_event(fd, Event::READ));
        theirs.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
    });
}

#[test]
fn cancelling_an_event_calls_its_function_once_on_its_worker() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            for from_thread in [false, true] {
                let (ours, mut theirs) = streams();
                let fd = ours.as_raw_fd();
                fill(&ours);
                let (read, write) = (Calls::new(), Calls::new());
                let home = fibrant::run_on(worker, || {
                    io::add_event(fd, Event::READ, read.function()).unwrap();
                    io::add_event(fd, Event::WRITE, write.function()).unwrap();
                    thread_number()
                });
                let cancelled = if from_thread {
                    fibrant::spawn_blocking(move || io::cancel_event(fd, Event::READ))
                        .join()
                        .unwrap()
                } else {
                    io::cancel_event(fd, Event::READ)
                };
                assert!(cancelled);
                assert!(!io::cancel_event(fd, Event::READ));
                eventually(|| read.count() == 1);
                assert_eq!(read.thread(), Some(home));
                theirs.write_all(b"x").unwrap();
                fibrant::sleep(ms(2));
                assert_eq!((read.count(), write.count()), (1, 0));
                assert!(io::cancel_all(fd));
                assert!(!io::cancel_all(fd));
                eventually(|| write.count() == 1);
                assert_eq!(io::pending_events(), 0);
            }
        }
    });
}

#[test]
fn cancelling_an_event_ends_the_waits_for_it_on_all_workers() {
    in_runtimes(|workers| {
        let (ours, theirs) = streams();
        let fd = ours.as_raw_fd();
        fill(&ours);
        let readers: Vec<_> = (0..2 * workers)
            .map(|index| waiter(index % workers, fd, Event::READ))
            .collect();
        let both = waiter(workers - 1, fd, Event::READ | Event::WRITE);
        let writer = waiter(0, fd, Event::WRITE);
        assert!(io::cancel_event(fd, Event::READ));
        for fiber in readers.into_iter().chain([both]) {
            assert_eq!(raw_error(fiber.join().unwrap().unwrap_err()), libc::ECANCELED);
        }
        eventually(|| waiters(fd) == 1);
        drain(&theirs);
        assert_eq!(writer.join().unwrap().unwrap(), Event::WRITE);
        assert!(!io::cancel_all(fd), "nobody is left");
        // The descriptor is as good as before.
        let reader = waiter(0, fd, Event::READ);
        assert!(
            fibrant::spawn_blocking(move || io::cancel_all(fd))
                .join()
                .unwrap()
        );
        assert_eq!(raw_error(reader.join().unwrap().unwrap_err()), libc::ECANCELED);
        let reader = waiter(0, fd, Event::READ);
        drop(theirs);
        assert_eq!(reader.join().unwrap().unwrap(), Event::READ);
    });
}

/// A wait that has lasted 10 ms looks after its registration: whoever cancels it just then must not be missed.
#[test]
fn a_cancel_that_meets_a_fiber_looking_after_its_registration_is_heard() {
    let runtime = Builder::new().workers(2).build().unwrap();
    for round in 0..150_u64 {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        let started = Instant::now();
        let waiters = runtime.run_on(0, move || {
            let all: Vec<_> = (0..50)
                .map(|_| fibrant::spawn_local(move || io::wait(fd, Event::READ, None).map_err(raw_error)))
                .collect();
            fibrant::yield_now();
            all
        });
        let meeting = Duration::from_micros(9_900 + round % 10 * 50);
        thread::sleep(meeting.saturating_sub(started.elapsed()));
        io::cancel_event(fd, Event::READ);
        for waiter in waiters {
            eventually(|| waiter.is_finished());
            assert_eq!(waiter.join().unwrap(), Err(libc::ECANCELED));
        }
    }
    runtime.stop().unwrap();
}

#[test]
fn pending_events_are_those_of_this_runtime_on_all_its_workers() {
    in_runtimes(|workers| {
        let pairs: Vec<_> = (0..10).map(|_| streams()).collect();
        for (index, (ours, _)) in pairs.iter().enumerate() {
            assert_eq!(io::pending_events(), index);
            let fd = ours.as_raw_fd();
            fibrant::run_on(index % workers, || io::add_event(fd, Event::READ, || ()).unwrap());
        }
        // A wait of a fiber is not an event function.
        let waiting = waiter(0, pairs[0].0.as_raw_fd(), Event::READ);
        assert_eq!(io::pending_events(), 10);
        let elsewhere = Builder::new().workers(1).build().unwrap();
        assert_eq!(elsewhere.run_on(0, io::pending_events), 0);
        assert_eq!(fibrant::spawn_blocking(io::pending_events).join().unwrap(), 0);
        for (index, (ours, _)) in pairs.iter().enumerate() {
            assert_eq!(io::pending_events(), 10 - index);
            assert!(io::del_event(ours.as_raw_fd(), Event::READ));
        }
        assert_eq!(io::pending_events(), 0);
        waiting.cancel();
        waiting.join().unwrap_err();
    });
}

// Closing, and numbers that are used again.

#[test]
fn closing_a_descriptor_wakes_its_waiters_on_all_workers_and_calls_its_functions() {
    in_runtimes(|workers| {
        for from_thread in [false, true] {
            let (ours, _theirs) = streams();
            fill(&ours);
            let fd = at(6000, ours).into_raw_fd();
            let waiting: Vec<_> = (0..4 * workers)
                .map(|index| waiter(index % workers, fd, BOTH[index / workers % 2]))
                .collect();
            let calls = Calls::new();
            io::add_event(fd, Event::READ, calls.function()).unwrap();
            fibrant::run_on(workers - 1, || io::add_event(fd, Event::WRITE, calls.function())).unwrap();
            if from_thread {
                fibrant::spawn_blocking(move || io::close(fd).unwrap())
                    .join()
                    .unwrap();
            } else {
                io::close(fd).unwrap();
            }
            for fiber in waiting {
                assert_eq!(raw_error(fiber.join().unwrap().unwrap_err()), libc::EBADF);
            }
            eventually(|| calls.count() == 2);
            assert_eq!(io::pending_events(), 0);
            assert_eq!(
                raw_error(io::close(fd).unwrap_err()),
                libc::EBADF,
                "it was closed"
            );
            assert!(!io::cancel_all(fd));
        }
    });
}

#[test]
fn closing_and_cancelling_end_the_waits_of_plain_threads() {
    watched(|| {
        // As many moments as it takes to come before the wait, into its midst, and after it has looked around.
        for pause in (0..40)
            .map(|step| Duration::from_micros(step * 5))
            .chain([ms(5), ms(50)])
        {
            let (ours, _theirs) = streams();
            let fd = at(6050, ours).into_raw_fd();
            let waiting = thread::spawn(move || io::wait(fd, Event::READ, None));
            thread::sleep(pause);
            io::close(fd).unwrap();
            assert_eq!(raw_error(waiting.join().unwrap().unwrap_err()), libc::EBADF);
        }
        let (ours, mut theirs) = streams();
        let fd = at(6050, ours);
        let number = fd.as_raw_fd();
        for (waits_for, cancelled) in [
            (Event::READ, Event::READ),
            (Event::READ, Event::READ | Event::WRITE),
        ] {
            let waiting =
                [(); 2].map(|()| thread::spawn(move || io::wait(number, waits_for, Some(PATIENCE))));
            // Each is found once, when it has begun to wait.
            let found = || waiting.iter().filter(|thread| thread.is_finished()).count();
            while found() < 2 {
                assert!(!io::cancel_event(number, Event::WRITE));
                io::cancel_event(number, cancelled);
            }
            for thread in waiting {
                assert_eq!(raw_error(thread.join().unwrap().unwrap_err()), libc::ECANCELED);
            }
            assert!(!io::cancel_all(number), "nobody is left");
        }
        // Whoever is told says so, once.
        let waiting = thread::spawn(move || io::wait(number, Event::READ, None));
        while !io::cancel_all(number) {
            thread::yield_now();
        }
        assert_eq!(raw_error(waiting.join().unwrap().unwrap_err()), libc::ECANCELED);
        // What ended one wait has nothing to do with the next.
        let waiting = thread::spawn(move || io::wait(number, Event::READ, None));
        thread::sleep(ms(20));
        theirs.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
    });
}

#[test]
fn a_number_that_is_used_again_has_nothing_to_do_with_the_old_file() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            let (old, mut old_peer) = streams();
            let kept = old.try_clone().unwrap(); // the old file stays open, and so would its registration
            let fd = at(6100, old).into_raw_fd();
            let first = waiter(worker, fd, Event::READ);
            old_peer.write_all(b"x").unwrap();
            first.join().unwrap().unwrap();
            assert_eq!(drain(&kept), 1);
            let second = waiter(worker, fd, Event::READ);
            io::close(fd).unwrap();
            assert_eq!(raw_error(second.join().unwrap().unwrap_err()), libc::EBADF);

            let (new, mut new_peer) = streams();
            let new = at(6100, new);
            assert_eq!(new.as_raw_fd(), fd);
            let calls = Calls::new();
            fibrant::run_on(worker, || io::add_event(fd, Event::READ, calls.function())).unwrap();
            let waiting = waiter(worker, fd, Event::READ);
            for _ in 0..5 {
                old_peer.write_all(b"x").unwrap();
                fibrant::sleep(ms(1));
            }
            assert_eq!(
                (calls.count(), waiting.is_finished()),
                (0, false),
                "called for the old file's data"
            );
            new_peer.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
            eventually(|| calls.count() == 1);
            io::close(new.into_raw_fd()).unwrap();
        }
    });
}

#[test]
fn an_event_that_is_under_way_when_its_descriptor_is_closed_reaches_nobody() {
    in_runtime(1, || {
        for _ in 0..50 {
            let (old, mut old_peer) = streams();
            let kept = old.try_clone().unwrap();
            let fd = at(6200, old).into_raw_fd();
            let registered = waiter(0, fd, Event::READ);
            old_peer.write_all(b"x").unwrap();
            registered.join().unwrap().unwrap();
            drain(&kept);
            // The worker does not poll before this fiber gives way: the edge is in its epoll by then.
            old_peer.write_all(b"x").unwrap();
            io::close(fd).unwrap();
            let (new, _new_peer) = streams();
            let new = at(6200, new);
            let calls = Calls::new();
            io::add_event(fd, Event::READ, calls.function()).unwrap();
            fibrant::sleep(Duration::from_micros(200));
            assert_eq!(calls.count(), 0);
            assert!(io::del_event(fd, Event::READ));
            io::close(new.into_raw_fd()).unwrap();
        }
    });
}

#[test]
fn a_fiber_that_was_woken_and_whose_descriptor_is_then_closed_does_not_wait_for_the_next_file() {
    in_runtime(1, || {
        let (old, mut old_peer) = streams();
        let fd = at(6300, old).into_raw_fd();
        let (first, mut first_peer) = streams();
        // Both wake-ups come out of one poll; this fiber's is first, so it acts before the other one has run.
        let closer = fibrant::spawn_local(move || {
            io::wait(first.as_raw_fd(), Event::READ, None).unwrap();
            io::close(fd).unwrap();
            let (new, new_peer) = streams();
            (at(6300, new), new_peer)
        });
        fibrant::yield_now();
        let waiting = waiter(0, fd, Event::READ);
        first_peer.write_all(b"x").unwrap();
        old_peer.write_all(b"x").unwrap();
        let _new = closer.join().unwrap();
        let Ok(ended) = waiting.join_timeout(PATIENCE) else {
            panic!("it waits for a file that it knows nothing of");
        };
        assert_eq!(raw_error(ended.unwrap().unwrap_err()), libc::EBADF);
    });
}

#[test]
fn a_descriptor_that_was_closed_without_our_knowledge_heals() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            for keep_the_old_file in [false, true] {
                for (event, late) in [
                    (BOTH[0], false),
                    (BOTH[0], true),
                    (BOTH[1], false),
                    (BOTH[1], true),
                ] {
                    let (old, mut old_peer) = streams();
                    let kept = keep_the_old_file.then(|| old.try_clone().unwrap());
                    let old = at(6400, old);
                    let fd = old.as_raw_fd();
                    let registered = waiter(worker, fd, Event::READ);
                    old_peer.write_all(b"x").unwrap();
                    registered.join().unwrap().unwrap();
                    fibrant::run_on(worker, || io::wait(fd, Event::WRITE, None)).unwrap();
                    close_secretly(old);

                    let (new, mut new_peer) = streams();
                    fill(&new);
                    let new = at(6400, new);
                    assert_eq!(new.as_raw_fd(), fd);
                    let waiting = waiter(worker, fd, event);
                    if late {
                        fibrant::sleep(ms(20)); // it has healed before
                    }
                    let start = Instant::now();
                    new_peer.write_all(b"x").unwrap();
                    drain(&new_peer);
                    assert_eq!(waiting.join().unwrap().unwrap(), event);
                    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
                    drop(kept);
                    io::close(new.into_raw_fd()).unwrap();
                }
            }
        }
    });
}

#[test]
fn an_event_function_finds_the_new_file_after_a_close_without_our_knowledge() {
    in_runtimes(|_| {
        let (old, mut old_peer) = streams();
        let old = at(6500, old);
        let fd = old.as_raw_fd();
        let registered = waiter(0, fd, Event::READ);
        old_peer.write_all(b"x").unwrap();
        registered.join().unwrap().unwrap();
        close_secretly(old);
        let (new, mut new_peer) = streams();
        let new = at(6500, new);
        let calls = Calls::new();
        io::add_event(fd, Event::READ, calls.function()).unwrap();
        new_peer.write_all(b"x").unwrap();
        eventually(|| calls.count() == 1);
        io::close(new.into_raw_fd()).unwrap();
    });
}

#[test]
fn descriptors_far_above_1024_can_be_waited_for() {
    in_runtimes(|workers| {
        // Who waits meanwhile stays where it is when the table grows.
        let (low, mut peer) = streams();
        let stays = waiter(0, low.as_raw_fd(), Event::READ);
        for number in [1024, 1025, 4095, 4096, 7777] {
            let (ours, mut theirs) = streams();
            // 1024 and a bit may be in use: any number from there on will do.
            raise_descriptor_limit();
            // SAFETY: makes a descriptor.
            let ours = own(unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number) });
            assert!(ours.as_raw_fd() >= number);
            let waiting = waiter(workers - 1, ours.as_raw_fd(), Event::READ);
            theirs.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        }
        assert!(!stays.is_finished());
        peer.write_all(b"x").unwrap();
        assert_eq!(stays.join().unwrap().unwrap(), Event::READ);
    });
}

// Cancelling fibers.

/// Sends when it is dropped.
struct Unwound(mpsc::Sender<()>);

impl Drop for Unwound {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn cancelling_a_fiber_that_waits_unwinds_it() {
    in_runtimes(|workers| {
        for worker in 0..workers {
            let (ours, _theirs) = streams();
            let fd = ours.as_raw_fd();
            let (sender, receiver) = mpsc::channel();
            let fiber = fibrant::Builder::new()
                .worker(worker)
                .spawn(move || {
                    let _unwound = Unwound(sender);
                    let _ = io::wait(fd, Event::READ, None);
                    unreachable!("the wait has returned");
                })
                .unwrap();
            eventually(|| waiters(fd) == 1);
            fiber.cancel();
            let ended: thread::Result<()> = fiber.join();
            assert!(ended.unwrap_err().is::<fibrant::Cancelled>());
            receiver.try_recv().unwrap();
            assert!(!io::cancel_all(fd), "it is out of the list");
        }
    });
}

/// Lets two fibers of a worker wait for one datagram, and makes the first leave at about the moment that it comes: because it
/// is cancelled, or because its time is up. Whatever happens first, one of them has it in the end.
fn check_that_the_wake_is_passed_on(by_cancel: bool) {
    in_runtimes(|workers| {
        const TIMEOUT: Duration = ms(25); // by then a wait has looked after its registration
        let mut numbers = Numbers(11);
        for round in 0..40 {
            let (ours, theirs) = datagrams();
            let ours = Arc::new(ours);
            let fd = ours.as_raw_fd();
            let spawn = |timeout: Option<Duration>| {
                let socket = Arc::clone(&ours);
                let receive = move || {
                    while socket.recv(&mut [0]).is_err() {
                        if io::wait(socket.as_raw_fd(), Event::READ, timeout).is_err() {
                            return false;
                        }
                    }
                    true
                };
                fibrant::Builder::new()
                    .worker(workers - 1)
                    .spawn(receive)
                    .unwrap()
            };
            let begin = Instant::now();
            let first = spawn((!by_cancel).then_some(TIMEOUT));
            eventually(|| waiters(fd) == 1 || first.is_finished());
            let second = spawn(None);
            let pauses = [(); 2].map(|()| TIMEOUT + Duration::from_micros(numbers.below(150)));
            // From a thread of its own, so that it falls into the middle of what the worker does.
            let sender = fibrant::spawn_blocking(move || {
                spin_until(begin + pauses[0]);
                theirs.send(&[1]).unwrap();
                theirs
            });
            let first = fibrant::spawn_blocking(move || {
                if by_cancel {
                    spin_until(begin + pauses[1]);
                    first.cancel();
                }
                first
            });
            let (theirs, first) = (sender.join().unwrap(), first.join().unwrap());
            if first.join().unwrap_or(false) {
                second.cancel();
                assert!(second.join().is_err());
            } else {
                let Ok(received) = second.join_timeout(Duration::from_secs(5)) else {
                    panic!("round {round}: the first has left, and nobody has told the second")
                };
                assert!(received.unwrap());
            }
            drop(theirs);
        }
    });
}

/// Keeps a thread busy until then: more exact than a sleep.
fn spin_until(moment: Instant) {
    thread::sleep((moment - ms(1)).saturating_duration_since(Instant::now()));
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
}

#[test]
fn a_fiber_that_is_cancelled_as_its_event_comes_passes_it_on() {
    check_that_the_wake_is_passed_on(true);
}

#[test]
fn a_fiber_whose_time_is_up_as_its_event_comes_passes_it_on() {
    check_that_the_wake_is_passed_on(false);
}

#[test]
fn the_fiber_that_has_waited_longest_is_woken_first() {
    in_runtime(1, || {
        let (ours, theirs) = datagrams();
        let ours = Arc::new(ours);
        let order: Arc<std::sync::Mutex<Vec<usize>>> = Arc::default();
        let fibers: Vec<_> = (0..5)
            .map(|index| {
                let (ours, order) = (Arc::clone(&ours), Arc::clone(&order));
                let fd = ours.as_raw_fd();
                let fiber = fibrant::spawn_local(move || {
                    while ours.recv(&mut [0]).is_err() {
                        io::wait(ours.as_raw_fd(), Event::READ, None).unwrap();
                    }
                    order.lock().unwrap().push(index);
                });
                eventually(|| waiters(fd) == index + 1);
                fiber
            })
            .collect();
        outlast_the_look(); // which must not change their order
        for served in 1..=fibers.len() {
            theirs.send(&[1]).unwrap();
            eventually(|| order.lock().unwrap().len() == served);
        }
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
    });
}

#[test]
fn an_edge_that_meets_a_cancelled_fiber_before_its_turn_reaches_the_next() {
    in_runtime(1, || {
        for cancelled in [0, 1] {
            let (ours, mut theirs) = streams();
            let fd = ours.as_raw_fd();
            let mut fibers = vec![waiter(0, fd, Event::READ), waiter(0, fd, Event::READ)];
            outlast_the_look();
            // Enough fibers for several polls before the cancelled one, which is still in the list, has its turn.
            for _ in 0..400 {
                drop(fibrant::spawn_local(fibrant::yield_now));
            }
            let cancelled = fibers.remove(cancelled);
            cancelled.cancel();
            theirs.write_all(b"x").unwrap();
            let Ok(ended) = fibers.remove(0).join_timeout(Duration::from_secs(5)) else {
                panic!("the edge has ended with the one that was cancelled");
            };
            assert_eq!(ended.unwrap().unwrap(), Event::READ);
            assert!(cancelled.join().unwrap_err().is::<fibrant::Cancelled>());
        }
    });
}

#[test]
fn a_cancelled_fiber_leaves_the_next_event_to_the_others() {
    in_runtimes(|workers| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let fibers: Vec<_> = (0..4).map(|_| waiter(workers - 1, fd, Event::READ)).collect();
        // All but the third, in the same breath as the event.
        for index in [0, 1, 3] {
            fibers[index].cancel();
        }
        theirs.write_all(b"x").unwrap();
        for (index, fiber) in fibers.into_iter().enumerate() {
            match fiber.join() {
                Ok(event) => assert_eq!(event.unwrap(), Event::READ),
                Err(payload) => assert!(index != 2 && payload.is::<fibrant::Cancelled>()),
            }
        }
    });
}

#[test]
fn a_woken_fiber_that_finds_nothing_waits_on_and_is_still_woken() {
    in_runtime(1, || {
        const CROWD: usize = 400;
        // Each write to an eventfd is an edge, and one read takes everything away.
        // SAFETY: makes a descriptor.
        let event: File = own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }).into();
        let event = Arc::new(event);
        let fd = event.as_raw_fd();
        let add = |mut event: &File| assert_eq!(event.write(&1_u64.to_ne_bytes()).unwrap(), 8);
        let waiting = fibrant::spawn_local(move || io::wait(fd, Event::READ, None));
        eventually(|| waiters(fd) == 1);
        outlast_the_look();
        // Enough fibers for several polls in one round of the queue. In the first round each of them makes an edge: the first
        // edge wakes the fiber above, the others find nobody, because it has not had its turn. In the second round, before
        // it has, everything is taken away.
        let ended = Arc::new(AtomicUsize::new(0));
        for _ in 0..CROWD {
            let (event, ended) = (Arc::clone(&event), Arc::clone(&ended));
            fibrant::spawn_local(move || {
                add(&event);
                fibrant::yield_now();
                drop((&*event).read(&mut [0; 8])); // or somebody else has
                ended.fetch_add(1, SeqCst);
            });
        }
        // Not joined: a fiber that is joined before it has started runs out of its turn.
        while ended.load(SeqCst) < CROWD {
            fibrant::yield_now();
        }
        if !waiting.is_finished() {
            eventually(|| waiters(fd) == 1);
            add(&event);
        }
        let Ok(ended) = waiting.join_timeout(Duration::from_secs(5)) else {
            panic!("nobody wakes it any more");
        };
        assert_eq!(ended.unwrap().unwrap(), Event::READ);
    });
}

#[test]
fn input_that_nobody_reads_does_not_make_a_writer_wait_for_ever() {
    in_runtimes(|workers| {
        for as_function in [false, true] {
            let (ours, mut theirs) = streams();
            let fd = ours.as_raw_fd();
            fill(&ours);
            let calls = Calls::new();
            let writer = (!as_function).then(|| waiter(workers - 1, fd, Event::WRITE));
            if as_function {
                let add = || io::add_event(fd, Event::WRITE, calls.function());
                fibrant::run_on(workers - 1, add).unwrap();
            }
            outlast_the_look();
            // Edges that concern nobody. The registration must outlast them.
            for _ in 0..5 {
                theirs.write_all(b"x").unwrap();
                fibrant::sleep(ms(1));
            }
            assert!(calls.count() == 0 && writer.as_ref().is_none_or(|fiber| !fiber.is_finished()));
            drain(&theirs);
            match writer {
                Some(fiber) => {
                    let Ok(ended) = fiber.join_timeout(Duration::from_secs(5)) else {
                        panic!("nobody has told the writer");
                    };
                    assert_eq!(ended.unwrap().unwrap(), Event::WRITE);
                }
                None => eventually(|| calls.count() == 1),
            }
        }
    });
}

/// Whether any epoll of this process knows a descriptor.
fn is_registered(fd: RawFd) -> bool {
    let knows = |epoll: std::fs::DirEntry| {
        let text = std::fs::read_to_string(epoll.path()).unwrap_or_default();
        let mut targets = text.lines().filter_map(|line| line.strip_prefix("tfd:"));
        targets.any(|rest| rest.split_whitespace().next() == Some(&fd.to_string()))
    };
    let mut entries = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    entries.any(knows)
}

/// What an epoll of this process waits for at a descriptor, if one does.
fn registered_for(fd: RawFd) -> Option<u32> {
    let entries = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts = entries.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default());
    let events = |line: &str| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        (words.next()? == fd.to_string()).then_some(())?;
        let mask = words.skip_while(|word| *word != "events:").nth(1)?;
        u32::from_str_radix(mask, 16).ok()
    };
    texts.flat_map(|text| text.lines().find_map(events)).next()
}

#[test]
fn output_is_registered_for_when_somebody_first_waits_for_it() {
    in_runtimes(|workers| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let waiting = waiter(workers - 1, fd, Event::READ);
        theirs.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        let events = registered_for(fd).expect("it is registered");
        assert_eq!(
            events & (libc::EPOLLIN | libc::EPOLLOUT) as u32,
            libc::EPOLLIN as u32
        );
        fill(&ours);
        let waiting = waiter(workers - 1, fd, Event::WRITE);
        eventually(|| registered_for(fd).is_some_and(|events| events & libc::EPOLLOUT as u32 != 0));
        assert!(drain(&theirs) > 0);
        assert_eq!(waiting.join().unwrap().unwrap(), Event::WRITE);
    });
}

#[test]
fn urgent_data_is_something_to_read() {
    in_runtimes(|workers| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let waiting = waiter(workers - 1, ours.as_raw_fd(), Event::READ);
        let called = Arc::new(AtomicBool::new(false));
        let call = Arc::clone(&called);
        let add = move || {
            io::add_event(ours.as_raw_fd(), Event::READ, move || call.store(true, SeqCst)).map(|()| ours)
        };
        let ours = fibrant::run_on(0, add).unwrap();
        // SAFETY: sends a byte of a literal.
        let sent = unsafe { libc::send(theirs.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1);
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        eventually(|| called.load(SeqCst));
        drop(ours);
    });
}

#[test]
fn input_that_nobody_ever_reads_ends_the_registration() {
    in_runtimes(|workers| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let waiting = waiter(workers - 1, fd, Event::READ);
        theirs.write_all(b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        assert!(is_registered(fd), "it stays registered");
        // Edges that concern nobody, and are seen before another that comes later.
        let mut stray_edge = || {
            let (probe, mut peer) = streams();
            let waiting = waiter(workers - 1, probe.as_raw_fd(), Event::READ);
            theirs.write_all(b"x").unwrap();
            peer.write_all(b"x").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), Event::READ);
        };
        stray_edge();
        assert!(is_registered(fd), "once may be chance");
        stray_edge();
        assert!(!is_registered(fd), "twice running is not");
        // Whoever waits again is told all the same.
        let told = fibrant::run_on(workers - 1, || io::wait(fd, Event::READ, None));
        assert_eq!(told.unwrap(), Event::READ);
    });
}

#[test]
fn an_edge_for_a_fiber_that_waits_is_not_lost_to_a_function_of_another_worker() {
    in_runtimes(|workers| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let calls = Calls::new();
        let waiting: Vec<_> = (0..workers)
            .map(|worker| waiter(worker, fd, Event::READ))
            .collect();
        io::add_event(fd, Event::READ, calls.function()).unwrap();
        theirs.write_all(b"x").unwrap();
        for fiber in waiting {
            assert_eq!(fiber.join().unwrap().unwrap(), Event::READ);
        }
        eventually(|| calls.count() == 1);
    });
}

// Fairness and numbers.

#[test]
fn a_fiber_that_yields_for_ever_does_not_starve_one_that_waits() {
    in_runtime(1, || {
        let (mut ours, mut theirs) = streams();
        let over = Arc::new(AtomicBool::new(false));
        let yielders: Vec<_> = (0..3)
            .map(|_| {
                let over = Arc::clone(&over);
                fibrant::spawn(move || {
                    while !over.load(SeqCst) {
                        fibrant::yield_now();
                    }
                })
            })
            .collect();
        let echo = thread::spawn(move || {
            for _ in 0..100 {
                theirs.set_nonblocking(false).unwrap();
                theirs.write_all(b"x").unwrap();
                theirs.read_exact(&mut [0]).unwrap();
            }
        });
        for _ in 0..100 {
            let event = io::wait(ours.as_raw_fd(), Event::READ, Some(Duration::from_secs(10)));
            event.expect("it starves");
            ours.read_exact(&mut [0]).unwrap();
            ours.write_all(b"x").unwrap();
        }
        over.store(true, SeqCst);
        echo.join().unwrap();
        yielders.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

#[test]
fn everybody_has_a_turn_among_functions_of_events_that_never_cease() {
    /// Counts, and waits for the same event again, which has happened already.
    fn again(fd: RawFd, calls: Arc<AtomicUsize>) {
        calls.fetch_add(1, SeqCst);
        // When all is over it is closed.
        let _ = io::add_event(fd, Event::READ, move || again(fd, calls));
    }
    in_runtime(1, || {
        const DESCRIPTORS: usize = 300; // more than one poll takes
        let calls = Arc::new(AtomicUsize::new(0));
        let ready: Vec<_> = (0..DESCRIPTORS)
            // SAFETY: makes a descriptor.
            .map(|_| own(unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }))
            .collect();
        for fd in &ready {
            let (fd, calls) = (fd.as_raw_fd(), Arc::clone(&calls));
            io::add_event(fd, Event::READ, move || again(fd, calls)).unwrap();
        }
        // Until the flood is there, which takes some polls.
        eventually(|| {
            fibrant::yield_now();
            calls.load(SeqCst) > 10 * DESCRIPTORS
        });
        let before = calls.load(SeqCst);
        for _ in 0..200 {
            let turn = calls.load(SeqCst);
            let fresh = fibrant::spawn(|| ());
            let parked = fibrant::spawn_local(fibrant::fiber::park);
            fibrant::yield_now();
            // At most all that were there, and all that came while they ran.
            let called = calls.load(SeqCst) - turn;
            assert!(
                called <= 2 * DESCRIPTORS,
                "{called} calls in one turn of the queue"
            );
            fibrant::yield_now();
            assert!(fresh.is_finished(), "it has not run after two turns of the queue");
            parked.fiber().unpark();
            fibrant::yield_now();
            fibrant::yield_now();
            assert!(
                parked.is_finished(),
                "it has not gone on after two turns of the queue"
            );
        }
        assert!(calls.load(SeqCst) > before, "there was no flood");
        for fd in ready {
            io::del_event(fd.as_raw_fd(), Event::READ);
            io::close(fd.into_raw_fd()).unwrap();
        }
    });
}

#[test]
fn a_flood_of_events_does_not_starve_a_fiber_that_yields() {
    in_runtime(1, || {
        const SOCKETS: usize = 300; // more than one poll takes
        let over = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicUsize::new(0));
        let (readers, writers): (Vec<_>, Vec<_>) = (0..SOCKETS)
            .map(|_| {
                let (ours, theirs) = streams();
                let received = Arc::clone(&received);
                let reader = fibrant::spawn(move || {
                    let mut buffer = [0; 64];
                    loop {
                        match (&ours).read(&mut buffer) {
                            Ok(0) => return,
                            Ok(count) => drop(received.fetch_add(count, SeqCst)),
                            Err(_) => drop(io::wait(ours.as_raw_fd(), Event::READ, None).unwrap()),
                        }
                    }
                });
                (reader, theirs)
            })
            .unzip();
        let flood = thread::spawn({
            let over = Arc::clone(&over);
            move || {
                while !over.load(SeqCst) {
                    writers.iter().for_each(|writer| drop((&*writer).write(b"x")));
                }
            }
        });
        eventually(|| received.load(SeqCst) > SOCKETS);
        // A turn may take long: the readers that run in between read for as long as there is something to read.
        let start = Instant::now();
        let enough = received.load(SeqCst) + 10 * SOCKETS;
        let mut turns = 0;
        while turns < 100 || received.load(SeqCst) < enough {
            fibrant::yield_now();
            turns += 1;
            assert!(start.elapsed() < Duration::from_secs(20), "{turns} turns in 20 s");
        }
        over.store(true, SeqCst);
        flood.join().unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn a_thousand_socket_pairs_at_once() {
    raise_descriptor_limit();
    in_runtimes(|_| {
        const PAIRS: usize = 1000;
        let receive = |stream: &mut UnixStream| {
            let mut byte = [0];
            while let Err(error) = stream.read_exact(&mut byte) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                io::wait(stream.as_raw_fd(), Event::READ, None).unwrap();
            }
            byte[0]
        };
        let (servers, clients): (Vec<_>, Vec<_>) = (0..PAIRS)
            .map(|index| {
                let (mut ours, mut theirs) = streams();
                let number = (index % 251) as u8;
                let server = fibrant::spawn(move || {
                    assert_eq!(receive(&mut theirs), number);
                    theirs.write_all(&[number + 1]).unwrap();
                    theirs // open until the other side has it
                });
                let client = fibrant::spawn(move || {
                    fibrant::fiber::park();
                    ours.write_all(&[number]).unwrap();
                    assert_eq!(receive(&mut ours), number + 1);
                    ours
                });
                (server, client)
            })
            .unzip();
        // All servers wait before the first client speaks.
        let runtime = Runtime::current().unwrap();
        let waits = |wait| matches!(wait, Some(WaitReason::Descriptor { .. }));
        eventually(|| {
            runtime
                .dump()
                .fibers
                .iter()
                .filter(|fiber| waits(fiber.wait))
                .count()
                == PAIRS
        });
        clients.iter().for_each(|client| client.fiber().unpark());
        let _open: Vec<_> = clients
            .into_iter()
            .chain(servers)
            .map(|fiber| fiber.join().unwrap())
            .collect();
    });
}

// The end of a runtime.

#[test]
fn stop_waits_for_pending_event_functions() {
    watched(|| {
        for workers in [1, 2, 4] {
            let runtime = Builder::new().workers(workers).build().unwrap();
            let pairs: Vec<_> = (0..workers).map(|_| streams()).collect();
            let calls = Calls::new();
            for (worker, (ours, _)) in pairs.iter().enumerate() {
                let fd = ours.as_raw_fd();
                runtime.run_on(worker, || {
                    io::add_event(fd, Event::READ, calls.function()).unwrap()
                });
            }
            // One that is deleted is not waited for.
            let (deleted, _other) = streams();
            let fd = deleted.as_raw_fd();
            runtime.run_on(0, || io::add_event(fd, Event::READ, || unreachable!()).unwrap());
            let barrier = Barrier::new(2);
            thread::scope(|scope| {
                let runtime = &runtime;
                let (calls, barrier) = (&calls, &barrier);
                let stopper = scope.spawn(move || {
                    barrier.wait();
                    runtime.stop().unwrap();
                    calls.count()
                });
                barrier.wait();
                eventually(|| runtime.dump().stopping);
                assert!(io::del_event(fd, Event::READ));
                fibrant::hook::disabled(|| thread::sleep(ms(5)));
                assert!(!stopper.is_finished());
                pairs
                    .iter()
                    .for_each(|(_, theirs)| (&*theirs).write_all(b"x").unwrap());
                assert_eq!(stopper.join().unwrap(), workers);
            });
        }
    });
}

#[test]
fn dropping_a_runtime_drops_its_event_functions_and_frees_their_descriptors() {
    watched(|| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        for workers in [1, 2] {
            let calls = Calls::new();
            let runtime = Builder::new().workers(workers).build().unwrap();
            runtime.run_on(workers - 1, || {
                io::add_event(fd, Event::READ, calls.function()).unwrap()
            });
            drop(runtime);
            // Soon: a thread that does not come back within a second is not waited for.
            eventually(|| calls.functions() == 0);
            assert_eq!(calls.count(), 0);
            // Another runtime finds the descriptor free.
            let runtime = Builder::new().workers(workers).build().unwrap();
            let added = runtime.run_on(0, || io::add_event(fd, Event::READ, calls.function()));
            added.unwrap();
            theirs.write_all(b"x").unwrap();
            runtime.stop().unwrap();
            assert_eq!(calls.count(), 1);
            assert_eq!(drain(&ours), 1);
        }
    });
}

#[test]
fn a_descriptor_may_be_waited_for_in_one_runtime_after_another_and_in_two_at_once() {
    watched(|| {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        for _ in 0..10 {
            // The epoll of a new runtime may have the number of an earlier one's.
            let runtimes = [1, 2].map(|workers| Builder::new().workers(workers).build().unwrap());
            let fibers = runtimes
                .each_ref()
                .map(|runtime| runtime.spawn(move || io::wait(fd, Event::READ, None)));
            for runtime in &runtimes {
                eventually(|| waiters_in(runtime, fd) == 1);
            }
            theirs.write_all(b"x").unwrap();
            for fiber in fibers {
                assert_eq!(fiber.join().unwrap().unwrap(), Event::READ);
            }
            assert_eq!(drain(&ours), 1);
            let [one, two] = runtimes;
            one.stop().unwrap();
            drop(two);
        }
    });
}

#[test]
fn a_wait_that_does_not_end_is_cancelled_when_its_runtime_is_dropped() {
    watched(|| {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        let runtime = Builder::new().workers(2).build().unwrap();
        let fiber = runtime.spawn(move || io::wait(fd, Event::READ, Some(FAR)));
        eventually(|| waiters_in(&runtime, fd) == 1);
        drop(runtime);
        assert!(fiber.join().unwrap_err().is::<fibrant::Cancelled>());
        assert!(!io::cancel_all(fd));
    });
}
