//! What cannot be compared with a thread.

use crate::patience::Watchdog;
use crate::support::*;
use fibrant::runtime::Builder;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

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
    let watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    watchdog.show(&runtime);
    let received = runtime.spawn(|| {
        let (mut ours, mut theirs) = streams();
        let fd = ours.as_raw_fd();
        let done = std::sync::Arc::new(AtomicUsize::new(0));
        let reads = std::sync::Arc::clone(&done);
        let reader = fibrant::spawn(move || {
            let mut buffer = [0; 8];
            let counts = [0; 2].map(|_| {
                let count = ours.read(&mut buffer).unwrap();
                reads.fetch_add(1, SeqCst);
                count
            });
            (counts, buffer)
        });
        fibrant::yield_now(); // it waits, and is registered
        thread::sleep(ms(50)); // it has made sure of that, and does not look again
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
        while done.load(SeqCst) == 0 {
            fibrant::yield_now();
        }
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
    let is_told = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_told);
    let reader = runtime.spawn(move || {
        let first = receive(ours.as_raw_fd(), &mut [0; 4], 0);
        told.store(true, SeqCst);
        (first, receive(ours.as_raw_fd(), &mut [0; 4], 0))
    });
    while runtime.stats().descriptor_waits == 0 {
        thread::sleep(ms(1));
    }
    reader.cancel();
    while !is_told.load(SeqCst) {
        thread::sleep(ms(1));
    }
    theirs.write_all(b"x").unwrap();
    assert_eq!(reader.join().unwrap(), ((-1, libc::ECANCELED), (1, 0)));
    runtime.stop().unwrap();
}

#[test]
fn a_cancelled_epoll_keeps_its_events() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let told = runtime.spawn(|| {
        let (ours, mut theirs) = streams();
        // SAFETY: makes a descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: 7,
        };
        let number = epoll.as_raw_fd();
        // SAFETY: the event is a local variable.
        let added = unsafe { libc::epoll_ctl(number, libc::EPOLL_CTL_ADD, ours.as_raw_fd(), &mut event) };
        assert_eq!(added, 0);
        let wait = move |milliseconds| {
            let mut found = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: there is room for one.
            told(unsafe { libc::epoll_wait(number, &mut found, 1, milliseconds) } as isize)
        };
        let waiter = fibrant::spawn(move || wait(-1));
        thread::sleep(ms(20));
        // Both happen while it cannot look.
        theirs.write_all(b"x").unwrap();
        waiter.cancel();
        (waiter.join().unwrap(), wait(0), wait(0))
    });
    assert_eq!(told.join().unwrap(), ((-1, libc::ECANCELED), (1, 0), (0, 0)));
    runtime.stop().unwrap();
}

#[test]
fn each_timeout_is_told_of_and_a_cancel_after_them() {
    let _watchdog = Watchdog::new();
    let runtime = Builder::new().workers(1).build().unwrap();
    let reader = runtime.spawn(|| {
        let (ours, _theirs) = streams();
        let read = || receive(ours.as_raw_fd(), &mut [0; 4], 0);
        let limited = [0; 2].map(|_| fibrant::timeout(ms(5), read));
        // The inner one's time is up, and then the outer one's.
        let nested = fibrant::timeout(ms(1000), || [fibrant::timeout(ms(5), read), Ok(read())]);
        // Cancelled here.
        (limited, nested, read())
    });
    let is_last = || {
        runtime
            .hook_stats()
            .iter()
            .any(|one| one.name == "recv" && one.calls == 5)
    };
    while !is_last() {
        thread::sleep(ms(1));
    }
    reader.cancel();
    let told = (-1, libc::ECANCELED);
    assert_eq!(reader.join().unwrap(), ([Ok(told); 2], Ok([Ok(told); 2]), told));
    runtime.stop().unwrap();
}
