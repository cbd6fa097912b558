//! Time: points 16 to 20.

use crate::support::*;
use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn thrd_sleep(time: *const libc::timespec, rest: *mut libc::timespec) -> libc::c_int;
}

fn timespec(tv_sec: i64, tv_nsec: i64) -> libc::timespec {
    libc::timespec { tv_sec, tv_nsec }
}

fn asked(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 77,
    }
}

/// A poll: its result, and what was found.
fn poll<const N: usize>(mut list: [libc::pollfd; N], milliseconds: i32) -> ((isize, i32), [i16; N]) {
    // SAFETY: there are so many.
    let result = told(unsafe { libc::poll(list.as_mut_ptr(), N as _, milliseconds) } as isize);
    (result, list.map(|one| one.revents))
}

/// A set of these descriptors.
fn set_of(descriptors: &[RawFd]) -> libc::fd_set {
    // SAFETY: all zero is the empty set; the numbers are low enough.
    unsafe {
        let mut set = std::mem::zeroed();
        descriptors.iter().for_each(|&fd| libc::FD_SET(fd, &mut set));
        set
    }
}

/// For how many descriptors the process's table has room by now.
fn table_size() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.unwrap().trim().parse().unwrap()
}

fn is_in(fd: RawFd, set: &libc::fd_set) -> bool {
    // SAFETY: the number is low enough.
    unsafe { libc::FD_ISSET(fd, set) }
}

/// An epoll that watches a descriptor.
fn epoll(fd: RawFd, events: i32, data: u64) -> OwnedFd {
    // SAFETY: makes a descriptor.
    let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    watch(&epoll, fd, events, data);
    epoll
}

fn watch(epoll: &OwnedFd, fd: RawFd, events: i32, data: u64) {
    let mut event = libc::epoll_event {
        events: events as u32,
        u64: data,
    };
    // SAFETY: the event is a local variable.
    let result = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
    assert_eq!(result, 0);
}

/// What an epoll reports.
fn events_of(epoll: RawFd, room: i32, milliseconds: i32) -> ((isize, i32), Vec<(u32, u64)>) {
    let mut found = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: there is room for eight.
    let result = told(unsafe { libc::epoll_wait(epoll, found.as_mut_ptr(), room, milliseconds) } as isize);
    let found = found.iter().take(result.0.max(0) as usize);
    (result, found.map(|event| (event.events, event.u64)).collect())
}

/// A time of a clock, so many milliseconds from now.
fn in_a_while(clock: libc::clockid_t, milliseconds: i64) -> libc::timespec {
    let mut time = timespec(0, 0);
    // SAFETY: the time is a local variable.
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut time) }, 0);
    let nanoseconds = time.tv_nsec + milliseconds * 1_000_000;
    timespec(
        time.tv_sec + nanoseconds.div_euclid(1_000_000_000),
        nanoseconds.rem_euclid(1_000_000_000),
    )
}

/// Lets a thread write byte after byte until the flag is set, and gives up its end then.
fn trickle(mut stream: impl Write + Send + 'static) -> (thread::JoinHandle<()>, Arc<AtomicBool>) {
    let done = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&done);
    let thread = thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) && stream.write_all(b".").is_ok() {
            thread::sleep(ms(4));
        }
    });
    (thread, done)
}

bodies! {
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
    p16_zero_is_for_ever, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let set = [ms(5), Duration::ZERO].map(|time| set_receive_timeout(fd, time));
        later(move || {
            thread::sleep(ms(30));
            theirs.write_all(b"late").unwrap();
        });
        (set, receive(fd, &mut [0; 8], 0))
    };
    p16_sending_times_out, true, || {
        let (ours, _theirs) = tcp();
        let fd = ours.as_raw_fd();
        fill(fd);
        let time = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        set(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time);
        let start = Instant::now();
        // SAFETY: the buffer has that length.
        let sent = told(unsafe { libc::send(fd, vec![1_u8; 1 << 24].as_ptr().cast(), 1 << 24, 0) });
        // The kernel moves some of it on in between, perhaps.
        (sent.1 == libc::EAGAIN || sent.0 > 0, start.elapsed() >= ms(20), receive(fd, &mut [0; 4], libc::MSG_DONTWAIT))
    };
    p16_a_peek_times_out, true, || {
        let (ours, mut theirs) = tcp();
        set_receive_timeout(ours.as_raw_fd(), ms(20));
        let nothing = receive(ours.as_raw_fd(), &mut [0; 4], libc::MSG_PEEK);
        theirs.write_all(b"some").unwrap();
        let mut buffer = [0; 8];
        let peeked = receive(ours.as_raw_fd(), &mut buffer, libc::MSG_PEEK | libc::MSG_WAITALL);
        (nothing, peeked, buffer)
    };
    p16_a_very_short_and_a_very_long_time, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        set_receive_timeout(fd, Duration::from_micros(1));
        let short = receive(fd, &mut [0; 4], 0);
        let long = libc::timeval { tv_sec: i64::MAX, tv_usec: 999_999 };
        let set_it = set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, long);
        later(move || {
            thread::sleep(ms(20));
            theirs.write_all(b"late").unwrap();
        });
        let wrong = libc::timeval { tv_sec: 0, tv_usec: 1_000_000 };
        let refused = told(set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, wrong) as isize);
        (short, set_it, refused, receive(fd, &mut [0; 8], 0))
    };
    p16_poll_knows_no_timeouts_of_sockets, true, || {
        let (ours, mut theirs) = streams();
        set_receive_timeout(ours.as_raw_fd(), ms(5));
        let _peer = later(move || {
            thread::sleep(ms(30));
            theirs.write_all(b"x").map(|()| theirs)
        });
        poll([asked(ours.as_raw_fd(), libc::POLLIN)], -1)
    };
    p16_a_negative_time_is_none_at_all, false, || {
        let (ours, _theirs) = streams();
        let time = libc::timeval { tv_sec: -1, tv_usec: 0 };
        (set(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, time), receive(ours.as_raw_fd(), &mut [0; 4], 0))
    };

    p16_what_has_come_in_time_is_received_though_others_keep_the_worker_busy, true, || {
        // In an emulator it takes long to see that both wait.
        let limit = if std::env::var_os("FIBRANT_TEST_RUNNER").is_some() { 2000 } else { 400 };
        for _ in 0..20 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let (local, remote) = tcp();
            let to = socket.local_addr().unwrap();
            let start = Instant::now();
            let readers = [socket.as_raw_fd(), local.as_raw_fd()].map(|fd| {
                set_receive_timeout(fd, ms(limit));
                go(move || {
                    let mut buffer = [0; 8];
                    (receive(fd, &mut buffer, 0), buffer)
                })
                .waiting()
            });
            // Nobody else of this worker runs until it is too late.
            let end = Instant::now() + ms(limit + 200);
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"message", to).unwrap();
            (&remote).write_all(b"data").unwrap();
            let was_in_time = start.elapsed() < ms(limit);
            while Instant::now() < end {}
            let received = readers.map(Activity::join);
            // On a machine that stood still meanwhile, it shows nothing.
            if was_in_time {
                return received;
            }
        }
        panic!("the machine is too slow for this");
    };
    p17_one_deadline_for_all_rounds, true, || {
        let (ours, mut theirs) = tcp();
        ours.set_read_timeout(Some(ms(100))).unwrap();
        theirs.write_all(b".").unwrap();
        thread::spawn(move || while theirs.write_all(b".").is_ok() { thread::sleep(ms(10)) });
        let start = Instant::now();
        let (count, _) = receive(ours.as_raw_fd(), &mut [0; 10_000], libc::MSG_WAITALL);
        (count > 0, start.elapsed() >= ms(90), start.elapsed() < Duration::from_secs(5))
    };
    p17_poll_ends_in_time_whatever_happens_meanwhile, true, || {
        // Bytes come all the time, but they are not what it waits for.
        let (ours, theirs) = tcp();
        let (thread, done) = trickle(theirs);
        let start = Instant::now();
        let polled = poll([asked(ours.as_raw_fd(), libc::POLLPRI)], 100);
        let elapsed = start.elapsed();
        done.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        (polled, elapsed >= ms(100), elapsed < Duration::from_secs(10))
    };
    p17_epoll_ends_in_time_whatever_happens_meanwhile, true, || {
        let (ours, theirs) = tcp();
        let epoll = epoll(ours.as_raw_fd(), libc::EPOLLPRI, 1);
        let (thread, done) = trickle(theirs);
        let start = Instant::now();
        let found = events_of(epoll.as_raw_fd(), 8, 100);
        let elapsed = start.elapsed();
        done.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        (found, elapsed >= ms(100), elapsed < Duration::from_secs(10))
    };
    p17_sending_has_one_deadline_for_all_parts, true, || {
        // The reader takes a little now and then, so that there is room again and again.
        let (ours, mut theirs) = tcp();
        ours.set_write_timeout(Some(ms(150))).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 200_000];
            while !seen.load(Ordering::Relaxed) {
                theirs.read_exact(&mut buffer).unwrap();
                thread::sleep(ms(10));
            }
            theirs
        });
        let data = vec![1; 200_000_000];
        let start = Instant::now();
        let written = (&ours).write(&data).map(|written| written > 0 && written < data.len());
        let elapsed = start.elapsed();
        done.store(true, Ordering::Relaxed);
        drop(ours.shutdown(std::net::Shutdown::Both));
        drop(reader.join());
        (kind(written), elapsed >= ms(140), elapsed < Duration::from_secs(20))
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
    p18_a_time_that_has_passed_is_not_waited_for, true, || {
        let clocks = [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME, libc::CLOCK_TAI];
        // SAFETY: the times are local variables.
        clocks.map(|clock| unsafe {
            let results = [timespec(0, 0), timespec(1, 5), in_a_while(clock, -5)]
                .map(|time| libc::clock_nanosleep(clock, libc::TIMER_ABSTIME, &time, null_mut()));
            let (start, time) = (Instant::now(), in_a_while(clock, 10));
            (results, libc::clock_nanosleep(clock, libc::TIMER_ABSTIME, &time, null_mut()), start.elapsed() >= ms(9))
        })
    };
    p18_clocks_that_cannot_be_slept_by, false, || {
        let clocks = [libc::CLOCK_THREAD_CPUTIME_ID, libc::CLOCK_MONOTONIC_RAW, libc::CLOCK_REALTIME_COARSE, libc::CLOCK_MONOTONIC_COARSE, 4711];
        // SAFETY: the time is a local variable.
        clocks.map(|clock| unsafe { libc::clock_nanosleep(clock, 0, &timespec(0, 1), null_mut()) })
    };
    p18_what_is_left_is_not_told_after_all, true, || {
        let mut left = timespec(77, 77);
        // SAFETY: the times are local variables.
        let results = unsafe {
            (
                libc::nanosleep(&timespec(0, 1_000_000), &mut left),
                libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &timespec(0, 1_000_000), &mut left),
                thrd_sleep(&timespec(0, 1_000_000), &mut left),
            )
        };
        (results, left.tv_sec, left.tv_nsec)
    };
    p18_wrong_times_have_no_effect, false, || {
        let wrong = [timespec(0, 1_000_000_000), timespec(i64::MAX, -1), timespec(-5, 3)];
        // SAFETY: the times are local variables, or not there.
        wrong.map(|time| unsafe {
            (
                libc::clock_nanosleep(libc::CLOCK_REALTIME, libc::TIMER_ABSTIME, &time, null_mut()),
                thrd_sleep(&time, null_mut()),
                told(libc::nanosleep(null(), null_mut()) as isize),
            )
        })
    };
    p18_zero_is_a_sleep, true, || {
        // SAFETY: the time is a local variable.
        unsafe {
            (
                libc::sleep(0),
                libc::usleep(0),
                libc::nanosleep(&timespec(0, 0), null_mut()),
                libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &timespec(0, 0), null_mut()),
            )
        }
    };
    p18_a_loop_that_yields_lets_others_run, false, || {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&flag);
        let other = go(move || seen.store(true, Ordering::Relaxed));
        while !flag.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        other.join();
        // SAFETY: needs nothing.
        unsafe { libc::sched_yield() }
    };
    p18_large_times_do_not_overflow, true, || {
        // None of them may end before there is something.
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let fd = ours.as_raw_fd();
        let large = [timespec(i64::MAX, 999_999_999), timespec(1 << 40, 0), timespec(u32::MAX.into(), 1)];
        let sleepers: Vec<_> = large
            .into_iter()
            .map(|time| {
                // SAFETY: what is pointed to are local variables.
                go(move || unsafe {
                    let mut one = asked(fd, libc::POLLIN);
                    (libc::ppoll(&mut one, 1, &time, null()), one.revents)
                })
                .waiting()
            })
            .collect();
        thread::sleep(ms(20));
        theirs.send(b"x").unwrap();
        sleepers.into_iter().map(Activity::join).collect::<Vec<_>>()
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
    p19_poll_of_what_is_ready_does_not_wait, false alone, || {
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
            (result, libc::FD_ISSET(fd, &read), (1..10).contains(&time.tv_sec))
        }
    };
    p19_poll_is_level_triggered, true, || {
        let (ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        later(move || theirs.write_all(b"ab").map(|()| theirs));
        // What was found and left is found again, though nothing new happens.
        let first = poll([asked(fd, libc::POLLIN)], -1).0;
        let second = poll([asked(fd, libc::POLLIN)], -1).0;
        receive(fd, &mut [0; 1], 0);
        let third = poll([asked(fd, libc::POLLIN)], -1).0;
        receive(fd, &mut [0; 1], 0);
        (first, second, third)
    };
    p19_an_end_is_told_though_nobody_asked, true, || {
        let (reader, writer) = pipe();
        later(move || drop(writer));
        let of_reader = poll([asked(reader.as_raw_fd(), 0)], -1);
        let (other_reader, other_writer) = pipe();
        later(move || drop(other_reader));
        let of_writer = poll([asked(other_writer.as_raw_fd(), libc::POLLIN)], -1);
        let (ours, theirs) = streams();
        later(move || drop(theirs));
        (of_reader, of_writer, poll([asked(ours.as_raw_fd(), 0)], -1))
    };
    p19_half_an_end_is_told_if_asked, true, || {
        let (ours, theirs) = tcp();
        let _peer = later(move || theirs.shutdown(std::net::Shutdown::Write).map(|()| theirs));
        poll([asked(ours.as_raw_fd(), libc::POLLRDHUP)], -1)
    };
    p19_a_file_among_others_is_no_error, true, || {
        // It is not ready for what is asked, and cannot be waited for; the other can.
        let file = File::open("/proc/self/exe").unwrap();
        let null = File::open("/dev/null").unwrap();
        let (ours, mut theirs) = streams();
        let peer = later(move || theirs.write_all(b"x").map(|()| theirs));
        let polled = poll([asked(file.as_raw_fd(), libc::POLLPRI), asked(null.as_raw_fd(), 0), asked(ours.as_raw_fd(), libc::POLLIN)], -1);
        drop(peer.join());
        let timed_out = poll([asked(file.as_raw_fd(), 0)], 20);
        let mut except = set_of(&[file.as_raw_fd()]);
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        // SAFETY: the set and the time are local variables.
        let selected = unsafe { libc::select(file.as_raw_fd() + 1, null_mut(), null_mut(), &mut except, &mut time) };
        (polled, timed_out, selected, is_in(file.as_raw_fd(), &except))
    };
    p19_times_of_ppoll, true, || {
        let (ours, _theirs) = streams();
        let mut one = asked(ours.as_raw_fd(), libc::POLLIN);
        let start = Instant::now();
        // SAFETY: what is pointed to are local variables.
        unsafe {
            let ppoll = |time| told(libc::ppoll(&raw mut one, 1, &raw const time, null()) as isize);
            let results = [timespec(0, 0), timespec(0, 300_000), timespec(0, 20_000_000), timespec(0, 1_000_000_000), timespec(-1, 0), timespec(0, -1)].map(ppoll);
            let ready = libc::ppoll(&mut asked(ours.as_raw_fd(), libc::POLLOUT), 1, null(), null());
            (results, ready, start.elapsed() >= Duration::from_micros(20_300))
        }
    };
    p19_wrong_arguments_of_poll, false, || {
        // SAFETY: nothing is there, and the kernel says so.
        let missing = unsafe { (told(libc::poll(null_mut(), 1, 0) as isize), told(libc::poll(null_mut(), u64::MAX as _, 0) as isize), libc::poll(null_mut(), 0, 0)) };
        (missing, poll([asked(-1, libc::POLLIN), asked(-5, -1)], 0), poll([asked(49_000_000, 0)], -1))
    };
    p19_urgent_data_is_an_exception, true, || {
        let (ours, theirs) = tcp();
        let fd = ours.as_raw_fd();
        // SAFETY: one byte.
        let _peer = later(move || (unsafe { libc::send(theirs.as_raw_fd(), b"u".as_ptr().cast(), 1, libc::MSG_OOB) }, theirs));
        let (mut read, mut except) = (set_of(&[]), set_of(&[fd]));
        // SAFETY: the sets are local variables.
        let result = unsafe { libc::select(fd + 1, &mut read, null_mut(), &mut except, null_mut()) };
        (result, is_in(fd, &read), is_in(fd, &except), poll([asked(fd, libc::POLLPRI)], -1))
    };
    p19_select_clears_what_is_not_ready, true, || {
        let (a, _b) = streams();
        let (c, mut d) = streams();
        let (first, second) = (a.as_raw_fd(), c.as_raw_fd());
        let last = first.max(second) + 1;
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let (mut read, mut write) = (set_of(&[first, second]), set_of(&[]));
        let start = Instant::now();
        // SAFETY: sets and times are local variables.
        let timed_out = unsafe { libc::select(last, &mut read, &mut write, null_mut(), &mut time) };
        let empty = (is_in(first, &read), is_in(second, &read), time.tv_sec, time.tv_usec, start.elapsed() >= ms(20));
        let _peer = later(move || d.write_all(b"x").map(|()| d));
        let (mut read, mut write) = (set_of(&[first, second]), set_of(&[]));
        // SAFETY: as above.
        let found = unsafe { libc::select(last, &mut read, &mut write, null_mut(), null_mut()) };
        (timed_out, empty, found, is_in(first, &read), is_in(second, &read))
    };
    p19_select_leaves_alone_what_no_descriptor_can_be_in, true alone, || {
        // The process has so few that the kernel looks at the first words only, and writes to no others. An emulator's sets are small.
        let is_emulated = std::env::var_os("FIBRANT_TEST_RUNNER").is_some();
        let (count, room) = (if is_emulated { 1024 } else { 1 << 20 }, table_size().max(1024));
        let (a, mut b) = streams();
        let fd = a.as_raw_fd();
        let mut words = vec![u64::MAX; count / 64];
        words[..(room / 64).min(count / 64)].fill(0);
        words[fd as usize / 64] = 1 << (fd % 64);
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 10_000 };
        let set: *mut libc::fd_set = words.as_mut_ptr().cast();
        // SAFETY: the set has room for so many; the time is a local variable.
        let timed_out = unsafe { libc::select(count as i32, set, null_mut(), null_mut(), &mut time) };
        let left: u32 = words.iter().map(|word| word.count_ones()).sum();
        words[..(room / 64).min(count / 64)].fill(0);
        words[fd as usize / 64] = 1 << (fd % 64);
        let _peer = later(move || b.write_all(b"x").map(|()| b));
        let set: *mut libc::fd_set = words.as_mut_ptr().cast();
        // SAFETY: as above.
        let found = unsafe { libc::select(count as i32, set, null_mut(), null_mut(), null_mut()) };
        (timed_out, left, found, words.iter().map(|word| word.count_ones()).sum::<u32>())
    };
    p19_select_ignores_numbers_beyond_the_table, true alone, || {
        let (a, mut b) = streams();
        // Unless it has room for that one.
        let beyond = [1000].into_iter().filter(|&fd| fd >= table_size() as RawFd);
        let mut read = set_of(&beyond.chain([a.as_raw_fd()]).collect::<Vec<_>>());
        let _peer = later(move || b.write_all(b"x").map(|()| b));
        // SAFETY: the set is a local variable.
        let found = unsafe { libc::select(1024, &mut read, null_mut(), null_mut(), null_mut()) };
        (found, is_in(a.as_raw_fd(), &read), is_in(1000, &read))
    };
    p19_a_select_that_fails_leaves_its_sets_alone, true alone => ((-1, libc::EBADF), true), || {
        let (a, _b) = streams();
        let fd = put(a, 800);
        let closer = go(move || { thread::sleep(ms(20)); close(fd) });
        let mut read = set_of(&[fd]);
        // SAFETY: the set is a local variable.
        let result = told(unsafe { libc::select(fd + 1, &mut read, null_mut(), null_mut(), null_mut()) } as isize);
        closer.join();
        (result, is_in(fd, &read))
    };
    p19_select_takes_times_beyond_all_measure, false => 1, || {
        // The C library may see something else in so large a number, or refuse it; the kernel takes it.
        let (a, mut b) = streams();
        b.write_all(b"x").unwrap();
        let mut time = libc::timeval { tv_sec: 0, tv_usec: i64::MAX };
        let mut read = set_of(&[a.as_raw_fd()]);
        // SAFETY: set and time are local variables.
        unsafe { libc::select(a.as_raw_fd() + 1, &mut read, null_mut(), null_mut(), &mut time) }
    };
    p19_select_counts_each_set, true, || {
        let (a, mut b) = streams();
        let fd = a.as_raw_fd();
        b.write_all(b"x").unwrap();
        let (mut read, mut write) = (set_of(&[fd]), set_of(&[fd]));
        // Microseconds beyond a second are taken for what they are; nothing at all is a sleep.
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 2_500_000 };
        let mut short = libc::timeval { tv_sec: 0, tv_usec: 10_000 };
        let start = Instant::now();
        // SAFETY: sets and times are local variables.
        unsafe {
            let both = libc::select(fd + 1, &mut read, &mut write, null_mut(), &mut time);
            let slept = libc::select(0, null_mut(), null_mut(), null_mut(), &mut short);
            (both, is_in(fd, &read), is_in(fd, &write), (1..=2).contains(&time.tv_sec), slept, start.elapsed() >= ms(10))
        }
    };
    p19_wrong_arguments_of_select, false, || {
        let (a, _b) = streams();
        // SAFETY: sets and times are local variables.
        unsafe {
            // A number that the process has used, and nobody else does.
            let closed = libc::fcntl(a.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900);
            libc::close(closed);
            let mut bad = set_of(&[closed]);
            let mut wrong = libc::timeval { tv_sec: -1, tv_usec: 0 };
            let mut time = timespec(0, 1_000_000_000);
            (
                told(libc::select(-1, null_mut(), null_mut(), null_mut(), null_mut()) as isize),
                told(libc::select(closed + 1, &mut bad, null_mut(), null_mut(), null_mut()) as isize),
                told(libc::select(0, null_mut(), null_mut(), null_mut(), &mut wrong) as isize),
                told(libc::pselect(0, null_mut(), null_mut(), null_mut(), &raw mut time, null()) as isize),
            )
        }
    };
    p19_pselect_leaves_its_time_alone, true, || {
        let (a, mut b) = streams();
        let fd = a.as_raw_fd();
        let _peer = later(move || b.write_all(b"x").map(|()| b));
        let time = timespec(60, 5);
        let (mut read, start) = (set_of(&[fd]), Instant::now());
        // SAFETY: sets and times are local variables.
        let results = unsafe {
            let found = libc::pselect(fd + 1, &mut read, null_mut(), null_mut(), &raw const time, null());
            (found, libc::pselect(0, null_mut(), null_mut(), null_mut(), &timespec(0, 700_000), null()))
        };
        (results, is_in(fd, &read), time.tv_sec, time.tv_nsec, start.elapsed() >= Duration::from_micros(700))
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
    p20_epoll_is_level_triggered_unless_asked, true, || {
        let (ours, mut theirs) = streams();
        let levels = epoll(ours.as_raw_fd(), libc::EPOLLIN, 1);
        let edges = epoll(ours.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 2);
        let once = epoll(ours.as_raw_fd(), libc::EPOLLIN | libc::EPOLLONESHOT, 3);
        let _peer = later(move || theirs.write_all(b"x").map(|()| theirs));
        [levels, edges, once].map(|epoll| [-1, 20].map(|time| events_of(epoll.as_raw_fd(), 8, time)))
    };
    p20_epolls_may_be_nested, true, || {
        let (ours, mut theirs) = streams();
        let inner = epoll(ours.as_raw_fd(), libc::EPOLLIN, 1);
        let outer = epoll(inner.as_raw_fd(), libc::EPOLLIN, 2);
        let _peer = later(move || theirs.write_all(b"x").map(|()| theirs));
        let polled = poll([asked(outer.as_raw_fd(), libc::POLLIN)], -1);
        (polled, events_of(outer.as_raw_fd(), 8, -1), events_of(inner.as_raw_fd(), 8, -1))
    };
    p20_as_deep_as_the_kernel_allows, true, || {
        let (ours, mut theirs) = streams();
        let mut chain = vec![epoll(ours.as_raw_fd(), libc::EPOLLIN, 0)];
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        let refused = loop {
            // SAFETY: makes a descriptor; the event is a local variable.
            unsafe {
                let next = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
                let last = chain.last().unwrap().as_raw_fd();
                if libc::epoll_ctl(next.as_raw_fd(), libc::EPOLL_CTL_ADD, last, &mut event) < 0 {
                    break errno();
                }
                chain.push(next);
            }
        };
        let _peer = later(move || theirs.write_all(b"x").map(|()| theirs));
        (refused, chain.len(), events_of(chain.last().unwrap().as_raw_fd(), 8, -1))
    };
    p20_wrong_arguments_of_epoll, false, || {
        let (ours, mut theirs) = streams();
        theirs.write_all(b"x").unwrap();
        let epoll = epoll(ours.as_raw_fd(), libc::EPOLLIN, 1);
        let fd = epoll.as_raw_fd();
        // SAFETY: the time is a local variable.
        let wrong_time = unsafe {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            told(libc::epoll_pwait2(fd, &mut event, 1, &timespec(0, -1), null()) as isize)
        };
        (events_of(fd, 0, -1), events_of(fd, -1, -1), events_of(ours.as_raw_fd(), 8, -1), events_of(-1, 8, -1), wrong_time, events_of(fd, 8, 0))
    };
    p20_several_wait_for_one_epoll, true, || {
        // Each event wakes one of them.
        // SAFETY: makes a descriptor.
        let counter = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let epoll = Arc::new(epoll(counter.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 1));
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let epoll = Arc::clone(&epoll);
                go(move || events_of(epoll.as_raw_fd(), 8, -1)).waiting()
            })
            .collect();
        let mut counter = File::from(counter);
        let mut results = Vec::new();
        let mut waiters = waiters;
        while !waiters.is_empty() {
            counter.write_all(&1_u64.to_ne_bytes()).unwrap();
            crate::patience::eventually("one has it", || waiters.iter().any(|waiter| waiter.is_over()));
            let index = waiters.iter().position(|waiter| waiter.is_over()).unwrap();
            results.push(waiters.remove(index).join());
        }
        results
    };
    p20_more_than_there_is_room_for, true, || {
        let pairs: Vec<_> = (0..5).map(|_| streams()).collect();
        // SAFETY: makes a descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        pairs.iter().zip(0..).for_each(|((ours, _), data)| watch(&epoll, ours.as_raw_fd(), libc::EPOLLIN, data));
        let peers: Vec<_> = pairs.iter().map(|(_, theirs)| theirs.try_clone().unwrap()).collect();
        let first = later(move || peers.into_iter().for_each(|mut peer| peer.write_all(b"x").unwrap()));
        let waited = events_of(epoll.as_raw_fd(), 1, -1).0;
        first.join().unwrap();
        // Those that were not told come first.
        let counts = [2, 8].map(|room| events_of(epoll.as_raw_fd(), room, -1).0);
        (waited, counts)
    };
    p20_a_timer_in_an_epoll, true, || {
        let start = Instant::now();
        // SAFETY: makes a descriptor; the time is a local variable.
        let timer = unsafe {
            let timer = OwnedFd::from_raw_fd(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC));
            let mut time: libc::itimerspec = std::mem::zeroed();
            (time.it_value.tv_nsec, time.it_interval.tv_nsec) = (5_000_000, 5_000_000);
            assert_eq!(libc::timerfd_settime(timer.as_raw_fd(), 0, &time, null_mut()), 0);
            timer
        };
        let epoll = epoll(timer.as_raw_fd(), libc::EPOLLIN | libc::EPOLLET, 9);
        let mut timer = File::from(timer);
        let found = [0; 3].map(|_| (events_of(epoll.as_raw_fd(), 8, -1), kind(timer.read(&mut [0; 8]))));
        (found, start.elapsed() >= ms(14))
    };
}
