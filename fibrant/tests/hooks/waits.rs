//! Waits: points 23 to 25.

use crate::patience::eventually;
use crate::support::*;
use fibrant::runtime::Runtime;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// One byte of a descriptor.
fn one_byte(fd: RawFd) -> u8 {
    let mut byte = [0];
    assert_eq!(receive(fd, &mut byte, 0), (1, 0));
    byte[0]
}

/// One who waits until something happens to a descriptor, and is told what.
fn polling(fd: RawFd, events: i16) -> Activity<(i32, i16)> {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: there is one.
    go(move || (unsafe { libc::poll(&mut one, 1, -1) }, one.revents)).waiting()
}

/// How much there is to read.
fn left_in(fd: RawFd) -> i32 {
    let mut bytes = 0;
    // SAFETY: writes a number.
    assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) }, 0);
    bytes
}

/// An eventfd from which each read takes one.
fn counter() -> File {
    // SAFETY: makes a descriptor.
    unsafe {
        File::from(OwnedFd::from_raw_fd(libc::eventfd(
            0,
            libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC,
        )))
    }
}

/// Whether nothing is pending here but the caller, who looks twice, because the numbers are as of the last poll. Where there
/// are no fibers, nothing is.
fn nothing_is_pending() -> bool {
    let Some(runtime) = Runtime::current() else {
        return true;
    };
    // Whoever asks is not in a wait, and its worker has polled since the last one.
    (0..3).for_each(|_| fibrant::sleep(ms(1)));
    fibrant::yield_now();
    let dump = runtime.dump();
    dump.workers.iter().map(|worker| worker.timers).sum::<usize>() == 0
        && dump.fibers.iter().all(|fiber| fiber.wait.is_none())
}

bodies! {
    p23_first_come_first_served, true, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let fd = ours.as_raw_fd();
        let readers: Vec<_> = (0..6).map(|_| go(move || one_byte(fd)).waiting()).collect();
        for byte in 0..6 {
            theirs.send(&[byte]).unwrap();
            eventually("somebody takes it", || left_in(fd) == 0);
        }
        readers.into_iter().map(Activity::join).collect::<Vec<_>>()
    };
    p23_one_edge_serves_two, true, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let readers = [0; 2].map(|_| go(move || one_byte(fd)).waiting());
        // Both are there before a fiber of this worker looks.
        let (to, from) = (socket.local_addr().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        for byte in [1, 2] {
            from.send_to(&[byte], to).unwrap();
        }
        let mut got = readers.map(Activity::join);
        got.sort_unstable();
        got
    };
    p23_many_wait_on_any_worker, true, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let fd = ours.as_raw_fd();
        let readers: Vec<_> = (0..30).map(|_| go_anywhere(move || one_byte(fd))).collect();
        let readers: Vec<_> = readers.into_iter().map(Activity::waiting).collect();
        for byte in 0..30 {
            theirs.send(&[byte]).unwrap();
        }
        let mut got: Vec<_> = readers.into_iter().map(Activity::join).collect();
        got.sort_unstable();
        got
    };
    p23_readers_and_writers_of_one_descriptor, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        fill(fd);
        let reader = go(move || one_byte(fd)).waiting();
        // SAFETY: one byte.
        let writer = go(move || told(unsafe { libc::send(fd, b"w".as_ptr().cast(), 1, 0) })).waiting();
        theirs.write_all(b"r").unwrap();
        let read = reader.join();
        let writer = writer.waiting(); // who waits for room is left alone
        drop(go(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
        }));
        let written = writer.join();
        drop(ours);
        (read, written)
    };
    p23_who_gives_up_leaves_the_next_ones_turn, true, || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let fd = ours.as_raw_fd();
        let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: there is one.
        let impatient = go(move || unsafe { libc::poll(&mut one, 1, 30) }).waiting();
        let patient = go(move || one_byte(fd)).waiting();
        let gave_up = impatient.join();
        theirs.send(b"x").unwrap();
        (gave_up, patient.join())
    };
    p23_an_edge_is_not_lost_with_who_only_looks, true, || {
        // One polls and one reads: the poller is woken first, takes nothing, and the reader must still be.
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let fd = ours.as_raw_fd();
        let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: there is one.
        let poller = go(move || unsafe { libc::poll(&mut one, 1, -1) }).waiting();
        let reader = go(move || one_byte(fd)).waiting();
        theirs.send(b"x").unwrap();
        let byte = reader.join();
        theirs.send(b"y").unwrap(); // in case the reader was first
        (byte, poller.join())
    };
    p23_who_waits_for_the_end_does_not_keep_data_from_a_reader, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let watchers = [0, libc::POLLRDHUP].map(|events| polling(fd, events));
        let mut buffer = [0; 8];
        let reader = go(move || (receive(fd, &mut buffer, 0), buffer)).waiting();
        theirs.write_all(b"hello").unwrap();
        let read = reader.join();
        // They go on waiting, and do not stand in the way of the next one, either.
        let watchers = watchers.map(Activity::waiting);
        let reader = go(move || one_byte(fd)).waiting();
        theirs.write_all(b"x").unwrap();
        let byte = reader.join();
        drop(theirs);
        (read, byte, watchers.map(Activity::join))
    };
    // Of threads the kernel lets the reader be first, now and then, who takes the sign away that there is urgent data.
    p23_a_reader_does_not_keep_urgent_data_from_who_waits_for_it, true => ([(1, libc::POLLPRI); 2], b'x'), || {
        let (ours, mut theirs) = tcp();
        let fd = ours.as_raw_fd();
        let reader = go(move || one_byte(fd)).waiting();
        let watchers = [libc::POLLPRI, libc::POLLIN | libc::POLLPRI].map(|events| polling(fd, events));
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::send(theirs.as_raw_fd(), b"u".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
        let found = watchers.map(Activity::join);
        let reader = reader.waiting();
        theirs.write_all(b"x").unwrap();
        (found, reader.join())
    };
    p23_exceptions_of_select_come_though_others_read, true => (1, b'x'), || {
        let (ours, mut theirs) = tcp();
        let fd = ours.as_raw_fd();
        let reader = go(move || one_byte(fd)).waiting();
        let selector = go(move || {
            // SAFETY: all zero is the empty set, which is a local variable; the number is low enough.
            unsafe {
                let mut except: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(fd, &mut except);
                libc::select(fd + 1, std::ptr::null_mut(), std::ptr::null_mut(), &mut except, std::ptr::null_mut())
            }
        })
        .waiting();
        // SAFETY: one byte.
        assert_eq!(unsafe { libc::send(theirs.as_raw_fd(), b"u".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
        let found = selector.join();
        theirs.write_all(b"x").unwrap();
        (found, reader.join())
    };
    p23_a_counter_is_taken_by_as_many_as_it_says, true, || {
        let counter = Arc::new(counter());
        let readers: Vec<_> = (0..10)
            .map(|_| {
                let counter = Arc::clone(&counter);
                go(move || (&*counter).read(&mut [0; 8]).unwrap()).waiting()
            })
            .collect();
        (&*counter).write_all(&10_u64.to_ne_bytes()).unwrap();
        readers.into_iter().map(Activity::join).sum::<usize>()
    };
    p23_a_pipes_writers_all_get_their_turn, true, || {
        let (reader, writer) = pipe();
        let fd = writer.as_raw_fd();
        let writers: Vec<_> = (0..4_u8)
            .map(|byte| {
                go(move || {
                    // SAFETY: the buffer has that length.
                    unsafe { libc::write(fd, vec![byte; 60_000].as_ptr().cast(), 60_000) }
                })
            })
            .collect();
        // Nobody reads before the pipe is full: then somebody waits.
        let has_room = || {
            let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one element, a local variable.
            unsafe { libc::poll(&mut asked, 1, 0) > 0 }
        };
        while has_room() {
            thread::sleep(ms(1));
        }
        let counts = go_in_a_thread(move || {
            let (mut all, mut counts) = (vec![0; 240_000], [0; 4]);
            File::from(reader).read_exact(&mut all).unwrap();
            all.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
            counts
        });
        let written: Vec<_> = writers.into_iter().map(Activity::join).collect();
        drop(writer);
        (written, counts.join())
    };

    p24_an_earlier_timeout_does_not_hit_a_later_call, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        set_receive_timeout(fd, ms(40));
        let mut peer = theirs.try_clone().unwrap();
        later(move || peer.write_all(b"1").unwrap());
        // More than once, should the writer be late.
        while receive(fd, &mut [0; 1], 0) != (1, 0) {}
        set_receive_timeout(fd, Duration::ZERO);
        let start = Instant::now();
        later(move || {
            thread::sleep(ms(80));
            theirs.write_all(b"2").unwrap();
        });
        (one_byte(fd), start.elapsed() >= ms(80))
    };
    p24_a_timeout_leaves_nobody_in_line, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        set_receive_timeout(fd, ms(5));
        let timed_out = [0; 5].map(|_| receive(fd, &mut [0; 4], 0));
        // What would be woken by this, if one were left, is on a stack that is used for something else now.
        theirs.write_all(b"x").unwrap();
        (timed_out, nothing_is_pending(), one_byte(fd))
    };
    p24_a_poll_leaves_all_its_descriptors, true, || {
        let pairs: Vec<_> = (0..20).map(|_| streams()).collect();
        let mut list: Vec<_> = pairs
            .iter()
            .map(|(ours, _)| libc::pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let mut peer = pairs[13].1.try_clone().unwrap();
        later(move || peer.write_all(b"x").unwrap());
        // SAFETY: there are so many.
        let found = unsafe { libc::poll(list.as_mut_ptr(), list.len() as _, 60_000) };
        let pending = nothing_is_pending();
        // Edges of the others find nobody.
        pairs.iter().for_each(|(_, theirs)| {
            let mut theirs = theirs;
            theirs.write_all(b"y").unwrap();
        });
        let start = Instant::now();
        thread::sleep(ms(15));
        (found, pending, start.elapsed() >= ms(15), pairs.iter().map(|(ours, _)| one_byte(ours.as_raw_fd())).collect::<Vec<_>>())
    };
    p24_an_error_leaves_nothing_behind, true, || {
        let (_held, refused) = nobody_listens();
        let failed = [0; 3].map(|_| kind(TcpStream::connect_timeout(&refused, Duration::from_secs(60)).map(drop)));
        let (ours, theirs) = tcp();
        set_receive_timeout(ours.as_raw_fd(), Duration::from_secs(60));
        later(move || {
            set(theirs.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
        });
        (failed, receive(ours.as_raw_fd(), &mut [0; 4], 0), nothing_is_pending())
    };
    p24_a_select_and_an_epoll_leave_nothing_behind, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        // SAFETY: makes a descriptor; sets, times and events are local variables.
        let found = unsafe {
            let epoll = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
            assert_eq!(libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event), 0);
            later(move || theirs.write_all(b"x").map(|()| theirs));
            let of_epoll = libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, 60_000);
            let pending = nothing_is_pending();
            receive(fd, &mut [0; 4], 0);
            let mut time = libc::timeval { tv_sec: 60, tv_usec: 0 };
            let mut read: libc::fd_set = std::mem::zeroed();
            let high = numbers(1).min(1000);
            let (other, peer) = streams();
            let other = libc::fcntl(other.as_raw_fd(), libc::F_DUPFD_CLOEXEC, high.min(500));
            libc::FD_SET(other, &mut read);
            later(move || drop(peer));
            let of_select = libc::select(other + 1, &mut read, std::ptr::null_mut(), std::ptr::null_mut(), &mut time);
            libc::close(other);
            (of_epoll, pending, of_select)
        };
        (found, nothing_is_pending())
    };

    p25_success_leaves_errno_alone, true, || {
        let (ours, mut theirs) = streams();
        later(move || theirs.write_all(b"x").unwrap());
        set_errno(77);
        let mut buffer = [0; 4];
        // SAFETY: the buffer has that length.
        let count = unsafe { libc::read(ours.as_raw_fd(), buffer.as_mut_ptr().cast(), 4) };
        (count, errno())
    };
    p25_every_kind_of_success_leaves_errno_alone, true, || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // SAFETY: makes a descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)) };
        let (ours, _theirs) = streams();
        let mut one = libc::pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut left = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        let (reader, writer) = pipe();
        let read = go(move || { thread::sleep(ms(20)); File::from(reader).read_exact(&mut [0; 200_000]).is_ok() });
        let mut results = Vec::new();
        let mut check = |result: isize| {
            results.push((result >= 0, errno()));
            set_errno(78);
        };
        set_errno(78);
        // SAFETY: what is pointed to are local variables.
        unsafe {
            check(libc::poll(&mut one, 1, 5) as isize);
            check(libc::select(0, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), &mut left) as isize);
            check(libc::nanosleep(&time, std::ptr::null_mut()) as isize);
            check(libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &time, std::ptr::null_mut()) as isize);
            check(libc::usleep(100) as isize);
            check(libc::sched_yield() as isize);
            check(connect_to(socket.as_raw_fd(), address).0);
            check(libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) as isize);
            check(libc::write(writer.as_raw_fd(), vec![0_u8; 200_000].as_ptr().cast(), 200_000));
        }
        let last = results.len();
        (results, last, read.join())
    };
    p25_errno_is_written_after_the_wait, true, || {
        // While one waits, another one's calls fail on the same thread.
        let (ours, _theirs) = streams();
        set_receive_timeout(ours.as_raw_fd(), ms(30));
        let done = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&done);
        let noise = go(move || {
            while seen.load(Ordering::Relaxed) == 0 {
                // SAFETY: nothing is there.
                let failed = unsafe { libc::close(-1) };
                assert_eq!((failed, errno()), (-1, libc::EBADF));
                thread::sleep(ms(1));
            }
        });
        // SAFETY: the buffer has that length.
        let result = unsafe { libc::recv(ours.as_raw_fd(), [0_u8; 4].as_mut_ptr().cast(), 4, 0) };
        let error = errno();
        done.store(1, Ordering::Relaxed);
        noise.join();
        (result, error)
    };
    p25_functions_that_return_the_error_leave_errno_alone, true, || {
        let (sender, receiver) = mpsc::channel::<()>();
        let thread = thread::spawn(move || receiver.recv().is_err());
        later(move || drop(sender));
        set_errno(79);
        let joined = thread.join().unwrap();
        let after_join = errno();
        set_errno(79);
        let wrong = libc::timespec { tv_sec: 0, tv_nsec: -1 };
        // SAFETY: the time is a local variable.
        let slept = unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &wrong, std::ptr::null_mut()) };
        (joined, after_join, slept, errno())
    };
}
