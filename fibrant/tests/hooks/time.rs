//! Time: points 16 to 20.

use crate::support::*;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

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
}
