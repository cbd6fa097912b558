//! Identity and lifetime of descriptors: points 1 to 7.

use crate::secret;
use crate::support::*;
use fibrant::runtime::{Builder, Runtime};
use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

const BAD: (isize, i32) = (-1, libc::EBADF);

/// What a descriptor gives: a call of `read`, and what was read.
fn read(fd: RawFd) -> ((isize, i32), Vec<u8>) {
    let mut buffer = [0; 16];
    // SAFETY: the buffer has that length.
    let result = told(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) });
    (result, buffer[..result.0.max(0) as usize].to_vec())
}

fn copy(fd: &impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

/// Puts a file at a number without a hook's knowledge.
fn put_secretly(fd: impl Into<OwnedFd>, number: RawFd) -> RawFd {
    secret::put(&fd.into(), number);
    number
}

/// Closes without a hook's knowledge.
fn close_secretly(fd: RawFd) {
    // SAFETY: nobody else uses that number.
    secret::close(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// A pair of streams that a constructor makes, before `main` and any runtime.
static EARLY: OnceLock<[RawFd; 2]> = OnceLock::new();

extern "C" fn make_early_streams() {
    let mut ends = [0; 2];
    // SAFETY: writes two numbers.
    unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
            ends.as_mut_ptr(),
        )
    };
    let _ = EARLY.set(ends);
}

// SAFETY: the section holds functions that are called before `main`, and this is one.
#[unsafe(link_section = ".init_array")]
#[used]
static CONSTRUCTOR: extern "C" fn() = make_early_streams;

/// Closes a descriptor when the thread that has it ends.
struct CloseAtTheEnd(Cell<RawFd>);

impl Drop for CloseAtTheEnd {
    fn drop(&mut self) {
        close(self.0.get());
    }
}

thread_local! {
    static CLOSED_AT_THE_END: CloseAtTheEnd = const { CloseAtTheEnd(Cell::new(-1)) };
}

/// Two descriptors for one file that has no name any more.
fn lockable() -> [File; 2] {
    let path = std::env::temp_dir().join(format!(
        "fibrant-identity-{}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    let files = [0; 2].map(|_| File::create(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    files
}

/// Puts the second file at the number of one whose lock the first file has, while `lock` waits for it. What that comes to, and
/// whether the new file is not locked.
fn lock_of_the_next_file(lock: fn(RawFd) -> (isize, i32)) -> ((isize, i32), bool) {
    let ([held, waiting], [new, other]) = (lockable(), lockable());
    let number = put(waiting, numbers(1));
    assert_eq!(lock(held.as_raw_fd()), (0, 0));
    let putter = later(move || put(new, number));
    let told = lock(number);
    putter.join().unwrap();
    // SAFETY: numbers.
    let is_free = unsafe { libc::flock(other.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    close(number);
    (told, is_free)
}

bodies! {
    p01_who_waits_gets_nothing_of_the_next_file, true => (BAD, b"new".to_vec()), || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        let (new, mut peer) = streams();
        peer.write_all(b"new").unwrap();
        put(ours, number);
        let new_one = copy(&new);
        later(move || put(new_one, number));
        let first = receive(number, &mut [0; 8], 0);
        close(number);
        (first, read(new.as_raw_fd()).1)
    };
    p01_an_edge_of_the_old_file_is_not_the_new_ones, true, || {
        let number = numbers(1);
        let (ours, mut theirs) = streams();
        let (new, _peer) = streams();
        put(copy(&ours), number);
        set_receive_timeout(number, ms(10));
        let nothing = receive(number, &mut [0; 8], 0);
        // The old file lives on in its copy.
        put(new, number);
        set_receive_timeout(number, ms(40));
        let writer = later(move || theirs.write_all(b"old").unwrap());
        let start = Instant::now();
        let new = receive(number, &mut [0; 8], 0);
        let took = start.elapsed();
        writer.join().unwrap(); // should it have been late
        let result = (nothing, new, took >= ms(30), read(ours.as_raw_fd()));
        close(number);
        result
    };
    p01_a_timeout_is_the_files_not_the_numbers, true, || {
        let number = numbers(1);
        put(streams().0, number);
        let hung_up = receive(number, &mut [0; 8], 0);
        let (first, _first_peer) = streams();
        put(first, number);
        set_receive_timeout(number, ms(5));
        let timed_out = receive(number, &mut [0; 8], 0);
        close(number);
        let (second, mut peer) = streams();
        put(second, number);
        later(move || {
            thread::sleep(ms(30));
            peer.write_all(b"late").unwrap();
        });
        let result = (hung_up, timed_out, read(number));
        close(number);
        result
    };
    p01_a_flag_is_the_files_not_the_numbers, true, || {
        let number = numbers(1);
        let (first, _first_peer) = streams();
        first.set_nonblocking(true).unwrap();
        put(first, number);
        let refused = read(number);
        let (second, mut peer) = streams();
        put(second, number);
        later(move || peer.write_all(b"data").unwrap());
        let result = (refused, read(number));
        close(number);
        result
    };
    p01_a_number_may_be_of_any_kind_next, true, || {
        let number = numbers(1);
        let (reader, writer) = pipe();
        put(reader, number);
        later(move || drop(File::from(writer).write_all(b"pipe")));
        let of_pipe = read(number);
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        put(ours, number);
        later(move || theirs.send(b"datagram").unwrap());
        let of_datagram = read(number);
        put(File::open("/proc/self/exe").unwrap(), number);
        let of_file = read(number).0;
        put(TcpListener::bind("127.0.0.1:0").unwrap(), number);
        let of_listener = read(number);
        let closed = close(number);
        (of_pipe, of_datagram, of_file, of_listener, closed, read(number))
    };

    p02_a_read_ends_when_a_thread_closes_the_descriptor, true => BAD, || {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        // From a thread that is no worker.
        later(move || {
            // By now who waits has made sure that it is open: only who closes it can tell.
            thread::sleep(ms(50));
            drop(ours);
        });
        receive(fd, &mut [0; 4], 0)
    };
    p02_a_write_ends_when_another_file_takes_the_number, true => BAD, || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        put(ours, number);
        fill(number);
        let (new, _peer) = streams();
        later(move || put(new, number));
        // SAFETY: one byte.
        let result = told(unsafe { libc::send(number, b"x".as_ptr().cast(), 1, 0) });
        close(number);
        result
    };
    p02_a_range_is_closed_with_all_who_wait, true => ((0, 0), vec![BAD; 3]), || {
        let first = numbers(4);
        let (ends, _peers): (Vec<_>, Vec<_>) = (0..3).map(|_| streams()).unzip();
        let readers: Vec<_> = ends
            .into_iter()
            .zip(first..)
            .map(|(end, number)| {
                put(end, number);
                go_anywhere(move || receive(number, &mut [0; 4], 0)).waiting()
            })
            .collect();
        // SAFETY: nobody else uses these numbers.
        let closed = told(unsafe { libc::close_range(first as u32, first as u32 + 3, 0) } as isize);
        (closed, readers.into_iter().map(Activity::join).collect())
    };
    p02_everyone_who_waits_is_told, true => vec![BAD; 20], || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        put(ours, number);
        let readers: Vec<_> = (0..20).map(|_| go_anywhere(move || receive(number, &mut [0; 4], 0)).waiting()).collect();
        close(number);
        readers.into_iter().map(Activity::join).collect()
    };
    p02_an_accept_ends_when_its_listener_is_closed, true => BAD, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        later(move || drop(listener));
        // SAFETY: asks for no address.
        told(unsafe { libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()) } as isize)
    };
    p02_a_poll_tells_that_one_was_closed, true => (1, [0, libc::POLLNVAL]), || {
        let first = numbers(2);
        let (a, _b) = streams();
        let (c, _d) = streams();
        put(a, first);
        put(c, first + 1);
        later(move || close(first + 1));
        let mut list = [first, first + 1].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: there are two.
        let result = unsafe { libc::poll(list.as_mut_ptr(), 2, -1) };
        close(first);
        (result, list.map(|one| one.revents))
    };

    p01_who_waits_for_a_lock_does_not_lock_the_next_file, true => (BAD, true), || {
        // SAFETY: numbers.
        lock_of_the_next_file(|fd| told(unsafe { libc::flock(fd, libc::LOCK_EX) } as isize))
    };
    p01_who_waits_for_a_record_does_not_lock_the_next_file, true => (BAD, true), || {
        lock_of_the_next_file(|fd| {
            // SAFETY: all zero, but for what is said, is the whole file.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = libc::F_WRLCK as _;
            // SAFETY: the lock is a local variable.
            told(unsafe { libc::fcntl(fd, libc::F_OFD_SETLKW, &raw const lock) } as isize)
        })
    };
    p01_a_datagram_that_waits_for_its_peer_is_not_the_next_files, true => (BAD, Err(std::io::ErrorKind::WouldBlock)), || {
        let path = std::env::temp_dir().join(format!("fibrant-next-{}-{:?}", std::process::id(), thread::current().id()));
        let _receiver = UnixDatagram::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_nonblocking(true).unwrap();
        while sender.send_to(b"fill", &path).is_ok() {}
        sender.set_nonblocking(false).unwrap();
        let (new, peer) = UnixDatagram::pair().unwrap();
        let number = numbers(1);
        put(sender, number);
        let mut name: libc::sockaddr_un = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
        name.sun_path.iter_mut().zip(path.as_os_str().as_encoded_bytes()).for_each(|(to, from)| *to = *from as _);
        let putter = later(move || put(new, number));
        // SAFETY: the data and the name are that long.
        let sent = told(unsafe { libc::sendto(number, b"x".as_ptr().cast(), 1, 0, (&raw const name).cast(), size_of_val(&name) as u32) });
        putter.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        peer.set_nonblocking(true).unwrap();
        close(number);
        (sent, kind(peer.recv(&mut [0; 4])))
    };
    p01_a_connect_that_waits_for_its_turn_is_not_the_next_files, true => (BAD, false), || {
        let path = std::env::temp_dir().join(format!("fibrant-turn-{}-{:?}", std::process::id(), thread::current().id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: numbers.
        let socket = || unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)) };
        // SAFETY: numbers.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let _queued = UnixStream::connect(&path).unwrap();
        let mut name: libc::sockaddr_un = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
        name.sun_path.iter_mut().zip(path.as_os_str().as_encoded_bytes()).for_each(|(to, from)| *to = *from as _);
        let number = put(socket(), numbers(1));
        let (new, other) = (socket(), listener.try_clone().unwrap());
        let new_one = copy(&new);
        let putter = later(move || {
            put(new_one, number);
            drop(other.accept());
        });
        // SAFETY: the name is that long.
        let connected = told(unsafe { libc::connect(number, (&raw const name).cast(), size_of_val(&name) as u32) } as isize);
        putter.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        close(number);
        (connected, UnixStream::from(new).peer_addr().is_ok())
    };
    p02_a_read_ends_when_its_stream_is_closed, true => BAD, || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        put(ours, number);
        later(move || {
            thread::sleep(ms(50));
            // SAFETY: the stream takes the number over, and closes it.
            unsafe { libc::fclose(libc::fdopen(number, c"r".as_ptr())) }
        });
        receive(number, &mut [0; 4], 0)
    };

    p03_copies_share_flags_but_not_the_one_for_exec, false, || {
        let (ours, _theirs) = streams();
        let fd = ours.as_raw_fd();
        // SAFETY: numbers; the copies are owned from then on.
        unsafe {
            let plain = OwnedFd::from_raw_fd(libc::dup(fd));
            let kept = OwnedFd::from_raw_fd(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0));
            let for_exec = [fd, plain.as_raw_fd(), kept.as_raw_fd()].map(|fd| libc::fcntl(fd, libc::F_GETFD));
            let set = libc::fcntl(plain.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
            let flags = [fd, kept.as_raw_fd()].map(|fd| libc::fcntl(fd, libc::F_GETFL));
            (for_exec, set, flags, read(fd), read(kept.as_raw_fd()))
        }
    };
    p03_copies_share_timeouts, true, || {
        let (ours, _theirs) = streams();
        let other = copy(&ours);
        set_receive_timeout(other.as_raw_fd(), ms(20));
        let first = receive(ours.as_raw_fd(), &mut [0; 4], 0);
        drop(ours);
        (first, receive(other.as_raw_fd(), &mut [0; 4], 0))
    };
    p03_closing_one_leaves_who_waits_for_the_other, true, || {
        let (ours, mut theirs) = streams();
        let other = copy(&ours);
        let fd = other.as_raw_fd();
        // Both have been waited for.
        set_receive_timeout(fd, ms(5));
        let timed_out = [ours.as_raw_fd(), fd].map(|fd| receive(fd, &mut [0; 4], 0));
        set_receive_timeout(fd, Duration::ZERO);
        let reader = go(move || read(other.as_raw_fd())).waiting();
        drop(ours);
        let reader = reader.waiting();
        theirs.write_all(b"data").unwrap();
        (timed_out, reader.join())
    };
    p03_who_waits_for_the_closed_one_is_told_alone, true => (BAD, ((4, 0), b"data".to_vec())), || {
        let number = numbers(2);
        let (ours, mut theirs) = streams();
        put(copy(&ours), number);
        put(ours, number + 1);
        let first = go(move || receive(number, &mut [0; 4], 0)).waiting();
        let second = go(move || read(number + 1)).waiting();
        close(number);
        let first = first.join();
        theirs.write_all(b"data").unwrap();
        let second = second.join();
        close(number + 1);
        (first, second)
    };
    p03_a_copy_that_fails_leaves_everyone_alone, true, || {
        let number = numbers(2);
        let (ours, mut theirs) = streams();
        put(ours, number);
        let reader = go(move || read(number)).waiting();
        // SAFETY: numbers.
        let failed = unsafe {
            [
                libc::dup2(number + 1, number),
                libc::dup3(number + 1, number, libc::O_CLOEXEC),
                libc::dup3(number, number, 0),
                libc::dup3(0, number, 12345),
                libc::dup2(0, -1),
            ]
            .map(|result| told(result as isize))
        };
        // SAFETY: a number that stays what it is.
        let itself = unsafe { libc::dup2(number, number) } == number;
        let reader = reader.waiting();
        theirs.write_all(b"data").unwrap();
        let result = (failed, itself, reader.join());
        close(number);
        result
    };

    p04_a_descriptor_that_was_passed_over_a_socket, true, || {
        let (ours, theirs) = streams();
        let (reader, writer) = pipe();
        let far_end = reader.as_raw_fd();
        later(move || {
            pass(theirs.as_raw_fd(), far_end);
            theirs
        });
        let received = passed(ours.as_raw_fd());
        drop(reader);
        later(move || drop(File::from(writer).write_all(b"data")));
        (read(received.as_raw_fd()), read(received.as_raw_fd()))
    };
    p04_descriptors_made_by_raw_system_calls, true, || {
        let mut ends = [0; 2];
        // SAFETY: writes two numbers, which are descriptors of ours from then on.
        let [ours, theirs] = unsafe {
            libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, &raw mut ends);
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        later(move || drop(File::from(theirs).write_all(b"data")));
        let of_socket = (read(ours.as_raw_fd()), read(ours.as_raw_fd()));
        // SAFETY: makes a descriptor.
        let counter = unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC) as RawFd) };
        let other = File::from(copy(&counter));
        later(move || (&other).write_all(&7_u64.to_ne_bytes()).unwrap());
        (of_socket, read(counter.as_raw_fd()))
    };
    p04_a_descriptor_made_before_main, true, || {
        let [ours, theirs] = *EARLY.get().unwrap();
        // SAFETY: one byte.
        later(move || unsafe { libc::write(theirs, b"x".as_ptr().cast(), 1) });
        read(ours)
    };
    p04_a_timer_tells_how_often_it_has_expired, true, || {
        // SAFETY: makes a descriptor.
        let timer = unsafe { OwnedFd::from_raw_fd(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC)) };
        let fd = timer.as_raw_fd();
        let start = Instant::now();
        // Set while it is waited for: before that it might expire.
        // SAFETY: the time is a local variable.
        let setter = later(move || unsafe {
            let mut time: libc::itimerspec = std::mem::zeroed();
            time.it_value.tv_nsec = 20_000_000;
            assert_eq!(libc::timerfd_settime(fd, 0, &time, std::ptr::null_mut()), 0);
        });
        let result = (read(fd), start.elapsed() >= ms(19));
        setter.join().unwrap();
        result
    };
    p04_a_terminal_is_waited_for, true, || {
        // SAFETY: makes a descriptor, or fails; the name is read before anybody else asks for one's.
        unsafe {
            let master = OwnedFd::from_raw_fd(libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC));
            assert_eq!((libc::grantpt(master.as_raw_fd()), libc::unlockpt(master.as_raw_fd())), (0, 0));
            let mut name = [0; 64];
            assert_eq!(libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
            let terminal = OwnedFd::from_raw_fd(libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC));
            let typist = File::from(copy(&master));
            later(move || (&typist).write_all(b"line\n").unwrap());
            let line = read(terminal.as_raw_fd());
            // The kernel passes the echo on by and by, as long as the terminal is open.
            let mut echo = Vec::new();
            while echo.len() < b"line\r\n".len() {
                let (result, part) = read(master.as_raw_fd());
                assert!(result.0 > 0, "{result:?}");
                echo.extend(part);
            }
            drop(terminal);
            (line, echo)
        }
    };

    p05_a_number_reused_behind_our_back_is_read, true, || {
        let number = numbers(1);
        let (first, mut peer) = streams();
        put(first, number);
        later(move || peer.write_all(b"first").unwrap());
        let first = read(number);
        close_secretly(number);
        let (second, mut peer) = streams();
        put_secretly(second, number);
        later(move || peer.write_all(b"second").unwrap());
        let result = (first, read(number));
        close(number);
        result
    };
    p05_a_number_reused_behind_our_back_is_written, true, || {
        let number = numbers(1);
        let sent = || {
            let (ours, mut theirs) = streams();
            put_secretly(ours, number);
            fill(number);
            let reader = later(move || {
                let mut all = Vec::new();
                theirs.read_to_end(&mut all).map(|_| all.last().copied()).unwrap()
            });
            // SAFETY: one byte.
            let result = told(unsafe { libc::write(number, b"x".as_ptr().cast(), 1) });
            close_secretly(number);
            (result, reader.join().unwrap())
        };
        [sent(), sent(), sent()]
    };
    p05_an_old_file_that_lives_on_disturbs_nobody, true, || {
        let number = numbers(1);
        let (old, mut old_peer) = streams();
        put(copy(&old), number);
        set_receive_timeout(number, ms(5));
        let nothing = receive(number, &mut [0; 4], 0);
        close_secretly(number); // the registration stays: there is a copy
        let (new, mut peer) = streams();
        put_secretly(new, number);
        later(move || {
            for _ in 0..5 {
                old_peer.write_all(b"old").unwrap();
                thread::sleep(ms(3));
            }
            peer.write_all(b"new").unwrap();
        });
        let result = (nothing, read(number));
        close(number);
        result
    };
    p05_a_poll_finds_a_number_reused_behind_our_back, true, || {
        let number = numbers(1);
        let poll = || {
            let (ours, mut theirs) = streams();
            put_secretly(ours, number);
            let peer = later(move || theirs.write_all(b"x").map(|()| theirs));
            let mut one = libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 };
            // SAFETY: there is one.
            let result = unsafe { libc::poll(&mut one, 1, -1) };
            close_secretly(number);
            drop(peer.join());
            (result, one.revents)
        };
        [poll(), poll(), poll()]
    };

    p06_a_high_number_is_waited_for, true, || {
        let number = numbers(1);
        let (ours, mut theirs) = tcp();
        put(ours, number);
        later(move || theirs.write_all(b"data").unwrap());
        let result = (number > 1000, read(number), read(number));
        close(number);
        result
    };
    p06_who_waits_stays_in_place_when_the_table_grows, true, || {
        let low: Vec<_> = (0..3).map(|_| streams()).collect();
        let readers: Vec<_> = low.iter().map(|(ours, _)| { let fd = ours.as_raw_fd(); go(move || read(fd)).waiting() }).collect();
        let top = numbers(1);
        let mut results = Vec::new();
        // A number of each order of magnitude, up to the highest.
        for number in (0..).map(|shift| top >> shift).take_while(|&number| number > 1200) {
            let (ours, mut theirs) = streams();
            let copied = if number == top {
                put(ours, top)
            } else {
                // SAFETY: numbers.
                unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number - 100) }
            };
            let reader = go(move || read(copied)).waiting();
            theirs.write_all(b"high").unwrap();
            results.push(reader.join());
            close(copied);
        }
        low.iter().for_each(|(_, theirs)| { let mut theirs: &UnixStream = theirs; theirs.write_all(b"low").unwrap() });
        results.extend(readers.into_iter().map(Activity::join));
        results
    };
    p06_high_and_low_numbers_are_polled_together, true, || {
        let number = numbers(2);
        let (a, _b) = streams();
        let (c, mut d) = streams();
        put(c, number);
        // SAFETY: makes a descriptor.
        put(unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }, number + 1);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 42 };
        // SAFETY: the event is a local variable.
        assert_eq!(unsafe { libc::epoll_ctl(number + 1, libc::EPOLL_CTL_ADD, number, &mut event) }, 0);
        let _peer = later(move || d.write_all(b"x").map(|()| d));
        let mut list = [number + 1, a.as_raw_fd(), number].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // The kernel tells the socket before the epoll, and may wake whoever polls both in between.
        let mut result = 0;
        while result < 2 {
            // SAFETY: there are three.
            result = unsafe { libc::poll(list.as_mut_ptr(), 3, -1) };
        }
        let closed = [number, number + 1].map(close);
        (result, list.map(|one| one.revents), closed)
    };
    p06_a_number_that_cannot_be_is_only_an_error, false, || {
        let (ours, _theirs) = streams();
        let bad = [-1, 50_000_000, i32::MAX];
        // SAFETY: nothing is there.
        let results = bad.map(|fd| unsafe {
            let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            (
                read(fd),
                told(libc::send(fd, b"x".as_ptr().cast(), 1, 0)),
                told(libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()) as isize),
                told(libc::connect(fd, std::ptr::null(), 0) as isize),
                told(libc::dup2(ours.as_raw_fd(), fd) as isize),
                told(libc::fcntl(fd, libc::F_GETFL) as isize),
                close(fd),
                (libc::poll(&mut one, 1, 0), one.revents),
            )
        });
        // SAFETY: nothing is there, either.
        let range = unsafe { told(libc::close_range(40_000_000, u32::MAX, 0) as isize) };
        (results, range)
    };

    p07_a_fiber_without_hooks_closes, true => BAD, || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        put(ours, number);
        let reader = go(move || receive(number, &mut [0; 4], 0)).waiting();
        fibrant::hook::disabled(|| close(number));
        reader.join()
    };
    p07_a_fiber_of_another_runtime_closes, true => BAD, || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        put(ours, number);
        later(move || {
            let other = Builder::new().workers(1).hooks(false).build().unwrap();
            other.spawn(move || close(number)).join().unwrap();
            other.stop().unwrap();
        });
        receive(number, &mut [0; 4], 0)
    };
    p07_a_thread_closes_as_it_ends, true => BAD, || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        put(ours, number);
        later(move || CLOSED_AT_THE_END.with(|one| one.0.set(number)));
        receive(number, &mut [0; 4], 0)
    };
    p07_a_reader_of_each_of_two_runtimes_is_told, true => (BAD, BAD), || {
        let number = numbers(1);
        let (ours, _theirs) = streams();
        put(ours, number);
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let other = Builder::new().workers(1).build().unwrap();
            let reader = other.spawn(move || receive(number, &mut [0; 4], 0));
            while waits(&other) == 0 {
                thread::sleep(ms(1));
            }
            tell.send(()).unwrap();
            let result = reader.join().unwrap();
            other.stop().unwrap();
            result
        });
        let here = go(move || receive(number, &mut [0; 4], 0)).waiting();
        while told.try_recv().is_err() {
            thread::sleep(ms(1));
        }
        assert!(Runtime::current().is_some());
        close(number);
        (here.join(), thread.join().unwrap())
    };
}
